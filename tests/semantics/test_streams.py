"""Order on the GPU: launches, streams, events, graphs, host functions, contention.

Times are microseconds. A launch call takes 5; the least launch latency of a run is 10 where not
told otherwise. Every test writes down the changed timeline and shows that it needs its rule.
"""

from __future__ import annotations

from builder import Rank, Run, expect

from emo.graph.model import EdgeType
from emo.trace.model import SyncInfo


def warm_up(gpu: Rank) -> None:
    """Work on stream 7 until 50, so that what runs there later was not yet running when others were ready."""
    gpu.launch("warm-up", at=0, start=10, end=50)


def test_an_op_takes_its_duration() -> None:
    # s7  A 10======60 B 60==80        A x2:  A 10============110 B 110==130
    run = Run()
    gpu = run.rank(0)
    gpu.launch("A", at=0, start=10, end=60)
    gpu.launch("B", at=5, start=60, end=80)
    expect(run, None, {"A": (10, 110), "B": (110, 130)}, scale={"A": 2})


def test_a_stream_runs_its_ops_in_order() -> None:
    # The 3 between A and B are the hand-off: a latency, it stays.
    # s7  A 10======60 ... B 63==83    A x2:  A 10============110 ... B 113==133
    run = Run()
    gpu = run.rank(0)
    gpu.launch("A", at=0, start=10, end=60)
    gpu.launch("B", at=5, start=63, end=83)
    expect(run, EdgeType.STREAM, {"A": (10, 110), "B": (113, 133)}, scale={"A": 2})


def test_a_kernel_starts_after_its_launch() -> None:
    # main  launch A 0-5 ........95........ launch B 100-105
    # s7                A 10-20                           B 112-122   latency 12: 10 is the least, 2 settle
    # main x2: launch A 0-10, gap 190, launch B 200-210; B 212-222. The latency does not scale.
    run = Run()
    gpu = run.rank(0)
    gpu.launch("A", at=0, start=10, end=20)
    gpu.launch("B", at=100, start=112, end=122)
    expect(
        run,
        EdgeType.LAUNCH,
        {"A": (10, 20), "launch B": (200, 210), "B": (212, 222)},
        cpu={"0 main": 2},
    )


def test_a_queued_kernel_feels_a_late_launch_only_beyond_its_queue() -> None:
    # B waited in the queue: launched 5, could start at 15, started when A was done at 60.
    # main x4: launch A 0-20, launch B 20-40, B could start at 30: still held by A.
    # main x12: launch A 0-60, launch B 60-120: B at 70.
    for factor, start in ((4, 60), (12, 70)):
        run = Run()
        gpu = run.rank(0)
        gpu.launch("A", at=0, start=10, end=60)
        gpu.launch("B", at=5, start=60, end=80)
        assert run.replay(cpu={"0 main": factor}).span("B") == (start, start + 20)


def test_a_recorded_event_joins_two_streams() -> None:
    # s7  warm-up 10=====50  A 50========110
    # s8                                     B 112====152     (2 from event to start: a latency)
    # A x2:                  A 50=================170  B 172====212
    run = Run()
    gpu = run.rank(0)
    warm_up(gpu)
    gpu.launch("A", at=5, start=50, end=110)
    gpu.record("a", 10, stream=7)
    gpu.wait(11, event="a", stream=8)
    gpu.launch("B", at=12, start=112, end=152, stream=8)
    assert run.traces()[0].quality.sync_info == SyncInfo.RECORDED
    expect(run, EdgeType.EVENT, {"A": (50, 170), "B": (172, 212)}, scale={"A": 2})


def test_a_recorded_event_stands_for_the_work_before_the_record_only() -> None:
    # A2 is launched on stream 7 after the record: B does not wait for it, whatever it takes.
    run = Run()
    gpu = run.rank(0)
    warm_up(gpu)
    gpu.launch("A", at=5, start=50, end=110)
    gpu.record("a", 10, stream=7)
    gpu.launch("A2", at=11, start=110, end=300)
    gpu.wait(16, event="a", stream=8)
    gpu.launch("B", at=17, start=112, end=152, stream=8)
    changed = run.replay({"A2": 5})
    assert changed.span("A2") == (110, 1060)
    assert changed.span("B") == (112, 152)


def test_a_wait_without_records_is_inferred() -> None:
    # As above, but nothing names the event: the last op on another stream before the wait stands for it.
    run = Run()
    gpu = run.rank(0)
    warm_up(gpu)
    gpu.launch("A", at=5, start=50, end=110)
    gpu.wait(11)
    gpu.launch("B", at=12, start=112, end=152, stream=8)
    assert run.traces()[0].quality.sync_info == SyncInfo.INFERRED
    expect(run, EdgeType.EVENT_INFERRED, {"A": (50, 170), "B": (172, 212)}, scale={"A": 2})


def test_a_pattern_of_waits_that_the_run_contradicts_is_dropped() -> None:
    # The second wait cannot have been for A2, which was still running when B2 started: so the
    # pattern 7 -> 8 means something else here and is given up, in both places, and counted.
    run = Run()
    gpu = run.rank(0)
    warm_up(gpu)
    gpu.launch("A", at=5, start=50, end=110)
    gpu.wait(11)
    gpu.launch("B", at=12, start=112, end=152, stream=8)
    gpu.launch("A2", at=200, start=210, end=400)
    gpu.wait(206)
    gpu.launch("B2", at=207, start=260, end=270, stream=8)
    changed = run.replay({"A": 2}, without=[EdgeType.CONTENTION])
    assert changed.span("B") == (112, 152)
    report = changed.graph.report
    assert report.inferred_waits_dropped == 2
    assert report.inferred_patterns_dropped >= 1
    assert "EVENT_INFERRED" not in report.edges_by_type


