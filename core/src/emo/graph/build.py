"""From traces to a graph: align clocks, choose nodes, apply the rules, order the points.

The flow, top to bottom:

1. match collectives across ranks and align the ranks' clocks (:mod:`collectives`)
2. choose nodes and points (:mod:`nodes`)
3. apply the rules (:mod:`rules`, :mod:`program`, :mod:`joints`)
4. drop edges that the run contradicts, settle latencies, break ties
5. order the points, so that every later pass is one loop
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from emo import _native
from emo.graph.collectives import Match, align_clocks, match_collectives, split_by_end
from emo.graph.context import CLOCK_STEP_NS, Context, EdgeBlock, make_context
from emo.graph.joints import JointSet, make_joints
from emo.graph.marks import MarkSet, make_marks, to_iterations
from emo.graph.model import (
    INFERRED_TYPES,
    NEVER,
    BuildReport,
    EdgeType,
    Graph,
    PointKind,
)
from emo.graph.nodes import NodeTable, build_nodes
from emo.graph.program import groups_that_take_turns, make_chain, program_order
from emo.graph.rules import (
    back_pressure,
    blocking_copies,
    call_durations,
    contention,
    device_syncs,
    event_waits,
    event_waits_inferred,
    graph_order,
    host_functions,
    implicit_syncs,
    inferred_syncs,
    launches,
    op_durations,
    polls,
    recorded_syncs,
    stream_order,
)
from emo.trace.model import I32, I64, Trace

# Launches that a GPU context queues before the launch call blocks (facts: about 1024 on CUDA).
DEFAULT_QUEUE_DEPTH = 1024

# Between two dependent ops the hardware needs a few microseconds. A remainder up to this much is the
# latency of the edge that bound; more than that is unexplained.
LATENCY_CAP_NS = 20_000
_LATENCY_TYPES = (EdgeType.LAUNCH, EdgeType.STREAM, EdgeType.EVENT, EdgeType.EVENT_INFERRED, EdgeType.GRAPH_ORDER)

# Rules whose edges hold a CPU call until the GPU got somewhere.
_HOLDING_RULES = {
    EdgeType.SYNC: (device_syncs, recorded_syncs),
    EdgeType.SYNC_INFERRED: (inferred_syncs,),
    EdgeType.POLL: (polls,),
    EdgeType.BLOCKING_COPY: (blocking_copies,),
    EdgeType.IMPLICIT_SYNC: (implicit_syncs,),
    EdgeType.BACK_PRESSURE: (back_pressure,),
}
_GPU_RULES = {
    EdgeType.LAUNCH: (launches,),
    EdgeType.STREAM: (stream_order,),
    EdgeType.GRAPH_ORDER: (graph_order,),
    EdgeType.EVENT: (event_waits,),
    EdgeType.EVENT_INFERRED: (event_waits_inferred,),
    EdgeType.HOST_FUNCTION: (host_functions,),
}


def build_graph(
    traces: Sequence[Trace],
    *,
    without: Collection[EdgeType] = (),
    queue_depth: int = DEFAULT_QUEUE_DEPTH,
) -> Graph:
    """Build the dependency graph of one job; ``traces`` are its ranks, in any order.

    ``without`` leaves rules out: to see what each is worth, and to ask whether a plan holds
    without the inferred ones.
    """
    skip = frozenset(without)
    report = BuildReport()
    traces = sorted(traces, key=_identity)
    matches = match_collectives(traces)
    clocks = align_clocks(traces, matches, report)
    matches = [part for match in matches for part in split_by_end(match, clocks, trusted=_has_group(traces, match))]
    table = build_nodes(traces, clocks)
    marks = make_marks(traces, clocks, table)
    chain = make_chain(table, marks)
    turns = [] if EdgeType.HANDOVER in skip else groups_that_take_turns(traces, table, chain)
    context = make_context(traces, table, report, queue_depth, turns)
    joints = make_joints(context, matches, marks, skip)

    blocks = [block for type, rules in _GPU_RULES.items() if type not in skip for rule in rules for block in rule(context)]
    holding = [
        block for type, rules in _HOLDING_RULES.items() if type not in skip for rule in rules for block in rule(context)
    ]
    blocks += call_durations(context, holding)
    blocks += op_durations(context, joints.wire_ns)
    blocks += program_order(chain, turns)
    blocks += joints.blocks
    if EdgeType.CONTENTION not in skip:
        blocks.append(_contention(context, blocks, joints))
    return _assemble(context, blocks, marks, joints)


def _contention(context: Context, blocks: list[EdgeBlock], joints: JointSet) -> EdgeBlock:
    """Find the GPU ops that started later than all other rules explain, and what kept them out."""
    nodes = context.table.nodes
    ready = np.full(2 * len(nodes), NEVER, np.int64)
    joint_base = 2 * len(nodes)
    for block in blocks:
        between_ops = (block.dst < joint_base) & (block.src < joint_base)
        src, dst = block.src[between_ops], block.dst[between_ops]
        at = np.where(src % 2 == 0, nodes.start_ns[src // 2], nodes.end_ns[src // 2])
        np.maximum.at(ready, dst, at + block.lag_ns[between_ops] + block.scaled_ns[between_ops])
    ops = np.flatnonzero(context.on_gpu)
    ready_ns = ready[2 * ops]
    late = (ready_ns != NEVER) & (nodes.start_ns[ops] - ready_ns > LATENCY_CAP_NS)
    return contention(context, ops[late], ready_ns[late])


def _identity(trace: Trace) -> tuple[int, str]:
    return (trace.rank if trace.rank >= 0 else 2**31, trace.path)


def _has_group(traces: Sequence[Trace], match: Match) -> bool:
    member = match.members[0]
    return int(traces[member.trace].ops.collective_group[member.row]) >= 0


def _point_times(table: NodeTable, marks: MarkSet, joints: JointSet) -> tuple[I64, I64, I64, I64]:
    """(time, release, kind, node) of every point in the order in which they were numbered."""
    nodes = table.nodes
    count = len(nodes)
    threads = len(table.threads)
    total = 2 * count + 2 * threads + len(marks.point) + len(joints.time_ns)
    time = np.zeros(total, np.int64)
    kind = np.zeros(total, np.int64)
    node = np.zeros(total, np.int64)
    time[0 : 2 * count : 2], time[1 : 2 * count : 2] = nodes.start_ns, nodes.end_ns
    kind[1 : 2 * count : 2] = PointKind.END
    node[0 : 2 * count : 2] = node[1 : 2 * count : 2] = np.arange(count)
    at = 2 * count
    time[at : at + 2 * threads : 2], time[at + 1 : at + 2 * threads : 2] = table.thread_begin_ns, table.thread_end_ns
    kind[at : at + 2 * threads : 2], kind[at + 1 : at + 2 * threads : 2] = PointKind.THREAD_BEGIN, PointKind.THREAD_END
    node[at : at + 2 * threads : 2] = node[at + 1 : at + 2 * threads : 2] = np.arange(threads)
    time[marks.point], kind[marks.point], node[marks.point] = marks.time_ns, PointKind.MARK, marks.trace
    joint_points = np.arange(total - len(joints.time_ns), total)
    time[joint_points], kind[joint_points], node[joint_points] = joints.time_ns, joints.kind, joints.node
    release = np.full(total, NEVER, np.int64)
    begin = kind == PointKind.THREAD_BEGIN
    release[begin] = time[begin]
    return time, release, kind, node


def _assemble(context: Context, blocks: list[EdgeBlock], marks: MarkSet, joints: JointSet) -> Graph:
    report = context.report
    table = context.table
    time, release, kind, node = _point_times(table, marks, joints)
    blocks = [block for block in blocks if len(block)]
    src = np.concatenate([block.src for block in blocks])
    dst = np.concatenate([block.dst for block in blocks])
    lag = np.concatenate([block.lag_ns for block in blocks])
    scaled = np.concatenate([block.scaled_ns for block in blocks])
    owner = np.concatenate([block.owner for block in blocks])
    type = np.concatenate([np.full(len(block), block.type, np.int8) for block in blocks])

    # An edge that the run contradicts by more than a clock step states an order that is not there.
    available = time[dst] - time[src]
    weight = lag + scaled
    contradicted = available < -CLOCK_STEP_NS
    for value in np.unique(type[contradicted]).tolist():
        report.violated_by_type[EdgeType(value).name] = int((type[contradicted] == value).sum())
    # A latency that is longer than what was there is cut to it: least latencies are statistics.
    excess = np.maximum(weight - available, 0)
    from_scaled = np.minimum(excess, np.maximum(scaled - 0, 0))
    is_latency = scaled == 0
    lag = np.where(is_latency, lag - excess, lag - (excess - from_scaled))
    scaled = np.where(is_latency, scaled, scaled - from_scaled)
    keep = ~contradicted
    src, dst, lag, scaled, owner, type = (a[keep] for a in (src, dst, lag, scaled, owner, type))

    src, dst, lag, scaled, owner, type, order = _order(report, time, src, dst, lag, scaled, owner, type)
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    head = position[dst]
    by_head = np.lexsort((position[src], head))
    src, dst = position[src][by_head].astype(np.int32), head[by_head].astype(np.int32)
    lag, scaled, owner, type = lag[by_head], scaled[by_head], owner[by_head].astype(np.int32), type[by_head]
    row = np.zeros(len(order) + 1, np.int64)
    np.cumsum(np.bincount(dst, minlength=len(order)), out=row[1:])
    time, release, kind, node = time[order], release[order], kind[order], node[order]

    peer_wait = np.zeros(len(order), np.int64)
    peer_wait[position[joints.peer_wait_point]] = joints.peer_wait_ns
    # A point that nothing leads to happens when it was recorded.
    rootless = (np.diff(row) == 0) & (release == NEVER)
    release[rootless] = time[rootless] - peer_wait[rootless]

    ready = np.maximum(_ready(row, src, dst, lag + scaled, time), release)
    rest = time - ready - peer_wait
    lag = _settle_latencies(kind, row, src, dst, lag, scaled, type, time, ready, rest)
    ready = np.maximum(_ready(row, src, dst, lag + scaled, time), release)
    unexplained = time - ready - peer_wait

    for value, count in zip(*np.unique(type, return_counts=True), strict=True):
        report.edges_by_type[EdgeType(int(value)).name] = int(count)
    count = len(table.nodes)
    iterations = to_iterations(context, marks, position)
    graph = Graph(
        traces=tuple(context.traces),
        origin_ns=table.origin_ns,
        nodes=table.nodes,
        point_kind=kind.astype(np.int8),
        point_node=node.astype(np.int32),
        time_ns=time,
        release_ns=release,
        peer_wait_ns=peer_wait,
        unexplained_ns=unexplained,
        row=row,
        src=src,
        dst=dst,
        lag_ns=lag,
        scaled_ns=scaled,
        owner=owner,
        edge_type=type,
        start_point=position[0 : 2 * count : 2].astype(np.int32),
        end_point=position[1 : 2 * count : 2].astype(np.int32),
        gpus=table.gpus,
        streams=table.streams,
        threads=table.threads,
        joints=tuple(joints.numbered(position)),
        iterations=iterations,
        report=report,
    )
    _native.check_csr(row, src, graph.owner, np.ones(graph.scale_size))
    return graph


def _ready(row: I64, src: I32, dst: I32, weight: I64, time: I64) -> I64:
    """For every point the latest of its in-edges at recorded times; NEVER without any."""
    ready = np.full(len(time), NEVER, np.int64)
    if len(src) == 0:
        return ready
    candidate = time[src] + weight
    filled = np.flatnonzero(np.diff(row) > 0)
    ready[filled] = np.maximum.reduceat(candidate, row[filled])
    return ready


def _settle_latencies(
    kind: I64,
    row: I64,
    src: I32,
    dst: I32,
    lag: I64,
    scaled: I64,
    type: np.ndarray,
    time: I64,
    ready: I64,
    rest: I64,
) -> I64:
    """Give small remainders at the start of GPU ops to the edge that bound.

    Which edge bound is known only when all are there. The remainder is the latency of that
    dependency in this place (launch, stream hand-off, event), and it repeats from iteration
    to iteration.
    """
    start_of_op = (kind == PointKind.START) & (rest > 0) & (rest <= LATENCY_CAP_NS)
    binds = (time[src] + lag + scaled == ready[dst]) & start_of_op[dst] & np.isin(type, _LATENCY_TYPES)
    settled: I64 = np.where(binds, lag + rest[dst], lag)
    return settled


def _order(
    report: BuildReport, time: I64, src: I64, dst: I64, lag: I64, scaled: I64, owner: I64, type: np.ndarray
) -> tuple[I64, I64, I64, I64, I64, np.ndarray, I32]:
    """Topological order of the points, near the order of time. Breaks cycles among ties.

    All edges go forward in time, so a cycle needs points at the same instant (within a clock step).
    Inferred edges are given up first, then whatever goes against the order of numbering.
    """
    hint = np.argsort(time, kind="stable").astype(np.int32)
    inferred = np.isin(type, list(INFERRED_TYPES))
    for attempt in range(3):
        by_head = np.argsort(dst, kind="stable")
        row = np.zeros(len(time) + 1, np.int64)
        np.cumsum(np.bincount(dst, minlength=len(time)), out=row[1:])
        order = np.empty(len(time), np.int32)
        placed = _native.toposort(row, src[by_head].astype(np.int32), hint, order)
        if placed == len(time):
            return src, dst, lag, scaled, owner, type, order
        stuck = np.zeros(len(time), bool)
        stuck[order[placed:]] = True
        among = stuck[src] & stuck[dst]
        drop = among & inferred if attempt == 0 else among & ((time[dst] < time[src]) | ((time[dst] == time[src]) & (dst < src)))
        if attempt == 0 and not drop.any():
            continue
        report.cyclic_edges_dropped += int(drop.sum())
        src, dst, lag, scaled, owner, type, inferred = (
            a[~drop] for a in (src, dst, lag, scaled, owner, type, inferred)
        )
    raise AssertionError("a cycle survived although every edge now goes forward in time")

