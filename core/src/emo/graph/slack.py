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

from emo.graph.intervals import Intervals, union
from emo.graph.model import Bool, EdgeType, Graph, PointKind
from emo.graph.replay import NEVER_LATE, Timeline, latest_times
from emo.graph.whatif import wait_ns
from emo.trace.columns import distinct
from emo.trace.model import I8, I32, I64, Kind

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
    CAPTURE = 7  # before the first or after the last op of the capture


CAUSE_TEXT = {
    Cause.CPU: "the CPU launched late",
    Cause.SYNC: "the CPU had waited for the GPU, then launched",
    Cause.STREAM: "another stream had to get there first",
    Cause.PEER_CPU: "another rank arrived late: its CPU launched late",
    Cause.PEER_GPU: "another rank arrived late: its GPU was still busy",
    Cause.CONTENTION: "a kernel on another stream filled the GPU",
    Cause.UNEXPLAINED: "nothing in the trace explains it",
    Cause.CAPTURE: "before the first or after the last recorded op",
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
    edge                 bool   cut by the capture: shown, never planned
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


def find_slack(graph: Graph, timeline: Timeline) -> Slack:
    """Slack of every op and of every GPU in the recorded run (``timeline`` is its replay)."""
    deadline = np.full(len(graph.time_ns), timeline.makespan_ns, np.int64)
    total = latest_times(graph, deadline) - graph.time_ns
    anchored = np.minimum(latest_times(graph, _anchors(graph)), timeline.makespan_ns)
    on_gpu = graph.nodes.gpu >= 0
    free = np.where(on_gpu, np.maximum((anchored - graph.time_ns)[graph.end_point], 0), 0)
    causes = _Causes(graph, timeline)
    wait = wait_ns(graph)
    gpus = tuple(_gpu_slack(graph, timeline, anchored, wait, causes, gpu) for gpu in range(len(graph.gpus)))
    return Slack(total[graph.end_point], free, gpus)


def _anchors(graph: Graph) -> I64:
    """Deadlines that keep everything in place except arrivals at collectives that wait anyway."""
    deadline = np.array(graph.time_ns)
    deadline[graph.end_point[graph.nodes.gpu >= 0]] = NEVER_LATE
    for joint in graph.joints:
        if not joint.rooted:
            deadline[graph.start_point[list(joint.nodes)]] = NEVER_LATE
    return deadline


def _gpu_slack(
    graph: Graph, timeline: Timeline, anchored: I64, wait: I64, causes: _Causes, gpu: int
) -> GpuSlack:
    nodes = graph.nodes
    ops = np.flatnonzero(nodes.gpu == gpu)
    ops = ops[np.argsort(nodes.start_ns[ops], kind="stable")]
    start, end = nodes.start_ns[ops], nodes.end_ns[ops]
    makespan = timeline.makespan_ns
    working = union(start + wait[ops], end)
    occupied = union(start, end)
    known = causes.joint_of_node[ops] >= 0
    unknown_wait = union(start[~known], (start + wait[ops])[~known]).minus(working)
    candidates = working.complement(0, makespan).minus(unknown_wait)
    windows = _windows(graph, anchored, wait, causes, ops, candidates)
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


def _windows(
    graph: Graph, anchored: I64, wait: I64, causes: _Causes, ops: I64, candidates: Intervals
) -> SlackWindows:
    nodes = graph.nodes
    long_enough = candidates.end_ns - candidates.start_ns >= MIN_WINDOW_NS
    begin, stop = candidates.start_ns[long_enough], candidates.end_ns[long_enough]
    effective = nodes.start_ns[ops] + wait[ops]
    order = np.argsort(effective, kind="stable")
    following = np.searchsorted(effective[order], stop, side="left")
    next_node = np.where(following < len(ops), ops[order[np.minimum(following, len(ops) - 1)]], -1)
    first, last = _edges_of_capture(graph, causes, ops)
    cause, culprit = causes.of(next_node)
    return SlackWindows(
        start_ns=begin,
        end_ns=stop,
        slack_ns=_usable(graph, anchored, ops, begin, stop),
        cause=cause,
        culprit=culprit,
        next_node=next_node.astype(np.int32),
        edge=(begin < first) | (stop > last),
        iteration=_iteration_of(graph, begin),
    )


def _iteration_of(graph: Graph, time_ns: I64) -> I32:
    boundaries = np.r_[graph.iterations.start_ns[:1], graph.iterations.end_ns]
    iteration = np.searchsorted(boundaries, time_ns, side="right") - 1
    iteration[iteration >= len(graph.iterations)] = -1
    return iteration.astype(np.int32)


def _edges_of_capture(graph: Graph, causes: _Causes, ops: I64) -> tuple[int, int]:
    """Outside these times slack is an artefact of where the capture was cut."""
    first, last = int(graph.nodes.start_ns[ops].min()), int(graph.nodes.end_ns[ops].max())
    common = distinct(causes.joint_of_node[ops])
    met = [int(graph.time_ns[graph.joints[joint].end_point]) for joint in common.tolist() if joint >= 0]
    return max(first, min(met, default=first)), min(last, max(met, default=last))


def _usable(graph: Graph, anchored: I64, ops: I64, begin: I64, stop: I64) -> I64:
    """How much of each window the last op before it, on every stream, could run into."""
    nodes = graph.nodes
    # A window that opens the capture has no work before it.
    usable = np.where(begin <= nodes.start_ns[ops].min(), 0, stop - begin)
    previous_stop = np.r_[np.int64(-1), stop[:-1]]
    work = ops[~np.isin(nodes.kind[ops], (Kind.COLLECTIVE, Kind.P2P))]
    for stream in distinct(nodes.stream[work]):
        here = work[nodes.stream[work] == stream]
        here = here[np.argsort(nodes.end_ns[here], kind="stable")]
        at = np.searchsorted(nodes.end_ns[here], begin, side="right") - 1
        op = here[np.maximum(at, 0)]
        # An op from before the previous window has had its turn there.
        counts = (at >= 0) & (nodes.end_ns[op] > previous_stop)
        room = np.maximum(anchored[graph.end_point[op]] - begin, 0)
        usable = np.where(counts, np.minimum(usable, room), usable)
    return usable


class _Causes:
    """Why GPU ops started when they did. Vectorised over nodes."""

    # How far back along a CPU thread to look for a wait that explains a late launch.
    _LOOK_BACK_NS = 200_000
    _LOOK_BACK_STEPS = 8

    def __init__(self, graph: Graph, timeline: Timeline) -> None:
        self._graph = graph
        self._timeline = timeline
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
            late = self._of_point(arrival)
            by_cpu = (late == Cause.CPU) | (late == Cause.SYNC)
            cause[meeting] = np.where(by_cpu, Cause.PEER_CPU, Cause.PEER_GPU)
            ranks = np.array([graph.rank_of(trace) for trace in range(len(graph.traces))], np.int32)
            culprit[meeting] = ranks[graph.nodes.trace[graph.point_node[arrival]]]
        return cause, culprit

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
