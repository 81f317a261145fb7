"""The predictive test: does the structure of one iteration foretell another?

A graph that stores every remainder reproduces its own trace whatever its edges say. So the
edges and latencies of iteration i are replayed with the op durations, CPU work and peer waits
of iteration j and nothing unexplained, starting from where iteration j really started. What
comes out is compared with when iteration j really ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import SequenceMatcher

import numpy as np

from emo import _native
from emo.graph.model import NEVER, EdgeType, Graph
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


def predict_iterations(graph: Graph) -> tuple[list[Prediction], int]:
    """All ordered pairs of iterations that have a predecessor; returns (predictions, pairs skipped).

    Of more than ``MAX_ITERATIONS`` iterations, that many are taken, evenly spread.
    """
    count = len(graph.iterations)
    if count < 4 or (graph.iterations.end_points < 0).any():
        return [], 0
    cross = _Cross(graph)
    predictions, skipped = [], 0
    chosen = np.linspace(1, count - 1, min(count - 1, MAX_ITERATIONS)).round().astype(int).tolist()
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


@dataclass(frozen=True, slots=True)
class _Window:
    """The part of the graph that iteration ``source`` consists of."""

    inside: I64  # points, in topological order
    edges: I64  # their in-edges


class _Cross:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.points = len(graph.time_ns)
        self.point_iteration = self._point_iterations()
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
        self._members = [self._members_of(i) for i in range(len(graph.iterations))]
        self._names = np.concatenate(
            [
                trace.ops.name_id[graph.nodes.row[graph.nodes.trace == index]]
                for index, trace in enumerate(graph.traces)
            ]
        )
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
        graph = self.graph
        result = np.full(self.points, -2, np.int64)
        iteration = graph.iterations.node_iteration
        result[graph.start_point] = iteration
        result[graph.end_point] = iteration
        for points in graph.iterations.end_points:
            result[points] = np.arange(len(points))
        for joint in graph.joints:
            number = int(iteration[joint.nodes[0]])
            result[joint.start_point] = result[joint.end_point] = number
        return result

    def _members_of(self, iteration: int) -> dict[tuple[str, int], I64]:
        """Nodes of an iteration by thread and by stream, each in its own order."""
        nodes = self.graph.nodes
        mine = np.flatnonzero(self.graph.iterations.node_iteration == iteration)
        result: dict[tuple[str, int], I64] = {}
        for label, column, order in (
            ("thread", nodes.thread, nodes.sequence),
            ("stream", nodes.stream, nodes.start_ns),
        ):
            group = mine[column[mine] >= 0]
            group = group[np.lexsort((nodes.sequence[group], order[group], column[group]))]
            bounds = np.flatnonzero(np.diff(column[group])) + 1
            for part in np.split(group, bounds):
                if len(part):
                    result[label, int(column[part[0]])] = part
        return result

    def point_map(self, source: int, target: int) -> I64 | None:
        """For every point the corresponding one when iteration ``source`` becomes ``target``; -1 none.

        None when the two are different programs.
        """
        if (source, target) not in self._maps:
            self._maps[source, target] = self._make_map(source, target)
        return self._maps[source, target]

    def _make_map(self, source: int, target: int) -> I64 | None:
        graph = self.graph
        result = np.full(self.points, -1, np.int64)
        total = matched = 0
        node_map = np.full(len(graph.nodes), -1, np.int64)
        for key, here in self._members[source].items():
            there = self._members[target].get(key, here[:0])
            a, b = _correspond(self._names[here], self._names[there])
            node_map[here[a]] = there[b]
            total += max(len(here), len(there))
            matched += len(a)
        if total == 0 or matched < _MIN_CORRESPONDENCE * total:
            return None
        known = np.flatnonzero(node_map >= 0)
        result[graph.start_point[known]] = graph.start_point[node_map[known]]
        result[graph.end_point[known]] = graph.end_point[node_map[known]]
        for points in graph.iterations.end_points:
            result[points[source]] = points[target]
        joint_of = {joint.nodes[0]: joint for joint in graph.joints}
        for joint in graph.joints:
            other = joint_of.get(int(node_map[joint.nodes[0]]))
            if other is not None:
                result[joint.start_point], result[joint.end_point] = other.start_point, other.end_point
        return result

    def window(self, source: int) -> _Window:
        graph = self.graph
        inside = np.flatnonzero(self.point_iteration == source)
        mask = np.zeros(self.points, bool)
        mask[inside] = True
        return _Window(inside, np.flatnonzero(mask[graph.dst]))

    def predict(self, window: _Window, source: int, target: int) -> Prediction | None:
        graph = self.graph
        here = self.point_map(source, target)
        if here is None:
            return None
        src = graph.src[window.edges]
        # Edges from earlier iterations start where the corresponding point of the target's past really was.
        boundary = distinct(src[self.point_iteration[src] != source])
        start_ns = np.full(len(boundary), NEVER, np.int64)
        for back in distinct(source - self.point_iteration[boundary]).tolist():
            if back <= 0 or source - back < 0 or target - back < 0:
                continue
            earlier = self.point_map(source - back, target - back)
            if earlier is None:
                continue
            mine = self.point_iteration[boundary] == source - back
            counterpart = earlier[boundary[mine]]
            start_ns[mine] = np.where(counterpart >= 0, graph.time_ns[np.maximum(counterpart, 0)], NEVER)

        numbering = np.empty(self.points, np.int32)
        numbering[boundary] = np.arange(len(boundary))
        numbering[window.inside] = len(boundary) + np.arange(len(window.inside))
        usable = (self.point_iteration[src] == source) | (
            start_ns[np.minimum(numbering[src], len(boundary) - 1)] != NEVER
        )
        picked = window.edges[usable]
        size = len(boundary) + len(window.inside)
        local_dst = numbering[graph.dst[picked]]
        row = np.zeros(size + 1, np.int64)
        np.cumsum(np.bincount(local_dst, minlength=size), out=row[1:])
        release = np.full(size, NEVER, np.int64)
        release[: len(boundary)] = np.where(start_ns == NEVER, 0, start_ns)
        counterpart = here[window.inside]
        # What nothing leads to (an op whose launch is not in the trace) starts when it really did.
        real_ns = graph.time_ns[np.where(counterpart >= 0, counterpart, window.inside)]
        rootless = np.diff(row)[len(boundary) :] == 0
        release[len(boundary) :][rootless] = real_ns[rootless]
        delay = np.zeros(size, np.int64)
        delay[len(boundary) :] = np.where(
            counterpart >= 0,
            graph.peer_wait_ns[np.maximum(counterpart, 0)],
            graph.peer_wait_ns[window.inside],
        )
        time = np.empty(size, np.int64)
        _native.replay(
            row,
            numbering[graph.src[picked]],
            graph.lag_ns[picked],
            self._work_of(picked, here),
            np.zeros(len(picked), np.int32),
            np.ones(1),
            release,
            delay,
            time,
            np.empty(size, np.int32),
        )
        return self._compare(source, target, numbering, time, here)

    def _work_of(self, edges: I64, here: I64) -> I64:
        """Scalable weights of ``edges`` as they are in the target iteration."""
        graph = self.graph
        work = graph.scaled_ns[edges].copy()
        type = graph.edge_type[edges]
        head = here[graph.dst[edges]]
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
        if len(rare):
            tail = here[graph.src[edges[rare]]]
            key = self._key(head[rare], tail, type[rare])
            at = np.minimum(np.searchsorted(self._rare_keys, key), len(self._rare_keys) - 1)
            found = (head[rare] >= 0) & (tail >= 0) & (self._rare_keys[at] == key)
            work[rare[found]] = graph.scaled_ns[self._rare_edges[at[found]]]
        return work

    def _compare(self, source: int, target: int, numbering: np.ndarray, time: I64, here: I64) -> Prediction:
        graph = self.graph
        marks = graph.iterations.end_points
        began = int(graph.time_ns[marks[:, target - 1]].max())
        ended = int(graph.time_ns[marks[:, target]].max())
        foretold = int(time[numbering[marks[:, source]]].max())
        nodes = graph.nodes
        ops = np.flatnonzero((graph.iterations.node_iteration == source) & (nodes.gpu >= 0))
        ops = ops[here[graph.end_point[ops]] >= 0]
        done = int(graph.time_ns[here[graph.end_point[ops]]].max(initial=ended))
        foretold_done = int(time[numbering[graph.end_point[ops]]].max(initial=foretold))
        return Prediction(
            source, target, ended - began, foretold - began, done - began, foretold_done - began
        )


def _correspond(here: np.ndarray, there: np.ndarray) -> tuple[I64, I64]:
    """Positions in two name sequences that correspond: all if equal, else the longest matching blocks."""
    if len(here) == len(there) and np.array_equal(here, there):
        everything = np.arange(len(here))
        return everything, everything
    blocks = SequenceMatcher(None, here.tolist(), there.tolist(), autojunk=False).get_matching_blocks()
    a = [np.arange(block.a, block.a + block.size) for block in blocks]
    b = [np.arange(block.b, block.b + block.size) for block in blocks]
    return np.concatenate(a), np.concatenate(b)
