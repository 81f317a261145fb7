"""What the sensors of a board say of a run: an energy counter, and power as NVML reports it.

The sensor of an A100 or H100 sees 25 of every 100 ms, and every board reads a few percent high or low
(facts: arXiv:2312.02741). Both follow from the board, so comparisons hold on one board only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emo.sim.player import Run

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Readings:
    """A sensor over time. ``time_s`` is when a reading became visible."""

    time_s: Floats
    power_w: Floats
    energy_mj: NDArray[np.int64]  # of the counter, as NVML gives it


def energy_at_s(run: Run, gpu: int, time_s: Floats) -> Floats:
    """True energy in joules up to each moment, between the moments of the grid in proportion."""
    rows = run.samples[run.samples["gpu"] == gpu]
    known_s = np.r_[0.0, rows["time_ns"] * 1e-9, run.end_ns * 1e-9]
    known_j = np.r_[0.0, rows["energy_j"], run.energy_j[gpu]]
    energy_j: Floats = np.interp(time_s, known_s, known_j)
    return energy_j


def sensor(run: Run, gpu: int) -> Readings:
    """Power and energy as the board of this GPU reports them: one reading per period of the sensor."""
    spec, board = run.specs[gpu], run.boards[gpu]
    period_s, window_s = spec.sensor_period_ms * 1e-3, spec.sensor_window_ms * 1e-3
    phase_s = board.sensor_phase_ms * 1e-3
    count = max(int((run.end_ns * 1e-9 - phase_s - window_s) / period_s) + 1, 0)
    begin_s = np.linspace(phase_s, phase_s + period_s * count, count, endpoint=False)
    end_s = begin_s + window_s
    power_w: Floats = (
        (energy_at_s(run, gpu, end_s) - energy_at_s(run, gpu, begin_s)) / window_s * board.sensor_gain
    )
    # The counter adds up what the sensor saw, as if it had been so for the whole period.
    energy_mj = np.cumsum(np.rint(power_w * period_s * 1e3)).astype(np.int64)
    return Readings(end_s, power_w, energy_mj)
