"""Order between ranks: who waits for whom in a collective, and what is never slack.

Times are microseconds. The collective of rank r is "C{r}", the work before it "K{r}".
"""

from __future__ import annotations

import pytest
from builder import Run, expect

from emo.graph.model import EdgeType
from emo.graph.replay import replay
from emo.graph.slack import find_slack
from emo.trace.model import RawCategory


def meeting(op: str, ranks: list[tuple[int, int, int, int]], **columns: object) -> Run:
    """One collective: per rank (K end, C launched, C start, C end). K starts at 10, its launch at 0."""
    run = Run()
    for number, (work_end, launched, start, end) in enumerate(ranks):
        gpu = run.rank(number)
        gpu.launch(f"K{number}", at=0, start=10, end=work_end)
        gpu.collective(f"C{number}", at=launched, start=start, end=end, op=op, **columns)  # type: ignore[arg-type]
        gpu.launch(f"N{number}", at=launched + 5, start=end, end=end + 10, stream=20)
    return run


def all_reduce() -> Run:
    """GPU-late peer: rank 1 comes last to C, behind its K. Two more meetings, D and E, settle the clocks.

    rank 0  K0 10==30   C0 60 ------ wait ----- 110 ==wire== 130  N0 130=140  D 140 --- 160 E 160=180
    rank 1  K1 10====================110 C1     110 ==wire== 133  N1 133=143  D 143 === 160 E 160=180
    """
    run = Run()
    for number, (work_end, launched, start, end) in enumerate([(30, 50, 60, 130), (110, 5, 110, 133)]):
        gpu = run.rank(number)
        gpu.launch(f"K{number}", at=0, start=10, end=work_end, stream=20)
        gpu.collective(f"C{number}", at=launched, start=start, end=end)
        gpu.launch(f"N{number}", at=launched + 5, start=end, end=end + 10, stream=20)
        gpu.collective(f"D{number}", at=launched + 10, start=end + 10, end=160)
        gpu.collective(f"E{number}", at=launched + 15, start=160, end=180)
    return run


def test_a_peer_whose_gpu_is_late_delays_everybody() -> None:
    # K1 x2: K1 10..210. C1 210, the joint ends 230, rank 1 its residual of 3 later; rank 0 waits
    # from 60 to 210. D: rank 1 arrives 243, 17 on the wire.
    expect(
        all_reduce(),
        EdgeType.COLLECTIVE,
        {
            "K1": (10, 210),
            "C0": (60, 230),
            "C1": (210, 233),
            "N0": (230, 240),
            "N1": (233, 243),
            "D0": (240, 260),
            "D1": (243, 260),
        },
        scale={"K1": 2},
    )
    joint = all_reduce().replay().graph.joints[0]
    assert joint.wire_ns == 20_000
    assert joint.wait_ns_by_rank == {0: 50_000, 1: 0}
    assert joint.residual_ns_by_rank == {0: 0, 1: 3_000}


def test_a_wait_for_a_late_peer_absorbs_slower_work() -> None:
    # K0 x3: 10..70. C0 starts 70 instead of 60 and still waits for rank 1: nothing ends later.
    changed = all_reduce().replay({"K0": 3})
    assert changed.span("C0") == (70, 130)
    assert changed.span("N0") == (130, 140)
    assert changed.span("C1") == (110, 133)


def test_wire_time_scales_and_waiting_does_not() -> None:
    # Both kernels x2: the joint begins at 110 as before, wire 40, residual 6.
    changed = all_reduce().replay({"C0": 2, "C1": 2})
    assert changed.span("C0") == (60, 150)
    assert changed.span("C1") == (110, 156)


