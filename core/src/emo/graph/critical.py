"""The critical path: the chain of edges that decided the makespan, and what it was spent on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from emo import _native
from emo.graph.model import Bool, EdgeType, Graph, PointKind
from emo.graph.replay import Timeline
from emo.trace.model import I8, I32, I64, Kind


class Spent(IntEnum):
    """What a stretch of the critical path was spent on."""

    CPU = 0
    GPU = 1
    COLLECTIVE = 2  # wire time, and waiting for absent peers
    COPY = 3
    IDLE = 4  # latencies, and what nothing explains


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """Stretches in order of time. All arrays have length K; they are contiguous and cover the makespan.

    ``spent`` holds :class:`Spent`, ``node`` the node whose time it is (-1: a thread's own time,
    or idle), ``thread`` the CPU thread (-1: none).
    """

    start_ns: I64
    end_ns: I64
    spent: I8
    node: I32
    thread: I32
    capture_ns: int  # of the idle time: from the window's opening to the opening of this rank's capture

    def total_ns(self, spent: Spent) -> int:
        """Time spent on one thing."""
        mine = self.spent == spent
        return int((self.end_ns[mine] - self.start_ns[mine]).sum())


_SPENT_BY_KIND = np.full(len(Kind), Spent.CPU, np.int8)
_SPENT_BY_KIND[Kind.KERNEL] = Spent.GPU
_SPENT_BY_KIND[[Kind.MEMCPY, Kind.MEMSET]] = Spent.COPY
_SPENT_BY_KIND[[Kind.COLLECTIVE, Kind.P2P]] = Spent.COLLECTIVE


def critical_path(graph: Graph, timeline: Timeline, *, to_point: int | None = None) -> CriticalPath:
    """Walk back from ``to_point`` (default: the last point) along the edges that decided."""
    time = timeline.time_ns
    last = int(time.argmax()) if to_point is None else to_point
    buffer = np.empty(len(time), np.int32)
    count = _native.trace_back(graph.src, timeline.decided_by, last, buffer)
    point = buffer[:count][::-1]
    edge = timeline.decided_by[point]
    # Each point ends up to four stretches, in this order: what scales with an owner, the edge's
    # constant lag, the wait for absent peers, the unexplained rest.
    before = np.where(edge >= 0, time[graph.src[edge]], 0)
    ready = time[point] - graph.unexplained_ns[point] - graph.peer_wait_ns[point]
    # A lag is below zero only by the rounding of a clock step.
    lag = np.where(edge >= 0, np.maximum(graph.lag_ns[edge], 0), 0)
    ends = np.stack([ready - lag, ready, ready + graph.peer_wait_ns[point], time[point]], axis=1)
    starts = np.concatenate([before[:, None], ends[:, :-1]], axis=1)

    spent, node, thread = _owners(graph, point, edge)
    lag_spent = np.where(graph.edge_type[edge] == EdgeType.HOST_FUNCTION, Spent.CPU, Spent.IDLE)
    idle, collective = np.full(count, Spent.IDLE), np.full(count, Spent.COLLECTIVE)
    nobody = np.full(count, -1)
    columns = {
        "spent": np.stack([spent, lag_spent, collective, idle], axis=1).reshape(-1),
        "node": np.stack([node, nobody, _node_of(graph, point), nobody], axis=1).reshape(-1),
        "thread": np.stack([thread, nobody, nobody, nobody], axis=1).reshape(-1),
    }
    start, end = starts.reshape(-1), ends.reshape(-1)
    # A head may lie a clock step before its tail: what led to the tail then ends where the head is.
    end = np.minimum.accumulate(end[::-1])[::-1]
    keep = end > start
    return CriticalPath(
        start_ns=start[keep],
        end_ns=end[keep],
        spent=columns["spent"][keep].astype(np.int8),
        node=columns["node"][keep].astype(np.int32),
        thread=columns["thread"][keep].astype(np.int32),
        capture_ns=int(ready[0]) if edge[0] < 0 else 0,
    )


def _node_of(graph: Graph, point: I32) -> I32:
    is_node = graph.point_kind[point] <= PointKind.END
    return np.where(is_node, graph.point_node[point], -1).astype(np.int32)


def _owners(graph: Graph, point: I32, edge: I32) -> tuple[I64, I64, I64]:
    """(spent on, node, thread) of the scalable part of the edge that decided each point."""
    threads, nodes = len(graph.threads), len(graph.nodes)
    owner = np.where(edge >= 0, graph.owner[edge], 0).astype(np.int64)
    is_thread = (owner > 0) & (owner <= threads)
    is_node = (owner > threads) & (owner <= threads + nodes)
    is_joint = owner > threads + nodes
    node = np.where(is_node, owner - 1 - threads, -1)
    if len(graph.joints):
        first_member = np.array([joint.nodes[0] for joint in graph.joints], np.int64)
        node = np.where(is_joint, first_member[np.maximum(owner - 1 - threads - nodes, 0)], node)
    node = np.where(is_thread, _node_of(graph, point), node)
    spent = np.full(len(point), Spent.IDLE, np.int64)
    spent[is_thread] = Spent.CPU
    spent[is_node] = _SPENT_BY_KIND[graph.nodes.kind[node[is_node]]]
    spent[is_joint] = Spent.COLLECTIVE
    return spent, node, np.where(is_thread, owner - 1, -1)


def spent_since(graph: Graph, timeline: Timeline, reset: Bool, spent: Spent) -> I64:
    """Per point (P): time spent on one thing along the chain of decisions that led to it.

    Counted from the last point on that chain with ``reset`` set, or from its beginning.
    """
    edge = timeline.decided_by
    point = np.arange(len(edge), dtype=np.int32)
    kind, _, _ = _owners(graph, point, edge)
    weight = np.where(
        edge >= 0, timeline.time_ns - timeline.time_ns[graph.src[edge]] - np.maximum(graph.lag_ns[edge], 0), 0
    )
    weight = weight - graph.unexplained_ns - graph.peer_wait_ns
    value = np.where(kind == spent, weight, 0)
    total = np.empty(len(edge), np.int64)
    _native.accumulate(graph.src, edge, value, np.ascontiguousarray(reset), total)
    return total
