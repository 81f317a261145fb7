"""From columns as found to a :class:`~emo.trace.model.Trace` that the graph can trust.

Nothing here raises for a bad record: it is repaired or dropped, and counted under
one of the reasons below. The steps run in this order, each on whole columns:

1. times: jumps are dropped, negative durations become zero;
2. API calls: calls nested in a call are folded into it, and a correlation id
   belongs to one call;
3. synchronisation records are folded into the call that they describe;
4. GPU ops are joined to their launches, the two clocks brought into order, and
   overlaps that only rounding made are removed;
5. iterations are found, and the quality of each is counted.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from emo.trace.classify import (
    COPYING,
    LAUNCHING,
    ApiClass,
    CollectiveOp,
    NameClasses,
    classify_names,
)
from emo.trace.columns import Mask, distinct, lane_of, one_of, row_of, runs
from emo.trace.iterations import find_iterations
from emo.trace.model import (
    API_KINDS,
    GPU_KINDS,
    I8,
    I32,
    I64,
    Iteration,
    Kind,
    Labels,
    Ops,
    RawCategory,
    RawTrace,
    StepQuality,
    SyncInfo,
    Trace,
    TraceQuality,
)

MAX_GAP_NS = 10**12
"""Records separated from most others by more than this are a broken clock, not a pause."""

MAX_TIME_NS = 4 * 10**18
"""Beyond this (126 years) no sum of two times is safe in int64, and no clock is right."""

ROUNDING_NS = 1_000
"""Traces written in whole microseconds make neighbours overlap by up to this."""

FRACTION_ROUNDING_NS = 500
"""The same for traces with fractions: a float64 of microseconds since 1970 steps by 250 ns."""

MAX_SKEW_NS = 10_000_000
"""A larger offset between CPU and GPU clock is not corrected: links are dropped instead."""

OUTLIER_SHARE = 0.001
"""Up to this share of GPU ops may start before their launch without the clocks being doubted."""

EMPTY_CALL_NS = 1_000
"""A copy or set of zero bytes returns within this time (150 to 1000 ns in the sample traces, where
those that do something take more than 3000) and leaves no GPU op: it is no launch."""

MAX_NESTED_CALLS = 16
"""A call that holds more calls than this is an envelope (or has a wrong end): it is dropped."""

# The closed list of reasons. Dropped: the record is gone. Repaired: it was changed.
TIME_JUMP = "time_jump"
NO_DEVICE = "no_device"
NESTED_CALL = "nested_call"
ENVELOPE_CALL = "envelope_call"
SYNC_WITHOUT_CALL = "sync_without_call"

NEGATIVE_DURATION = "negative_duration"
CALL_OVERLAP = "call_overlap"
ROUNDED_END = "rounded_end"
DUPLICATE_CORRELATION = "duplicate_correlation"
KERNEL_BEFORE_LAUNCH = "kernel_before_launch"
DEVICE_GUESSED = "device_guessed"

# Thresholds of the quality gate; the unexplained share (<= 2 %) is known only to the graph.
MIN_COMPLETENESS = 0.99
MAX_WITHOUT_LAUNCH = 0.01
MAX_REPAIRED = 0.001

_CATEGORY_KIND = {
    RawCategory.API: Kind.CPU_CALL,
    RawCategory.KERNEL: Kind.KERNEL,
    RawCategory.MEMCPY: Kind.MEMCPY,
    RawCategory.MEMSET: Kind.MEMSET,
    RawCategory.ANNOTATION: Kind.ANNOTATION,
}
_CLASS_KIND = {
    ApiClass.SYNC_DEVICE: Kind.SYNC,
    ApiClass.SYNC_STREAM: Kind.SYNC,
    ApiClass.SYNC_EVENT: Kind.SYNC,
    ApiClass.EVENT_RECORD: Kind.EVENT_RECORD,
    ApiClass.STREAM_WAIT_EVENT: Kind.EVENT_WAIT,
}


def validate(raw: RawTrace) -> Trace:
    """Repair what can be repaired, drop and count the rest, join, sort and judge.

    Never raises for what the records hold; ``raw`` is not changed.
    """
    quality = TraceQuality(records=len(raw.category), dropped=dict(raw.dropped), truncated=raw.truncated)
    classes = classify_names(raw.names)
    start_ns, end_ns, kept, clipped = _clean_times(raw, quality)

    labels = _labels(raw, kept, start_ns, end_ns)
    is_op = kept & (raw.category != RawCategory.LABEL) & (raw.category != RawCategory.SYNC)
    table = _Table.of(raw, np.flatnonzero(is_op), start_ns, end_ns, classes)
    table.damaged = clipped[is_op]
    table.sort()

    _place_on_devices(table, raw, quality)
    inner, outer = _fold_nested_calls(table, classes, quality)
    sync = np.flatnonzero(kept & (raw.category == RawCategory.SYNC))
    _one_call_per_correlation(table, classes, quality)
    recorded = _fold_sync_records(table, raw, sync, classes, inner, outer, quality)
    _settle_awaited_records(table)

    launch_row = _join_launches(table)
    launch_row = _align_clocks(table, launch_row, quality)
    _tell_collectives(table, launch_row, classes)
    real_overlaps = _clip_rounded_ends(table, quality)

    ops = table.ops()
    iterations, source = find_iterations(ops, labels, raw.names, raw.threads, classes)
    window_start_ns, window_end_ns = _window(ops, labels)
    window = Iteration(window_start_ns, window_end_ns + 1, "window")
    _count(ops, launch_row, classes, iterations, table.damaged, quality, window)
    quality.sync_info = _sync_info(ops, classes, recorded)
    quality.overlap_ratio = overlap_ratio(ops)

    metadata = dict(raw.metadata)
    if real_overlaps:
        metadata["overlapping_ops_on_one_stream"] = str(real_overlaps)
    return Trace(
        path=raw.path,
        format=raw.format,
        rank=raw.rank,
        world_size=raw.world_size,
        ops=ops,
        labels=labels,
        names=raw.names,
        threads=raw.threads,
        groups=raw.groups,
        devices=raw.devices,
        iterations=iterations,
        iteration_source=source,
        window_start_ns=window_start_ns,
        window_end_ns=window_end_ns,
        quality=quality,
        metadata=metadata,
    )


def is_complete(step: StepQuality) -> bool:
    """Whether the launches of ``step`` have their GPU ops. A step without any op is not complete."""
    return step.kernels > 0 and step.completeness >= MIN_COMPLETENESS


def gate(step: StepQuality) -> list[str]:
    """Why no conclusion may be drawn from ``step``; empty: it passes.

    A step whose launches have no kernels is incomplete. It is never idle.
    """
    reasons = []
    if not step.kernels:
        reasons.append("no GPU op belongs to it")
    if step.completeness < MIN_COMPLETENESS:
        reasons.append(
            f"{step.launches_without_kernel} of {step.launches} launches have no GPU op "
            f"(complete: {step.completeness:.1%}, needed: {MIN_COMPLETENESS:.0%})"
        )
    if step.kernels_without_launch > MAX_WITHOUT_LAUNCH * step.kernels:
        reasons.append(
            f"{step.kernels_without_launch} of {step.kernels} GPU ops have no launch "
            f"(allowed: {MAX_WITHOUT_LAUNCH:.0%})"
        )
    if step.repaired > MAX_REPAIRED * (step.launches + step.kernels):
        reasons.append(
            f"{step.repaired} of {step.launches + step.kernels} records were repaired "
            f"(allowed: {MAX_REPAIRED:.1%})"
        )
    return reasons


# --------------------------------------------------------------------------- columns


@dataclass(slots=True)
class _Table:
    """The columns of :class:`Ops` while they are still being changed, plus what is known of rows."""

    kind: I8
    start_ns: I64
    end_ns: I64
    device: I32
    stream: I32
    thread: I32
    correlation: I64
    name_id: I32
    bytes: I64
    collective_group: I32
    collective_seq: I64
    graph_node: I64
    shape_hash: I64
    sync_correlation: I64
    sync_stream: I32
    damaged: Mask  # rows whose content is in doubt

    @classmethod
    def of(cls, raw: RawTrace, rows: I64, start_ns: I64, end_ns: I64, classes: NameClasses) -> _Table:
        """Rows of ``raw`` as ops, in the file's order."""
        columns = {
            f.name: getattr(raw, f.name)[rows]
            for f in fields(Ops)
            if f.name not in ("kind", "start_ns", "end_ns")
        }
        kind = _kinds(raw.category[rows], raw.name_id[rows], classes)
        return cls(
            kind=kind,
            start_ns=start_ns[rows],
            end_ns=end_ns[rows],
            damaged=np.zeros(len(rows), dtype=bool),
            **columns,
        )

    def take(self, rows: I64 | Mask) -> None:
        """Keep ``rows``, in that order."""
        for f in fields(self):
            setattr(self, f.name, getattr(self, f.name)[rows])

    def sort(self) -> I64:
        """Sort by start; on ties CPU before GPU, then the earlier end. Returns the order."""
        order = np.lexsort((self.end_ns, self.is_gpu(), self.start_ns))
        if not np.array_equal(order, np.arange(len(order))):
            self.take(order)
        return order

    def is_gpu(self) -> Mask:
        return one_of(self.kind, GPU_KINDS)

    def is_api(self) -> Mask:
        return one_of(self.kind, API_KINDS)

    def ops(self) -> Ops:
        return Ops(**{f.name: getattr(self, f.name) for f in fields(Ops)})


