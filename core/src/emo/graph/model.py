"""The dependency graph as arrays.

A graph is made of *points*, instants at which something can happen: an op's start,
its end, a mark on a CPU thread, the moment the last rank arrives at a collective.
An *edge* says that its head happens no earlier than its tail plus a weight

    lag + scaled * scale[owner]

where ``lag`` is constant under what-if and ``scaled`` stretches with its owner: an op
on a GPU, or the CPU work of a thread. What no edge explains of a point's recorded time
is the point's own ``unexplained_ns``, so that the recorded run is reproduced exactly.

Points are numbered in a topological order, edges are grouped by head (CSR).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from emo.trace.model import I8, I32, I64

if TYPE_CHECKING:
    import networkx as nx

    from emo.trace.model import Trace

F64 = NDArray[np.float64]
Bool = NDArray[np.bool_]


class EdgeType(IntEnum):
    """The rule that an edge comes from. All but OP and PROGRAM can be left out (``build_graph(without=...)``)."""

    OP = 0  # an op's or a call's start -> its end
    PROGRAM = 1  # CPU program order on one thread; the gap is CPU work
    LAUNCH = 2  # launch -> kernel, start to start
    STREAM = 3  # one stream runs its ops in order
    EVENT = 4  # event record -> wait -> next op on the waiting stream, recorded
    EVENT_INFERRED = 5  # the same, from patterns of streams
    SYNC = 6  # GPU op -> stream, device or event synchronise, recorded
    SYNC_INFERRED = 7  # the same, where no record names the stream
    BLOCKING_COPY = 8  # a copy that returns only when the data has moved
    IMPLICIT_SYNC = 9  # malloc and free that wait for the GPU
    HOST_FUNCTION = 10  # a host function between two ops of a stream
    POLL = 11  # a successful event query
    GRAPH_ORDER = 12  # order of CUDA-graph nodes across streams
    HANDOVER = 13  # one thread waits while another works
    BACK_PRESSURE = 14  # the launch queue is full
    COLLECTIVE = 15  # all ranks meet
    P2P = 16  # a send and its receive
    ROOTED = 17  # broadcast and reduce: one side waits for the other
    CONTENTION = 18  # a kernel on another stream filled the GPU


# Rules that rest on what seems to be, not on a record or a documented guarantee: a plan must hold with
# and without them. HANDOVER needs the record of an autograd engine, or many turns, and BLOCKING_COPY and
# BACK_PRESSURE are how the runtime works, so these stay.
INFERRED_TYPES = frozenset(
    {
        EdgeType.EVENT_INFERRED,
        EdgeType.SYNC_INFERRED,
        EdgeType.GRAPH_ORDER,
        EdgeType.HOST_FUNCTION,
        EdgeType.IMPLICIT_SYNC,
        EdgeType.CONTENTION,
    }
)


class PointKind(IntEnum):
    """What happens at a point."""

    START = 0
    END = 1
    THREAD_BEGIN = 2
    THREAD_END = 3
    MARK = 4  # boundary of an iteration, on the thread that carries the marks
    JOINT_START = 5  # the last participant of a collective has arrived
    JOINT_END = 6


NEVER = np.int64(-(2**62))  # "no release time": below every instant


@dataclass(frozen=True, slots=True)
class Nodes:
    """The ops that became nodes, from all traces. All arrays have length N.

    ``start_ns``/``end_ns`` are relative to the graph's origin, on the common clock of
    all ranks. ``gpu``, ``stream`` and ``thread`` number (trace, device),
    (trace, device, stream) and (trace, thread); -1 where it does not apply.
    ``launch`` is the node of the API call that launched a GPU op, or -1.
    ``sequence`` orders API calls by start (GPU ops: that of their launch, or of
    their own start).
    """

    kind: I8
    api_class: I8
    collective_op: I8
    start_ns: I64
    end_ns: I64
    trace: I32
    row: I32
    gpu: I32
    stream: I32
    thread: I32
    launch: I32
    sequence: I64

    def __len__(self) -> int:
        return len(self.kind)


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective (or a matched send/recv pair) that several ranks of the job take part in."""

    index: int
    name: str
    nodes: tuple[int, ...]  # one GPU op per participating rank
    waiting: tuple[int, ...]  # those of them that wait for others: all, unless rooted
    start_point: int  # JOINT_START
    end_point: int  # JOINT_END
    wire_ns: int
    wait_ns_by_rank: dict[int, int]  # keyed by rank: from its own start to the last arrival
    residual_ns_by_rank: dict[int, int]
    edge: bool  # its waits are cut by the capture's opening or closing: never slack
    rooted: bool


