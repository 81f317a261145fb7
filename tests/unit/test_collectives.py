"""Which ops of different ranks are the same collective, and what that says about their clocks."""

from __future__ import annotations

import numpy as np
import pytest
from builder import Run
from hypothesis import given
from hypothesis import strategies as st
from programs import programs

from emo.graph.collectives import match_collectives
from emo.graph.model import Graph
from emo.trace.model import Kind

US = 1_000
MS = 1_000_000


def run_of(meetings: dict[int, list[tuple[str, str, int, int]]], **columns: object) -> Run:
    """Per rank a list of (label, operation, start, end); each is launched 10 before it starts."""
    run = Run()
    for number, members in meetings.items():
        gpu = run.rank(number)
        gpu.launch(f"first {number}", at=0, start=10, end=20)
        for label, op, start, end in members:
            gpu.collective(f"{label}{number}", at=start - 10, start=start, end=end, op=op, **columns)  # type: ignore[arg-type]
    return run


def met(run: Run) -> list[list[str]]:
    """Labels of the members of every joint, in order."""
    result = run.replay()
    return [
        sorted(label for label in run.labels if run.labels[label][2] and result.node(label) in joint.nodes)
        for joint in result.graph.joints
    ]


def test_collectives_are_matched_by_order() -> None:
    members = [("a", "AllReduce", 30, 50), ("b", "AllGather", 70, 90), ("c", "AllReduce", 110, 130)]
    assert met(run_of({0: members, 1: members})) == [["a0", "a1"], ["b0", "b1"], ["c0", "c1"]]


def test_a_rank_that_began_to_record_later_is_matched_from_where_its_operations_agree() -> None:
    whole = [("a", "AllReduce", 30, 50), ("b", "AllGather", 70, 90), ("c", "ReduceScatter", 110, 130)]
    assert met(run_of({0: whole, 1: whole[1:]})) == [["b0", "b1"], ["c0", "c1"]]


def test_different_operations_at_the_same_place_are_not_matched() -> None:
    run = run_of({0: [("a", "AllReduce", 30, 50)], 1: [("a", "AllGather", 30, 50)]})
    assert met(run) == []


def test_sequence_numbers_match_what_the_order_does_not() -> None:
    # Rank 1 lost the first collective of the group: by order a0 would meet b1.
    run = Run()
    for number, members in ((0, [(1, 30), (2, 70)]), (1, [(2, 70)])):
        gpu = run.rank(number)
        for sequence, start in members:
            gpu.collective(
                f"s{sequence} {number}",
                at=start - 10,
                start=start,
                end=start + 20,
                group=(0, 1),
                sequence=sequence,
            )
    assert met(run) == [["s2 0", "s2 1"]]


def test_groups_are_kept_apart() -> None:
    run = Run()
    for number in range(4):
        for place, group in enumerate(((0, 1, 2, 3), (0, 1) if number < 2 else (2, 3))):
            start = 30 + 40 * place
            run.rank(number).collective(
                f"{place}.{number}", at=start - 10, start=start, end=start + 20, group=group, sequence=0
            )
    assert met(run) == [["0.0", "0.1", "0.2", "0.3"], ["1.0", "1.1"], ["1.2", "1.3"]]


def test_one_rank_matches_nothing() -> None:
    run = run_of({0: [("a", "AllReduce", 30, 50)]})
    assert match_collectives(run.traces()) == []
    assert met(run) == []


def test_members_that_could_not_have_met_are_counted_not_joined() -> None:
    # By its group's record a0 and a1 are one, but rank 0 was through before rank 1 came, and the
    # clocks are right: b and c end together.
    run = Run()
    for number, start in ((0, 30), (1, 300)):
        gpu = run.rank(number)
        spans = [(start, start + 20), (400, 420), (500, 520), (600, 620)]
        for sequence, (begin, end) in enumerate(spans):
            gpu.collective(
                f"{sequence}.{number}", at=begin - 10, start=begin, end=end, group=(0, 1), sequence=sequence
            )
    graph = run.graph()
    assert graph.report.collectives_unmatched == 1
    assert len(graph.joints) == 3


@pytest.mark.parametrize("offsets", [(0, 500), (0, -500), (300, 0, -20_000)])
def test_clocks_are_aligned_where_operations_end(offsets: tuple[int, ...]) -> None:
    # The same run, written down by clocks that differ.
    straight, skewed = Run(), Run()
    for run, apply in ((straight, False), (skewed, True)):
        for number, offset in enumerate(offsets):
            gpu = run.rank(number)
            late = offset if apply else 0
            for place in range(3):
                start = late + 40 + 100 * place + 10 * number
                gpu.collective(f"{place}.{number}", at=start - 10, start=start, end=late + 100 + 100 * place)
    expected, found = straight.replay().graph, skewed.replay().graph
    assert np.array_equal(expected.time_ns, found.time_ns)
    assert [joint.wait_ns_by_rank for joint in expected.joints] == [
        joint.wait_ns_by_rank for joint in found.joints
    ]
    assert found.report.clock_offsets_ns == {
        number: (offset - offsets[0]) * US for number, offset in enumerate(offsets)
    }


