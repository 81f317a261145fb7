"""CPU program order: what a thread does between its calls, iteration marks, hand-overs.

A thread is a chain: begin, calls and marks in the order of time, end. The gap between two
links is CPU work and stretches with the thread. Where one thread hands over to another and
waits (the forward thread while autograd runs), the chains are joined: then the gap in the
waiting thread is not work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from emo.graph.context import CLOCK_STEP_NS, EdgeBlock, edges
from emo.graph.marks import MarkSet
from emo.graph.model import EdgeType
from emo.graph.nodes import NodeTable
from emo.trace.columns import distinct
from emo.trace.model import GPU_KINDS, I64, Trace

# Threads that took turns this often without ever overlapping do hand over to each other. Fewer turns
# count only if the trace shows an autograd engine at work.
_TURNS_WITHOUT_A_RECORD = 8
_AUTOGRAD_LABEL = "autograd::engine::evaluate_function"


@dataclass(frozen=True, slots=True)
class Chain:
    """Links of all threads, sorted by (thread, time). Arrays of equal length."""

    thread: I64
    in_point: I64
    out_point: I64
    in_ns: I64
    out_ns: I64
    is_call: I64  # node number, or -1


def make_chain(table: NodeTable, marks: MarkSet) -> Chain:
    """All links of all threads."""
    nodes = table.nodes
    calls = np.flatnonzero(~np.isin(nodes.kind, GPU_KINDS))
    threads = np.arange(len(table.threads))
    begin, finish = 2 * len(nodes) + 2 * threads, 2 * len(nodes) + 2 * threads + 1
    low, high = np.int64(-(2**62)), np.int64(2**62)
    columns = [
        (threads, begin, begin, table.thread_begin_ns, table.thread_begin_ns, np.full(len(threads), low), -1),
        (
            nodes.thread[calls],
            2 * calls,
            2 * calls + 1,
            nodes.start_ns[calls],
            nodes.end_ns[calls],
            None,
            calls,
        ),
        (marks.thread, marks.point, marks.point, marks.time_ns, marks.time_ns, None, -1),
        (threads, finish, finish, table.thread_end_ns, table.thread_end_ns, np.full(len(threads), high), -1),
    ]
    thread = np.concatenate([np.asarray(column[0], np.int64) for column in columns])
    in_point, out_point, in_ns, out_ns = (
        np.concatenate([np.asarray(column[i], np.int64) for column in columns]) for i in (1, 2, 3, 4)
    )
    position = np.concatenate([np.asarray(c[3] if c[5] is None else c[5], np.int64) for c in columns])
    is_call = np.concatenate([np.broadcast_to(np.asarray(c[6], np.int64), (len(c[1]),)) for c in columns])
    order = np.lexsort((out_ns, position, thread))
    return Chain(
        thread[order], in_point[order], out_point[order], in_ns[order], out_ns[order], is_call[order]
    )


def program_order(chain: Chain, groups: Sequence[Sequence[int]]) -> list[EdgeBlock]:
    """PROGRAM and HANDOVER: the links of every chain, and the turns between chains (``groups``)."""
    follows = np.flatnonzero(chain.thread[1:] == chain.thread[:-1])
    head, tail = follows, follows + 1
    gap = chain.in_ns[tail] - chain.out_ns[head]
    nested = gap < 0  # a call inside another, or a mark inside a call: hold it to the start
    src = np.where(nested, chain.in_point[head], chain.out_point[head])
    gap = np.where(nested, np.maximum(chain.in_ns[tail] - chain.in_ns[head], 0), gap)

    turns: list[EdgeBlock] = []
    waiting = np.zeros(len(chain.thread), bool)
    for group in groups:
        turns.append(_turns(chain, group, waiting))
    gap = np.where(waiting[tail], 0, gap)
    own = edges(
        EdgeType.PROGRAM,
        src,
        chain.in_point[tail],
        scaled_ns=gap,
        owner=1 + chain.thread[tail],
    )
    return [own, *turns]


def _links_of(chain: Chain, thread: int) -> I64:
    """Positions of a thread's calls and marks (without begin and end)."""
    first, stop = np.searchsorted(chain.thread, [thread, thread + 1])
    return np.arange(first + 1, stop - 1)


def groups_that_take_turns(traces: Sequence[Trace], table: NodeTable, chain: Chain) -> list[list[int]]:
    """Sets of threads of one trace whose calls never overlap, with proof that they hand over."""
    groups: list[list[int]] = []
    for trace_number, trace in enumerate(traces):
        active = [
            thread
            for thread, (owner, _) in enumerate(table.threads)
            if owner == trace_number and len(_links_of(chain, thread)) > 0
        ]
        if len(active) < 2:
            continue
        autograd_names = {i for i, name in enumerate(trace.names) if name.startswith(_AUTOGRAD_LABEL)}
        is_autograd = np.isin(trace.labels.name_id, list(autograd_names)) if autograd_names else None
        engines = (
            set(distinct(trace.labels.thread[is_autograd]).tolist()) if is_autograd is not None else set()
        )
        group: list[int] = []
        for thread in active:
            candidate = [*group, thread]
            if _never_overlap(chain, candidate):
                group = candidate
        if len(group) < 2:
            continue
        proven = any(table.threads[thread][1] in engines for thread in group)
        if proven or len(_turn_positions(chain, group)[0]) >= _TURNS_WITHOUT_A_RECORD:
            groups.append(group)
    return groups


def _merged(chain: Chain, group: Sequence[int]) -> I64:
    links = np.concatenate([_links_of(chain, thread) for thread in group])
    order: I64 = links[np.lexsort((chain.out_ns[links], chain.in_ns[links]))]
    return order


def _never_overlap(chain: Chain, group: Sequence[int]) -> bool:
    links = _merged(chain, group)
    before, after = links[:-1], links[1:]
    between = chain.thread[before] != chain.thread[after]
    latest = np.maximum.accumulate(chain.out_ns[links])[:-1]
    return bool(np.all(chain.in_ns[after][between] + CLOCK_STEP_NS >= latest[between]))


def _turn_positions(chain: Chain, group: Sequence[int]) -> tuple[I64, I64]:
    """(last link before a turn, first link after it)."""
    links = _merged(chain, group)
    turn = chain.thread[links[1:]] != chain.thread[links[:-1]]
    return links[:-1][turn], links[1:][turn]


def _turns(chain: Chain, group: Sequence[int], waiting: np.ndarray) -> EdgeBlock:
    """Edges at every turn; marks the links whose own gap was waiting, not work."""
    before, after = _turn_positions(chain, group)
    waiting[after] = True
    # The first burst of a thread has its begin before it: work that precedes the first turn stays.
    return edges(
        EdgeType.HANDOVER,
        chain.out_point[before],
        chain.in_point[after],
        scaled_ns=np.maximum(chain.in_ns[after] - chain.out_ns[before], 0),
        owner=1 + chain.thread[after],
    )
