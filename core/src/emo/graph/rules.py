"""The ordering rules, one function each: from nodes to edges.

Every rule states an order that the hardware or the runtime guarantees, not one that
happened to bind in the recorded run. A rule never looks at what other rules found,
with one exception: calls that block must know until when their GPU work held them
(``Context.blocked_until_ns``), so the rules that find such work come first and
:func:`call_durations` comes after them.
"""

from __future__ import annotations

import numpy as np

from emo.graph.context import CLOCK_STEP_NS, Context, EdgeBlock, edges
from emo.graph.model import NEVER, Bool, EdgeType
from emo.graph.nodes import number_rows
from emo.trace.classify import ApiClass
from emo.trace.columns import distinct
from emo.trace.model import I64, Kind

# A latency is the least that was observed; the first percentile stands in for the minimum, because
# one mis-stamped record would otherwise set it for all.
_LEAST_QUANTILE = 0.01

# A launch takes some microseconds to reach the GPU, that of a large graph some tens more.
MAX_LAUNCH_LATENCY_NS = 200_000

# An op follows what let it go within this time: a kernel that filled the GPU, a call that submits it.
_LET_IN_NS = 20_000

# A call that returns this much after its candidate ended waited for something else.
_WAKE_UP_NS = 50_000

# A host function is meant to be short; what a stream waited beyond this has no known cause.
MAX_HOST_FUNCTION_NS = 1_000_000

_MEMCPY_CLASSES = (ApiClass.MEMCPY, ApiClass.MEMCPY_ASYNC)


def _by_group(group: I64, value: I64, quantile: float) -> I64:
    """For every row the quantile of ``value`` over its group, and never more than the row's own value."""
    result = value.copy()
    for member in distinct(group):
        rows = group == member
        level = np.int64(np.quantile(value[rows], quantile, method="lower"))
        result[rows] = np.minimum(value[rows], level)
    return result


# --- GPU side -----------------------------------------------------------------------------------


def op_durations(context: Context, wire_ns: I64) -> list[EdgeBlock]:
    """OP: a GPU op takes its duration. ``wire_ns`` (per node) replaces that of a collective, -1 elsewhere.

    A joint collective (wire -2) has no edge of its own: its end follows from the joint.
    """
    nodes = context.table.nodes
    ops = np.flatnonzero(context.on_gpu & (wire_ns != -2))
    duration = np.where(wire_ns[ops] >= 0, wire_ns[ops], (nodes.end_ns - nodes.start_ns)[ops])
    return [
        edges(
            EdgeType.OP,
            context.start_of(ops),
            context.end_of(ops),
            scaled_ns=duration,
            owner=context.node_owner(ops),
        )
    ]


def launches(context: Context) -> list[EdgeBlock]:
    """LAUNCH: a GPU op starts no earlier than its launch call plus the least latency seen.

    Of the many ops of one graph launch only the first on each stream needs the edge. More than
    ``MAX_LAUNCH_LATENCY_NS`` is no launch latency, however few launches there were to tell from.
    """
    nodes = context.table.nodes
    ops = np.flatnonzero(context.on_gpu & (nodes.launch >= 0))
    if len(ops) == 0:
        return []
    order = np.lexsort((nodes.start_ns[ops], nodes.stream[ops], nodes.launch[ops]))
    ops = ops[order]
    launch = nodes.launch[ops].astype(np.int64)
    first = np.ones(len(ops), bool)
    first[1:] = (launch[1:] != launch[:-1]) | (nodes.stream[ops][1:] != nodes.stream[ops][:-1])
    ops, launch = ops[first], launch[first]
    latency = nodes.start_ns[ops] - nodes.start_ns[launch]
    group = nodes.trace[ops].astype(np.int64) * 64 + nodes.api_class[launch]
    least = _by_group(group, latency, _LEAST_QUANTILE)
    lag = np.minimum(least, MAX_LAUNCH_LATENCY_NS)
    for trace in distinct(nodes.trace[ops]).tolist():
        mine = nodes.trace[ops] == trace
        shortest = int((nodes.start_ns[ops] - np.maximum(nodes.start_ns, nodes.end_ns)[launch])[mine].min())
        if shortest > MAX_LAUNCH_LATENCY_NS:
            context.report.findings.append(
                f"{context.traces[trace].path}: no GPU op starts less than {shortest / 1e6:.3g} ms after its "
                "launch: the GPU was busy with work from before the window, or its clock is not the CPU's"
            )
    return [edges(EdgeType.LAUNCH, context.start_of(launch), context.start_of(ops), lag_ns=lag)]


