"""What must hold for every program, whatever it does and however clocks change."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from timelines import GPU, MAX_MHZ

from emo.sim.meter import energy_at_s, sensor
from emo.sim.physics import KernelSpec, clock_on_grid_mhz, duration_ns
from emo.sim.player import ClockChange, Conditions, Player, Run, play, specs_for
from emo.sim.presets import PRESETS
from emo.sim.program import Flag, Job, Program
from emo.sim.workloads import WORKLOADS, workload

US = 1_000

kernels = st.builds(
    KernelSpec,
    compute_ns=st.floats(1, 3e5),
    memory_ns=st.floats(0, 3e5),
    fixed_ns=st.floats(0, 2e4),
    compute_activity=st.floats(0.1, 1),
    memory_activity=st.floats(0, 1),
    sm_share=st.floats(0, 1),
)
ACTIONS = ("launch", "launch", "launch", "wait", "sync", "device", "copy", "meet", "free", "cpu", "host")


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Random programs of one to three ranks on up to three streams that meet now and then."""
    ranks = draw(st.integers(1, 3))
    job = Job("random", ranks)
    classes = [
        job.kernel(f"k{i}", spec) for i, spec in enumerate(draw(st.lists(kernels, min_size=2, max_size=4)))
    ]
    wire = job.kernel("nccl", KernelSpec(compute_ns=0, fixed_ns=30_000, sm_share=0.1))
    world = job.group(range(ranks), "AllReduce")
    threads = job.main_threads()
    for thread in threads:
        thread.mark()
    for _ in range(draw(st.integers(1, 6))):
        for thread in threads:
            for what in draw(st.lists(st.sampled_from(ACTIONS), max_size=5)):
                stream, kernel = draw(st.integers(0, 2)), draw(st.sampled_from(classes))
                if what == "launch":
                    thread.launch(kernel, stream)
                elif what == "wait":
                    thread.record(stream, stream)
                    thread.wait(stream, (stream + 1) % 3)
                elif what == "sync":
                    thread.sync_stream(stream)
                elif what == "device":
                    thread.sync_device()
                elif what == "copy":
                    thread.copy(kernel, stream, flags=draw(st.sampled_from((0, Flag.PAGEABLE))))
                elif what == "free":
                    thread.free()
                elif what == "cpu":
                    thread.cpu(draw(st.floats(0, 1e5)))
                elif what == "host":
                    thread.host_function(draw(st.floats(0, 1e5)), stream)
        for thread in threads:
            thread.collective(world, wire, 0)
    with job.outside("after"):
        for thread in threads:
            thread.sync_device()
            thread.mark()
    return job.build(draw(st.integers(1, 3)), np.random.default_rng(0), step_spread=0.05)


clocks = st.sampled_from([MAX_MHZ, 1200.0, 900.0, 600.0, 210.0])
changes = st.lists(st.builds(ClockChange, st.floats(0, 0.01), st.just(0), clocks), max_size=4)
FAST = replace(Conditions(), tick_ms=0.5)


def same(one: Run, other: Run) -> bool:
    return (
        one.records.tobytes() == other.records.tobytes()
        and one.marks.tobytes() == other.marks.tobytes()
        and one.samples.tobytes() == other.samples.tobytes()
        and one.energy_j == other.energy_j
        and one.end_ns == other.end_ns
    )


@given(programs(), st.integers(0, 99), changes)
def test_equal_seeds_are_equal_byte_for_byte(program: Program, seed: int, changes: list[ClockChange]) -> None:
    runs = [play(program, GPU, seed, clocks=changes, records=True, conditions=FAST) for _ in range(2)]
    assert same(*runs)


@given(programs(), st.lists(st.integers(0, 5_000_000), max_size=5), st.integers(0, 9))
def test_a_run_in_pieces_equals_the_run(program: Program, pauses: list[int], seed: int) -> None:
    whole = Player(program, specs_for(GPU, program.ranks), seed, FAST)
    whole.run_until()
    pieces = Player(program, specs_for(GPU, program.ranks), seed, FAST)
    for pause in sorted(pauses):
        if pieces.run_until(pause):
            break
    pieces.run_until()
    assert same(whole.run(), pieces.run())


