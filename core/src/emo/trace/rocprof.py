"""Reader for rocprofiler-sdk's JSON (``rocprofv3 --output-format json``).

The file is decoded straight into small typed records that hold only the fields
needed. Each kind of record is decoded in one go, and only if that fails, because
one of them is malformed, record by record.

What becomes a stream: the hardware queue. HIP maps its streams onto a few queues,
and a queue runs its packets in order whichever stream they came from. Copies by
the DMA engines have no queue; they are placed where the kernels of their HIP
stream ran.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from os import PathLike, fspath
from typing import Annotated, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from emo.errors import TraceError
from emo.trace.columns import shape_hash
from emo.trace.model import I64, DeviceInfo, RawCategory, RawTrace, Thread
from emo.trace.source import Source

EXPECTED = "expected the JSON of rocprofiler-sdk with kernel_dispatch records"
HINT = "record with `rocprofv3 --kernel-trace --hip-trace --memory-copy-trace --marker-trace --output-format json`"

_GPU_AGENT = 2
_ODD_LANE = 1 << 20  # numbers of lanes that the file does not number itself start here
_COPY_NAMES = {
    "HOST_TO_HOST": "Memcpy HtoH (Host -> Host)",
    "HOST_TO_DEVICE": "Memcpy HtoD (Host -> Device)",
    "DEVICE_TO_HOST": "Memcpy DtoH (Device -> Host)",
    "DEVICE_TO_DEVICE": "Memcpy DtoD (Device -> Device)",
}


# Outside of int64 a number is as malformed as a text would be.
_Int = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class _Handle(msgspec.Struct, frozen=True, gc=False):
    handle: int = -1


class _Correlation(msgspec.Struct, frozen=True, gc=False):
    internal: _Int = -1


class _Xyz(msgspec.Struct, frozen=True, gc=False):
    x: _Int = 0
    y: _Int = 0
    z: _Int = 0


class _DispatchInfo(msgspec.Struct, frozen=True, gc=False):
    agent_id: _Handle = _Handle()
    queue_id: _Handle = _Handle()
    kernel_id: int = -1
    workgroup_size: _Xyz = _Xyz()
    grid_size: _Xyz = _Xyz()


class _Record(msgspec.Struct, gc=False):
    """What all records have."""

    start_timestamp: _Int
    end_timestamp: _Int
    thread_id: _Int = -1
    kind: _Int = -1
    operation: _Int = -1
    correlation_id: _Correlation = _Correlation()


class _Dispatch(_Record, gc=False):
    dispatch_info: _DispatchInfo = _DispatchInfo()
    stream_id: _Handle = _Handle()


class _Copy(_Record, gc=False):
    dst_agent_id: _Handle = _Handle()
    src_agent_id: _Handle = _Handle()
    stream_id: _Handle = _Handle()
    bytes: _Int = -1


class _Agent(msgspec.Struct, gc=False):
    id: _Handle
    type: int = 0
    product_name: str = ""
    name: str = ""
    logical_node_type_id: int = -1


class _Symbol(msgspec.Struct, gc=False):
    kernel_id: int
    formatted_kernel_name: str = ""
    kernel_name: str = ""


class _Operations(msgspec.Struct, frozen=True, gc=False):
    kind: str = ""
    operations: list[str] = []


class _Text(msgspec.Struct, frozen=True, gc=False):
    key: int
    value: str


class _Strings(msgspec.Struct, frozen=True):
    buffer_records: list[_Operations] = []
    marker_api: list[_Text] = []


class _Metadata(msgspec.Struct, frozen=True):
    pid: int = -1


_EMPTY = msgspec.Raw(b"[]")


class _Buffers(msgspec.Struct, frozen=True):
    kernel_dispatch: msgspec.Raw = _EMPTY
    hip_api: msgspec.Raw = _EMPTY
    memory_copy: msgspec.Raw = _EMPTY
    marker_api: msgspec.Raw = _EMPTY


class _Process(msgspec.Struct):
    metadata: _Metadata = _Metadata()
    agents: list[_Agent] = []
    strings: _Strings = _Strings()
    kernel_symbols: msgspec.Raw = _EMPTY
    buffer_records: _Buffers = _Buffers()


class _File(msgspec.Struct):
    processes: list[_Process] = msgspec.field(name="rocprofiler-sdk-tool")


T = TypeVar("T", bound=msgspec.Struct)


def read_rocprof(path: str | PathLike[str]) -> RawTrace:
    """Read one file (JSON, or gzip of it). Raises :class:`TraceError` if it is no such JSON."""
    content = bytearray()
    with Source(path) as source:
        for chunk in source.chunks():
            content += chunk
        cut_off = source.truncated
    try:
        file = msgspec.json.decode(content, type=_File)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        found = "a gzip file that ends early" if cut_off else f"JSON that cannot be read ({error})"
        raise TraceError(path, found, expected=EXPECTED, hint=HINT) from error
    builder = _Builder()
    for index, process in enumerate(file.processes):
        builder.add(process, index, shared=len(file.processes) > 1)
    return builder.raw_trace(fspath(path))


class _Builder:
    """Gathers columns over the processes of a file."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.threads: dict[tuple[int, int], int] = {}
        self.devices: dict[int, str] = {}
        self.parts: list[dict[str, I64]] = []
        self.odd_lanes: dict[tuple[str, int], int] = {}
        self.dropped: Counter[str] = Counter()

    def add(self, process: _Process, index: int, *, shared: bool) -> None:
        """Add one process; correlation ids count from one in each, so ``shared`` files number them apart."""
        self.pid = process.metadata.pid
        self.offset = index << 40 if shared else 0
        self._agents(process.agents)
        operations = [item.operations for item in process.strings.buffer_records]
        symbols = {
            symbol.kernel_id: symbol.formatted_kernel_name or symbol.kernel_name
            for symbol in self._decode(process.kernel_symbols, _Symbol)
        }

        lane_of_stream = self._kernels(process.buffer_records.kernel_dispatch, symbols)
        self._copies(process.buffer_records.memory_copy, operations, lane_of_stream)
        self._calls(process.buffer_records.hip_api, operations)
        texts = {item.key: item.value for item in process.strings.marker_api}
        self._markers(process.buffer_records.marker_api, operations, texts)

    def _agents(self, agents: Sequence[_Agent]) -> None:
        gpus = [agent for agent in agents if agent.type == _GPU_AGENT]
        self.ordinal = {
            agent.id.handle: agent.logical_node_type_id if agent.logical_node_type_id >= 0 else position
            for position, agent in enumerate(gpus)
        }
        self.devices.update({self.ordinal[a.id.handle]: a.product_name or a.name for a in gpus})

    # ----------------------------------------------------------------- records

    def _kernels(self, raw: msgspec.Raw, symbols: dict[int, str]) -> dict[int, int]:
        """Add kernels; returns the lane on which most kernels of each HIP stream ran."""
        records = self._decode(raw, _Dispatch)
        infos = [record.dispatch_info for record in records]
        # Old versions write no queue.
        lane = [
            self._lane("queue", info.queue_id.handle)
            if info.queue_id.handle >= 0
            else self._lane("stream", record.stream_id.handle)
            for info, record in zip(infos, records, strict=True)
        ]
        sizes = [(i.grid_size, i.workgroup_size) for i in infos]
        axes = [_column(getattr(s[which], axis) for s in sizes) for which in (0, 1) for axis in "xyz"]
        self._part(
            RawCategory.KERNEL,
            records,
            device=_column(self.ordinal.get(info.agent_id.handle, -1) for info in infos),
            stream=_column(lane),
            name_id=_column(self._name(symbols.get(i.kernel_id, f"kernel {i.kernel_id}")) for i in infos),
            shape_hash=shape_hash(*axes),
        )
        seen: dict[int, Counter[int]] = defaultdict(Counter)
        for record, number in zip(records, lane, strict=True):
            seen[record.stream_id.handle][number] += 1
        return {stream: counts.most_common(1)[0][0] for stream, counts in seen.items()}

    def _copies(self, raw: msgspec.Raw, operations: list[list[str]], lane_of_stream: dict[int, int]) -> None:
        records = self._decode(raw, _Copy)

        def gpu(record: _Copy) -> int:
            source = self.ordinal.get(record.src_agent_id.handle, -1)
            return source if source >= 0 else self.ordinal.get(record.dst_agent_id.handle, -1)

        def name(record: _Copy) -> str:
            operation = _operation(operations, record)
            return _COPY_NAMES.get(operation.removeprefix("MEMORY_COPY_"), operation)

        self._part(
            RawCategory.MEMCPY,
            records,
            device=_column(gpu(r) for r in records),
            stream=_column(
                lane_of_stream[handle] if handle in lane_of_stream else self._lane("copies of stream", handle)
                for handle in (r.stream_id.handle for r in records)
            ),
            name_id=_column(self._name(name(r)) for r in records),
            bytes=_column(r.bytes for r in records),
        )

    def _calls(self, raw: msgspec.Raw, operations: list[list[str]]) -> None:
        records = self._decode(raw, _Record)
        self._part(
            RawCategory.API,
            records,
            thread=_column(self._thread(r.thread_id) for r in records),
            name_id=_column(self._name(_operation(operations, r)) for r in records),
        )

    def _markers(self, raw: msgspec.Raw, operations: list[list[str]], texts: dict[int, str]) -> None:
        records = self._decode(raw, _Record)
        self._part(
            RawCategory.ANNOTATION,
            records,
            thread=_column(self._thread(r.thread_id) for r in records),
            correlation=np.full(len(records), -1, dtype=np.int64),
            name_id=_column(
                self._name(texts.get(r.correlation_id.internal) or _operation(operations, r)) for r in records
            ),
        )

    # ----------------------------------------------------------------- building

    def _decode(self, raw: msgspec.Raw, kind: type[T]) -> list[T]:
        """All records of one kind; those that are malformed are counted and left out."""
        try:
            return msgspec.json.decode(raw, type=list[kind])  # type: ignore[valid-type]
        except msgspec.ValidationError:
            pass
        try:
            items = msgspec.json.decode(raw, type=list[msgspec.Raw])
        except msgspec.ValidationError:  # not a list at all
            self.dropped["malformed"] += 1
            return []
        good = []
        for item in items:
            try:
                good.append(msgspec.json.decode(item, type=kind))
            except msgspec.ValidationError:
                self.dropped["malformed"] += 1
        return good

    def _name(self, name: str) -> int:
        return self.names.setdefault(name, len(self.names))

    def _thread(self, tid: int) -> int:
        return self.threads.setdefault((self.pid, tid), len(self.threads))

    def _lane(self, what: str, handle: int) -> int:
        """Stream number: the file's own where it is one (some handles are addresses)."""
        if what != "copies of stream" and 0 <= handle < _ODD_LANE:
            return handle
        return self.odd_lanes.setdefault((what, handle), _ODD_LANE + len(self.odd_lanes))

    def _part(self, category: RawCategory, records: Sequence[_Record], **known: I64) -> None:
        count = len(records)
        part = {name: np.full(count, default, dtype=np.int64) for name, default in _DEFAULTS.items()}
        part["category"][:] = category
        part["start_ns"] = _column(r.start_timestamp for r in records)
        part["dur_ns"] = _column(r.end_timestamp for r in records) - part["start_ns"]
        internal = _column(r.correlation_id.internal for r in records)
        part["correlation"] = np.where(internal >= 0, internal + self.offset, -1)
        part.update(known)
        self.parts.append(part)

    def raw_trace(self, path: str) -> RawTrace:
        nothing = np.empty(0, dtype=np.int64)
        column = {name: np.concatenate([nothing, *(part[name] for part in self.parts)]) for name in _DEFAULTS}
        thread = column["thread"]

        def i32(name: str) -> NDArray[np.int32]:
            return column[name].astype(np.int32)

        return RawTrace(
            path=path,
            format="rocprof",
            category=column["category"].astype(np.int8),
            start_ns=column["start_ns"],
            dur_ns=column["dur_ns"],
            device=i32("device"),
            stream=i32("stream"),
            thread=i32("thread"),
            correlation=column["correlation"],
            name_id=i32("name_id"),
            bytes=column["bytes"],
            collective_group=np.full(len(thread), -1, dtype=np.int32),
            collective_seq=np.full(len(thread), -1, dtype=np.int64),
            graph_node=np.full(len(thread), -1, dtype=np.int64),
            shape_hash=column["shape_hash"],
            sync_correlation=np.full(len(thread), -1, dtype=np.int64),
            sync_stream=np.full(len(thread), -1, dtype=np.int32),
            names=list(self.names),
            threads=[
                _span(pid, tid, column, np.flatnonzero(thread == i)) for (pid, tid), i in self.threads.items()
            ],
            groups=[],
            devices=[DeviceInfo(i, name) for i, name in sorted(self.devices.items())],
            dropped=dict(self.dropped),
        )


_DEFAULTS = {
    "category": 0,
    "start_ns": 0,
    "dur_ns": 0,
    "device": -1,
    "stream": -1,
    "thread": -1,
    "correlation": -1,
    "name_id": 0,
    "bytes": -1,
    "shape_hash": 0,
}


def _span(pid: int, tid: int, column: dict[str, I64], rows: I64) -> Thread:
    start = column["start_ns"][rows]
    return Thread(pid, tid, int(start.min()), int((start + column["dur_ns"][rows]).max()))


def _column(values: Iterator[int] | Sequence[int]) -> I64:
    return np.fromiter(values, dtype=np.int64)


def _operation(operations: list[list[str]], record: _Record) -> str:
    """Name of a record by its kind and operation, which index the file's own tables."""
    if 0 <= record.kind < len(operations) and 0 <= record.operation < len(operations[record.kind]):
        return operations[record.kind][record.operation]
    return f"operation {record.kind}.{record.operation}"
