"""`make demo`: a made-up two-GPU training job, from its trace to its slack to a plan.

Nothing is measured here and no GPU is needed: the traces are played by demo_trace.py. The commands
are the ones that you would run on the traces of your own job.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from demo_trace import make_job

REPOSITORY = Path(__file__).resolve().parents[1]
FOLDER = REPOSITORY / "build" / "demo"


def run(*arguments: str) -> None:
    """Show a command, run it, stop the demo if it fails."""
    print(f"\n$ emo {' '.join(arguments)}\n", flush=True)
    code = subprocess.run([sys.executable, "-m", "emo", *arguments], cwd=REPOSITORY, check=False).returncode
    if code:
        raise SystemExit(code)


def main() -> None:
    """The whole line."""
    print("A training job on two GPUs: rank 1 loads its input slowly, so GPU 0 waits for it in every step.")
    traces = [str(path.relative_to(REPOSITORY)) for path in make_job(FOLDER)]
    report = str((FOLDER / "report.html").relative_to(REPOSITORY))
    run("analyze", *traces, "-o", report)
    run("whatif", *traces, "--scale", "rank:0=1.2")
    run("plan", *traces, "--gpu", "A100", "--max-slowdown", "5%", "-o", report)
    print(f"\nOpen {FOLDER / 'report.html'} in a browser: it needs no network.")


if __name__ == "__main__":
    main()
