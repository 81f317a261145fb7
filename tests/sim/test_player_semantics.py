"""Each primitive in a program of a few operations, with the timeline worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from timelines import HALF_MHZ, LATENCY, QUIET, US, WAKE, Toy, calls, gpu

from emo.errors import InputError
from emo.sim.player import ClockChange
from emo.sim.program import Flag, Wait
from emo.sim.truth import Cause, meetings
from emo.sim.workloads import wire


def test_stream_order() -> None:
    toy = Toy()
    (t,) = toy.threads
    toy.launch(t, 10)  # call 0-1, runs 2-12
    toy.launch(t, 5)  # call 1-2, visible at 3, runs 12-17
    assert gpu(toy.play()) == [(2, 12), (12, 17)]


def test_streams_run_side_by_side_and_share_the_sms() -> None:
    toy = Toy()
    (t,) = toy.threads
    toy.launch(t, 10, stream=0)  # alone 2-3: 1 us of work done
    toy.launch(t, 10, stream=1)  # from 3 on both at half speed
    # The first needs 9 us more at half speed: 3-21. The second then has 9 of 10 done: 1 us alone.
    assert gpu(toy.play()) == [(2, 21), (3, 22)]


def test_event_orders_two_streams() -> None:
    toy = Toy()
    (t,) = toy.threads
    toy.launch(t, 10, stream=0)  # 2-12
    t.record(0, stream=0, cpu_ns=1 * US)
    t.wait(0, stream=1, cpu_ns=1 * US)
    toy.launch(t, 4, stream=1)  # visible at 5, waits for the event until 12
    run = toy.play()
    assert gpu(run) == [(2, 12), (12, 16)]
    last = run.records[(run.records["on_gpu"] == 1) & (run.records["lane"] == 1)][0]
    assert last["cause_kind"] == Cause.EVENT
    assert run.records[last["cause"]]["end_ns"] == 12 * US


def test_a_wait_for_an_event_that_was_never_recorded_holds_nothing() -> None:
    toy = Toy()
    (t,) = toy.threads
    t.wait(0, stream=0, cpu_ns=1 * US)
    toy.launch(t, 4)
    assert gpu(toy.play()) == [(3, 7)]


def test_a_wait_means_the_record_made_before_it() -> None:
    toy = Toy()
    (t,) = toy.threads
    toy.launch(t, 3, stream=0)  # 2-5
    t.record(0, stream=0, cpu_ns=1 * US)  # of the first kernel
    t.wait(0, stream=1, cpu_ns=1 * US)
    toy.launch(t, 20, stream=0)  # call 3-4, runs 5-25 were it alone
    t.record(0, stream=0, cpu_ns=1 * US)  # again: does not move the wait
    toy.launch(t, 1, stream=1)  # call 5-6, visible at 7: runs beside the long one, at half speed
    assert gpu(toy.play(), stream=1) == [(7, 9)]


def test_stream_synchronise() -> None:
    toy = Toy()
    (t,) = toy.threads
    toy.launch(t, 10, stream=0)  # 2-12
    t.sync_stream(0, cpu_ns=1 * US)  # from 1 until 12 + 3
    toy.launch(t, 5)  # call 15-16, runs 17-22
    run = toy.play()
    assert calls(run) == [(0, 1), (1, 12 + WAKE), (15, 16)]
    assert gpu(run) == [(2, 12), (15 + LATENCY, 22)]
    held = run.records[(run.records["on_gpu"] == 0) & (run.records["start_ns"] == 1 * US)][0]
    assert held["cause_kind"] == Cause.GPU
    assert run.records[held["cause"]]["end_ns"] == 12 * US


def test_synchronising_an_empty_stream_takes_the_call_only() -> None:
    toy = Toy()
    (t,) = toy.threads
    toy.launch(t, 50, stream=1)
    t.sync_stream(0, cpu_ns=1 * US)
    assert calls(toy.play()) == [(0, 1), (1, 2)]


def test_device_synchronise_waits_for_every_stream_and_nothing_later() -> None:
    toy = Toy()
    (t,) = toy.threads
    other = toy.job.thread(0)
    toy.launch(t, 10, stream=0)  # visible at 2
    toy.launch(t, 10, stream=1)  # visible at 3: both share, ends at 21 and 22
    t.sync_device(cpu_ns=1 * US)  # from 2
    other.cpu(5 * US)
    toy.launch(other, 100, stream=2)  # visible at 7: slows both down, but is not waited for
    run = toy.play()
    # 2-3 one alone, 3-7 two at half: 7 and 8 us left, at a third each: 28 and 31; then a sole half.
    first_end = 7 + 7 * 3
    second_end = first_end + 1 * 2
    assert gpu(run)[:2] == [(2, first_end), (3, second_end)]
    assert calls(run)[-1] == (2, second_end + WAKE)


def test_event_synchronise() -> None:
    toy = Toy()
    (t,) = toy.threads
    toy.launch(t, 10)  # 2-12
    t.record(0, cpu_ns=1 * US)
    toy.launch(t, 30)  # 12-42
    t.sync_event(0, cpu_ns=1 * US)  # 3 until 12 + 3
    assert calls(toy.play())[-1] == (3, 15)


def test_back_pressure() -> None:
    toy = Toy()
    (t,) = toy.threads
    for _ in range(4):
        toy.launch(t, 10)
    run = toy.play(replace(QUIET, queue_depth=2))
    # 2-12, 12-22; the third call (from 2) waits for a slot at 12, the fourth (from 13) for one at 22.
    assert gpu(run) == [(2, 12), (12, 22), (22, 32), (32, 42)]
    assert calls(run) == [(0, 1), (1, 2), (2, 13), (13, 23)]


def test_collective_starts_with_the_last_and_lasts_the_wire() -> None:
    toy = Toy(ranks=2)
    world = toy.job.group((0, 1), "AllReduce")
    early, late = toy.threads
    early.collective(world, toy.kernel(6, fixed=True), cpu_ns=1 * US)  # arrives at 2
    toy.launch(late, 20)  # 2-22
    late.collective(world, toy.kernel(6, fixed=True), cpu_ns=1 * US)  # arrives at 22
    run = toy.play()
    assert gpu(run, 0) == [(2, 28)]
    assert gpu(run, 1) == [(2, 22), (22, 28)]
    (meeting,) = meetings(run.program, run.records)
    assert meeting.joint_ns == 22 * US
    assert meeting.wait_ns == {0: 20 * US, 1: 0}


def test_waiting_in_a_collective_draws_more_than_idling() -> None:
    energy = []
    for waits in (True, False):
        toy = Toy(ranks=2)
        world = toy.job.group((0, 1), "AllReduce")
        on_wire = toy.job.kernel("nccl", wire(5))
        early, late = toy.threads
        toy.launch(late, 10_000)
        if waits:
            early.collective(world, on_wire, cpu_ns=1 * US)
            late.collective(world, on_wire, cpu_ns=1 * US)
        energy.append(toy.play().energy_j[0])
    assert energy[0] > 1.05 * energy[1]


def test_collectives_of_a_group_follow_each_other() -> None:
    toy = Toy(ranks=2)
    world = toy.job.group((0, 1), "AllReduce")
    for t in toy.threads:
        for _ in range(2):
            t.collective(world, toy.kernel(6, fixed=True), cpu_ns=1 * US)
    run = toy.play()
    assert gpu(run, 0) == gpu(run, 1) == [(2, 8), (8, 14)]


def test_send_and_receive_meet() -> None:
    toy = Toy(ranks=2)
    pair = toy.job.group((0, 1), "SendRecv")
    sender, receiver = toy.threads
    toy.launch(sender, 9)  # 2-11
    sender.collective(pair, toy.kernel(4, fixed=True), cpu_ns=1 * US)  # 11-15
    receiver.collective(pair, toy.kernel(4, fixed=True), cpu_ns=1 * US)  # 2-15
    toy.launch(receiver, 3)  # 15-18
    run = toy.play()
    assert gpu(run, 0) == [(2, 11), (11, 15)]
    assert gpu(run, 1) == [(2, 15), (15, 18)]


def test_broadcast_holds_receivers_only() -> None:
    toy = Toy(ranks=3)
    group = toy.job.group((0, 1, 2), "Broadcast", wait=Wait.BROADCAST, root=1)
    for rank, before in enumerate((0, 10, 30)):
        if before:
            toy.launch(toy.threads[rank], before)  # ends at 12 and 32
        toy.threads[rank].collective(group, toy.kernel(5, fixed=True), cpu_ns=1 * US)
    run = toy.play()
    assert gpu(run, 0) == [(2, 17)]  # waits for the root, which arrives at 12
    assert gpu(run, 1)[-1] == (12, 17)  # the root waits for nobody
    assert gpu(run, 2)[-1] == (32, 37)  # comes later than the root: need not wait


def test_reduce_holds_the_root_only() -> None:
    toy = Toy(ranks=3)
    group = toy.job.group((0, 1, 2), "Reduce", wait=Wait.REDUCE, root=0)
    for rank, before in enumerate((0, 10, 30)):
        if before:
            toy.launch(toy.threads[rank], before)
        toy.threads[rank].collective(group, toy.kernel(5, fixed=True), cpu_ns=1 * US)
    run = toy.play()
    assert gpu(run, 0) == [(2, 37)]  # the last leaf arrives at 32
    assert gpu(run, 1)[-1] == (12, 17)
    assert gpu(run, 2)[-1] == (32, 37)


@pytest.mark.parametrize("flags", [Flag.BLOCKING, Flag.PAGEABLE, Flag.PAGEABLE | Flag.TO_HOST])
def test_blocking_copies_hold_the_thread(flags: Flag) -> None:
    toy = Toy()
    (t,) = toy.threads
    toy.launch(t, 10)  # 2-12
    t.copy(toy.kernel(8, fixed=True), flags=flags, cpu_ns=1 * US)  # 12-20; call from 1 until 20 + 3
    run = toy.play()
    assert gpu(run) == [(2, 12), (12, 20)]
    assert calls(run)[-1] == (1, 23)


def test_pinned_copies_do_not_hold_the_thread() -> None:
    toy = Toy()
    (t,) = toy.threads
    toy.launch(t, 10)
    t.copy(toy.kernel(8, fixed=True), stream=1, cpu_ns=1 * US)
    run = toy.play()
    assert gpu(run) == [(2, 12), (3, 11)]  # a copy engine takes no SM
    assert calls(run) == [(0, 1), (1, 2)]


def test_graph_is_one_launch() -> None:
    toy = Toy()
    (t,) = toy.threads
    with toy.job.new_graph() as (graph, capture):
        capture.launch(toy.kernel(5), stream=0)
        capture.record(0, stream=0)
        capture.launch(toy.kernel(7), stream=0)
        capture.wait(0, stream=1)
        capture.copy(toy.kernel(4, fixed=True), stream=1)
    t.graph(graph, cpu_ns=1 * US)
    toy.launch(t, 2)
    run = toy.play(replace(QUIET, queue_depth=2))
    assert gpu(run, stream=0) == [(2, 7), (7, 14), (14, 16)]
    assert gpu(run, stream=1) == [(7, 11)]  # the branch that waits for the first kernel
    assert calls(run) == [(0, 1), (1, 2)]  # two slots are enough for both launches
    nodes = run.records[(run.records["on_gpu"] == 1) & (run.records["sequence"] >= 0)]
    assert len(set(nodes["correlation"].tolist())) == 1


def test_free_waits_for_the_gpu_and_malloc_does_not() -> None:
    toy = Toy()
    (t,) = toy.threads
    toy.launch(t, 10)
    t.malloc(cpu_ns=2 * US)  # 1-3
    t.free(cpu_ns=2 * US)  # 3 until 12 + 3
    assert calls(toy.play()) == [(0, 1), (1, 3), (3, 15)]


def test_malloc_may_wait_too() -> None:
    toy = Toy()
    (t,) = toy.threads
    toy.launch(t, 10)
    t.malloc(blocking=True, cpu_ns=2 * US)
    assert calls(toy.play())[-1] == (1, 15)


def test_poll_asks_until_the_event_is_done() -> None:
    toy = Toy()
    (t,) = toy.threads
    toy.launch(t, 10)  # 2-12
    t.record(0, cpu_ns=1 * US)
    t.poll(0, interval_ns=5 * US, cpu_ns=1 * US)  # asks at 2, 8, 14: then it is done
    toy.launch(t, 1)
    run = toy.play()
    assert calls(run)[2:] == [(2, 3), (8, 9), (14, 15), (15, 16)]


def test_threads_hand_over() -> None:
    toy = Toy()
    (main,) = toy.threads
    worker = toy.job.thread(0)
    main.cpu(5 * US)
    main.post(0)
    main.await_(1, cpu_ns=2 * US)
    main.cpu(1 * US)
    worker.await_(0, cpu_ns=2 * US)  # from 0 until 5, awake at 7
    worker.cpu(10 * US)  # 7-17
    worker.post(1)
    run = toy.play()
    assert calls(run, 1) == [(0, 5), (7, 17)]
    assert calls(run, 0) == [(0, 5), (5, 17), (19, 20)]


def test_host_function_runs_in_stream_order() -> None:
    toy = Toy()
    (t,) = toy.threads
    toy.launch(t, 10)  # 2-12
    t.host_function(6 * US, cpu_ns=1 * US)  # 12-18
    toy.launch(t, 5)  # 18-23
    assert gpu(toy.play()) == [(2, 12), (18, 23)]


def test_a_kernel_that_needs_room_is_kept_out() -> None:
    toy = Toy()
    (t,) = toy.threads
    toy.launch(t, 10, stream=0)  # 2-12
    t.launch(toy.kernel(4), 1, cpu_ns=1 * US, flags=Flag.ROOM)
    assert gpu(toy.play()) == [(2, 12), (12, 16)]


def test_a_running_kernel_changes_speed_with_the_clock() -> None:
    toy = Toy()
    (t,) = toy.threads
    toy.launch(t, 400_000)  # 2 us .. 400,002 us at the maximum
    change = ClockChange(0.1, 0, HALF_MHZ)
    run = toy.play(replace(QUIET, tick_ms=1.0), clocks=[change])
    time_s, clock_mhz = run.clock_history(0)
    # The old clock went on during the latency, then nothing ran during the stall.
    assert clock_mhz[0] > HALF_MHZ and clock_mhz[-1] == HALF_MHZ
    took_effect_us = time_s[np.argmax(clock_mhz == HALF_MHZ)] * 1e6
    assert 100_000 < took_effect_us < 400_000
    ((_, end),) = gpu(run)
    stall_us = run.specs[0].switching.stall_us
    left_us = 400_002 - (end - stall_us - 400_002)  # the switch was here: what came after took twice as long
    assert left_us == pytest.approx(took_effect_us, abs=1_000)


def test_a_program_that_waits_for_ever_is_named() -> None:
    toy = Toy(ranks=2)
    world = toy.job.group((0, 1), "AllReduce")
    toy.threads[0].collective(world, toy.kernel(6, fixed=True))
    toy.threads[0].sync_device()
    with pytest.raises(InputError, match="rank 0 waits in SYNC_DEVICE"):
        toy.play()


def test_a_collective_of_a_stranger_is_refused() -> None:
    toy = Toy(ranks=2)
    alone = toy.job.group((0,), "AllReduce")
    toy.threads[1].collective(alone, toy.kernel(6))
    with pytest.raises(ValueError, match="does not belong to"):
        toy.play()
