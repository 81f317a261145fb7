"""Programs of a few operations on a machine without noise, so that every instant can be worked out by hand.

All times are in microseconds. A launch reaches the GPU 2 us after the call began, a call takes 1 us,
a blocked thread is back 3 us after the GPU was done, kernels follow each other without a gap.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from emo.sim.physics import KernelSpec
from emo.sim.player import ClockChange, Conditions, Run, play
from emo.sim.presets import PRESETS
from emo.sim.program import Job, Program, ThreadBuilder

US = 1_000
GPU = "A100"
MAX_MHZ = PRESETS[GPU].clock_max_mhz
HALF_MHZ = MAX_MHZ / 2
LATENCY, CALL, WAKE = 2, 1, 3

QUIET = Conditions(launch_latency_ns=LATENCY * US, gap_ns=0, wake_ns=WAKE * US, tick_ms=100.0).noiseless()


class Toy:
    """A job whose kernels are named after their length: ``launch(thread, 10)`` runs 10 us."""

    def __init__(self, ranks: int = 1) -> None:
        self.job = Job("toy", ranks)
        self.threads = self.job.main_threads()
        self._kernels: dict[tuple[float, bool], int] = {}

    def kernel(self, us: float, *, fixed: bool = False) -> int:
        """A class of kernels: pure compute, or as long at every clock (copies and the wire)."""
        if (us, fixed) not in self._kernels:
            if fixed:
                spec = KernelSpec(compute_ns=0.0, fixed_ns=us * US, sm_share=0.0)
            else:
                # Half active: no power cap comes in between.
                spec = KernelSpec(compute_ns=us * US, compute_activity=0.5)
            self._kernels[us, fixed] = self.job.kernel(f"k{us:g}", spec)
        return self._kernels[us, fixed]

    def launch(self, thread: ThreadBuilder, us: float, stream: int = 0) -> None:
        thread.launch(self.kernel(us), stream, cpu_ns=CALL * US)

    def program(self) -> Program:
        return self.job.build(1, np.random.default_rng(0))

    def play(
        self,
        conditions: Conditions = QUIET,
        clocks: float | Sequence[float] | Sequence[ClockChange] | None = None,
    ) -> Run:
        return play(self.program(), GPU, clocks=clocks, records=True, conditions=conditions)


def gpu(run: Run, rank: int = 0, stream: int | None = None) -> list[tuple[float, float]]:
    """``(start, end)`` of what ran on a GPU, in order of start."""
    rows = run.records[(run.records["on_gpu"] == 1) & (run.records["rank"] == rank)]
    if stream is not None:
        rows = rows[rows["lane"] == stream]
    return sorted(zip((rows["start_ns"] / US).tolist(), (rows["end_ns"] / US).tolist(), strict=True))


def calls(run: Run, thread: int = 0) -> list[tuple[float, float]]:
    """``(start, end)`` of the operations of a CPU thread."""
    rows = run.records[(run.records["on_gpu"] == 0) & (run.records["lane"] == thread)]
    return sorted(zip((rows["start_ns"] / US).tolist(), (rows["end_ns"] / US).tolist(), strict=True))
