"""Which rows of the traces become nodes of the graph, and how they hang together.

API calls that launch, copy, wait or record become nodes, and so does every GPU op.
Everything else that a CPU thread does (framework ops, attribute queries, unsuccessful
event polls) is time between two nodes: a lag.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from emo.graph.collectives import ClockMap
from emo.graph.model import Bool, Nodes
from emo.trace.classify import ApiClass, classify_names
from emo.trace.model import GPU_KINDS, I32, I64, Kind, Trace

# Calls that order something. ALLOC and FREE may wait for the GPU; a poll counts only where a
# record proves that it succeeded.
_NODE_CLASSES = (
    ApiClass.LAUNCH,
    ApiClass.GRAPH_LAUNCH,
    ApiClass.MEMCPY,
    ApiClass.MEMCPY_ASYNC,
    ApiClass.MEMSET,
    ApiClass.MEMSET_ASYNC,
    ApiClass.SYNC_DEVICE,
    ApiClass.SYNC_STREAM,
    ApiClass.SYNC_EVENT,
    ApiClass.EVENT_RECORD,
    ApiClass.STREAM_WAIT_EVENT,
    ApiClass.HOST_FUNC,
    ApiClass.ALLOC,
    ApiClass.FREE,
)


@dataclass(frozen=True, slots=True)
class NodeTable:
    """The nodes, and the numbering of GPUs, streams and threads over all traces."""

    nodes: Nodes
    gpus: tuple[tuple[int, int], ...]
    streams: tuple[tuple[int, int, int], ...]
    threads: tuple[tuple[int, int], ...]
    origin_ns: int
    thread_begin_ns: I64  # per thread, relative to the origin
    thread_end_ns: I64


def number_rows(columns: Sequence[I64]) -> tuple[I32, list[tuple[int, ...]]]:
    """Number the distinct rows of equally long columns; returns (number per row, the rows)."""
    if len(columns[0]) == 0:
        return np.zeros(0, np.int32), []
    stacked = np.stack([np.asarray(column, np.int64) for column in columns], axis=1)
    # A stable sort by the last column first is several times faster than np.unique(axis=0).
    order = np.lexsort(stacked.T[::-1])
    ordered = stacked[order]
    new = np.empty(len(ordered), bool)
    new[0] = True
    np.any(ordered[1:] != ordered[:-1], axis=1, out=new[1:])
    number = np.empty(len(ordered), np.int32)
    number[order] = np.cumsum(new) - 1
    return number, [tuple(row) for row in ordered[new].tolist()]


def _is_node(trace: Trace, api_class: np.ndarray) -> Bool:
    kind = trace.ops.kind
    on_gpu = np.isin(kind, GPU_KINDS)
    orders = np.isin(api_class, _NODE_CLASSES) & (kind != Kind.ANNOTATION)
    proven_poll = (api_class == ApiClass.EVENT_QUERY) & (trace.ops.sync_correlation >= 0)
    result: Bool = on_gpu | ((orders | proven_poll) & (trace.ops.thread >= 0) & ~on_gpu)
    return result


def _launch_of(correlation: I64, is_gpu: Bool, launches: Bool) -> I64:
    """For every row the row of the launching call with the same correlation, or -1."""
    result = np.full(len(correlation), -1, np.int64)
    callers = np.flatnonzero(launches & (correlation >= 0))
    wanted = np.flatnonzero(is_gpu & (correlation >= 0))
    if len(callers) == 0 or len(wanted) == 0:
        return result
    order = np.argsort(correlation[callers], kind="stable")
    keys = correlation[callers][order]
    at = np.searchsorted(keys, correlation[wanted])
    at_safe = np.minimum(at, len(keys) - 1)
    found = keys[at_safe] == correlation[wanted]
    result[wanted[found]] = callers[order[at_safe[found]]]
    return result


def build_nodes(traces: Sequence[Trace], clocks: Sequence[ClockMap]) -> NodeTable:
    """Collect the nodes of all traces on one clock (``clocks[t]`` maps the times of trace t)."""
    columns: list[dict[str, np.ndarray]] = []
    # Threads may have been seen before the first kept record (inside an open annotation).
    origin = min(
        clock.apply_one(min([trace.window_start_ns, *(thread.first_ns for thread in trace.threads)]))
        for trace, clock in zip(traces, clocks, strict=True)
    )
    base = 0
    for index, (trace, clock) in enumerate(zip(traces, clocks, strict=True)):
        classes = classify_names(trace.names)
        ops = trace.ops
        api_class = classes.api_class[ops.name_id]
        rows = np.flatnonzero(_is_node(trace, api_class))
        kind = ops.kind[rows]
        on_gpu = np.isin(kind, GPU_KINDS)
        launch = _launch_of(ops.correlation[rows], on_gpu, ~on_gpu)
        start = clock.apply(ops.start_ns[rows]) - origin
        end = clock.apply(ops.end_ns[rows]) - origin
        linked = launch >= 0
        # Clocks with microsecond steps can show a kernel just before its launch.
        start[linked] = np.maximum(start[linked], start[launch[linked]])
        end = np.maximum(end, start)
        columns.append(
            {
                "kind": kind,
                "api_class": np.where(on_gpu, np.int8(ApiClass.OTHER), api_class[rows]),
                "collective_op": classes.collective_op[ops.name_id[rows]],
                "start_ns": start,
                "end_ns": end,
                "trace": np.full(len(rows), index, np.int32),
                "row": rows.astype(np.int32),
                "device": np.where(on_gpu, ops.device[rows], -1),
                "on_stream": np.where(on_gpu, ops.stream[rows], -1),
                "on_thread": np.where(on_gpu, -1, ops.thread[rows]),
                "launch": np.where(linked, launch + base, -1),
            }
        )
        base += len(rows)
    joined = {name: np.concatenate([column[name] for column in columns]) for name in columns[0]}
    on_gpu = np.isin(joined["kind"], GPU_KINDS)

    gpu = np.full(base, -1, np.int32)
    stream = np.full(base, -1, np.int32)
    gpu[on_gpu], gpus = number_rows([joined["trace"][on_gpu], joined["device"][on_gpu]])
    stream[on_gpu], streams = number_rows([joined[c][on_gpu] for c in ("trace", "device", "on_stream")])
    threads = [(index, thread) for index, trace in enumerate(traces) for thread in range(len(trace.threads))]
    first_thread = np.cumsum([0, *(len(trace.threads) for trace in traces)])
    thread = np.where(on_gpu, -1, first_thread[joined["trace"]] + joined["on_thread"]).astype(np.int32)

    begin = [clocks[t].apply_one(traces[t].threads[i].first_ns) - origin for t, i in threads]
    finish = [clocks[t].apply_one(traces[t].threads[i].last_ns) - origin for t, i in threads]
    nodes = Nodes(
        kind=joined["kind"],
        api_class=joined["api_class"].astype(np.int8),
        collective_op=joined["collective_op"].astype(np.int8),
        start_ns=joined["start_ns"],
        end_ns=joined["end_ns"],
        trace=joined["trace"],
        row=joined["row"],
        gpu=gpu,
        stream=stream,
        thread=thread,
        launch=joined["launch"].astype(np.int32),
        sequence=_sequence(joined["start_ns"], joined["launch"], on_gpu),
    )
    return NodeTable(
        nodes=nodes,
        gpus=tuple((t, d) for t, d in gpus),
        streams=tuple((t, d, s) for t, d, s in streams),
        threads=tuple(threads),
        origin_ns=origin,
        thread_begin_ns=np.array(begin, np.int64),
        thread_end_ns=np.array(finish, np.int64),
    )


def _sequence(start_ns: I64, launch: I64, on_gpu: Bool) -> I64:
    """Position of every node in launch order: API calls by start, GPU ops by their launch.

    A GPU op without a launch counts as launched when it started.
    """
    count = len(start_ns)
    effective = start_ns.copy()
    linked = launch >= 0
    effective[linked] = start_ns[launch[linked]]
    # Ties: the call itself first, then its GPU ops in the order in which they ran.
    order = np.lexsort((np.arange(count), start_ns, on_gpu, effective))
    sequence = np.empty(count, np.int64)
    sequence[order] = np.arange(count)
    return sequence