def _kinds(category: I8, name_id: I32, classes: NameClasses) -> I8:
    """Kind by category, refined by name for API calls and communicating kernels."""
    by_category = np.zeros(128, dtype=np.int8)
    for cat, kind in _CATEGORY_KIND.items():
        by_category[cat] = kind
    by_class = np.full(128, Kind.CPU_CALL, dtype=np.int8)
    for cls, kind in _CLASS_KIND.items():
        by_class[cls] = kind
    result = by_category[category]
    api = category == RawCategory.API
    result[api] = by_class[classes.api_class[name_id[api]]]
    kernel = np.flatnonzero(category == RawCategory.KERNEL)
    op = classes.collective_op[name_id[kernel]]
    result[kernel[op != CollectiveOp.NONE]] = Kind.COLLECTIVE
    result[kernel[op == CollectiveOp.SEND_RECV]] = Kind.P2P
    return result


def _labels(raw: RawTrace, kept: Mask, start_ns: I64, end_ns: I64) -> Labels:
    rows = np.flatnonzero(kept & (raw.category == RawCategory.LABEL))
    rows = rows[np.argsort(start_ns[rows], kind="stable")]
    return Labels(
        start_ns=start_ns[rows], end_ns=end_ns[rows], thread=raw.thread[rows], name_id=raw.name_id[rows]
    )