def long_calls(context: Context, ops: I64, ready_ns: I64) -> EdgeBlock:
    """LAUNCH: of a call that works before it submits (loads a module, stages a copy) that work is the CPU's.

    ``ops`` are those that started later than anything else explains, ``ready_ns`` when everything else
    was done. Where such an op started before its call returned, the call held it.
    """
    nodes = context.table.nodes
    launch = nodes.launch[ops].astype(np.int64)
    in_call = (launch >= 0) & (nodes.start_ns[ops] <= nodes.end_ns[np.maximum(launch, 0)] + _LET_IN_NS)
    op, launch = ops[in_call], launch[in_call]
    # What the wait for everything else took of the call is no work of it.
    idle_from = np.maximum(ready_ns[in_call], nodes.start_ns[launch])
    delay = nodes.start_ns[op] - nodes.start_ns[launch]
    worked = np.minimum(nodes.start_ns[op] - idle_from, delay)
    return edges(
        EdgeType.LAUNCH,
        context.start_of(launch),
        context.start_of(op),
        lag_ns=delay - worked,
        scaled_ns=worked,
        owner=context.thread_owner(nodes.thread[launch].astype(np.int64)),
    )


def stream_order(context: Context) -> list[EdgeBlock]:
    """STREAM: ops on one stream run in order.

    Ops on one stream that really overlapped (programmatic dependent launch, graph branches
    that share a stream id) are held start to start: the later one starts when the same share
    of the earlier one has run, so that slowing the earlier one still delays it.
    """
    nodes = context.table.nodes
    ops = np.flatnonzero(context.on_gpu)
    ops = ops[np.lexsort((nodes.sequence[ops], nodes.start_ns[ops], nodes.stream[ops]))]
    if len(ops) < 2:
        return []
    stream = nodes.stream[ops]
    same = stream[1:] == stream[:-1]
    before, after = ops[:-1][same], ops[1:][same]
    overlap = nodes.end_ns[before] > nodes.start_ns[after]

    blocks = [edges(EdgeType.STREAM, context.end_of(before[~overlap]), context.start_of(after[~overlap]))]
    if overlap.any():
        blocks.append(_share_of(context, before[overlap], after[overlap]))
        blocks += _around_overlaps(context, ops)
    return blocks


def _around_overlaps(context: Context, ops: I64) -> list[EdgeBlock]:
    """What neighbours alone do not say where ops of a stream overlap. ``ops``: by stream, then start.

    Every op holds the first one that starts after it ended, however many overlapped it, and every
    op follows the one that was to end last of those before it.
    """
    nodes = context.table.nodes
    stream, start, end = nodes.stream[ops], nodes.start_ns[ops], nodes.end_ns[ops]
    begins = np.flatnonzero(np.r_[True, stream[1:] != stream[:-1]])
    held: list[I64] = []
    holders: list[I64] = []
    nested: list[I64] = []
    outer: list[I64] = []
    for first, stop in zip(begins.tolist(), np.r_[begins[1:], len(ops)].tolist(), strict=True):
        position = np.arange(first, stop)
        successor = first + np.searchsorted(start[first:stop], end[first:stop], side="left")
        # An op without duration is before those that start with it.
        successor = np.maximum(successor, position + 1)
        skips = (successor > position + 1) & (successor < stop)
        holders.append(ops[position[skips]])
        held.append(ops[successor[skips]])
        latest = np.maximum.accumulate(end[first:stop])
        longest = first + np.maximum.accumulate(np.where(end[first:stop] == latest, position - first, 0))
        inside = (longest[:-1] != position[:-1]) & (end[longest[:-1]] > start[position[1:]])
        outer.append(ops[longest[:-1][inside]])
        nested.append(ops[position[1:][inside]])
    return [
        edges(
            EdgeType.STREAM,
            context.end_of(np.concatenate(holders)),
            context.start_of(np.concatenate(held)),
        ),
        _share_of(context, np.concatenate(outer), np.concatenate(nested)),
    ]


