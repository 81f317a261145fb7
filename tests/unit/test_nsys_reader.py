"""The reader for SQLite exports of Nsight Systems."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest

from emo.errors import TraceError
from emo.trace.model import Kind, SyncInfo
from emo.trace.nsys import read_nsys
from emo.trace.read import read_trace

STRINGS = {1: "cudaLaunchKernel_v7000", 2: "void gemm<float>(x)", 3: "cudaStreamWaitEvent_v3020"}
STRINGS |= {
    4: "cudaEventRecord_v3020",
    5: "cudaMemcpyAsync_v3020",
    6: "aten::mm, op_id = 12",
    7: "training step 3",
}

KERNEL = (
    "start end deviceId streamId correlationId globalPid demangledName gridX gridY gridZ blockX blockY blockZ"
)
RUNTIME = "start end globalTid correlationId nameId"
SYNC = "start end deviceId streamId correlationId globalPid syncType eventId eventSyncId"
EVENT = "timestamp deviceId streamId correlationId globalPid eventId eventSyncId"
MEMCPY = "start end deviceId streamId correlationId globalPid bytes copyKind srcKind dstKind"
NVTX = "start end eventType text globalTid textId"


def tid(pid: int, thread: int) -> int:
    return 7 << 48 | pid << 24 | thread


def pid(number: int) -> int:
    return tid(number, 0)


class Export:
    """An export with the tables that a test asks for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.connection = sqlite3.connect(path)
        self.table("StringIds", "id value", STRINGS.items())

    def table(self, name: str, columns: str, rows: Iterable[Sequence[object]] = ()) -> Export:
        names = columns.split()
        self.connection.execute(f"CREATE TABLE {name} ({', '.join(names)})")
        self.connection.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(names))})", rows)
        return self

    def done(self) -> Path:
        self.connection.commit()
        self.connection.close()
        return self.path


@pytest.fixture
def export(tmp_path: Path) -> Export:
    return Export(tmp_path / "report 100% #1?.sqlite")  # a name that an URI must quote


def kernel(
    start: int, correlation: int, process: int = 10, stream: int = 7, device: int = 0
) -> tuple[int, ...]:
    return (start, start + 500, device, stream, correlation, pid(process), 2, 64, 1, 1, 256, 1, 1)


CUPTI = "CUPTI_ACTIVITY_KIND_"


def test_kernels_and_their_launches_are_joined(export: Export) -> None:
    export.table(CUPTI + "KERNEL", KERNEL, [kernel(9_000, 1)])
    export.table(CUPTI + "RUNTIME", RUNTIME, [(1_000, 5_000, tid(10, 12), 1, 1)])
    export.table("TARGET_INFO_GPU", "id name", [(0, "NVIDIA H100")])
    trace = read_trace(export.done())
    assert trace.format == "nsys"
    assert [
        (trace.names[n], int(s), int(e))
        for n, s, e in zip(trace.ops.name_id, trace.ops.start_ns, trace.ops.end_ns, strict=True)
    ] == [
        ("cudaLaunchKernel", 1_000, 5_000),
        ("void gemm<float>(x)", 9_000, 9_500),
    ]
    assert (trace.quality.completeness, trace.quality.kernels_without_launch) == (1.0, 0)
    assert [(t.pid, t.tid, t.first_ns, t.last_ns) for t in trace.threads] == [(10, 12, 1_000, 5_000)]
    assert [(d.device, d.name) for d in trace.devices] == [(0, "NVIDIA H100")]


def test_correlation_ids_of_two_processes_do_not_meet(export: Export) -> None:
    export.table(CUPTI + "KERNEL", KERNEL, [kernel(9_000, 1, 10), kernel(50_000, 1, 20, device=1)])
    export.table(
        CUPTI + "RUNTIME", RUNTIME, [(1_000, 5_000, tid(10, 1), 1, 1), (40_000, 44_000, tid(20, 1), 1, 1)]
    )
    trace = read_trace(export.done())
    ops = trace.ops
    assert trace.quality.repaired == {}
    launch = {
        int(c): int(t)
        for c, t, k in zip(ops.correlation, ops.thread, ops.kind, strict=True)
        if k == Kind.CPU_CALL
    }
    device = {
        int(c): int(d)
        for c, d, k in zip(ops.correlation, ops.device, ops.kind, strict=True)
        if k == Kind.KERNEL
    }
    assert {device[c]: trace.threads[t].pid for c, t in launch.items()} == {0: 10, 1: 20}


