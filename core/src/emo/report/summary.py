"""The summary in plain words: what limits the step, what the GPUs do, what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from emo.analysis import Analysis
from emo.graph.slack import CAUSE_TEXT, PERSISTENT_ITERATIONS, Cause, GpuSlack
from emo.graph.steps import MIN_ITERATIONS
from emo.graph.tracing import ASSUMED_TRACING_FACTOR
from emo.report.curve import WhatIfCurve
from emo.report.states import PATH_STATES, State, path_segments
from emo.report.text import digits, duration, escape, gpu_label, increase, listing, percent, plural, upper
from emo.trace.model import SyncInfo

# From this share of the critical path on, one thing is said to limit the step.
_LIMITING_SHARE = 0.5
# Smaller parts of the window are not worth a word.
_MENTIONED_SHARE = 0.005
# Below this share of the window, slack is not worth a plan.
_WORTH_SHARE = 0.01

_LIMITS = {
    State.CPU: "the CPU",
    State.COMPUTE: "the GPU",
    State.COLLECTIVE: "communication",
    State.COPY: "data copies",
    State.LATENCY: "latencies and unexplained gaps",
}
_MEANING = {
    State.CPU: "The GPUs wait for launches: they would finish no later at a lower clock, within limits.",
    State.COMPUTE: "A lower GPU clock lengthens the step, except where work is off the critical path.",
    State.COLLECTIVE: "Transfers between ranks decide; the clock of the GPUs hardly matters while they last.",
    State.COPY: "Transfers between host and GPU decide; a lower GPU clock hardly changes them.",
    State.LATENCY: "Little of it is work; see the quality section for what nothing explains.",
}


@dataclass(frozen=True, slots=True)
class Card:
    """One figure of the summary."""

    title: str
    value: str
    note: str


@dataclass(frozen=True, slots=True)
class Summary:
    """Headline, figures, sentences and next steps. All texts are HTML."""

    headline: str
    cards: list[Card]
    sentences: list[str]
    advice: list[str]


def summarize(analysis: Analysis, curve: WhatIfCurve | None, *, planned: bool) -> Summary:
    """Put an analysis into words. ``planned``: a plan is part of the report."""
    return Summary(
        headline=_headline(analysis),
        cards=_cards(analysis, curve),
        sentences=[*_limits(analysis), *_gpus(analysis), *_slack(analysis), *_worth(curve)],
        advice=advice(analysis, planned=planned),
    )


def path_shares(analysis: Analysis) -> dict[State, float]:
    """Share of the makespan per thing that the critical path is spent on; they add up to 1."""
    total = max(analysis.timeline.makespan_ns, 1)
    segments = path_segments(analysis.path)
    return {state: segments.total_ns(state) / total for state in PATH_STATES}


def _limiting_shares(analysis: Analysis) -> dict[State, float]:
    """The same without the time before the first record, largest first; they add up to 1."""
    shares = path_shares(analysis)
    rest = max(1.0 - shares.pop(State.CAPTURE), 1e-12)
    return {state: shares[state] / rest for state in sorted(shares, key=lambda state: -shares[state])}


def _headline(analysis: Analysis) -> str:
    shares = _limiting_shares(analysis)
    first, second = list(shares)[:2]
    if not analysis.graph.gpus:
        return "No GPU activity was recorded: there is no slack to find"
    if shares[first] >= _LIMITING_SHARE:
        return f"{upper(_LIMITS[first])} {_verb(first)} this job"
    return f"{upper(_LIMITS[first])} and {_LIMITS[second]} limit this job together"


def _verb(state: State) -> str:
    return "limit" if state in (State.COPY, State.LATENCY) else "limits"


def _cards(analysis: Analysis, curve: WhatIfCurve | None) -> list[Card]:
    step, gpus = analysis.step, analysis.slack.gpus
    makespan = max(analysis.timeline.makespan_ns, 1)
    if step.recorded_ns is not None:
        cards = [
            Card("Step time", duration(step.recorded_ns), f"over {plural(step.iterations, 'iteration')}")
        ]
    else:
        cards = [
            Card(
                "Recorded window",
                duration(makespan),
                f"{plural(step.iterations, 'iteration')}: too few for a step time",
            )
        ]
    if not gpus:
        return cards
    waits = any(gpu.peer_wait_ns for gpu in gpus)
    other = ("Waiting in collectives", "for other ranks") if waits else ("GPU idle", _of_window(gpus))
    other_ns = [gpu.peer_wait_ns if waits else gpu.idle_ns for gpu in gpus]
    cards += [
        Card("GPU busy", _range([gpu.busy_ns / makespan for gpu in gpus]), _of_window(gpus)),
        Card(other[0], _range([ns / makespan for ns in other_ns]), other[1]),
        Card("Usable slack", _range([gpu.slack_ns / makespan for gpu in gpus]), _of_window(gpus)),
    ]
    if curve is not None:
        factor = curve.factor_for(0.01)
        limit = f"> ×{digits(float(curve.factor[-1]), 2)}" if factor is None else f"×{factor:.2f}"
        cards.append(Card("GPU work may stretch", limit, "before the step is 1\u202f% longer"))
    return cards


def _of_window(gpus: Sequence[GpuSlack]) -> str:
    return "of the window" if len(gpus) == 1 else f"of the window, over {len(gpus)} GPUs"


def _range(ratios: Sequence[float]) -> str:
    low, high = percent(min(ratios)), percent(max(ratios))
    if low == high:
        return low
    return f"{low.removesuffix('%').rstrip()}\u2013{high}"


def _limits(analysis: Analysis) -> list[str]:
    shares = _limiting_shares(analysis)
    parts = [
        f"{_LIMITS[state]} {percent(share)}" for state, share in shares.items() if share >= _MENTIONED_SHARE
    ]
    if not parts:
        return []
    text = f"<b>What limits it.</b> On the critical path: {listing(parts)}. {_MEANING[next(iter(shares))]}"
    opening = analysis.path.capture_ns
    if opening > _MENTIONED_SHARE * analysis.timeline.makespan_ns:
        text += f" (The first {duration(opening)}, before any record on that path, are left out.)"
    return [text]


def _gpus(analysis: Analysis) -> list[str]:
    gpus, makespan = analysis.slack.gpus, max(analysis.timeline.makespan_ns, 1)
    if not gpus:
        return []
    busy = _amount([gpu.busy_ns for gpu in gpus], makespan)
    waiting = _amount([gpu.peer_wait_ns for gpu in gpus], makespan)
    idle = _amount([gpu.idle_ns for gpu in gpus], makespan)
    one = len(gpus) == 1
    subject = upper(escape(gpu_label(analysis.graph, 0))) if one else f"The {len(gpus)} GPUs"
    parts = [f"{'is' if one else 'are'} busy for {busy} of the window"]
    if any(gpu.peer_wait_ns for gpu in gpus):
        parts.append(f"{'waits' if one else 'wait'} inside collectives for other ranks for {waiting}")
    parts.append(f"{'is' if one else 'are'} idle for {idle}")
    text = f"<b>What the {'GPU does' if one else 'GPUs do'}.</b> {subject} {listing(parts)}."
    if not one:
        busiest = max(gpus, key=lambda gpu: gpu.busy_ns)
        text += f" The busiest is {escape(gpu_label(analysis.graph, busiest.gpu))}."
    return [text]


def _amount(durations_ns: Sequence[int], makespan_ns: int) -> str:
    """``37 % (651 ms)`` for one GPU, the range of shares for several."""
    shares = _range([ns / makespan_ns for ns in durations_ns])
    return f"{shares} ({duration(durations_ns[0])})" if len(durations_ns) == 1 else shares


def _slack(analysis: Analysis) -> list[str]:
    gpus, makespan = analysis.slack.gpus, max(analysis.timeline.makespan_ns, 1)
    if not gpus:
        return []
    by_cause = slack_by_cause(gpus)
    total = sum(by_cause.values())
    if total == 0:
        return ["<b>Slack.</b> None that could be used: every wait moves something that others wait for."]
    who = "The GPU's" if len(gpus) == 1 else "On average, a GPU's"
    text = (
        f"<b>Slack.</b> {who} earlier work could run {duration(total / len(gpus))} longer "
        f"({percent(total / len(gpus) / makespan)} of the window) without moving anything else. "
    )
    main = [(c, ns) for c, ns in sorted(by_cause.items(), key=lambda item: -item[1]) if ns >= 0.05 * total]
    text += f"Why: {listing([f'{CAUSE_TEXT[cause]} ({percent(ns / total)})' for cause, ns in main])}."
    untraced = sum(gpu.slack_ns for gpu in analysis.untraced_slack.gpus)
    if untraced < 0.95 * total:
        text += (
            f" A profiler slows the CPU and hardly the GPU: with CPU work divided by {ASSUMED_TRACING_FACTOR:g}, "
            f"which is an assumption, {duration(untraced / len(gpus))} per GPU would be left."
        )
    edge = sum(gpu.edge_slack_ns for gpu in gpus)
    if edge > 0:
        text += (
            f" A further {duration(edge / len(gpus))} per GPU is cut by the capture's beginning or end "
            "and never counted."
        )
    persistent = [gpu.persistent_slack_ns for gpu in gpus if gpu.persistent_slack_ns is not None]
    if persistent:
        low, high = min(persistent), max(persistent)
        amount = duration(low) if low == high else f"{duration(low)} to {duration(high)}"
        text += f" In nine of ten steps at least {amount} of it is there: that much can be counted on."
    return [text]


def slack_by_cause(gpus: Sequence[GpuSlack]) -> dict[Cause, int]:
    """Usable slack (ns) per cause, summed over GPUs."""
    result: dict[Cause, int] = {}
    for gpu in gpus:
        for cause, slack_ns in gpu.windows.slack_by_cause_ns().items():
            result[cause] = result.get(cause, 0) + slack_ns
    return result


def _worth(curve: WhatIfCurve | None) -> list[str]:
    if curve is None:
        return []
    change = increase(curve.step_at(1.2) / curve.base_ns - 1.0)
    outcome = "no longer" if change == "none" else f"{change.removeprefix('+')} longer"
    return [
        f"<b>What it is worth.</b> If all GPU work took 1.2 times as long, the step would be {outcome}; "
        "without slack it would be 20\u202f% longer."
    ]


def advice(analysis: Analysis, *, planned: bool) -> list[str]:
    """What the user should do next, most useful first. HTML."""
    result = [*_more_ranks(analysis), *_better_trace(analysis)]
    gpus, makespan = analysis.slack.gpus, max(analysis.timeline.makespan_ns, 1)
    by_cause = slack_by_cause(gpus)
    total = sum(by_cause.values())
    from_cpu = sum(by_cause.get(cause, 0) for cause in (Cause.CPU, Cause.PEER_CPU))
    if from_cpu > 0.5 * total > 0:
        result.append(
            "Time a step <b>without the profiler</b> and give it to "
            "<code>emo plan --untraced-step-ms</code>: profiling slows the CPU's "
            "launches, so slack that comes from the CPU is smaller in production."
        )
    worth = total >= _WORTH_SHARE * makespan * max(len(gpus), 1)
    if worth and not planned:
        files = PurePath(analysis.traces[0].path).name if len(analysis.traces) == 1 else "RANK_TRACES"
        result.append(
            "Turn the slack into clocks: "
            f"<code>emo plan {escape(files)} --gpu MODEL --max-slowdown 5%</code>."
        )
    elif gpus and not worth:
        result.append("There is next to no slack: energy can only be saved at the price of a longer step.")
    return result


def _more_ranks(analysis: Analysis) -> list[str]:
    given = len(analysis.traces)
    world = max((trace.world_size for trace in analysis.traces), default=-1)
    waits = sum(int(gpu.peer_wait_ns) for gpu in analysis.slack.gpus)
    if world <= given or given == 0:
        return []
    cost = f": {duration(waits)} spent inside collectives cannot be told apart without them" if waits else ""
    return [f"Give the traces of <b>all {world} ranks</b> (there {_are(given)}){cost}."]


def _are(given: int) -> str:
    return "is 1" if given == 1 else f"are {given}"


def _better_trace(analysis: Analysis) -> list[str]:
    result = []
    count = len(analysis.graph.iterations)
    if count < MIN_ITERATIONS:
        result.append(
            f"Trace at least <b>{PERSISTENT_ITERATIONS} iterations</b> (marked by the profiler's step): "
            f"with {count} the whole window has to stand for the step, start and end included."
        )
    elif count < PERSISTENT_ITERATIONS:
        result.append(
            f"Trace at least <b>{PERSISTENT_ITERATIONS} iterations</b> ({count} here), so that only slack "
            "that recurs in every step is counted on."
        )
    if analysis.gate_reasons:
        result.append('See <a href="#quality">Quality</a> for why a plan from this trace is advice only.')
    if any(trace.quality.truncated for trace in analysis.traces):
        result.append("A file ends early: let the profiler finish writing, and trace again.")
    patterns = analysis.graph.report.inferred_patterns_kept + analysis.graph.report.inferred_patterns_dropped
    inferred = any(trace.quality.sync_info != SyncInfo.RECORDED for trace in analysis.traces)
    if inferred and patterns and all(trace.format == "kineto" for trace in analysis.traces):
        result.append(
            "Record what waits wait for, instead of having it inferred: <code>torch.profiler.profile(..., "
            "experimental_config=torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True))</code>."
        )
    return result
