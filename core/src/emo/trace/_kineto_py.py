"""The readable twin of the native Kineto scanner: slow, holds the whole file, decodes with ``json``.

Tests hold the two equal, field by field. Nothing else uses this module.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Context, Decimal, DecimalException
from os import PathLike
from typing import Any

import numpy as np

from emo.trace.kineto import (
    BEGIN_END_EVENT,
    CATEGORIES,
    COLUMN_DTYPES,
    DTYPE_BYTES,
    MALFORMED_RECORD,
    MAX_METADATA_BYTES,
    MAX_RECORD_BYTES,
    MAX_TIME_NS,
    NO_TIME,
    NOT_AN_OBJECT,
    THREAD_ONLY,
    TIME_NOT_A_NUMBER,
    TIME_OUT_OF_RANGE,
    TOO_LARGE,
    Scan,
    assemble,
    check_is_json,
    without_surrogates,
)
from emo.trace.model import RawCategory, RawTrace
from emo.trace.source import Source

_CPU = (RawCategory.LABEL, RawCategory.API, RawCategory.ANNOTATION, THREAD_ONLY)
_WITHOUT_ARGS = (RawCategory.LABEL, THREAD_ONLY)

_INT64 = range(-(1 << 63), 1 << 63)
_INT64_DIGITS = 19


class _Number(str):
    """A JSON number, as it is written."""


_MALFORMED = object()
_STRUCTURE = re.compile(r'"(?:[^"\\]|\\.)*+"|"|[][{}]', re.DOTALL)
"""A string, a quote that opens one without an end, or a bracket."""


class _Constant(str):
    """NaN or an infinity, which JSON does not have but some writers produce."""


_DECODER = json.JSONDecoder(strict=False, parse_int=_Number, parse_float=_Number, parse_constant=_Constant)


def read(path: str | PathLike[str]) -> RawTrace:
    """What :func:`emo.trace.kineto.read_kineto` returns, by the slow way."""
    with Source(path) as source:
        check_is_json(source)
        content = b"".join(source.chunks())
    return assemble(path, scan_text(content))


def scan_text(content: bytes) -> Scan:
    """Walk a whole JSON document."""
    document = _Document(content.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace"))
    try:
        document.walk()
    except (ValueError, RecursionError):
        document.truncated = True
    return document.scan()


# --------------------------------------------------------------------------- the document


@dataclass(slots=True)
class _Document:
    """A cursor over the text, and what was found up to it."""

    text: str
    at: int = 0
    rows: list[tuple[int, ...]] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)
    threads: dict[tuple[int, int], list[int]] = field(default_factory=dict)  # index, first_ns, last_ns
    groups: dict[tuple[str, str, int], int] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    truncated: bool = False
    has_events: bool = False

    def scan(self) -> Scan:
        columns = zip(*self.rows, strict=True) if self.rows else ([] for _ in COLUMN_DTYPES)
        return Scan(
            columns={
                name: np.array(values, dtype=dtype)
                for (name, dtype), values in zip(COLUMN_DTYPES.items(), columns, strict=True)
            },
            names=list(self.names),
            threads=[(pid, tid, first, last) for (pid, tid), (_, first, last) in self.threads.items()],
            groups=list(self.groups),
            metadata=self.metadata,
            dropped=self.dropped,
            truncated=self.truncated,
            has_events=self.has_events,
        )

    def walk(self) -> None:
        """Raises ``ValueError`` where the text ends early or breaks."""
        if self._peek() == "[":
            self._walk_events(in_object=False)
            return
        for _ in self._elements("}"):
            key, _ = self._value()
            self._expect(":")
            if key == "traceEvents" and self._peek() == "[":
                self.has_events = True
                self._walk_events(in_object=True)
                continue
            value, length = self._value()
            if length <= MAX_METADATA_BYTES:
                self.metadata[key] = value

    def _walk_events(self, *, in_object: bool) -> None:
        for _ in self._elements("]"):
            event, length = self._record()
            if length > MAX_RECORD_BYTES:
                self._drop(TOO_LARGE)
            elif event is _MALFORMED:
                self._drop(MALFORMED_RECORD)
            elif isinstance(event, dict):
                self.has_events = self.has_events or (not in_object and isinstance(event.get("ph"), str))
                self._event(event)
            else:
                self._drop(NOT_AN_OBJECT)

    def _elements(self, closing: str) -> Iterable[None]:
        """Stand before each element of the container that begins here."""
        self.at += 1
        while self._peek() != closing:
            yield
            if self._peek() == ",":
                self.at += 1
            elif self._peek() != closing:
                raise ValueError("neither a comma nor the end of the container")
        self.at += 1

    def _peek(self) -> str:
        """The next character that is not white space."""
        while self.text[self.at : self.at + 1] in (" ", "\t", "\n", "\r"):
            self.at += 1
        if self.at >= len(self.text):
            raise ValueError("the text ends early")
        return self.text[self.at]

    def _expect(self, wanted: str) -> None:
        if self._peek() != wanted:
            raise ValueError(f"{wanted!r} is missing")
        self.at += 1

    def _value(self) -> tuple[Any, int]:
        """The value that begins here, and its length."""
        self._peek()
        value, end = _DECODER.raw_decode(self.text, self.at)
        if end == len(self.text) and self.text[end - 1] not in '"}]':
            raise ValueError("a number that ends with the text may go on")
        start, self.at = self.at, end
        return without_surrogates(value), end - start

    def _record(self) -> tuple[Any, int]:
        """The same for an event: the brackets of a malformed one may still tell where it ends."""
        begins, start = self._peek(), self.at
        try:
            return self._value()
        except ValueError:
            end = self._closing_bracket() if begins == "{" else None
            if end is None:
                raise
            self.at = end
            return _MALFORMED, end - start

    def _closing_bracket(self) -> int | None:
        """Behind the bracket that closes the one that is next; None if there is none."""
        depth = 0
        for token in _STRUCTURE.finditer(self.text, self.at):
            depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(token[0], 0)
            if depth == 0:
                return token.end()
        return None

    def _drop(self, reason: str) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + 1

    # ----------------------------------------------------------------------- one event

    def _event(self, event: dict[str, Any]) -> None:
        category = CATEGORIES.get(_text(event.get("cat")))
        if category is None or event.get("ph") not in ("X", "B"):
            return
        if event["ph"] == "B":
            self._drop(BEGIN_END_EVENT)
            return
        start_ns, dur_ns = _time_ns(event.get("ts")), _time_ns(event.get("dur"))
        if isinstance(start_ns, str) or isinstance(dur_ns, str):
            self._drop(start_ns if isinstance(start_ns, str) else str(dur_ns))
            return
        thread = -1
        if category in _CPU:
            thread = self._thread(event, start_ns, start_ns + max(dur_ns, 0))
            if category == THREAD_ONLY:
                return
        args = event.get("args")
        if not isinstance(args, dict) or category in _WITHOUT_ARGS:
            args = {}
        on_gpu = category not in _CPU
        self.rows.append(
            (
                category,
                start_ns,
                dur_ns,
                _device(args, event) if on_gpu else -1,
                _stream(args, event) if on_gpu else _small(_integer(args.get("stream"))),
                thread,
                _at_least(1, _integer(args.get("correlation"))),
                self.names.setdefault(_text(event.get("name")), len(self.names)),
                _bytes(args),
                self._group(args),
                _at_least(0, _first_integer(args, "Seq", "Seq num", "Seq Num")),
                _at_least(1, _integer(args.get("graph node id"))),
                _shape_hash(args),
                _sync_correlation(args) if category == RawCategory.SYNC else -1,
                _small(_integer(args.get("wait_on_stream"))),
            )
        )

    def _thread(self, event: dict[str, Any], first_ns: int, last_ns: int) -> int:
        """Index of the event's thread, whose span is widened to include it."""
        key = (_identity(event.get("pid")), _identity(event.get("tid")))
        span = self.threads.setdefault(key, [len(self.threads), first_ns, last_ns])
        span[1:] = min(span[1], first_ns), max(span[2], last_ns)
        return span[0]

    def _group(self, args: dict[str, Any]) -> int:
        name = _text(args.get("Process Group Name"), numbers=True)
        ranks = _text(args.get("Process Group Ranks"))
        size = _small(_integer(args.get("Group size")))
        if not name and not ranks and size < 0:
            return -1
        return self.groups.setdefault((name, ranks, size), len(self.groups))


