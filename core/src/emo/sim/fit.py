"""Does the physics describe real GPUs? Held-out clocks of measured sweeps, predicted.

A sweep is one GPU at one memory clock: time and power of kernels over core clocks. The figures of the
board, above all its one voltage-frequency curve, are common to all its kernels; a kernel has three
free parameters. Both were fitted on every second clock alone, so that the other clocks judge them.

``python -m emo.sim.fit FOLDER`` prints the check as Markdown. The folder holds the files named below.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from emo.errors import InputError
from emo.sim.physics import Floats, GpuSpec, KernelSpec, Switching, activity_of, duration_ns, power_w

TITAN_X_FILE = "gtx_titan_x_real_benchmarks.csv"  # github.com/hpc-ulisboa/gpuPTXModel, BSD-3
A4000_FILE = "rtx_a4000_fp32_clock_sweep.json"  # github.com/KernelTuner/kernel_tuner, Apache-2.0
WITHIN = 0.05  # a prediction that is off by less than this share is right

# The highest setting of the Titan X sweeps is not reached: kernels that scale with the clock up to
# 1126 MHz behave at "1164" as at 1139.
_TITAN_X_ASKED_MHZ, _TITAN_X_REACHED_MHZ = 1164.0, 1139.0


@dataclass(frozen=True, slots=True)
class Measured:
    """One kernel over the clocks of its sweep."""

    name: str
    time_ns: Floats
    power_w: Floats


@dataclass(frozen=True, slots=True)
class Sweep:
    """Kernels on one GPU at one memory clock; ``clocks_mhz`` are those delivered."""

    name: str
    spec: GpuSpec
    clocks_mhz: Floats
    kernels: tuple[Measured, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A fitted kernel and its worst relative errors over the held-out clocks."""

    name: str
    kernel: KernelSpec
    time_error: float
    power_error: float

    @property
    def right(self) -> bool:
        """Every held-out clock predicted within 5 %, time and power."""
        return max(self.time_error, self.power_error) < WITHIN


def _lab_spec(name: str, **figures: float) -> GpuSpec:
    """A board of which only time and power over clocks were measured.

    No temperature was recorded, so leakage is part of idle power; limits are out of the way.
    """
    common = {
        "clock_step_mhz": 1.0,
        "power_limit_w": 400.0,
        "power_limit_min_w": 1.0,
        "power_limit_max_w": 400.0,
        "leakage_w": 0.0,
        "leakage_per_c": 0.0,
        "link_w": 0.0,
        "voltage_shape": 1.0,
        "temperature_ambient_c": 25.0,
        "temperature_ref_c": 35.0,
        "thermal_resistance_c_per_w": 0.2,
        "thermal_tau_s": 20.0,
        "temperature_slowdown_c": 95.0,
    }
    unused = Switching(10, 0, 0, 0, 0, 0)
    return GpuSpec(name=name, switching=unused, **{**common, **figures})


def _knee(floor: float, slope: float) -> float:
    """Where a straight curve that is 1 at the maximum clock and has this slope meets the floor."""
    return 1 - (1 - floor) / slope


_TITAN_X_SLOPE = 1.354  # of voltage over clock, both relative: the one curve of the board
TITAN_X = _lab_spec(
    "GTX Titan X, memory at 3505 MHz",
    clock_min_mhz=500.0,
    clock_base_mhz=1000.0,
    clock_max_mhz=1164.0,
    idle_w=76.0,
    loaded_idle_w=104.0,
    compute_w=84.0,
    memory_w=148.0,
    stall_share=0.73,
    voltage_floor=0.802,
    voltage_knee=_knee(0.802, _TITAN_X_SLOPE),
    uncore_slope=0.0,
    bound_sharpness=3.3,
)
# A slow memory clock is another performance state: the same curve may go lower, and memory draws less.
TITAN_X_SLOW_MEMORY = replace(
    TITAN_X,
    name="GTX Titan X, memory at 810 MHz",
    idle_w=47.7,
    loaded_idle_w=75.7,
    memory_w=86.0,
    voltage_floor=0.5,
    voltage_knee=_knee(0.5, _TITAN_X_SLOPE),
)
A4000 = _lab_spec(
    "RTX A4000",
    clock_min_mhz=210.0,
    clock_base_mhz=735.0,
    clock_max_mhz=2100.0,
    idle_w=31.9,
    loaded_idle_w=38.0,  # 38 W in P2, github.com/huggingface/text-generation-inference#946
    compute_w=185.0,
    memory_w=30.0,
    stall_share=0.73,
    voltage_floor=0.624,
    voltage_knee=_knee(0.624, 0.993),
    uncore_slope=0.0,
    bound_sharpness=3.3,
)


