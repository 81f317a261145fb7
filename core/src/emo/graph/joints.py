"""Communication as joint events: all ranks meet, pairs meet, or one side waits for the other.

Whatever a rank spends in a communication kernel beyond the joint's own time is waiting for
peers. It keeps the GPU busy, but it is no work: it must follow from the arrivals, never be
replayed as a duration. Where a peer is not in the trace, its lateness is unknown: the least
duration of the same operation stands for the wire time and the rest is a constant wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from emo.graph.collectives import SAME_END_NS, Match
from emo.graph.context import Context, EdgeBlock, edges
from emo.graph.marks import MarkSet
from emo.graph.model import Collective, EdgeType, PointKind
from emo.graph.nodes import number_rows
from emo.trace.classify import CollectiveOp
from emo.trace.model import I64, Kind


@dataclass(slots=True)
class JointSet:
    """Joint points (numbered after all others), their edges, and what ops keep of their own time.

    ``wire_ns`` (per node): -1 a plain op, -2 an op whose end follows from edges of a joint,
    else the wire time of a collective with absent peers. ``peer_wait_point``/``peer_wait_ns``
    are the constant waits.
    """

    blocks: list[EdgeBlock]
    wire_ns: I64
    peer_wait_point: I64
    peer_wait_ns: I64
    time_ns: I64
    kind: I64
    node: I64
    collectives: list[Collective]

    def numbered(self, position: I64) -> list[Collective]:
        """The collectives with their points in the final numbering."""
        return [
            replace(c, start_point=int(position[c.start_point]), end_point=int(position[c.end_point]))
            for c in self.collectives
        ]


@dataclass(slots=True)
class _Builder:
    context: Context
    first_point: int
    wire_ns: I64
    least_ns: I64  # per node: least duration of the same operation
    src: dict[EdgeType, list[int]] = field(default_factory=dict)
    dst: dict[EdgeType, list[int]] = field(default_factory=dict)
    scaled: dict[EdgeType, list[int]] = field(default_factory=dict)
    owner: dict[EdgeType, list[int]] = field(default_factory=dict)
    time_ns: list[int] = field(default_factory=list)
    kind: list[int] = field(default_factory=list)
    node: list[int] = field(default_factory=list)
    peer_wait: dict[int, int] = field(default_factory=dict)
    collectives: list[Collective] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)  # ranks that have met others before

    def edge(self, type: EdgeType, src: int, dst: int, scaled_ns: int = 0, owner: int = 0) -> None:
        self.src.setdefault(type, []).append(src)
        self.dst.setdefault(type, []).append(dst)
        self.scaled.setdefault(type, []).append(scaled_ns)
        self.owner.setdefault(type, []).append(owner)

    def point(self, kind: PointKind, time_ns: int, joint: int) -> int:
        self.kind.append(kind)
        self.time_ns.append(time_ns)
        self.node.append(joint)
        return self.first_point + len(self.kind) - 1

    def rank_of(self, node: int) -> int:
        trace = int(self.context.table.nodes.trace[node])
        rank = self.context.traces[trace].rank
        return rank if rank >= 0 else trace

    def blocks(self) -> list[EdgeBlock]:
        return [
            edges(
                type,
                np.array(self.src[type], np.int64),
                np.array(self.dst[type], np.int64),
                scaled_ns=np.array(self.scaled[type], np.int64),
                owner=np.array(self.owner[type], np.int64),
            )
            for type in self.src
        ]


def make_joints(
    context: Context, matches: Sequence[Match], marks: MarkSet, without: Iterable[EdgeType]
) -> JointSet:
    """Turn matches into joints; collectives without a match get the least wire time of their kind."""
    table = context.table
    skip = frozenset(without)
    first = 2 * len(table.nodes) + 2 * len(table.threads) + len(marks.point)
    builder = _Builder(context, first, np.full(len(table.nodes), -1, np.int64), _least_durations(context))
    communicating = np.flatnonzero(np.isin(table.nodes.kind, (Kind.COLLECTIVE, Kind.P2P)))
    where = zip(
        table.nodes.trace[communicating].tolist(), table.nodes.row[communicating].tolist(), strict=True
    )
    node_of = dict(zip(where, communicating.tolist(), strict=True))
    for match in matches:
        members = [node_of[m.trace, m.row] for m in match.members if (m.trace, m.row) in node_of]
        if len(members) < 2 or _type_of(match) in skip:
            continue
        if match.op in (CollectiveOp.BROADCAST, CollectiveOp.REDUCE):
            _rooted(builder, match, members)
        else:
            _all_wait(builder, match, members)
    _absent_peers(builder)
    _note_findings(builder)
    points = sorted(builder.peer_wait)
    return JointSet(
        blocks=builder.blocks(),
        wire_ns=builder.wire_ns,
        peer_wait_point=np.array(points, np.int64),
        peer_wait_ns=np.array([builder.peer_wait[point] for point in points], np.int64),
        time_ns=np.array(builder.time_ns, np.int64),
        kind=np.array(builder.kind, np.int64),
        node=np.array(builder.node, np.int64),
        collectives=builder.collectives,
    )


def _note_findings(builder: _Builder) -> None:
    report = builder.context.report
    if report.large_residuals:
        report.findings.append(
            f"{report.large_residuals} collectives end more than {SAME_END_NS // 1000} us apart on their ranks: "
            "some ranks are slow to leave them, or their clocks drift"
        )
    if report.collectives_unmatched:
        report.findings.append(
            f"{report.collectives_unmatched} collectives end on some rank before the last rank arrives: "
            "they are taken as not the same operation"
        )


def _type_of(match: Match) -> EdgeType:
    if match.op in (CollectiveOp.BROADCAST, CollectiveOp.REDUCE):
        return EdgeType.ROOTED
    return (
        EdgeType.P2P
        if match.op == CollectiveOp.SEND_RECV and len(match.members) == 2
        else EdgeType.COLLECTIVE
    )


def _all_wait(builder: _Builder, match: Match, members: list[int]) -> None:
    """Every participant waits for every other: one start, one end, and each rank's residual."""
    nodes, context = builder.context.table.nodes, builder.context
    starts = nodes.start_ns[members]
    ends = nodes.end_ns[members]
    arrived, done = int(starts.max()), int(ends.min())
    if done < arrived:
        # Some rank was through before the last one came: not the same operation, or clocks are off.
        context.report.collectives_unmatched += 1
        return
    if int(ends.max()) - done > SAME_END_NS:
        context.report.large_residuals += 1
    type = _type_of(match)
    joint = len(builder.collectives)
    owner = 1 + len(context.table.threads) + len(nodes) + joint
    start = builder.point(PointKind.JOINT_START, arrived, joint)
    end = builder.point(PointKind.JOINT_END, done, joint)
    absent = match.size > len(members)
    wire = done - arrived
    if absent:
        wire = min(wire, int(builder.least_ns[members].min()))
    builder.edge(type, start, end, wire, owner)
    if absent:
        builder.peer_wait[end] = done - arrived - wire
    for node in members:
        builder.wire_ns[node] = -2
        builder.edge(type, 2 * node, start)
        builder.edge(type, end, 2 * node + 1, int(nodes.end_ns[node]) - done, owner)
    _report(builder, match, members, start, end, wire, arrived, done, rooted=False)


