"""The line from trace files to slack: read, build, replay, predict, account.

Pure computation; what is printed or written is decided in :mod:`emo.cli` and :mod:`emo.report`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from os import PathLike

import numpy as np

from emo.errors import InputError
from emo.graph.build import DEFAULT_QUEUE_DEPTH, build_graph
from emo.graph.critical import CriticalPath, critical_path
from emo.graph.model import EdgeType, Graph
from emo.graph.predict import (
    IterationReplays,
    Prediction,
    PredictionErrors,
    predict_iterations,
    summarize,
    unexplained_by_iteration,
)
from emo.graph.replay import Timeline, replay
from emo.graph.slack import Slack, find_slack
from emo.graph.steps import StepTime, recorded_step_time
from emo.graph.tracing import ASSUMED_TRACING_FACTOR, cpu_scale_vector
from emo.trace.model import Kind, StepQuality, Trace
from emo.trace.read import read_trace
from emo.trace.validate import gate, is_complete

# A step, or a run, of which more than this share is unexplained fails the quality gate.
MAX_UNEXPLAINED_RATIO = 0.02

Progress = Callable[[str], None]


@dataclass(slots=True)
class Stopwatch:
    """Seconds per stage, in order."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time spent inside to a stage."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begin


@dataclass(frozen=True, slots=True)
class Analysis:
    """Everything that is known about a job from its traces."""

    traces: tuple[Trace, ...]
    graph: Graph
    timeline: Timeline  # replay at scale 1
    unexplained_ratio: float  # |1 - makespan of the replay with nothing unexplained / makespan|
    unexplained_gpu_ratio: float  # on the worst stream: share of the makespan by which ops started too late
    unexplained_by_step: dict[int, float]  # per iteration with a predecessor
    unexplained_ns_by: dict[str, int]  # by kind and stream, e.g. "kernel on stream 7"
    max_start_error_ns: int  # of any op in the replay at scale 1
    step: StepTime
    predictions: tuple[Prediction, ...]
    prediction_errors: PredictionErrors
    path: CriticalPath
    slack: Slack
    # with CPU work / ASSUMED_TRACING_FACTOR: what is left without the profiler
    untraced_slack: Slack
    complete_steps: int
    gate_reasons: tuple[str, ...]  # why the trace is good for Recommend only; empty: it is not
    timings_s: dict[str, float]

    @property
    def replay_error_ratio(self) -> float:
        """|replayed / recorded makespan - 1|."""
        return abs(self.timeline.makespan_ns / max(self.graph.makespan_ns, 1) - 1.0)


def read_traces(paths: Sequence[str | PathLike[str]], progress: Progress | None = None) -> list[Trace]:
    """Read the files of one job; raises TraceError, or InputError for files that do not go together."""
    if not paths:
        raise InputError("no trace given; expected one file, or one file per rank")
    traces = []
    for path in paths:
        if progress:
            progress(f"reading {path}")
        traces.append(read_trace(path))
    ranks = [trace.rank for trace in traces if trace.rank >= 0]
    twice = sorted({rank for rank in ranks if ranks.count(rank) > 1})
    if twice:
        files = ", ".join(trace.path for trace in traces if trace.rank in twice)
        raise InputError(
            f"{files}: rank {twice[0]} is given more than once; expected one file per rank of one job"
        )
    return traces


def analyze(
    paths: Sequence[str | PathLike[str]],
    *,
    queue_depth: int = DEFAULT_QUEUE_DEPTH,
    without: Sequence[EdgeType] = (),
    progress: Progress | None = None,
) -> Analysis:
    """Analyse the traces of one job (one file per rank, in any order).

    Raises TraceError for a file that cannot be used.
    """
    watch = Stopwatch()
    with watch.stage("read"):
        traces = read_traces(paths, progress)
    return analyze_traces(traces, queue_depth=queue_depth, without=without, progress=progress, watch=watch)


