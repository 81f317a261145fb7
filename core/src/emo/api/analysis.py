"""Documents of ``emo analyze`` and ``emo whatif``.

Instants (``start_ns``, ``end_ns``) are nanoseconds since the opening of the window, on the common
clock of all ranks (the first file's clock, to which the others are aligned); add ``origin_ns``
for the file's own clock. JSON object keys are strings, so ranks as keys are decimal strings.
"""

from __future__ import annotations

from typing import Literal

from emo.api.document import Document, count, described, duration_ns, instant_ns, ratio, schema_name

Basis = Literal["iterations", "window"]
CauseName = Literal["cpu", "sync", "stream", "peer_cpu", "peer_gpu", "contention", "unexplained", "capture"]


class FileInfo(Document):
    """A trace file: one rank (or one host) of the job."""

    path: str = described("the file as it was given")
    format: Literal["kineto", "nsys", "rocprof"] = described("format found from the content")
    rank: int | None = described("rank that the file names; null: it names none")
    world_size: int | None = described("ranks of the job that the file names; null: it names none")
    gpus: list[str] = described("GPUs that the file describes, e.g. '0: Tesla V100-SXM2-32GB'")
    iteration_source: Literal["ProfilerStep", "Optimizer.step", "nvtx", "graph", "period", "none"] = (
        described("what the iterations were found from")
    )
    iterations: int = count("iterations found in this file")


class Span(Document):
    """One iteration."""

    start_ns: int = instant_ns("start, since the window's opening")
    end_ns: int = instant_ns("end, since the window's opening")


class CrossIterationError(Document):
    """Predictive test: structure of one iteration, durations of another, against what really happened."""

    median: float | None = ratio("median error of the step time; null with fewer than 4 iterations")
    p95: float | None = ratio(
        "95th percentile of the error of the step time; null with fewer than 4 iterations"
    )
    completion_median: float | None = ratio("median error of the time until the iteration's GPU work is done")
    completion_p95: float | None = ratio("95th percentile of the same")
    pairs: int = count("pairs of iterations compared")
    skipped_pairs: int = count("pairs left out because the iterations are different programs")


class StepFailure(Document):
    """An iteration that does not pass the quality gate."""

    index: int = count("number of the iteration in its file, from 0")
    reasons: list[str] = described("why")


class StepsSummary(Document):
    """The quality gate over the iterations of one file (the window counts as one if there are none)."""

    total: int = count("iterations judged")
    complete: int = count("iterations whose launches have their GPU ops")
    passed: int = count("iterations that pass every criterion of the gate")
    worst_completeness: float = ratio("launches with a GPU op / launches, in the worst iteration", le=1)
    failures: list[StepFailure] = described("the first 5 that fail")


class FileQuality(Document):
    """What was repaired, dropped or found missing in one file."""

    path: str = described("the file")
    records: int = count("records read")
    dropped: dict[str, int] = described("records dropped, by reason", "count")
    repaired: dict[str, int] = described("records repaired, by reason", "count")
    launches: int = count("API calls that launch GPU work")
    launches_without_kernel: int = count("launches whose GPU op is not in the trace")
    kernels: int = count("GPU ops: kernels, copies and sets")
    kernels_without_launch: int = count("GPU ops whose launch is not in the trace")
    completeness: float = ratio("launches with a GPU op / launches", le=1)
    sync_info: Literal["Recorded", "Inferred", "Absent"] = described(
        "how it is known what a wait waits for: recorded, inferred from patterns of streams, or not at all"
    )
    head_loss_ns: int = duration_ns("from the window's opening to the first GPU op that has a launch")
    clock_skew_ns: int = described("GPU ops were shifted by this so that none starts before its launch", "ns")
    overlap_ratio: float = ratio(
        "time with two or more streams busy / time with one or more, worst GPU", le=1
    )
    truncated: bool = described("the file ends early")
    steps: StepsSummary = described("the quality gate over this file's iterations")


class Quality(Document):
    """Quality of the trace."""

    completeness: float = ratio("launches with a GPU op / launches, worst file", le=1)
    steps: int = count("iterations judged, all files")
    complete_steps: int = count(
        "iterations whose launches have their GPU ops, all files; 0: no slack, and whatif and plan refuse"
    )
    files: list[FileQuality] = described("per file")


class CriticalPathEntry(Document):
    """GPU work of one name on the critical path."""

    name: str = described("name of the kernel or copy")
    time_ns: int = duration_ns("its time on the critical path")
    count: int = count("its stretches on the critical path")