# --------------------------------------------------------------------------- fields


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and not isinstance(value, _Number | _Constant)


def _text(value: Any, *, numbers: bool = False) -> str:
    """A string; empty for anything else."""
    return str(value) if _is_text(value) or (numbers and isinstance(value, _Number)) else ""


def _time_ns(value: Any) -> int | str:
    """Microseconds in decimal to nanoseconds, or the reason why there are none."""
    if value is None:
        return NO_TIME
    if not isinstance(value, str) or not re.fullmatch(r"-?\d+(\.\d+)?([eE][+-]?\d+)?", value, re.ASCII):
        return TIME_NOT_A_NUMBER
    mantissa, _, exponent = value.lower().partition("e")
    if not mantissa.strip("-0."):
        return 0
    # Far beyond any length of the mantissa that MAX_RECORD_BYTES lets through.
    shift = max(-(10**9), min(10**9, int(Decimal(exponent or "0"))))
    try:
        exact = Decimal(mantissa).scaleb(shift + 3, _WIDE)
        in_range = exact.adjusted() < _INT64_DIGITS
        time_ns = int(exact.quantize(Decimal(1), ROUND_HALF_UP, _WIDE)) if in_range else None
    except DecimalException:
        time_ns = None
    if time_ns is None or abs(time_ns) > MAX_TIME_NS:
        return TIME_OUT_OF_RANGE
    return time_ns


