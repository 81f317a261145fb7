"""Runs a command as a whole process and says what it cost: wall time, peak memory, output."""

from __future__ import annotations

import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Linux counts ru_maxrss in KiB, macOS in bytes.
_RSS_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024


Command = Sequence[str | Path]
"""A program's path and its arguments."""


class BenchError(Exception):
    """A command that is to be measured failed, so there is nothing to report."""


@dataclass(frozen=True, slots=True)
class ProcessRun:
    """What one finished process cost. ``stdout`` is its whole output as text."""

    wall_s: float
    peak_rss_bytes: int
    stdout: str

    def last_json(self) -> dict[str, Any]:
        """The JSON object on the last line of the output. Raises BenchError if there is none."""
        lines = self.stdout.strip().splitlines()
        return _json_object(lines[-1] if lines else "")

    def whole_json(self) -> dict[str, Any]:
        """The JSON object that the whole output is. Raises BenchError if it is not."""
        return _json_object(self.stdout)


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise BenchError(f"expected a JSON object in the output, found {text[:80]!r}")
    return value


def run_process(command: Command) -> ProcessRun:
    """Run ``command`` to its end.

    Raises BenchError if it cannot be started or does not exit with 0; the message has the last
    line that it wrote to stderr.
    """
    argv = [str(part) for part in command]
    # Files instead of pipes: nobody has to drain them while os.wait4 blocks.
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        start = time.perf_counter()
        try:
            pid = os.posix_spawn(
                argv[0],
                argv,
                _environment(),
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, stdout.fileno(), 1),
                    (os.POSIX_SPAWN_DUP2, stderr.fileno(), 2),
                ],
            )
        except OSError as error:
            raise BenchError(f"cannot start {argv[0]}: {error.strerror}") from None
        # A child inherits its parent's peak until exec, so ru_maxrss is never below the peak of
        # this process. That is why nothing large is ever loaded here: reads are timed in children.
        _, status, usage = os.wait4(pid, 0)
        wall_s = time.perf_counter() - start
        stdout.seek(0)
        stderr.seek(0)
        output = stdout.read().decode(errors="replace")
        complaint = stderr.read().decode(errors="replace")
    code = os.waitstatus_to_exitcode(status)
    if code != 0:
        last = (complaint.strip().splitlines() or ["no message"])[-1]
        raise BenchError(f"`{shlex.join(argv)}` ended with {code}: {last}")
    return ProcessRun(wall_s, usage.ru_maxrss * _RSS_UNIT_BYTES, output)


def _environment() -> dict[str, str]:
    """This environment, but with bytecode caches, as a user has them: without, start-up doubles."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def pin_to_one_cpu(cpu: int | None = None) -> int | None:
    """Bind this process and all that it starts to one CPU; returns which, or None if the OS cannot.

    Without a wish the highest allowed CPU is taken: CPU 0 serves most interrupts. Raises
    BenchError if ``cpu`` is not one that this process may use.
    """
    if not hasattr(os, "sched_setaffinity"):
        return None
    allowed = os.sched_getaffinity(0)
    chosen = max(allowed) if cpu is None else cpu
    if chosen not in allowed:
        raise BenchError(f"CPU {chosen} is not available; choose one of {sorted(allowed)}")
    os.sched_setaffinity(0, {chosen})
    return chosen
