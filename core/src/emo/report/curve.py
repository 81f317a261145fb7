"""What if the GPUs ran slower? Step time against how much longer all GPU work takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from emo.analysis import Analysis
from emo.graph.model import F64
from emo.graph.replay import replay
from emo.graph.steps import step_ratio
from emo.graph.whatif import Scaling, scale_vector

# Durations up to twice as long: half of the clock is about the lowest that a GPU is locked to.
_FACTORS = np.round(np.linspace(1.0, 2.0, 21), 2)


@dataclass(frozen=True, slots=True)
class WhatIfCurve:
    """``factor`` and ``step_ns`` (n): every GPU op takes factor times its recorded time."""

    factor: F64
    step_ns: F64
    base_ns: float

    def factor_for(self, slowdown: float) -> float | None:
        """The factor at which the step is ``slowdown`` (0.01 = 1 %) longer; None beyond the curve."""
        limit = self.base_ns * (1.0 + slowdown)
        beyond = np.flatnonzero(self.step_ns > limit)
        if len(beyond) == 0:
            return None
        after = int(beyond[0])
        if after == 0:
            return 1.0
        low, high = self.step_ns[after - 1], self.step_ns[after]
        share = float((limit - low) / (high - low))
        return float(self.factor[after - 1] + share * (self.factor[after] - self.factor[after - 1]))

    def step_at(self, factor: float) -> float:
        """Step time (ns) at a factor, between the replayed ones linearly."""
        return float(np.interp(factor, self.factor, self.step_ns))


def what_if_curve(analysis: Analysis) -> WhatIfCurve | None:
    """Replay the job with longer GPU work; None where no GPU op was recorded."""
    graph = analysis.graph
    if len(graph.gpus) == 0:
        return None
    base = analysis.step.recorded_ns or float(max(graph.makespan_ns, 1))
    steps = [base]
    for factor in _FACTORS[1:].tolist():
        timeline = replay(graph, scale_vector(graph, [Scaling("gpu", factor)]))
        steps.append(base * step_ratio(graph, timeline.time_ns))
    return WhatIfCurve(_FACTORS, np.array(steps), base)