def _bump(counts: dict[str, int], reason: str, number: int) -> None:
    if number:
        counts[reason] = counts.get(reason, 0) + number


# --------------------------------------------------------------------------- 1. times


def _clean_times(raw: RawTrace, quality: TraceQuality) -> tuple[I64, I64, Mask, Mask]:
    """Start, end, which records to keep, and whose negative duration became zero."""
    negative = raw.dur_ns < 0
    dur_ns = np.where(negative, 0, raw.dur_ns)
    kept = (raw.start_ns >= -MAX_TIME_NS) & (raw.start_ns <= MAX_TIME_NS)
    if kept.any():
        low, high = _main_cluster(raw.start_ns[kept])
        kept &= (raw.start_ns >= low) & (raw.start_ns <= high)
        kept &= dur_ns <= MAX_GAP_NS + (high - low)
    negative &= kept
    _bump(quality.dropped, TIME_JUMP, int(len(kept) - np.count_nonzero(kept)))
    _bump(quality.repaired, NEGATIVE_DURATION, int(np.count_nonzero(negative)))
    end_ns = np.where(kept, raw.start_ns, 0) + np.where(kept, dur_ns, 0)
    return raw.start_ns, end_ns, kept, negative


def _main_cluster(start_ns: I64) -> tuple[int, int]:
    """First and last start of the largest set of records without a gap above MAX_GAP_NS."""
    low, high = int(start_ns.min()), int(start_ns.max())
    if high - low <= MAX_GAP_NS:
        return low, high
    ordered = np.sort(start_ns)
    cuts = np.flatnonzero(np.diff(ordered) > MAX_GAP_NS)
    firsts = np.concatenate(([0], cuts + 1))
    lasts = np.concatenate((cuts, [len(ordered) - 1]))
    best = int(np.argmax(lasts - firsts))
    return int(ordered[firsts[best]]), int(ordered[lasts[best]])


