"""What must hold for every graph: exactness, monotony, bounds, and accounts that add up."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from builder import Run
from hypothesis import given
from hypothesis import strategies as st
from programs import programs

from emo.errors import InputError
from emo.graph.build import build_graph
from emo.graph.critical import CriticalPath, Spent, critical_path
from emo.graph.model import EdgeType, Graph, PointKind
from emo.graph.replay import replay, unit_scale
from emo.graph.slack import find_slack
from emo.graph.whatif import busiest_stream_bound_ns
from emo.trace.model import Kind, RawCategory

FACTORS = st.sampled_from((0.0, 0.5, 0.9, 1.0, 1.1, 2.0, 7.3))


def scales(graph: Graph, data: st.DataObject) -> np.ndarray:
    """A scale vector of drawn factors (few different ones, spread by a drawn seed)."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**16)))
    palette = data.draw(st.lists(FACTORS, min_size=1, max_size=4))
    scale = rng.choice(np.array(palette), graph.scale_size)
    scale[0] = 1.0
    return scale


def all_gpu_ops(graph: Graph, factor: float) -> np.ndarray:
    """Every op on a GPU and every collective by one factor."""
    scale = unit_scale(graph)
    threads = len(graph.threads)
    scale[1 + threads : 1 + threads + len(graph.nodes)][graph.nodes.gpu >= 0] = factor
    scale[1 + threads + len(graph.nodes) :] = factor
    return scale


def recorded_wait_ns(graph: Graph, node: int) -> int:
    """How long an op waited for peers, from what the graph reports of its collectives."""
    wait = int(graph.peer_wait_ns[graph.end_point[node]])
    for joint in graph.joints:
        if node in joint.nodes:
            wait = joint.wait_ns_by_rank[graph.rank_of(int(graph.nodes.trace[node]))]
            wait += 0 if joint.rooted else int(graph.peer_wait_ns[joint.end_point])
    return wait


def busiest_stream_ns(graph: Graph) -> int:
    """Union of the intervals in which the busiest stream works, waits for peers left out."""
    longest = 0
    for stream in range(len(graph.streams)):
        spans = sorted(
            (int(graph.nodes.start_ns[node]) + recorded_wait_ns(graph, node), int(graph.nodes.end_ns[node]))
            for node in np.flatnonzero(graph.nodes.stream == stream).tolist()
        )
        covered, until = 0, -(2**62)
        for begin, end in spans:
            covered += max(0, end - max(begin, until))
            until = max(until, end)
        longest = max(longest, covered)
    return longest


def without_edges(graph: Graph, keep: np.ndarray) -> Graph:
    """The same points with only some of the edges; remainders and releases stay as they are."""
    row = np.zeros(len(graph.time_ns) + 1, np.int64)
    np.cumsum(np.bincount(graph.dst[keep], minlength=len(graph.time_ns)), out=row[1:])
    columns = {
        name: getattr(graph, name)[keep]
        for name in ("src", "dst", "lag_ns", "scaled_ns", "owner", "edge_type")
    }
    return dataclasses.replace(graph, row=row, **columns)


def assert_contiguous(path: CriticalPath, upto_ns: int) -> None:
    """Stretches follow each other without gap or overlap from 0 to ``upto_ns``."""
    if len(path.start_ns) == 0:
        assert upto_ns == 0
        return
    assert path.start_ns[0] == 0
    assert path.end_ns[-1] == upto_ns
    assert np.array_equal(path.start_ns[1:], path.end_ns[:-1])
    assert (path.end_ns > path.start_ns).all()
    assert sum(path.total_ns(spent) for spent in Spent) == upto_ns


@given(programs())
def test_scale_one_reproduces_the_run(run: Run) -> None:
    graph = run.graph()
    assert np.array_equal(replay(graph).time_ns, graph.time_ns)
    assert replay(graph).makespan_ns == graph.makespan_ns


REMOVABLE = [rule for rule in EdgeType if rule not in (EdgeType.OP, EdgeType.PROGRAM)]


