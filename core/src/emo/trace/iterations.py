"""Where the workload repeats itself.

Tried in this order, and the first that finds at least three wins: the marks of
PyTorch's profiler, the marks of its optimisers, named ranges that repeat, replays
of a CUDA graph, the sequence of kernels. The later ones know less, so they are
asked only where the earlier ones say nothing.

Layers of a model repeat just as its iterations do. What tells them apart is the
CPU: once per iteration it waits for the GPU or fetches a result, and in a layer it
does not. So what only *looks* like an iteration must hold such a contact each time.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from emo.trace.classify import LAUNCHING, ApiClass, NameClasses, classify_names
from emo.trace.columns import lane_of, one_of, row_of, runs
from emo.trace.model import API_KINDS, GPU_KINDS, I64, Iteration, Kind, Labels, Ops, Thread

ENOUGH = 3
"""With fewer iterations there is no steady step time."""

MIN_COVERAGE = 0.8
"""What repeats must hold this share of the launches (or kernels) to be the workload's step."""

MIN_GRAPH_SHARE = 0.5
"""Replays count as iterations only if this share of the GPU's time is launched by graphs."""

MIN_LAUNCHED = 0.9
"""Where fewer kernels have a launch, iterations are cut at the kernels' own starts."""

MIN_BLIND_PERIOD = 100
"""GPU ops per repetition, where no call of the CPU was recorded that could tell more."""

MAX_CANDIDATES = 32
"""Periods that are looked at closely; a sequence of equal kernels is alike at every lag."""

_PROFILER_STEP = re.compile(r"ProfilerStep\s*#?\s*\d+")
_OPTIMIZER_STEP = re.compile(r"Optimizer\.step#")
_NUMBER = re.compile(r"\d+")
_SAYS_ITERATION = re.compile(r"\b(?:iter(?:ation)?|step|batch|request)s?\b", re.IGNORECASE)


def find_iterations(
    ops: Ops,
    labels: Labels,
    names: Sequence[str],
    threads: Sequence[Thread],
    classes: NameClasses | None = None,
) -> tuple[list[Iteration], str]:
    """Iterations of a trace, sorted and disjoint, and by what they were found.

    Fewer than three by every method: the most that any of them found, with its
    source; ``([], "none")`` if none found anything.
    """
    classes = classes or classify_names(names)
    marks = _Marks(ops, labels, names)
    contacts = _Contacts(ops, names, classes)
    methods: tuple[tuple[str, Callable[[], list[Iteration]]], ...] = (
        ("ProfilerStep", marks.profiler_steps),
        ("Optimizer.step", marks.optimizer_steps),
        ("nvtx", lambda: _named_ranges(ops, marks, classes, contacts)),
        ("graph", lambda: _graph_replays(ops, classes, contacts)),
        ("period", lambda: _kernel_periods(ops, contacts)),
    )
    best: list[Iteration] = []
    source = "none"
    for name, method in methods:
        found = method()
        if len(found) > len(best):
            best, source = found, name
        if len(found) >= ENOUGH:
            return found, name
    return best, source


# --------------------------------------------------------------------------- marks


