"""Slack: what is credited can be used, what cannot be used is not credited.

Times of hand-made runs are microseconds. Slack is checked by using it: ops are stretched by what
they were promised, and the replay says what moved.
"""

from __future__ import annotations

import numpy as np
import pytest
from builder import Run
from hypothesis import given
from hypothesis import strategies as st
from programs import programs

from emo.graph.model import Graph, PointKind
from emo.graph.replay import replay, unit_scale
from emo.graph.slack import Cause, GpuSlack, Slack, find_slack
from emo.trace.model import Kind

US = 1_000


def slack_of(run: Run) -> tuple[Graph, Slack]:
    graph = run.graph()
    return graph, find_slack(graph, replay(graph))


def node_of(graph: Graph, name: str) -> int:
    """The GPU op with this name."""
    for node in np.flatnonzero(graph.nodes.gpu >= 0).tolist():
        trace = graph.traces[graph.nodes.trace[node]]
        if trace.names[trace.ops.name_id[graph.nodes.row[node]]] == name:
            return int(node)
    raise KeyError(name)


def stretched(graph: Graph, extra_ns: dict[int, int]) -> np.ndarray:
    """Times of all points when each node takes so much longer (nodes without duration are left alone)."""
    scale = unit_scale(graph)
    for node, extra in extra_ns.items():
        duration = int(graph.nodes.end_ns[node] - graph.nodes.start_ns[node])
        if duration > 0:
            scale[graph.node_owner(node)] = (duration + extra) / duration
    return replay(graph, scale).time_ns


def members_of_joints(graph: Graph) -> set[int]:
    """Ops whose time follows from their peers."""
    return {node for joint in graph.joints if not joint.rooted for node in joint.nodes}


def anchored_points(graph: Graph) -> np.ndarray:
    """All that free slack must leave in place: CPU points, starts of ops, meetings. Not ends of GPU ops,
    nor when an op arrives at a collective that waits anyway."""
    anchored = np.ones(len(graph.time_ns), bool)
    anchored[graph.end_point[graph.nodes.gpu >= 0]] = False
    anchored[graph.start_point[sorted(members_of_joints(graph))]] = False
    return anchored


def plain_ops(graph: Graph) -> list[int]:
    """GPU ops with a duration that is work, not communication."""
    duration = graph.nodes.end_ns - graph.nodes.start_ns
    works = (graph.nodes.gpu >= 0) & ~np.isin(graph.nodes.kind, (Kind.COLLECTIVE, Kind.P2P))
    return [int(node) for node in np.flatnonzero(works & (duration > 0))]


# --- one op -------------------------------------------------------------------------------------


@given(programs())
def test_all_free_slacks_can_be_used_at_once(run: Run) -> None:
    graph, slack = slack_of(run)
    ops = plain_ops(graph)
    time = stretched(graph, {node: int(slack.free_ns[node]) for node in ops})
    anchored = anchored_points(graph)
    assert np.array_equal(time[anchored], graph.time_ns[anchored])
    # And each op has really used its own: it ends that much later.
    for node in ops:
        end = graph.end_point[node]
        assert time[end] == graph.time_ns[end] + slack.free_ns[node]


@given(programs(), st.data())
def test_the_total_slack_of_one_op_is_exact(run: Run, data: st.DataObject) -> None:
    graph, slack = slack_of(run)
    node = data.draw(st.sampled_from(plain_ops(graph)))
    total = int(slack.total_ns[node])
    assert total >= slack.free_ns[node] >= 0
    assert stretched(graph, {node: total}).max() == graph.makespan_ns
    assert stretched(graph, {node: total + US}).max() > graph.makespan_ns


def test_an_op_that_others_overlap_has_no_slack_beyond_their_start() -> None:
    # s7  A 10======60                A may not be longer: B starts when 3/5 of A has run,
    #            B 40============140  and C when B is done.
    #                                C 140==150
    run = Run()
    gpu = run.rank(0)
    gpu.launch("A", at=0, start=10, end=60)
    gpu.launch("B", at=5, start=40, end=140)
    gpu.launch("C", at=10, start=140, end=150)
    graph, slack = slack_of(run)
    assert slack.free_ns[node_of(graph, "A")] == 0
    assert slack.total_ns[node_of(graph, "A")] == 0