def _share_of(context: Context, head: I64, tail: I64) -> EdgeBlock:
    """``tail`` starts when the share of ``head`` that had run by then has run."""
    nodes = context.table.nodes
    return edges(
        EdgeType.STREAM,
        context.start_of(head),
        context.start_of(tail),
        scaled_ns=nodes.start_ns[tail] - nodes.start_ns[head],
        owner=context.node_owner(head),
    )


def graph_order(context: Context) -> list[EdgeBlock]:
    """GRAPH_ORDER: nodes of one CUDA graph on different streams follow each other as recorded.

    A trace names no edges of the graph, so an op is held to the op of the same replay that
    ended last before it started, on another stream. Inferred.
    """
    nodes = context.table.nodes
    is_graph = context.on_gpu & (nodes.launch >= 0)
    is_graph[is_graph] = nodes.api_class[nodes.launch[is_graph]] == ApiClass.GRAPH_LAUNCH
    ops = np.flatnonzero(is_graph)
    if len(ops) < 2:
        return []
    heads: list[I64] = []
    tails: list[I64] = []
    ops = ops[np.lexsort((nodes.start_ns[ops], nodes.launch[ops]))]
    for replay in np.split(ops, np.flatnonzero(np.diff(nodes.launch[ops])) + 1):
        streams = distinct(nodes.stream[replay])
        if len(streams) < 2:
            continue
        latest = np.full(len(replay), -1, np.int64)
        latest_end = np.full(len(replay), NEVER, np.int64)
        for stream in streams.tolist():
            here = replay[nodes.stream[replay] == stream]
            here = here[np.argsort(nodes.end_ns[here], kind="stable")]
            at = np.searchsorted(nodes.end_ns[here], nodes.start_ns[replay], side="right") - 1
            candidate = here[np.maximum(at, 0)]
            later = (at >= 0) & (nodes.stream[replay] != stream) & (nodes.end_ns[candidate] > latest_end)
            latest = np.where(later, candidate, latest)
            latest_end = np.where(later, nodes.end_ns[candidate], latest_end)
        heads.append(latest[latest >= 0])
        tails.append(replay[latest >= 0])
    if not heads:
        return []
    return [
        edges(
            EdgeType.GRAPH_ORDER,
            context.end_of(np.concatenate(heads)),
            context.start_of(np.concatenate(tails)),
        )
    ]


def event_waits(context: Context) -> list[EdgeBlock]:
    """EVENT: what a stream was told to wait for, by the records of events."""
    nodes = context.table.nodes
    waits = context.calls(ApiClass.STREAM_WAIT_EVENT)
    waits = waits[context.recorded[waits] & (context.sync_correlation[waits] >= 0)]
    source = _op_before_record(context, waits)
    target = context.launched.first_on_stream(context.own_stream[waits], nodes.sequence[waits])
    known = (source >= 0) & (target >= 0) & (context.own_stream[waits] >= 0)
    return [edges(EdgeType.EVENT, context.end_of(source[known]), context.start_of(target[known]))]


def _op_before_record(context: Context, waiters: I64) -> I64:
    """For calls that name an event record: the op that the event stands for, or -1."""
    nodes = context.table.nodes
    records = context.calls(ApiClass.EVENT_RECORD)
    if len(records) == 0 or len(waiters) == 0:
        return np.full(len(waiters), -1, np.int64)
    size = np.int64(max(int(context.correlation.max()), int(context.sync_correlation.max())) + 2)
    keys = nodes.trace[records] * size + context.correlation[records]
    order = np.argsort(keys, kind="stable")
    wanted = nodes.trace[waiters] * size + context.sync_correlation[waiters]
    at = np.minimum(np.searchsorted(keys[order], wanted), len(records) - 1)
    record = np.where(keys[order][at] == wanted, records[order[at]], -1)
    sequence = np.where(record >= 0, nodes.sequence[np.maximum(record, 0)], -1)
    source = context.launched.last_on_stream(context.sync_stream[waiters], sequence)
    return np.where((record >= 0) & (context.sync_stream[waiters] >= 0), source, -1)


