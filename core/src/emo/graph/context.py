"""What every edge rule works on: nodes, points, and fast look-ups in launch order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from emo.graph.model import Bool, BuildReport, EdgeType
from emo.graph.nodes import NodeTable
from emo.trace.model import GPU_KINDS, I32, I64, SyncInfo, Trace

# Integer-microsecond traces round every instant: two that touch may look 1 us apart.
CLOCK_STEP_NS = 1_000


@dataclass(frozen=True, slots=True)
class EdgeBlock:
    """Edges of one type. Arrays of equal length; see :class:`emo.graph.model.Graph`."""

    type: EdgeType
    src: I64
    dst: I64
    lag_ns: I64
    scaled_ns: I64
    owner: I64

    def __len__(self) -> int:
        return len(self.src)

    def only(self, keep: Bool) -> EdgeBlock:
        """The edges for which ``keep`` is true."""
        return EdgeBlock(
            self.type,
            self.src[keep],
            self.dst[keep],
            self.lag_ns[keep],
            self.scaled_ns[keep],
            self.owner[keep],
        )


def edges(
    type: EdgeType,
    src: I64,
    dst: I64,
    *,
    lag_ns: I64 | int = 0,
    scaled_ns: I64 | int = 0,
    owner: I64 | int = 0,
) -> EdgeBlock:
    """An :class:`EdgeBlock` whose weights may be given as one number for all."""
    count = len(src)
    return EdgeBlock(
        type,
        np.asarray(src, np.int64),
        np.asarray(dst, np.int64),
        np.broadcast_to(np.asarray(lag_ns, np.int64), (count,)),
        np.broadcast_to(np.asarray(scaled_ns, np.int64), (count,)),
        np.broadcast_to(np.asarray(owner, np.int64), (count,)),
    )


class Launched:
    """GPU ops in launch order, for "the last op launched on ... before ..." questions.

    All queries are vectorised: arrays in, node numbers out, -1 where there is none.
    """

    def __init__(self, table: NodeTable, flow_of_thread: I64) -> None:
        nodes = table.nodes
        self._size = np.int64(len(nodes) + 1)
        ops = np.flatnonzero(np.isin(nodes.kind, GPU_KINDS))
        self.ops = ops[np.argsort(nodes.sequence[ops])]
        self.ops_sequence = nodes.sequence[self.ops]
        self._by_stream, self._by_stream_keys = self._grouped(nodes.stream, nodes.sequence)
        launcher = nodes.launch[self.ops]
        thread = np.where(launcher >= 0, nodes.thread[np.maximum(launcher, 0)], -1)
        self._by_thread, self._by_thread_keys = self._grouped_values(self.ops, thread, nodes.sequence)
        self._by_flow, self._by_flow_keys = self._grouped_values(
            self.ops, flow_of_thread[thread], nodes.sequence
        )

    def _grouped(self, group: I32, sequence: I64) -> tuple[I64, I64]:
        return self._grouped_values(self.ops, group[self.ops], sequence)

    def _grouped_values(self, ops: I64, group: I32 | I64, sequence: I64) -> tuple[I64, I64]:
        keys = group.astype(np.int64) * self._size + sequence[ops]
        order = np.argsort(keys)
        return ops[order], keys[order]

    def _lookup(self, members: I64, keys: I64, group: I64, sequence: I64, *, after: bool) -> I64:
        if len(members) == 0:
            return np.full(len(group), -1, np.int64)
        wanted = group.astype(np.int64) * self._size + sequence
        at = np.searchsorted(keys, wanted, side="right" if after else "left") - (0 if after else 1)
        inside = (at >= 0) & (at < len(members))
        at = np.clip(at, 0, len(members) - 1)
        same = inside & (keys[at] // self._size == group)
        return np.where(same, members[at], -1)

    def last_on_stream(self, stream: I64, sequence: I64) -> I64:
        """Last op launched on ``stream`` before ``sequence``."""
        return self._lookup(self._by_stream, self._by_stream_keys, stream, sequence, after=False)

    def first_on_stream(self, stream: I64, sequence: I64) -> I64:
        """First op launched on ``stream`` after ``sequence``."""
        return self._lookup(self._by_stream, self._by_stream_keys, stream, sequence, after=True)

    def last_by_thread(self, thread: I64, sequence: I64) -> I64:
        """Last op that ``thread`` launched before ``sequence``."""
        return self._lookup(self._by_thread, self._by_thread_keys, thread, sequence, after=False)

    def next_in_flow(self, flow: I64, sequence: I64) -> I64:
        """Next op launched after ``sequence`` by any thread of the same flow of control."""
        return self._lookup(self._by_flow, self._by_flow_keys, flow, sequence, after=True)


@dataclass(slots=True)
class Context:
    """Shared by the rules. Points: 2k and 2k+1 are start and end of node k; then threads, marks, joints."""

    traces: Sequence[Trace]
    table: NodeTable
    launched: Launched
    report: BuildReport
    sync_correlation: I64  # per node, from the traces
    sync_stream: I64  # per node: global stream number, -1 unknown or all
    own_stream: I64  # per API node: global stream number where a record names it, -1 otherwise
    names_stream: Bool  # per API node: a record names a stream, though maybe one on which nothing ran
    correlation: I64  # per node
    bytes: I64  # per node
    flow: I64  # per node: number of the flow of control (threads that hand over to each other share one)
    on_gpu: Bool
    recorded: Bool  # per node: its trace has synchronisation records
    queue_depth: int
    blocked_until_ns: I64 = field(
        init=False
    )  # per node: when the last GPU op that a call waits for let it go

    def __post_init__(self) -> None:
        self.blocked_until_ns = np.full(len(self.table.nodes), -(2**62), np.int64)

    def start_of(self, node: I64) -> I64:
        """Start point of a node."""
        return 2 * node

    def end_of(self, node: I64) -> I64:
        """End point of a node."""
        return 2 * node + 1

    def thread_owner(self, thread: I64) -> I64:
        """Scale-vector index of a thread's CPU work."""
        return 1 + thread.astype(np.int64)

    def node_owner(self, node: I64) -> I64:
        """Scale-vector index of a node's duration."""
        return 1 + len(self.table.threads) + node.astype(np.int64)

    def calls(self, *classes: int) -> I64:
        """API nodes of the given classes."""
        return np.flatnonzero(np.isin(self.table.nodes.api_class, classes) & ~self.on_gpu)


