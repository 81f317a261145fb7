"""``make bench``: how fast EMO is, as ratios against a peer measured in the same run on one core.

A ratio is the peer's figure over EMO's, so that more is better; EMO and peer take turns and the
median over the rounds counts. Seconds alone say more about the machine than about EMO, so goals in
seconds are only a guide, and no outcome is a failure: the exit code is 0 unless something that is
to be measured does not run (then 1). What cannot be measured here is skipped with its reason.

The method and measured figures are in ``docs/benchmarks.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench_peer import REPO, PeerUnavailableError, prepare_peer
from bench_process import BenchError, Command, ProcessRun, pin_to_one_cpu, run_process
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

HERE = Path(__file__).resolve().parent
SAMPLE = Path("traces", "hta", "df_index_resolver.json.gz")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the result.

    ``emo`` and ``peer`` are medians in ``unit``; ``ratio`` is the median over the rounds of peer
    over EMO, ``ratio_low`` and ``ratio_high`` its range. ``goal_met`` is None where there is no
    goal or nothing was measured. ``note`` says what the peer did, or why the row was skipped.
    """

    what: str
    unit: str
    emo: float | None = None
    peer: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    goal: str = ""
    goal_met: bool | None = None
    note: str = ""


def measured(
    what: str,
    unit: str,
    emo: list[float],
    peer: list[float],
    *,
    goal: str = "",
    least_ratio: float | None = None,
    most: float | None = None,
    note: str = "",
) -> Row:
    """The row of paired measurements, the i-th of each list from the i-th round.

    ``peer`` may be empty (then there is no ratio). The goal is a least ratio, or a most for EMO's
    own figure.
    """
    ratios = [theirs / ours for ours, theirs in zip(emo, peer, strict=True)] if peer else []
    met: bool | None = None
    if least_ratio is not None and ratios:
        met = median(ratios) >= least_ratio
    elif most is not None:
        met = median(emo) <= most
    return Row(
        what,
        unit,
        median(emo),
        median(peer) if peer else None,
        median(ratios) if ratios else None,
        min(ratios, default=None),
        max(ratios, default=None),
        goal,
        met,
        note,
    )


def alternate(
    rounds: int, ours: Command, theirs: Command | None
) -> tuple[list[ProcessRun], list[ProcessRun]]:
    """Run the two in turns, so that what disturbs the machine disturbs both."""
    emo: list[ProcessRun] = []
    peer: list[ProcessRun] = []
    for _ in range(rounds):
        emo.append(run_process(ours))
        if theirs is not None:
            peer.append(run_process(theirs))
    return emo, peer


def bench_analyze(analyze: Command, hta: Command | None, why_no_hta: str, rounds: int) -> list[Row]:
    """`emo analyze` against HTA, each as a whole process, and a replay against HTA's longest path."""
    run_process(analyze)  # warms the page cache and Python's bytecode
    again_s: list[float] = []
    if hta is not None:  # likewise; and here HTA shows what one re-evaluation costs
        again_s = run_process((*hta, "--reevaluate", "5")).last_json()["reevaluate_s"]
    ours, theirs = alternate(rounds, analyze, hta)
    replay_ms = [_timing(run.whole_json(), "replay") * 1e3 for run in ours]
    again_ms = [median(again_s) * 1e3] * len(ours) if again_s else []
    wall = [run.wall_s for run in ours]
    return [
        measured(
            "file to critical path, whole process",
            "s",
            wall,
            [run.wall_s for run in theirs],
            goal=">= 15x",
            least_ratio=15,
            note=why_no_hta or "HTA, whole process",
        ),
        measured(
            "the same, HTA without its start-up",
            "s",
            wall,
            [run.last_json()["seconds"] for run in theirs],
            note=why_no_hta or "EMO's start-up still counted",
        ),
        measured(
            "peak memory of that process",
            "MB",
            [run.peak_rss_bytes / 1e6 for run in ours],
            [run.peak_rss_bytes / 1e6 for run in theirs],
            goal="<= 240 MB",
            most=240,
            note=why_no_hta or "HTA",
        ),
        measured(
            "one what-if replay",
            "ms",
            replay_ms,
            again_ms,
            goal="guide <= 5 ms",
            most=5,
            note=why_no_hta or "HTA: longest path once more",
        ),
    ]


def _timing(analysis: dict[str, Any], stage: str) -> float:
    try:
        return float(analysis["timings_s"][stage])
    except (KeyError, TypeError, ValueError):
        raise BenchError(f"`emo analyze --json` has no timings_s.{stage}") from None