def event_waits_inferred(context: Context) -> list[EdgeBlock]:
    """EVENT_INFERRED: waits without records.

    The next op that the flow of control launches waits for the last op that was launched on
    another stream before the wait; if it communicates, for the last that does not (what it sends
    was computed). A (from stream, to stream) pattern is kept if no instance of it contradicts the
    recorded times. Libraries also issue waits that mean something else in the
    same place (NCCL right after its launch), so a contradicted pattern is told apart further by
    the calls around it, and what is then never contradicted is kept.
    """
    nodes, launched = context.table.nodes, context.launched
    waits = context.calls(ApiClass.STREAM_WAIT_EVENT)
    waits = waits[~context.recorded[waits]]
    if len(waits) == 0 or len(launched.ops) == 0:
        return []
    target = launched.next_in_flow(context.flow[waits], nodes.sequence[waits])
    waits, target = waits[target >= 0], target[target >= 0]
    if len(waits) == 0:
        return []
    sequence, stream, gpu = nodes.sequence[waits], nodes.stream[target], nodes.gpu[target]
    communicates = np.isin(nodes.kind, (Kind.COLLECTIVE, Kind.P2P))
    source = np.where(
        communicates[target],
        _last_elsewhere(context, sequence, stream, gpu, ~communicates),
        _last_elsewhere(context, sequence, stream, gpu, context.on_gpu),
    )
    known = source >= 0
    waits, source, target = waits[known], source[known], target[known]
    holds = nodes.end_ns[source] <= nodes.start_ns[target] + CLOCK_STEP_NS
    streams = np.int64(len(context.table.streams) + 1)
    pair = nodes.stream[source] * streams + nodes.stream[target]
    keep = _never_violated(pair, holds)
    before, after = _neighbours(context, waits)
    current = launched.last_by_thread(nodes.thread[waits].astype(np.int64), nodes.sequence[waits])
    current_stream = np.where(current >= 0, nodes.stream[np.maximum(current, 0)], -1)
    context_of_wait, _ = number_rows(
        [pair, current_stream.astype(np.int64), before, after, nodes.thread[waits].astype(np.int64)]
    )
    finer = np.where(keep, -1 - pair, context_of_wait)
    keep |= _never_violated(finer, holds)
    kept = distinct(finer[keep])
    context.report.inferred_patterns_kept += len(kept)
    context.report.inferred_patterns_dropped += len(distinct(finer)) - len(kept)
    context.report.inferred_waits_dropped += int((~keep).sum())
    return [edges(EdgeType.EVENT_INFERRED, context.end_of(source[keep]), context.start_of(target[keep]))]


def _neighbours(context: Context, calls: I64) -> tuple[I64, I64]:
    """Class of the call before and after each call on its thread, -1 -> 31."""
    nodes = context.table.nodes
    every = np.flatnonzero(~context.on_gpu)
    every = every[np.lexsort((nodes.sequence[every], nodes.thread[every]))]
    same = nodes.thread[every][1:] == nodes.thread[every][:-1]
    classes = nodes.api_class[every].astype(np.int64)
    before, after = np.full(len(nodes), 31, np.int64), np.full(len(nodes), 31, np.int64)
    before[every[1:]] = np.where(same, classes[:-1], 31)
    after[every[:-1]] = np.where(same, classes[1:], 31)
    return before[calls], after[calls]


def _last_elsewhere(
    context: Context, sequence: I64, stream: np.ndarray, gpu: np.ndarray, eligible: Bool
) -> I64:
    """Last eligible op launched before ``sequence`` on the same GPU but another stream, or -1."""
    nodes, launched = context.table.nodes, context.launched
    result = np.full(len(sequence), -1, np.int64)
    for device in distinct(gpu):
        on_device = (nodes.gpu[launched.ops] == device) & eligible[launched.ops]
        ops, at_sequence = launched.ops[on_device], launched.ops_sequence[on_device]
        streams = nodes.stream[ops]
        # index of the last op before each op that is on another stream than it
        change = np.r_[True, streams[1:] != streams[:-1]]
        run_start = np.maximum.accumulate(np.where(change, np.arange(len(ops)), 0))
        rows = np.flatnonzero(gpu == device)
        if len(ops) == 0:
            continue
        at = np.searchsorted(at_sequence, sequence[rows], side="left") - 1
        same = (at >= 0) & (streams[np.maximum(at, 0)] == stream[rows])
        at = np.where(same, run_start[np.maximum(at, 0)] - 1, at)
        result[rows] = np.where(at >= 0, ops[np.maximum(at, 0)], -1)
    return result


