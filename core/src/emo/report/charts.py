"""Charts as HTML and inline SVG.

Only shapes are SVG, stretched to the width that there is; all text is HTML placed beside or over
them, so that it stays readable on a narrow screen and on paper.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from emo.graph.model import F64
from emo.report.states import Segments, State
from emo.report.text import THIN, Scale, digits, duration, escape, percent, ticks

# Heights inside a lane's viewBox; shares are rounded to this grain.
_FULL = 100


@dataclass(frozen=True, slots=True)
class Window:
    """The stretch of time that a chart shows, and into how many bins it is divided."""

    low_ns: float
    high_ns: float
    bins: int

    @property
    def edges_ns(self) -> F64:
        """Bin edges (bins + 1)."""
        return np.linspace(self.low_ns, self.high_ns, self.bins + 1)

    def position(self, time_ns: float) -> float:
        """Where an instant lies, 0..1."""
        return (time_ns - self.low_ns) / (self.high_ns - self.low_ns)


@dataclass(frozen=True, slots=True)
class Lane:
    """One row of a time chart: a label, a note under it, and what is drawn."""

    label: str
    note: str
    segments: Segments
    states: Sequence[State]
    critical: Segments | None = None  # drawn as a line below the lane
    thin: bool = False


def lanes(
    rows: Sequence[Lane],
    window: Window,
    marks_ns: Sequence[float],
    caption: str,
    element_id: str,
    part: tuple[float, float] = (0.0, 0.0),
) -> str:
    """A time chart: one lane per row over a common axis.

    ``marks_ns`` are drawn as upright lines; ``part`` is a time range marked on the axis.
    """
    body = "".join(_lane(row, window, marks_ns) for row in rows)
    return (
        f'<figure class="lanes" id="{element_id}"><div class="rows">{body}'
        f'<div class="lane axis-row"><div class="label"></div>{time_axis(window, part)}</div></div>'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _lane(row: Lane, window: Window, marks_ns: Sequence[float]) -> str:
    paths = stacked_paths(row.segments, row.states, window)
    marks = "".join(
        f"M{_short(window.position(mark) * window.bins)},0V{_FULL}"
        for mark in marks_ns
        if window.low_ns < mark < window.high_ns
    )
    lines = f'<path class="mark" d="{marks}"/>' if marks else ""
    critical = ""
    if row.critical is not None:
        shapes = step_area(row.critical.shares(State(0), window.edges_ns))
        critical = (
            f'<svg class="critical" viewBox="0 0 {window.bins} {_FULL}" preserveAspectRatio="none" '
            f'aria-hidden="true"><path d="{shapes}"/></svg>'
        )
    aria = escape(f"{row.label}: {row.note}")
    return (
        f'<div class="lane{" thin" if row.thin else ""}"><div class="label"><b>{escape(row.label)}</b>'
        f'<small>{escape(row.note)}</small></div><div class="plot"><svg class="states" role="img" '
        f'aria-label="{aria}" viewBox="0 0 {window.bins} {_FULL}" preserveAspectRatio="none">'
        f"{paths}{lines}</svg>{critical}</div></div>"
    )


def stacked_paths(segments: Segments, states: Sequence[State], window: Window) -> str:
    """Shares of the states in each bin, stacked from the bottom up.

    Each state is painted from the bottom to its upper limit, the last state first, so that no
    seam shows between two of them.
    """
    edges = window.edges_ns
    level = np.zeros(window.bins)
    painted: list[str] = []
    for state in states:
        share = segments.shares(state, edges)
        level = level + share
        if share.any():
            painted.append(f'<path class="s{int(state)}" d="{step_area(np.where(share > 0, level, 0.0))}"/>')
    return "".join(reversed(painted))


def step_area(share: F64) -> str:
    """SVG path of a step function: one step per bin, 0..1 to the lane's height, 0 at its bottom."""
    height = np.rint(_FULL * (1.0 - np.clip(share, 0.0, 1.0))).astype(np.int64)
    at = np.flatnonzero(np.r_[True, height[1:] != height[:-1]])
    until = np.r_[at[1:], len(height)]
    steps = [f"V{y}H{x}" for y, x in zip(height[at].tolist(), until.tolist(), strict=True)]
    return f"M0,{_FULL}{''.join(steps)}V{_FULL}Z"


