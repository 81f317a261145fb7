"""Plain text for terminals and pipes: wrapped paragraphs, lists and tables of at most 100 columns."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence

from emo.terminal import printable

MAX_COLUMNS = 100
_GAP = "  "


def columns() -> int:
    """Width to write for: the terminal's or ``COLUMNS``, 80 in a pipe."""
    return max(40, min(shutil.get_terminal_size((80, 24)).columns, MAX_COLUMNS))


def paragraph(text: str, lead: str = "") -> str:
    """Text after ``lead``, continued under its own beginning."""
    return textwrap.fill(
        printable(text),
        columns(),
        initial_indent=lead,
        subsequent_indent=" " * len(lead),
        break_long_words=False,
        break_on_hyphens=False,
    )


def bullets(title: str, lines: Iterable[str]) -> str:
    """A heading and a list under it; nothing at all for an empty list."""
    items = [paragraph(line, "  - ") for line in lines]
    return "\n".join([heading(title), *items]) if items else ""


def sections(*parts: str) -> str:
    """Parts with a blank line between them; empty ones leave nothing."""
    return "\n\n".join(part for part in parts if part)


def heading(text: str) -> str:
    """A line that stands out on a terminal and is plain everywhere else."""
    text = printable(text)
    plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    on_terminal = sys.stdout is not None and sys.stdout.isatty()  # None: started with a closed stdout
    return f"\033[1m{text}\033[0m" if on_terminal and not plain else text


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: frozenset[int]) -> str:
    """Columns as wide as they need to be, numbers to the right, those numbered in ``left`` to the left."""
    cells = [[printable(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = []
    for row in cells:
        padded = [
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(_GAP.join(padded).rstrip())
    return "\n".join(lines)


def duration(ns: float) -> str:
    """A duration with four digits: ``12.34 us``, ``348.0 ms``, ``1.738 s``; whole nanoseconds below 1 us."""
    if abs(ns) < 999.5:
        return f"{ns:.0f} ns"
    value, unit = next(
        (ns / size, unit)
        for size, unit in ((1e3, "us"), (1e6, "ms"), (1e9, "s"))
        if abs(ns) < 999.95 * size or unit == "s"
    )
    return f"{value:.{_decimals(abs(value))}f} {unit}"


def _decimals(value: float) -> int:
    """So many that four digits are shown."""
    return 3 if value < 9.9995 else 2 if value < 99.995 else 1


def percent(part: float, whole: float = 1.0) -> str:
    """A share in per cent, with a decimal where it is small."""
    share = 100 * part / whole if whole else 0.0
    if share == 0 or share >= 9.95:
        return f"{share:.0f} %"
    return f"{share:.1f} %" if share >= 0.05 else "< 0.1 %"


def short_name(name: str, limit: int = 48) -> str:
    """A kernel's name; a long one without arguments and return type, then without namespaces."""
    if len(name) <= limit:
        return name
    bare = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    bare = bare.split("<", 1)[0].split("(", 1)[0] or bare
    bare = bare.rsplit("::", 1)[-1] if len(bare) > limit else bare
    return bare if len(bare) <= limit else bare[: limit - 3] + "..."


def plural(count: int, thing: str) -> str:
    """``1 GPU``, ``2 GPUs``."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"