@given(programs(), st.lists(st.sampled_from(REMOVABLE), max_size=4))
def test_scale_one_reproduces_the_run_whatever_is_left_out(run: Run, without: list[EdgeType]) -> None:
    graph = run.graph(without=without)
    assert np.array_equal(replay(graph).time_ns, graph.time_ns)


@given(programs())
def test_nothing_in_the_graph_goes_backwards(run: Run) -> None:
    graph = run.graph()
    assert (graph.unexplained_ns >= 0).all()
    assert (graph.peer_wait_ns >= 0).all()
    assert (graph.scaled_ns >= 0).all()
    # A lag is below zero only where a clock step made its ends trade places.
    assert (graph.lag_ns >= -1_000).all()
    assert (graph.src < graph.dst).all()
    assert (graph.time_ns >= 0).all()


@given(programs(), st.data())
def test_a_longer_duration_never_makes_anything_earlier(run: Run, data: Any) -> None:
    graph = run.graph()
    scale = scales(graph, data)
    longer = scale.copy()
    entries = data.draw(st.lists(st.integers(1, graph.scale_size - 1), min_size=1, max_size=5))
    longer[entries] += data.draw(st.sampled_from((1e-6, 0.1, 3.0)))
    assert (replay(graph, longer).time_ns >= replay(graph, scale).time_ns).all()


@given(programs(), st.sampled_from((1.0, 1.5, 2.0, 10.0)))
def test_slower_ops_take_at_least_as_long_as_the_busiest_stream(run: Run, factor: float) -> None:
    graph = run.graph()
    slow = all_gpu_ops(graph, factor)
    makespan = replay(graph, slow).makespan_ns
    rounding = len(graph.nodes)  # a nanosecond per op
    assert makespan >= factor * busiest_stream_ns(graph) - rounding
    assert makespan >= busiest_stream_bound_ns(graph, slow) - rounding


@given(programs(max_ranks=1), st.data())
def test_the_bound_of_the_command_line_holds_for_any_scale(run: Run, data: Any) -> None:
    graph = run.graph()
    scale = scales(graph, data)
    assert replay(graph, scale).makespan_ns >= busiest_stream_bound_ns(graph, scale) - len(graph.nodes)


@given(programs(), st.data())
def test_a_constraint_more_never_shortens(run: Run, data: Any) -> None:
    graph = run.graph()
    scale = scales(graph, data)
    complete = replay(graph, scale).time_ns
    dropped = data.draw(st.sets(st.sampled_from(sorted({int(t) for t in graph.edge_type})), min_size=1))
    # Points that lose all their edges have no release either: they may come as early as they like.
    fewer = without_edges(graph, ~np.isin(graph.edge_type, list(dropped)))
    begun = replay(fewer, scale).time_ns
    assert (begun <= complete).all()


@given(programs(max_ranks=4), st.data())
def test_joint_collectives_end_together_up_to_their_residuals(run: Run, data: Any) -> None:
    graph = run.graph()
    scale = scales(graph, data)
    time = replay(graph, scale).time_ns
    first_joint = graph.scale_size - len(graph.joints)
    for joint in graph.joints:
        if joint.rooted:
            continue
        factor = float(scale[first_joint + joint.index])
        arrivals = [int(time[graph.start_point[node]]) for node in joint.nodes]
        assert time[joint.start_point] == max(arrivals)
        assert time[joint.end_point] == time[joint.start_point] + int(joint.wire_ns * factor + 0.5)
        for node in joint.nodes:
            residual = joint.residual_ns_by_rank[graph.rank_of(int(graph.nodes.trace[node]))]
            expected = int(time[joint.end_point]) + int(residual * factor + 0.5)
            assert time[graph.end_point[node]] == expected


def graph_bytes(graph: Graph) -> dict[str, bytes]:
    """Every array of a graph, to compare two of them byte for byte."""
    found = {}
    for owner in (graph, graph.nodes, graph.iterations):
        for spec in dataclasses.fields(owner):
            value = getattr(owner, spec.name)
            if isinstance(value, np.ndarray):
                found[f"{type(owner).__name__}.{spec.name}"] = value.tobytes()
    return found