def _place_on_devices(table: _Table, raw: RawTrace, quality: TraceQuality) -> None:
    """GPU ops without a device go to the only GPU there is; with several they are dropped."""
    lost = table.is_gpu() & (table.device < 0)
    if not lost.any():
        return
    known = distinct(table.device[table.is_gpu() & ~lost])
    if len(known) == 0 and len(raw.devices) <= 1:
        known = np.array([raw.devices[0].device if raw.devices else 0])
    if len(known) == 1:
        table.device[lost] = known[0]
        _bump(quality.repaired, DEVICE_GUESSED, int(np.count_nonzero(lost)))
        return
    _bump(quality.dropped, NO_DEVICE, int(np.count_nonzero(lost)))
    table.take(~lost)


# --------------------------------------------------------------------------- 2. API calls


def _fold_nested_calls(table: _Table, classes: NameClasses, quality: TraceQuality) -> tuple[I64, I64]:
    """Leave one row where calls lie inside a call on the same thread.

    Returns the correlation ids that went away and those that took their place.
    The outer call keeps its time. It takes the name of the first inner call that
    matters if its own does not (a library call around a launch).
    """
    api = np.flatnonzero(table.is_api())
    envelopes, owner = _nesting(table, api)
    if len(envelopes):
        _bump(quality.dropped, ENVELOPE_CALL, len(envelopes))
        keep = np.ones(len(table.kind), dtype=bool)
        keep[envelopes] = False
        table.take(keep)
        api = np.flatnonzero(table.is_api())
        _, owner = _nesting(table, api, accept_all=True)
    _clip_call_overlaps(table, api[owner == api], quality)

    nested = owner != api
    inner, outer = api[nested], owner[nested]
    if not len(inner):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    _bump(quality.dropped, NESTED_CALL, len(inner))
    _inherit_names(table, inner, outer, classes)

    # An outer call without an id takes the first one that it can get; in reverse, so that the first stays.
    nameless = table.correlation[outer] < 0
    table.correlation[outer[nameless][::-1]] = table.correlation[inner[nameless]][::-1]
    old, new = table.correlation[inner], table.correlation[outer]
    moved = (old >= 0) & (new >= 0) & (old != new)
    old, new = old[moved], new[moved]

    keep = np.ones(len(table.kind), dtype=bool)
    keep[inner] = False
    table.take(keep)
    _rename(table.correlation, old, new)
    _rename(table.sync_correlation, old, new)
    return old, new


def _nesting(table: _Table, api: I64, *, accept_all: bool = False) -> tuple[I64, I64]:
    """Envelopes, and for every row of ``api`` the outermost call that holds it (itself if none)."""
    start, end = table.start_ns, table.end_ns
    slack_ns = _resolution(start[api])
    owner = api.copy()
    position = np.empty(len(table.kind), dtype=np.int64)
    position[api] = np.arange(len(api))
    # Outer before inner on equal starts, but instants first: rounding makes them, and they hold nothing.
    instant_last = end[api] > start[api]
    order = api[np.lexsort((-end[api], instant_last, start[api], table.thread[api]))]
    for rows in runs(order, table.thread):
        reach = np.maximum.accumulate(end[rows])
        before = np.concatenate(([start[rows[0]]], reach[:-1]))
        nested = (end[rows] <= before) & (before - start[rows] > slack_ns)
        if nested.any():
            outermost = np.maximum.accumulate(np.where(nested, -1, np.arange(len(rows))))
            owner[position[rows]] = rows[outermost]
    if accept_all:
        return np.empty(0, np.int64), owner
    held = np.bincount(owner, minlength=len(table.kind)) - 1
    return np.flatnonzero(held > MAX_NESTED_CALLS), owner


