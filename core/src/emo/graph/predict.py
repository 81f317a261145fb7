"""The predictive test: does the structure of one iteration foretell another?

A graph that stores every remainder reproduces its own trace whatever its edges say. So the
edges and latencies of iteration i are replayed with the op durations, CPU work and peer waits
of iteration j and nothing unexplained, starting from where iteration j really started. What
comes out is compared with when iteration j really ended.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from emo import _native
from emo.graph.model import NEVER, Bool, EdgeType, Graph, PointKind
from emo.trace.columns import distinct
from emo.trace.model import I64

# Iterations whose ops correspond less than this are different programs (an evaluation step, a
# checkpoint): one does not foretell the other.
_MIN_CORRESPONDENCE = 0.9

# All pairs of up to this many iterations; of more, as many spread evenly.
MAX_ITERATIONS = 40

# Edges that hold a call until the GPU got somewhere weigh what the call still does after that.
_HOLDING = (
    EdgeType.SYNC,
    EdgeType.SYNC_INFERRED,
    EdgeType.POLL,
    EdgeType.BLOCKING_COPY,
    EdgeType.IMPLICIT_SYNC,
    EdgeType.BACK_PRESSURE,
)


@dataclass(frozen=True, slots=True)
class Prediction:
    """Iteration ``target`` as foretold by the structure of ``source``.

    Step: CPU mark to CPU mark. Completion: until the work launched in it is done on the GPUs,
    from the same beginning.
    """

    source: int
    target: int
    step_ns: int
    predicted_step_ns: int
    completion_ns: int
    predicted_completion_ns: int

    @property
    def step_error(self) -> float:
        """|predicted / real - 1| of the step time."""
        return abs(self.predicted_step_ns / self.step_ns - 1.0)

    @property
    def completion_error(self) -> float:
        """|predicted / real - 1| of the time until the iteration's GPU work is done."""
        return abs(self.predicted_completion_ns / self.completion_ns - 1.0)


@dataclass(frozen=True, slots=True)
class PredictionErrors:
    """Summary over all pairs. ``None`` where there are too few iterations to try."""

    pairs: int
    skipped_pairs: int
    median: float | None
    p95: float | None
    completion_median: float | None
    completion_p95: float | None


def summarize(predictions: list[Prediction], skipped: int) -> PredictionErrors:
    """Median and 95th percentile of the errors."""
    if not predictions:
        return PredictionErrors(0, skipped, None, None, None, None)
    step = np.array([p.step_error for p in predictions])
    done = np.array([p.completion_error for p in predictions])
    return PredictionErrors(
        len(predictions),
        skipped,
        float(np.quantile(step, 0.5)),  # np.median imports numpy.ma
        float(np.quantile(step, 0.95)),
        float(np.quantile(done, 0.5)),
        float(np.quantile(done, 0.95)),
    )


def predict_iterations(graph: Graph, replays: IterationReplays | None = None) -> tuple[list[Prediction], int]:
    """All ordered pairs of iterations that have a predecessor; returns (predictions, pairs skipped).

    Of more than ``MAX_ITERATIONS`` iterations, that many are taken, evenly spread.
    """
    count = len(graph.iterations)
    if count < 4 or (graph.iterations.end_points < 0).any():
        return [], 0
    cross = replays or IterationReplays(graph)
    predictions, skipped = [], 0
    chosen = _spread(count)
    for source in chosen:
        window = cross.window(source)
        for target in chosen:
            if target == source:
                continue
            prediction = cross.predict(window, source, target)
            if prediction is None:
                skipped += 1
            else:
                predictions.append(prediction)
    return predictions, skipped


def unexplained_by_iteration(graph: Graph, replays: IterationReplays | None = None) -> dict[int, float]:
    """|replay with nothing unexplained / recorded - 1| of the step time, per iteration.

    Each iteration is replayed by itself, begun where it really began, so the first one, whose past is
    not in the trace, is left out. Of more than ``MAX_ITERATIONS``, that many are taken, evenly spread.
    """
    count = len(graph.iterations)
    if count < 2 or (graph.iterations.end_points < 0).any():
        return {}
    cross = replays or IterationReplays(graph)
    result = {}
    for iteration in _spread(count):
        own = cross.predict(cross.window(iteration), iteration, iteration)
        if own is not None:
            result[iteration] = own.step_error
    return result


def _spread(count: int) -> list[int]:
    """Iterations with a predecessor: all, or MAX_ITERATIONS of them evenly spread."""
    return sorted({round(i) for i in np.linspace(1, count - 1, min(count - 1, MAX_ITERATIONS)).tolist()})