def test_visible_devices_are_mapped_to_the_gpus_of_the_machine(export: Export) -> None:
    export.table(CUPTI + "KERNEL", KERNEL, [kernel(9_000, 1, 10), kernel(9_000, 1, 20)])
    export.table("TARGET_INFO_CUDA_DEVICE", "gpuId cudaId pid", [(0, 0, 10), (5, 0, 20)])
    assert read_nsys(export.done()).device.tolist() == [0, 5]


def test_a_wait_names_the_event_record_by_its_synchronisation_id(export: Export) -> None:
    export.table(CUPTI + "KERNEL", KERNEL, [kernel(9_000, 1)])
    export.table(
        CUPTI + "RUNTIME",
        RUNTIME,
        [
            (1_000, 5_000, tid(10, 1), 1, 1),
            (6_000, 7_000, tid(10, 1), 2, 4),
            (8_000, 9_000, tid(10, 1), 3, 4),
            (10_000, 11_000, tid(10, 1), 4, 3),
            (12_000, 13_000, tid(10, 1), 5, 3),
        ],
    )
    export.table(
        CUPTI + "CUDA_EVENT",
        EVENT,
        [(6_500, 0, 7, 2, pid(10), 77, 1001), (8_500, 0, 8, 3, pid(10), 77, 1002)],
    )
    export.table(
        CUPTI + "SYNCHRONIZATION",
        SYNC,
        [(10_100, 10_200, 0, 20, 4, pid(10), 2, 77, 1001), (12_100, 12_200, 0, 20, 5, pid(10), 2, 55, 900)],
    )
    trace = read_trace(export.done())
    ops = trace.ops
    marks, waits = np.flatnonzero(ops.kind == Kind.EVENT_RECORD), np.flatnonzero(ops.kind == Kind.EVENT_WAIT)
    assert ops.stream[marks].tolist() == [7, 8]
    assert ops.stream[waits].tolist() == [20, 20]
    assert ops.sync_stream[waits].tolist() == [7, -1]
    assert ops.sync_correlation[waits].tolist() == [ops.correlation[marks[0]], -2]
    assert trace.quality.sync_info is SyncInfo.RECORDED


def test_without_synchronisation_ids_the_latest_record_of_the_event_counts(export: Export) -> None:
    export.table(CUPTI + "KERNEL", KERNEL, [kernel(9_000, 1)])
    export.table(
        CUPTI + "RUNTIME",
        RUNTIME,
        [
            (6_000, 7_000, tid(10, 1), 2, 4),
            (8_000, 9_000, tid(10, 1), 3, 4),
            (10_000, 11_000, tid(10, 1), 4, 3),
        ],
    )
    columns = EVENT.removesuffix(" eventSyncId")
    export.table(
        CUPTI + "CUDA_EVENT",
        columns,
        [(6_500, 0, 7, 2, pid(10), 77), (8_500, 0, 8, 3, pid(10), 77), (99_000, 0, 9, 9, pid(10), 77)],
    )
    export.table(
        CUPTI + "SYNCHRONIZATION",
        SYNC.removesuffix(" eventSyncId"),
        [(10_100, 10_200, 0, 20, 4, pid(10), 2, 77)],
    )
    ops = read_trace(export.done()).ops
    (wait,) = np.flatnonzero(ops.kind == Kind.EVENT_WAIT)
    assert (ops.sync_stream[wait], ops.sync_correlation[wait]) == (8, 3)


def test_without_event_records_nothing_is_claimed(export: Export) -> None:
    export.table(CUPTI + "KERNEL", KERNEL, [kernel(9_000, 1)])
    export.table(CUPTI + "RUNTIME", RUNTIME, [(10_000, 11_000, tid(10, 1), 4, 3)])
    export.table(CUPTI + "CUDA_EVENT", EVENT)
    export.table(CUPTI + "SYNCHRONIZATION", SYNC, [(10_100, 10_200, 0, 20, 4, pid(10), 2, 77, 900)])
    trace = read_trace(export.done())
    (wait,) = np.flatnonzero(trace.ops.kind == Kind.EVENT_WAIT)
    assert (trace.ops.stream[wait], trace.ops.sync_correlation[wait]) == (20, -1)
    assert trace.quality.sync_info is SyncInfo.INFERRED