def _never_violated(pattern: I64, holds: Bool) -> Bool:
    """Rows whose pattern holds in every instance."""
    if len(pattern) == 0:
        return np.zeros(0, bool)
    values, inverse = np.unique(pattern, return_inverse=True)
    broken = np.zeros(len(values), bool)
    np.logical_or.at(broken, inverse, ~holds)
    result: Bool = ~broken[inverse]
    return result


def _kept_patterns(context: Context, pattern: I64, holds: Bool) -> Bool:
    """As :func:`_never_violated`, and counts the patterns in the report."""
    keep = _never_violated(pattern, holds)
    context.report.inferred_patterns_kept += len(distinct(pattern[keep]))
    context.report.inferred_patterns_dropped += len(distinct(pattern[~keep]))
    return keep


def host_functions(context: Context) -> list[EdgeBlock]:
    """HOST_FUNCTION: a CPU function runs in stream order, between two ops of the stream.

    Its run time is not recorded; the gap that it left in the stream is constant under what-if.
    The stream is that of the next op which the thread launches. Inferred.
    """
    nodes, launched = context.table.nodes, context.launched
    calls = context.calls(ApiClass.HOST_FUNC)
    if len(calls) == 0 or len(launched.ops) == 0:
        return []
    target = launched.next_in_flow(context.flow[calls], nodes.sequence[calls])
    calls, target = calls[target >= 0], target[target >= 0]
    source = launched.last_on_stream(nodes.stream[target].astype(np.int64), nodes.sequence[calls])
    # The function starts when both the stream and the call have got there.
    ready = np.where(source >= 0, nodes.end_ns[np.maximum(source, 0)], NEVER)
    ready = np.maximum(ready, nodes.start_ns[calls])
    run = np.clip(nodes.start_ns[target] - ready, 0, MAX_HOST_FUNCTION_NS)
    blocks = [edges(EdgeType.HOST_FUNCTION, context.start_of(calls), context.start_of(target), lag_ns=run)]
    known = source >= 0
    blocks.append(
        edges(
            EdgeType.HOST_FUNCTION,
            context.end_of(source[known]),
            context.start_of(target[known]),
            lag_ns=run[known],
        )
    )
    return blocks


def contention(context: Context, ops: I64, ready_ns: I64) -> EdgeBlock:
    """CONTENTION: an op that was ready had to wait until a kernel on another stream let it in.

    A kernel that fills the GPU keeps others out until its last blocks are placed, whatever their
    stream. ``ops`` are those that started later than anything else explains, ``ready_ns`` when
    everything else was done. Each is held to the kernel that ran meanwhile: to the same share of
    it, so that slowing that kernel delays the op as it would on the hardware. This is no order
    that the program asked for, so it is inferred, and it is the one rule that looks at what bound.
    """
    nodes = context.table.nodes
    kernels = np.flatnonzero(nodes.kind == Kind.KERNEL)
    best = np.full(len(ops), -1, np.int64)
    best_end = np.full(len(ops), NEVER, np.int64)
    for stream in range(len(context.table.streams)):
        here = kernels[nodes.stream[kernels] == stream]
        if len(here) == 0:
            continue
        here = here[np.argsort(nodes.start_ns[here], kind="stable")]
        at = np.searchsorted(nodes.start_ns[here], nodes.start_ns[ops], side="left") - 1
        running = here[np.maximum(at, 0)]
        share = (nodes.start_ns[ops] - nodes.start_ns[running]) * 2 >= nodes.end_ns[running] - nodes.start_ns[
            running
        ]
        fits = (
            (at >= 0)
            & (nodes.stream[ops] != stream)
            & (nodes.gpu[ops] == nodes.gpu[running])
            & (nodes.start_ns[running] <= ready_ns + _LET_IN_NS)
            & (nodes.end_ns[running] >= nodes.start_ns[ops] - _LET_IN_NS)
            & share
            & (nodes.end_ns[running] > best_end)
        )
        best = np.where(fits, running, best)
        best_end = np.where(fits, nodes.end_ns[running], best_end)
    op, running = ops[best >= 0], best[best >= 0]
    run = np.minimum(nodes.start_ns[op], nodes.end_ns[running]) - nodes.start_ns[running]
    return edges(
        EdgeType.CONTENTION,
        context.start_of(running),
        context.start_of(op),
        lag_ns=np.maximum(nodes.start_ns[op] - nodes.end_ns[running], 0),
        scaled_ns=run,
        owner=context.node_owner(running),
    )


# --- GPU -> CPU ---------------------------------------------------------------------------------