@dataclass(frozen=True, slots=True)
class Iterations:
    """Iterations of the job on the graph's clock, and where their marks sit.

    ``start_ns``/``end_ns`` have length k. ``end_points`` has shape (ranks, k): the MARK
    point of each rank at the end of each iteration, -1 where a rank has none.
    """

    start_ns: I64
    end_ns: I64
    end_points: I32
    node_iteration: I32  # per node; -1 before the first, k after the last
    source: str

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(slots=True)
class BuildReport:
    """What the rules found, kept and dropped. Counts only; nothing here changes the graph."""

    edges_by_type: dict[str, int] = field(default_factory=dict)
    violated_by_type: dict[str, int] = field(default_factory=dict)  # edges that the run contradicts: dropped
    inferred_patterns_kept: int = 0
    inferred_patterns_dropped: int = 0
    inferred_waits_dropped: int = 0
    cyclic_edges_dropped: int = 0
    queue_depth: int = 0
    max_outstanding_launches: int = 0
    clock_offsets_ns: dict[int, int] = field(default_factory=dict)  # per rank
    collectives_unmatched: int = 0
    large_residuals: int = 0  # collectives whose ranks end > 50 us apart
    findings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Graph:
    """Points (length P) in topological order, edges (length M) grouped by head.

    =====================  =======  =================================================
    point_kind             int8     :class:`PointKind`
    point_node             int32    node of a START or END; thread of a THREAD_*; joint
                                    of a JOINT_*; rank index of a MARK
    time_ns                int64    recorded time, relative to ``origin_ns``
    release_ns             int64    not before this instant; ``NEVER`` if edges decide
    peer_wait_ns           int64    part of a collective spent waiting for absent peers
    unexplained_ns         int64    what no edge explains of the recorded time
    row                    int64    (P + 1): in-edges of p are ``[row[p], row[p + 1])``
    src, dst, owner        int32    tail, head, index into the scale vector
    lag_ns, scaled_ns      int64    constant and scalable part of the weight
    edge_type              int8     :class:`EdgeType`
    start_point, end_point int32    (N) points of each node
    =====================  =======  =================================================

    The scale vector has :attr:`scale_size` entries: 0 is the constant 1, then one per
    thread, then one per node, then one per joint collective.
    """

    traces: tuple[Trace, ...]
    origin_ns: int
    nodes: Nodes
    point_kind: I8
    point_node: I32
    time_ns: I64
    release_ns: I64
    peer_wait_ns: I64
    unexplained_ns: I64
    row: I64
    src: I32
    dst: I32
    lag_ns: I64
    scaled_ns: I64
    owner: I32
    edge_type: I8
    start_point: I32
    end_point: I32
    gpus: tuple[tuple[int, int], ...]  # (trace, device)
    streams: tuple[tuple[int, int, int], ...]  # (trace, device, stream)
    threads: tuple[tuple[int, int], ...]  # (trace, thread)
    joints: tuple[Collective, ...]
    iterations: Iterations
    report: BuildReport

    @property
    def scale_size(self) -> int:
        """Length of the scale vector."""
        return 1 + len(self.threads) + len(self.nodes) + len(self.joints)

    def thread_owner(self, thread: int) -> int:
        """Index into the scale vector of a thread's CPU work."""
        return 1 + thread

    def node_owner(self, node: int) -> int:
        """Index into the scale vector of a node's duration."""
        return 1 + len(self.threads) + node

    @property
    def makespan_ns(self) -> int:
        """Recorded time from the window's opening to the last point."""
        return int(self.time_ns.max(initial=0))

    def rank_of(self, trace: int) -> int:
        """Rank of a trace: what the file says, else its position among the files."""
        rank = self.traces[trace].rank
        return rank if rank >= 0 else trace

    def to_networkx(self) -> nx.DiGraph[int]:
        """The points and edges as a networkx graph: for small graphs and for people."""
        import networkx as nx

        view: nx.DiGraph[int] = nx.DiGraph()
        for point, (kind, time) in enumerate(
            zip(self.point_kind.tolist(), self.time_ns.tolist(), strict=True)
        ):
            view.add_node(point, kind=PointKind(kind).name, time_ns=time, node=int(self.point_node[point]))
        for edge in range(len(self.src)):
            view.add_edge(
                int(self.src[edge]),
                int(self.dst[edge]),
                type=EdgeType(int(self.edge_type[edge])).name,
                weight_ns=int(self.lag_ns[edge] + self.scaled_ns[edge]),
            )
        return view
