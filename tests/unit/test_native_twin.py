"""The C passes compute what their plain twins say, on graphs of any shape."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from builder import Run
from hypothesis import given
from hypothesis import strategies as st
from programs import programs
from test_replay_properties import scales

from emo import _native
from emo.graph.model import NEVER
from emo.graph.replay import NEVER_LATE, latest_times, replay, replay_python


@dataclass(frozen=True)
class RandomGraph:
    """Arrays as :class:`emo.graph.model.Graph` holds them, in no way sensible."""

    row: np.ndarray
    src: np.ndarray
    lag: np.ndarray
    scaled: np.ndarray
    owner: np.ndarray
    scale: np.ndarray
    release: np.ndarray
    delay: np.ndarray


@st.composite
def random_graphs(draw: st.DrawFn) -> RandomGraph:
    points = draw(st.integers(0, 40))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    degree = rng.integers(0, 4, points) if points else np.zeros(0, np.int64)
    degree[:1] = 0
    row = np.zeros(points + 1, np.int64)
    np.cumsum(degree, out=row[1:])
    head = np.repeat(np.arange(points), degree)
    src = (rng.random(len(head)) * head).astype(np.int32)
    owners = int(rng.integers(1, 6))
    scale = rng.choice(np.array([0.0, 0.5, 1.0, 1.1, 3.7]), owners)
    release = np.where(rng.random(points) < 0.4, rng.integers(-100, 1_000, points), NEVER)
    release[np.diff(row) == 0] = rng.integers(0, 1_000, int((np.diff(row) == 0).sum()))
    return RandomGraph(
        row=row,
        src=src,
        lag=rng.integers(-3, 500, len(src)),
        scaled=rng.integers(0, 10**6, len(src)),
        owner=rng.integers(0, owners, len(src)).astype(np.int32),
        scale=scale,
        release=release,
        delay=rng.integers(0, 50, points),
    )


def weight(graph: RandomGraph, edge: int) -> int:
    factor = float(graph.scale[graph.owner[edge]])
    stretched = int(graph.scaled[edge]) if factor == 1.0 else int(int(graph.scaled[edge]) * factor + 0.5)
    return int(graph.lag[edge]) + stretched


@given(random_graphs())
def test_replay(graph: RandomGraph) -> None:
    count = len(graph.release)
    time, decided = np.empty(count, np.int64), np.empty(count, np.int32)
    makespan = _native.replay(
        graph.row,
        graph.src,
        graph.lag,
        graph.scaled,
        graph.owner,
        graph.scale,
        graph.release,
        graph.delay,
        time,
        decided,
    )
    expected: list[int] = []
    for point in range(count):
        best, by = int(graph.release[point]), -1
        for edge in range(graph.row[point], graph.row[point + 1]):
            candidate = expected[graph.src[edge]] + weight(graph, edge)
            if candidate > best:
                best, by = candidate, edge
        expected.append(best + int(graph.delay[point]))
        assert decided[point] == by
    assert time.tolist() == expected
    assert makespan == max([0, *expected])


@given(random_graphs())
def test_latest(graph: RandomGraph) -> None:
    count = len(graph.release)
    rng = np.random.default_rng(count)
    deadline = rng.integers(0, 10**7, count)
    expected = deadline.tolist()
    for point in reversed(range(count)):
        for edge in range(graph.row[point], graph.row[point + 1]):
            bound = expected[point] - int(graph.delay[point]) - weight(graph, edge)
            expected[graph.src[edge]] = min(expected[graph.src[edge]], bound)
    found = deadline.copy()
    _native.latest(
        graph.row, graph.src, graph.lag, graph.scaled, graph.owner, graph.scale, graph.delay, found
    )
    assert found.tolist() == expected


@given(random_graphs(), st.data())
def test_trace_back(graph: RandomGraph, data: st.DataObject) -> None:
    count = len(graph.release)
    if count == 0:
        return
    time, decided = np.empty(count, np.int64), np.empty(count, np.int32)
    _native.replay(
        graph.row,
        graph.src,
        graph.lag,
        graph.scaled,
        graph.owner,
        graph.scale,
        graph.release,
        graph.delay,
        time,
        decided,
    )
    point = data.draw(st.integers(0, count - 1))
    expected = [point]
    while decided[expected[-1]] >= 0:
        expected.append(int(graph.src[decided[expected[-1]]]))
    out = np.empty(count, np.int32)
    assert _native.trace_back(graph.src, decided, point, out) == len(expected)
    assert out[: len(expected)].tolist() == expected


@st.composite
def any_edges(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    """Points and edges between any of them: cycles and loops included."""
    points = draw(st.integers(1, 12))
    end = st.integers(0, points - 1)
    return points, draw(st.lists(st.tuples(end, end), max_size=24))


@given(any_edges(), st.randoms(use_true_random=False))
def test_toposort(case: tuple[int, list[tuple[int, int]]], random: object) -> None:
    points, pairs = case
    hint = list(range(points))
    random.shuffle(hint)  # type: ignore[attr-defined]
    pairs = sorted(pairs, key=lambda pair: pair[1])
    row = np.zeros(points + 1, np.int64)
    np.cumsum(np.bincount([head for _, head in pairs], minlength=points), out=row[1:])
    src = np.array([tail for tail, _ in pairs], np.int32)
    order = np.empty(points, np.int32)
    placed = _native.toposort(row, src, np.array(hint, np.int32), order)
    assert sorted(order.tolist()) == list(range(points))
    position = {point: at for at, point in enumerate(order[:placed].tolist())}
    # Whatever is placed comes after all that it waits for.
    for tail, head in pairs:
        if head in position:
            assert tail in position
            assert position[tail] < position[head]
    # What is left out is on a cycle or behind one: peeling off points without open predecessors ends there.
    free = set()
    while more := {
        point
        for point in range(points)
        if point not in free and all(t in free for t, h in pairs if h == point)
    }:
        free |= more
    assert set(position) == free


def test_toposort_follows_the_hint_where_it_may() -> None:
    # 2 waits for 0; nothing else is ordered.
    row, src = np.array([0, 0, 0, 1, 1], np.int64), np.array([0], np.int32)
    order = np.empty(4, np.int32)
    assert _native.toposort(row, src, np.array([3, 2, 1, 0], np.int32), order) == 4
    assert order.tolist() == [3, 0, 2, 1]


@given(programs(), st.data())
def test_the_replay_of_a_real_graph(run: Run, data: st.DataObject) -> None:
    graph = run.graph()
    for scale in (None, scales(graph, data)):
        for unexplained in (True, False):
            fast = replay(graph, scale, unexplained=unexplained)
            slow = replay_python(graph, scale, unexplained=unexplained)
            assert np.array_equal(fast.time_ns, slow.time_ns)
            assert np.array_equal(fast.decided_by, slow.decided_by)
            assert fast.makespan_ns == slow.makespan_ns


@given(programs(), st.data())
def test_latest_times_are_the_last_that_miss_no_deadline(run: Run, data: st.DataObject) -> None:
    graph = run.graph()
    scale = scales(graph, data)
    timeline = replay(graph, scale)
    deadline = np.full(len(graph.time_ns), timeline.makespan_ns)
    latest = latest_times(graph, deadline, scale)
    assert (latest >= timeline.time_ns).all()
    assert (latest <= timeline.makespan_ns).all()
    # The makespan's own point, and all that decided it, have no room.
    point = int(timeline.time_ns.argmax())
    while point >= 0:
        assert latest[point] == timeline.time_ns[point]
        edge = int(timeline.decided_by[point])
        point = int(graph.src[edge]) if edge >= 0 else -1
    assert (latest_times(graph, np.full_like(deadline, NEVER_LATE)) > 2**61).all()


@pytest.mark.parametrize(
    ("src", "decided", "point"),
    [([0], [-1, 0], 2), ([0], [-1, 0], -1), ([1], [-1, 0], 1), ([0], [-1, 5], 1)],
    ids=["beyond", "negative", "not from an earlier point", "no such edge"],
)
def test_trace_back_refuses_what_leads_nowhere(src: list[int], decided: list[int], point: int) -> None:
    out = np.empty(2, np.int32)
    with pytest.raises(ValueError, match="earlier point"):
        _native.trace_back(np.array(src, np.int32), np.array(decided, np.int32), point, out)


@pytest.mark.parametrize(
    ("row", "src", "owner", "message"),
    [
        ([0, 1], [0], [0], "earlier point"),
        ([0, 0, 1], [-1], [0], "earlier point"),
        ([0, 0, 1], [0], [1], "scale vector"),
        ([0, 0, 2], [0], [0], "span the edges"),
        ([0, 1, 0, 1], [0], [0], "earlier point"),
    ],
)
def test_arrays_that_are_no_graph_are_refused(
    row: list[int], src: list[int], owner: list[int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        _native.check_csr(
            np.array(row, np.int64), np.array(src, np.int32), np.array(owner, np.int32), np.ones(1)
        )


def test_arrays_of_the_wrong_type_are_refused() -> None:
    with pytest.raises(TypeError, match="row"):
        _native.check_csr(np.zeros(1, np.int32), np.zeros(0, np.int32), np.zeros(0, np.int32), np.ones(1))
