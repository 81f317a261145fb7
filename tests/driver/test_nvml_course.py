"""The course of a GPU over time: clocks that land late, caps, heat, energy, and what the sensor makes of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pynvml as n  # type: ignore[import-untyped]
import pytest
from gpus import INSTANT_POWER, LOAD, SETTLED_S, Bench, bench
from hypothesis import given
from hypothesis import strategies as st

from emo.errors import InputError
from emo.sim import physics
from emo.sim.driver import DriverState, SimulatedDriver
from emo.sim.presets import PRESETS

H100 = PRESETS["H100"]
POWER_CAP, THERMAL, POWER_BRAKE, IDLE = 0x4, 0x20, 0x80, 0x1


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    with bench(tmp_path, monkeypatch) as made:
        yield made


# --- clocks -----------------------------------------------------------------------------------------


def test_the_old_clock_goes_on_until_the_new_one_lands(gpus: Bench) -> None:
    gpus.control(*LOAD, "gpu0.latency_ms=20")
    gpus.wait(SETTLED_S)
    assert gpus.sm_clock() == 1980
    n.nvmlDeviceSetGpuLockedClocks(gpus.handle(), 1200, 1200)
    assert gpus.sm_clock() == 1980
    gpus.wait(0.019)
    assert gpus.sm_clock() == 1980
    gpus.wait(0.002)
    assert gpus.sm_clock() == 1200


def test_the_late_command_wins(gpus: Bench) -> None:
    gpus.control(*LOAD, "gpu0.latency_ms=20")
    gpus.wait(SETTLED_S)
    n.nvmlDeviceSetGpuLockedClocks(gpus.handle(), 1200, 1200)
    gpus.wait(0.01)
    n.nvmlDeviceSetGpuLockedClocks(gpus.handle(), 900, 900)
    gpus.wait(0.015)
    assert gpus.sm_clock() == 1980, "the first command was replaced, and the second is 15 ms old"
    gpus.wait(0.01)
    assert gpus.sm_clock() == 900


def test_a_change_that_is_taken_back_never_happens(gpus: Bench) -> None:
    gpus.control(*LOAD, "gpu0.latency_ms=20")
    gpus.wait(SETTLED_S)
    n.nvmlDeviceSetGpuLockedClocks(gpus.handle(), 1200, 1200)
    gpus.wait(0.01)
    n.nvmlDeviceResetGpuLockedClocks(gpus.handle())
    gpus.wait(SETTLED_S)
    before = gpus.gpu().clock_changes
    assert gpus.sm_clock() == 1980
    n.nvmlDeviceSetGpuLockedClocks(gpus.handle(), 1980, 1980)
    assert gpus.gpu().clock_changes == before, "an equal clock is no change"


def _latencies_ms(model: str, seed: int, targets: range) -> list[float]:
    """How long each change took, from the driver's own account of when it lands."""
    found = []
    with TemporaryDirectory() as folder:
        path = Path(folder) / "state"
        with SimulatedDriver.create(path, [model], seed=seed, frozen=True) as driver:
            driver.control("gpu0.compute=0.3", "clock=10")
            for step, target in enumerate(targets):
                driver.control(f"gpu0.lock={target} {target}")
                state = driver.state()
                found.append((state.gpus[0].pending_ns - state.now_ns) / 1e6)
                driver.control(f"clock={20 + 10 * step}")
    return found