def test_a_peer_whose_cpu_is_late_delays_everybody() -> None:
    # rank 0  K0 10=20 C0 25 -------------- 110 ==130
    # rank 1  K1 10=20    C1 launched 100:  110 ==130
    # rank 1's CPU x2: launch K1 0-10, launch C1 200-210; C1 210, joint ends 230.
    run = meeting("AllReduce", [(20, 15, 25, 130), (20, 100, 110, 130)])
    expect(
        run,
        EdgeType.COLLECTIVE,
        {"launch C1": (200, 210), "C0": (25, 230), "C1": (210, 230), "N0": (230, 240)},
        cpu={"1 main": 2},
    )


def test_a_send_waits_for_its_receive() -> None:
    # rank 0 (sends)     K0 10=20 C0 25 --------- 110 ==130
    # rank 1 (receives)  K1 10=20    C1 launched 100: 110 ==130
    run = meeting("SendRecv", [(20, 15, 25, 130), (20, 100, 110, 130)])
    expect(
        run,
        EdgeType.P2P,
        {"launch C1": (200, 210), "C0": (25, 230), "C1": (210, 230), "N0": (230, 240)},
        cpu={"1 main": 2},
    )


def two_pairs(second_end: int) -> Run:
    """Ranks 0 -> 1 and 2 -> 3 at the same place in their programs; annotations say point to point."""
    run = Run()
    for number, end in enumerate([130, 130, second_end, second_end]):
        gpu = run.rank(number)
        gpu.launch(f"K{number}", at=0, start=10, end=end - 30, stream=20)
        name = f"nccl:send {number}->{number + 1}" if number % 2 == 0 else f"nccl:recv {number}<-{number - 1}"
        gpu.mark(name, 11, 20)
        gpu.collective(f"C{number}", at=12, start=end - 30, end=end, op="SendRecv")
        gpu.launch(f"N{number}", at=21, start=end, end=end + 10, stream=20)
    return run


@pytest.mark.parametrize("second_end", [140, 200])
def test_send_and_receive_join_pairs_only(second_end: int) -> None:
    # K0 x2: rank 1 waits for rank 0; ranks 2 and 3 have nothing to do with it.
    changed = two_pairs(second_end).replay({"K0": 2})
    for rank in (2, 3):
        assert changed.span(f"C{rank}") == (second_end - 30, second_end)
    assert all(len(joint.nodes) == 2 for joint in changed.graph.joints)


@pytest.mark.parametrize("op", ["Broadcast", "Reduce"])
def test_rooted_operations_align_no_clocks(op: str) -> None:
    # The two sides ended 30 apart; that says nothing about their clocks.
    result = meeting(op, [(20, 15, 25, 130), (20, 100, 110, 160)]).replay()
    assert set(result.graph.report.clock_offsets_ns.values()) <= {0}
    assert result.recorded("C1") == (110, 160)


def test_point_to_point_aligns_no_clocks() -> None:
    # A sender is through before its receiver (here 30): that says nothing about their clocks.
    run = Run()
    for number, name, end in ((0, "nccl:send 0->1", 130), (1, "nccl:recv 1<-0", 160)):
        gpu = run.rank(number)
        gpu.launch(f"K{number}", at=0, start=10, end=20, stream=20)
        gpu.mark(name, 9, 20)
        gpu.collective(f"C{number}", at=10, start=25, end=end, op="SendRecv")
    result = run.replay()
    assert set(result.graph.report.clock_offsets_ns.values()) <= {0}
    assert result.recorded("C1") == (25, 160)


def test_operations_in_which_all_wait_for_all_align_clocks() -> None:
    # Rank 1's clock is 40 ahead: everything of it was written down 40 later.
    run = Run()
    for number, late in ((0, 0), (1, 40)):
        gpu = run.rank(number)
        gpu.launch(f"K{number}", at=late, start=late + 10, end=late + 20, stream=20)
        gpu.collective(f"C{number}", at=late + 5, start=late + 20, end=late + 50)
    result = run.replay()
    assert result.graph.report.clock_offsets_ns == {0: 0, 1: 40_000}
    assert result.recorded("C0") == result.recorded("C1") == (20, 50)