def _resolution(start_ns: I64) -> int:
    """How far two times that should be equal may lie apart."""
    whole_us = len(start_ns) > 0 and not np.any(start_ns % 1_000)
    return ROUNDING_NS if whole_us else FRACTION_ROUNDING_NS


def _clip_call_overlaps(table: _Table, calls: I64, quality: TraceQuality) -> None:
    """Calls of one thread that overlap without nesting: the earlier one ends where the next starts."""
    order = calls[np.lexsort((table.start_ns[calls], table.thread[calls]))]
    before, after = order[:-1], order[1:]
    overlap_ns = np.where(
        table.thread[before] == table.thread[after], table.end_ns[before] - table.start_ns[after], 0
    )
    rounded = (overlap_ns > 0) & (overlap_ns <= ROUNDING_NS)
    wrong = overlap_ns > ROUNDING_NS
    clip = rounded | wrong
    table.end_ns[before[clip]] = table.start_ns[after[clip]]
    table.damaged[before[wrong]] = True
    _bump(quality.repaired, ROUNDED_END, int(np.count_nonzero(rounded)))
    _bump(quality.repaired, CALL_OVERLAP, int(np.count_nonzero(wrong)))


def _inherit_names(table: _Table, inner: I64, outer: I64, classes: NameClasses) -> None:
    """An outer call that means nothing by itself is called by what it does."""
    meaning = classes.api_class[table.name_id]
    useful = (meaning[outer] == ApiClass.OTHER) & (meaning[inner] != ApiClass.OTHER)
    # In reverse, so that the first inner call has the last word.
    source, target = inner[useful][::-1], outer[useful][::-1]
    table.name_id[target] = table.name_id[source]
    table.kind[target] = table.kind[source]


def _rename(column: I64, old: I64, new: I64) -> None:
    """Replace ids ``old`` by ``new`` in place."""
    if len(old):
        hit = row_of(old, np.arange(len(old)), column)
        known = hit >= 0
        column[known] = new[hit[known]]


def _one_call_per_correlation(table: _Table, classes: NameClasses, quality: TraceQuality) -> None:
    """Of several calls with one id the first launch keeps it (else the first call)."""
    rows = np.flatnonzero(table.is_api() & (table.correlation >= 0))
    ids = table.correlation[rows]
    if np.all(np.diff(np.sort(ids))):
        return
    launching = one_of(classes.api_class[table.name_id[rows]], LAUNCHING)
    order = np.lexsort((rows, ~launching, ids))
    repeated = order[1:][np.diff(ids[order]) == 0]
    table.correlation[rows[repeated]] = -1
    table.damaged[rows[repeated]] = True
    _bump(quality.repaired, DUPLICATE_CORRELATION, len(repeated))


# --------------------------------------------------------------------------- 3. synchronisation records


def _fold_sync_records(
    table: _Table,
    raw: RawTrace,
    records: I64,
    classes: NameClasses,
    inner: I64,
    outer: I64,
    quality: TraceQuality,
) -> bool:
    """Write what the records say into the calls with their correlation; True if any call that waits got one."""
    if not len(records):
        return False
    correlation = raw.correlation[records].copy()
    _rename(correlation, inner, outer)
    calls = np.flatnonzero(table.is_api() & (table.correlation >= 0))
    row = row_of(table.correlation[calls], calls, correlation)
    _bump(quality.dropped, SYNC_WITHOUT_CALL, int(np.count_nonzero(row < 0)))
    records, row = records[row >= 0], row[row >= 0]

    stream, awaited = raw.stream[records], raw.sync_stream[records]
    whole_stream = classes.api_class[table.name_id[row]] == ApiClass.SYNC_STREAM
    awaited = np.where((awaited < 0) & whole_stream, stream, awaited)
    table.stream[row[stream >= 0]] = stream[stream >= 0]
    table.sync_stream[row[awaited >= 0]] = awaited[awaited >= 0]
    event = raw.sync_correlation[records].copy()
    _rename(event, inner, outer)
    table.sync_correlation[row[event != -1]] = event[event != -1]
    return bool(np.any(one_of(table.kind[row], (Kind.SYNC, Kind.EVENT_WAIT))))


