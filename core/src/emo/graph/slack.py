"""Slack: where a GPU could be slower without anything else happening later.

*Total* slack of an op: how much later it may end without moving the end of the window.
*Free* slack of an op: how much longer it may take without moving anything else that happens;
arriving earlier at a collective than the last rank moves nothing, so that wait is part of the
free slack of the work before it. Free slacks can all be used at once; total slacks cannot.

A GPU has one clock for all its streams, so what counts is a *slack window*: a time in which the
whole GPU does nothing but wait. Its usable part is what every stream's last op before it could
be later. Windows cut by the opening or closing of the capture are shown as edges, never planned.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from emo.graph.critical import Spent, spent_since
from emo.graph.intervals import Intervals, union
from emo.graph.model import F64, Bool, EdgeType, Graph, PointKind
from emo.graph.replay import NEVER_LATE, Timeline, latest_times, unit_scale
from emo.graph.whatif import wait_ns
from emo.trace.columns import distinct
from emo.trace.model import I8, I32, I64, Kind
from emo.trace.validate import is_complete

# Shorter waits are the GPU's own latencies between ops.
MIN_WINDOW_NS = 10_000

# Persistent slack is the 10th percentile over at least this many iterations.
PERSISTENT_ITERATIONS = 10
PERSISTENT_QUANTILE = 0.10


class Cause(IntEnum):
    """Why a GPU waited."""

    CPU = 0  # the next launch came late because the CPU was busy
    SYNC = 1  # the CPU waited for the GPU first, then launched: a bubble, rarely slack
    STREAM = 2  # an event of another stream of this GPU
    PEER_CPU = 3  # another rank arrived late at a collective, and its CPU was why
    PEER_GPU = 4  # another rank arrived late at a collective, and its GPU was why
    CONTENTION = 5  # a kernel on another stream filled the GPU
    UNEXPLAINED = 6  # nothing in the trace explains it
    CAPTURE = 7  # before the first or after the last op of the capture, or in a step with records missing


CAUSE_TEXT = {
    Cause.CPU: "the CPU launched late",
    Cause.SYNC: "the CPU had waited for the GPU, then launched",
    Cause.STREAM: "another stream had to get there first",
    Cause.PEER_CPU: "another rank arrived late: its CPU took longer",
    Cause.PEER_GPU: "another rank arrived late: its GPU took longer",
    Cause.CONTENTION: "a kernel on another stream filled the GPU",
    Cause.UNEXPLAINED: "nothing in the trace explains it",
    Cause.CAPTURE: "at the edge of the capture, or records are missing",
}


@dataclass(frozen=True, slots=True)
class SlackWindows:
    """Slack windows of one GPU in order of time. Arrays of length W.

    ===================  =====  ==================================================================
    start_ns, end_ns     int64  the GPU only waits in between
    slack_ns             int64  how much of it the GPU's earlier work could fill; <= end - start
    cause                int8   :class:`Cause`
    culprit              int32  rank that arrived last (PEER_*), else -1
    next_node            int32  the op that ended the window, -1 none
    edge                 bool   cut by the capture, or in an incomplete step: shown, never planned
    iteration            int32  -1 outside all iterations
    ===================  =====  ==================================================================
    """

    start_ns: I64
    end_ns: I64
    slack_ns: I64
    cause: I8
    culprit: I32
    next_node: I32
    edge: Bool
    iteration: I32

    def __len__(self) -> int:
        return len(self.start_ns)

    def slack_by_cause_ns(self) -> dict[Cause, int]:
        """Usable slack per cause, windows at the edge left out."""
        return {
            cause: int(self.slack_ns[(self.cause == cause) & ~self.edge].sum())
            for cause in Cause
            if ((self.cause == cause) & ~self.edge).any()
        }


@dataclass(frozen=True, slots=True)
class GpuSlack:
    """Time account of one GPU over the window: busy + peer wait + idle = makespan."""

    gpu: int
    device: int
    rank: int
    busy_ns: int
    peer_wait_ns: int
    idle_ns: int
    slack_ns: int
    edge_slack_ns: int
    persistent_slack_ns: int | None  # per step; None with fewer than PERSISTENT_ITERATIONS
    windows: SlackWindows


@dataclass(frozen=True, slots=True)
class Slack:
    """``total_ns`` and ``free_ns`` (N) per node; free slack is of GPU ops only (0 elsewhere)."""

    total_ns: I64
    free_ns: I64
    gpus: tuple[GpuSlack, ...]


def find_slack(graph: Graph, timeline: Timeline, scale: F64 | None = None) -> Slack:
    """Slack of every op and of every GPU in a run: the recorded one, or one under ``scale``.

    ``timeline`` is the replay of the graph under ``scale``.
    """
    time = timeline.time_ns
    factors = unit_scale(graph) if scale is None else scale
    deadline = np.full(len(time), timeline.makespan_ns, np.int64)
    latest = latest_times(graph, deadline, factors)
    anchored = np.minimum(latest_times(graph, _anchors(graph, time), factors), timeline.makespan_ns)
    free = np.where(graph.nodes.gpu >= 0, _room_to_stretch(graph, timeline, factors, anchored), 0)
    run = _Run(
        graph=graph,
        timeline=timeline,
        start_ns=time[graph.start_point],
        end_ns=time[graph.end_point],
        wait_ns=wait_ns(graph, time),
        free_ns=free,
        causes=_Causes(graph, timeline),
    )
    return Slack(
        total_ns=_room_to_stretch(graph, timeline, factors, latest),
        free_ns=free,
        gpus=tuple(_gpu_slack(run, gpu) for gpu in range(len(graph.gpus))),
    )


def _room_to_stretch(graph: Graph, timeline: Timeline, scale: F64, latest_ns: I64) -> I64:
    """How much longer each node (N) may take so that no point happens after its ``latest_ns`` (P).

    Whatever is held to a share of an op (ops that overlap it on its stream, ops that it keeps out of
    the GPU, a call that stages its copy) moves with it in proportion, and limits it too.
    """
    time = timeline.time_ns
    room = (latest_ns - time)[graph.end_point]
    first_node = 1 + len(graph.threads)
    shares = np.flatnonzero(
        (graph.owner >= first_node) & (graph.owner < first_node + len(graph.nodes)) & (graph.scaled_ns > 0)
    )
    shares = shares[graph.edge_type[shares] != EdgeType.OP]
    if len(shares):
        node = graph.owner[shares] - first_node
        factor = scale[graph.owner[shares]]
        head, tail = graph.dst[shares], graph.src[shares]
        fixed = graph.lag_ns[shares] + graph.peer_wait_ns[head] + graph.unexplained_ns[head]
        share_ns = np.maximum(np.rint(graph.scaled_ns[shares] * factor), 1)
        spare = np.maximum(latest_ns[head] - time[tail] - fixed - share_ns.astype(np.int64), 0)
        duration = time[graph.end_point[node]] - time[graph.start_point[node]]
        np.minimum.at(room, node, (spare * (duration / share_ns)).astype(np.int64))
    result: I64 = np.maximum(room, 0)
    return result


@dataclass(frozen=True, slots=True)
class _Run:
    """One replay, with what the slack of every GPU is computed from. Arrays over nodes (N)."""

    graph: Graph
    timeline: Timeline
    start_ns: I64
    end_ns: I64
    wait_ns: I64
    free_ns: I64
    causes: _Causes


def _anchors(graph: Graph, time_ns: I64) -> I64:
    """Deadlines that keep everything in place except arrivals at collectives that wait anyway."""
    deadline = np.array(time_ns)
    deadline[graph.end_point[graph.nodes.gpu >= 0]] = NEVER_LATE
    for joint in graph.joints:
        if not joint.rooted:
            deadline[graph.start_point[list(joint.nodes)]] = NEVER_LATE
    return deadline


def _gpu_slack(run: _Run, gpu: int) -> GpuSlack:
    graph, makespan = run.graph, run.timeline.makespan_ns
    ops = np.flatnonzero(graph.nodes.gpu == gpu)
    ops = ops[np.argsort(run.start_ns[ops], kind="stable")]
    start, end, wait = run.start_ns[ops], run.end_ns[ops], run.wait_ns[ops]
    working = union(start + wait, end)
    occupied = union(start, end)
    known = run.causes.joint_of_node[ops] >= 0
    unknown_wait = union(start[~known], (start + wait)[~known]).minus(working)
    # An op that took no measurable time still was there: no window spans it.
    marked = union(start + wait, np.maximum(end, start + wait + 1))
    windows = _windows(run, ops, marked.complement(0, makespan).minus(unknown_wait))
    trace, device = graph.gpus[gpu]
    return GpuSlack(
        gpu=gpu,
        device=device,
        rank=graph.rank_of(trace),
        busy_ns=working.total_ns,
        peer_wait_ns=occupied.total_ns - working.total_ns,
        idle_ns=makespan - occupied.within(0, makespan).total_ns,
        slack_ns=int(windows.slack_ns[~windows.edge].sum()),
        edge_slack_ns=int(windows.slack_ns[windows.edge].sum()),
        persistent_slack_ns=_persistent(graph, windows),
        windows=windows,
    )


def _windows(run: _Run, ops: I64, candidates: Intervals) -> SlackWindows:
    long_enough = candidates.end_ns - candidates.start_ns >= MIN_WINDOW_NS
    begin, stop = candidates.start_ns[long_enough], candidates.end_ns[long_enough]
    effective = (run.start_ns + run.wait_ns)[ops]
    order = np.argsort(effective, kind="stable")
    following = np.searchsorted(effective[order], stop, side="left")
    next_node = np.where(following < len(ops), ops[order[np.minimum(following, len(ops) - 1)]], -1)
    first, last = _edges_of_capture(run, ops)
    cause, culprit = run.causes.of(next_node)
    iteration = _iteration_of(run, begin)
    # Where records are missing a GPU only looks idle.
    incomplete = _in_incomplete_step(run, int(run.graph.nodes.trace[ops[0]]), iteration)
    cause[incomplete] = Cause.CAPTURE
    return SlackWindows(
        start_ns=begin,
        end_ns=stop,
        slack_ns=_usable(run, ops, begin, stop),
        cause=cause,
        culprit=culprit,
        next_node=next_node.astype(np.int32),
        edge=(begin < first) | (stop > last) | incomplete,
        iteration=iteration,
    )


def _in_incomplete_step(run: _Run, trace: int, iteration: I32) -> Bool:
    """Whether each window lies in a step whose launches lack their GPU ops."""
    complete = np.array([is_complete(step) for step in run.graph.traces[trace].quality.steps], bool)
    if len(complete) == 0:
        return np.zeros(len(iteration), bool)
    if not run.graph.traces[trace].iterations:
        return np.full(len(iteration), not complete[0])
    known = (iteration >= 0) & (iteration < len(complete))
    result: Bool = known & ~complete[np.where(known, iteration, 0)]
    return result


def _iteration_of(run: _Run, time_ns: I64) -> I32:
    iterations = run.graph.iterations
    marked = [points for points in iterations.end_points if len(points) and (points >= 0).all()]
    ends = run.timeline.time_ns[marked[0]] if marked else iterations.end_ns
    iteration = np.searchsorted(np.r_[iterations.start_ns[:1], ends], time_ns, side="right") - 1
    iteration[iteration >= len(iterations)] = -1
    return iteration.astype(np.int32)


def _edges_of_capture(run: _Run, ops: I64) -> tuple[int, int]:
    """Outside these times slack is an artefact of where the capture was cut."""
    first, last = int(run.start_ns[ops].min()), int(run.end_ns[ops].max())
    common = distinct(run.causes.joint_of_node[ops]).tolist()
    ends = [int(run.timeline.time_ns[run.graph.joints[joint].end_point]) for joint in common if joint >= 0]
    return max(first, min(ends, default=first)), min(last, max(ends, default=last))


def _usable(run: _Run, ops: I64, begin: I64, stop: I64) -> I64:
    """How much of each window the last op before it, on every stream, could run into."""
    nodes = run.graph.nodes
    usable = stop - begin
    preceded = np.zeros(len(begin), bool)
    previous_stop = np.r_[np.int64(-1), stop[:-1]]
    work = ops[~np.isin(nodes.kind[ops], (Kind.COLLECTIVE, Kind.P2P))]
    for stream in distinct(nodes.stream[work]):
        here = work[nodes.stream[work] == stream]
        here = here[np.argsort(run.end_ns[here], kind="stable")]
        at = np.searchsorted(run.end_ns[here], begin, side="right") - 1
        op = here[np.maximum(at, 0)]
        # An op from before the previous window has had its turn there.
        counts = (at >= 0) & (run.end_ns[op] > previous_stop)
        room = np.maximum(run.end_ns[op] + run.free_ns[op] - begin, 0)
        usable = np.where(counts, np.minimum(usable, room), usable)
        preceded |= counts
    # Without work before it there is nothing that could fill the window.
    result: I64 = np.where(preceded, usable, 0)
    return result


class _Causes:
    """Why GPU ops started when they did. Vectorised over nodes."""

    # How far back along a CPU thread to look for a wait that explains a late launch.
    _LOOK_BACK_NS = 200_000
    _LOOK_BACK_STEPS = 8

    def __init__(self, graph: Graph, timeline: Timeline) -> None:
        self._graph = graph
        self._timeline = timeline
        self._since_joint: tuple[I64, I64] | None = None
        self.joint_of_node = np.full(len(graph.nodes), -1, np.int64)
        for number, joint in enumerate(graph.joints):
            if not joint.rooted:
                self.joint_of_node[list(joint.nodes)] = number

    def of(self, node: I64) -> tuple[I8, I32]:
        """(cause, culprit rank) for each op that ended a wait; node -1 means none did."""
        graph = self._graph
        cause = np.full(len(node), Cause.CAPTURE, np.int8)
        culprit = np.full(len(node), -1, np.int32)
        known = np.flatnonzero(node >= 0)
        joint = self.joint_of_node[node[known]]
        alone, meeting = known[joint < 0], known[joint >= 0]
        cause[alone] = self._of_point(graph.start_point[node[alone]])
        if len(meeting):
            starts = np.array([graph.joints[j].start_point for j in joint[joint >= 0].tolist()], np.int64)
            arrival = graph.src[self._timeline.decided_by[starts]]
            own = graph.start_point[node[meeting]]
            cause[meeting] = np.where(self._late_by_cpu(arrival, own), Cause.PEER_CPU, Cause.PEER_GPU)
            ranks = np.array([graph.rank_of(trace) for trace in range(len(graph.traces))], np.int32)
            culprit[meeting] = ranks[graph.nodes.trace[graph.point_node[arrival]]]
        return cause, culprit

    def _late_by_cpu(self, late: I32, early: I32) -> Bool:
        """Whether the CPU is why ``late`` arrived after ``early`` (points of two ranks, pairwise).

        Both chains of decisions are followed back to the last collective on them. What the late
        rank spent more of since then is the reason; where neither is more, what bound its arrival.
        """
        graph, timeline = self._graph, self._timeline
        if self._since_joint is None:
            met = graph.point_kind == PointKind.JOINT_END
            self._since_joint = (
                spent_since(graph, timeline, met, Spent.CPU),
                spent_since(graph, timeline, met, Spent.GPU),
            )
        more_cpu, more_gpu = (spent[late] - spent[early] for spent in self._since_joint)
        bound_by = self._of_point(late)
        undecided = (bound_by == Cause.CPU) | (bound_by == Cause.SYNC)
        result: Bool = np.where((more_cpu > 0) | (more_gpu > 0), more_cpu >= more_gpu, undecided)
        return result

    def _of_point(self, point: I32) -> I8:
        """Cause of the time of each START point."""
        graph = self._graph
        edge = self._timeline.decided_by[point]
        type = np.where(edge >= 0, graph.edge_type[edge], -1)
        cause = np.full(len(point), Cause.STREAM, np.int8)
        cause[edge < 0] = Cause.CAPTURE
        cause[type == EdgeType.CONTENTION] = Cause.CONTENTION
        launched = np.flatnonzero(type == EdgeType.LAUNCH)
        cause[launched] = self._of_launch(graph.src[edge[launched]])
        cause[graph.unexplained_ns[point] > MIN_WINDOW_NS] = Cause.UNEXPLAINED
        return cause

    def _of_launch(self, launch_point: I32) -> I8:
        """CPU or SYNC: had the thread been working, or had it waited for the GPU just before?"""
        graph, timeline = self._graph, self._timeline
        result = np.full(len(launch_point), Cause.CPU, np.int8)
        point = launch_point.astype(np.int64)
        began = timeline.time_ns[point]
        on_gpu_node = graph.nodes.gpu >= 0
        active = np.ones(len(point), bool)
        for _ in range(self._LOOK_BACK_STEPS):
            edge = timeline.decided_by[point]
            tail = np.where(edge >= 0, graph.src[edge], point)
            from_gpu = (graph.point_kind[tail] <= PointKind.END) & on_gpu_node[
                np.where(graph.point_kind[tail] <= PointKind.END, graph.point_node[tail], 0)
            ]
            result[active & from_gpu & (edge >= 0)] = Cause.SYNC
            active &= (edge >= 0) & ~from_gpu & (began - timeline.time_ns[tail] <= self._LOOK_BACK_NS)
            if not active.any():
                break
            point = np.where(active, tail, point)
        return result


def _persistent(graph: Graph, windows: SlackWindows) -> int | None:
    count = len(graph.iterations)
    if count < PERSISTENT_ITERATIONS:
        return None
    inside = (windows.iteration >= 0) & ~windows.edge
    per_iteration = np.bincount(windows.iteration[inside], weights=windows.slack_ns[inside], minlength=count)
    return int(np.quantile(per_iteration, PERSISTENT_QUANTILE, method="lower"))