def test_a_clock_that_runs_fast_is_aligned_all_along() -> None:
    # Rank 1's clock gains 20 us per second: 60 us over the run. Twenty meetings, 150 ms apart.
    run = Run()
    gained = []
    for number in range(2):
        gpu = run.rank(number)
        for place in range(20):
            end = 100_000 + 150_000 * place
            fast = round(end * 20e-6) if number else 0
            gained.append(fast)
            gpu.collective(f"{place}.{number}", at=end - 60 + fast, start=end - 50 + fast, end=end + fast)
    assert max(gained) == 59
    graph = run.graph()
    assert len(graph.joints) == 20
    assert max(max(joint.residual_ns_by_rank.values()) for joint in graph.joints) <= 3 * US


def test_a_few_wrong_matches_do_not_move_the_clocks() -> None:
    # One of seven meetings ends 5 ms apart (a wrong match): the offset stays that of the others.
    run = Run()
    for number in range(2):
        gpu = run.rank(number)
        for place in range(7):
            end = 20_000 * (place + 1) + (5_000 if (number, place) == (1, 3) else 0)
            gpu.collective(f"{place}.{number}", at=end - 60, start=end - 50, end=end)
    graph = run.graph()
    assert graph.report.clock_offsets_ns == {0: 0, 1: 0}
    assert len(graph.joints) == 6


def test_wire_time_is_what_remains_when_all_have_come() -> None:
    run = run_of(
        {
            0: [("a", "AllReduce", 30, 190)],
            1: [("a", "AllReduce", 150, 190)],
            2: [("a", "AllReduce", 80, 190)],
        }
    )
    (joint,) = run.graph().joints
    assert joint.wire_ns == 40 * US
    assert joint.wait_ns_by_rank == {0: 120 * US, 1: 0, 2: 70 * US}


def test_ends_that_are_far_apart_are_a_finding() -> None:
    # The group's record says that they met; rank 1 is through 60 us later in one of four meetings.
    run = Run()
    for number in range(2):
        for place in range(4):
            end = 1_000 * (place + 1) + (60 if (number, place) == (1, 2) else 0)
            run.rank(number).collective(
                f"{place}.{number}", at=end - 210, start=end - 200, end=end, group=(0, 1), sequence=place
            )
    graph = run.graph()
    assert graph.report.large_residuals == 1
    assert graph.joints[2].residual_ns_by_rank == {0: 0, 1: 60 * US}


def test_absent_members_of_a_group_leave_an_unknown_wait() -> None:
    # Ranks 0 and 1 of three. The first meeting took 20 after the later of them, the second 170: the
    # 150 more are rank 2's, and constant.
    run = Run()
    for number in range(2):
        for place, (start, end) in enumerate(((40 + 10 * number, 70), (100 + 10 * number, 280))):
            run.rank(number).collective(
                f"{place}.{number}", at=start - 10, start=start, end=end, group=(0, 1, 2), sequence=place
            )
    graph = run.graph()
    assert [joint.wire_ns // US for joint in graph.joints] == [20, 20]
    assert [int(graph.peer_wait_ns[joint.end_point]) // US for joint in graph.joints] == [0, 150]
    # x2 on the wire: 40 + 150, from 80 on (the window opens with the first launch, at 30).
    changed = run.replay({"1.0": 2})
    assert changed.span("1.1") == (80, 270)


def times_by_rank(graph: Graph) -> dict[int, list[tuple[int, int, int]]]:
    """(row, start, end) of the nodes of every rank, from the rank's own first node on."""
    found: dict[int, list[tuple[int, int, int]]] = {}
    for trace in range(len(graph.traces)):
        mine = graph.nodes.trace == trace
        rows, start, end = graph.nodes.row[mine], graph.nodes.start_ns[mine], graph.nodes.end_ns[mine]
        found[graph.rank_of(trace)] = list(zip(rows.tolist(), start.tolist(), end.tolist(), strict=True))
    return found


@given(programs(max_ranks=3), st.lists(st.integers(-5_000, 5_000), min_size=3, max_size=3))
def test_what_the_clocks_say_does_not_matter_once_all_ranks_have_met(run: Run, offsets: list[int]) -> None:
    straight = run.graph()
    for rank, offset in zip(run.ranks.values(), offsets, strict=False):
        rank.clock_ns = offset * US
    skewed = run.graph()
    meetings = [joint for joint in straight.joints if straight.nodes.kind[joint.nodes[0]] == Kind.COLLECTIVE]
    if any(len(joint.nodes) == len(run.ranks) and not joint.rooted for joint in meetings):
        assert times_by_rank(skewed) == times_by_rank(straight)
        assert [joint.nodes for joint in skewed.joints] == [joint.nodes for joint in straight.joints]