def broadcast() -> Run:
    """The root, rank 0, comes at 110; the receiver was there at 25, and is through 5 after the root.

    rank 0  K0 10============110 C0 110==130         N0 130
    rank 1  K1 10=20 C1 25 ------------- 110 ====135 N1 135
    """
    run = Run()
    for number, (work_end, launched, start, end) in enumerate([(110, 5, 110, 130), (20, 15, 25, 135)]):
        gpu = run.rank(number)
        gpu.launch(f"K{number}", at=0, start=10, end=work_end, stream=20)
        gpu.collective(f"C{number}", at=launched, start=start, end=end, op="Broadcast")
        gpu.launch(f"N{number}", at=launched + 5, start=end, end=end + 10, stream=20)
    return run


def test_in_a_broadcast_receivers_wait_for_the_root() -> None:
    # K0 x2: C0 210..230; C1 ends 25 after the root began, as before: 235.
    expect(
        broadcast(),
        EdgeType.ROOTED,
        {"C0": (210, 230), "C1": (25, 235), "N1": (235, 245)},
        scale={"K0": 2},
    )


def test_in_a_broadcast_the_root_waits_for_nobody() -> None:
    # K1 x19: 10..200. C1 comes at 200, takes its 25, and the root does not care.
    changed = broadcast().replay({"K1": 19})
    assert changed.span("C1") == (200, 225)
    assert changed.span("C0") == (110, 130)
    assert changed.span("N0") == (130, 140)


def test_a_receiver_that_comes_while_the_root_sends_is_not_the_root() -> None:
    # rank 0  K0 10=====110 C0 110====130            sends: is through first
    # rank 1  K1 10========120 C1  120====140        came 10 after the root, takes its 20
    # K1 x3: C1 340..360. The root is through at 130 all the same.
    run = Run()
    for number, start in ((0, 110), (1, 120)):
        gpu = run.rank(number)
        gpu.launch(f"K{number}", at=0, start=10, end=start, stream=20)
        gpu.collective(f"C{number}", at=5, start=start, end=start + 20, op="Broadcast")
    changed = run.replay({"K1": 3})
    assert changed.span("C0") == (110, 130)
    assert changed.span("C1") == (340, 360)


def reduce_to_one() -> Run:
    """The root, rank 1, was there at 25 and is through when rank 0, who came at 110, has sent.

    rank 0  K0 10============110 C0 110==120         N0 120
    rank 1  K1 10=20 C1 25 ------------- 110 ====135 N1 135
    """
    run = Run()
    for number, (work_end, launched, start, end) in enumerate([(110, 5, 110, 120), (20, 15, 25, 135)]):
        gpu = run.rank(number)
        gpu.launch(f"K{number}", at=0, start=10, end=work_end, stream=20)
        gpu.collective(f"C{number}", at=launched, start=start, end=end, op="Reduce")
        gpu.launch(f"N{number}", at=launched + 5, start=end, end=end + 10, stream=20)
    return run


def test_in_a_reduce_the_root_waits_for_the_others() -> None:
    expect(
        reduce_to_one(),
        EdgeType.ROOTED,
        {"C0": (210, 220), "C1": (25, 235), "N1": (235, 245)},
        scale={"K0": 2},
    )


def test_in_a_reduce_the_others_wait_for_nobody() -> None:
    changed = reduce_to_one().replay({"K1": 19})
    assert changed.span("C1") == (200, 225)
    assert changed.span("C0") == (110, 120)