def make_context(
    traces: Sequence[Trace],
    table: NodeTable,
    report: BuildReport,
    queue_depth: int,
    turns: Sequence[Sequence[int]],
) -> Context:
    """Gather per-node columns from the traces. ``turns``: groups of threads that hand over to each other."""
    nodes = table.nodes
    stream_number = {key: number for number, key in enumerate(table.streams)}
    gathered: dict[str, list[np.ndarray]] = {"sync_correlation": [], "sync_stream": [], "own_stream": []}
    gathered |= {"correlation": [], "bytes": [], "recorded": [], "names_stream": []}
    for index, trace in enumerate(traces):
        rows = nodes.row[nodes.trace == index]
        ops = trace.ops
        # A record names the stream by its number on the device; a process drives one device, or
        # the numbers differ between devices, so the first match is the stream.
        numbers: dict[int, int] = {}
        for (owner, _, stream), number in stream_number.items():
            if owner == index:
                numbers.setdefault(stream, number)

        def to_number(column: I32, numbers: dict[int, int] = numbers) -> I64:
            values, inverse = np.unique(column, return_inverse=True)
            table_ = np.array([numbers.get(int(value), -1) for value in values], np.int64)
            return table_[inverse]

        gathered["sync_correlation"].append(ops.sync_correlation[rows])
        gathered["sync_stream"].append(to_number(ops.sync_stream[rows]))
        gathered["own_stream"].append(to_number(ops.stream[rows]))
        gathered["names_stream"].append((ops.stream[rows] >= 0) | (ops.sync_stream[rows] >= 0))
        gathered["correlation"].append(ops.correlation[rows])
        gathered["bytes"].append(ops.bytes[rows])
        has_records = trace.quality.sync_info == SyncInfo.RECORDED
        gathered["recorded"].append(np.full(len(rows), has_records, bool))
    column = {name: np.concatenate(parts) for name, parts in gathered.items()}
    flow_of_thread = np.arange(len(table.threads) + 1, dtype=np.int64)
    flow_of_thread[-1] = -1  # what index -1, "no thread", finds
    for group in turns:
        flow_of_thread[list(group)] = min(group)
    return Context(
        traces=traces,
        table=table,
        launched=Launched(table, flow_of_thread),
        report=report,
        sync_correlation=column["sync_correlation"],
        sync_stream=column["sync_stream"],
        own_stream=column["own_stream"],
        names_stream=column["names_stream"],
        correlation=column["correlation"],
        bytes=column["bytes"],
        flow=flow_of_thread[nodes.thread],
        on_gpu=np.isin(nodes.kind, GPU_KINDS),
        recorded=column["recorded"],
        queue_depth=queue_depth,
    )