class _Marks:
    """Named CPU ranges: annotations, and marks that 2021 traces hold among the labels."""

    def __init__(self, ops: Ops, labels: Labels, names: Sequence[str]) -> None:
        rows = np.flatnonzero(ops.kind == Kind.ANNOTATION)
        step_ids = [i for i, name in enumerate(names) if name.startswith(("ProfilerStep", "Optimizer.step#"))]
        wanted = np.zeros(len(names), dtype=bool)
        wanted[step_ids] = True
        old = np.flatnonzero(wanted[labels.name_id]) if len(labels) else np.empty(0, np.int64)
        self.start_ns = np.concatenate((ops.start_ns[rows], labels.start_ns[old]))
        self.end_ns = np.concatenate((ops.end_ns[rows], labels.end_ns[old]))
        self.thread = np.concatenate((ops.thread[rows], labels.thread[old]))
        self.name_id = np.concatenate((ops.name_id[rows], labels.name_id[old]))
        self.names = names
        calls = ops.end_ns[one_of(ops.kind, API_KINDS)]
        self.last_call_ns = int(calls.max()) + 1 if len(calls) else 0

    def rows_by_name(self, accept: Callable[[str], bool]) -> dict[str, I64]:
        """Rows of each accepted name, sorted by start."""
        order = np.lexsort((np.arange(len(self.start_ns)), self.start_ns, self.name_id))
        groups = ((self.names[int(self.name_id[rows[0]])], rows) for rows in runs(order, self.name_id))
        return {name: rows for name, rows in groups if accept(name)}

    def profiler_steps(self) -> list[Iteration]:
        """``ProfilerStep#N``: the range is the iteration."""
        found = [
            Iteration(int(self.start_ns[row]), int(self.end_ns[row]), name)
            for name, rows in self.rows_by_name(lambda n: bool(_PROFILER_STEP.match(n))).items()
            for row in rows
        ]
        return _disjoint(sorted(found, key=lambda it: (it.start_ns, it.end_ns)))

    def optimizer_steps(self) -> list[Iteration]:
        """``Optimizer.step#...``: from the end of one to the end of the next of the same name."""
        by_name = self.rows_by_name(lambda n: bool(_OPTIMIZER_STEP.match(n)))
        if not by_name:
            return []
        # Of several optimisers the one that steps most often, and of those the one that steps last.
        name = max(by_name, key=lambda n: (len(by_name[n]), int(self.end_ns[by_name[n]].max())))
        rows = by_name[name]
        ends = self.end_ns[rows].tolist()
        if ends[-1] == self.start_ns[rows[-1]]:
            ends[-1] = max(
                ends[-1], self.last_call_ns
            )  # an instant: it was still open when recording stopped
        return _disjoint([Iteration(a, b, f"{name} {i}") for i, (a, b) in enumerate(pairwise(ends), 1)])


class _Contacts:
    """When the CPU waits for the GPU or takes something from it."""

    def __init__(self, ops: Ops, names: Sequence[str], classes: NameClasses) -> None:
        api = one_of(ops.kind, API_KINDS)
        self.known = bool(api.any())
        waits = (ops.kind == Kind.SYNC) | (api & (classes.api_class[ops.name_id] == ApiClass.MEMCPY))
        to_host = np.array([("DtoH" in name) or ("Device -> Host" in name) for name in names], dtype=bool)
        fetches = np.flatnonzero((ops.kind == Kind.MEMCPY) & to_host[ops.name_id])
        calls = np.flatnonzero(api & (ops.correlation >= 0))
        launch = row_of(ops.correlation[calls], calls, ops.correlation[fetches])
        fetched_ns = np.where(launch >= 0, ops.start_ns[launch], ops.start_ns[fetches])
        self.at_ns = np.sort(np.concatenate((ops.start_ns[waits], fetched_ns)))

    def in_each(self, found: list[Iteration]) -> bool:
        """True if no iteration goes by without a contact."""
        bounds = np.array([(it.start_ns, it.end_ns) for it in found], dtype=np.int64).reshape(-1, 2)
        at = np.searchsorted(self.at_ns, bounds)
        return bool(np.all(at[:, 1] > at[:, 0]))


def _disjoint(found: list[Iteration]) -> list[Iteration]:
    """Without empty iterations and those that overlap an earlier one (the same mark twice)."""
    result: list[Iteration] = []
    for item in found:
        if item.end_ns > item.start_ns and (not result or item.start_ns >= result[-1].end_ns):
            result.append(item)
    return result