def test_latency_is_that_of_the_model_and_repeats_with_the_seed() -> None:
    targets = range(600, 1300, 15)
    a100, h100 = (sorted(_latencies_ms(model, 3, targets)) for model in ("A100", "H100"))
    assert 5 < a100[len(a100) // 2] < 25, "facts: 5-25 ms"
    assert 10 < h100[len(h100) // 2] < 100, "facts: 10-100 ms"
    assert _latencies_ms("A100", 3, targets) == _latencies_ms("A100", 3, targets)
    assert _latencies_ms("A100", 3, targets) != _latencies_ms("A100", 4, targets)


def test_idle_and_loaded_clocks(gpus: Bench) -> None:
    gpus.wait(SETTLED_S)
    assert gpus.sm_clock() == H100.clock_min_mhz
    gpus.control("gpu0.process=77 100")
    gpus.wait(SETTLED_S)
    assert gpus.sm_clock() == H100.clock_max_mhz, "a context keeps the clock up although nothing runs"
    assert gpus.gpu().reasons & IDLE
    loaded_idle_w = gpus.gpu().power_w
    gpus.control("gpu0.process=none")
    gpus.wait(SETTLED_S)
    assert gpus.sm_clock() == H100.clock_min_mhz
    assert gpus.gpu().power_w == H100.idle_w < loaded_idle_w


# --- caps -------------------------------------------------------------------------------------------


def test_the_power_cap_lowers_the_delivered_clock_and_says_so(gpus: Bench) -> None:
    gpus.control("gpu0.compute=1", "gpu0.memory=0.6")
    n.nvmlDeviceSetPowerManagementLimit(gpus.handle(), 350_000)
    gpus.wait(SETTLED_S)
    truth = gpus.gpu()
    assert truth.clock_mhz < truth.granted_mhz == 1980
    assert 330 < truth.power_w <= 350
    assert n.nvmlDeviceGetCurrentClocksEventReasons(gpus.handle()) == POWER_CAP
    violation = n.nvmlDeviceGetViolationStatus(gpus.handle(), n.NVML_PERF_POLICY_POWER)
    assert 0.5 * SETTLED_S < violation.violationTime / 1e9 <= SETTLED_S
    n.nvmlDeviceSetGpuLockedClocks(gpus.handle(), 600, 600)
    gpus.wait(SETTLED_S)
    assert gpus.sm_clock() == 600, "below the cap the lock is what counts"
    assert n.nvmlDeviceGetCurrentClocksEventReasons(gpus.handle()) == 0


def test_heat_lowers_the_clock(gpus: Bench) -> None:
    gpus.control("gpu0.compute=0.9", "gpu0.memory=0.5", "gpu0.ambient_c=60")
    gpus.wait(300)
    truth = gpus.gpu()
    assert truth.clock_mhz < truth.granted_mhz
    assert n.nvmlDeviceGetCurrentClocksEventReasons(gpus.handle()) & THERMAL
    assert truth.temperature_c == pytest.approx(H100.temperature_slowdown_c, abs=1)
    assert n.nvmlDeviceGetViolationStatus(gpus.handle(), n.NVML_PERF_POLICY_THERMAL).violationTime > 0


def test_a_power_brake_holds_the_clock_down(gpus: Bench) -> None:
    gpus.control(*LOAD, "gpu0.brake_mhz=600")
    gpus.wait(SETTLED_S)
    assert gpus.sm_clock() == 600
    assert n.nvmlDeviceGetCurrentClocksEventReasons(gpus.handle()) & POWER_BRAKE
    gpus.control("gpu0.brake_mhz=0")
    assert gpus.sm_clock() == 1980


# --- the same physics as the player's ---------------------------------------------------------------


def test_power_is_that_of_the_physics(gpus: Bench) -> None:
    gpus.control("gpu0.latency_ms=0", "gpu0.lock=1200 1200", *LOAD)
    truth = gpus.gpu()
    activity = physics.Activity(compute=0.5, memory=0.5)
    assert truth.clock_mhz == 1200
    assert truth.power_w == physics.power_w(H100, activity, 1200.0, truth.temperature_c)
    gpus.control("gpu0.lock=none", "gpu0.power_limit=250")
    truth = gpus.gpu()
    assert truth.clock_mhz == physics.capped_clock_mhz(H100, activity, 1980.0, 250.0, truth.temperature_c)


def test_a_player_sets_kernels_and_reads_the_clock(gpus: Bench) -> None:
    gpus.control("gpu0.latency_ms=20")
    kernels = [physics.KernelSpec(1e6, 2e5, sm_share=0.5), physics.KernelSpec(1e5, 8e5, sm_share=0.5)]
    gpus.driver.load(0, kernels=kernels)
    gpus.wait(SETTLED_S)
    truth = gpus.gpu()
    assert gpus.driver.clock(0) == (SETTLED_S * 1e9, truth.clock_mhz, None)
    activity = physics.activity_of(H100, kernels, truth.clock_mhz)
    assert (truth.compute, truth.memory) == (activity.compute, activity.memory)
    assert truth.power_w == pytest.approx(
        float(physics.power_w(H100, activity, truth.clock_mhz, truth.temperature_c)), rel=1e-3
    )
    assert n.nvmlDeviceGetUtilizationRates(gpus.handle()).gpu == 100
    n.nvmlDeviceSetGpuLockedClocks(gpus.handle(), 900, 900)
    assert gpus.driver.clock(0) == (SETTLED_S * 1e9, truth.clock_mhz, (SETTLED_S + 0.020) * 1e9)
    gpus.driver.load(0, activity=physics.Activity(compute=0.3), busy=0.4)
    gpus.wait(SETTLED_S)
    assert (gpus.gpu().compute, gpus.gpu().busy, gpus.gpu().clock_mhz) == (0.3, 0.4, 900)
    gpus.driver.load(0, busy=0)
    assert not gpus.gpu().loaded


@pytest.mark.parametrize(
    ("gpu", "load"),
    [
        (7, {}),
        (0, {"busy": 2.0}),
        (0, {"activity": physics.Activity(compute=math.nan)}),
        (0, {"kernels": [physics.KernelSpec(-1.0)]}),
        (0, {"kernels": [physics.KernelSpec(1.0)] * 9}),
    ],
)
def test_a_load_that_cannot_be(gpus: Bench, gpu: int, load: dict[str, Any]) -> None:
    before = gpus.driver.state()
    with pytest.raises(InputError):
        gpus.driver.load(gpu, **load)
    assert gpus.driver.state() == before


def test_kernels_follow_the_clock(gpus: Bench) -> None:
    """Compute-bound work keeps the SMs as busy at any clock; memory-bound work busier at a low one."""
    compute, memory = "1e6 1e3 0 1 1 0 1", "2e5 1e6 0 1 1 0 1"
    seen = {}
    for name, kernel in (("compute", compute), ("memory", memory)):
        gpus.control("gpu0.kernel=none", f"gpu0.kernel={kernel}", "gpu0.latency_ms=0")
        for clock in (600, 1500):
            n.nvmlDeviceSetGpuLockedClocks(gpus.handle(), clock, clock)
            gpus.wait(SETTLED_S)
            seen[name, clock] = gpus.gpu().compute
    assert seen["compute", 600] == pytest.approx(seen["compute", 1500], rel=0.02)
    assert seen["memory", 600] > 1.2 * seen["memory", 1500]


# --- energy -----------------------------------------------------------------------------------------

event = st.tuples(
    st.integers(1, 150),  # milliseconds until it happens
    st.sampled_from(
        [
            "gpu0.compute=0",
            "gpu0.compute=0.4",
            "gpu0.compute=1",
            "gpu0.memory=0.7",
            "gpu0.memory=0",
            "gpu0.lock=600 600",
            "gpu0.lock=1410 1410",
            "gpu0.lock=none",
            "gpu0.power_limit=200",
            "gpu0.power_limit=400",
            "gpu0.kernel=1e6 5e5 0 1 1 0.3 0.5",
        ]
    ),
)
LOOK_MS = 2
events = st.lists(event, min_size=1, max_size=8)


def _play(happenings: list[tuple[int, str]], look_every_ms: int | None) -> list[DriverState]:
    """The states seen while it all happens; with no looks, only the one at the end."""
    seen, now_ms = [], 0
    with (
        TemporaryDirectory() as folder,
        SimulatedDriver.create(Path(folder) / "state", ["A100"], seed=5, frozen=True) as driver,
    ):
        for delay_ms, line in [*happenings, (250, "gpu0.compute=0")]:
            until_ms = now_ms + delay_ms
            while look_every_ms and now_ms + look_every_ms < until_ms:
                now_ms += look_every_ms
                driver.control(f"clock={now_ms / 1e3:.3f}")
                seen.append(driver.state())
            now_ms = until_ms
            driver.control(f"clock={now_ms / 1e3:.3f}", line)
            seen.append(driver.state())
    return seen


@given(events)
def test_energy_is_the_integral_of_power(happenings: list[tuple[int, str]]) -> None:
    seen = _play(happenings, look_every_ms=LOOK_MS)
    steps = list(pairwise(seen))
    integral = math.fsum(
        (before.gpus[0].power_w + after.gpus[0].power_w) / 2 * (after.now_ns - before.now_ns) / 1e9
        for before, after in steps
    )
    rise = seen[-1].gpus[0].energy_j - seen[0].gpus[0].energy_j
    # Power jumps between two looks: half a step of the jump is what the trapezoid cannot know.
    jumps = math.fsum(abs(b.gpus[0].power_w - a.gpus[0].power_w) * LOOK_MS * 0.5e-3 for a, b in steps)
    assert abs(rise - integral) <= jumps + 1e-6
    assert all(after.gpus[0].energy_j >= before.gpus[0].energy_j for before, after in steps)
    counted = seen[-1].gpus[0].counter_j - seen[0].gpus[0].counter_j
    assert counted == pytest.approx(rise * seen[0].gpus[0].gain, rel=1e-9)


@given(events)
def test_nobody_changes_the_course_by_looking(happenings: list[tuple[int, str]]) -> None:
    assert _play(happenings, look_every_ms=None)[-1] == _play(happenings, look_every_ms=7)[-1]


# --- the sensor -------------------------------------------------------------------------------------


def _instant_mw(gpus: Bench, index: int = 0) -> int:
    (field,) = n.nvmlDeviceGetFieldValues(gpus.handle(index), [INSTANT_POWER])
    value: int = field.value.uiVal
    return value


def test_the_sensor_looks_a_quarter_of_the_time(gpus: Bench) -> None:
    """A pulse of 10 ms in each period of 100 ms is seen fully, or not at all, as its phase has it."""
    gpus.control("gpu1.latency_ms=0", "gpu1.gain=1", "gpu1.process=1 1")
    gpus.wait(SETTLED_S)
    rest_mw = _instant_mw(gpus, 1)
    seen = set()
    for phase_ms in range(0, 100, 10):
        gpus.control("gpu1.compute=0")
        gpus.wait(0.2 + phase_ms / 1e3)
        gpus.control("gpu1.compute=1")
        gpus.wait(0.010)
        gpus.control("gpu1.compute=0")
        gpus.wait(0.1)
        readings = _instant_mw(gpus, 1)
        seen.add(readings > rest_mw * 1.05)
        gpus.wait(0.09 - phase_ms / 1e3)
    assert seen == {True, False}


@pytest.mark.parametrize("phase_ms", range(0, 100, 20))
def test_a_sample_is_at_most_a_period_and_a_window_old(gpus: Bench, phase_ms: int) -> None:
    gpus.control("gpu1.latency_ms=0", "gpu1.gain=1")
    gpus.wait(SETTLED_S + phase_ms / 1e3)
    gpus.control("gpu1.compute=0.5")
    gpus.wait(0.126)
    assert _instant_mw(gpus, 1) == pytest.approx(1e3 * gpus.gpu(1).power_w, rel=0.01)


def test_power_usage_is_a_mean_of_a_second_on_hopper_and_a_sample_on_ga100(gpus: Bench) -> None:
    for index in (0, 1):
        gpus.control(f"gpu{index}.latency_ms=0", f"gpu{index}.gain=1", f"gpu{index}.compute=0.5")
    gpus.wait(0.3)
    hopper, ampere = gpus.gpu(0), gpus.gpu(1)
    assert n.nvmlDeviceGetPowerUsage(gpus.handle(0)) < 0.6e3 * hopper.power_w
    assert n.nvmlDeviceGetPowerUsage(gpus.handle(1)) == pytest.approx(1e3 * ampere.power_w, rel=0.02)
    gpus.wait(1.2)
    assert n.nvmlDeviceGetPowerUsage(gpus.handle(0)) == pytest.approx(1e3 * gpus.gpu(0).power_w, rel=0.02)


A100_GAINS = (PRESETS["A100"].sensor_gain_low, PRESETS["A100"].sensor_gain_high)


def test_boards_differ_in_gain(tmp_path: Path) -> None:
    with SimulatedDriver.create(tmp_path / "state", ["A100"] * 16, seed=2, frozen=True) as driver:
        driver.control("gpu*.compute=0.5", "clock=20")
        boards = driver.state().gpus
    gains = [board.gain for board in boards]
    assert A100_GAINS[0] <= min(gains) < 1 < max(gains) <= A100_GAINS[1]
    assert len(set(gains)) == 16
    assert len({board.uuid for board in boards}) == 16
    for board in boards:
        assert board.sensor_power_w == pytest.approx(board.power_w * board.gain, rel=0.01)


def test_a_counter_can_give_one_bad_reading(gpus: Bench) -> None:
    gpus.wait(100)
    good = n.nvmlDeviceGetTotalEnergyConsumption(gpus.handle())
    gpus.control("gpu0.bad_energy=200 1")
    readings = [n.nvmlDeviceGetTotalEnergyConsumption(gpus.handle()) for _ in range(2)]
    assert readings == [200, good]