_WIDE = Context(prec=100_000, Emax=2 * 10**9, Emin=-2 * 10**9)


def _integer(value: Any) -> int | None:
    """An int64 that is written as an integer, as a number or in a string."""
    if not isinstance(value, str) or not re.fullmatch(r"-?\d+", value, re.ASCII):
        return None
    digits = value.lstrip("-").lstrip("0") or "0"
    if len(digits) > _INT64_DIGITS:
        return None
    number = int(digits) * (-1 if value.startswith("-") else 1)
    return number if number in _INT64 else None


def _first_integer(args: dict[str, Any], *keys: str) -> int | None:
    """The integer under whichever of ``keys`` the record has."""
    for key, value in args.items():
        if key in keys and (number := _integer(value)) is not None:
            return number
    return None


def _at_least(least: int, number: int | None) -> int:
    """``number``, or -1: ids below ``least`` stand for "unknown" (CUPTI's correlation 0 does)."""
    return number if number is not None and number >= least else -1


def _small(number: int | None) -> int:
    """An ordinal that fits int32; -1 for none."""
    return number if number is not None and 0 <= number < 1 << 31 else -1


def _identity(value: Any) -> int:
    """A process or thread as a number: what is not one is hashed, to a negative number below -1."""
    if not isinstance(value, str) or isinstance(value, _Constant):
        return -1
    number = _integer(value)
    return number if number is not None else -2 - (_fnv1a(value) >> 2)


def _device(args: dict[str, Any], event: dict[str, Any]) -> int:
    if (number := _integer(args.get("device"))) is not None:
        return _small(number)
    return _small(_integer(event.get("pid")))


def _stream(args: dict[str, Any], event: dict[str, Any]) -> int:
    if (number := _integer(args.get("stream"))) is not None:
        return _small(number)
    tid = event.get("tid")
    return _small(_integer(tid.removeprefix("stream ") if isinstance(tid, str) else tid))


def _bytes(args: dict[str, Any]) -> int:
    """Size of a copy or set; of a collective, what this rank puts in."""
    number = _first_integer(args, "bytes", "Bytes", "size")
    if number is not None and number >= 0:
        return number
    elements = _integer(args.get("In msg nelems"))
    size = DTYPE_BYTES.get(_text(args.get("dtype")))
    if elements is None or size is None or not 0 <= elements < 1 << 58:
        return -1
    return elements * size


def _shape_hash(args: dict[str, Any]) -> int:
    """Hash of the digits of grid and block; 0 if there are none. Does not depend on their order."""
    grid, block = _flat_numbers(args.get("grid")), _flat_numbers(args.get("block"))
    if grid is None and block is None:
        return 0
    mixed = (_fnv1a(grid or "") * 31 + _fnv1a(block or "")) & (1 << 63) - 1
    return mixed or 1


def _flat_numbers(value: Any) -> str | None:
    if not isinstance(value, list) or not all(isinstance(item, _Number) for item in value):
        return None
    return ",".join(value)


def _sync_correlation(args: dict[str, Any]) -> int:
    """The record that is waited for; -2 if the field says that there is none, -1 without the field."""
    if "wait_on_cuda_event_record_corr_id" not in args:
        return -1
    number = _integer(args["wait_on_cuda_event_record_corr_id"])
    return number if number is not None and number >= 1 else -2


def _fnv1a(text: str) -> int:
    """64-bit FNV-1a (http://www.isthe.com/chongo/tech/comp/fnv/): short, and the same everywhere."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 & (1 << 64) - 1
    return value
