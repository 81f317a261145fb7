"""Physics of a simulated GPU: how long work takes and how much power is drawn, over clocks.

The formulas are in ``native/gpu_physics.c``, which the player and the simulated driver compile too;
what stands here are its structures and a call for each of its functions. docs/simulator-physics.md
explains the model and compares it with measured sweeps.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, fields

import numpy as np
from numpy.typing import ArrayLike, NDArray

from emo.errors import InputError
from emo.sim import _sim

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Switching:
    """How a GPU changes its clock; fields as ``gp_switching``.

    Until a change takes effect the old clock goes on (latency); at the change nothing runs (stall).
    """

    latency_median_ms: float
    latency_target_spread: float
    latency_sigma: float
    latency_tail_share: float
    latency_tail_ms: float
    stall_us: float

    def packed(self) -> bytes:
        """As ``gp_switching``: float64 in the order of the fields."""
        return _pack(astuple(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """One GPU model: the fields of ``gp_spec``, then what only drivers and sensors know.

    Raises InputError when the figures contradict each other. Two of them say most about power:
    ``loaded_idle_w`` is drawn at the maximum clock when nothing runs, ``compute_w`` comes on top
    when all SMs work as hard as they can.
    """

    name: str
    clock_min_mhz: float
    clock_max_mhz: float
    clock_step_mhz: float
    clock_base_mhz: float
    power_limit_w: float
    power_limit_min_w: float
    power_limit_max_w: float
    idle_w: float
    loaded_idle_w: float
    leakage_w: float
    leakage_per_c: float
    compute_w: float
    memory_w: float
    link_w: float
    stall_share: float
    voltage_floor: float
    voltage_knee: float
    voltage_shape: float
    uncore_slope: float
    bound_sharpness: float
    temperature_ambient_c: float
    temperature_ref_c: float
    thermal_resistance_c_per_w: float
    thermal_tau_s: float
    temperature_slowdown_c: float
    switching: Switching
    sensor_window_ms: float = 25.0  # the sensor averages over this much ...
    sensor_period_ms: float = 100.0  # ... of every such period
    sensor_gain_low: float = 0.92  # range of a board's gain: -8 % ...
    sensor_gain_high: float = 1.13  # ... to +13 %
    _packed: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        numbers = [float(getattr(self, name)) for name in SPEC_FIELDS]
        if not np.isfinite(numbers).all():
            raise InputError(f"{self.name}: a figure is not finite; every field of a GPU must be a number")
        for holds, rule in self._rules():
            if not holds:
                raise InputError(f"{self.name}: {rule} does not hold")
        object.__setattr__(self, "_packed", _pack(numbers))

    def _rules(self) -> list[tuple[bool, str]]:
        return [
            (
                0 < self.clock_min_mhz <= self.clock_base_mhz <= self.clock_max_mhz,
                "0 < min <= base <= max clock",
            ),
            (self.clock_step_mhz > 0, "clock_step_mhz > 0"),
            (self._steps_meet_maximum(), "maximum clock = minimum + a whole number of steps"),
            (
                0 < self.power_limit_min_w <= self.power_limit_w <= self.power_limit_max_w,
                "0 < power limit min <= default <= max",
            ),
            (
                self.idle_w >= 0 and 0 <= self.leakage_w <= self.loaded_idle_w - self.idle_w,
                "idle_w + leakage_w <= loaded_idle_w",
            ),
            (min(self.compute_w, self.memory_w, self.link_w) >= 0, "dynamic power >= 0"),
            (0 <= self.stall_share <= 1, "0 <= stall_share <= 1"),
            (0 < self.voltage_floor <= 1, "0 < voltage_floor <= 1"),
            (0 <= self.voltage_knee < 1, "0 <= voltage_knee < 1"),
            (self.voltage_shape > 0, "voltage_shape > 0"),
            (self.uncore_slope >= 0, "uncore_slope >= 0"),
            (self.bound_sharpness >= 1, "bound_sharpness >= 1"),
            (min(self.thermal_resistance_c_per_w, self.thermal_tau_s) > 0, "thermal figures > 0"),
            (self.temperature_slowdown_c > self.temperature_ambient_c, "slow-down above ambient temperature"),
        ]

    def _steps_meet_maximum(self) -> bool:
        steps = (self.clock_max_mhz - self.clock_min_mhz) / self.clock_step_mhz
        return abs(steps - round(steps)) < 1e-6

    def packed(self) -> bytes:
        """As ``gp_spec``: float64 in the order of its fields."""
        return self._packed

    def clocks_mhz(self) -> Floats:
        """Every clock of the grid, ascending, in whole MHz as a driver lists them."""
        count = int((self.clock_max_mhz - self.clock_min_mhz) / self.clock_step_mhz + 1e-9) + 1
        clocks: Floats = np.floor(self.clock_min_mhz + np.arange(count) * self.clock_step_mhz + 1e-9)
        return clocks


SPEC_FIELDS = tuple(
    item.name
    for item in fields(GpuSpec)
    if item.name not in ("name", "switching", "_packed") and not item.name.startswith("sensor_")
)
SWITCHING_FIELDS = tuple(item.name for item in fields(Switching))


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """What a kernel is, whatever the clock; fields as ``gp_kernel``.

    Times are at the maximum clock with the GPU to itself. A collective is a kernel too: traffic over
    memory and links, and SMs that spin (``compute_activity``) as long as it takes.
    """

    compute_ns: float
    memory_ns: float = 0.0
    fixed_ns: float = 0.0
    compute_activity: float = 1.0
    memory_activity: float = 1.0
    link_activity: float = 0.0
    sm_share: float = 1.0

    def packed(self) -> bytes:
        """As ``gp_kernel``: float64 in the order of the fields."""
        return _pack(astuple(self))


KERNEL_FIELDS = tuple(item.name for item in fields(KernelSpec))


@dataclass(frozen=True, slots=True)
class Activity:
    """What is busy at one moment, each 0..1; ``loaded``: a context keeps clocks and voltage up."""

    compute: float = 0.0
    memory: float = 0.0
    link: float = 0.0
    loaded: bool = True

    def packed(self) -> bytes:
        """As ``gp_activity``, with ``loaded`` as a float64 too."""
        return _pack(astuple(self))


def clock_on_grid_mhz(spec: GpuSpec, wish_mhz: float) -> float:
    """Clock of the grid at or below the wish, within the range of the model."""
    return _sim.clock_on_grid_mhz(spec.packed(), wish_mhz)


def voltage(spec: GpuSpec, clock_mhz: ArrayLike) -> Floats:
    """Voltage relative to that at the maximum clock, for each clock."""
    clocks = _floats(clock_mhz)
    out = np.empty_like(clocks)
    _sim.voltage(spec.packed(), clocks, out)
    return out


def duration_ns(spec: GpuSpec, kernel: KernelSpec, clock_mhz: ArrayLike) -> Floats:
    """Duration of a kernel that has the GPU to itself, for each clock."""
    clocks = _floats(clock_mhz)
    out = np.empty_like(clocks)
    _sim.duration_ns(spec.packed(), kernel.packed(), clocks, out)
    return out


def contention(spec: GpuSpec, kernels: Sequence[KernelSpec], clock_mhz: float) -> Floats:
    """Slow-down (>= 1) of each of the kernels while they run together."""
    out = np.empty(len(kernels))
    _sim.contention(spec.packed(), _packed_kernels(kernels), out, clock_mhz)
    return out


def activity_of(
    spec: GpuSpec, kernels: Sequence[KernelSpec], clock_mhz: float, slowdown: ArrayLike | None = None
) -> Activity:
    """Activity of kernels that run together, at the slow-downs given or else those of contention."""
    slow = contention(spec, kernels, clock_mhz) if slowdown is None else _floats(slowdown)
    out = np.empty(4)
    _sim.activity(spec.packed(), _packed_kernels(kernels), slow, out, clock_mhz)
    return Activity(float(out[0]), float(out[1]), float(out[2]), bool(out[3]))


def power_w(spec: GpuSpec, activity: Activity, clock_mhz: ArrayLike, temperature_c: float) -> Floats:
    """Board power for each clock, at one activity."""
    clocks = _floats(clock_mhz)
    out = np.empty_like(clocks)
    _sim.power_w(spec.packed(), activity.packed(), clocks, out, temperature_c)
    return out


def capped_clock_mhz(
    spec: GpuSpec, activity: Activity, wish_mhz: float, limit_w: float, temperature_c: float
) -> float:
    """Highest clock at or below the wish whose power is within the limit; the minimum if none is."""
    return _sim.capped_clock_mhz(spec.packed(), activity.packed(), wish_mhz, limit_w, temperature_c)


def capped_clock_running_mhz(
    spec: GpuSpec, kernels: Sequence[KernelSpec], wish_mhz: float, limit_w: float, temperature_c: float
) -> float:
    """As :func:`capped_clock_mhz` for kernels that run together, whose activity changes with the clock."""
    packed = _packed_kernels(kernels)
    return _sim.capped_clock_running_mhz(spec.packed(), packed, wish_mhz, limit_w, temperature_c)


def thermal_limit_w(spec: GpuSpec, temperature_c: float) -> float:
    """Power that holds a GPU at its slow-down temperature; infinite while it is below."""
    return _sim.thermal_limit_w(spec.packed(), temperature_c)


def temperature_after_c(spec: GpuSpec, temperature_c: float, power_w: float, dt_s: float) -> float:
    """Temperature after ``dt_s`` seconds at constant power."""
    return _sim.temperature_after_c(spec.packed(), temperature_c, power_w, dt_s)


def switch_latency_ms(spec: GpuSpec, target_mhz: float, random: ArrayLike) -> float:
    """Latency of one change to a clock, from three uniform numbers in [0, 1)."""
    numbers = _floats(random)
    return _sim.switch_latency_ms(spec.switching.packed(), numbers, target_mhz, spec.clock_max_mhz)


def _pack(numbers: Sequence[float]) -> bytes:
    return struct.pack(f"{len(numbers)}d", *numbers)


def _packed_kernels(kernels: Sequence[KernelSpec]) -> bytes:
    return b"".join(kernel.packed() for kernel in kernels)


def _floats(values: ArrayLike) -> Floats:
    return np.asarray(values, np.float64, order="C")