def read_sweeps(folder: Path) -> list[Sweep]:
    """The three sweeps of the folder. Raises InputError if a file is missing or cannot be used."""
    try:
        return [*_read_titan_x(folder / TITAN_X_FILE), _read_a4000(folder / A4000_FILE)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder}: no usable clock sweeps: {error}") from error


def _read_titan_x(path: Path) -> list[Sweep]:
    """Blocks of a line with a name, then lines of memory MHz, core MHz, time in ms, W, mJ."""
    measured: dict[str, list[Measured]] = {"3505": [], "810": []}
    clocks: Floats = np.zeros(0)
    name = ""
    with path.open(newline="") as file:
        for is_name, rows in groupby(csv.reader(file), key=lambda row: len(row) == 1):
            if is_name:
                name = next(rows)[0]
                continue
            for memory_mhz, at_memory in groupby(rows, key=lambda row: row[0]):
                numbers = np.array([row[1:4] for row in at_memory], np.float64)
                clocks = np.where(numbers[:, 0] == _TITAN_X_ASKED_MHZ, _TITAN_X_REACHED_MHZ, numbers[:, 0])
                measured[memory_mhz].append(Measured(name, numbers[:, 1] * 1e6, numbers[:, 2]))
    specs = {"3505": TITAN_X, "810": TITAN_X_SLOW_MEMORY}
    return [Sweep(spec.name, spec, clocks, tuple(measured[memory])) for memory, spec in specs.items()]


def _read_a4000(path: Path) -> Sweep:
    """Kernel Tuner's cache: one kernel, milliseconds, the clock that was really reached."""
    points = list(json.loads(path.read_text())["cache"].values())
    numbers = np.array([(p["core_freq"], p["time"] * 1e6, p["nvml_power"]) for p in points], np.float64)
    clocks, time_ns, power = numbers[np.argsort(numbers[:, 0])].T
    return Sweep(A4000.name, A4000, clocks, (Measured("fp32_kernel", time_ns, power),))


def predict(spec: GpuSpec, kernel: KernelSpec, clocks_mhz: Floats) -> tuple[Floats, Floats]:
    """Time (ns) and power (W) of a kernel on its own, for each clock, at the reference temperature."""
    powers = [
        power_w(spec, activity_of(spec, [kernel], clock, [1.0]), clock, spec.temperature_ref_c)
        for clock in clocks_mhz.tolist()
    ]
    return duration_ns(spec, kernel, clocks_mhz), np.array(powers)


def _errors(spec: GpuSpec, kernel: KernelSpec, clocks_mhz: Floats, measured: Measured) -> Floats:
    """Relative errors, signed: time for all clocks, then power for all clocks."""
    time_ns, power = predict(spec, kernel, clocks_mhz)
    return np.concatenate([time_ns / measured.time_ns - 1, power / measured.power_w - 1])


def fit_kernel(spec: GpuSpec, clocks_mhz: Floats, measured: Measured) -> KernelSpec:
    """The kernel that describes the measurements best, in least squares of relative errors.

    Free are the times of compute and memory work and one activity, the same for SMs and memory.
    """
    longest = float(measured.time_ns[np.argmax(clocks_mhz)])

    def kernel(free: Floats) -> KernelSpec:
        activity = float(np.clip(free[2], 0, 1))
        compute, memory = np.exp(np.clip(free[:2], -8, 2)) * longest
        return KernelSpec(float(compute), float(memory), compute_activity=activity, memory_activity=activity)

    def errors(free: Floats) -> Floats:
        return _errors(spec, kernel(free), clocks_mhz, measured)

    # From either side: as if bound by compute, and by memory.
    starts = (np.array([-0.05, -1.0, 0.5]), np.array([-1.0, -0.05, 0.5]))
    best = min(
        (_least_squares(errors, start) for start in starts),
        key=lambda free: float(errors(free) @ errors(free)),
    )
    return kernel(best)