class CriticalPathReport(Document):
    """What the chain of events that decided the makespan was spent on; the five parts sum to the makespan."""

    cpu_ns: int = duration_ns("CPU work")
    gpu_ns: int = duration_ns("kernels")
    collective_ns: int = duration_ns("collectives: wire time, and waits for ranks that are not in the trace")
    copy_ns: int = duration_ns("copies and sets")
    idle_ns: int = duration_ns("latencies, what nothing explains, and capture_ns")
    capture_ns: int = duration_ns("of idle_ns: before the capture of the rank that decides was opened")
    top: list[CriticalPathEntry] = described("the 10 names of GPU work with the most time on it")


class SlackWindow(Document):
    """A time in which a whole GPU only waits."""

    start_ns: int = instant_ns("start, since the window's opening")
    end_ns: int = instant_ns("end, since the window's opening")
    slack_ns: int = duration_ns("how much of it the GPU's earlier work could fill without delaying anything")
    cause: CauseName = described("why the GPU waited")
    culprit_rank: int | None = described("rank that arrived last (causes peer_*); null otherwise")
    next_op: str | None = described("name of the op that ended it; null: none did")
    iteration: int | None = described("number of the iteration, from 0; null: outside all")
    edge: bool = described("cut by the opening or closing of the capture: shown, never planned")


class GpuReport(Document):
    """Time account of one GPU: busy_ns + peer_wait_ns + idle_ns = makespan_ns."""

    device: int = described("GPU number as the trace writes it")
    rank: int = count("rank that the file names, else the position of the file")
    name: str | None = described("model of the GPU; null: the trace does not say")
    busy_ns: int = duration_ns("at least one stream works (copies included, waits for peers not)")
    peer_wait_ns: int = duration_ns(
        "only waiting for other ranks inside a collective (at full power, not idle)"
    )
    idle_ns: int = duration_ns("nothing runs")
    slack_ns: int = duration_ns("usable slack of all windows but those at the edge of the capture")
    untraced_slack_ns: int = duration_ns(
        "the same with all CPU work / 1.5: what is left without the profiler, which slows the CPU"
    )
    edge_slack_ns: int = duration_ns("the same of the windows at the edge: never planned")
    persistent_slack_ns: int | None = duration_ns(
        "slack per iteration on which one can count: 10th percentile; null with fewer than 10 iterations"
    )
    slack_windows: int = count("windows of 10 us or longer in which the whole GPU only waits")
    slack_by_cause: dict[CauseName, int] = described("slack_ns by the cause of the wait", "ns")
    top_windows: list[SlackWindow] = described("the 20 windows with the most slack, largest first")


class CollectiveReport(Document):
    """A collective (or a send and its receive) that was matched across ranks."""

    index: int = count("number, in order of time")
    name: str = described("name of the kernel")
    start_ns: int = instant_ns("when the last participant arrived, since the window's opening")
    wire_ns: int = duration_ns("time that the data needed once everyone had arrived")
    wait_ns_by_rank: dict[str, int] = described("per rank: from its own start to the last arrival", "ns")
    residual_ns_by_rank: dict[str, int] = described("per rank: its end after the joint end", "ns")
    edge: bool = described("first meeting of a rank: its waits come from the opening of the capture")
    rooted: bool = described("broadcast or reduce: only one side waits")


class Rules(Document):
    """What the rules of the dependency graph found, kept and dropped."""

    edges_by_type: dict[str, int] = described("edges in the graph, by rule", "count")
    violated_by_type: dict[str, int] = described("edges that the run contradicts, dropped, by rule", "count")
    left_out: list[str] = described("rules left out on request (--without)")
    inferred_patterns_kept: int = count(
        "(from stream, to stream) patterns of waits that the run never contradicts"
    )
    inferred_patterns_dropped: int = count("patterns that the run contradicts")
    inferred_waits_dropped: int = count("waits of the dropped patterns")
    cyclic_edges_dropped: int = count("edges dropped because they closed a cycle")
    queue_depth: int = count("launches that a context queues before a launch call blocks")
    max_outstanding_launches: int = count("most launches queued at once in this run")
    clock_offset_ns_by_rank: dict[str, int] = described(
        "clock of each rank less that of the first file", "ns"
    )
    collectives_unmatched: int = count("collectives that could not be matched across the given ranks")
    large_residuals: int = count("collectives whose ranks end more than 50 us apart")
    findings: list[str] = described("what else was noticed")


