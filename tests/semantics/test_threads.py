"""Order that reaches the CPU: program order, blocking calls, back-pressure, hand-over, iterations.

Times are microseconds. A launch call takes 5; the least launch latency is 10.
"""

from __future__ import annotations

import pytest
from builder import Run, expect

from emo.graph.model import EdgeType
from emo.graph.predict import predict_iterations
from emo.graph.steps import completion_times, recorded_step_time, step_ratio
from emo.trace.model import RawCategory


def test_cpu_work_between_calls_scales_with_its_thread() -> None:
    # main  launch A 0-5 .. 15 of work .. launch B 20-25      main x3: 0-15 .. 45 .. 60-75
    run = Run()
    gpu = run.rank(0)
    gpu.launch("A", at=0, start=10, end=12)
    gpu.launch("B", at=20, start=30, end=32)
    expect(run, None, {"launch B": (60, 75), "B": (70, 72)}, cpu={"0 main": 3})


def test_event_synchronise_waits_for_the_event_not_for_later_work() -> None:
    # main  launch A 0-5, record 5-6, launch C 6-11, sync 11.............115, launch D 120-125
    # s7    A 10========110 C 110====160
    # s8                                         D 130=140
    # A x2: A ends 210; the sync returns 5 later as before: 215. D is launched at 220.
    # C x9: nothing else moves.
    run = Run()
    gpu = run.rank(0)
    gpu.launch("A", at=0, start=10, end=110)
    gpu.record("a", 5, stream=7)
    gpu.launch("C", at=6, start=110, end=160)
    gpu.wait_for("cudaEventSynchronize", 11, 115, label="sync", event="a")
    gpu.launch("D", at=120, start=130, end=140, stream=8)
    expect(
        run,
        EdgeType.SYNC,
        {"C": (210, 260), "sync": (11, 215), "launch D": (220, 225), "D": (230, 240)},
        scale={"A": 2},
    )
    later = run.replay({"C": 9})
    assert later.span("sync") == (11, 115)
    assert later.span("D") == (130, 140)


def test_what_a_blocking_call_does_itself_scales_with_the_cpu_the_rest_does_not() -> None:
    # The sync is blocked until 110 and takes 5 of its own: main x2: 110 + 10.
    run = Run()
    gpu = run.rank(0)
    gpu.launch("A", at=0, start=10, end=110)
    gpu.record("a", 5, stream=7)
    gpu.wait_for("cudaEventSynchronize", 6, 115, label="sync", event="a")
    assert run.replay(cpu={"0 main": 2}).span("sync") == (12, 120)


def test_stream_synchronise_waits_for_the_recorded_stream() -> None:
    # main  launch A 0-5 (s8), launch B 5-10 (s7), sync of stream 8: 10....62, launch C 70-75
    # s8    A 10======60                       A x2: A 10============110, sync ends 112, C launched 120
    # s7    B 15=20                            B x2: nothing waits for it
    run = Run()
    gpu = run.rank(0)
    gpu.launch("A", at=0, start=10, end=60, stream=8)
    gpu.launch("B", at=5, start=15, end=20)
    gpu.wait_for("cudaStreamSynchronize", 10, 62, label="sync", stream=8)
    gpu.launch("C", at=70, start=80, end=90)
    expect(
        run,
        EdgeType.SYNC,
        {"A": (10, 110), "sync": (10, 112), "launch C": (120, 125), "C": (130, 140)},
        scale={"A": 2},
    )
    assert run.replay({"B": 8}).span("sync") == (10, 62)


def test_stream_synchronise_without_records_waits_for_the_last_launched_op() -> None:
    run = Run()
    gpu = run.rank(0)
    gpu.launch("A", at=0, start=10, end=60)
    gpu.wait_for("cudaStreamSynchronize", 10, 62, label="sync")
    gpu.launch("C", at=70, start=80, end=90)
    expect(
        run,
        EdgeType.SYNC_INFERRED,
        {"A": (10, 110), "sync": (10, 112), "launch C": (120, 125), "C": (130, 140)},
        scale={"A": 2},
    )


def test_stream_synchronise_of_an_idle_stream_waits_for_nothing() -> None:
    # The record names stream 99, on which nothing runs: what the thread launched elsewhere does not count.
    run = Run()
    gpu = run.rank(0)
    gpu.launch("A", at=0, start=10, end=60)
    gpu.wait_for("cudaStreamSynchronize", 70, 72, label="sync", stream=99)
    assert run.replay({"A": 2}).span("sync") == (70, 72)