@dataclass(frozen=True, slots=True)
class _Window:
    """The part of the graph that one iteration consists of, and what leads into it from before."""

    inside: I64  # points, in topological order
    edges: I64  # their in-edges
    tail_inside: Bool  # per edge: whether it comes from inside
    boundary: I64  # points outside that edges come from, sorted


class IterationReplays:
    """Correspondences between the iterations of one graph, and replays of one as another."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.points = len(graph.time_ns)
        self._point_iteration = self._point_iterations()
        self._point_order, self._point_bounds = _grouped(self._point_iteration, len(graph.iterations))
        self._place = np.empty(self.points, np.int64)  # of a point within its iteration
        self._place[self._point_order] = np.arange(self.points)
        self._place -= self._point_bounds[np.clip(self._point_iteration, -1, len(graph.iterations)) + 1]
        self._node_order, self._node_bounds = _grouped(graph.iterations.node_iteration, len(graph.iterations))
        self._slots = {
            type: self._in_edges(type) for type in (EdgeType.OP, EdgeType.PROGRAM, EdgeType.HANDOVER)
        }
        # What else scales is rare (shares of overlapping ops, joints): looked up by (head, tail, type).
        slotted = np.isin(graph.edge_type, [int(t) for t in (*self._slots, *_HOLDING)]) & (
            (graph.owner <= len(graph.threads)) | (graph.edge_type == EdgeType.OP)
        )
        self._is_rare = ~slotted & (graph.scaled_ns > 0)
        rare = np.flatnonzero(self._is_rare)
        keys = self._key(graph.dst[rare], graph.src[rare], graph.edge_type[rare])
        order = np.argsort(keys, kind="stable")
        self._rare_edges, self._rare_keys = rare[order], keys[order]
        self._names = np.concatenate(
            [
                trace.ops.name_id[graph.nodes.row[graph.nodes.trace == index]]
                for index, trace in enumerate(graph.traces)
            ]
        )
        self._joint_of = {joint.nodes[0]: joint for joint in graph.joints}
        self._members: dict[int, dict[tuple[str, int], I64]] = {}
        self._maps: dict[tuple[int, int], I64 | None] = {}

    def _in_edges(self, type: EdgeType) -> I64:
        """For every point its in-edge of a type of which there is at most one; -1 none."""
        slot = np.full(self.points, -1, np.int64)
        edges = np.flatnonzero(self.graph.edge_type == type)
        slot[self.graph.dst[edges]] = edges
        return slot

    def _key(self, dst: np.ndarray, src: np.ndarray, type: np.ndarray) -> I64:
        result: I64 = (dst.astype(np.int64) * self.points + src) * 32 + type
        return result

    def _point_iterations(self) -> I64:
        """Iteration of every point; -1 for those that belong to none."""
        graph = self.graph
        result = np.full(self.points, -1, np.int64)
        iteration = graph.iterations.node_iteration
        result[graph.start_point] = iteration
        result[graph.end_point] = iteration
        for points in graph.iterations.end_points:
            result[points] = np.arange(len(points))
        for joint in graph.joints:
            result[[joint.start_point, joint.end_point]] = iteration[joint.nodes[0]]
        return result

    def _inside(self, iteration: int) -> I64:
        return self._point_order[self._point_bounds[iteration + 1] : self._point_bounds[iteration + 2]]

    def _members_of(self, iteration: int) -> dict[tuple[str, int], I64]:
        """Nodes of an iteration by thread and by stream, each in its own order."""
        if iteration not in self._members:
            nodes = self.graph.nodes
            mine = self._node_order[self._node_bounds[iteration + 1] : self._node_bounds[iteration + 2]]
            found: dict[tuple[str, int], I64] = {}
            for label, column, order in (
                ("thread", nodes.thread, nodes.sequence),
                ("stream", nodes.stream, nodes.start_ns),
            ):
                group = mine[column[mine] >= 0]
                group = group[np.lexsort((nodes.sequence[group], order[group], column[group]))]
                for part in np.split(group, np.flatnonzero(np.diff(column[group])) + 1):
                    if len(part):
                        found[label, int(column[part[0]])] = part
            self._members[iteration] = found
        return self._members[iteration]

    def _point_map(self, source: int, target: int) -> I64 | None:
        """For every point of iteration ``source``, by place, the corresponding one of ``target``; -1 none.

        None when the two are different programs.
        """
        if (source, target) not in self._maps:
            self._maps[source, target] = self._make_map(source, target)
        return self._maps[source, target]

    def _make_map(self, source: int, target: int) -> I64 | None:
        graph = self.graph
        result = np.full(len(self._inside(source)), -1, np.int64)
        total = matched = 0
        there_of = self._members_of(target)
        first_members: dict[int, int] = {}
        for key, here in self._members_of(source).items():
            there = there_of.get(key, here[:0])
            a, b = _correspond(self._names[here], self._names[there])
            total += max(len(here), len(there))
            matched += len(a)
            result[self._place[graph.start_point[here[a]]]] = graph.start_point[there[b]]
            result[self._place[graph.end_point[here[a]]]] = graph.end_point[there[b]]
            if self._joint_of and key[0] == "stream":
                first_members.update(zip(here[a].tolist(), there[b].tolist(), strict=True))
        if total == 0 or matched < _MIN_CORRESPONDENCE * total:
            return None
        for points in graph.iterations.end_points:
            result[self._place[points[source]]] = points[target]
        for node, counterpart in first_members.items():
            joint, other = self._joint_of.get(node), self._joint_of.get(counterpart)
            if joint is not None and other is not None:
                result[self._place[joint.start_point]] = other.start_point
                result[self._place[joint.end_point]] = other.end_point
        return result

    def window(self, source: int) -> _Window:
        """The part of the graph that iteration ``source`` consists of."""
        graph = self.graph
        inside = self._inside(source)
        count = graph.row[inside + 1] - graph.row[inside]
        offset = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
        edges = np.repeat(graph.row[inside], count) + offset
        src = graph.src[edges]
        tail_inside = self._point_iteration[src] == source
        return _Window(inside, edges, tail_inside, distinct(src[~tail_inside]).astype(np.int64))

    def _boundary_times(self, window: _Window, source: int, target: int) -> I64:
        """When the boundary of ``source`` really was in the past of ``target``; NEVER if unknown."""
        graph = self.graph
        result = np.full(len(window.boundary), NEVER, np.int64)
        iteration = self._point_iteration[window.boundary]
        for earlier in distinct(iteration[(iteration >= 0) & (iteration < source)]).tolist():
            if target - (source - earlier) < 0:
                continue
            past = self._point_map(earlier, target - (source - earlier))
            if past is None:
                continue
            mine = iteration == earlier
            counterpart = past[self._place[window.boundary[mine]]]
            result[mine] = np.where(counterpart >= 0, graph.time_ns[counterpart], NEVER)
        return result

    def predict(self, window: _Window, source: int, target: int) -> Prediction | None:
        """Iteration ``target`` by the structure of ``source``; None if they are different programs."""
        graph = self.graph
        here = self._point_map(source, target)
        if here is None:
            return None
        began_ns = self._boundary_times(window, source, target)
        head = self._place[graph.dst[window.edges]] + len(window.boundary)
        src = graph.src[window.edges]
        tail = np.where(
            window.tail_inside, self._place[src] + len(window.boundary), np.searchsorted(window.boundary, src)
        )
        if len(window.boundary):
            known = window.tail_inside | (began_ns[np.minimum(tail, len(began_ns) - 1)] != NEVER)
        else:
            known = window.tail_inside
        edges, head, tail = window.edges[known], head[known], tail[known]
        size = len(window.boundary) + len(window.inside)
        row = np.zeros(size + 1, np.int64)
        np.cumsum(np.bincount(head, minlength=size), out=row[1:])

        # What nothing leads to (an op whose launch is not in the trace) starts when it really did.
        real = np.where(here >= 0, here, window.inside)
        rootless = np.diff(row)[len(window.boundary) :] == 0
        release = np.concatenate(
            [np.where(began_ns == NEVER, 0, began_ns), np.where(rootless, graph.time_ns[real], NEVER)]
        )
        delay = np.concatenate([np.zeros(len(window.boundary), np.int64), graph.peer_wait_ns[real]])
        time = np.empty(size, np.int64)
        _native.replay(
            row,
            tail.astype(np.int32),
            graph.lag_ns[edges],
            self._work_of(edges, here),
            np.zeros(len(edges), np.int32),
            np.ones(1),
            release,
            delay,
            time,
            np.empty(size, np.int32),
        )
        return self._compare(source, target, time[len(window.boundary) :], here)

    def _work_of(self, edges: I64, here: I64) -> I64:
        """Scalable weights of ``edges`` as they are in the target iteration."""
        graph = self.graph
        work = graph.scaled_ns[edges].copy()
        type = graph.edge_type[edges]
        head = here[self._place[graph.dst[edges]]]
        by_thread = graph.owner[edges] <= len(graph.threads)
        for slot, rows in (
            (EdgeType.OP, type == EdgeType.OP),
            (EdgeType.PROGRAM, type == EdgeType.PROGRAM),
            (EdgeType.HANDOVER, type == EdgeType.HANDOVER),
            (EdgeType.PROGRAM, np.isin(type, _HOLDING) & by_thread),
        ):
            counterpart = np.where(rows & (head >= 0), self._slots[slot][head], -1)
            work = np.where(counterpart >= 0, graph.scaled_ns[counterpart], work)
        rare = np.flatnonzero(self._is_rare[edges])
        inside = (
            self._point_iteration[graph.src[edges[rare]]] == self._point_iteration[graph.dst[edges[rare]]]
        )
        rare = rare[inside]
        if len(rare):
            tail = here[self._place[graph.src[edges[rare]]]]
            key = self._key(head[rare], tail, type[rare])
            at = np.minimum(np.searchsorted(self._rare_keys, key), len(self._rare_keys) - 1)
            found = (head[rare] >= 0) & (tail >= 0) & (self._rare_keys[at] == key)
            work[rare[found]] = graph.scaled_ns[self._rare_edges[at[found]]]
        return work

    def _compare(self, source: int, target: int, time: I64, here: I64) -> Prediction:
        """``time``: predicted, by place."""
        graph = self.graph
        marks = graph.iterations.end_points
        began = int(graph.time_ns[marks[:, target - 1]].max())
        ended = int(graph.time_ns[marks[:, target]].max())
        foretold = int(time[self._place[marks[:, source]]].max())
        point = self._inside(source)
        is_node = graph.point_kind[point] == PointKind.END
        on_gpu = is_node & (graph.nodes.gpu[np.where(is_node, graph.point_node[point], 0)] >= 0) & (here >= 0)
        done = int(graph.time_ns[here[on_gpu]].max(initial=ended))
        foretold_done = int(time[on_gpu].max(initial=foretold))
        return Prediction(
            source, target, ended - began, foretold - began, done - began, foretold_done - began
        )


def _grouped(iteration: np.ndarray, count: int) -> tuple[I64, I64]:
    """Rows ordered by iteration, and where each begins: that of i at ``bounds[i + 1]``.

    Rows of no iteration (-1) come first, those after the last (``count``) last.
    """
    order = np.argsort(iteration, kind="stable")
    bounds = np.searchsorted(iteration[order], np.arange(-1, count + 2))
    return order, bounds


def _correspond(here: np.ndarray, there: np.ndarray) -> tuple[I64, I64]:
    """Positions in two name sequences that correspond, in order in both.

    All, if the sequences are equal. Else what they begin and end with alike, and in between the
    k-th occurrence of a name with the k-th of the same name, as far as that keeps the order.
    """
    shorter = min(len(here), len(there))
    differs = np.flatnonzero(here[:shorter] != there[:shorter])
    prefix = int(differs[0]) if len(differs) else shorter
    rest = shorter - prefix
    differs = np.flatnonzero(here[len(here) - rest :][::-1] != there[len(there) - rest :][::-1])
    suffix = int(differs[0]) if len(differs) else rest
    middle_here, middle_there = here[prefix : len(here) - suffix], there[prefix : len(there) - suffix]
    a, b = _by_occurrence(middle_here, middle_there)
    tail = np.arange(suffix)
    return (
        np.concatenate([np.arange(prefix), prefix + a, len(here) - suffix + tail]),
        np.concatenate([np.arange(prefix), prefix + b, len(there) - suffix + tail]),
    )


def _by_occurrence(here: np.ndarray, there: np.ndarray) -> tuple[I64, I64]:
    if len(here) == 0 or len(there) == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    key_here, key_there = _occurrence_keys(here), _occurrence_keys(there)
    order = np.argsort(key_there)
    at = np.minimum(np.searchsorted(key_there[order], key_here), len(there) - 1)
    a = np.flatnonzero(key_there[order[at]] == key_here)
    b = order[at[a]]
    keep = np.zeros(len(b), np.uint8)
    _native.longest_increasing(np.ascontiguousarray(b, np.int64), keep)
    return a[keep == 1], b[keep == 1]


def _occurrence_keys(names: np.ndarray) -> I64:
    """One number per (name, how often it has come before)."""
    order = np.argsort(names, kind="stable")
    ordered = names[order]
    first = np.searchsorted(ordered, ordered, side="left")
    keys = np.empty(len(names), np.int64)
    keys[order] = (ordered.astype(np.int64) << 32) + np.arange(len(names)) - first
    return keys
