"""What README shows is what the program prints. Run this file to write the block anew."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
README = REPOSITORY / "README.md"
BEGIN, END = "<!-- output: make demo -->", "<!-- /output -->"
LAST_LINE = "* slack that"


def printed(folder: Path) -> str:
    """The block: the first command of the demo, up to the table of GPUs."""
    sys.path.insert(0, str(REPOSITORY / "examples"))
    try:
        from demo_trace import make_job
    finally:
        sys.path.pop(0)
    traces = [str(path) for path in make_job(folder)]
    run = subprocess.run(
        [sys.executable, "-m", "emo", "analyze", *traces], capture_output=True, text=True, check=True
    )
    lines = run.stdout.splitlines()
    last = next(i for i, line in enumerate(lines) if line.startswith(LAST_LINE))
    command = "$ emo analyze build/demo/rank0.json.gz build/demo/rank1.json.gz -o build/demo/report.html"
    return "\n".join(["```", command, "", *lines[: last + 1], "```"])


def shown() -> str:
    """The block as README has it."""
    return README.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0].strip()


def test_readme_shows_what_the_demo_prints(tmp_path: Path) -> None:
    assert shown() == printed(tmp_path)


if __name__ == "__main__":
    text = README.read_text(encoding="utf-8")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    block = printed(REPOSITORY / "build" / "demo")
    README.write_text(f"{before}{BEGIN}\n{block}\n{END}{after}", encoding="utf-8")
