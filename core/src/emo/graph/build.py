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

from emo.errors import InputError
from emo.graph.assemble import LATENCY_CAP_NS, assemble
from emo.graph.collectives import align_clocks, in_order_of_time, match_collectives, split_by_end
from emo.graph.context import Context, EdgeBlock, make_context
from emo.graph.joints import make_joints
from emo.graph.marks import make_marks
from emo.graph.model import (
    NEVER,
    BuildReport,
    EdgeType,
    Graph,
)
from emo.graph.nodes import build_nodes
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
    long_calls,
    op_durations,
    polls,
    recorded_syncs,
    stream_order,
)
from emo.trace.model import I64, Trace

# Launches that a GPU context queues before the launch call blocks (facts: about 1024 on CUDA).
DEFAULT_QUEUE_DEPTH = 1024

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
    if skip & {EdgeType.OP, EdgeType.PROGRAM}:
        raise InputError("OP and PROGRAM cannot be left out: without them nothing takes time")
    report = BuildReport()
    traces = sorted(traces, key=_identity)
    matches = match_collectives(traces)
    clocks = align_clocks(traces, matches, report)
    matches = in_order_of_time((part for match in matches for part in split_by_end(match, clocks)), clocks)
    table = build_nodes(traces, clocks)
    marks = make_marks(traces, clocks, table)
    chain = make_chain(table, marks)
    turns = [] if EdgeType.HANDOVER in skip else groups_that_take_turns(traces, table, chain)
    context = make_context(traces, table, report, queue_depth, turns)
    joints = make_joints(context, matches, marks, skip)

    blocks = [
        block
        for type, rules in _GPU_RULES.items()
        if type not in skip
        for rule in rules
        for block in rule(context)
    ]
    holding = [
        block
        for type, rules in _HOLDING_RULES.items()
        if type not in skip
        for rule in rules
        for block in rule(context)
    ]
    blocks += call_durations(context, holding)
    blocks += op_durations(context, joints.wire_ns)
    blocks += program_order(chain, turns)
    blocks += joints.blocks
    late, ready_ns = _late_ops(context, blocks)
    if EdgeType.LAUNCH not in skip:
        blocks.append(long_calls(context, late, ready_ns))
    if EdgeType.CONTENTION not in skip:
        blocks.append(contention(context, late, ready_ns))
    return assemble(context, [block for block in blocks if len(block)], marks, joints)


def _late_ops(context: Context, blocks: list[EdgeBlock]) -> tuple[I64, I64]:
    """GPU ops that started later than the edges so far explain, and when these would have let them start."""
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
    return ops[late], ready_ns[late]


def _identity(trace: Trace) -> tuple[int, str]:
    return (trace.rank if trace.rank >= 0 else 2**31, trace.path)
