"""Numbers and names as a person reads them. Everything returned by ``escape`` and ``name`` is HTML."""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath

from emo.graph.model import Graph

# Between a number and its unit, so that no line breaks there.
THIN = "\u202f"

_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
_LONGEST_NAME = 110


def escape(text: object) -> str:
    """Text for HTML content and attributes. Control characters become visible."""
    clean = "".join(c if c.isprintable() or c == THIN else "\ufffd" for c in str(text))
    return html.escape(clean, quote=True)


def name(text: str) -> str:
    """A kernel or call name as HTML: shortened in the middle, complete in the tooltip."""
    if len(text) <= _LONGEST_NAME:
        return f'<span class="name">{escape(text)}</span>'
    head = _LONGEST_NAME * 2 // 3
    short = f"{text[:head]} … {text[head - _LONGEST_NAME :]}"
    return f'<span class="name" title="{escape(text)}">{escape(short)}</span>'


def digits(value: float, significant: int = 3) -> str:
    """A number with about three significant digits and no exponent, e.g. 1740, 12.3, 0.046."""
    if value == 0:
        return "0"
    size = abs(value)
    places = 0
    if value == round(value):
        return f"{value:,.0f}".replace(",", THIN).replace("-", "\u2212")
    while places < 6 and size * 10.0**places < 10 ** (significant - 1) - 0.5:
        places += 1
    text = f"{value:,.{places}f}".replace(",", THIN)
    return text.replace("-", "\u2212")


def duration(nanoseconds: float) -> str:
    """A duration with its unit, e.g. ``348 ms``."""
    for factor, unit in _UNITS:
        # Keep milliseconds up to 10 s: step times are compared in them.
        if abs(nanoseconds) >= factor * (10 if unit == "s" else 1) or unit == "ns":
            return f"{digits(nanoseconds / factor)}{THIN}{unit}"
    raise AssertionError("the last unit always fits")


def percent(ratio: float) -> str:
    """A ratio as per cent, e.g. ``37 %``, ``0.04 %``, ``< 0.01 %``."""
    value = 100.0 * ratio
    if value != 0 and abs(value) < 0.01:
        return f"< 0.01{THIN}%"
    places = 0 if abs(value) >= 9.95 else 1 if abs(value) >= 0.95 else 2
    if abs(value - round(value)) < 1e-9:
        places = 0
    text = f"{value:.{places}f}".replace("-", "\u2212")
    if abs(value) < 100 and float(f"{abs(value):.{places}f}") == 100.0:
        text = "> 99.5"
    return f"{text}{THIN}%"


def increase(ratio: float) -> str:
    """By how much something grew, e.g. ``+4.3 %`` or ``none``."""
    if ratio < 1e-4:
        return "none" if ratio < 1e-6 else percent(ratio)
    return f"+{percent(ratio)}"


def count(number: int) -> str:
    """A whole number with thin spaces between thousands."""
    return f"{number:,}".replace(",", THIN)


def plural(number: int, singular: str, more: str | None = None) -> str:
    """``1 iteration``, ``3 iterations``."""
    return f"{count(number)} {singular if number == 1 else (more or singular + 's')}"


def upper(text: str) -> str:
    """The text with a capital first letter, the rest as it is."""
    return text[:1].upper() + text[1:]


def listing(items: Iterable[str]) -> str:
    """``a, b and c``."""
    items = list(items)
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}" if items else ""


@dataclass(frozen=True, slots=True)
class Scale:
    """One unit and one number of decimals for a whole column, so that its numbers compare."""

    factor: float
    unit: str
    places: int

    @classmethod
    def fitting(cls, durations_ns: Iterable[float]) -> Scale:
        """The scale in which the largest of the durations reads well."""
        largest = max((abs(d) for d in durations_ns), default=0.0)
        factor, unit = next(
            ((f, u) for f, u in _UNITS if largest >= f * (100 if u == "s" else 1)), (1.0, "ns")
        )
        size = largest / factor
        return cls(factor, unit, 0 if unit == "ns" else 1 if size >= 100 else 2)

    def number(self, nanoseconds: float) -> str:
        """The number alone; the unit stands in the column's head."""
        return f"{nanoseconds / self.factor:,.{self.places}f}".replace(",", THIN)


def ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers inside [low, high], at most ``most`` of them (at least 2)."""
    span = high - low
    if span <= 0:
        return [low]
    for exponent in range(-12, 16):
        for multiple in (1.0, 2.0, 5.0):
            step = multiple * 10.0**exponent
            if span / step <= most - 1:
                first = -(-low // step)
                return [(first + i) * step for i in range(int((high - first * step) / step + 1e-9) + 1)]
    return [low, high]


def file_label(graph: Graph, trace: int) -> str:
    """``rank 3`` where several files are given, else the file's name."""
    if len(graph.traces) > 1:
        return f"rank {graph.rank_of(trace)}"
    return PurePath(graph.traces[trace].path).name


def gpu_label(graph: Graph, gpu: int) -> str:
    """How a GPU is called: by its device number, and by its rank where there are several."""
    trace, device = graph.gpus[gpu]
    if len(graph.traces) > 1 or graph.traces[trace].world_size > 1:
        return f"rank {graph.rank_of(trace)}, GPU {device}"
    return f"GPU {device}"