def _rooted(builder: _Builder, match: Match, members: list[int]) -> None:
    """Broadcast: receivers wait for the root. Reduce: the root waits for the others.

    Traces do not name the root. In a broadcast it is through first, since it has only to send (and it
    began before any other ended); in a reduce it ends last.
    """
    nodes, context = builder.context.table.nodes, builder.context
    starts, ends = nodes.start_ns[members], nodes.end_ns[members]
    joint = len(builder.collectives)
    if match.op == CollectiveOp.BROADCAST:
        eligible = [i for i in range(len(members)) if starts[i] <= ends.min()]
        root = min(eligible, key=lambda i: (int(ends[i]), -int(starts[i])))
        waiting = [i for i in range(len(members)) if i != root]
        sources = {i: [root, i] for i in waiting}
        arrived = int(starts[root])
    else:
        root = int(np.argmax(ends))
        waiting = [root]
        sources = {root: list(range(len(members)))}
        arrived = int(starts.max())
    if any(int(ends[i]) < max(int(starts[j]) for j in sources[i]) for i in waiting):
        context.report.collectives_unmatched += 1
        return
    for i in waiting:
        node = members[i]
        ready = max(int(starts[j]) for j in sources[i])
        builder.wire_ns[node] = -2
        for j in sources[i]:
            owner = 1 + len(context.table.threads) + node
            builder.edge(EdgeType.ROOTED, 2 * members[j], 2 * node + 1, int(ends[i]) - ready, owner)
    wire = min(int(ends[i]) - max(int(starts[j]) for j in sources[i]) for i in waiting)
    start = builder.point(PointKind.JOINT_START, arrived, joint)
    builder.edge(
        EdgeType.ROOTED,
        2 * members[root if match.op == CollectiveOp.BROADCAST else int(np.argmax(starts))],
        start,
    )
    end = builder.point(PointKind.JOINT_END, int(ends.max()), joint)
    for node in members:
        builder.edge(EdgeType.ROOTED, 2 * node + 1, end)
    waits = {members[i]: max(0, max(int(starts[j]) for j in sources[i]) - int(starts[i])) for i in waiting}
    _report(builder, match, members, start, end, wire, arrived, int(ends.min()), rooted=True, waits=waits)