def _hold(context: Context, type: EdgeType, source: I64, call: I64, *, check: bool) -> EdgeBlock:
    """Edges from the end of a GPU op to the end of the call that waits for it.

    The lag, what the call still does after the GPU has let it go, is filled in by
    :func:`call_durations`. With ``check``, an instance that the recorded times contradict is
    left out (the rule's knowledge is inferred); without, the build counts it as violated.
    """
    nodes = context.table.nodes
    possible = nodes.end_ns[source] <= nodes.end_ns[call] + CLOCK_STEP_NS
    if check:
        source, call = source[possible], call[possible]
        until = nodes.end_ns[source]
    else:
        until = np.where(possible, nodes.end_ns[source], NEVER)
    np.maximum.at(context.blocked_until_ns, call, until)
    return edges(type, context.end_of(source), context.end_of(call))


def device_syncs(context: Context) -> list[EdgeBlock]:
    """SYNC: a device (or context) synchronise waits for the last op of every stream."""
    calls = context.calls(ApiClass.SYNC_DEVICE)
    source, call = _last_on_every_stream(context, calls)
    return [_hold(context, EdgeType.SYNC, source, call, check=False)]


def _last_on_every_stream(context: Context, calls: I64) -> tuple[I64, I64]:
    """(op, call) for every call and every stream of its device with an op launched before the call.

    A call does not name its device: it is any that the flow of control launches on, or all devices of
    the process if it launches nothing.
    """
    nodes, launched = context.table.nodes, context.launched
    flow = context.flow[calls]
    launching = context.flow[np.maximum(nodes.launch[launched.ops], 0)]
    launching = np.where(nodes.launch[launched.ops] >= 0, launching, -1)
    launches_nothing = ~np.isin(flow, launching)
    sources: list[I64] = []
    targets: list[I64] = []
    for number, (trace, device, _) in enumerate(context.table.streams):
        gpu = context.table.gpus.index((trace, device))
        on_this = np.isin(flow, launching[nodes.gpu[launched.ops] == gpu])
        mine = calls[(nodes.trace[calls] == trace) & (on_this | launches_nothing)]
        last = launched.last_on_stream(np.full(len(mine), number, np.int64), nodes.sequence[mine])
        sources.append(last[last >= 0])
        targets.append(mine[last >= 0])
    if not sources:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    return np.concatenate(sources), np.concatenate(targets)


def recorded_syncs(context: Context) -> list[EdgeBlock]:
    """SYNC: stream and event synchronise whose stream or event a record names."""
    nodes = context.table.nodes
    streams = context.calls(ApiClass.SYNC_STREAM)
    named = np.where(
        context.sync_stream[streams] >= 0, context.sync_stream[streams], context.own_stream[streams]
    )
    source = context.launched.last_on_stream(named, nodes.sequence[streams])
    known = (named >= 0) & (source >= 0)
    blocks = [_hold(context, EdgeType.SYNC, source[known], streams[known], check=False)]
    events = context.calls(ApiClass.SYNC_EVENT)
    events = events[context.sync_correlation[events] >= 0]
    source = _op_before_record(context, events)
    known = source >= 0
    blocks.append(_hold(context, EdgeType.SYNC, source[known], events[known], check=False))
    return blocks


def polls(context: Context) -> list[EdgeBlock]:
    """POLL: an event query that a record proves successful came after its event."""
    queries = context.calls(ApiClass.EVENT_QUERY)
    queries = queries[context.sync_correlation[queries] >= 0]
    source = _op_before_record(context, queries)
    known = source >= 0
    return [_hold(context, EdgeType.POLL, source[known], queries[known], check=True)]


def inferred_syncs(context: Context) -> list[EdgeBlock]:
    """SYNC_INFERRED: stream and event synchronise without records.

    The candidate is the last op that the same thread launched before the call. If the call
    lasted well beyond that op, the last op of another stream that ended just before the call
    did explains it better. A pattern of streams is kept only if it is never contradicted.
    """
    nodes, launched = context.table.nodes, context.launched
    calls = context.calls(ApiClass.SYNC_STREAM, ApiClass.SYNC_EVENT)
    told = context.recorded[calls] & (context.sync_correlation[calls] != -1)
    calls = calls[~context.names_stream[calls] & ~told]
    if len(calls) == 0:
        return []
    source = launched.last_by_thread(nodes.thread[calls].astype(np.int64), nodes.sequence[calls])
    source = _better_explained(context, calls, source)
    calls, source = calls[source >= 0], source[source >= 0]
    pattern = nodes.thread[calls].astype(np.int64) * len(context.table.streams) + nodes.stream[source]
    keep = _kept_patterns(context, pattern, nodes.end_ns[source] <= nodes.end_ns[calls] + CLOCK_STEP_NS)
    return [_hold(context, EdgeType.SYNC_INFERRED, source[keep], calls[keep], check=True)]


