"""Collectives across ranks: which ops belong together, and what that says about the clocks.

A collective is one event of the whole group: it begins when the last participant arrives
and lasts its wire time. What a rank spends in the kernel before that is waiting. Ranks are
traced by different processes, often on different hosts, so their clocks are first aligned:
in operations where every rank waits for every other, all ranks end together (within a few
microseconds), and that is what the alignment uses.
"""

from __future__ import annotations

import itertools
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from emo.graph.model import F64, BuildReport
from emo.trace.classify import CollectiveOp, classify_names
from emo.trace.columns import row_of
from emo.trace.model import I64, Kind, Trace

ROOTED_OPS = frozenset({CollectiveOp.BROADCAST, CollectiveOp.REDUCE})

# Ranks end an all-reduce within microseconds of each other; farther apart they were not in the
# same operation (or the clocks are off, which is a finding).
SAME_END_NS = 50_000

# A drift is only believed over a span in which it shows, and from enough collectives.
_DRIFT_MIN_SPAN_NS = 500_000_000
_DRIFT_MIN_MATCHES = 8
_DRIFT_MIN_EFFECT_NS = 2_000


@dataclass(frozen=True, slots=True)
class Member:
    """One rank's part in a collective: a row of its trace's ops."""

    trace: int
    row: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Match:
    """GPU ops of different ranks that are the same collective."""

    name: str
    op: CollectiveOp
    size: int  # of the group; -1 unknown
    members: tuple[Member, ...]
    point_to_point: bool = False
    trusted: bool = False  # the trace says so (group, peer); otherwise order does

    @property
    def aligns(self) -> bool:
        """Every participant waits for every other, so they end together."""
        return self.op not in ROOTED_OPS and not self.point_to_point


@dataclass(frozen=True, slots=True)
class ClockMap:
    """Maps the clock of one trace to the common clock."""

    offset_ns: int = 0
    drift: float = 0.0
    pivot_ns: int = 0

    def apply(self, time_ns: I64) -> I64:
        """Times on the common clock, int64, same shape."""
        aligned = time_ns - np.int64(self.offset_ns)
        if self.drift:
            aligned = aligned - np.rint((time_ns - self.pivot_ns) * self.drift).astype(np.int64)
        return aligned

    def apply_one(self, time_ns: int) -> int:
        """A single time on the common clock."""
        return time_ns - self.offset_ns - round((time_ns - self.pivot_ns) * self.drift)


@dataclass(frozen=True, slots=True)
class _Entry:
    """A communicating GPU op of one trace, with what is known of its identity."""

    member: Member
    op: CollectiveOp
    name: str
    group: str
    group_size: int
    sequence: int
    bytes: int
    point_to_point: bool
    # (sending rank, receiving rank) and the place among the calls of that pair, where annotations tell
    pair: tuple[int, int] | None
    place: int


# How PyTorch annotates point-to-point calls, seen from the rank that is traced.
_SEND_OR_RECEIVE = re.compile(r"^nccl:(send|recv) (\d+)\s*(?:->|<-)\s*(\d+)$")


def _pairs(trace: Trace, rows: I64) -> list[tuple[tuple[int, int] | None, int]]:
    """For point-to-point ops: who sends to whom, and how many calls of that pair came before.

    From the annotation around the launch. Annotations are counted, not ops: a profiler loses the first
    kernels of a session, but not the calls.
    """
    ops = trace.ops
    named: dict[int, tuple[int, int]] = {}
    for name_id, name in enumerate(trace.names):
        found = _SEND_OR_RECEIVE.match(name)
        if found:
            own, peer = int(found[2]), int(found[3])
            named[name_id] = (own, peer) if found[1] == "send" else (peer, own)
    if not named:
        return [(None, -1)] * len(rows)
    ranges = np.flatnonzero((ops.kind == Kind.ANNOTATION) & np.isin(ops.name_id, list(named)))
    calls = np.flatnonzero((ops.kind == Kind.CPU_CALL) & (ops.correlation >= 0))
    launch = row_of(ops.correlation[calls], calls, ops.correlation[rows])
    place: dict[int, int] = {}
    seen: Counter[tuple[int, int]] = Counter()
    for row in ranges.tolist():  # in order of time
        pair = named[int(ops.name_id[row])]
        place[row] = seen[pair]
        seen[pair] += 1
    result: list[tuple[tuple[int, int] | None, int]] = []
    for call in launch.tolist():
        around = ranges[
            (ops.thread[ranges] == ops.thread[call])
            & (ops.start_ns[ranges] <= ops.start_ns[call])
            & (ops.end_ns[ranges] >= ops.start_ns[call])
        ]
        if call >= 0 and len(around):
            row = int(around[-1])
            result.append((named[int(ops.name_id[row])], place[row]))
        else:
            result.append((None, -1))
    return result