def time_axis(window: Window, part: tuple[float, float]) -> str:
    """Ticks at round times, relative to the window's opening, and a bar over a ``part`` of it."""
    marks = ticks(window.low_ns, window.high_ns, 7)
    scale = Scale.fitting([window.high_ns])
    factor, unit = scale.factor, scale.unit
    step = marks[1] - marks[0] if len(marks) > 1 else window.high_ns
    places = max(0, math.ceil(-math.log10(step / factor) - 1e-9))
    spans = "".join(
        f'<span style="left:{_short(100 * window.position(mark))}%">'
        f"{f'{mark / factor:,.{places}f}'.replace(',', THIN)}{THIN}{unit}</span>"
        for mark in marks
        if window.position(mark) <= 0.93
    )
    left, right = 100 * window.position(part[0]), 100 * window.position(part[1])
    bar = (
        f'<i class="view" style="left:{_short(left)}%;width:{_short(right - left)}%"></i>' if part[1] else ""
    )
    return f'<div class="axis">{spans}{bar}</div>'


def bar(parts: Sequence[tuple[State, float]], label: str, css: str = "bar") -> str:
    """One horizontal bar of parts that add up to 1; parts of 6 % and more carry their share."""
    cells = "".join(
        f'<i class="s{int(state)}" style="width:{_short(100 * share, 3)}%" title="{escape(percent(share))}">'
        f"{f'<b>{percent(share)}</b>' if share >= 0.06 else ''}</i>"
        for state, share in parts
        if share > 0
    )
    return f'<div class="{css}" role="img" aria-label="{escape(label)}">{cells}</div>'


def legend(title: str, entries: Sequence[tuple[State, str]], critical: bool = False) -> str:
    """What the colours mean."""
    items = [f'<li><i class="key s{int(state)}"></i>{escape(text)}</li>' for state, text in entries]
    if critical:
        items.append('<li><i class="key line"></i>line under a lane: the critical path runs here</li>')
    head = f'<li class="head">{escape(title)}:</li>' if title else ""
    return f'<ul class="legend">{head}{"".join(items)}</ul>'


@dataclass(frozen=True, slots=True)
class Line:
    """A curve of a line chart with the words that stand at its right end."""

    css: str
    label: str
    y: F64


def line_chart(x: F64, lines: Sequence[Line], label: str, x_title: str, y_title: str) -> str:
    """Curves over x, with durations (ns) on the y axis. ``x`` is a factor, 1.0 = as recorded."""
    low, high = 0.0, max(float(line.y.max()) for line in lines) * 1.04
    left, right = float(x[0]), float(x[-1])

    def points(values_x: F64, values_y: F64) -> str:
        across, down = 1000 * (values_x - left) / (right - left), 1000 * (1 - (values_y - low) / (high - low))
        return " ".join(
            f"{_short(a)},{_short(b)}" for a, b in zip(across.tolist(), down.tolist(), strict=True)
        )

    y_ticks = ticks(low, high, 6)
    x_ticks = ticks(left, right, 7)
    grid = "".join(f"M0,{_short(1000 * (1 - t / high))}H1000" for t in y_ticks)
    curves = "".join(f'<polyline class="{line.css}" points="{points(x, line.y)}"/>' for line in lines)
    y_labels = "".join(
        f'<span style="bottom:{_short(100 * t / high)}%">{duration(t) if t else "0"}</span>' for t in y_ticks
    )
    x_labels = "".join(
        f'<span style="left:{_short(100 * (t - left) / (right - left))}%">×{digits(t, 2)}'
        f"<small>{percent(1 / t)}</small></span>"
        for t in x_ticks
    )
    at = spread([100 * float(line.y[-1]) / high for line in lines], 8.0)
    ends = "".join(
        f'<span class="{line.css}" style="bottom:{_short(place)}%">{escape(line.label)}</span>'
        for line, place in zip(lines, at, strict=True)
    )
    return (
        f'<figure class="curve"><div class="y-title">{escape(y_title)}</div><div class="frame">'
        f'<div class="y-axis">{y_labels}</div><svg role="img" aria-label="{escape(label)}" '
        f'viewBox="0 0 1000 1000" preserveAspectRatio="none"><path class="grid" d="{grid}"/>{curves}</svg>'
        f'<div class="ends">{ends}</div><div class="x-axis">{x_labels}</div></div>'
        f'<figcaption class="x-title">{escape(x_title)}</figcaption></figure>'
    )


def spread(places: Sequence[float], gap: float) -> list[float]:
    """The places, moved up where needed so that any two are at least ``gap`` apart."""
    result = list(places)
    last = -math.inf
    for index in sorted(range(len(result)), key=lambda i: result[i]):
        last = result[index] = max(result[index], last + gap)
    return result


def table(head: Sequence[str], rows: Sequence[Sequence[str]], css: str = "") -> str:
    """A table whose cells are HTML already. The first column is the row's head; numbers go right."""
    header = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>{"".join(f"<td>{cell}</td>" for cell in row[1:])}</tr>'
        for row in rows
    )
    return (
        f'<div class="scroll"><table class="{css}"><thead><tr>{header}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _short(value: float, places: int = 2) -> str:
    """A coordinate without trailing zeros."""
    return f"{value:.{places}f}".rstrip("0").rstrip(".") if places else f"{value:.0f}"
