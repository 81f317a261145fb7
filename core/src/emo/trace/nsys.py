"""Reader for Nsight Systems' SQLite exports (``nsys export --type sqlite``).

The schema differs between versions: tables are absent when nothing of their kind
was recorded, and columns come and go. So the reader asks which columns there are
and fills the rest with "unknown". Rows are fetched in blocks and go straight into
columns; there is never one Python object per row beyond the block.

Correlation ids are unique within a process only. Here they become
``process index << 32 | id``, which keeps them unique within the file.
"""

from __future__ import annotations

import re
import sqlite3
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import chain
from os import PathLike, fspath
from pathlib import Path
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from emo.errors import TraceError
from emo.trace.columns import Mask, distinct, row_of, shape_hash
from emo.trace.model import I64, DeviceInfo, RawCategory, RawTrace, Thread

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
SYNC = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
EVENT = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
NVTX = "NVTX_EVENTS"

EXPECTED = "expected an SQLite export of Nsight Systems with CUDA activity"
HINT = "record with `nsys profile --trace=cuda,nvtx` and export with `nsys export --type sqlite`"

_NULL = -(1 << 62)  # stands for NULL while a column is read: no time, id or size has this value
_NO_ID = 0xFFFFFFFF  # CUPTI's "no such stream" and "no such event"
_NVTX_RANGES = (59, 60, 70, 71)  # push/pop and start/end ranges, and their NVTXT twins
_STREAM_WAIT, _EVENT_SYNC = 2, 1  # CUPTI's synchronisation types that name an event
_COPIES = {
    1: "HtoD",
    2: "DtoH",
    3: "HtoA",
    4: "AtoH",
    5: "AtoA",
    6: "AtoD",
    7: "DtoA",
    8: "DtoD",
    9: "HtoH",
    10: "PtoP",
}
_MEMORY = {
    0: "Pageable",
    1: "Pinned",
    2: "Device",
    3: "Array",
    4: "Managed",
    5: "Device Static",
    6: "Managed Static",
}

_API_VERSION = re.compile(r"_v\d+$")
# What PyTorch's emit_nvtx appends to the name of a framework op.
_OP_DETAILS = re.compile(r", (?:op_id|seq|stashed seq|sizes|input_op_ids) ?[=:].*$", re.DOTALL)
_MARKS = ("ProfilerStep", "Optimizer.step#")

Columns = dict[str, I64]


def read_nsys(path: str | PathLike[str]) -> RawTrace:
    """Read one export. Raises :class:`TraceError` if it is no usable SQLite file."""
    # immutable: no lock, no journal, so a file on a read-only mount can be read too.
    uri = f"file:{quote(str(Path(path).resolve()))}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            return _Reader(fspath(path), connection).read()
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter: sqlite3 decodes its own message
        raise TraceError(
            path, f"the SQLite file cannot be read ({error})", expected=EXPECTED, hint=HINT
        ) from error