def bench_read(trace: Path, rounds: int) -> list[Row]:
    """EMO's reader against orjson, each timed inside a fresh process."""
    python, script = Path(sys.executable), HERE / "read_columns.py"
    ours, theirs = alternate(rounds, (python, script, "columns", trace), (python, script, "orjson", trace))
    emo_s = [run.last_json()["seconds"] for run in ours]
    peers = [run.last_json() for run in theirs]
    return [
        measured(
            "reading to columns, gunzip included",
            "s",
            emo_s,
            [peer["seconds"] for peer in peers],
            goal=">= 1x",
            least_ratio=1,
            note="gunzip + orjson.loads",
        ),
        measured(
            "the same, orjson.loads alone",
            "s",
            emo_s,
            [peer["loads_s"] for peer in peers],
            note="EMO's gunzip still counted",
        ),
    ]


def bench_help(emo: Path, rounds: int) -> list[Row]:
    """`emo --help` against a Python that does nothing."""
    run_process((emo, "--help"))
    ours, theirs = alternate(rounds, (emo, "--help"), (Path(sys.executable), "-c", "pass"))
    return [
        measured(
            "emo --help, whole process",
            "s",
            [run.wall_s for run in ours],
            [run.wall_s for run in theirs],
            goal="guide <= 0.3 s",
            most=0.3,
            note="python -c pass",
        )
    ]


def run_all(trace: Path, rounds: int, say: Callable[[str], None]) -> list[Row]:
    """All rows. Raises BenchError if something that is to be measured fails."""
    emo = Path(sys.executable).with_name("emo")
    if not emo.exists():
        raise BenchError(f"{emo} is missing; run `make setup` and start this with .venv/bin/python")
    say("emo --help")
    rows = bench_help(emo, max(rounds, 7))
    if not trace.is_file():
        reason = f"skipped: no {trace.name} under {trace.parent}; set EMO_SAMPLES to the samples folder"
        return [*rows, Row("all benchmarks on a trace", "", note=reason)]
    say("reading to columns")
    rows += bench_read(trace, max(rounds, 5))
    say("the peer's environment (made once; this can take minutes)")
    hta: Command | None = None
    reason = ""
    try:
        hta = (prepare_peer(), HERE / "hta_peer.py", trace)
    except PeerUnavailableError as error:
        reason = f"no ratio: HTA cannot be installed: {error}"
    say("file to critical path (about 12 s per round)")
    return bench_analyze((emo, "analyze", trace, "--json"), hta, reason, rounds) + rows


def machine(cpu: int | None) -> dict[str, Any]:
    """What the figures depend on: processor, pinned CPU, Python, and the load when all began."""
    return {
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "pinned_to_cpu": cpu,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "load_average_1min": round(os.getloadavg()[0], 2),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def table(rows: Iterable[Row]) -> Table:
    """The rows as a table for people; fits 80 columns."""
    grid = Table(box=SIMPLE, pad_edge=False)
    grid.add_column("what against what", min_width=20)
    for title in ("EMO", "peer", "ratio", "range"):
        grid.add_column(title, justify="right", no_wrap=True)
    grid.add_column("goal")
    for row in rows:
        grid.add_row(
            f"{row.what}\n[dim]{escape(row.note)}[/dim]",
            _figure(row.emo, row.unit),
            _figure(row.peer, row.unit),
            "" if row.ratio is None else f"{_digits(row.ratio)}x",
            "" if row.ratio is None else f"{_digits(row.ratio_low)}-{_digits(row.ratio_high)}",
            row.goal + {True: ": met", False: ": missed", None: ""}[row.goal_met],
        )
    return grid


def _figure(value: float | None, unit: str) -> str:
    return "" if value is None else f"{_digits(value)} {unit}"


def _digits(value: float | None) -> str:
    """Three digits, never an exponent; empty for None."""
    return "" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout instead of a table")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of emo analyze and HTA in turns (3)")
    parser.add_argument("--cpu", type=int, help="the CPU to bind to (the highest that may be used)")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    samples = Path(os.environ.get("EMO_SAMPLES", REPO.parent / "shared"))
    progress = Console(stderr=True)
    try:
        about = machine(pin_to_one_cpu(options.cpu))
        with progress.status("starting") as status:
            rows = run_all(samples / SAMPLE, options.rounds, lambda what: status.update(f"measuring {what}"))
    except BenchError as error:
        print(f"bench: error: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps({"schema": "emo.bench/v1", "machine": about, "rows": [asdict(row) for row in rows]}))
        return 0
    console = Console()
    console.print(table(rows))
    console.print(", ".join(f"{key.replace('_', ' ')} {value}" for key, value in about.items()), style="dim")
    return 0


if __name__ == "__main__":
    sys.exit(main())
