"""Reader for Kineto traces: the JSON that ``torch.profiler`` and on-demand tracing write.

The file is walked once, as it is decompressed, and only the needed fields of each
event are decoded, straight into columns. What follows from them here:

* **Times** are decimal microseconds, as an integer, a fraction, with an exponent, or
  as a string. They are converted digit by digit to int64 nanoseconds (half of a
  nanosecond rounds away from zero), never through a float. ``baseTimeNanoseconds``
  is added, so that the ranks of one job can be compared.
* **A bad record is counted, not raised**: see ``REASONS``.
* **A file that ends early** gives all its complete events and ``truncated``.
* **Schemas** of 2021 and of today differ in the names of categories (``CATEGORIES``),
  in threads that are strings, and in metadata that may be missing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emo import _native
from emo.errors import TraceError
from emo.trace.model import CollectiveGroup, DeviceInfo, RawCategory, RawTrace, Thread
from emo.trace.source import Source, describe

THREAD_ONLY = 7
"""Category of records that only show that their thread was alive."""

CATEGORIES: dict[str, int] = {
    "cpu_op": RawCategory.LABEL,
    "Operator": RawCategory.LABEL,
    "cuda_runtime": RawCategory.API,
    "cuda_driver": RawCategory.API,
    "hip_runtime": RawCategory.API,
    "hip_driver": RawCategory.API,
    "xpu_runtime": RawCategory.API,
    "xpu_driver": RawCategory.API,
    "mtia_runtime": RawCategory.API,
    "privateuse1_runtime": RawCategory.API,
    "privateuse1_driver": RawCategory.API,
    "Runtime": RawCategory.API,
    "kernel": RawCategory.KERNEL,
    "Kernel": RawCategory.KERNEL,
    "gpu_memcpy": RawCategory.MEMCPY,
    "Memcpy": RawCategory.MEMCPY,
    "gpu_memset": RawCategory.MEMSET,
    "Memset": RawCategory.MEMSET,
    "user_annotation": RawCategory.ANNOTATION,
    "cuda_sync": RawCategory.SYNC,
    "cuda_event": RawCategory.SYNC,  # on which stream an event was recorded
    "python_function": THREAD_ONLY,
}
"""Values of ``cat`` that are read, and what their records become. All others are ignored."""

DTYPE_BYTES: dict[str, int] = {
    "Bool": 1,
    "Byte": 1,
    "Char": 1,
    "Float8_e4m3fn": 1,
    "Float8_e4m3fnuz": 1,
    "Float8_e5m2": 1,
    "Float8_e5m2fnuz": 1,
    "Short": 2,
    "UInt16": 2,
    "Half": 2,
    "BFloat16": 2,
    "Int": 4,
    "UInt32": 4,
    "Float": 4,
    "ComplexHalf": 4,
    "Long": 8,
    "UInt64": 8,
    "Double": 8,
    "ComplexFloat": 8,
    "ComplexDouble": 16,
}
"""Size of an element, by the name of its type as PyTorch writes it."""

NOT_AN_OBJECT = "not_an_object"  # an element of traceEvents that is no event
MALFORMED_RECORD = "malformed_record"  # an event that is no JSON, but whose end could be found
NO_TIME = "no_time"  # start or duration is missing
TIME_NOT_A_NUMBER = "time_not_a_number"
TIME_OUT_OF_RANGE = "time_out_of_range"  # beyond MAX_TIME_NS
BEGIN_END_EVENT = "begin_end_event"  # a pair of B and E events; Kineto writes complete ones
TOO_LARGE = "record_too_large"  # beyond MAX_RECORD_BYTES
REASONS = (
    NOT_AN_OBJECT,
    MALFORMED_RECORD,
    NO_TIME,
    TIME_NOT_A_NUMBER,
    TIME_OUT_OF_RANGE,
    BEGIN_END_EVENT,
    TOO_LARGE,
)

MAX_TIME_NS = 3 * 10**18
"""Larger times are nonsense (95 years); base, start and duration together stay within int64."""

MAX_RECORD_BYTES = 1 << 24
"""A larger event is dropped, so that a damaged file cannot fill the memory."""

MAX_METADATA_BYTES = 1 << 20
"""A larger value next to ``traceEvents`` is skipped."""

COLUMN_DTYPES: dict[str, type[np.signedinteger[Any]]] = {
    "category": np.int8,
    "start_ns": np.int64,
    "dur_ns": np.int64,
    "device": np.int32,
    "stream": np.int32,
    "thread": np.int32,
    "correlation": np.int64,
    "name_id": np.int32,
    "bytes": np.int64,
    "collective_group": np.int32,
    "collective_seq": np.int64,
    "graph_node": np.int64,
    "shape_hash": np.int64,
    "sync_correlation": np.int64,
    "sync_stream": np.int32,
}
"""Columns of :class:`RawTrace`, in the order of the native scanner."""

_EXPECTED = "expected a Kineto trace (JSON with a traceEvents array)"
_HINT = "give the .json or .json.gz file that torch.profiler or on-demand tracing wrote"


@dataclass(slots=True)
class Scan:
    """What one walk over the file gives, before anything is derived from it.

    Columns as in :class:`RawTrace`; times without ``baseTimeNanoseconds``.
    """

    columns: dict[str, NDArray[np.signedinteger[Any]]]
    names: list[str]
    threads: list[tuple[int, int, int, int]]  # pid, tid, first_ns, last_ns
    groups: list[tuple[str, str, int]]  # name, ranks as written, size
    metadata: dict[str, Any] = field(default_factory=dict)  # numbers as written (str)
    dropped: dict[str, int] = field(default_factory=dict)
    truncated: bool = False
    has_events: bool = False  # traceEvents was there, or an array of events


def read_kineto(path: str | PathLike[str]) -> RawTrace:
    """Read the trace at ``path`` (JSON, or gzip of it).

    Raises :class:`TraceError` if the file cannot be read or is no Kineto trace. A
    trace without GPU activity is not an error here.
    """
    with Source(path) as source:
        check_is_json(source)
        return assemble(path, scan_pieces(source.chunks()))


def scan_pieces(pieces: Iterable[bytes]) -> Scan:
    """Walk a document that comes in pieces, cut anywhere; stops taking them where the document ends."""
    scanner = _native.kineto_new(CATEGORIES, DTYPE_BYTES, MAX_RECORD_BYTES, MAX_METADATA_BYTES)
    for piece in pieces:
        if not _native.kineto_feed(scanner, piece):
            break
    return _finish(scanner)


def check_is_json(source: Source) -> None:
    """Raise :class:`TraceError` unless the content begins like a JSON object or array."""
    text = source.head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] in (b"{", b"["):
        return
    if source.gzip:
        what = "nothing that could be decompressed" if not source.head else describe(source.head)
        found = f"gzip-compressed file that holds {what}"
    else:
        found = describe(source.head)
    raise TraceError(source.path, f"found {found}", expected=_EXPECTED, hint=_HINT)


def assemble(path: str | PathLike[str], scan: Scan) -> RawTrace:
    """The :class:`RawTrace` of a scan. Raises :class:`TraceError` if there were no events to scan."""
    if not scan.has_events:
        raise _no_events(path, scan)
    metadata = scan.metadata
    base_ns = _integer(metadata.get("baseTimeNanoseconds"))
    if base_ns is None or abs(base_ns) > MAX_TIME_NS:
        base_ns = 0
    if base_ns:
        scan.columns["start_ns"] = scan.columns["start_ns"] + np.int64(base_ns)
    threads = [Thread(pid, tid, first + base_ns, last + base_ns) for pid, tid, first, last in scan.threads]
    distributed = metadata.get("distributedInfo")
    if not isinstance(distributed, dict):
        distributed = {}
    columns: dict[str, Any] = scan.columns  # Any: the fields' types differ in width
    return RawTrace(
        path=fspath(path),
        format="kineto",
        **columns,
        names=scan.names,
        threads=threads,
        groups=_groups(scan.groups, distributed),
        devices=_devices(metadata.get("deviceProperties")),
        rank=_natural(distributed.get("rank")),
        world_size=_natural(distributed.get("world_size")),
        dropped=scan.dropped,
        truncated=scan.truncated,
        metadata={key: text for key, value in metadata.items() if (text := _scalar_text(value)) is not None},
    )


def without_surrogates(value: Any) -> Any:
    """Half a surrogate pair is no character: it becomes U+FFFD, as invalid UTF-8 does."""
    if isinstance(value, str):
        fixed = re.sub("[\ud800-\udfff]", "\ufffd", value)
        return value if fixed == value else type(value)(fixed)
    if isinstance(value, dict):
        return {without_surrogates(k): without_surrogates(v) for k, v in value.items()}
    if isinstance(value, list):
        return [without_surrogates(v) for v in value]
    return value


def _finish(scanner: _native.KinetoScanner) -> Scan:
    """What the native scanner found, as Python objects."""
    columns, names, threads, groups, metadata, dropped, complete, has_events = _native.kineto_finish(scanner)
    scan = Scan(
        columns={
            name: np.frombuffer(column, dtype=dtype)
            for (name, dtype), column in zip(COLUMN_DTYPES.items(), columns, strict=True)
        },
        names=[_decode(name) for name in names],
        threads=threads,
        groups=[(_decode(name), _decode(ranks), size) for name, ranks, size in groups],
        metadata=_metadata(metadata),
        dropped={reason: count for reason, count in zip(REASONS, dropped, strict=True) if count},
        truncated=not complete,
        has_events=has_events,
    )
    _merge_equal_names(scan)
    return scan


def _decode(text: bytes) -> str:
    return text.decode("utf-8", "replace")


def _metadata(items: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    metadata = {}
    for key, text in items:
        try:
            value = json.loads(
                _decode(text), strict=False, parse_int=str, parse_float=str, parse_constant=str
            )
        except (ValueError, RecursionError):
            continue  # the scanner accepts more than strict JSON, and these values are only a help
        metadata[_decode(key)] = without_surrogates(value)
    return metadata


def _merge_equal_names(scan: Scan) -> None:
    """Names that differ only in bytes that are no UTF-8 are one name."""
    unique = {name: i for i, name in enumerate(dict.fromkeys(scan.names))}
    if len(unique) == len(scan.names):
        return
    new_id = np.array([unique[name] for name in scan.names], dtype=np.int32)
    scan.columns["name_id"] = new_id[scan.columns["name_id"]]
    scan.names = list(unique)


def _no_events(path: str | PathLike[str], scan: Scan) -> TraceError:
    if scan.truncated:
        found = "found JSON that ends or breaks before any traceEvents"
    elif scan.metadata:
        keys = ", ".join(repr(key[:32]) for key in list(scan.metadata)[:5])
        found = f"found JSON without a traceEvents array (keys: {keys})"
    else:
        found = "found JSON without trace events"
    return TraceError(path, found, expected=_EXPECTED, hint=_HINT)


def _groups(keys: list[tuple[str, str, int]], distributed: dict[str, Any]) -> list[CollectiveGroup]:
    """Process groups in order of first use; ``pg_config`` fills in what the events do not say."""
    config = distributed.get("pg_config")
    known = {}
    for entry in config if isinstance(config, list) else []:
        if isinstance(entry, dict) and isinstance(entry.get("pg_name"), str):
            known[entry["pg_name"]] = entry
    groups = []
    for name, ranks_text, written_size in keys:
        entry = known.get(name, {})
        ranks = _ranks(ranks_text) or _listed_ranks(entry.get("ranks"))
        sizes = (written_size, _natural(entry.get("pg_size")), len(ranks) or -1)
        size = next((size for size in sizes if size >= 0), -1)
        groups.append(CollectiveGroup(name=name, size=size, ranks=ranks))
    return groups


def _ranks(text: str) -> tuple[int, ...]:
    """``"[0, 1]"`` as numbers; empty if the list is not complete (long ones are abbreviated)."""
    if not re.fullmatch(r"\[\s*\d{1,9}(\s*,\s*\d{1,9})*\s*\]", text, re.ASCII):
        return ()
    return tuple(int(digits) for digits in re.findall(r"\d+", text))


def _listed_ranks(value: Any) -> tuple[int, ...]:
    ranks = tuple(_natural(item) for item in value) if isinstance(value, list) else ()
    return () if -1 in ranks else ranks


def _devices(properties: Any) -> list[DeviceInfo]:
    devices = []
    for entry in properties if isinstance(properties, list) else []:
        if isinstance(entry, dict) and (ordinal := _natural(entry.get("id"))) >= 0:
            name = entry.get("name")
            devices.append(DeviceInfo(device=ordinal, name=name if isinstance(name, str) else ""))
    return devices


def _integer(value: Any) -> int | None:
    """An integer that is written as one; None for anything else."""
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,19}", value, re.ASCII):
        return int(value)
    return None


def _natural(value: Any) -> int:
    """A small non-negative integer; -1 for anything else."""
    number = _integer(value)
    return number if number is not None and 0 <= number < 1 << 31 else -1


def _scalar_text(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str) else None