def test_an_op_that_keeps_another_stream_out_has_no_slack() -> None:
    # s7  A 10============110   (nothing behind it)
    # s8                    B 112========200    B got in when A was nearly done
    run = Run()
    gpu = run.rank(0)
    gpu.launch("A", at=0, start=10, end=110)
    gpu.launch("B", at=5, start=112, end=200, stream=8)
    graph, slack = slack_of(run)
    assert slack.free_ns[node_of(graph, "A")] == 0
    assert slack.total_ns[node_of(graph, "A")] == 0


# --- windows of one GPU -------------------------------------------------------------------------


def meetings(*, kernels: bool = True, size: int = 2) -> Run:
    """Two ranks meet in C, D, E and F; rank 1 always comes 200 later than rank 0, which waits.

    rank 0  K 10=110 C 110----310==330  L 330=430 D 430----630==650  M 650=750 E 750-- ... F
    rank 1  K 10=====310 C     310==330  L 330=====630 D    630==650  ...

    ``size`` above 2: the group has ranks that are not there; ``kernels=False``: nothing but
    collectives after K, with waits of 200.
    """
    run = Run()
    world = tuple(range(size))
    for number in range(2):
        gpu = run.rank(number)
        ready = 10
        for place, label in enumerate("CDEF"):
            work = 100 + 200 * number
            if kernels or place == 0:
                gpu.launch(
                    f"{'KLMN'[place]}{number}", at=10 * place, start=ready, end=ready + work, stream=20
                )
                ready += work
            start, end = (ready, ready + 220) if number == 0 else (ready, ready + 20)
            if not kernels and place:
                start, end = (ready, ready + 220) if number == 0 else (ready + 200, ready + 220)
            at = 5 + 10 * place if kernels or number == 0 or place == 0 else start - 10
            gpu.collective(
                f"{label}{number}", at=at, start=start, end=end, group=world, sequence=place, bytes=64
            )
            ready = end
    return run


def gpu_of(slack: Slack, rank: int) -> GpuSlack:
    (found,) = [gpu for gpu in slack.gpus if gpu.rank == rank]
    return found