def _settle_awaited_records(table: _Table) -> None:
    """A recorded event that is not in the trace was recorded before it: nothing known is waited for."""
    waits = np.flatnonzero(table.sync_correlation >= 0)
    marks = np.flatnonzero((table.kind == Kind.EVENT_RECORD) & (table.correlation >= 0))
    found = row_of(table.correlation[marks], marks, table.sync_correlation[waits])
    table.sync_correlation[waits[found < 0]] = -2


def _sync_info(ops: Ops, classes: NameClasses, recorded: bool) -> SyncInfo:
    """What is known about waits, judged by those that wait for an event, if there are any."""
    sync = (ops.kind == Kind.SYNC) | (ops.kind == Kind.EVENT_WAIT)
    if not sync.any():
        return SyncInfo.ABSENT
    for_event = sync & one_of(
        classes.api_class[ops.name_id], (ApiClass.STREAM_WAIT_EVENT, ApiClass.SYNC_EVENT)
    )
    if not for_event.any():
        return SyncInfo.RECORDED if recorded else SyncInfo.INFERRED
    told = for_event & ((ops.sync_correlation != -1) | (ops.sync_stream >= 0))
    return SyncInfo.RECORDED if told.any() else SyncInfo.INFERRED


# --------------------------------------------------------------------------- 4. launches and streams


def _join_launches(table: _Table) -> I64:
    """For every row the API row that launched it; -1 for none and for CPU rows."""
    launch_row = np.full(len(table.kind), -1, dtype=np.int64)
    calls = np.flatnonzero(table.is_api() & (table.correlation >= 0))
    gpu = np.flatnonzero(table.is_gpu())
    launch_row[gpu] = row_of(table.correlation[calls], calls, table.correlation[gpu])
    return launch_row


def _align_clocks(table: _Table, launch_row: I64, quality: TraceQuality) -> I64:
    """No GPU op starts before its launch: shift the GPU's clock if many do, unlink what still does."""
    linked = np.flatnonzero(launch_row >= 0)
    if not len(linked):
        return launch_row
    lead_ns = table.start_ns[linked] - table.start_ns[launch_row[linked]]
    skew_ns = _skew(lead_ns)
    early = lead_ns + skew_ns < -ROUNDING_NS
    lost = linked[early]
    launch_row[lost] = -1
    table.correlation[lost] = -1
    table.damaged[lost] = True
    _bump(quality.repaired, KERNEL_BEFORE_LAUNCH, len(lost))
    if not skew_ns:
        return launch_row
    quality.clock_skew_ns = skew_ns
    gpu = table.is_gpu()
    table.start_ns[gpu] += skew_ns
    table.end_ns[gpu] += skew_ns
    order = table.sort()
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    moved = launch_row[order]
    return np.where(moved >= 0, place[moved], -1)


def _skew(lead_ns: I64) -> int:
    """The least shift after which no op leads its launch, a few outliers aside; 0 if none is needed."""
    spare = int(OUTLIER_SHARE * len(lead_ns))
    worst_ns = int(np.partition(lead_ns, spare)[spare])
    if worst_ns >= -ROUNDING_NS or worst_ns < -MAX_SKEW_NS:
        return 0
    return -worst_ns