def test_device_synchronise_waits_for_its_own_device_only() -> None:
    # One process, two GPUs, a thread for each. Thread "main" has to do with device 0.
    run = Run()
    gpu = run.rank(0)
    gpu.launch("A", at=0, start=10, end=60)
    gpu.launch("B", at=1, start=11, end=40, device=1, stream=9, thread="other")
    gpu.wait_for("cudaDeviceSynchronize", 10, 62, label="sync")
    gpu.launch("C", at=70, start=80, end=90)
    assert run.replay({"A": 2}).span("sync") == (10, 112)
    assert run.replay({"B": 9}).span("sync") == (10, 62)


@pytest.mark.parametrize(("slow", "end"), [("A", 110), ("B", 105)])
def test_device_synchronise_waits_for_every_stream(slow: str, end: float) -> None:
    # s7  A 10======60        A x2: 10..110   the sync returns 2 after the later of the two
    # s8   B 15=====60        B x2: 15..105
    run = Run()
    gpu = run.rank(0)
    gpu.launch("A", at=0, start=10, end=60)
    gpu.launch("B", at=5, start=15, end=60, stream=8)
    gpu.wait_for("cudaDeviceSynchronize", 10, 62, label="sync")
    gpu.launch("C", at=70, start=80, end=90)
    expect(
        run,
        EdgeType.SYNC,
        {"sync": (10, end + 2), "launch C": (end + 10, end + 15), "C": (end + 20, end + 30)},
        scale={slow: 2},
    )


def test_a_pageable_copy_to_the_host_returns_when_the_data_is_there() -> None:
    # main  cudaMemcpyAsync 0.........55, launch B 60-65       copy x2: call ends 95, B launched 100
    # s7    copy 10=====50  B 70=75                                    B 110-115
    run = Run()
    gpu = run.rank(0)
    gpu.launch(
        "copy",
        at=0,
        until=55,
        start=10,
        end=50,
        api="cudaMemcpyAsync",
        kind=RawCategory.MEMCPY,
        name="Memcpy DtoH (Device -> Pageable)",
    )
    gpu.launch("B", at=60, start=70, end=75)
    expect(
        run,
        EdgeType.BLOCKING_COPY,
        {"launch copy": (0, 95), "copy": (10, 90), "launch B": (100, 105), "B": (110, 115)},
        scale={"copy": 2},
    )


def test_a_pageable_copy_to_the_gpu_returns_when_the_data_is_staged() -> None:
    # main  cudaMemcpyAsync 0.....40, launch B 45-50
    # s7    copy 10=========60  B 60=70
    # The call returned when 30 of the copy's 50 had run. copy x2: that is at 70; B is launched at 75
    # (ready 85) and starts when the copy is through: 110.
    run = Run()
    gpu = run.rank(0)
    gpu.launch(
        "copy",
        at=0,
        until=40,
        start=10,
        end=60,
        api="cudaMemcpyAsync",
        kind=RawCategory.MEMCPY,
        name="Memcpy HtoD (Pageable -> Device)",
    )
    gpu.launch("B", at=45, start=60, end=70)
    expect(
        run,
        EdgeType.BLOCKING_COPY,
        {"launch copy": (0, 70), "copy": (10, 110), "launch B": (75, 80), "B": (110, 120)},
        scale={"copy": 2},
    )


def test_a_pinned_copy_blocks_nobody() -> None:
    run = Run()
    gpu = run.rank(0)
    gpu.launch(
        "copy",
        at=0,
        start=10,
        end=60,
        api="cudaMemcpyAsync",
        kind=RawCategory.MEMCPY,
        name="Memcpy DtoH (Device -> Pinned)",
    )
    gpu.launch("B", at=45, start=60, end=70)
    assert run.replay({"copy": 2}).span("launch B") == (45, 50)


@pytest.mark.parametrize("name", ["cudaFree", "cudaMalloc"])
def test_free_and_malloc_wait_for_the_gpu(name: str) -> None:
    # main  launch A 0-5, free 6............112, launch B 120-125    A x2: free ends 212, B launched 220
    run = Run()
    gpu = run.rank(0)
    gpu.launch("A", at=0, start=10, end=110)
    gpu.call(name, 6, 112, label="waits")
    gpu.launch("B", at=120, start=130, end=135)
    expect(
        run,
        EdgeType.IMPLICIT_SYNC,
        {"waits": (6, 212), "launch B": (220, 225), "B": (230, 235)},
        scale={"A": 2},
    )


