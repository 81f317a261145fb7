"""The section with the what-if curve."""

from __future__ import annotations

import numpy as np

from emo.analysis import Analysis
from emo.report.charts import Line, line_chart, table
from emo.report.curve import WhatIfCurve
from emo.report.text import THIN, duration, increase, percent

_TABLE_FACTORS = (1.0, 1.05, 1.1, 1.2, 1.3, 1.5, 1.75, 2.0)
_TARGET = 0.05
_NEAR = 1.2


def curve_section(analysis: Analysis, curve: WhatIfCurve) -> str:
    """The body of the section, as HTML."""
    what = "Step time" if analysis.step.recorded_ns is not None else "Length of the window"
    end = increase(float(curve.step_ns[-1]) / curve.base_ns - 1.0)
    chart = line_chart(
        curve.factor,
        [
            Line("ideal", "if everything took longer", curve.base_ns * curve.factor),
            Line(
                "target",
                f"limit of {increase(_TARGET)}",
                np.full(len(curve.factor), curve.base_ns * (1 + _TARGET)),
            ),
            Line("replayed", f"this job: {'no change' if end == 'none' else end}", curve.step_ns),
        ],
        f"{what} against the duration of GPU work; twice the GPU time changes it by: {end}",
        "How much longer all GPU work takes; below, the clock at which it would if time went as 1 / clock",
        what,
    )
    rows = [
        [
            f"×{factor:.2f}",
            percent(1 / factor),
            duration(curve.step_at(factor)),
            increase(curve.step_at(factor) / curve.base_ns - 1.0),
        ]
        for factor in _TABLE_FACTORS
    ]
    return (
        f"<p>{_reading(curve)} Every point is a replay of the whole dependency graph in which all GPU work, "
        "communication included, takes that much longer and the CPU work stays as recorded. Memory-bound "
        "kernels stretch less than the clock falls, so a real GPU does no worse than the curve at the same "
        f'clock. <code>emo whatif --scale gpu=1.2</code> replays a single point.</p><div class="side">{chart}'
        + table(["GPU work", "Clock, if time<br>goes as 1 / clock", what, "Longer by"], rows, "numbers")
        + "</div>"
    )


def _reading(curve: WhatIfCurve) -> str:
    one, five = curve.factor_for(0.01), curve.factor_for(_TARGET)
    most = f"×{float(curve.factor[-1]):.1f}"
    if one is None:
        return (
            f"The curve is flat: GPU work may take {most} as long, and the step is less than 1{THIN}% longer."
        )
    beyond = f"until ×{five:.2f}" if five is not None else f"even at {most}"
    absorbed = 1.0 - (curve.step_at(_NEAR) / curve.base_ns - 1.0) / (_NEAR - 1.0)
    return (
        f"Where the curve is flat, slack takes up the longer GPU work: at ×{_NEAR:.1f} it takes up "
        f"{percent(min(max(absorbed, 0.0), 1.0))} of the growth. GPU work may take ×{one:.2f} as long before "
        f"the step is 1{THIN}% longer, and the step stays within 5{THIN}% {beyond}."
    )
