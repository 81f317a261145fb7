"""The sections that break time down: the critical path by cause, and slack by cause per GPU."""

from __future__ import annotations

from emo.analysis import Analysis
from emo.graph.slack import CAUSE_TEXT, MIN_WINDOW_NS, PERSISTENT_ITERATIONS, Cause
from emo.report.charts import bar, legend, table
from emo.report.contributors import top_contributors
from emo.report.states import (
    GPU_STATES,
    PATH_STATES,
    PATH_TEXT,
    STATE_TEXT,
    State,
    gpu_segments,
    path_segments,
)
from emo.report.summary import path_shares, slack_by_cause
from emo.report.text import THIN, Scale, count, duration, escape, gpu_label, name, percent, upper

_TOP = 12


_PATH_MEANING = {
    State.CPU: "the CPU works while the GPUs wait for what it launches next",
    State.COMPUTE: "kernels that nothing can overtake",
    State.COLLECTIVE: "transfers between ranks, and waiting for ranks that are not in the trace",
    State.COPY: "copies and sets between host and GPU, or on the GPU",
    State.LATENCY: "launch and queue latencies, and starts that no rule explains",
    State.CAPTURE: "the files of a job do not open at the same instant: nothing is known of this time",
}


def path_section(analysis: Analysis) -> str:
    """Critical path: a bar, a table, and the names that it consists of."""
    shares = path_shares(analysis)
    shown = [state for state in PATH_STATES if shares[state] > 0 or state != State.CAPTURE]
    segments = path_segments(analysis.path)
    words = "; ".join(f"{upper(PATH_TEXT[state])} {percent(shares[state])}" for state in shown)
    scale = Scale.fitting([analysis.timeline.makespan_ns])
    rows = [
        [
            f'<i class="key s{int(state)}"></i>{upper(PATH_TEXT[state])}',
            scale.number(segments.total_ns(state)),
            percent(shares[state]),
            _PATH_MEANING[state],
        ]
        for state in shown
    ]
    rows.append(["Whole window", scale.number(analysis.timeline.makespan_ns), percent(1.0), ""])
    top = [
        [
            upper(PATH_TEXT[item.state]),
            name(item.name),
            scale.number(item.time_ns),
            percent(item.time_ns / max(analysis.timeline.makespan_ns, 1)),
            count(item.stretches),
        ]
        for item in top_contributors(analysis, _TOP)
    ]
    return (
        "<p>The chain of work and waits that decides when the window ends. Only what is on it shortens or "
        "lengthens the run; everything else has room.</p>"
        + bar([(state, shares[state]) for state in shown], f"Critical path: {words}", css="bar big")
        + table(["Spent on", f"Time ({scale.unit})", "Share", "What it is"], rows, "facts")
        + f"<h3>What the critical path consists of: the {len(top)} largest</h3>"
        + table(
            ["Spent on", "Call, framework op or kernel", f"Time ({scale.unit})", "Share", "Stretches"],
            top,
            "numbers names",
        )
    )


def slack_section(analysis: Analysis) -> str:
    """How each GPU's time divides, and why it waits."""
    makespan = max(analysis.timeline.makespan_ns, 1)
    segments = gpu_segments(analysis)
    used: set[State] = set()
    bars = []
    for gpu, own in zip(analysis.slack.gpus, segments, strict=True):
        parts = [(state, own.total_ns(state) / makespan) for state in GPU_STATES]
        used |= {state for state, share in parts if share > 0}
        label = gpu_label(analysis.graph, gpu.gpu)
        words = "; ".join(f"{STATE_TEXT[state]} {percent(share)}" for state, share in parts if share > 0)
        note = f"usable slack {percent(gpu.slack_ns / makespan)}"
        bars.append(
            f'<div class="lane"><div class="label"><b>{escape(label)}</b><small>{note}</small></div>'
            f"{bar(parts, f'{label}: {words}')}</div>"
        )
    return (
        "<p>A GPU has one clock for all its streams, so slack counts only where the whole GPU waits for at "
        f"least {duration(MIN_WINDOW_NS)}, and only as much of it as the work before could fill without "
        "moving anything else. Waiting for ranks that are not in the trace and waits cut by the capture "
        "are never counted.</p>"
        f'<div class="bars">{"".join(bars)}</div>'
        + legend("", [(state, STATE_TEXT[state]) for state in GPU_STATES if state in used])
        + _causes(analysis)
        + _accounts(analysis)
    )


def _causes(analysis: Analysis) -> str:
    gpus = analysis.slack.gpus
    totals = slack_by_cause(gpus)
    if not sum(totals.values()):
        return "<p>No GPU has slack that could be used.</p>"
    scale = Scale.fitting([gpu.slack_ns for gpu in gpus])
    causes = [cause for cause in Cause if totals.get(cause)]
    rows = []
    for gpu in gpus:
        own = gpu.windows.slack_by_cause_ns()
        cells = [scale.number(own.get(cause, 0)) for cause in causes]
        rows.append([escape(gpu_label(analysis.graph, gpu.gpu)), *cells, scale.number(gpu.slack_ns)])
    if len(gpus) > 1:
        cells = [scale.number(totals[cause]) for cause in causes]
        rows.append(["All GPUs", *cells, scale.number(sum(totals.values()))])
    head = [
        "GPU",
        *(f"{upper(CAUSE_TEXT[cause])} ({scale.unit})" for cause in causes),
        f"Usable slack ({scale.unit})",
    ]
    return "<h3>Usable slack by cause</h3>" + table(head, rows, "numbers causes")


def _accounts(analysis: Analysis) -> str:
    gpus = analysis.slack.gpus
    scale = Scale.fitting([analysis.timeline.makespan_ns])
    rows = [
        [
            escape(gpu_label(analysis.graph, gpu.gpu)),
            scale.number(gpu.busy_ns),
            scale.number(gpu.peer_wait_ns),
            scale.number(gpu.idle_ns),
            count(len(gpu.windows)),
            scale.number(gpu.edge_slack_ns),
            "not known" if gpu.persistent_slack_ns is None else duration(gpu.persistent_slack_ns),
        ]
        for gpu in gpus
    ]
    unit = scale.unit
    head = [
        "GPU",
        f"Busy ({unit})",
        f"Waiting in collectives ({unit})",
        f"Idle ({unit})",
        "Slack windows",
        f"Slack cut by the capture ({unit})",
        "Slack in 9 of 10 steps",
    ]
    window = f"{scale.number(analysis.timeline.makespan_ns)}{THIN}{unit}"
    note = f"<p>Busy, waiting in collectives and idle add up to the window ({window})."
    if any(gpu.persistent_slack_ns is None for gpu in gpus):
        note += (
            f" Slack that recurs in nine of ten steps is known from {PERSISTENT_ITERATIONS} iterations on."
        )
    return f"<h3>Time account of every GPU</h3>{table(head, rows, 'numbers causes')}{note}</p>"