def _entries(index: int, trace: Trace) -> list[_Entry]:
    ops = trace.ops
    rows = np.flatnonzero((ops.kind == Kind.COLLECTIVE) | (ops.kind == Kind.P2P))
    if len(rows) == 0:
        return []
    classes = classify_names(trace.names)
    point_to_point = ops.kind[rows] == Kind.P2P
    pairs = iter(_pairs(trace, rows[point_to_point]))
    found = []
    for row, is_pair in zip(rows.tolist(), point_to_point.tolist(), strict=True):
        pair, place = next(pairs) if is_pair else (None, -1)
        group_id = int(ops.collective_group[row])
        group = trace.groups[group_id] if 0 <= group_id < len(trace.groups) else None
        found.append(
            _Entry(
                member=Member(index, row, int(ops.start_ns[row]), int(ops.end_ns[row])),
                op=CollectiveOp(int(classes.collective_op[ops.name_id[row]])),
                name=trace.names[ops.name_id[row]],
                group=f"{group.name} {group.ranks}" if group else "",
                group_size=group.size if group else -1,
                sequence=int(ops.collective_seq[row]),
                bytes=int(ops.bytes[row]),
                point_to_point=is_pair,
                pair=pair,
                place=place,
            )
        )
    return found


def match_collectives(traces: Sequence[Trace]) -> list[Match]:
    """Find which ops of different traces are the same operation.

    Sends and receives by who sends to whom, where annotations tell. Collectives by (group, sequence
    number) where recorded; else by order and operation within the same group; else, without any
    group, by order among all communicating ops of the rank.
    Returns matches with at least two members.
    """
    if len(traces) < 2:
        return []
    by_key: dict[tuple[object, ...], list[_Entry]] = defaultdict(list)
    anonymous: dict[bool, dict[int, list[_Entry]]] = {False: {}, True: {}}
    for index, trace in enumerate(traces):
        ordinal: Counter[tuple[object, ...]] = Counter()
        for entry in _entries(index, trace):
            if entry.pair is not None:
                by_key["pair", entry.pair, entry.place].append(entry)
                continue
            if entry.group and (not entry.point_to_point or entry.group_size == 2):
                place = ("group", entry.group, entry.op)
                if entry.sequence >= 0:
                    by_key[(*place, "sequence", entry.sequence)].append(entry)
                    continue
            else:
                anonymous[entry.point_to_point].setdefault(index, []).append(entry)
                continue
            by_key[(*place, "ordinal", ordinal[place])].append(entry)
            ordinal[place] += 1
    matches = [_to_match(_one_per_trace(entries), trusted=True) for entries in by_key.values()]
    for by_trace in anonymous.values():
        matches += [_to_match(entries, trusted=False) for entries in _match_anonymous(by_trace)]
    return [match for match in matches if len(match.members) > 1]


def in_order_of_time(matches: Iterable[Match], maps: Sequence[ClockMap]) -> list[Match]:
    """Matches by their first arrival on the common clock, ties by the order of records.

    So neither skewed clocks nor the order of files decides.
    """

    def key(match: Match) -> tuple[int, list[tuple[int, int]]]:
        arrivals = (maps[member.trace].apply_one(member.start_ns) for member in match.members)
        return min(arrivals), [(member.trace, member.row) for member in match.members]

    return sorted(matches, key=key)


def _one_per_trace(entries: list[_Entry]) -> list[_Entry]:
    first: dict[int, _Entry] = {}
    for entry in entries:
        first.setdefault(entry.member.trace, entry)
    return [first[index] for index in sorted(first)]


def _to_match(entries: Sequence[_Entry], *, trusted: bool) -> Match:
    return Match(
        name=entries[0].name,
        op=entries[0].op,
        size=2 if entries[0].point_to_point else max(entry.group_size for entry in entries),
        members=tuple(entry.member for entry in entries),
        point_to_point=entries[0].point_to_point,
        trusted=trusted,
    )


def _match_anonymous(by_trace: dict[int, list[_Entry]]) -> list[list[_Entry]]:
    """Match by order. A rank whose window misses some ops is shifted to where most operations agree."""
    if len(by_trace) < 2:
        return []
    reference = max(by_trace, key=lambda index: (len(by_trace[index]), -index))
    sets: list[list[_Entry]] = [[entry] for entry in by_trace[reference]]
    for index in sorted(by_trace):
        if index == reference:
            continue
        shift = _best_shift(by_trace[reference], by_trace[index])
        for position, entry in enumerate(by_trace[index]):
            at = position + shift
            if 0 <= at < len(sets) and sets[at][0].op == entry.op:
                sets[at].append(entry)
    return [sorted(entries, key=lambda entry: entry.member.trace) for entries in sets]


def _best_shift(reference: list[_Entry], other: list[_Entry]) -> int:
    spare = len(reference) - len(other)

    def cost(shift: int) -> tuple[int, float, int]:
        pairs = list(zip(reference[shift:], other, strict=False))
        agree = sum(a.op == b.op and a.bytes == b.bytes for a, b in pairs)
        ends = np.array([a.member.end_ns - b.member.end_ns for a, b in pairs], np.float64)
        spread = float(np.median(np.abs(ends - np.median(ends)))) if len(ends) else 0.0
        return -agree, spread, shift

    return min(range(min(spare, 64) + 1), key=cost)