def test_a_malloc_that_was_seen_not_to_wait_is_no_synchronisation() -> None:
    # The second malloc returned while A2 ran: so malloc does not wait here, nor did the first.
    run = Run()
    gpu = run.rank(0)
    gpu.launch("A", at=0, start=10, end=110)
    gpu.call("cudaMalloc", 6, 112, label="first")
    gpu.launch("A2", at=120, start=130, end=300)
    gpu.call("cudaMalloc", 126, 130, label="second")
    assert run.replay({"A": 2}).span("first") == (6, 112)


def test_a_successful_poll_comes_after_its_event() -> None:
    # main  launch A 0-5, record 5-6, poll 50-51 (not yet), poll 112-113 (done), launch B 115-120
    # A x2: A ends 210. The poll that saw it done ends 1 after it: 211; launch B 213.
    run = Run()
    gpu = run.rank(0)
    gpu.launch("A", at=0, start=10, end=110)
    gpu.record("a", 5, stream=7)
    gpu.call("cudaEventQuery", 50, 51)
    gpu.wait_for("cudaEventQuery", 112, 113, label="poll", event="a")
    gpu.launch("B", at=115, start=125, end=130)
    expect(run, EdgeType.POLL, {"launch B": (213, 218), "B": (223, 228)}, scale={"A": 2})


def test_a_full_launch_queue_holds_the_next_launch() -> None:
    # Queue of 2.  main  launch A 0-5   launch B 30-35   launch C 60-65   launch D 90-95
    #              s7    A 10=20        B 40=50          C 70=80          D 100=110
    # A x20: A 10..210. B is queued behind it at 30: two in the queue. The launch of C waits for A's
    # slot, so it returns 5 after 210; the 25 of work after it put the launch of D at 240, D could
    # start at 250. B 210..220, C 220..230, D 250..260.
    run = Run(queue_depth=2)
    gpu = run.rank(0)
    for number, label in enumerate("ABCD"):
        gpu.launch(label, at=30 * number, start=30 * number + 10, end=30 * number + 20)
    expect(
        run,
        EdgeType.BACK_PRESSURE,
        {
            "A": (10, 210),
            "B": (210, 220),
            "launch C": (60, 215),
            "C": (220, 230),
            "launch D": (240, 245),
            "D": (250, 260),
        },
        scale={"A": 20},
    )


def test_the_queue_is_at_least_as_deep_as_the_run_shows() -> None:
    # Three launches were outstanding at once, so a queue of one cannot be: nothing new blocks.
    run = Run(queue_depth=1)
    gpu = run.rank(0)
    for number, label in enumerate("ABC"):
        gpu.launch(label, at=5 * number, start=10 + 50 * number, end=60 + 50 * number)
    graph = run.graph()
    assert (graph.report.queue_depth, graph.report.max_outstanding_launches) == (3, 3)


def test_a_launch_that_is_held_by_the_queue_holds_its_kernel_on_any_stream() -> None:
    # Queue of 2, streams that nothing joins. A x20 keeps its slot until 210, B keeps the other
    # (it is behind A). C cannot be in the queue before 210, so it cannot start before.
    run = Run(queue_depth=2)
    gpu = run.rank(0)
    gpu.launch("A", at=0, start=10, end=20)
    gpu.launch("B", at=30, start=40, end=50)
    gpu.launch("C", at=60, start=70, end=80, stream=8)
    changed = run.replay({"A": 20})
    assert changed.span("launch C")[1] == 215
    assert changed.span("C")[0] >= 210


def test_one_thread_waits_while_another_works() -> None:
    # main      launch A 0-5 .................................. launch D 100-105
    # autograd                 launch B 50-55, launch C 60-65
    # autograd x2: 45 from A to B become 90: B 95-105, C 115-125; then the main thread's own 35: D 160.
    run = Run()
    gpu = run.rank(0)
    gpu.launch("A", at=0, start=10, end=12)
    gpu.work(50, 66, name="autograd::engine::evaluate_function: MmBackward0", thread="autograd")
    gpu.launch("B", at=50, start=60, end=62, thread="autograd")
    gpu.launch("C", at=60, start=70, end=72, thread="autograd")
    gpu.launch("D", at=100, start=110, end=112)
    expect(
        run,
        EdgeType.HANDOVER,
        {"launch B": (95, 105), "launch C": (115, 125), "launch D": (160, 165), "D": (170, 172)},
        cpu={"0 autograd": 2},
    )