def test_a_graph_replay_needs_one_launch_for_many_kernels() -> None:
    # main  graph 0-5 ...... graph 105-110 ->  main x2: 0-10 ...... 210-220
    # s7        a 10=30 b 31=41 c 41=51              a2 115=135 b2 136=146
    # a2 is launched by the second replay: 220; b2 follows by stream order, its hand-off of 1 stays.
    run = Run()
    gpu = run.rank(0)
    gpu.graph("replay 1", 0, {"a": (10, 30, 7), "b": (31, 41, 7), "c": (41, 51, 7)})
    gpu.graph("replay 2", 105, {"a2": (115, 135, 7), "b2": (136, 146, 7)})
    expect(
        run,
        EdgeType.LAUNCH,
        {"replay 2": (210, 220), "a2": (220, 240), "b2": (241, 251), "c": (41, 51)},
        cpu={"0 main": 2},
    )
    expect(
        run,
        EdgeType.STREAM,
        {"a": (10, 50), "b": (51, 61), "c": (61, 71), "a2": (115, 135)},
        scale={"a": 2},
    )


def test_a_graph_replay_on_two_streams_keeps_the_order_of_its_nodes() -> None:
    # s7  a0 10=50 a 50=====100                c 152==172
    # s8                        b 102====150               (2 from a to b, 2 from b to c)
    # a x2:        a 50===========150, b 152====200, c 202==222
    run = Run()
    gpu = run.rank(0)
    gpu.graph("replay", 0, {"a0": (10, 50, 7), "a": (50, 100, 7), "b": (102, 150, 8), "c": (152, 172, 7)})
    expect(
        run,
        EdgeType.GRAPH_ORDER,
        {"a": (50, 150), "b": (152, 200), "c": (202, 222)},
        scale={"a": 2},
    )


def test_overlapping_kernels_on_one_stream_keep_their_shares() -> None:
    # s7  A 10=========110        A x2: A 10===================210
    #           B 60======130     B starts when half of A has run: 110, ends 180
    run = Run()
    gpu = run.rank(0)
    gpu.launch("A", at=0, start=10, end=110)
    gpu.launch("B", at=5, start=60, end=130)
    expect(run, EdgeType.STREAM, {"A": (10, 210), "B": (110, 180)}, scale={"A": 2})


def test_what_follows_overlapping_kernels_waits_for_all_of_them() -> None:
    # s7  A 10=========110                 A x2: A 10===================210
    #           B 60======130                          B 110=====180
    #                        C 130==150                                    C 210==230
    # In the run B ended last, so A did not hold C. It would have: a stream runs in order.
    run = Run()
    gpu = run.rank(0)
    gpu.launch("A", at=0, start=10, end=110)
    gpu.launch("B", at=5, start=60, end=130)
    gpu.launch("C", at=10, start=130, end=150)
    expect(run, EdgeType.STREAM, {"A": (10, 210), "B": (110, 180), "C": (210, 230)}, scale={"A": 2})


def test_a_host_function_runs_between_two_ops() -> None:
    # main  launch A 0-5, host function 6-7, launch B 8-13
    # s7    A 10====60  [host function 60..100]  B 100==120
    # A x2: A 10=========110 [110..150] B 150==170; the function's own 40 do not scale.
    run = Run()
    gpu = run.rank(0)
    gpu.launch("A", at=0, start=10, end=60)
    gpu.call("cudaLaunchHostFunc", 6, 7, label="host function")
    gpu.launch("B", at=8, start=100, end=120)
    assert run.replay({"A": 2}).span("B") == (150, 170)
    # A short, the call late: main x20 calls it at 120 and launches B at 160. The function runs
    # 120..160, B could start at 170. Without the rule its 40 would be added to that.
    expect(
        run,
        EdgeType.HOST_FUNCTION,
        {"host function": (120, 140), "launch B": (160, 260), "B": (170, 190)},
        cpu={"0 main": 20},
    )


def test_a_kernel_that_fills_the_gpu_keeps_other_streams_out() -> None:
    # Nothing orders A and B; B was ready at 15 and got in when A was nearly done.
    # s7  A 10===========110                 A x2: A 10=======================210
    # s8                  B 112==132               B 2 after it: 212==232
    run = Run()
    gpu = run.rank(0)
    gpu.launch("A", at=0, start=10, end=110)
    gpu.launch("B", at=5, start=112, end=132, stream=8)
    expect(run, EdgeType.CONTENTION, {"A": (10, 210), "B": (212, 232)}, scale={"A": 2})


def test_streams_that_nothing_joins_do_not_wait_for_each_other() -> None:
    run = Run()
    gpu = run.rank(0)
    gpu.launch("A", at=0, start=10, end=110)
    gpu.launch("B", at=5, start=15, end=40, stream=8)
    gpu.launch("C", at=10, start=40, end=60, stream=8)
    changed = run.replay({"A": 4})
    assert (changed.span("B"), changed.span("C")) == ((15, 40), (40, 60))
    assert changed.span("A") == (10, 410)


def test_the_work_of_a_long_call_before_it_submits_is_the_cpus() -> None:
    # The first launch loads a module for 1000 us, then submits: K starts 10 before the call returns.
    # main  launch K 0=================1010
    # s7                            K 1000==1100
    # main x2: the 800 beyond the 200 that a launch may take become 1600, the 200 stay: K 1800..1900.
    run = Run()
    gpu = run.rank(0)
    gpu.launch("K", at=0, start=1000, end=1100, until=1010)
    expect(run, EdgeType.LAUNCH, {"launch K": (0, 2020), "K": (1800, 1900)}, cpu={"0 main": 2})