@given(programs(), clocks)
def test_every_operation_happens_once_and_in_order(program: Program, clock: float) -> None:
    run = play(program, GPU, 3, clocks=clock, records=True, conditions=FAST)
    gpu = run.records[run.records["on_gpu"] == 1]
    assert (gpu["end_ns"] >= gpu["start_ns"]).all()
    assert (gpu["start_ns"] >= gpu["ready_ns"]).all()
    expected = sum(
        int(np.isin(program.ops["code"][first : first + count], (1, 7, 8)).sum())
        for _, first, count in program.threads.tolist()
    )
    assert len(gpu) == expected
    for rank in range(program.ranks):
        for stream in range(program.streams):
            mine = gpu[(gpu["rank"] == rank) & (gpu["lane"] == stream)]
            assert (mine["start_ns"][1:] >= mine["end_ns"][:-1]).all()
    calls = run.records[run.records["on_gpu"] == 0]
    for thread in range(len(program.threads)):
        mine = np.sort(calls[calls["lane"] == thread], order=["start_ns", "end_ns"])
        assert (mine["start_ns"][1:] >= mine["end_ns"][:-1]).all()


@given(kernels, st.lists(st.tuples(st.floats(0, 0.02), clocks), max_size=5))
def test_work_is_conserved_across_clock_changes(spec: KernelSpec, at: list[tuple[float, float]]) -> None:
    """Time spent at each clock, over the duration at that clock, sums up to one kernel."""
    spec = replace(spec, compute_ns=spec.compute_ns * 100, memory_ns=spec.memory_ns * 100)
    job = Job("one", 1)
    kernel = job.kernel("k", spec)
    (thread,) = job.main_threads()
    thread.launch(kernel)
    program = job.build(1, np.random.default_rng(0))
    gpu = replace(
        PRESETS[GPU],
        power_limit_max_w=10_000,
        power_limit_w=10_000,
        switching=replace(
            PRESETS[GPU].switching, stall_us=0.0, latency_median_ms=0.001, latency_tail_share=0.0
        ),
    )
    quiet = replace(Conditions(), tick_ms=0.05).noiseless()
    run = play(program, gpu, clocks=[ClockChange(s, 0, mhz) for s, mhz in at], records=True, conditions=quiet)
    (row,) = run.records[run.records["on_gpu"] == 1]
    time_s, clock_mhz = run.clock_history(0)
    at_s = np.arange(row["start_ns"] * 1e-9, row["end_ns"] * 1e-9, 1e-6)
    clock = np.r_[clock_mhz, clock_mhz[-1:] if len(clock_mhz) else MAX_MHZ][np.searchsorted(time_s, at_s)]
    done = float((1e3 / duration_ns(gpu, spec, clock)).sum())
    # The history has a grid of 50 us: each change may be off by that much.
    shortest_ns = float(duration_ns(gpu, spec, [MAX_MHZ])[0])
    assert done == pytest.approx(1.0, abs=(len(at) + 1) * 1e5 / shortest_ns + 2e3 / shortest_ns)


@given(programs(), clocks)
def test_a_slower_clock_ends_nothing_earlier(program: Program, clock: float) -> None:
    """Without contention, whose order may change, every operation of the program ends no earlier."""
    alone = replace(
        program,
        kernels=tuple(
            replace(k, spec=replace(k.spec, sm_share=0.0, memory_activity=0.0)) for k in program.kernels
        ),
    )
    # One speed per GPU: a fast clock of one rank does not come with a power cap that another has not.
    gpu = replace(PRESETS[GPU], power_limit_max_w=10_000, power_limit_w=10_000)
    fast = play(alone, gpu, 1, records=True, conditions=FAST)
    slow = play(alone, gpu, 1, clocks=clock, records=True, conditions=FAST)
    keys = ["on_gpu", "rank", "lane", "op", "sequence"]
    one, other = (np.sort(run.records, order=[*keys, "end_ns"]) for run in (fast, slow))
    assert len(one) == len(other)
    assert (other["end_ns"] - one["end_ns"]).min() >= -50  # rounding to whole nanoseconds, per operation