@given(programs(max_ranks=4), st.randoms(use_true_random=False))
def test_the_order_of_the_files_does_not_matter(run: Run, random: Any) -> None:
    traces = run.traces()
    shuffled = list(traces)
    random.shuffle(shuffled)
    depth = run.queue_depth
    one, other = build_graph(traces, queue_depth=depth), build_graph(shuffled, queue_depth=depth)
    assert graph_bytes(one) == graph_bytes(other)
    assert one.joints == other.joints
    assert one.report == other.report
    first, second = find_slack(one, replay(one)), find_slack(other, replay(other))
    assert first.free_ns.tobytes() == second.free_ns.tobytes()
    assert [gpu.slack_ns for gpu in first.gpus] == [gpu.slack_ns for gpu in second.gpus]


@given(programs(), st.data())
def test_the_critical_path_covers_the_makespan(run: Run, data: Any) -> None:
    graph = run.graph()
    for scale in (unit_scale(graph), scales(graph, data)):
        timeline = replay(graph, scale)
        assert_contiguous(critical_path(graph, timeline), timeline.makespan_ns)
        point = data.draw(st.integers(0, len(graph.time_ns) - 1))
        assert_contiguous(critical_path(graph, timeline, to_point=point), int(timeline.time_ns[point]))


def test_the_critical_path_is_contiguous_where_rounding_turned_two_ends_around() -> None:
    # In whole microseconds the copy ends 1 after the call that returned because it was done.
    run = Run()
    gpu = run.rank(0)
    gpu.launch(
        "copy",
        at=0,
        until=50,
        start=10,
        end=51,
        api="cudaMemcpyAsync",
        kind=RawCategory.MEMCPY,
        name="Memcpy DtoH (Device -> Pageable)",
    )
    gpu.launch("B", at=60, start=70, end=90)
    graph = run.graph()
    for factor in (1.0, 1.7):
        timeline = replay(graph, all_gpu_ops(graph, factor))
        assert_contiguous(critical_path(graph, timeline), timeline.makespan_ns)


def test_what_nothing_explains_is_left_out_on_demand() -> None:
    # B starts 100 after all that it waits for is done: launch at 5 and latency 10, A done at 60.
    run = Run()
    gpu = run.rank(0)
    gpu.launch("A", at=0, start=10, end=60)
    gpu.launch("B", at=5, start=160, end=200)
    graph = run.graph()
    assert int(graph.unexplained_ns.sum()) == 100_000
    assert replay(graph).makespan_ns == 200_000
    assert replay(graph, unexplained=False).makespan_ns == 100_000


@given(programs())
def test_the_time_of_every_gpu_is_accounted_for(run: Run) -> None:
    graph = run.graph()
    for gpu in find_slack(graph, replay(graph)).gpus:
        assert min(gpu.busy_ns, gpu.peer_wait_ns, gpu.idle_ns) >= 0
        assert gpu.busy_ns + gpu.peer_wait_ns + gpu.idle_ns == graph.makespan_ns


@pytest.mark.parametrize("bad", ["short", "nan", "infinite", "negative", "constant"])
def test_a_scale_vector_that_cannot_be_used_is_refused(bad: str) -> None:
    run = Run()
    run.rank(0).launch("A", at=0, start=10, end=20)
    graph = run.graph()
    scale = unit_scale(graph)
    if bad == "short":
        scale = scale[:-1]
    elif bad == "constant":
        scale[0] = 2.0
    else:
        scale[-1] = {"nan": np.nan, "infinite": np.inf, "negative": -0.1}[bad]
    with pytest.raises(InputError):
        replay(graph, scale)


def test_points_tell_what_they_are() -> None:
    run = Run()
    run.rank(0).launch("A", at=0, start=10, end=20)
    graph = run.graph()
    view = graph.to_networkx()
    assert view.number_of_nodes() == len(graph.time_ns)
    assert {view.nodes[p]["kind"] for p in view} >= {PointKind.START.name, PointKind.END.name}
    (op,) = np.flatnonzero(graph.nodes.kind == Kind.KERNEL)
    edge = view.edges[int(graph.start_point[op]), int(graph.end_point[op])]
    assert (edge["type"], edge["weight_ns"]) == ("OP", 10_000)