def _least_squares(residuals: Callable[[Floats], Floats], start: Floats) -> Floats:
    """Levenberg-Marquardt with differences: small problems, no dependency."""
    at, damping = start, 1e-2
    error = residuals(at)
    for _ in range(60):
        step = 1e-5
        slope = np.stack([(residuals(at + step * unit) - error) / step for unit in np.eye(len(at))], axis=1)
        normal = slope.T @ slope
        move = np.linalg.solve(
            normal + damping * (np.diag(np.diag(normal)) + 1e-9 * np.eye(len(at))), -slope.T @ error
        )
        tried = residuals(at + move)
        if tried @ tried < error @ error:
            gain = 1 - (tried @ tried) / (error @ error)
            at, error, damping = at + move, tried, max(damping / 3, 1e-9)
            if gain < 1e-7:
                break
        else:
            damping *= 4
            if damping > 1e9:
                break
    return at


def every_second(count: int) -> NDArray[np.bool_]:
    """Which clocks are for fitting: the second lowest, the fourth and so on; the rest judges."""
    odd: NDArray[np.bool_] = np.arange(count) % 2 == 1
    return odd


def four_of(fitting: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Four of the clocks for fitting, spread over them."""
    chosen = np.flatnonzero(fitting)
    four = np.zeros_like(fitting)
    four[chosen[np.linspace(0, len(chosen) - 1, 4).round().astype(int)]] = True
    return four


def check(sweep: Sweep, fitting: NDArray[np.bool_], judging: NDArray[np.bool_]) -> list[Outcome]:
    """Each kernel of a sweep: fitted on some clocks, judged on others."""
    outcomes = []
    for measured in sweep.kernels:
        kernel = fit_kernel(sweep.spec, sweep.clocks_mhz[fitting], _at(measured, fitting))
        errors = np.abs(_errors(sweep.spec, kernel, sweep.clocks_mhz[judging], _at(measured, judging)))
        time_error, power_error = errors.reshape(2, -1).max(axis=1)
        outcomes.append(Outcome(measured.name, kernel, float(time_error), float(power_error)))
    return outcomes


def _at(measured: Measured, mask: NDArray[np.bool_]) -> Measured:
    return Measured(measured.name, measured.time_ns[mask], measured.power_w[mask])


def report(sweeps: Iterable[Sweep]) -> str:
    """The check as a Markdown table: the share of kernels that are right at every held-out clock."""
    lines = [
        "| sweep | kernels | fitted on | judged on | time | power | both | worst time | worst power |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for sweep in sweeps:
        half = every_second(len(sweep.clocks_mhz))
        for fitting in (half, four_of(half)):
            outcomes = check(sweep, fitting, ~half)
            time_error = np.array([outcome.time_error for outcome in outcomes])
            power_error = np.array([outcome.power_error for outcome in outcomes])
            right = np.array([outcome.right for outcome in outcomes])
            lines.append(
                f"| {sweep.name} | {len(outcomes)} | {fitting.sum()} clocks | {(~half).sum()} others"
                f" | {(time_error < WITHIN).mean():.0%} | {(power_error < WITHIN).mean():.0%} | {right.mean():.0%}"
                f" | {time_error.max():.1%} | {power_error.max():.1%} |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Prints the check for the sweeps of a folder."""
    parser = argparse.ArgumentParser(prog="python -m emo.sim.fit", description=__doc__)
    parser.add_argument("folder", type=Path, help=f"holds {TITAN_X_FILE} and {A4000_FILE}")
    print(report(read_sweeps(parser.parse_args().folder)), end="")


if __name__ == "__main__":
    main()
