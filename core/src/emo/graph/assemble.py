"""From points and edges of all rules to a :class:`Graph`: checked, ordered, exact.

Edges that the run contradicts are dropped, small remainders become latencies, points are put
into topological order, and what then is still unexplained is stored, so that a replay at scale 1
reproduces the recorded run to the nanosecond.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from emo import _native
from emo.graph.context import CLOCK_STEP_NS, Context, EdgeBlock
from emo.graph.joints import JointSet
from emo.graph.marks import MarkSet, to_iterations
from emo.graph.model import (
    INFERRED_TYPES,
    NEVER,
    Bool,
    BuildReport,
    EdgeType,
    Graph,
    PointKind,
)
from emo.graph.nodes import NodeTable
from emo.trace.columns import distinct
from emo.trace.model import I8, I64

# Between two dependent ops the hardware needs a few microseconds. A remainder up to this much is the
# latency of the edge that bound; more than that is unexplained.
LATENCY_CAP_NS = 20_000
_LATENCY_TYPES = (
    EdgeType.LAUNCH,
    EdgeType.STREAM,
    EdgeType.EVENT,
    EdgeType.EVENT_INFERRED,
    EdgeType.GRAPH_ORDER,
)


@dataclass(frozen=True, slots=True)
class _Points:
    """Columns over points, in any numbering."""

    time_ns: I64
    release_ns: I64
    kind: I64
    node: I64

    def reordered(self, order: I64) -> _Points:
        return _Points(self.time_ns[order], self.release_ns[order], self.kind[order], self.node[order])


@dataclass(frozen=True, slots=True)
class _Edges:
    """Columns over edges, with points in the same numbering as ``_Points``."""

    src: I64
    dst: I64
    lag_ns: I64
    scaled_ns: I64
    owner: I64
    type: I8

    @property
    def weight_ns(self) -> I64:
        return self.lag_ns + self.scaled_ns

    def only(self, keep: Bool | I64) -> _Edges:
        return _Edges(
            self.src[keep],
            self.dst[keep],
            self.lag_ns[keep],
            self.scaled_ns[keep],
            self.owner[keep],
            self.type[keep],
        )


def assemble(context: Context, blocks: Sequence[EdgeBlock], marks: MarkSet, joints: JointSet) -> Graph:
    """Put everything together. ``blocks`` use the numbering of points of :class:`Context`."""
    table, report = context.table, context.report
    points = _number_points(table, marks, joints)
    edges = _drop_contradicted(report, points.time_ns, _join(blocks))
    edges, order = _topological(report, points.time_ns, edges)

    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    points = points.reordered(order)
    edges = _Edges(
        position[edges.src], position[edges.dst], edges.lag_ns, edges.scaled_ns, edges.owner, edges.type
    )
    edges = edges.only(np.lexsort((edges.src, edges.dst)))
    row = np.zeros(len(order) + 1, np.int64)
    np.cumsum(np.bincount(edges.dst, minlength=len(order)), out=row[1:])

    peer_wait = np.zeros(len(order), np.int64)
    peer_wait[position[joints.peer_wait_point]] = joints.peer_wait_ns
    # A point that nothing leads to happens when it was recorded.
    rootless = (np.diff(row) == 0) & (points.release_ns == NEVER)
    points.release_ns[rootless] = (points.time_ns - peer_wait)[rootless]

    ready = _ready(points, row, edges)
    edges = _settle_latencies(points, edges, ready, points.time_ns - ready - peer_wait)
    unexplained = points.time_ns - _ready(points, row, edges) - peer_wait

    for value, count in enumerate(np.bincount(edges.type, minlength=len(EdgeType)).tolist()):
        if count:
            report.edges_by_type[EdgeType(value).name] = count
    nodes = len(table.nodes)
    graph = Graph(
        traces=tuple(context.traces),
        origin_ns=table.origin_ns,
        nodes=table.nodes,
        point_kind=points.kind.astype(np.int8),
        point_node=points.node.astype(np.int32),
        time_ns=points.time_ns,
        release_ns=points.release_ns,
        peer_wait_ns=peer_wait,
        unexplained_ns=unexplained,
        row=row,
        src=edges.src.astype(np.int32),
        dst=edges.dst.astype(np.int32),
        lag_ns=edges.lag_ns,
        scaled_ns=edges.scaled_ns,
        owner=edges.owner.astype(np.int32),
        edge_type=edges.type,
        start_point=position[0 : 2 * nodes : 2].astype(np.int32),
        end_point=position[1 : 2 * nodes : 2].astype(np.int32),
        gpus=table.gpus,
        streams=table.streams,
        threads=table.threads,
        joints=tuple(joints.numbered(position)),
        iterations=to_iterations(context, marks, position),
        report=report,
    )
    _native.check_csr(graph.row, graph.src, graph.owner, np.ones(graph.scale_size))
    return graph


def _number_points(table: NodeTable, marks: MarkSet, joints: JointSet) -> _Points:
    """Nodes (start, end), threads (begin, end), marks, joints."""
    nodes = table.nodes
    count = len(nodes)
    threads = len(table.threads)
    total = 2 * count + 2 * threads + len(marks.point) + len(joints.time_ns)
    time = np.zeros(total, np.int64)
    kind = np.zeros(total, np.int64)
    node = np.zeros(total, np.int64)
    starts, ends = slice(0, 2 * count, 2), slice(1, 2 * count, 2)
    time[starts], time[ends] = nodes.start_ns, nodes.end_ns
    kind[ends] = PointKind.END
    node[starts] = node[ends] = np.arange(count)
    begins, finishes = (slice(2 * count + i, 2 * count + 2 * threads, 2) for i in (0, 1))
    time[begins], time[finishes] = table.thread_begin_ns, table.thread_end_ns
    kind[begins], kind[finishes] = PointKind.THREAD_BEGIN, PointKind.THREAD_END
    node[begins] = node[finishes] = np.arange(threads)
    time[marks.point], kind[marks.point], node[marks.point] = marks.time_ns, PointKind.MARK, marks.trace
    joint = slice(total - len(joints.time_ns), total)
    time[joint], kind[joint], node[joint] = joints.time_ns, joints.kind, joints.node
    release = np.where(kind == PointKind.THREAD_BEGIN, time, NEVER)
    return _Points(time, release, kind, node)


def _join(blocks: Sequence[EdgeBlock]) -> _Edges:
    return _Edges(
        np.concatenate([block.src for block in blocks]),
        np.concatenate([block.dst for block in blocks]),
        np.concatenate([block.lag_ns for block in blocks]),
        np.concatenate([block.scaled_ns for block in blocks]),
        np.concatenate([block.owner for block in blocks]),
        np.concatenate([np.full(len(block), block.type, np.int8) for block in blocks]),
    )


def _drop_contradicted(report: BuildReport, time_ns: I64, edges: _Edges) -> _Edges:
    """Drop edges that state an order that was not there; cut weights to what was there.

    Rounding to a clock step may put two instants the wrong way round: such an edge stays, with a
    lag just below zero. Least latencies are statistics, so one may exceed what an instance had.
    """
    available = time_ns[edges.dst] - time_ns[edges.src]
    contradicted = available < -CLOCK_STEP_NS
    for value in distinct(edges.type[contradicted]).tolist():
        report.violated_by_type[EdgeType(value).name] = int((edges.type[contradicted] == value).sum())
    excess = np.maximum(edges.weight_ns - available, 0)
    from_scaled = np.minimum(excess, edges.scaled_ns)
    cut = _Edges(
        edges.src,
        edges.dst,
        edges.lag_ns - (excess - from_scaled),
        edges.scaled_ns - from_scaled,
        edges.owner,
        edges.type,
    )
    return cut.only(~contradicted)


def _ready(points: _Points, row: I64, edges: _Edges) -> I64:
    """For every point the latest of its release and its in-edges at recorded times."""
    ready = points.release_ns.copy()
    headed = np.flatnonzero(np.diff(row) > 0)
    if len(headed):
        latest = np.maximum.reduceat(points.time_ns[edges.src] + edges.weight_ns, row[headed])
        ready[headed] = np.maximum(ready[headed], latest)
    return ready


def _settle_latencies(points: _Points, edges: _Edges, ready: I64, rest: I64) -> _Edges:
    """Give small remainders at the start of GPU ops to the edge that bound.

    Which edge bound is known only when all are there. The remainder is the latency of that
    dependency in this place (launch, stream hand-off, event), and it repeats from iteration
    to iteration.
    """
    small = (points.kind == PointKind.START) & (rest > 0) & (rest <= LATENCY_CAP_NS)
    binds = small[edges.dst] & (points.time_ns[edges.src] + edges.weight_ns == ready[edges.dst])
    binds &= np.isin(edges.type, _LATENCY_TYPES)
    lag = np.where(binds, edges.lag_ns + rest[edges.dst], edges.lag_ns)
    return _Edges(edges.src, edges.dst, lag, edges.scaled_ns, edges.owner, edges.type)


def _topological(report: BuildReport, time_ns: I64, edges: _Edges) -> tuple[_Edges, I64]:
    """Order the points near the order of time. Breaks cycles among ties.

    All edges go forward in time, so a cycle needs points at the same instant (within a clock step).
    Inferred edges are given up first, then whatever goes against the order of numbering.
    """
    hint = np.argsort(time_ns, kind="stable").astype(np.int32)
    for give_up_inferred in (True, False, False):
        row = np.zeros(len(time_ns) + 1, np.int64)
        np.cumsum(np.bincount(edges.dst, minlength=len(time_ns)), out=row[1:])
        by_head = np.argsort(edges.dst, kind="stable")
        order = np.empty(len(time_ns), np.int32)
        placed = _native.toposort(row, edges.src[by_head].astype(np.int32), hint, order)
        if placed == len(time_ns):
            return edges, order.astype(np.int64)
        stuck = np.zeros(len(time_ns), bool)
        stuck[order[placed:]] = True
        if give_up_inferred:
            unwanted = np.isin(edges.type, list(INFERRED_TYPES))
        else:
            tail_ns, head_ns = time_ns[edges.src], time_ns[edges.dst]
            unwanted = (head_ns < tail_ns) | ((head_ns == tail_ns) & (edges.dst < edges.src))
        drop = stuck[edges.src] & stuck[edges.dst] & unwanted
        report.cyclic_edges_dropped += int(drop.sum())
        edges = edges.only(~drop)
    raise AssertionError("a cycle survived although every edge now goes forward in time")