def _named_ranges(ops: Ops, marks: _Marks, classes: NameClasses, contacts: _Contacts) -> list[Iteration]:
    """Ranges with the same text, numbers aside, that hold nearly all launches of the busiest thread."""
    calls = np.flatnonzero(one_of(ops.kind, API_KINDS) & one_of(classes.api_class[ops.name_id], LAUNCHING))
    if not len(calls) or not len(marks.start_ns):
        return []
    threads, counts = np.unique(ops.thread[calls], return_counts=True)
    main = int(threads[np.argmax(counts)])
    launched_ns = ops.start_ns[calls[ops.thread[calls] == main]]

    by_text: dict[str, list[int]] = defaultdict(list)
    here = np.flatnonzero(marks.thread == main)
    for row in here[np.argsort(marks.start_ns[here], kind="stable")].tolist():
        by_text[_NUMBER.sub("#", marks.names[marks.name_id[row]])].append(row)

    best: list[Iteration] = []
    best_held = 0
    for text, rows in by_text.items():
        if len(rows) < ENOUGH or text.startswith(("ProfilerStep", "Optimizer.")):
            continue
        start, end = marks.start_ns[rows], marks.end_ns[rows]
        if np.any(start[1:] < end[:-1]):
            continue
        held = np.searchsorted(launched_ns, end) - np.searchsorted(launched_ns, start)
        total = int(held.sum())
        if total <= best_held or total < MIN_COVERAGE * len(launched_ns) or not held.all():
            continue
        found = [
            Iteration(int(start[i]), int(end[i]), marks.names[marks.name_id[row]])
            for i, row in enumerate(rows)
        ]
        if _SAYS_ITERATION.search(text) or contacts.in_each(found):
            best, best_held = found, total
    return best


# --------------------------------------------------------------------------- replays and kernels


def _graph_replays(ops: Ops, classes: NameClasses, contacts: _Contacts) -> list[Iteration]:
    """From one launch of a graph to the next, where the same sequence of graphs repeats."""
    calls = np.flatnonzero(
        one_of(ops.kind, API_KINDS)
        & (classes.api_class[ops.name_id] == ApiClass.GRAPH_LAUNCH)
        & (ops.correlation >= 0)
    )
    if len(calls) < ENOUGH:
        return []
    gpu = np.flatnonzero(one_of(ops.kind, GPU_KINDS))
    call = row_of(ops.correlation[calls], np.arange(len(calls)), ops.correlation[gpu])
    length_ns = ops.end_ns[gpu] - ops.start_ns[gpu]
    if length_ns[call >= 0].sum() < MIN_GRAPH_SHARE * length_ns.sum():
        return []
    symbols = _symbols(ops, gpu)
    sequence: list[list[int]] = [[] for _ in range(len(calls))]
    for position in np.flatnonzero(call >= 0).tolist():
        sequence[call[position]].append(int(symbols[position]))
    replayed = [i for i, items in enumerate(sequence) if items]
    graph_of = {key: number for number, key in enumerate(dict.fromkeys(tuple(sequence[i]) for i in replayed))}
    graphs = np.array([graph_of[tuple(sequence[i])] for i in replayed], dtype=np.int64)
    starts = ops.start_ns[calls[replayed]]
    return _periods(graphs, starts, None, "replay", contacts.in_each)


def _kernel_periods(ops: Ops, contacts: _Contacts) -> list[Iteration]:
    """Repetitions of the kernel sequence on the busiest stream, cut where their first kernel is launched."""
    gpu = np.flatnonzero(one_of(ops.kind, GPU_KINDS))
    total = len(gpu)
    if total < ENOUGH:
        return []
    lane = lane_of(ops.device[gpu], ops.stream[gpu])
    lanes, which = np.unique(lane, return_inverse=True)
    busy_ns = np.bincount(which, weights=ops.end_ns[gpu] - ops.start_ns[gpu], minlength=len(lanes))
    gpu = gpu[which == int(np.argmax(busy_ns))]

    calls = np.flatnonzero(one_of(ops.kind, API_KINDS) & (ops.correlation >= 0))
    launch = row_of(ops.correlation[calls], calls, ops.correlation[gpu])
    at_ns = ops.start_ns[gpu]
    if np.count_nonzero(launch >= 0) >= MIN_LAUNCHED * len(gpu):
        # The few without a launch count as launched with the one before; order is the stream's.
        at_ns = np.maximum.accumulate(np.where(launch >= 0, ops.start_ns[launch], ops.start_ns[0]))
    symbols = _symbols(ops, gpu)
    accept = contacts.in_each if contacts.known else lambda found: total >= MIN_BLIND_PERIOD * len(found)
    # GPU records only: there is no CPU work after the last kernel that could be missing.
    end_ns = None if contacts.known else _last_end(ops)
    return _periods(symbols, at_ns, end_ns, "period", accept)


