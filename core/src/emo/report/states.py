"""What every GPU, every stream and the critical path was doing at every instant.

A GPU is in exactly one state at a time, so that the shares of a lane, of a bar and of a table
are the same numbers: they add up to the window.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from emo.analysis import Analysis
from emo.graph.critical import CriticalPath, Spent
from emo.graph.intervals import Intervals, union
from emo.graph.model import F64, Graph
from emo.graph.slack import CAUSE_TEXT, Cause, SlackWindows
from emo.graph.whatif import wait_ns
from emo.trace.model import I8, I64, Kind

_COPIES = (Kind.MEMCPY, Kind.MEMSET)
_COMMUNICATION = (Kind.COLLECTIVE, Kind.P2P)


class State(IntEnum):
    """States of a lane, in the order in which they are stacked. Values index the CSS classes."""

    COMPUTE = 0
    COLLECTIVE = 1
    COPY = 2
    PEER_WAIT = 3
    SLACK_CPU = 4
    SLACK_SYNC = 5
    SLACK_STREAM = 6
    SLACK_PEER_CPU = 7
    SLACK_PEER_GPU = 8
    SLACK_CONTENTION = 9
    SLACK_UNEXPLAINED = 10
    WAIT = 11
    CAPTURE = 12
    GAP = 13
    CPU = 14  # critical path only
    LATENCY = 15  # critical path only


SLACK_STATE = {
    Cause.CPU: State.SLACK_CPU,
    Cause.SYNC: State.SLACK_SYNC,
    Cause.STREAM: State.SLACK_STREAM,
    Cause.PEER_CPU: State.SLACK_PEER_CPU,
    Cause.PEER_GPU: State.SLACK_PEER_GPU,
    Cause.CONTENTION: State.SLACK_CONTENTION,
    Cause.UNEXPLAINED: State.SLACK_UNEXPLAINED,
    Cause.CAPTURE: State.CAPTURE,
}
STATE_TEXT = {
    State.COMPUTE: "computing",
    State.COLLECTIVE: "communicating",
    State.COPY: "copying",
    State.PEER_WAIT: "waiting for other ranks in a collective, not counted as slack",
    State.WAIT: "waiting, not usable",
    State.CAPTURE: "waiting, cut by the capture: never counted",
    State.GAP: "gaps under 10 µs",
    State.CPU: "CPU",
    State.LATENCY: "latency and unexplained",
}
STATE_TEXT |= {
    state: f"usable slack: {CAUSE_TEXT[cause]}"
    for cause, state in SLACK_STATE.items()
    if cause != Cause.CAPTURE
}

GPU_STATES = tuple(state for state in State if state <= State.GAP)
USABLE = tuple(state for state in GPU_STATES if State.SLACK_CPU <= state <= State.SLACK_UNEXPLAINED)

# What the critical path is spent on; CAPTURE is the time before the first record on it.
PATH_STATES = (
    State.CPU,
    State.COMPUTE,
    State.COLLECTIVE,
    State.COPY,
    State.LATENCY,
    State.CAPTURE,
)
PATH_TEXT = {
    State.CPU: "CPU",
    State.COMPUTE: "GPU computing",
    State.COLLECTIVE: "communication",
    State.COPY: "copies",
    State.LATENCY: "latency and unexplained",
    State.CAPTURE: "before the first record",
}
_PATH_STATE = {
    Spent.CPU: State.CPU,
    Spent.GPU: State.COMPUTE,
    Spent.COLLECTIVE: State.COLLECTIVE,
    Spent.COPY: State.COPY,
    Spent.IDLE: State.LATENCY,
}


@dataclass(frozen=True, slots=True)
class Segments:
    """Disjoint stretches in order of time. ``start_ns``, ``end_ns`` int64, ``state`` int8, all (S)."""

    start_ns: I64
    end_ns: I64
    state: I8

    def total_ns(self, state: State) -> int:
        """Summed length of one state."""
        mine = self.state == state
        return int((self.end_ns[mine] - self.start_ns[mine]).sum())

    def shares(self, state: State, edges_ns: F64) -> F64:
        """Share of each bin (B) between ``edges_ns`` (B + 1) that is spent in a state, 0..1."""
        mine = self.state == state
        if not mine.any():
            return np.zeros(len(edges_ns) - 1)
        start, end = self.start_ns[mine].astype(np.float64), self.end_ns[mine].astype(np.float64)
        knots = np.stack([start, end], axis=1).reshape(-1)
        spent = np.zeros(len(knots))
        spent[1::2] = np.cumsum(end - start)
        spent[2::2] = spent[1:-1:2]
        share: F64 = np.diff(np.interp(edges_ns, knots, spent)) / np.diff(edges_ns)
        return share

    def merged(self) -> Segments:
        """Neighbours of equal state that touch, as one."""
        if len(self.state) == 0:
            return self
        new = np.r_[True, (self.state[1:] != self.state[:-1]) | (self.start_ns[1:] != self.end_ns[:-1])]
        last = np.r_[np.flatnonzero(new)[1:] - 1, len(new) - 1]
        return Segments(self.start_ns[new], self.end_ns[last], self.state[new])


def gpu_segments(analysis: Analysis) -> list[Segments]:
    """The states of each GPU over the whole window [0, makespan); no instant is left out."""
    graph = analysis.graph
    wait = wait_ns(graph)
    return [
        _of_gpu(graph, wait, gpu.gpu, gpu.windows, analysis.timeline.makespan_ns)
        for gpu in analysis.slack.gpus
    ]


def _of_gpu(graph: Graph, wait: I64, gpu: int, windows: SlackWindows, makespan_ns: int) -> Segments:
    ops = np.flatnonzero(graph.nodes.gpu == gpu)
    parts = _working(graph, wait, ops)
    busy = union(graph.nodes.start_ns[ops] + wait[ops], graph.nodes.end_ns[ops])
    taken = union(np.r_[busy.start_ns, windows.start_ns], np.r_[busy.end_ns, windows.end_ns])
    waiting = union(graph.nodes.start_ns[ops], graph.nodes.start_ns[ops] + wait[ops]).minus(taken)
    parts.append((waiting, State.PEER_WAIT))
    parts += _waiting(windows)
    covered = union(
        np.concatenate([part.start_ns for part, _ in parts]),
        np.concatenate([part.end_ns for part, _ in parts]),
    )
    parts.append((covered.complement(0, makespan_ns), State.GAP))
    return _joined(parts)


def _working(graph: Graph, wait: I64, ops: I64) -> list[tuple[Intervals, State]]:
    """Where streams overlap, computing hides communicating hides copying."""
    nodes = graph.nodes
    start, end = nodes.start_ns[ops] + wait[ops], nodes.end_ns[ops]
    copies, talks = np.isin(nodes.kind[ops], _COPIES), np.isin(nodes.kind[ops], _COMMUNICATION)
    compute = union(start[~copies & ~talks], end[~copies & ~talks])
    talking = union(start[talks], end[talks]).minus(compute)
    copying = union(start[copies], end[copies]).minus(compute).minus(talking)
    return [(compute, State.COMPUTE), (talking, State.COLLECTIVE), (copying, State.COPY)]


def _waiting(windows: SlackWindows) -> list[tuple[Intervals, State]]:
    """Each window as its usable part, coloured by cause, then the rest of it."""
    parts = [(Intervals(windows.start_ns[windows.edge], windows.end_ns[windows.edge]), State.CAPTURE)]
    filled = windows.start_ns + windows.slack_ns
    for cause, state in SLACK_STATE.items():
        mine = (windows.cause == cause) & ~windows.edge
        usable, rest = mine & (windows.slack_ns > 0), mine & (filled < windows.end_ns)
        parts.append((Intervals(windows.start_ns[usable], filled[usable]), state))
        parts.append((Intervals(filled[rest], windows.end_ns[rest]), State.WAIT))
    return parts


def stream_segments(graph: Graph, stream: int) -> Segments:
    """What one stream was doing; gaps are left out. Waiting inside a communication op is a wait."""
    wait = wait_ns(graph)
    ops = np.flatnonzero(graph.nodes.stream == stream)
    parts = _working(graph, wait, ops)
    busy = union(graph.nodes.start_ns[ops] + wait[ops], graph.nodes.end_ns[ops])
    waits = union(graph.nodes.start_ns[ops], graph.nodes.start_ns[ops] + wait[ops]).minus(busy)
    return _joined([*parts, (waits, State.PEER_WAIT)])


def path_states(path: CriticalPath) -> I8:
    """State of each stretch (K) of the critical path: one of PATH_STATES."""
    state_of = np.array([_PATH_STATE[Spent(spent)] for spent in range(len(Spent))], np.int8)
    state: I8 = state_of[path.spent]
    if path.capture_ns:
        state[0] = State.CAPTURE
    return state


def path_segments(path: CriticalPath) -> Segments:
    """The critical path by what it was spent on."""
    return Segments(path.start_ns, path.end_ns, path_states(path)).merged()


def path_on_gpu(analysis: Analysis, gpu: int) -> Segments:
    """Where the critical path runs on one GPU."""
    path, nodes = analysis.path, analysis.graph.nodes
    here = (path.node >= 0) & (nodes.gpu[np.maximum(path.node, 0)] == gpu) & (path.thread < 0)
    return Segments(path.start_ns[here], path.end_ns[here], np.zeros(int(here.sum()), np.int8)).merged()


def _joined(parts: list[tuple[Intervals, State]]) -> Segments:
    start = np.concatenate([part.start_ns for part, _ in parts])
    end = np.concatenate([part.end_ns for part, _ in parts])
    state = np.concatenate([np.full(len(part), state, np.int8) for part, state in parts])
    order = np.argsort(start, kind="stable")
    return Segments(start[order], end[order], state[order]).merged()
