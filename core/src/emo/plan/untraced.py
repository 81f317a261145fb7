"""Taking the profiler's own cost out of the CPU's time.

A profiler slows the CPU by a factor of 1.1 to 2 and the GPU hardly at all, so a traced run has slack
on the GPU that the real one lacks. All CPU work is scaled by one factor until the replay takes the
step time that was measured without the profiler.
"""

from __future__ import annotations

import math

import numpy as np

from emo.errors import InputError
from emo.graph.model import Graph
from emo.graph.steps import MIN_ITERATIONS, recorded_step_time
from emo.graph.tracing import ASSUMED_TRACING_FACTOR
from emo.models.priors import CLASSES
from emo.plan.evaluate import PaceMeter, ScaledGraph

# An untraced step this much longer than the traced one is noise between two runs, not a mistake.
_NOISE = 0.01

_BISECTIONS = 30


def cpu_scale(job: ScaledGraph, untraced_step_ms: float | None) -> float:
    """CPU work without the profiler / with it, in (0, 1].

    Raises InputError for a step time that no scale of the CPU's work gives.
    """
    if untraced_step_ms is None:
        return 1.0 / ASSUMED_TRACING_FACTOR
    option = f"--untraced-step-ms {untraced_step_ms:g}"
    if not (math.isfinite(untraced_step_ms) and untraced_step_ms > 0):
        raise InputError(f"{option}: expected a step time in milliseconds, above 0")
    traced_ns = recorded_step_time(job.graph).recorded_ns
    if traced_ns is None:
        raise InputError(
            f"{option}: the trace has no step time to compare with, since it has {_iterations(job.graph)}; "
            f"expected at least {MIN_ITERATIONS}; record more steps, or leave the option out"
        )
    wanted = untraced_step_ms * 1e6 / traced_ns
    if wanted > 1.0 + _NOISE:
        raise InputError(
            f"{option}: longer than the traced step, {traced_ns / 1e6:.4g} ms; expected at most that, since "
            "a profiler does not make a step faster; measure the same workload on the same machine"
        )
    if wanted >= 1.0:
        return 1.0
    reference = job.meter.paces(job.graph.time_ns)
    unscaled = np.ones((len(job.graph.gpus), CLASSES))

    def step_ratio(scale: float) -> float:
        return PaceMeter.ratio(job.meter.paces(job.replay(unscaled, scale)), reference)

    least = step_ratio(0.0)
    if wanted < least:
        raise InputError(
            f"{option}: shorter than the trace allows; without any CPU work its GPU ops, copies and "
            f"latencies take {least * traced_ns / 1e6:.4g} ms per step; expected at least that; measure the "
            "same workload on the same machine"
        )
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if step_ratio(middle) >= wanted else (middle, high)
    return high


def _iterations(graph: Graph) -> str:
    count = len(graph.iterations)
    return "1 iteration" if count == 1 else f"{count or 'no'} iterations"
