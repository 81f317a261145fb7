"""The physics of the simulator: its laws as properties, its formulas against a plain twin, its curve against sweeps."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from conftest import REPOSITORY, SAMPLES
from emo.errors import InputError
from emo.sim import _sim, fit
from emo.sim.physics import (
    KERNEL_FIELDS,
    SPEC_FIELDS,
    SWITCHING_FIELDS,
    Activity,
    GpuSpec,
    KernelSpec,
    Switching,
    activity_of,
    capped_clock_mhz,
    capped_clock_running_mhz,
    clock_on_grid_mhz,
    contention,
    duration_ns,
    power_w,
    switch_latency_ms,
    temperature_after_c,
    thermal_limit_w,
    voltage,
)
from emo.sim.presets import PRESETS

DVFS = SAMPLES.parent / "dvfs"

SHARE = st.floats(0, 1)
TEMPERATURE = st.floats(15, 95)


@st.composite
def specs(draw: st.DrawFn) -> GpuSpec:
    """Boards in no way like one that is sold."""
    low, steps = draw(st.floats(100, 800)), draw(st.integers(1, 150))
    step = draw(st.sampled_from([5.0, 7.5, 15.0]))
    idle, clocks, leakage = draw(st.floats(0, 100)), draw(st.floats(0.1, 60)), draw(st.floats(0, 60))
    return replace(
        PRESETS["A100"],
        name="any",
        clock_min_mhz=low,
        clock_base_mhz=low,
        clock_max_mhz=low + steps * step,
        clock_step_mhz=step,
        idle_w=idle,
        loaded_idle_w=idle + clocks + leakage,
        leakage_w=leakage,
        leakage_per_c=draw(st.floats(0, 0.03)),
        compute_w=draw(st.floats(0, 800)),
        memory_w=draw(st.floats(0, 200)),
        link_w=draw(st.floats(0, 80)),
        stall_share=draw(SHARE),
        voltage_floor=draw(st.floats(0.4, 1)),
        voltage_knee=draw(st.floats(0, 0.95)),
        voltage_shape=draw(st.floats(0.5, 3)),
        uncore_slope=draw(st.floats(0, 0.3)),
        bound_sharpness=draw(st.floats(1, 12)),
    )


@st.composite
def kernels(draw: st.DrawFn) -> KernelSpec:
    times = st.one_of(st.just(0.0), st.floats(100, 1e9))
    compute, memory, fixed = draw(times), draw(times), draw(times)
    return KernelSpec(compute, memory, fixed, draw(SHARE), draw(SHARE), draw(SHARE), draw(st.floats(0.01, 1)))


def clocks_of(spec: GpuSpec) -> st.SearchStrategy[float]:
    return st.sampled_from(spec.clocks_mhz().tolist())


@st.composite
def boards(draw: st.DrawFn) -> tuple[GpuSpec, float, float]:
    """A spec with two of its clocks, the lower one first."""
    spec = draw(st.one_of(specs(), st.sampled_from(list(PRESETS.values()))))
    low, high = sorted(draw(clocks_of(spec)) for _ in range(2))
    return spec, low, high


KERNEL_LISTS = st.lists(kernels(), min_size=1, max_size=4)


def no_less(value: float, than: float) -> bool:
    return value >= than - 1e-9 * abs(than)


# --- The contract with C ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("structure", "names"),
    [("gp_spec", SPEC_FIELDS), ("gp_kernel", KERNEL_FIELDS), ("gp_switching", SWITCHING_FIELDS)],
)
def test_fields_are_those_of_c(structure: str, names: tuple[str, ...]) -> None:
    text = (REPOSITORY / "core/src/emo/sim/native/gpu_physics.h").read_text()
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    body = next(
        body
        for body, name in re.findall(r"typedef struct \{(.*?)\} (\w+);", text, flags=re.S)
        if name == structure
    )
    declared = [name.strip() for line in re.findall(r"double ([^;]+);", body) for name in line.split(",")]
    assert tuple(declared) == names


@pytest.mark.parametrize(
    "call",
    [
        lambda spec, kernel: _sim.clock_on_grid_mhz(spec[:-8], 1000.0),
        lambda spec, kernel: _sim.clock_on_grid_mhz(spec + bytes(3), 1000.0),
        lambda spec, kernel: _sim.voltage(spec, np.zeros(2), np.zeros(3)),
        lambda spec, kernel: _sim.duration_ns(spec, kernel + kernel, np.ones(1), np.ones(1)),
        lambda spec, kernel: _sim.contention(spec, kernel[:-8], np.zeros(1), 1000.0),
        lambda spec, kernel: _sim.contention(spec, kernel, np.zeros(2), 1000.0),
        lambda spec, kernel: _sim.activity(spec, kernel, np.ones(1), np.zeros(3), 1000.0),
        lambda spec, kernel: _sim.power_w(spec, bytes(24), np.ones(1), np.ones(1), 30.0),
        lambda spec, kernel: _sim.switch_latency_ms(bytes(48), np.zeros(2), 1000.0, 1410.0),
    ],
)
def test_buffers_of_a_wrong_size_are_refused(call) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match="argument"):
        call(PRESETS["A100"].packed(), KernelSpec(1e6).packed())


def test_other_arguments_are_refused() -> None:
    spec = PRESETS["A100"].packed()
    with pytest.raises(TypeError, match="expected 2 arguments, got 1"):
        _sim.clock_on_grid_mhz(spec)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        _sim.clock_on_grid_mhz(spec, "fast")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        _sim.clock_on_grid_mhz([1.0], 1000.0)  # type: ignore[arg-type]
    with pytest.raises((BufferError, ValueError)):
        _sim.voltage(spec, np.zeros(1), bytes(8))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {"clock_min_mhz": 2000.0},
        {"clock_step_mhz": 14.0},
        {"power_limit_w": 500.0},
        {"leakage_w": 30.0},
        {"voltage_floor": 0.0},
        {"voltage_knee": 1.0},
        {"stall_share": 1.5},
        {"compute_w": math.nan},
    ],
)
def test_a_contradictory_gpu_is_refused(change: dict[str, float]) -> None:
    with pytest.raises(InputError, match="A100"):
        replace(PRESETS["A100"], **change)  # type: ignore[arg-type]


# --- Clock and voltage -----------------------------------------------------------------------------------


@given(boards(), st.floats(-100, 5000))
def test_the_grid_is_at_or_below_the_wish(board: tuple[GpuSpec, float, float], wish: float) -> None:
    spec = board[0]
    grid = spec.clocks_mhz()
    clock = clock_on_grid_mhz(spec, wish)
    below = grid[grid <= wish]
    assert clock == (below[-1] if len(below) else grid[0])


def test_a_clock_as_the_driver_lists_it_is_on_the_grid() -> None:
    spec = PRESETS["V100"]
    assert spec.clocks_mhz()[-3:].tolist() == [1515, 1522, 1530]
    assert [clock_on_grid_mhz(spec, clock) for clock in (1522, 1521.9, 1530, 9999)] == [
        1522,
        1515,
        1530,
        1530,
    ]


@given(boards())
def test_voltage_rises_from_its_floor_to_one(board: tuple[GpuSpec, float, float]) -> None:
    spec, low, high = board
    below, above, top = voltage(spec, [low, high, spec.clock_max_mhz]).tolist()
    assert spec.voltage_floor <= below <= above <= top == pytest.approx(1)
    if high <= spec.voltage_knee * spec.clock_max_mhz:
        assert below == above == spec.voltage_floor


# --- Time ------------------------------------------------------------------------------------------------


@given(boards(), kernels())
def test_a_slower_clock_never_finishes_earlier(
    board: tuple[GpuSpec, float, float], kernel: KernelSpec
) -> None:
    spec, low, high = board
    slow, fast = duration_ns(spec, kernel, [low, high]).tolist()
    assert no_less(slow, fast)
    # Nor does it take longer than work that all scales with the clock.
    assert no_less(fast * high / low, slow)


@given(boards(), KERNEL_LISTS)
def test_a_slower_clock_never_finishes_earlier_in_company(
    board: tuple[GpuSpec, float, float], together: list[KernelSpec]
) -> None:
    spec, low, high = board
    slow, fast = (
        np.array([duration_ns(spec, kernel, clock) for kernel in together])
        * contention(spec, together, clock)
        for clock in (low, high)
    )
    assert (slow >= fast * (1 - 1e-6)).all()


def test_the_two_bounds() -> None:
    spec = PRESETS["A100"]
    half = spec.clock_max_mhz / 2
    compute, memory, fixed = KernelSpec(1e6), KernelSpec(0, 1e6), KernelSpec(0, 0, 1e6)
    assert duration_ns(spec, compute, half) == pytest.approx(2e6)
    assert duration_ns(spec, memory, half) == pytest.approx(1e6 * (1 + spec.uncore_slope))
    assert duration_ns(spec, fixed, half) == 1e6


# --- Company ---------------------------------------------------------------------------------------------


@given(boards(), KERNEL_LISTS)
def test_nothing_is_used_beyond_what_there_is(
    board: tuple[GpuSpec, float, float], together: list[KernelSpec]
) -> None:
    spec, low, _ = board
    slowdown = contention(spec, together, low)
    assert (slowdown >= 1).all()
    took = np.array([duration_ns(spec, kernel, low) for kernel in together]) * slowdown
    assume((took > 0).all())
    compute = np.array([kernel.compute_ns for kernel in together]) * spec.clock_max_mhz / low
    share = np.array([kernel.sm_share for kernel in together])
    traffic = np.array([kernel.memory_ns * kernel.memory_activity for kernel in together])
    assert (share * compute / took).sum() <= 1 + 1e-6
    assert (traffic / took).sum() <= 1 + 1e-6


@given(boards(), kernels())
def test_alone_means_no_slowdown(board: tuple[GpuSpec, float, float], kernel: KernelSpec) -> None:
    assert contention(board[0], [kernel], board[1]).tolist() == [1]


@given(boards(), KERNEL_LISTS, kernels())
def test_company_on_free_sms_never_speeds_up(
    board: tuple[GpuSpec, float, float], together: list[KernelSpec], more: KernelSpec
) -> None:
    # On SMs that are taken it may: whom it slows needs less memory, which the others get.
    everyone = [
        replace(kernel, sm_share=kernel.sm_share / (len(together) + 1)) for kernel in [*together, more]
    ]
    spec, clock, _ = board
    before, after = contention(spec, everyone[:-1], clock), contention(spec, everyone, clock)
    assert (after[:-1] >= before * (1 - 1e-6)).all()


def test_memory_is_shared_by_those_that_need_it() -> None:
    spec = PRESETS["A100"]
    stream = KernelSpec(0, 1e6, sm_share=0.3)
    compute = KernelSpec(1e6, 1e5, sm_share=0.3)
    assert contention(spec, [stream, stream], 1410.0) == pytest.approx([2, 2])
    assert contention(spec, [stream, compute], 1410.0) == pytest.approx([1.1, 1], rel=0.02)
    assert contention(spec, [replace(compute, sm_share=1.0)] * 2, 1410.0) == pytest.approx([2, 2], rel=0.01)


# --- Power -----------------------------------------------------------------------------------------------


@given(boards(), SHARE, SHARE, SHARE, TEMPERATURE)
def test_power_rises_with_the_clock(
    board: tuple[GpuSpec, float, float], compute: float, memory: float, link: float, temperature: float
) -> None:
    spec, low, high = board
    slow, fast = power_w(spec, Activity(compute, memory, link), [low, high], temperature).tolist()
    assert no_less(fast, slow)
    assert no_less(slow, spec.idle_w)


@given(boards(), KERNEL_LISTS, TEMPERATURE)
def test_power_of_running_kernels_rises_with_the_clock(
    board: tuple[GpuSpec, float, float], together: list[KernelSpec], temperature: float
) -> None:
    spec, low, high = board
    slow, fast = (
        float(power_w(spec, activity_of(spec, together, at), at, temperature)) for at in (low, high)
    )
    assert fast >= slow * (1 - 1e-6)


@given(
    boards(),
    st.tuples(SHARE, SHARE, SHARE),
    st.sampled_from(["compute", "memory", "link"]),
    SHARE,
    TEMPERATURE,
    TEMPERATURE,
)
def test_power_rises_with_activity_and_temperature(
    board: tuple[GpuSpec, float, float],
    activity: tuple[float, float, float],
    unit: str,
    more: float,
    cool: float,
    warm: float,
) -> None:
    spec, clock, _ = board
    before = Activity(*activity)
    after = replace(before, **{unit: max(getattr(before, unit), more)})
    cool, warm = sorted((cool, warm))
    assert no_less(float(power_w(spec, after, clock, cool)), float(power_w(spec, before, clock, cool)))
    assert no_less(float(power_w(spec, before, clock, warm)), float(power_w(spec, before, clock, cool)))


@pytest.mark.parametrize("spec", PRESETS.values(), ids=PRESETS)
def test_idle_power_is_as_stated(spec: GpuSpec) -> None:
    loaded, empty = Activity(), Activity(loaded=False)
    reference = spec.temperature_ref_c
    assert power_w(spec, loaded, spec.clock_max_mhz, reference) == pytest.approx(spec.loaded_idle_w)
    assert power_w(spec, empty, spec.clock_min_mhz, reference) == spec.idle_w
    assert power_w(spec, loaded, spec.clock_min_mhz, reference) < spec.loaded_idle_w * 0.85


@pytest.mark.parametrize("spec", PRESETS.values(), ids=PRESETS)
def test_spinning_is_not_idle(spec: GpuSpec) -> None:
    """A collective that waits for its peers: SMs that only poll, for as long as it takes."""
    spin = KernelSpec(0, 0, 1e6, compute_activity=0.6, memory_activity=0, sm_share=1)
    power = float(power_w(spec, activity_of(spec, [spin], spec.clock_max_mhz), spec.clock_max_mhz, 50.0))
    assert power > spec.loaded_idle_w + 0.25 * spec.compute_w


@given(boards(), st.tuples(SHARE, SHARE, SHARE), st.floats(1, 1500), TEMPERATURE)
def test_the_cap_gives_the_highest_clock_within_it(
    board: tuple[GpuSpec, float, float],
    activity: tuple[float, float, float],
    limit: float,
    temperature: float,
) -> None:
    spec, _, wish = board
    running = Activity(*activity)
    clock = capped_clock_mhz(spec, running, wish, limit, temperature)
    allowed = spec.clocks_mhz()[spec.clocks_mhz() <= wish]
    within = allowed[power_w(spec, running, allowed, temperature) <= limit]
    assert clock == (within[-1] if len(within) else allowed[0])


@given(boards(), KERNEL_LISTS, st.floats(1, 1500), TEMPERATURE)
def test_the_cap_holds_for_running_kernels(
    board: tuple[GpuSpec, float, float], together: list[KernelSpec], limit: float, temperature: float
) -> None:
    spec, _, wish = board
    clock = capped_clock_running_mhz(spec, together, wish, limit, temperature)

    def power(at: float) -> float:
        return float(power_w(spec, activity_of(spec, together, at), at, temperature))

    grid = spec.clocks_mhz()
    assert clock in grid
    assert clock <= wish
    assert clock == grid[0] or power(clock) <= limit * (1 + 1e-6)
    higher = grid[(grid > clock) & (grid <= wish)]
    assert not len(higher) or power(float(higher[0])) > limit * (1 - 1e-6)


@given(boards(), kernels(), TEMPERATURE)
def test_halves_of_a_kernel_take_the_energy_of_the_whole(
    board: tuple[GpuSpec, float, float], kernel: KernelSpec, temperature: float
) -> None:
    spec, clock, _ = board
    half = replace(
        kernel, compute_ns=kernel.compute_ns / 2, memory_ns=kernel.memory_ns / 2, fixed_ns=kernel.fixed_ns / 2
    )

    def energy(part: KernelSpec) -> float:
        power = float(power_w(spec, activity_of(spec, [part], clock), clock, temperature))
        return power * float(duration_ns(spec, part, clock))

    assert 2 * energy(half) == pytest.approx(energy(kernel), rel=1e-9)


# --- Temperature -----------------------------------------------------------------------------------------


@given(
    st.sampled_from(list(PRESETS.values())),
    TEMPERATURE,
    st.floats(0, 1000),
    st.floats(0, 300),
    st.floats(0, 300),
)
def test_two_steps_warm_as_one(
    spec: GpuSpec, start: float, power: float, first: float, second: float
) -> None:
    between = temperature_after_c(spec, start, power, first)
    whole = temperature_after_c(spec, start, power, first + second)
    assert temperature_after_c(spec, between, power, second) == pytest.approx(whole, rel=1e-12)


@given(st.sampled_from(list(PRESETS.values())), TEMPERATURE, st.floats(0, 1000), st.floats(0.1, 100))
def test_heat_is_conserved(spec: GpuSpec, start: float, power: float, seconds: float) -> None:
    """What came in is what the heat capacity kept and what went through the resistance."""
    times = np.linspace(0, seconds, 4001)
    path = np.array([temperature_after_c(spec, start, power, time) for time in times.tolist()])
    resistance = spec.thermal_resistance_c_per_w
    out = np.trapezoid(path - spec.temperature_ambient_c, times) / resistance
    kept = (path[-1] - path[0]) * spec.thermal_tau_s / resistance
    assert kept + out == pytest.approx(power * seconds, rel=1e-4, abs=1e-3 * seconds)


@pytest.mark.parametrize("spec", PRESETS.values(), ids=PRESETS)
def test_the_thermal_limit_holds_the_temperature(spec: GpuSpec) -> None:
    hot = spec.temperature_slowdown_c
    assert thermal_limit_w(spec, hot - 0.1) == math.inf
    limit = thermal_limit_w(spec, hot)
    assert temperature_after_c(spec, hot, limit, 100.0) == pytest.approx(hot)
    assert limit > spec.power_limit_w  # none slows down for heat while its cooling works


# --- Switching -------------------------------------------------------------------------------------------


def test_latency_follows_its_distribution() -> None:
    steady = Switching(10, 0, 0.3, 0, 0, 50)
    spec = replace(PRESETS["A100"], switching=steady)
    rng = np.random.default_rng(7)
    draws = np.array([switch_latency_ms(spec, 900, rng.random(3)) for _ in range(4000)])
    logs = np.log(draws / 10)
    assert logs.mean() == pytest.approx(0, abs=0.02)
    assert logs.std() == pytest.approx(0.3, abs=0.02)

    spec = replace(PRESETS["A100"], switching=replace(steady, latency_tail_share=0.25, latency_tail_ms=100))
    tailed = np.array([switch_latency_ms(spec, 900, rng.random(3)) for _ in range(4000)])
    assert tailed.mean() - draws.mean() == pytest.approx(25, abs=4)


def test_the_target_clock_decides_the_latency() -> None:
    spec = PRESETS["A100"]
    spread = spec.switching.latency_target_spread
    typical = np.array([switch_latency_ms(spec, clock, [0, 0, 0.99]) for clock in spec.clocks_mhz().tolist()])
    logs = np.log(typical / spec.switching.latency_median_ms)
    assert (np.abs(logs) <= spread).all()
    assert logs.min() < -0.8 * spread
    assert logs.max() > 0.8 * spread


# --- The same formulas, written down a second time ---------------------------------------------------------


class Twin:
    """Formulas of docs/simulator-physics.md, for kernels that do not disturb each other."""

    def __init__(self, spec: GpuSpec) -> None:
        self.spec = spec

    def voltage(self, clock: float) -> float:
        s = self.spec
        x = clock / s.clock_max_mhz
        if x <= s.voltage_knee:
            return s.voltage_floor
        rise = (x - s.voltage_knee) / (1 - s.voltage_knee)
        return s.voltage_floor + (1 - s.voltage_floor) * math.pow(rise, s.voltage_shape)

    def duration(self, k: KernelSpec, clock: float) -> float:
        s = self.spec
        slow = s.clock_max_mhz / clock
        times = [k.compute_ns * slow, k.memory_ns * (1 + s.uncore_slope * (slow - 1))]
        return float(np.linalg.norm(times, s.bound_sharpness)) + k.fixed_ns

    def activity(self, k: KernelSpec, clock: float) -> Activity:
        s, took = self.spec, self.duration(k, clock)
        working = k.compute_ns * s.clock_max_mhz / clock / took
        return Activity(
            k.compute_activity * k.sm_share * (working + s.stall_share * (1 - working)),
            k.memory_activity * k.memory_ns / took,
            k.link_activity * self.duration(k, s.clock_max_mhz) / took,
        )

    def power(self, a: Activity, clock: float, temperature: float) -> float:
        s, v = self.spec, self.voltage(clock)
        tree = s.loaded_idle_w - s.idle_w - s.leakage_w
        leakage = s.leakage_w * v**2 * math.exp(s.leakage_per_c * (temperature - s.temperature_ref_c))
        switching = clock / s.clock_max_mhz * v**2 * (tree + a.compute * s.compute_w)
        return s.idle_w + leakage + switching + a.memory * s.memory_w + a.link * s.link_w


@given(boards(), kernels(), TEMPERATURE)
def test_c_says_what_the_twin_says(
    board: tuple[GpuSpec, float, float], kernel: KernelSpec, temperature: float
) -> None:
    spec, clock, _ = board
    twin = Twin(spec)
    assert voltage(spec, clock) == pytest.approx(twin.voltage(clock), rel=1e-12)
    took = twin.duration(kernel, clock)
    assert duration_ns(spec, kernel, clock) == pytest.approx(took, rel=1e-12)
    assume(took > 0)
    activity, expected = activity_of(spec, [kernel], clock), twin.activity(kernel, clock)
    for unit in ("compute", "memory", "link"):
        assert getattr(activity, unit) == pytest.approx(getattr(expected, unit), rel=1e-9, abs=1e-12)
    power = float(power_w(spec, expected, clock, temperature))
    assert power == pytest.approx(twin.power(expected, clock, temperature), rel=1e-9)


@given(boards(), KERNEL_LISTS, TEMPERATURE)
def test_equal_inputs_give_equal_outputs(
    board: tuple[GpuSpec, float, float], together: list[KernelSpec], temperature: float
) -> None:
    spec, clock, _ = board
    again = replace(spec)
    assert contention(spec, together, clock).tobytes() == contention(again, list(together), clock).tobytes()
    activity = activity_of(spec, together, clock)
    assert activity == activity_of(again, together, clock)
    first, second = (power_w(one, activity, clock, temperature) for one in (spec, again))
    assert first.tobytes() == second.tobytes()


# --- Against measurements ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", [KernelSpec(1e6, 2e5, 0, 0.9, 0.9), KernelSpec(3e5, 1e6, 0, 0.4, 0.4)])
def test_the_fit_finds_a_kernel_that_is_one(kernel: KernelSpec) -> None:
    clocks = np.arange(600.0, 1165, 60)
    time_ns, power = fit.predict(fit.TITAN_X, kernel, clocks)
    found = fit.fit_kernel(fit.TITAN_X, clocks, fit.Measured("made up", time_ns, power))
    assert found.compute_ns == pytest.approx(kernel.compute_ns, rel=0.01)
    assert found.memory_ns == pytest.approx(kernel.memory_ns, rel=0.01)
    assert found.compute_activity == pytest.approx(kernel.compute_activity, rel=0.01)


def test_one_curve_for_both_memory_clocks() -> None:
    clocks = np.arange(600.0, 1165, 10)
    fast, slow = voltage(fit.TITAN_X, clocks), voltage(fit.TITAN_X_SLOW_MEMORY, clocks)
    assert np.maximum(slow, fit.TITAN_X.voltage_floor) == pytest.approx(fast)


@pytest.mark.skipif(not DVFS.is_dir(), reason=f"no measured clock sweeps at {DVFS}: set EMO_SAMPLES")
def test_held_out_clocks_are_predicted() -> None:
    sweeps = fit.read_sweeps(DVFS)
    assert [len(sweep.kernels) for sweep in sweeps] == [25, 25, 1]
    for sweep in sweeps:
        half = fit.every_second(len(sweep.clocks_mhz))
        outcomes = fit.check(sweep, half, ~half)
        assert np.mean([outcome.right for outcome in outcomes]) >= 0.9, sweep.name
        assert max(max(outcome.time_error, outcome.power_error) for outcome in outcomes) < 0.07, sweep.name


@pytest.mark.skipif(not DVFS.is_dir(), reason=f"no measured clock sweeps at {DVFS}: set EMO_SAMPLES")
def test_the_power_cap_of_the_a4000() -> None:
    """2100 MHz asked, 1740 MHz delivered at 140 W: told by the kernel at clocks below the cap alone."""
    sweep = fit.read_sweeps(DVFS)[-1]
    below = sweep.clocks_mhz < 1600
    measured = sweep.kernels[0]
    kernel = fit.fit_kernel(
        sweep.spec,
        sweep.clocks_mhz[below],
        fit.Measured(measured.name, measured.time_ns[below], measured.power_w[below]),
    )
    delivered = capped_clock_running_mhz(sweep.spec, [kernel], 2100.0, 140.0, sweep.spec.temperature_ref_c)
    assert delivered == pytest.approx(1740, rel=0.02)


def test_sweeps_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no usable clock sweeps"):
        fit.read_sweeps(tmp_path)
    (tmp_path / fit.TITAN_X_FILE).write_text("gemm\n3505,595,fast,1,1\n")
    with pytest.raises(InputError, match="fast"):
        fit.read_sweeps(tmp_path)