def _tell_collectives(table: _Table, launch_row: I64, classes: NameClasses) -> None:
    """Where a kernel's name leaves it open, the annotation around its launch tells what it does.

    NCCL runs an all-to-all as send and receive, and RCCL has one generic kernel for
    everything. A COLLECTIVE row whose name says SEND_RECV is therefore an all-to-all.
    """
    op = classes.collective_op[table.name_id]
    is_open = (op == CollectiveOp.SEND_RECV) | (op == CollectiveOp.UNKNOWN)
    is_open &= one_of(table.kind, (Kind.COLLECTIVE, Kind.P2P)) & (launch_row >= 0)
    doubtful = np.flatnonzero(is_open)
    tells = (op != CollectiveOp.NONE) & (op != CollectiveOp.UNKNOWN)
    marks = np.flatnonzero((table.kind == Kind.ANNOTATION) & tells)
    launches = launch_row[doubtful]
    for thread in distinct(table.thread[launches]):
        here = np.flatnonzero(table.thread[launches] == thread)
        own = marks[table.thread[marks] == thread]
        if not len(own):
            continue
        at_ns = table.start_ns[launches[here]]
        last = np.searchsorted(table.start_ns[own], at_ns, side="right") - 1
        covered = (last >= 0) & (table.end_ns[own[last]] >= at_ns)
        kind = np.where(op[own[last]] == CollectiveOp.SEND_RECV, Kind.P2P, Kind.COLLECTIVE)
        table.kind[doubtful[here[covered]]] = kind[covered]


def _clip_rounded_ends(table: _Table, quality: TraceQuality) -> int:
    """Undo overlaps on a stream that rounding made; returns how many real overlaps there are."""
    gpu = np.flatnonzero(table.is_gpu())
    lane = lane_of(table.device[gpu], table.stream[gpu])
    order = gpu[np.argsort(lane, kind="stable")]
    lane = np.sort(lane)
    before, after = order[:-1], order[1:]
    overlap_ns = np.where(lane[:-1] == lane[1:], table.end_ns[before] - table.start_ns[after], 0)
    rounded = (overlap_ns > 0) & (overlap_ns <= ROUNDING_NS)
    table.end_ns[before[rounded]] = table.start_ns[after[rounded]]
    _bump(quality.repaired, ROUNDED_END, int(np.count_nonzero(rounded)))
    return int(np.count_nonzero(overlap_ns > ROUNDING_NS))


# --------------------------------------------------------------------------- 5. quality


def _window(ops: Ops, labels: Labels) -> tuple[int, int]:
    """Earliest and latest instant of API calls, GPU ops and labels; (0, 0) for an empty trace."""
    work = ops.kind != Kind.ANNOTATION
    starts = [a for a in (ops.start_ns[work], labels.start_ns) if len(a)]
    ends = [a for a in (ops.end_ns[work], labels.end_ns) if len(a)]
    if not starts:
        return 0, 0
    return min(int(a.min()) for a in starts), max(int(a.max()) for a in ends)


def _count(
    ops: Ops,
    launch_row: I64,
    classes: NameClasses,
    iterations: list[Iteration],
    damaged: Mask,
    quality: TraceQuality,
    window: Iteration,
) -> None:
    """Fill the counts of ``quality``, over all and per iteration (or the window, if there is none)."""
    gpu = np.flatnonzero(one_of(ops.kind, GPU_KINDS))
    orphans = gpu[launch_row[gpu] < 0]
    gpu_ops = np.bincount(launch_row[gpu][launch_row[gpu] >= 0], minlength=len(ops))
    launches = _launches(ops, classes, gpu_ops > 0)
    due = _due(ops, classes, launches, gpu_ops)
    missing = np.where(gpu_ops[launches] > 0, 0, due)

    quality.launches = int(due.sum())
    quality.launches_without_kernel = int(missing.sum())
    if quality.launches:
        quality.completeness = 1.0 - quality.launches_without_kernel / quality.launches
    quality.kernels = len(gpu)
    quality.kernels_without_launch = len(orphans)
    joined = gpu[launch_row[gpu] >= 0]
    if len(joined):
        quality.head_loss_ns = int(ops.start_ns[joined[0]]) - window.start_ns

    steps = iterations or [window]
    # A kernel belongs to the step that launched it: work may still be queued at a step's end.
    step_of = _step_of(steps, np.where(launch_row >= 0, ops.start_ns[launch_row], ops.start_ns))

    def per_step(rows: I64, weight: I64 | None = None) -> list[int]:
        inside = step_of[rows] >= 0
        weight = np.ones(len(rows), dtype=np.int64) if weight is None else weight
        sums = np.bincount(step_of[rows][inside], weights=weight[inside], minlength=len(steps))
        return [int(number) for number in sums]

    quality.steps = [
        StepQuality(step.start_ns, step.end_ns, *numbers)
        for step, *numbers in zip(
            steps,
            per_step(launches, due),
            per_step(launches, missing),
            per_step(gpu),
            per_step(orphans),
            per_step(np.flatnonzero(damaged)),
            strict=True,
        )
    ]