def _last_end(ops: Ops) -> int:
    return int(ops.end_ns[ops.kind != Kind.ANNOTATION].max())


def _symbols(ops: Ops, rows: I64) -> I64:
    """A small number per different (name, grid, block); the same for equal kernels."""
    key = ops.shape_hash[rows] * 1_000_003 + ops.name_id[rows]  # wraps silently: it is a hash
    symbols: I64 = np.unique(key, return_inverse=True)[1].astype(np.int64)
    return symbols


def _periods(
    symbols: I64, at_ns: I64, end_ns: int | None, name: str, accept: Callable[[list[Iteration]], bool]
) -> list[Iteration]:
    """Cut a sequence into its repetitions: ``[at[first], at[next first])``; empty if it does not repeat.

    A repetition ends where the next begins. When the last one is followed by nothing, the CPU work
    after it is not in the trace: it ends at ``end_ns``, or is left out if that is None.
    ``at_ns`` says when each item was launched. At least three repetitions must hold
    MIN_COVERAGE of all items. The shortest period that ``accept`` takes wins.
    """
    for period in _candidate_periods(symbols):
        first, count = _longest_run(symbols, period)
        repeats = count // period
        if repeats < ENOUGH or repeats * period < MIN_COVERAGE * len(symbols):
            continue
        first += _phase(at_ns, first, period, repeats, count - repeats * period)
        bounds = [int(at_ns[first + i * period]) for i in range(repeats)]
        after = first + repeats * period
        if after < len(at_ns):
            bounds.append(int(at_ns[after]))
        elif end_ns is not None:
            bounds.append(end_ns)
        if len(bounds) <= ENOUGH:
            continue
        found = _disjoint([Iteration(a, b, f"{name} {i}") for i, (a, b) in enumerate(pairwise(bounds), 1)])
        if accept(found):
            return found
    return []


def _candidate_periods(symbols: I64) -> list[int]:
    """Lags at which the sequence equals itself about as well as at any, the shortest first.

    Each symbol becomes a random phase, so that the autocorrelation (by FFT, n log n)
    counts equal pairs; the likeliest lags are then counted exactly.
    """
    n = len(symbols)
    if n < ENOUGH:
        return []
    rng = np.random.default_rng(0)  # fixed: the same trace gives the same answer
    phase = np.exp(2j * np.pi * rng.random(int(symbols.max()) + 1))[symbols]
    size = 1 << int(2 * n - 1).bit_length()
    spectrum = np.fft.fft(phase, size)
    likeness = np.fft.ifft(np.abs(spectrum) ** 2).real[:n] / (n - np.arange(n))
    lags = np.flatnonzero(likeness[1 : n // ENOUGH + 1] >= MIN_COVERAGE) + 1
    if not len(lags):
        return []
    lags = np.sort(lags[np.argsort(-likeness[lags], kind="stable")[:MAX_CANDIDATES]])
    equal = np.array([np.count_nonzero(symbols[lag:] == symbols[:-lag]) / (n - lag) for lag in lags])
    chosen: list[int] = lags[equal >= equal.max() - 1e-3].tolist()
    return chosen


def _longest_run(symbols: I64, period: int) -> tuple[int, int]:
    """Start and length of the longest stretch that repeats with ``period`` throughout."""
    differs = np.flatnonzero(symbols[period:] != symbols[:-period])
    edges = np.concatenate(([-1], differs, [len(symbols) - period]))
    length = np.diff(edges) - 1
    best = int(np.argmax(length))
    return int(edges[best]) + 1, int(length[best]) + period if length[best] else 0


def _phase(at_ns: I64, first: int, period: int, repeats: int, spare: int) -> int:
    """Of the ``spare + 1`` possible first items the one before which launches pause longest."""
    if not spare:
        return 0
    pause_ns = np.diff(at_ns, prepend=at_ns[:1])
    cuts = first + np.arange(spare + 1)[:, None] + period * np.arange(repeats)[None, :]
    return int(np.argmax(np.median(pause_ns[cuts], axis=1)))