def _better_explained(context: Context, calls: I64, source: I64) -> I64:
    nodes = context.table.nodes
    end = nodes.end_ns[calls]
    own_end = np.where(source >= 0, nodes.end_ns[np.maximum(source, 0)], NEVER)
    late = np.maximum(own_end, nodes.start_ns[calls])
    doubtful = np.flatnonzero((end - late > _WAKE_UP_NS) | (own_end > end + CLOCK_STEP_NS))
    if len(doubtful) == 0:
        return source
    other, call = _last_on_every_stream(context, calls[doubtful])
    fits = (nodes.end_ns[other] <= nodes.end_ns[call] + CLOCK_STEP_NS) & (
        nodes.end_ns[call] - nodes.end_ns[other] <= _WAKE_UP_NS
    )
    other, call = other[fits], call[fits]
    order = np.argsort(nodes.end_ns[other], kind="stable")
    best = dict(zip(call[order].tolist(), other[order].tolist(), strict=True))  # the latest end wins
    result = source.copy()
    for position in doubtful.tolist():
        result[position] = best.get(int(calls[position]), result[position])
    return result


def blocking_copies(context: Context) -> list[EdgeBlock]:
    """BLOCKING_COPY: copies that return when the data has moved.

    Synchronous copy calls wait for their own copy. So do "asynchronous" ones on pageable memory;
    towards the GPU they return once the data is staged, while the last part is still moving: such
    a call is held to the same share of its copy.
    """
    nodes = context.table.nodes
    ops = np.flatnonzero(context.on_gpu & (nodes.kind == Kind.MEMCPY) & (nodes.launch >= 0))
    call = nodes.launch[ops].astype(np.int64)
    blocking = nodes.api_class[call] == ApiClass.MEMCPY
    pageable = np.zeros(len(ops), bool)
    for index, trace in enumerate(context.traces):
        is_pageable = np.array(["pageable" in name.lower() for name in trace.names], bool)
        mine = nodes.trace[ops] == index
        pageable[mine] = is_pageable[trace.ops.name_id[nodes.row[ops[mine]]]]
    held = blocking | pageable
    ops, call = ops[held], call[held]
    whole = nodes.end_ns[ops] <= nodes.end_ns[call] + CLOCK_STEP_NS
    blocks = [_hold(context, EdgeType.BLOCKING_COPY, ops[whole], call[whole], check=True)]
    staged = ~whole & (nodes.start_ns[ops] < nodes.end_ns[call])
    if staged.any():
        ops, call = ops[staged], call[staged]
        np.maximum.at(context.blocked_until_ns, call, nodes.end_ns[call])
        blocks.append(
            edges(
                EdgeType.BLOCKING_COPY,
                context.start_of(ops),
                context.end_of(call),
                scaled_ns=nodes.end_ns[call] - nodes.start_ns[ops],
                owner=context.node_owner(ops),
            )
        )
    return blocks


def implicit_syncs(context: Context) -> list[EdgeBlock]:
    """IMPLICIT_SYNC: free waits for all work launched before; malloc may.

    Kept per kind of call, and only if no instance is contradicted.
    """
    nodes = context.table.nodes
    blocks = []
    for api_class in (ApiClass.FREE, ApiClass.ALLOC):
        source, call = _last_on_every_stream(context, context.calls(api_class))
        if len(call) == 0:
            continue
        keep = _kept_patterns(
            context,
            nodes.trace[call].astype(np.int64),
            nodes.end_ns[source] <= nodes.end_ns[call] + CLOCK_STEP_NS,
        )
        blocks.append(_hold(context, EdgeType.IMPLICIT_SYNC, source[keep], call[keep], check=True))
    return blocks