def align_clocks(traces: Sequence[Trace], matches: Iterable[Match], report: BuildReport) -> list[ClockMap]:
    """One :class:`ClockMap` per trace, so that all-wait collectives end together.

    The first trace keeps its clock. Ends are compared by medians, so a few wrong matches do no harm.
    """
    usable = [match for match in matches if match.aligns]
    tree = _initial_offsets(len(traces), usable)
    for index, first_guess in enumerate(tree):
        if first_guess is None:
            report.findings.append(
                f"{traces[index].path}: shares no collective with the other ranks; its clock is taken as it is"
            )
    if not usable:
        return [ClockMap() for _ in traces]
    base = usable[0].members[0].end_ns
    ends = np.full((len(usable), len(traces)), np.nan)
    for k, match in enumerate(usable):
        for member in match.members:
            ends[k, member.trace] = float(member.end_ns - base)
    offset = _refine(np.array([float(guess or 0) for guess in tree]), ends)
    middle = np.nanmedian(ends - offset, axis=1)
    maps = []
    for index, trace in enumerate(traces):
        residual = ends[:, index] - offset[index] - middle
        drift, pivot = _drift(ends[:, index], residual)
        maps.append(ClockMap(round(offset[index]), drift, pivot + base))
        report.clock_offsets_ns[trace.rank if trace.rank >= 0 else index] = round(offset[index])
    return maps


def _refine(offset: F64, ends: F64) -> F64:
    """Alternate between "when did each collective end" and "how far is each clock off", by medians.

    ``ends`` is (collectives, traces), NaN where a trace takes no part.
    """
    alone = np.isnan(ends).all(axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # medians of ranks that share nothing
        for _ in range(20):
            middle = np.nanmedian(ends - offset, axis=1, keepdims=True)
            offset = np.where(alone, offset, np.nanmedian(ends - middle, axis=0))
    shifted: F64 = offset - offset[0]
    return shifted


def _initial_offsets(count: int, matches: Sequence[Match]) -> list[int | None]:
    """Offsets along a spanning tree of ranks that share collectives; None if a rank shares none."""
    differences: dict[tuple[int, int], list[int]] = defaultdict(list)
    for match in matches:
        one = match.members[0]
        for other in match.members[1:]:
            differences[one.trace, other.trace].append(other.end_ns - one.end_ns)
            differences[other.trace, one.trace].append(one.end_ns - other.end_ns)
    offsets: list[int | None] = [None] * count
    offsets[0] = 0
    frontier = [0]
    while frontier:
        here = frontier.pop()
        for (tail, head), delta in differences.items():
            if tail == here and offsets[head] is None:
                offsets[head] = (offsets[here] or 0) + int(np.median(delta))
                frontier.append(head)
    return offsets


def _drift(end: F64, residual: F64) -> tuple[float, int]:
    """Slope of a rank's residual over time, if it is real; else 0."""
    use = ~np.isnan(residual)
    if use.sum() < _DRIFT_MIN_MATCHES:
        return 0.0, 0
    time, error = end[use], residual[use]
    span = float(np.ptp(time))
    if span < _DRIFT_MIN_SPAN_NS:
        return 0.0, 0
    centred = time - time.mean()
    slope = float((centred * error).sum() / (centred * centred).sum())
    corrected = error - slope * centred
    if abs(slope) * span < _DRIFT_MIN_EFFECT_NS or np.abs(corrected).mean() > 0.8 * np.abs(error).mean():
        return 0.0, 0
    return slope, int(time.mean())


def split_by_end(match: Match, maps: Sequence[ClockMap]) -> list[Match]:
    """Members that did not end together were not in the same operation.

    Without group metadata, ranks of different subgroups run look-alike operations at the same
    position. Members are clustered by their aligned ends; a cluster of one has no known peer, and
    neither has one of more than two if it is a send or receive. Rooted operations, and matches
    that the trace itself tells, are left whole.
    """
    if match.trusted or match.op in ROOTED_OPS:
        return [match]
    if match.point_to_point and len(match.members) == 2:
        return [match]
    ordered = sorted(match.members, key=lambda member: maps[member.trace].apply_one(member.end_ns))
    clusters: list[list[Member]] = [[ordered[0]]]
    for before, member in itertools.pairwise(ordered):
        gap = maps[member.trace].apply_one(member.end_ns) - maps[before.trace].apply_one(before.end_ns)
        if gap > SAME_END_NS:
            clusters.append([])
        clusters[-1].append(member)
    return [
        replace(match, members=tuple(sorted(cluster, key=lambda member: member.trace)))
        for cluster in clusters
        if len(cluster) == 2 or (len(cluster) > 2 and not match.point_to_point)
    ]
