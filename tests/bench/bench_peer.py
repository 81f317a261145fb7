"""The peer's own virtual environment: HolisticTraceAnalysis, pinned by hash, apart from EMO's.

It is made once under ``.bench/`` in the repository and made anew when the pins or the Python
version change. It needs a package index the first time (about 500 MB on disk).
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
REQUIREMENTS = REPO / "requirements" / "bench-peer.txt"
PEER_FOLDER = REPO / ".bench" / "peer"
INSTALL_TIMEOUT_S = 600


class PeerUnavailableError(Exception):
    """The peer cannot be installed here; the message says why. Benchmarks against it are skipped."""


def prepare_peer(folder: Path = PEER_FOLDER, requirements: Path = REQUIREMENTS) -> Path:
    """The path of the peer's interpreter, installed if need be. Raises PeerUnavailableError."""
    python = folder / "bin" / "python"
    stamp = folder / "installed.txt"
    try:
        wanted = _fingerprint(requirements)
        if not (stamp.is_file() and stamp.read_text() == wanted and python.exists()):
            shutil.rmtree(folder, ignore_errors=True)
            folder.parent.mkdir(parents=True, exist_ok=True)
            # The folder ignores itself, so that 500 MB are never committed by accident.
            (folder.parent / ".gitignore").write_text("*\n")
            _install(folder, python, requirements)
            # Written last: a half-made environment is never taken for a finished one.
            stamp.write_text(wanted)
    except OSError as error:
        raise PeerUnavailableError(f"{error.filename}: {error.strerror}") from None
    return python


def _fingerprint(requirements: Path) -> str:
    return f"{sys.version}\n{hashlib.sha256(requirements.read_bytes()).hexdigest()}\n"


def _install(folder: Path, python: Path, requirements: Path) -> None:
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([sys.executable, "-m", "venv", str(folder)])
    # Every package has a wheel; --no-deps since the file names all of them.
    _run([*pip, "--require-hashes", "--no-deps", "--only-binary", ":all:", "-r", str(requirements)])
    # The import shows that what was installed works.
    _run([str(python), "-c", "import hta.trace_analysis"])


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise PeerUnavailableError(f"not installed after {INSTALL_TIMEOUT_S} s") from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise PeerUnavailableError(last)
