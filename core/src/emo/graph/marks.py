"""Where iterations begin and end: marks on the CPU thread that drives the steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from emo.graph.collectives import ClockMap
from emo.graph.context import Context
from emo.graph.model import Iterations
from emo.graph.nodes import NodeTable
from emo.trace.columns import distinct
from emo.trace.model import I64, Kind, Trace


@dataclass(frozen=True, slots=True)
class MarkSet:
    """Marks of all traces: the start of the first iteration, then the end of each. Arrays of length K.

    ``index`` is -1 for the start of the first iteration and i for the end of iteration i.
    """

    trace: I64
    thread: I64
    point: I64
    time_ns: I64
    index: I64
    count: int  # iterations that every trace with marks has
    source: str
    start_ns: I64  # (count) of the first trace with marks
    end_ns: I64


def make_marks(traces: Sequence[Trace], clocks: Sequence[ClockMap], table: NodeTable) -> MarkSet:
    """Number one mark point per boundary; times are on the graph's clock."""
    marked = [i for i, trace in enumerate(traces) if trace.iterations]
    count = min((len(traces[i].iterations) for i in marked), default=0)
    base = 2 * len(table.nodes) + 2 * len(table.threads)
    rows: list[tuple[int, int, int, int]] = []
    for i in marked:
        if not traces[i].threads:
            continue  # GPU records only: there is no CPU timeline to put a mark on
        iterations = traces[i].iterations[:count]
        thread = table.threads.index((i, _marking_thread(traces[i])))
        boundaries = [iterations[0].start_ns, *(iteration.end_ns for iteration in iterations)]
        rows += [
            (i, thread, clocks[i].apply_one(t) - table.origin_ns, index - 1)
            for index, t in enumerate(boundaries)
        ]
    trace, thread_number, time, index = (np.array([row[c] for row in rows], np.int64) for c in range(4))
    first = [
        (clocks[i].apply_one(it.start_ns) - table.origin_ns, clocks[i].apply_one(it.end_ns) - table.origin_ns)
        for i in marked[:1]
        for it in traces[i].iterations[:count]
    ]
    start, end = (np.array([pair[c] for pair in first], np.int64) for c in range(2))
    return MarkSet(
        trace=trace,
        thread=thread_number,
        point=base + np.arange(len(rows)),
        time_ns=_after_calls(table, thread_number, time),
        index=index,
        count=count,
        source=traces[marked[0]].iteration_source if marked else "none",
        start_ns=start,
        end_ns=end,
    )


def _marking_thread(trace: Trace) -> int:
    """The thread that carries the iterations' annotations, else the one that launches most."""
    ops = trace.ops
    wanted = trace.iterations[0]
    annotations = np.flatnonzero(
        (ops.kind == Kind.ANNOTATION) & ((ops.end_ns == wanted.end_ns) | (ops.start_ns == wanted.start_ns))
    )
    for row in annotations.tolist():
        if trace.names[ops.name_id[row]] == wanted.name and ops.thread[row] >= 0:
            return int(ops.thread[row])
    calls = ops.thread[(ops.thread >= 0) & (ops.kind == Kind.CPU_CALL)]
    return int(np.bincount(calls).argmax()) if len(calls) else 0


def _after_calls(table: NodeTable, thread: I64, time: I64) -> I64:
    """A mark inside a call (a range closed by the call's own wrapper) is moved to the call's end."""
    nodes = table.nodes
    moved = time.copy()
    for number in distinct(thread).tolist():
        calls = np.flatnonzero(nodes.thread == number)
        if len(calls) == 0:
            continue
        calls = calls[np.argsort(nodes.start_ns[calls], kind="stable")]
        mine = np.flatnonzero(thread == number)
        # A call that starts at the very instant of the mark comes after it.
        at = np.searchsorted(nodes.start_ns[calls], time[mine], side="left") - 1
        inside = at >= 0
        moved[mine] = np.where(
            inside, np.maximum(time[mine], nodes.end_ns[calls[np.maximum(at, 0)]]), time[mine]
        )
    return moved


def node_iterations(table: NodeTable, marks: MarkSet) -> np.ndarray:
    """Iteration of every node: that of its call; -1 before the first mark, ``count`` after the last.

    Work that is still queued when an iteration ends was launched in it and is listed under it;
    its time falls into the next one.
    """
    nodes = table.nodes
    called = np.where(nodes.launch >= 0, nodes.launch, np.arange(len(nodes)))
    at = nodes.start_ns[called]
    result = np.full(len(nodes), -1, np.int32)
    without_marks = np.r_[marks.start_ns[:1], marks.end_ns]
    for trace in distinct(nodes.trace).tolist():
        own = marks.time_ns[marks.trace == trace]
        boundaries = own if len(own) else without_marks
        if len(boundaries) == 0:
            continue
        mine = nodes.trace == trace
        result[mine] = np.searchsorted(boundaries, at[mine], side="right") - 1
    return result


def to_iterations(context: Context, marks: MarkSet, position: I64) -> Iterations:
    """Marks as :class:`Iterations`, with points in their final numbering."""
    ends = np.full((len(context.traces), marks.count), -1, np.int32)
    is_end = marks.index >= 0
    ends[marks.trace[is_end], marks.index[is_end]] = position[marks.point[is_end]]
    return Iterations(
        start_ns=marks.start_ns,
        end_ns=marks.end_ns,
        end_points=ends,
        node_iteration=node_iterations(context.table, marks),
        source=marks.source,
    )
