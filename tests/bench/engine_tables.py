"""Writes docs/engine-tables.md: what the engine makes of every sample trace, and what each rule is worth.

Run by ``make tables``; needs the sample traces (EMO_SAMPLES).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from emo.analysis import Analysis, analyze_traces
from emo.errors import TraceError
from emo.graph.build import build_graph
from emo.graph.model import EdgeType
from emo.graph.predict import predict_iterations, summarize
from emo.trace.model import Trace
from emo.trace.read import read_trace

REPOSITORY = Path(__file__).resolve().parents[2]
OUTPUT = REPOSITORY / "docs" / "engine-tables.md"
RANKS_OF_ONE_JOB = ("param/worker", "hta/sampled_rank")
# Without these two there is no graph left to speak of.
REMOVABLE = [rule for rule in EdgeType if rule not in (EdgeType.OP, EdgeType.PROGRAM)]
CAUSES = {
    "backward_thread": "cut by hand to 7 events: what the only kernel waited for is not among them",
    "nsys/mock": "3 GPU ops: the first use of each loads its module, which no record shows",
    "hta/sampled_rank": "a sampled trace: most records were removed before it was published",
    "sglang": "the first op starts 463 ms after its launch: the GPU was busy with work whose records are missing",
    "vllm": "the first op starts 149 ms after its launch: the GPU was busy with work whose records are missing",
    "rocprof": "GPU records only: no API call is in the file, so nothing explains the gaps between kernels",
}


def sample_jobs(samples: Path) -> Iterable[tuple[str, list[Path]]]:
    """(name, files): every file by itself, and the ranks of one job together as well."""
    files = sorted(path for path in samples.rglob("*") if path.suffix in (".gz", ".json", ".sqlite"))
    for path in files:
        yield str(path.relative_to(samples)), [path]
    for prefix in RANKS_OF_ONE_JOB:
        ranks = [path for path in files if str(path.relative_to(samples)).startswith(prefix)]
        if len(ranks) > 1:
            yield f"{prefix}* ({len(ranks)} ranks)", ranks


def percent(value: float | None, digits: int = 2) -> str:
    """A ratio as text, or a dash."""
    return "-" if value is None else f"{value * 100:.{digits}f} %"


def sample_row(name: str, analysis: Analysis) -> str:
    """One line of the table of samples."""
    quality = analysis.traces[0].quality
    step = "-" if analysis.step.recorded_ns is None else f"{analysis.step.recorded_ns / 1e6:.2f} ms"
    errors = analysis.prediction_errors
    return (
        f"| {name} | {len(analysis.graph.nodes)} | {len(analysis.graph.src)} | {analysis.step.iterations} "
        f"| {step} | {quality.sync_info.name.lower()} | {percent(quality.completeness, 1)} "
        f"| {percent(analysis.replay_error_ratio)} | {analysis.max_start_error_ns} ns "
        f"| {percent(analysis.unexplained_ratio)} "
        f"| {percent(analysis.unexplained_gpu_ratio)} | {percent(errors.median)} | {percent(errors.p95)} "
        f"| {percent(errors.completion_median)} | {percent(errors.completion_p95)} |"
    )


def rule_rows(name: str, trace: Trace) -> list[str]:
    """Prediction errors with every rule, and with each rule removed that has edges in this trace."""
    whole = build_graph([trace])
    rows = []
    for rule in [None, *REMOVABLE]:
        edges = len(whole.src) if rule is None else whole.report.edges_by_type.get(rule.name, 0)
        if not edges:
            continue
        graph = whole if rule is None else build_graph([trace], without=(rule,))
        errors = summarize(*predict_iterations(graph))
        if errors.median is None:
            return []
        label = "all rules" if rule is None else f"without {rule.name}"
        figures = (errors.median, errors.p95, errors.completion_median, errors.completion_p95)
        rows.append(
            f"| {name} | {label} | {edges} | " + " | ".join(percent(figure) for figure in figures) + " |"
        )
    return rows


def main() -> int:
    """Write the tables; returns 0, or 1 without samples."""
    samples = Path(os.environ.get("EMO_SAMPLES", REPOSITORY.parent / "shared")) / "traces"
    if not samples.is_dir():
        print(
            f"no sample traces at {samples}; set EMO_SAMPLES to the folder that holds traces/",
            file=sys.stderr,
        )
        return 1
    first = [
        "| trace | nodes | edges | iterations | step | sync records | complete | replay error | worst start "
        "| unexplained | on the worst stream | step median | step p95 | completion median | completion p95 |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    second = [
        "| trace | rules | edges | step median | step p95 | completion median | completion p95 |",
        "|---|---|---|---|---|---|---|",
    ]
    refused = ["| trace | message |", "|---|---|"]
    above: list[str] = []
    for name, paths in sample_jobs(samples):
        try:
            traces = [read_trace(path) for path in paths]
            analysis = analyze_traces(traces)
        except TraceError as error:
            refused.append(f"| {name} | {error.found}; {error.expected}; {error.hint} |")
            continue
        first.append(sample_row(name, analysis))
        if max(analysis.unexplained_ratio, analysis.unexplained_gpu_ratio) > 0.02:
            worst = next(iter(analysis.unexplained_ns_by), "")
            cause = next((text for part, text in CAUSES.items() if part in name), "not understood")
            above.append(
                f"| {name} | {percent(analysis.unexplained_ratio)} | {percent(analysis.unexplained_gpu_ratio)} "
                f"| {worst} | {cause} |"
            )
        if len(paths) == 1:
            second += rule_rows(name, traces[0])
    OUTPUT.write_text(
        "\n".join(
            [
                "# What the engine makes of the sample traces",
                "",
                "Written by `make tables`; do not edit. [engine.md](engine.md) says what the columns mean.",
                "",
                "## Every trace",
                "",
                *first,
                "",
                "Above 2 % of the makespan or of the time on the worst stream, and why:",
                "",
                "| trace | of the makespan | on the worst stream | mostly | cause |",
                "|---|---|---|---|---|",
                *above,
                "",
                "Files that `emo analyze` refuses (exit code 2), and what it says:",
                "",
                *refused,
                "",
                "## What every rule is worth",
                "",
                "Structure and latencies of one iteration, durations of another, nothing unexplained. Rules without",
                "an edge in a trace are not listed under it. A rule that turns CPU time into waiting (HANDOVER,",
                "BLOCKING_COPY, SYNC) can make the prediction a little worse: without it the CPU's waiting is taken",
                "from the predicted iteration itself, and so is right by construction (engine.md says more).",
                "",
                *second,
                "",
            ]
        ),
        encoding="utf-8",
    )
    print(f"wrote {OUTPUT.relative_to(REPOSITORY)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