class AnalysisReport(Document):
    """``emo analyze --json``: where the time goes, where the slack is and why, how far to trust it."""

    schema_: Literal["emo.analysis/v1"] = schema_name()
    files: list[FileInfo] = described("the trace files")
    origin_ns: int = instant_ns("the window's opening on the clock of the first file")
    makespan_ns: int = duration_ns("recorded time from the window's opening to the last event")
    replay_makespan_ns: int = duration_ns("the same in the replay of the graph with nothing changed")
    replay_error_ratio: float = ratio("|replay_makespan_ns / makespan_ns - 1|")
    max_start_error_ns: int = duration_ns("largest difference of any op's start between replay and record")
    unexplained_ratio: float = ratio("|1 - makespan of a replay without what no rule explains / makespan|")
    unexplained_gpu_ratio: float = ratio(
        "on the worst stream: share of the makespan by which its ops started later than any rule explains"
    )
    unexplained_by_iteration: dict[str, float] = described(
        "|1 - step time of a replay without what no rule explains / step time| by iteration, from the second on",
        "ratio",
    )
    unexplained_ns_by: dict[str, int] = described(
        "delays that no rule explains, by kind and stream, largest first", "ns"
    )
    step_time_ns: int | None = duration_ns(
        "time per iteration; null with fewer than 3 iterations (basis window)"
    )
    basis: Basis = described("what targets and slack are about: iterations, or the whole window as one step")
    ops: int = count("nodes of the graph: API calls and GPU ops")
    kernels: int = count("kernels among them, communication included, copies and sets not")
    edges: int = count("edges of the graph")
    iterations: list[Span] = described("iterations in order of time")
    cross_iteration_error: CrossIterationError = described("how well one iteration foretells another")
    quality: Quality = described("quality of the trace")
    allowed_mode: Literal["Recommend", "Enforce"] = described(
        "what a plan from this trace may be used for; further conditions come with the plan"
    )
    allowed_mode_reasons: list[str] = described("why Recommend only; empty for Enforce")
    critical_path: CriticalPathReport = described("what decided the makespan")
    gpus: list[GpuReport] = described("per GPU")
    collectives: list[CollectiveReport] = described("collectives matched across ranks, in order of time")
    rules: Rules = described("the dependency graph, by rule")
    hints: list[str] = described("what would make the analysis better")
    timings_s: dict[str, float] = described("seconds per stage: read, graph, replay, predict, slack", "s")


class ScalingReport(Document):
    """One ``--scale``."""

    selector: str = described("what was scaled")
    factor: float = ratio("by how much durations were multiplied")


class ReplayedIteration(Document):
    """An iteration in the replay."""

    index: int = count("number of the iteration, from 0")
    end_ns: int = instant_ns("its end in the replay (last rank), since the window's opening")
    delay_ns: int = described("end_ns less the recorded end; negative: earlier", "ns")


class ReplayedCollective(Document):
    """A collective in the replay."""

    index: int = count("number, as in emo.analysis/v1")
    name: str = described("name of the kernel")
    start_ns: int = instant_ns("arrival of the last participant in the replay, since the window's opening")
    delay_ns: int = described("start_ns less the recorded start; negative: earlier", "ns")


class WhatIfReport(Document):
    """``emo whatif --json``: the same run if some things had taken longer or shorter."""

    schema_: Literal["emo.whatif/v1"] = schema_name()
    files: list[str] = described("the trace files")
    scale: list[ScalingReport] = described("what was changed; factors that match the same op multiply")
    makespan_ns: int = duration_ns("makespan of the replay")
    baseline_ns: int = duration_ns("makespan as recorded")
    makespan_ratio: float = ratio("makespan_ns / baseline_ns")
    bound_ns: int = duration_ns(
        "no schedule is shorter: work of the busiest stream, waits for peers left out"
    )
    step_time_ns: int | None = duration_ns("time per iteration in the replay; null with basis window")
    baseline_step_time_ns: int | None = duration_ns("time per iteration as recorded; null with basis window")
    step_ratio: float = ratio("step time / recorded step time (of makespans with basis window)")
    basis: Basis = described("what step_ratio is about")
    iterations: list[ReplayedIteration] = described("iterations in order of time")
    collectives: list[ReplayedCollective] = described("collectives matched across ranks, in order of time")
    timings_s: dict[str, float] = described("seconds per stage: read, graph, replay", "s")