class _Names:
    """Names as they are met, each once."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._index: dict[str, int] = {}

    def add(self, name: str) -> int:
        found = self._index.get(name)
        if found is None:
            found = self._index[name] = len(self.names)
            self.names.append(name)
        return found

    def spread(self, ids: I64, name_of: Callable[[int], str]) -> I64:
        """Indices for a column of codes; ``name_of`` is asked once per different code."""
        unique, inverse = np.unique(ids, return_inverse=True)
        return np.array([self.add(name_of(i)) for i in unique.tolist()], dtype=np.int64)[inverse]


class _Reader:
    """One open database on its way to columns."""

    def __init__(self, path: str, connection: sqlite3.Connection) -> None:
        self.path = path
        self.connection = connection
        # Text that is not UTF-8 must not stop the reader.
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        self.tables = {
            table: {row[0] for row in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))}
            for (table,) in connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table'"
            ).fetchall()
        }
        self.names = _Names()
        self.dropped: dict[str, int] = {}

    def read(self) -> RawTrace:
        if not self.tables.keys() & {KERNEL, GRAPH, RUNTIME, MEMCPY}:
            found = ", ".join(sorted(self.tables)[:5]) or "none"
            raise TraceError(
                self.path,
                f"an SQLite file without CUDA activity (tables: {found})",
                expected=EXPECTED,
                hint=HINT,
            )
        self.strings = {number: str(value) for number, value in self._rows("StringIds", "id", "value")}
        self.processes = self._processes()
        self.gpu_of = self._gpu_ordinals()
        events = self._table(
            EVENT, "timestamp", "streamId", "correlationId", "globalPid", "eventId", "eventSyncId"
        )
        parts = [
            self._api(events),
            self._kernels(),
            self._graphs(),
            self._copies(),
            self._sets(),
            self._syncs(events),
            self._ranges(),
        ]
        columns = {name: np.concatenate([part[name] for part in parts]) for name in _DEFAULTS}
        thread, threads = _threads(columns)
        names = self.names.names
        return RawTrace(
            path=self.path,
            format="nsys",
            category=columns["category"].astype(np.int8),
            start_ns=columns["start_ns"],
            dur_ns=columns["dur_ns"],
            device=columns["device"].astype(np.int32),
            stream=columns["stream"].astype(np.int32),
            thread=thread,
            correlation=columns["correlation"],
            name_id=columns["name_id"].astype(np.int32),
            bytes=columns["bytes"],
            collective_group=np.full(len(thread), -1, dtype=np.int32),
            collective_seq=np.full(len(thread), -1, dtype=np.int64),
            graph_node=columns["graph_node"],
            shape_hash=columns["shape_hash"],
            sync_correlation=columns["sync_correlation"],
            sync_stream=columns["sync_stream"].astype(np.int32),
            names=names,
            threads=threads,
            groups=[],
            devices=self._devices(columns),
            dropped=self.dropped,
            metadata=self._metadata(),
        )

    # ----------------------------------------------------------------- access

    def _rows(self, table: str, *columns: str) -> Iterator[tuple[int, str]]:
        """Rows of a small table, as they are; nothing if it or a column is missing."""
        if set(columns) <= self.tables.get(table, set()):
            yield from self.connection.execute(f"SELECT {', '.join(columns)} FROM {table}")

    def _table(self, table: str, *columns: str, where: str = "") -> Columns:
        """Integer columns of a table: int64, ``_NULL`` for NULL and for columns that are not there."""
        present = [name for name in columns if name in self.tables.get(table, set())]
        result = {}
        if present:
            # CAST: SQLite does not enforce types, and one text among the times must not stop the reader.
            wanted = ", ".join(f"CAST(COALESCE({name}, {_NULL}) AS INTEGER)" for name in present)
            cursor = self.connection.execute(f"SELECT {wanted} FROM {table} {where}")
            flat = np.fromiter(chain.from_iterable(cursor), dtype=np.int64).reshape(-1, len(present))
            result = {name: np.ascontiguousarray(flat[:, i]) for i, name in enumerate(present)}
        count = len(result[present[0]]) if present else 0
        for name in columns:
            result.setdefault(name, np.full(count, _NULL, dtype=np.int64))
        return result

    def _timed(self, table: str, *columns: str, where: str = "") -> Columns:
        """Like :meth:`_table` with start and end; rows that lack either are dropped and counted."""
        rows = self._table(table, "start", "end", *columns, where=where)
        good = (rows["start"] != _NULL) & (rows["end"] != _NULL)
        lost = len(good) - int(np.count_nonzero(good))
        if lost:
            self.dropped["no_time"] = self.dropped.get("no_time", 0) + lost
            rows = {name: column[good] for name, column in rows.items()}
        return rows

    def _processes(self) -> dict[int, int]:
        """Index of every process that has GPU ops; empty if the file does not tell processes apart."""
        found: set[int] = set()
        for table in (KERNEL, GRAPH, MEMCPY, MEMSET):
            if "globalPid" in self.tables.get(table, set()):
                rows = self.connection.execute(f"SELECT DISTINCT globalPid FROM {table}")
                found.update(pid for (pid,) in rows if isinstance(pid, int))
        return {pid: i for i, pid in enumerate(sorted(found))}

    def _keys(self, process: I64, correlation: I64) -> I64:
        """Correlation ids that are unique in the file; -1 where there is none."""
        known = (correlation != _NULL) & (correlation >= 0)
        if len(self.processes) < 2:
            return np.where(known, correlation, -1)
        index = _lookup(self.processes, process, default=len(self.processes))
        return np.where(known, index << 32 | (correlation & _NO_ID), -1)

    def _gpu_ordinals(self) -> dict[tuple[int, int], int]:
        """(process, the ordinal that it sees) -> the ordinal on the machine, where they may differ."""
        table = self._table("TARGET_INFO_CUDA_DEVICE", "gpuId", "cudaId", "pid")
        return {
            (pid, seen): gpu
            for gpu, seen, pid in zip(*(table[c].tolist() for c in ("gpuId", "cudaId", "pid")), strict=True)
            if _NULL not in (gpu, seen, pid)
        }

    def _place(self, device: I64, process: I64) -> I64:
        """Ordinals on the machine: CUDA_VISIBLE_DEVICES gives each process its own numbering."""
        result = np.where(device == _NULL, -1, device)
        for (pid, seen), gpu in self.gpu_of.items():
            if gpu != seen:
                result[(device == seen) & (_pid(process) == pid)] = gpu
        return result

    # ----------------------------------------------------------------- tables

    def _string(self, number: int) -> str:
        return self.strings.get(number, "(unnamed)")

    def _api(self, events: Columns) -> Columns:
        rows = self._timed(RUNTIME, "globalTid", "correlationId", "nameId")
        process = _process_of_thread(rows["globalTid"])
        correlation = self._keys(process, rows["correlationId"])
        # The stream of an event record stands in the event's own row.
        mark_keys = self._keys(events["globalPid"], events["correlationId"])
        streams = dict(zip(mark_keys.tolist(), events["streamId"].tolist(), strict=True))
        return _part(
            RawCategory.API,
            rows,
            thread=rows["globalTid"],
            correlation=correlation,
            name_id=self.names.spread(rows["nameId"], lambda i: _API_VERSION.sub("", self._string(i))),
            stream=_stream(_lookup(streams, correlation, default=_NULL)) if streams else None,
        )

    def _kernels(self) -> Columns:
        shape = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
        name = "demangledName" if "demangledName" in self.tables.get(KERNEL, set()) else "shortName"
        rows = self._timed(KERNEL, *_ON_GPU, name, "graphNodeId", *shape)
        return self._gpu_part(
            RawCategory.KERNEL,
            rows,
            name_id=self.names.spread(rows[name], self._string),
            graph_node=np.where(rows["graphNodeId"] == _NULL, -1, rows["graphNodeId"]),
            shape_hash=np.where(rows["gridX"] == _NULL, 0, shape_hash(*(rows[column] for column in shape))),
        )

    def _graphs(self) -> Columns:
        """Whole graphs: what nsys records instead of kernels unless it is told to look inside."""
        rows = self._timed(GRAPH, *_ON_GPU, "graphId")
        return self._gpu_part(
            RawCategory.KERNEL, rows, name_id=self.names.spread(rows["graphId"], lambda i: f"CUDA graph {i}")
        )

    def _copies(self) -> Columns:
        rows = self._timed(MEMCPY, *_ON_GPU, "bytes", "copyKind", "srcKind", "dstKind", "graphNodeId")
        codes = [np.where(rows[c] < 0, 0xFF, rows[c] & 0xFF) for c in ("copyKind", "srcKind", "dstKind")]
        code = codes[0] << 16 | codes[1] << 8 | codes[2]

        def name(code: int) -> str:
            kind = _COPIES.get(code >> 16, "(unknown direction)")
            source, target = _MEMORY.get(code >> 8 & 0xFF, "Unknown"), _MEMORY.get(code & 0xFF, "Unknown")
            return f"Memcpy {kind} ({source} -> {target})"

        return self._gpu_part(
            RawCategory.MEMCPY,
            rows,
            name_id=self.names.spread(code, name),
            bytes=np.where(rows["bytes"] == _NULL, -1, rows["bytes"]),
            graph_node=np.where(rows["graphNodeId"] == _NULL, -1, rows["graphNodeId"]),
        )

    def _sets(self) -> Columns:
        rows = self._timed(MEMSET, *_ON_GPU, "bytes", "memKind", "graphNodeId")
        return self._gpu_part(
            RawCategory.MEMSET,
            rows,
            name_id=self.names.spread(rows["memKind"], lambda i: f"Memset ({_MEMORY.get(i, 'Unknown')})"),
            bytes=np.where(rows["bytes"] == _NULL, -1, rows["bytes"]),
            graph_node=np.where(rows["graphNodeId"] == _NULL, -1, rows["graphNodeId"]),
        )

    def _syncs(self, events: Columns) -> Columns:
        rows = self._timed(SYNC, *_ON_GPU, "syncType", "eventId", "eventSyncId")
        event = self._awaited(rows, events)
        found = event >= 0
        sync_correlation = np.full(len(event), -1, dtype=np.int64)
        sync_stream = np.full(len(event), -1, dtype=np.int64)
        if len(events["timestamp"]):
            # Events are recorded in this file, so one that is missing was recorded before it began.
            sync_correlation[(rows["syncType"] == _STREAM_WAIT) | (rows["syncType"] == _EVENT_SYNC)] = -2
            keys = self._keys(events["globalPid"], events["correlationId"])
            sync_correlation[found] = keys[event[found]]
            sync_stream[found] = _stream(events["streamId"])[event[found]]
        return self._gpu_part(
            RawCategory.SYNC,
            rows,
            name_id=self.names.spread(rows["syncType"], lambda i: f"synchronization {i}"),
            sync_correlation=sync_correlation,
            sync_stream=sync_stream,
        )

    def _awaited(self, rows: Columns, events: Columns) -> I64:
        """Row in ``events`` that each synchronisation waits for; -1 for none."""
        pid = _lookup(self.processes, events["globalPid"], default=len(self.processes))
        own = _lookup(self.processes, rows["globalPid"], default=len(self.processes))
        if "eventSyncId" in self.tables.get(EVENT, set()) & self.tables.get(SYNC, set()):
            # The id of one recording, not of the event object: it says exactly which one is meant.
            keys = pid << 32 | (events["eventSyncId"] & _NO_ID)
            _, first = np.unique(keys, return_index=True)
            wanted = np.where(_is_id(rows["eventSyncId"]), own << 32 | (rows["eventSyncId"] & _NO_ID), -1)
            return row_of(keys[first], first, wanted)
        recorded: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        for i in np.argsort(events["timestamp"], kind="stable").tolist():
            recorded[int(pid[i]), int(events["eventId"][i])].append((int(events["timestamp"][i]), i))
        found = np.full(len(own), -1, dtype=np.int64)
        for i in np.flatnonzero(_is_id(rows["eventId"])).tolist():
            earlier = recorded.get((int(own[i]), int(rows["eventId"][i])), [])
            at = bisect_right(earlier, (int(rows["start"][i]), len(pid)))
            if at:
                found[i] = earlier[at - 1][1]
        return found

    def _ranges(self) -> Columns:
        """NVTX ranges: framework ops (as PyTorch's emit_nvtx writes them) are labels, others annotations."""
        present = self.tables.get(NVTX, set())
        if not {"start", "end", "globalTid"} <= present:
            return _part(RawCategory.LABEL, self._table(NVTX, "start", "end"))
        text = "text" if "text" in present else "NULL"
        number = "textId" if "textId" in present else "NULL"
        where = f"AND eventType IN {_NVTX_RANGES}" if "eventType" in present else ""
        cursor = self.connection.execute(
            f"SELECT CAST(start AS INTEGER), CAST(end AS INTEGER), CAST(globalTid AS INTEGER), {text}, {number} "
            f"FROM {NVTX} WHERE start IS NOT NULL AND end IS NOT NULL AND globalTid IS NOT NULL {where}"
        )

        def numbers() -> Iterator[int]:
            for start, end, thread, inline, string_id in cursor:
                full = inline if isinstance(inline, str) else self._string(string_id)
                name = _OP_DETAILS.sub("", full)
                is_label = name != full and not name.startswith(_MARKS)
                yield from (start, end, thread, self.names.add(name), is_label)

        flat = np.fromiter(numbers(), dtype=np.int64).reshape(-1, 5)
        rows = {"start": flat[:, 0], "end": flat[:, 1]}
        part = _part(RawCategory.ANNOTATION, rows, thread=flat[:, 2], name_id=flat[:, 3])
        part["category"][flat[:, 4] == 1] = RawCategory.LABEL
        return part

    def _gpu_part(self, category: RawCategory, rows: Columns, **known: I64) -> Columns:
        return _part(
            category,
            rows,
            device=self._place(rows["deviceId"], rows["globalPid"]),
            stream=_stream(rows["streamId"]),
            correlation=self._keys(rows["globalPid"], rows["correlationId"]),
            **known,
        )

    # ----------------------------------------------------------------- the rest

    def _devices(self, columns: Columns) -> list[DeviceInfo]:
        """Devices that the file describes, and those that only its ops mention."""
        known = dict(self._rows("TARGET_INFO_GPU", "id", "name"))
        used = distinct(columns["device"][columns["device"] >= 0]).tolist()
        ordinals = {i for i in known if isinstance(i, int)} | set(used)
        return [DeviceInfo(i, str(known.get(i, ""))) for i in sorted(ordinals)]

    def _metadata(self) -> dict[str, str]:
        found = {f"nsys {key}": str(value) for key, value in self._rows("META_DATA_EXPORT", "name", "value")}
        wanted = ("nsys EXPORT_PRODUCT_VERSION", "nsys EXPORT_SCHEMA_VERSION")
        metadata = {key: found[key] for key in wanted if key in found}
        start = self._table("TARGET_INFO_SESSION_START_TIME", "utcEpochNs")["utcEpochNs"]
        if len(start) and start[0] != _NULL:
            metadata["session start (UTC, ns)"] = str(start[0])
        return metadata


_ON_GPU = ("deviceId", "streamId", "correlationId", "globalPid")

# Columns of a RawTrace while they are int64, with what stands for "unknown".
_DEFAULTS = {
    "category": 0,
    "start_ns": 0,
    "dur_ns": 0,
    "device": -1,
    "stream": -1,
    "thread": _NULL,  # globalTid until the thread table is made
    "correlation": -1,
    "name_id": 0,
    "bytes": -1,
    "graph_node": -1,
    "shape_hash": 0,
    "sync_correlation": -1,
    "sync_stream": -1,
}


def _part(category: RawCategory, rows: Columns, **known: I64 | None) -> Columns:
    """All raw columns for rows with ``start`` and ``end``; what is not given is unknown."""
    count = len(rows["start"])
    part = {name: np.full(count, default, dtype=np.int64) for name, default in _DEFAULTS.items()}
    part["category"][:] = category
    part["start_ns"] = rows["start"]
    part["dur_ns"] = rows["end"] - rows["start"]
    part.update({name: column for name, column in known.items() if column is not None})
    return part


def _threads(columns: Columns) -> tuple[NDArray[np.int32], list[Thread]]:
    """Thread index per row and the table, in the order of first appearance in time."""
    cpu = np.flatnonzero(columns["thread"] != _NULL)
    index = np.full(len(columns["thread"]), -1, dtype=np.int32)
    if not len(cpu):
        return index, []
    unique, inverse = np.unique(columns["thread"][cpu], return_inverse=True)
    first = np.full(len(unique), np.iinfo(np.int64).max)
    last = np.full(len(unique), np.iinfo(np.int64).min)
    np.minimum.at(first, inverse, columns["start_ns"][cpu])
    np.maximum.at(last, inverse, columns["start_ns"][cpu] + columns["dur_ns"][cpu])
    order = np.argsort(first, kind="stable")
    place = np.empty(len(order), dtype=np.int32)
    place[order] = np.arange(len(order))
    index[cpu] = place[inverse]
    threads = [
        Thread(int(_pid(unique[i])), int(unique[i] & 0xFFFFFF), int(first[i]), int(last[i])) for i in order
    ]
    return index, threads


# A global id holds the machine, the process and the thread; the lower two have 24 bits each.
def _pid(global_id: I64) -> I64:
    return global_id >> 24 & 0xFFFFFF


def _process_of_thread(global_tid: I64) -> I64:
    return global_tid & ~np.int64(0xFFFFFF)


def _is_id(column: I64) -> Mask:
    mask: Mask = (column != _NULL) & (column != _NO_ID)
    return mask


def _stream(column: I64) -> I64:
    return np.where(_is_id(column), column, -1)


def _lookup(table: dict[int, int], keys: I64, *, default: int) -> I64:
    """``table[key]`` for a column of keys; asked once per different key."""
    unique, inverse = np.unique(keys, return_inverse=True)
    return np.array([table.get(key, default) for key in unique.tolist()], dtype=np.int64)[inverse]