def _due(ops: Ops, classes: NameClasses, launches: I64, gpu_ops: I64) -> I64:
    """How many launches each one counts for: one, but a graph that lost its ops counts for all of them.

    Otherwise a step that lost one replay, which may be all of its work, would look nearly complete.
    """
    due = np.ones(len(launches), dtype=np.int64)
    graph = classes.api_class[ops.name_id[launches]] == ApiClass.GRAPH_LAUNCH
    replayed = gpu_ops[launches[graph]]
    if len(replayed):
        # How large the lost one was is unknown: as large as the largest, or as all other launches.
        due[graph & (gpu_ops[launches] == 0)] = int(replayed.max()) or len(launches)
    return due


def _launches(ops: Ops, classes: NameClasses, has_kernel: Mask) -> I64:
    """Calls after which a GPU op is due: not what copies nothing, nor what is captured into a graph."""
    cls = classes.api_class[ops.name_id]
    api = one_of(ops.kind, API_KINDS)
    due = api & one_of(cls, LAUNCHING)
    due &= has_kernel | ~one_of(cls, COPYING) | (ops.end_ns - ops.start_ns > EMPTY_CALL_NS)
    edge = np.zeros(len(ops), dtype=np.int64)
    edge[api & (cls == ApiClass.CAPTURE_BEGIN)] = 1
    edge[api & (cls == ApiClass.CAPTURE_END)] = -1
    for thread in distinct(ops.thread[edge != 0]):
        rows = np.flatnonzero(ops.thread == thread)
        due[rows[np.cumsum(edge[rows]) > 0]] = False
    return np.flatnonzero(due)


def _step_of(steps: list[Iteration], at_ns: I64) -> I64:
    """Index of the step that holds each instant; -1 for none."""
    starts = np.array([step.start_ns for step in steps], dtype=np.int64)
    ends = np.array([step.end_ns for step in steps], dtype=np.int64)
    index = np.searchsorted(starts, at_ns, side="right") - 1
    return np.where((index >= 0) & (at_ns < ends[index]), index, -1)


def overlap_ratio(ops: Ops) -> float:
    """Time with two or more streams busy / time with at least one, of the GPU where it is largest."""
    gpu = np.flatnonzero(one_of(ops.kind, GPU_KINDS))
    worst = 0.0
    for device in distinct(ops.device[gpu]):
        rows = gpu[ops.device[gpu] == device]
        streams = distinct(ops.stream[rows])
        if len(streams) < 2:
            continue
        spans = [_union(ops, rows[ops.stream[rows] == stream]) for stream in streams]
        starts = np.concatenate([span[0] for span in spans])
        ends = np.concatenate([span[1] for span in spans])
        at_ns = np.concatenate((starts, ends))
        step = np.concatenate((np.ones(len(starts), np.int64), -np.ones(len(ends), np.int64)))
        order = np.argsort(at_ns, kind="stable")
        busy = np.cumsum(step[order])[:-1]
        length_ns = np.diff(at_ns[order])
        any_ns = int(length_ns[busy >= 1].sum())
        if any_ns:
            worst = max(worst, int(length_ns[busy >= 2].sum()) / any_ns)
    return worst


def _union(ops: Ops, rows: I64) -> tuple[I64, I64]:
    """Disjoint intervals that rows of one stream (sorted by start) cover."""
    start, reach = ops.start_ns[rows], np.maximum.accumulate(ops.end_ns[rows])
    first = np.concatenate(([True], start[1:] > reach[:-1]))
    last = np.concatenate((first[1:], [True]))
    return start[first], reach[last]