def test_threads_that_nothing_proves_to_take_turns_stay_apart() -> None:
    run = Run()
    gpu = run.rank(0)
    gpu.launch("A", at=0, start=10, end=12)
    gpu.launch("B", at=50, start=60, end=62, thread="other")
    gpu.launch("C", at=60, start=70, end=72, thread="other")
    gpu.launch("D", at=100, start=110, end=112)
    assert run.replay(cpu={"0 other": 4}).span("launch D") == (100, 105)


def backlog(steps: int = 5) -> Run:
    """Steps of 40 on the CPU, and two kernels of 20 each (K, L) that keep the GPU busy throughout.

    main  | launch K0 2-7, launch L0 7-12, work to 40 | launch K1 42-47 ...
    s7          K0 10=30 L0 30=50              K1 50=70 ...     L0 ends 10 after the mark at 40
    """
    run = Run()
    gpu = run.rank(0)
    for step in range(steps):
        at = 40 * step
        gpu.mark(f"ProfilerStep#{step}", at, at + 40)
        gpu.launch(f"K{step}", at=at + 2, start=at + 10, end=at + 30, name="K")
        gpu.launch(f"L{step}", at=at + 7, start=at + 30, end=at + 50, name="L")
    return run


def test_a_backlog_passes_an_iteration_boundary() -> None:
    # L0 x3 takes 60 instead of 20: everything behind it on the GPU comes 40 later, in the next
    # iterations too; no mark on the CPU moves.
    run = backlog()
    expect(
        run,
        EdgeType.STREAM,
        {"L0": (30, 90), "K1": (90, 110), "L1": (110, 130), "launch K1": (42, 47), "L4": (230, 250)},
        scale={"L0": 3},
    )
    changed = run.replay({"L0": 3})
    marks = changed.graph.iterations.end_points[0]
    assert changed.timeline.time_ns[marks].tolist() == [40_000, 80_000, 120_000, 160_000, 200_000]


def test_work_belongs_to_the_iteration_that_launched_it() -> None:
    graph = (result := backlog().replay()).graph
    assert [int(graph.iterations.node_iteration[result.node(f"L{i}")]) for i in range(5)] == [0, 1, 2, 3, 4]
    assert completion_times(graph, graph.time_ns).tolist() == [[50_000, 90_000, 130_000, 170_000, 210_000]]


def test_a_call_that_begins_with_an_iteration_belongs_to_it() -> None:
    # Traces in whole microseconds show the mark and the first call of a step at the same instant.
    run = Run()
    gpu = run.rank(0)
    for step in range(4):
        gpu.mark(f"ProfilerStep#{step}", 40 * step, 40 * step + 40)
        gpu.launch(f"K{step}", at=40 * step, start=40 * step + 10, end=40 * step + 30)
    graph = (result := run.replay()).graph
    assert [int(graph.iterations.node_iteration[result.node(f"K{i}")]) for i in range(4)] == [0, 1, 2, 3]
    assert graph.time_ns[graph.iterations.end_points[0]].tolist() == [40_000, 80_000, 120_000, 160_000]


def test_step_time_follows_the_gpu_where_the_cpu_runs_ahead() -> None:
    run = backlog()
    recorded = run.replay()
    assert recorded_step_time(recorded.graph).recorded_ns == 40_000
    slow = {f"{name}{step}": 2.0 for name in "KL" for step in range(5)}
    changed = run.replay(slow)
    # K0 10..50, L0 50..90, then 80 per step on the GPU; the CPU still passes its marks every 40.
    assert changed.span("L4") == (370, 410)
    assert changed.span("launch L4") == (167, 172)
    assert step_ratio(changed.graph, changed.timeline.time_ns) == pytest.approx(2.0)


def test_equal_iterations_foretell_each_other() -> None:
    # Steps of 40 whose kernel is done long before the mark: nothing is left to do when it comes.
    run = Run()
    gpu = run.rank(0)
    for step in range(6):
        gpu.mark(f"ProfilerStep#{step}", 40 * step, 40 * step + 40)
        gpu.launch(f"K{step}", at=40 * step + 2, start=40 * step + 10, end=40 * step + 20, name="K")
    for run_ in (run, backlog(6)):
        predictions, skipped = predict_iterations(run_.graph())
        assert skipped == 0
        assert len(predictions) == 20
        assert {p.step_error for p in predictions} == {p.completion_error for p in predictions} == {0.0}