def analyze_traces(
    traces: Sequence[Trace],
    *,
    queue_depth: int = DEFAULT_QUEUE_DEPTH,
    without: Sequence[EdgeType] = (),
    progress: Progress | None = None,
    watch: Stopwatch | None = None,
) -> Analysis:
    """As :func:`analyze`, for traces that are already in memory."""
    watch = watch or Stopwatch()
    report = progress or (lambda _: None)
    report("building the dependency graph")
    with watch.stage("graph"):
        graph = build_graph(traces, queue_depth=queue_depth, without=without)
    with watch.stage("replay"):
        timeline = replay(graph)
    report("predicting iterations from each other")
    with watch.stage("predict"):
        explained = replay(graph, unexplained=False)
        replays = IterationReplays(graph)
        predictions, skipped = predict_iterations(graph, replays)
        by_step = unexplained_by_iteration(graph, replays)
    with watch.stage("slack"):
        slack = find_slack(graph, timeline)
        untraced = cpu_scale_vector(graph, 1.0 / ASSUMED_TRACING_FACTOR)
        untraced_slack = find_slack(graph, replay(graph, untraced), untraced)
        path = critical_path(graph, timeline)
    unexplained_ratio = abs(1.0 - explained.makespan_ns / max(graph.makespan_ns, 1))
    complete, reasons = _quality_gate(graph, unexplained_ratio, by_step)
    return Analysis(
        traces=graph.traces,
        graph=graph,
        timeline=timeline,
        unexplained_ratio=unexplained_ratio,
        unexplained_gpu_ratio=_unexplained_on_gpus(graph),
        unexplained_by_step=by_step,
        unexplained_ns_by=_unexplained_by(graph),
        max_start_error_ns=int(np.abs(timeline.time_ns - graph.time_ns)[graph.start_point].max(initial=0)),
        step=recorded_step_time(graph),
        predictions=tuple(predictions),
        prediction_errors=summarize(predictions, skipped),
        path=path,
        slack=slack,
        untraced_slack=untraced_slack,
        complete_steps=complete,
        gate_reasons=reasons,
        timings_s=watch.seconds,
    )


def _unexplained_by(graph: Graph) -> dict[str, int]:
    """Unexplained nanoseconds of op starts, by kind and stream, largest first."""
    nodes = graph.nodes
    rest = graph.unexplained_ns[graph.start_point]
    result: dict[str, int] = {}
    late = rest > 0
    keys = nodes.kind[late].astype(int) * (len(graph.streams) + 1) + nodes.stream[late] + 1
    for key in sorted(set(keys.tolist())):
        kind, stream = divmod(int(key), len(graph.streams) + 1)
        name = Kind(kind).name.lower().replace("_", " ")
        where = f"{name} on stream {graph.streams[stream - 1][2]}" if stream else f"{name} on the CPU"
        if len(graph.traces) > 1 and stream:
            where += f" of rank {graph.rank_of(graph.streams[stream - 1][0])}"
        result[where] = int(rest[late][keys == key].sum())
    return dict(sorted(result.items(), key=lambda item: -item[1]))


def _unexplained_on_gpus(graph: Graph) -> float:
    """Largest share of the makespan, over streams, by which ops started later than anything explains.

    A run that ends on the CPU can be explained to the end while its GPU side is not.
    """
    ops = np.flatnonzero(graph.nodes.stream >= 0)
    if len(ops) == 0:
        return 0.0
    rest = np.maximum(graph.unexplained_ns[graph.start_point[ops]], 0)
    return float(np.bincount(graph.nodes.stream[ops], weights=rest).max()) / max(graph.makespan_ns, 1)


def _quality_gate(
    graph: Graph, unexplained_ratio: float, by_step: dict[int, float]
) -> tuple[int, tuple[str, ...]]:
    """(steps whose launches have their GPU ops, reasons for Recommend only)."""
    reasons: list[str] = []
    complete = 0
    for trace in graph.traces:
        steps: Sequence[StepQuality] = trace.quality.steps
        failures = [reason for step in steps for reason in gate(step)]
        complete += sum(is_complete(step) for step in steps)
        if failures:
            more = f" (and {len(failures) - 1} more findings)" if len(failures) > 1 else ""
            reasons.append(f"{trace.path}: {failures[0]}{more}")
    if unexplained_ratio > MAX_UNEXPLAINED_RATIO:
        reasons.append(
            f"{unexplained_ratio:.1%} of the makespan is unexplained; at most {MAX_UNEXPLAINED_RATIO:.0%} is good"
        )
    unclear = [step for step, ratio in by_step.items() if ratio > MAX_UNEXPLAINED_RATIO]
    if unclear:
        reasons.append(
            f"in {len(unclear)} of {len(by_step)} iterations more than {MAX_UNEXPLAINED_RATIO:.0%} of the step is "
            f"unexplained (iteration {unclear[0]}: {by_step[unclear[0]]:.1%})"
        )
    if recorded_step_time(graph).basis == "window":
        reasons.append("fewer than 3 iterations: the whole window is taken as the step")
    return complete, tuple(reasons)