def back_pressure(context: Context) -> list[EdgeBlock]:
    """BACK_PRESSURE: with Q launches queued per GPU, the next launch call waits for the oldest.

    Always kept, although it rarely binds in the recorded run: it is what stops a CPU from
    running ahead for ever when the GPU is made slower. What the held call launches cannot run
    before either; on the stream of the op that frees the slot, that goes without saying.
    """
    nodes, launched = context.table.nodes, context.launched
    linked = launched.ops[nodes.launch[launched.ops] >= 0]
    blocks = []
    for gpu in range(len(context.table.gpus)):
        ops = linked[nodes.gpu[linked] == gpu]
        if len(ops) == 0:
            continue
        launch = nodes.launch[ops].astype(np.int64)
        order = np.lexsort((nodes.end_ns[ops], nodes.stream[ops], nodes.sequence[launch]))
        ops, launch = ops[order], launch[order]
        starts_launch = np.r_[True, launch[1:] != launch[:-1]]
        place = np.cumsum(starts_launch) - 1  # of the launch among those of this GPU
        call = launch[starts_launch]
        ends_ns = np.maximum.reduceat(nodes.end_ns[ops], np.flatnonzero(starts_launch))
        outstanding = _outstanding(nodes.start_ns[call], ends_ns)
        depth = max(context.queue_depth, outstanding)  # the run proves that the queue is at least this deep
        context.report.max_outstanding_launches = max(context.report.max_outstanding_launches, outstanding)
        context.report.queue_depth = max(context.report.queue_depth, depth)
        # One slot per launch; it is free when the last op of that launch has ended, on every stream.
        is_last = starts_launch | (nodes.stream[ops] != np.r_[np.int32(-1), nodes.stream[ops][:-1]])
        frees, freed = ops[np.r_[is_last[1:], True]], place[np.r_[is_last[1:], True]]
        holds = freed + depth < len(call)
        blocks.append(
            _hold(context, EdgeType.BACK_PRESSURE, frees[holds], call[freed[holds] + depth], check=True)
        )
        op, slot = _pairs_at_distance(ops, place, frees, freed, depth)
        elsewhere = (nodes.stream[op] != nodes.stream[slot]) & (nodes.end_ns[slot] <= nodes.start_ns[op])
        blocks.append(
            edges(EdgeType.BACK_PRESSURE, context.end_of(slot[elsewhere]), context.start_of(op[elsewhere]))
        )
    return blocks


def _pairs_at_distance(ops: I64, place: I64, frees: I64, freed: I64, depth: int) -> tuple[I64, I64]:
    """(op, slot) for every op and every one of ``frees`` whose place is ``depth`` before the op's.

    ``freed`` is sorted.
    """
    wanted = place - depth
    first, stop = np.searchsorted(freed, wanted, side="left"), np.searchsorted(freed, wanted, side="right")
    count = stop - first
    offset = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
    return np.repeat(ops, count), frees[np.repeat(first, count) + offset]


def _outstanding(launched_ns: I64, ended_ns: I64) -> int:
    """Most launches that were issued and not finished at one time."""
    finished = np.searchsorted(np.sort(ended_ns), launched_ns, side="right")
    return int((np.arange(1, len(launched_ns) + 1) - finished).max(initial=0))


# --- CPU side -----------------------------------------------------------------------------------


def call_durations(context: Context, blocks: list[EdgeBlock]) -> list[EdgeBlock]:
    """PROGRAM: a call takes its duration less the time in which its GPU predecessor held it.

    Fills the same remainder into the lags of the edges that hold the call.
    """
    nodes = context.table.nodes
    calls = np.flatnonzero(~context.on_gpu)
    free_from = np.maximum(nodes.start_ns, context.blocked_until_ns)
    own = np.maximum(nodes.end_ns - free_from, 0)
    owner = np.where(nodes.thread >= 0, 1 + nodes.thread.astype(np.int64), 0)
    own_edges = edges(
        EdgeType.PROGRAM,
        context.start_of(calls),
        context.end_of(calls),
        scaled_ns=own[calls],
        owner=owner[calls],
    )
    filled = []
    for block in blocks:
        call = block.dst // 2
        holds = (block.owner == 0) & (block.dst % 2 == 1)
        filled.append(
            EdgeBlock(
                block.type,
                block.src,
                block.dst,
                block.lag_ns,
                np.where(holds, own[call], block.scaled_ns),
                np.where(holds, owner[call], block.owner),
            )
        )
    return [own_edges, *filled]