def test_copies_say_where_from_and_where_to(export: Export) -> None:
    rows = [
        (1_000, 2_000, 0, 7, 1, pid(10), 4096, 1, 1, 2),
        (3_000, 4_000, 0, 7, 2, pid(10), 8, 2, 2, 0),
        (5_000, 6_000, 0, 7, 3, pid(10), 16, None, None, None),
    ]
    raw = read_nsys(export.table(CUPTI + "MEMCPY", MEMCPY, rows).done())
    assert [raw.names[i] for i in raw.name_id] == [
        "Memcpy HtoD (Pinned -> Device)",
        "Memcpy DtoH (Device -> Pageable)",
        "Memcpy (unknown direction) (Unknown -> Unknown)",
    ]
    assert raw.bytes.tolist() == [4096, 8, 16]


def test_whole_graphs_are_read_where_nothing_else_was_recorded(export: Export) -> None:
    export.table(
        CUPTI + "GRAPH_TRACE",
        "start end deviceId streamId correlationId globalPid graphId",
        [(1_000, 9_000, 0, 7, 3, pid(10), 4)],
    )
    trace = read_trace(export.done())
    assert [trace.names[i] for i in trace.ops.name_id] == ["CUDA graph 4"]


def test_framework_ops_are_labels_and_other_ranges_annotations(export: Export) -> None:
    export.table(CUPTI + "KERNEL", KERNEL, [kernel(9_000, 1)])
    export.table(
        "NVTX_EVENTS",
        NVTX,
        [
            (1_000, 2_000, 59, "aten::add, op_id = 7", tid(10, 1), None),
            (3_000, 4_000, 59, None, tid(10, 1), 6),
            (5_000, 6_000, 60, None, tid(10, 1), 7),
            (7_000, None, 34, "an instant", tid(10, 1), None),
        ],
    )
    trace = read_trace(export.done())
    assert [trace.names[i] for i in trace.labels.name_id] == ["aten::add", "aten::mm"]
    marks = np.flatnonzero(trace.ops.kind == Kind.ANNOTATION)
    assert [trace.names[i] for i in trace.ops.name_id[marks]] == ["training step 3"]


def test_rows_without_a_time_are_counted_and_text_among_numbers_is_survived(export: Export) -> None:
    good, no_end, text = list(kernel(9_000, 1)), list(kernel(20_000, 2)), list(kernel(30_000, 3))
    no_end[1] = None  # type: ignore[call-overload]
    text[3] = "seven"  # type: ignore[call-overload]
    raw = read_nsys(export.table(CUPTI + "KERNEL", KERNEL, [good, no_end, text]).done())
    assert raw.dropped == {"no_time": 1}
    assert raw.start_ns.tolist() == [9_000, 30_000]


def test_an_unknown_string_id_and_a_missing_string_table_are_survived(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute(
            f"CREATE TABLE {CUPTI}KERNEL (start, end, deviceId, streamId, correlationId, shortName)"
        )
        connection.execute(f"INSERT INTO {CUPTI}KERNEL VALUES (1000, 2000, 0, 4294967295, 5, 99)")
    raw = read_nsys(path)
    assert raw.names == ["(unnamed)"]
    assert raw.stream.tolist() == [-1]
    assert raw.shape_hash.tolist() == [0]


@pytest.mark.parametrize("keep", [100, 4096, 5000, 0.5, 0.9])
def test_a_database_that_was_cut_off_is_an_error(export: Export, tmp_path: Path, keep: float) -> None:
    whole = (
        export.table(CUPTI + "KERNEL", KERNEL, [kernel(i * 1_000, i) for i in range(2_000)])
        .done()
        .read_bytes()
    )
    path = tmp_path / "cut.sqlite"
    path.write_bytes(whole[: int(keep if keep > 1 else keep * len(whole))])
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(path)


def test_the_file_is_not_changed(export: Export) -> None:
    path = export.table(CUPTI + "KERNEL", KERNEL, [kernel(9_000, 1)]).done()
    path.chmod(0o444)
    before = path.read_bytes()
    read_trace(path)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_the_sample_of_two_gpus_tells_that_half_of_its_launches_are_missing(samples: Path) -> None:
    trace = read_trace(samples / "nsys" / "h100_2gpu_1s.sqlite")
    kernels = np.isin(trace.ops.kind, (Kind.KERNEL, Kind.COLLECTIVE, Kind.P2P))
    assert np.count_nonzero(kernels) == 3_442
    calls = trace.ops.correlation[trace.ops.kind == Kind.CPU_CALL]
    # Counted with SQL, by process and id. By id alone 11 kernels more would find a launch: of the other process.
    assert np.count_nonzero(np.isin(trace.ops.correlation[kernels], calls)) == 1_632
    assert len(trace.labels) == 16_782
    assert len({thread.pid for thread in trace.threads}) == 2