def _report(
    builder: _Builder,
    match: Match,
    members: list[int],
    start: int,
    end: int,
    wire_ns: int,
    arrived_ns: int,
    done_ns: int,
    *,
    rooted: bool,
    waits: dict[int, int] | None = None,
) -> None:
    nodes = builder.context.table.nodes
    ranks = {node: builder.rank_of(node) for node in members}
    if waits is None:
        waits = {node: arrived_ns - int(nodes.start_ns[node]) for node in members}
    # The first meeting of a rank carries whatever differed when the capture opened.
    edge = any(rank not in builder.seen for rank in ranks.values())
    builder.seen.update(ranks.values())
    builder.collectives.append(
        Collective(
            index=len(builder.collectives),
            name=match.name,
            nodes=tuple(members),
            waiting=tuple(waits),
            start_point=start,
            end_point=end,
            wire_ns=wire_ns,
            wait_ns_by_rank={ranks[node]: waits.get(node, 0) for node in members},
            residual_ns_by_rank={ranks[node]: int(nodes.end_ns[node]) - done_ns for node in members},
            edge=edge,
            rooted=rooted,
        )
    )


def _least_durations(context: Context) -> I64:
    """Per node (N): the least duration of the same operation (name and size) on its rank; 0 for others."""
    nodes = context.table.nodes
    result = np.zeros(len(nodes), np.int64)
    rows = np.flatnonzero(np.isin(nodes.kind, (Kind.COLLECTIVE, Kind.P2P)))
    if len(rows) == 0:
        return result
    name = np.empty(len(rows), np.int64)
    for index, trace in enumerate(context.traces):
        mine = nodes.trace[rows] == index
        name[mine] = trace.ops.name_id[nodes.row[rows[mine]]]
    alike, classes = number_rows([nodes.trace[rows].astype(np.int64), name, context.bytes[rows]])
    least = np.full(len(classes), np.iinfo(np.int64).max)
    np.minimum.at(least, alike, (nodes.end_ns - nodes.start_ns)[rows])
    result[rows] = least[alike]
    return result


def _absent_peers(builder: _Builder) -> None:
    """Collectives of which only one rank is known: the least of their kind is work, the rest waiting."""
    nodes = builder.context.table.nodes
    rows = np.flatnonzero(np.isin(nodes.kind, (Kind.COLLECTIVE, Kind.P2P)) & (builder.wire_ns == -1))
    wire = builder.least_ns[rows]
    builder.wire_ns[rows] = wire
    wait = (nodes.end_ns - nodes.start_ns)[rows] - wire
    builder.peer_wait.update(zip((2 * rows + 1).tolist(), wait.tolist(), strict=True))