def test_waiting_for_a_late_peer_is_slack_of_the_work_before() -> None:
    _, slack = slack_of(meetings())
    waiting, late = gpu_of(slack, 0), gpu_of(slack, 1)
    windows = waiting.windows
    spans = list(zip(windows.start_ns // US, windows.end_ns // US, windows.slack_ns // US, strict=True))
    assert [s for s in spans if s[2]] == [
        (110, 310, 200),
        (430, 630, 200),
        (750, 950, 200),
        (1070, 1270, 200),
    ]
    assert {Cause(int(c)) for c in windows.cause[windows.slack_ns > 0]} == {Cause.PEER_GPU}
    assert set(windows.culprit[windows.slack_ns > 0].tolist()) == {1}
    assert late.slack_ns == 0


def test_slack_at_the_edges_of_the_capture_is_flagged() -> None:
    # The wait in C, the first meeting, shows how the capture began; it is no slack to plan with.
    graph, slack = slack_of(meetings())
    waiting = gpu_of(slack, 0)
    windows = waiting.windows
    assert windows.edge[windows.start_ns == 110 * US].all()
    assert not windows.edge[(windows.start_ns == 430 * US) | (windows.start_ns == 750 * US)].any()
    assert waiting.edge_slack_ns >= 200 * US
    assert waiting.slack_ns <= 600 * US
    assert [joint.edge for joint in graph.joints] == [True, False, False, False]


def test_slack_before_the_first_and_after_the_last_meeting_is_at_the_edge() -> None:
    # A launch that comes late (CPU) leaves a window of 100 before C, between C and D, and after D.
    run = Run()
    for number in range(2):
        gpu = run.rank(number)
        for place, at in enumerate((0, 200, 400)):
            gpu.launch(f"a{place}{number}", at=at, start=at + 10, end=at + 40, stream=20)
            gpu.launch(f"b{place}{number}", at=at + 130, start=at + 140, end=at + 160, stream=20)
            if place < 2:
                gpu.collective(f"C{place}{number}", at=at + 135, start=at + 160, end=at + 180)
    _, slack = slack_of(run)
    windows = gpu_of(slack, 0).windows
    found = {
        int(start // US): (bool(edge), int(usable // US))
        for start, edge, usable in zip(windows.start_ns, windows.edge, windows.slack_ns, strict=True)
    }
    assert found[40] == (True, 100)
    assert found[240] == (False, 100)
    assert found[440] == (True, 100)


def test_waits_that_no_work_comes_before_are_no_slack() -> None:
    # After K there are only collectives: nothing could be slowed to fill the waits in D, E and F.
    _, slack = slack_of(meetings(kernels=False))
    windows = gpu_of(slack, 0).windows
    assert windows.slack_ns[windows.start_ns > 300 * US].tolist() == [0] * int(
        (windows.start_ns > 300 * US).sum()
    )


def test_a_wait_for_absent_members_of_a_group_is_not_credited() -> None:
    # A third rank is not there. D: rank 1 comes at 430, then both wait until 830, which only the
    # absent rank can explain; 20 is the least wire time of this collective.
    run = Run()
    for number in range(2):
        gpu = run.rank(number)
        first = 130 + 100 * number  # when the rank comes to C and, 200 later, to D
        gpu.launch(f"K{number}", at=0, start=10, end=first, stream=20)
        gpu.collective(f"C{number}", at=5, start=first, end=250, group=(0, 1, 2), sequence=0)
        gpu.launch(f"L{number}", at=10, start=250, end=first + 200, stream=20)
        gpu.collective(f"D{number}", at=15, start=first + 200, end=850, group=(0, 1, 2), sequence=1)
        gpu.launch(f"M{number}", at=20, start=850, end=900, stream=20)
        gpu.collective(f"E{number}", at=25, start=900, end=920, group=(0, 1, 2), sequence=2)
    graph, slack = slack_of(run)
    assert [joint.wire_ns // US for joint in graph.joints] == [20, 20, 20]
    assert graph.peer_wait_ns[graph.joints[1].end_point] == 400 * US
    for rank, known in ((0, 100), (1, 0)):
        windows = gpu_of(slack, rank).windows
        inside = (windows.start_ns >= 250 * US) & (windows.end_ns <= 850 * US)
        assert windows.slack_ns[inside].sum() <= known * US


def test_a_wait_under_compute_is_no_slack() -> None:
    # rank 0 computes on stream 7 while its collective D waits on stream 20: the GPU is busy.
    run = Run()
    for number in range(2):
        gpu = run.rank(number)
        gpu.collective(f"C{number}", at=0, start=10, end=30)
        gpu.collective(f"D{number}", at=5, start=30 if number == 0 else 330, end=350)
        if number == 1:
            gpu.launch("late", at=6, start=30, end=330, stream=7)
        else:
            gpu.launch("compute", at=11, start=30, end=340, stream=7)
        gpu.collective(f"E{number}", at=340, start=350, end=370)
    _, slack = slack_of(run)
    windows = gpu_of(slack, 0).windows
    assert not ((windows.end_ns > 30 * US) & (windows.start_ns < 340 * US)).any()
    assert gpu_of(slack, 0).slack_ns == 0


def steps(gaps: list[int]) -> Run:
    """One kernel of 100 per step; the CPU launches the next one ``gap`` after it has ended."""
    run = Run()
    gpu = run.rank(0)
    at = 0
    for number, gap in enumerate(gaps):
        gpu.mark(f"ProfilerStep#{number}", at, at + 110 + gap)
        gpu.launch(f"K{number}", at=at + 2, start=at + 12, end=at + 112)
        gpu.work(at + 20, at + 100 + gap)
        at += 110 + gap
    return run


def test_persistent_slack_is_the_tenth_percentile_over_ten_iterations() -> None:
    # A step's window is the gap + 10 before the next kernel. The last step has none behind it.
    _, slack = slack_of(steps([40, 10, *[40] * 18, 10, 40]))
    (gpu,) = slack.gpus
    assert gpu.persistent_slack_ns is not None
    # 22 steps: two with 20, the last with 0 (nothing follows); the tenth percentile is the third least.
    assert gpu.persistent_slack_ns == 20 * US
    _, slack = slack_of(steps([40] * 9))
    assert slack.gpus[0].persistent_slack_ns is None


def test_a_bubble_behind_a_synchronise_is_told_from_a_busy_cpu() -> None:
    # The kernel before the sync cannot be longer: everything behind it would move.
    run = Run()
    gpu = run.rank(0)
    gpu.launch("A", at=0, start=10, end=110)
    gpu.wait_for("cudaDeviceSynchronize", 5, 115, label="sync")
    gpu.launch("B", at=150, start=160, end=200)
    gpu.launch("C", at=500, start=510, end=520)
    _, slack = slack_of(run)
    windows = slack.gpus[0].windows
    bubble, late = np.flatnonzero(windows.start_ns == 110 * US), np.flatnonzero(windows.start_ns == 200 * US)
    assert [Cause(int(windows.cause[i])) for i in (*bubble, *late)] == [Cause.SYNC, Cause.CPU]
    assert windows.slack_ns[bubble].tolist() == [0]
    assert windows.slack_ns[late].tolist() == [310 * US]


@given(programs(max_ranks=4))
def test_windows_hold_only_waiting_and_what_they_credit_can_be_used(run: Run) -> None:
    graph, slack = slack_of(run)
    for gpu in slack.gpus:
        windows = gpu.windows
        assert (windows.slack_ns >= 0).all()
        assert (windows.slack_ns <= windows.end_ns - windows.start_ns).all()
        assert (windows.start_ns[1:] >= windows.end_ns[:-1]).all()
        communicates = np.isin(graph.nodes.kind, (Kind.COLLECTIVE, Kind.P2P))
        work = np.flatnonzero((graph.nodes.gpu == gpu.gpu) & ~communicates).tolist()
        before = -1
        for start, end, credit in zip(windows.start_ns, windows.end_ns, windows.slack_ns, strict=True):
            # No work inside, be it on another stream.
            assert all(
                graph.nodes.end_ns[node] <= start or graph.nodes.start_ns[node] >= end for node in work
            )
            # Some op between the window before and this one can be longer by what is credited.
            able = [
                node
                for node in work
                if before < graph.nodes.end_ns[node] <= start and slack.free_ns[node] >= credit
            ]
            assert credit == 0 or able
            before = int(end)


@given(programs(max_ranks=1), st.data())
def test_slack_that_is_used_up_everywhere_moves_no_mark_on_the_cpu(run: Run, data: st.DataObject) -> None:
    # What a plan does: every op before a window gets slower by the window's slack, all at once.
    graph, slack = slack_of(run)
    extra: dict[int, int] = {}
    for gpu in slack.gpus:
        for start, credit in zip(gpu.windows.start_ns, gpu.windows.slack_ns, strict=True):
            for stream in range(len(graph.streams)):
                here = [n for n in plain_ops(graph) if graph.nodes.stream[n] == stream]
                here = [n for n in here if graph.nodes.end_ns[n] <= start]
                if here and credit:
                    last = max(here, key=lambda n: int(graph.nodes.end_ns[n]))
                    extra[last] = max(extra.get(last, 0), min(int(credit), int(slack.free_ns[last])))
    time = stretched(graph, extra)
    on_cpu = np.isin(graph.point_kind, (PointKind.THREAD_END, PointKind.MARK))
    assert np.array_equal(time[on_cpu], graph.time_ns[on_cpu])


@pytest.mark.parametrize("kind", ["copy", "kernel"])
def test_an_op_that_nobody_waits_for_may_last_until_the_window_ends(kind: str) -> None:
    run = Run()
    gpu = run.rank(0)
    gpu.launch(kind, at=0, start=10, end=20, stream=8)
    gpu.launch("last", at=100, start=110, end=120)
    graph, slack = slack_of(run)
    node = node_of(graph, kind)
    assert slack.free_ns[node] == slack.total_ns[node] == 100 * US
