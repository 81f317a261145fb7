"""Step time: how long one iteration takes in the steady state, recorded or replayed.

The recorded step time is what a stopwatch on the training loop shows: (end of iteration n -
end of iteration 1) / (n - 1), from the marks on the CPU. Under what-if the marks alone would
lie: a CPU that runs ahead of its GPU passes its marks no later when the GPU is slowed, until
the launch queue is full. So a replay also looks at when the work launched in each iteration
was done on every GPU, and the step time stretches by whichever of these grew most.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from emo.graph.model import F64, Graph
from emo.trace.columns import distinct
from emo.trace.model import I64

MIN_ITERATIONS = 3


@dataclass(frozen=True, slots=True)
class StepTime:
    """``recorded_ns`` is None when there are fewer than three iterations: then the window is the step."""

    recorded_ns: float | None
    basis: str  # "iterations" | "window"
    iterations: int


def recorded_step_time(graph: Graph) -> StepTime:
    """Step time of the recorded run."""
    count = len(graph.iterations)
    if count < MIN_ITERATIONS:
        return StepTime(None, "window", count)
    end = graph.iterations.end_ns
    return StepTime(float(end[-1] - end[0]) / (count - 1), "iterations", count)


def step_ratio(graph: Graph, time_ns: I64) -> float:
    """Step time of a replay / recorded step time (makespans where there are too few iterations)."""
    if len(graph.iterations) < MIN_ITERATIONS:
        return float(time_ns.max(initial=0)) / max(graph.makespan_ns, 1)
    recorded, replayed = _paces(graph, graph.time_ns), _paces(graph, time_ns)
    usable = recorded > 0
    return float((replayed[usable] / recorded[usable]).max()) if usable.any() else 1.0


def _paces(graph: Graph, time_ns: I64) -> F64:
    """Nanoseconds per iteration by every clock there is: marks of each rank, completions on each GPU."""
    iterations = graph.iterations
    count = len(iterations)
    paces: list[float] = []
    for points in iterations.end_points:
        if (points >= 0).all():
            paces.append(float(time_ns[points[-1]] - time_ns[points[0]]) / (count - 1))
    for done in completion_times(graph, time_ns):
        paces.append(float(done[-1] - done[0]) / (count - 1))
    return np.array(paces)


def completion_times(graph: Graph, time_ns: I64) -> I64:
    """(GPUs with work in every iteration, iterations): when all work launched so far was done."""
    nodes, iteration = graph.nodes, graph.iterations.node_iteration
    count = len(graph.iterations)
    rows = []
    for gpu in range(len(graph.gpus)):
        ops = np.flatnonzero((nodes.gpu == gpu) & (iteration >= 0) & (iteration < count))
        if len(ops) == 0 or len(distinct(iteration[ops])) < count:
            continue
        done = np.full(count, np.iinfo(np.int64).min)
        np.maximum.at(done, iteration[ops], time_ns[graph.end_point[ops]])
        rows.append(np.maximum.accumulate(done))
    return np.array(rows, np.int64).reshape(len(rows), count)
