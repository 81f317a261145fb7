"""Which calls, framework ops and kernels the critical path consists of."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from emo.analysis import Analysis
from emo.graph.model import Bool, Graph
from emo.report.states import State, path_states
from emo.trace.model import I32, I64, Labels

OPENING = "before the first record on the path"
OUTSIDE = "outside any framework op"
BETWEEN = "latency, and what nothing explains"


@dataclass(frozen=True, slots=True)
class Contributor:
    """One name on the critical path: its time, and in how many stretches."""

    state: State
    name: str
    time_ns: int
    stretches: int


def top_contributors(analysis: Analysis, most: int) -> list[Contributor]:
    """The names with the most time on the critical path, largest first.

    CPU time inside an API call has the call's name; between calls it has that of the innermost
    framework op that was running on the thread.
    """
    path = analysis.path
    time_ns: Counter[tuple[int, str]] = Counter()
    stretches: Counter[tuple[int, str]] = Counter()
    lengths = (path.end_ns - path.start_ns).tolist()
    for state, name, length in zip(path_states(path).tolist(), stretch_names(analysis), lengths, strict=True):
        time_ns[state, name] += length
        stretches[state, name] += 1
    largest = sorted(time_ns, key=lambda key: (-time_ns[key], key))[:most]
    return [Contributor(State(key[0]), key[1], time_ns[key], stretches[key]) for key in largest]


def stretch_names(analysis: Analysis) -> list[str]:
    """A name for each stretch of the critical path."""
    graph, path = analysis.graph, analysis.path
    result = [BETWEEN] * len(path.spent)
    if path.capture_ns:
        result[0] = OPENING
    known = path.node >= 0
    between_calls = (
        known & (path.thread >= 0) & (path.start_ns < graph.nodes.start_ns[np.maximum(path.node, 0)])
    )
    for stretch in np.flatnonzero((path.thread >= 0) & ~known).tolist():
        result[stretch] = OUTSIDE
    for trace in range(len(graph.traces)):
        _name_ops(graph, trace, path.node, known & ~between_calls, result)
        _name_gaps(analysis, trace, between_calls, result)
    return result


def _name_ops(graph: Graph, trace: int, node: I32, wanted: Bool, result: list[str]) -> None:
    stretches = np.flatnonzero(wanted & (graph.nodes.trace[np.maximum(node, 0)] == trace))
    names = graph.traces[trace].names
    ids = graph.traces[trace].ops.name_id[graph.nodes.row[node[stretches]]]
    for stretch, name_id in zip(stretches.tolist(), ids.tolist(), strict=True):
        result[stretch] = names[name_id]


def _name_gaps(analysis: Analysis, trace: int, wanted: Bool, result: list[str]) -> None:
    """Name CPU time between calls by the framework op in whose midst it lies."""
    graph, path = analysis.graph, analysis.path
    own = graph.traces[trace]
    for thread in sorted(set(path.thread[wanted].tolist())):
        if graph.threads[thread][0] != trace:
            continue
        stretches = np.flatnonzero(wanted & (path.thread == thread))
        node = path.node[stretches]
        # From the graph's clock to that of the file, by the op that both know.
        shift = own.ops.start_ns[graph.nodes.row[node]] - graph.nodes.start_ns[node]
        middle = (path.start_ns[stretches] + path.end_ns[stretches]) // 2 + shift
        begins, name_ids = _innermost(own.labels, graph.threads[thread][1])
        at = np.searchsorted(begins, middle, side="right") - 1
        for stretch, name_id in zip(stretches.tolist(), name_ids[at].tolist(), strict=True):
            result[stretch] = own.names[name_id] if name_id >= 0 else OUTSIDE


def _innermost(labels: Labels, thread: int) -> tuple[I64, I64]:
    """(times, name id from each time on) of the innermost label of one thread; -1 where there is none."""
    mine = labels.thread == thread
    begins, names = [int(np.iinfo(np.int64).min)], [-1]
    stack: list[tuple[int, int]] = []  # (end, name id) of the labels that are open

    def close(until: int) -> None:
        while stack and stack[-1][0] <= until:
            end, _ = stack.pop()
            begins.append(end)
            names.append(stack[-1][1] if stack else -1)

    columns = (labels.start_ns[mine].tolist(), labels.end_ns[mine].tolist(), labels.name_id[mine].tolist())
    for start, end, name_id in zip(*columns, strict=True):
        close(start)
        stack.append((min(end, stack[-1][0]) if stack else end, name_id))
        begins.append(start)
        names.append(name_id)
    close(np.iinfo(np.int64).max)
    return np.array(begins, np.int64), np.array(names, np.int64)
