"""How far the report can be trusted: every number of the trace's quality, in words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath

from emo.analysis import MAX_UNEXPLAINED_RATIO, Analysis
from emo.report.charts import table
from emo.report.text import count, duration, escape, file_label, percent, plural
from emo.trace.model import StepQuality, SyncInfo, TraceQuality
from emo.trace.validate import MIN_COMPLETENESS

_MAX_STEP_ROWS = 400
_MAX_UNEXPLAINED_ROWS = 20

_NEEDED = percent(MIN_COMPLETENESS)

_SYNC_TEXT = {
    SyncInfo.RECORDED: "recorded",
    SyncInfo.INFERRED: "inferred",
    SyncInfo.ABSENT: "absent",
}

# (name, what it means, how it is written)
_ROWS: tuple[tuple[str, str, Callable[[TraceQuality], str]], ...] = (
    ("Records", "read from the file", lambda q: count(q.records)),
    ("Dropped", "could not be used", lambda q: _reasons(q.dropped)),
    ("Repaired", "changed so that they could be used", lambda q: _reasons(q.repaired)),
    ("Launches", "API calls that start GPU work", lambda q: count(q.launches)),
    ("Launches without GPU op", "it was not recorded", lambda q: count(q.launches_without_kernel)),
    ("GPU ops", "kernels, copies, sets, communication", lambda q: count(q.kernels)),
    ("GPU ops without launch", "it was not recorded", lambda q: count(q.kernels_without_launch)),
    ("Completeness", f"launches that have their GPU op; {_NEEDED} needed", lambda q: percent(q.completeness)),
    ("What waits wait for", "recorded, inferred from patterns, or absent", lambda q: _SYNC_TEXT[q.sync_info]),
    ("Lost at the opening", "until the first GPU op with a launch", lambda q: duration(q.head_loss_ns)),
    (
        "Clock skew corrected",
        "so that no GPU op starts before its launch",
        lambda q: duration(q.clock_skew_ns),
    ),
    ("Streams overlap", "time with two or more busy / with one or more", lambda q: percent(q.overlap_ratio)),
    ("Ends early", "the file is cut", lambda q: "yes" if q.truncated else "no"),
    ("Steps counted", "iterations, or the window if there are none", lambda q: count(len(q.steps))),
)


def quality_section(analysis: Analysis) -> str:
    """The body of the quality section, as HTML."""
    return "".join(
        (
            _verdict(analysis),
            "<h3>Does the model reproduce the run?</h3>",
            _checks(analysis),
            _unexplained(analysis),
            "<h3>What was read</h3>",
            _per_file(analysis),
            _steps(analysis),
            "<h3>What the graph is made of</h3>",
            _graph(analysis),
        )
    )


def _verdict(analysis: Analysis) -> str:
    if not analysis.gate_reasons:
        return (
            '<p class="verdict good"><b>Passed.</b> Nothing in the trace speaks against planning from it.</p>'
        )
    items = "".join(f"<li>{escape(_short_paths(analysis, reason))}</li>" for reason in analysis.gate_reasons)
    return (
        '<div class="verdict"><b>Recommend only.</b> A plan made from this trace is advice and is not to be '
        f"enforced, because:<ul>{items}</ul></div>"
    )


def _short_paths(analysis: Analysis, text: str) -> str:
    for trace in sorted(analysis.traces, key=lambda trace: -len(trace.path)):
        text = text.replace(trace.path, PurePath(trace.path).name)
    return text


def _checks(analysis: Analysis) -> str:
    errors = analysis.prediction_errors
    good = "change of the makespan when all that no rule explains is left out"
    rows = [
        ["Replay error", percent(analysis.replay_error_ratio), "replayed against recorded makespan"],
        ["Largest start error", duration(analysis.max_start_error_ns), "of any op in that replay"],
        [
            "Unexplained",
            percent(analysis.unexplained_ratio),
            f"{good}; {percent(MAX_UNEXPLAINED_RATIO)} is good",
        ],
    ]
    if errors.median is None or errors.p95 is None:
        why = (
            "needs 4 comparable iterations"
            if not errors.skipped_pairs
            else "no two iterations run the same program"
        )
        rows.append(["Cross-iteration error", "not known", why])
    else:
        note = f"step time of one iteration foretold from another; {plural(errors.pairs, 'pair')}"
        note += (
            f", {count(errors.skipped_pairs)} skipped as different programs" if errors.skipped_pairs else ""
        )
        rows.append(["Cross-iteration error, median", percent(errors.median), f"{note}; 2\u202f% is good"])
        rows.append(["Cross-iteration error, 95th percentile", percent(errors.p95), "5\u202f% is good"])
        if errors.completion_median is not None and errors.completion_p95 is not None:
            both = f"{percent(errors.completion_median)} / {percent(errors.completion_p95)}"
            rows.append(["The same until the GPUs are done", both, "median / 95th percentile"])
    return table(["Check", "Result", "Meaning"], rows, "facts")


def _unexplained(analysis: Analysis) -> str:
    by_place = analysis.unexplained_ns_by
    if not by_place:
        return "<p>No GPU op and no call started later than the rules explain.</p>"
    shown = list(by_place.items())[:_MAX_UNEXPLAINED_ROWS]
    total = max(sum(by_place.values()), 1)
    rows = [[escape(where), duration(ns), percent(ns / total)] for where, ns in shown]
    if len(by_place) > len(shown):
        rest = sum(by_place.values()) - sum(ns for _, ns in shown)
        rows.append(
            [f"{plural(len(by_place) - len(shown), 'further place')}", duration(rest), percent(rest / total)]
        )
    return "<h3>Unexplained time by kind and stream</h3>" + table(
        ["Starts later than explained", "Summed over ops", "Share"], rows, "numbers"
    )


def _per_file(analysis: Analysis) -> str:
    traces = analysis.traces
    many = len(traces) > 1
    values = [escape(file_label(analysis.graph, i)) for i in range(len(traces))] if many else ["Value"]
    head = ["Quantity", *values, "Meaning"]
    rows = [[title, *(write(trace.quality) for trace in traces), meaning] for title, meaning, write in _ROWS]
    return table(head, rows, "facts wide" if many else "facts")


def _reasons(counts: dict[str, int]) -> str:
    items = sorted(counts.items())
    return "<br>".join(f"{count(n)} {escape(reason.replace('_', ' '))}" for reason, n in items) or "none"


def _steps(analysis: Analysis) -> str:
    rows = [
        _step_row(file_label(analysis.graph, index), number, step)
        for index, trace in enumerate(analysis.traces)
        for number, step in enumerate(trace.quality.steps)
    ]
    note = f"<p>The first {_MAX_STEP_ROWS} of {count(len(rows))}.</p>" if len(rows) > _MAX_STEP_ROWS else ""
    head = [
        "File",
        "Step",
        "Length",
        "Launches",
        "without GPU op",
        "GPU ops",
        "without launch",
        "Repaired",
        "Completeness",
    ]
    body = table(head, rows[:_MAX_STEP_ROWS], "numbers")
    return f"<details><summary>Quality of every step</summary>{note}{body}</details>"


def _step_row(label: str, number: int, step: StepQuality) -> list[str]:
    return [
        escape(label),
        count(number),
        duration(step.end_ns - step.start_ns),
        count(step.launches),
        count(step.launches_without_kernel),
        count(step.kernels),
        count(step.kernels_without_launch),
        count(step.repaired),
        percent(step.completeness),
    ]


def _graph(analysis: Analysis) -> str:
    graph = analysis.graph
    report = graph.report
    queue = f"{count(report.max_outstanding_launches)} of {count(report.queue_depth)}"
    kept, dropped = report.inferred_patterns_kept, report.inferred_patterns_dropped
    rows = [
        ["Ops and calls", count(len(graph.nodes)), "nodes of the graph"],
        ["Ordering rules applied", count(len(graph.src)), "edges of the graph"],
        ["Inferred wait patterns kept", count(kept), "pairs of streams whose waits fit the run"],
        ["Inferred wait patterns dropped", count(dropped), "contradicted by the run"],
        ["Inferred waits dropped", count(report.inferred_waits_dropped), "with those patterns"],
        ["Cyclic edges dropped", count(report.cyclic_edges_dropped), "would make an op wait for itself"],
        ["Launch queue", queue, "most launches outstanding / assumed depth"],
        ["Collectives matched", count(len(graph.joints)), "across the ranks given"],
        ["Collectives unmatched", count(report.collectives_unmatched), "their peers are not in the trace"],
        ["Collectives ending apart", count(report.large_residuals), "ranks end more than 50\u202fµs apart"],
    ]
    result = table(["Quantity", "Value", "Meaning"], rows, "facts")
    if report.findings:
        findings = "".join(
            f"<li>{escape(_short_paths(analysis, finding))}</li>" for finding in report.findings
        )
        result += f"<p>Findings:</p><ul>{findings}</ul>"
    kinds = sorted(set(report.edges_by_type) | set(report.violated_by_type))
    edge_rows = [
        [
            escape(kind.lower().replace("_", " ")),
            count(report.edges_by_type.get(kind, 0)),
            count(report.violated_by_type.get(kind, 0)),
        ]
        for kind in kinds
    ]
    result += (
        "<details><summary>Edges by rule</summary>"
        + table(["Rule", "Edges", "Dropped: the run contradicts them"], edge_rows, "numbers")
        + "</details>"
    )
    if len(report.clock_offsets_ns) > 1:
        clocks = [
            [f"rank {rank}", duration(offset)] for rank, offset in sorted(report.clock_offsets_ns.items())
        ]
        result += (
            "<details><summary>Clock offsets between ranks</summary>"
            + table(["Rank", "Offset removed"], clocks, "numbers")
            + "</details>"
        )
    return result