def subgroups(*, metadata: bool) -> Run:
    """Four ranks meet three times; between the first two meetings pairs (0,1) and (2,3) meet.

    rank 0, 1  W 20..50  B 50=60            P 60..90               V 100----200==250  X 260==290
    rank 2     W 20..50  B 50=60            P 60-------160==180    V 200==250         X 260==290
    rank 3     W 20..50  B 50===========160 P          160==180    V 200==250         X 260==290
    """
    run = Run()
    for number in range(4):
        pair = (0, 1) if number < 2 else (2, 3)
        world = (0, 1, 2, 3)
        gpu = run.rank(number)
        pair_end = 90 if number < 2 else 180
        meetings = [("W", 10, 20, 50, world), ("P", 15, 60, pair_end, pair)]
        meetings += [("V", 90, 200 if number > 1 else 100, 250, world), ("X", 95, 260, 290, world)]
        gpu.launch(f"K{number}", at=0, start=10, end=20, stream=20)
        for label, at, start, end, group in meetings:
            if label == "P":
                gpu.launch(f"B{number}", at=14, start=50, end=60 if number < 3 else 160, stream=20)
            known = {"group": group, "sequence": "WVXP".index(label)} if metadata else {}
            begin = 160 if (label, number) == ("P", 3) else start
            gpu.collective(f"{label}{number}", at=at + 5, start=begin, end=end, **known)  # type: ignore[arg-type]
    return run


@pytest.mark.parametrize("metadata", [True, False], ids=["by group", "by order"])
def test_subgroups_meet_apart(metadata: bool) -> None:
    # B3 (110) x2 makes rank 3 come to P at 270: P2, P3 end 290. Ranks 0 and 1 are through theirs at 90
    # as before. Ranks 2 and 3 come to V 20 after P, as before: 310, wire 50: all end 360.
    run = subgroups(metadata=metadata)
    recorded = run.replay()
    assert sorted(len(joint.nodes) for joint in recorded.graph.joints) == [2, 2, 4, 4, 4]
    changed = run.replay({"B3": 2})
    assert [changed.span(f"P{rank}") for rank in range(4)] == [(60, 90), (60, 90), (60, 290), (270, 290)]
    assert [changed.span(f"V{rank}") for rank in range(4)] == [(100, 360), (100, 360), (310, 360), (310, 360)]


def alone() -> Run:
    """One rank of a job. Two equal all-reduces: 20 is the wire time, 50 of the second is waiting.

    s20  C 10==30  M 30==50  D 50=====================120  E 120=130
    """
    run = Run()
    gpu = run.rank(0)
    gpu.collective("C", at=0, start=10, end=30)
    gpu.launch("M", at=5, start=30, end=50, stream=20)
    gpu.collective("D", at=10, start=50, end=120)
    gpu.launch("E", at=15, start=120, end=130, stream=20)
    return run


def test_waiting_for_an_absent_peer_is_constant() -> None:
    # C, D x2: wire 40 each, the wait stays 50. C 10..50, M 50..70, D 70..160, E 160..170.
    changed = alone().replay({"C": 2, "D": 2})
    assert [changed.span(label) for label in "CMDE"] == [(10, 50), (50, 70), (70, 160), (160, 170)]
    # And it is not absorbed: M x2 moves everything behind it.
    changed = alone().replay({"M": 2})
    assert [changed.span(label) for label in "MDE"] == [(30, 70), (70, 140), (140, 150)]


def test_waiting_for_an_absent_peer_is_never_slack() -> None:
    graph = alone().replay().graph
    slack = find_slack(graph, replay(graph))
    (gpu,) = slack.gpus
    assert gpu.peer_wait_ns == 50_000
    assert gpu.slack_ns == gpu.edge_slack_ns == 0
    assert not any(
        (gpu.windows.start_ns < 120_000) & (gpu.windows.end_ns > 50_000) & (gpu.windows.slack_ns > 0)
    )


def test_copies_and_kernels_are_no_collectives() -> None:
    run = Run()
    gpu = run.rank(0)
    gpu.launch("copy", at=0, start=10, end=20, kind=RawCategory.MEMCPY, api="cudaMemcpyAsync")
    gpu.launch("copy 2", at=5, start=20, end=90, kind=RawCategory.MEMCPY, api="cudaMemcpyAsync")
    assert not run.replay().graph.peer_wait_ns.any()