@given(programs(), changes)
def test_energy_is_the_integral_of_power(program: Program, changes: list[ClockChange]) -> None:
    run = play(program, GPU, 2, clocks=changes, conditions=FAST)
    for gpu in range(program.ranks):
        time_s, power_w = run.power_history(gpu)
        if not len(time_s):
            continue
        total = float((power_w * np.diff(time_s, prepend=0.0)).sum())
        known = float(energy_at_s(run, gpu, time_s[-1:])[0])
        assert total == pytest.approx(known)
        spec = run.specs[gpu]
        most = spec.loaded_idle_w + spec.compute_w + spec.memory_w + spec.link_w
        assert (power_w > 0.5 * spec.idle_w).all() and (power_w < 1.6 * most).all()


def test_history_does_not_change_what_happens() -> None:
    program = workload("experts", 4)
    kept, not_kept = (play(program, GPU, 5, records=keep) for keep in (True, False))
    assert len(kept.records) and not len(not_kept.records)
    assert kept.marks.tobytes() == not_kept.marks.tobytes()


@pytest.mark.parametrize("name", ["pipeline", "serving", "decode"])
def test_other_seeds_give_other_runs_of_the_same_job(name: str) -> None:
    program = workload(name, 4)
    one, other = play(program, GPU, 1), play(program, GPU, 2)
    assert one.end_ns != other.end_ns
    assert one.end_ns == pytest.approx(other.end_ns, rel=0.1)


def test_the_power_cap_lowers_the_delivered_clock_and_the_power() -> None:
    program = workload("balanced", 20)
    free, capped = play(program, GPU), play(program, GPU, power_limit_w=250)
    assert capped.clock_history(0)[1][-1] < free.clock_history(0)[1][-1]
    _, power_w = capped.power_history(0)
    assert power_w[len(power_w) // 2 :].mean() < 255
    assert capped.step_time_ns() > 1.05 * free.step_time_ns()


def test_a_lock_is_delivered_on_the_grid() -> None:
    run = play(workload("cpu-bound", 10), GPU, clocks=1003.0)
    assert set(run.clock_history(0)[1]) == {clock_on_grid_mhz(PRESETS[GPU], 1003.0)}


def test_tracing_slows_the_cpu_only_while_it_is_on() -> None:
    program = workload("cpu-bound", 30)
    plain, traced = play(program, GPU, 4), play(program, GPU, 4, tracing=(10, 19))
    ratio = traced.step_times_ns / plain.step_times_ns
    assert np.allclose(ratio[:9], 1.0, atol=0.01)
    assert (ratio[11:19] > 1.09).all() and (ratio[11:19] < 2.01).all()
    assert np.allclose(ratio[21:], 1.0, atol=0.01)


def test_the_sensor_sees_a_quarter_of_the_time_and_reads_off_by_its_gain() -> None:
    run = play(workload("balanced", 60), GPU, 6)
    readings = sensor(run, 0)
    board = run.boards[0]
    assert np.allclose(np.diff(readings.time_s), 0.1)
    true_w = run.energy_j[0] / (run.end_ns * 1e-9)
    assert readings.power_w.mean() == pytest.approx(true_w * board.sensor_gain, rel=0.05)
    assert (np.diff(readings.energy_mj) >= 0).all()
    assert PRESETS[GPU].sensor_gain_low <= board.sensor_gain <= PRESETS[GPU].sensor_gain_high


def test_paced_play_keeps_step_with_the_wall_clock() -> None:
    program = workload("decode", 12)
    player = Player(program, specs_for(GPU, program.ranks), 1)
    seen: list[int] = []
    began = time.monotonic()
    player.run_paced(lambda now: seen.append(now.now_ns), speed=2.0, period_s=0.01)
    took_s = time.monotonic() - began
    assert took_s >= player.now_ns / 2e9 - 0.02
    assert len(seen) > 3 and seen == sorted(seen)
    assert same(player.run(), play(program, GPU, 1, records=True))


def test_a_million_operations_per_second() -> None:
    """As a guide only: a loaded machine must not fail the suite, a hundredfold loss must."""
    program = workload("pipeline", 4)
    play(program, GPU)
    began = time.process_time()
    run = play(program, GPU)
    assert run.operations / (time.process_time() - began) > 2e5


def test_every_workload_is_played_to_its_end() -> None:
    for name in WORKLOADS:
        run = play(workload(name, 2), GPU)
        assert run.end_ns > 0 and run.units > 0
