"""The reader for rocprofiler-sdk's JSON."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emo.errors import TraceError
from emo.trace.model import Kind, RawCategory
from emo.trace.read import read_trace
from emo.trace.rocprof import read_rocprof

GPU, CPU = 900, 800


def dispatch(
    start: int, dur: int, correlation: int, *, kernel: int = 1, queue: int = 3, agent: int = GPU
) -> dict[str, Any]:
    return {
        "size": 184,
        "kind": 2,
        "operation": 2,
        "thread_id": 11,
        "correlation_id": {"internal": correlation, "external": 0},
        "start_timestamp": start,
        "end_timestamp": start + dur,
        "dispatch_info": {
            "agent_id": {"handle": agent},
            "queue_id": {"handle": queue},
            "kernel_id": kernel,
            "workgroup_size": {"x": 256, "y": 1, "z": 1},
            "grid_size": {"x": 1024 * kernel, "y": 1, "z": 1},
        },
        "stream_id": {"handle": 5},
    }


def call(start: int, dur: int, correlation: int, operation: int, kind: int = 0) -> dict[str, Any]:
    return {
        "kind": kind,
        "operation": operation,
        "thread_id": 11,
        "correlation_id": {"internal": correlation, "external": 0},
        "start_timestamp": start,
        "end_timestamp": start + dur,
    }


def process(**buffers: list[Any]) -> dict[str, Any]:
    return {
        "metadata": {"pid": 10},
        "agents": [
            {"id": {"handle": CPU}, "type": 1, "product_name": "a CPU", "logical_node_type_id": 0},
            {"id": {"handle": GPU}, "type": 2, "product_name": "AMD Instinct", "logical_node_type_id": 0},
            {"id": {"handle": GPU + 1}, "type": 2, "product_name": "AMD Instinct", "logical_node_type_id": 1},
        ],
        "strings": {
            "buffer_records": [
                {
                    "kind": "HIP_RUNTIME_API",
                    "operations": ["hipLaunchKernel", "hipMemcpyAsync", "hipDeviceSynchronize"],
                },
                {"kind": "MEMORY_COPY", "operations": ["MEMORY_COPY_NONE", "MEMORY_COPY_DEVICE_TO_HOST"]},
                {"kind": "KERNEL_DISPATCH", "operations": ["NONE", "ENQUEUE", "COMPLETE"]},
                {"kind": "MARKER_CORE_API", "operations": ["roctxMarkA", "roctxThreadRangeA"]},
            ],
            "marker_api": [{"key": 50, "value": "iteration 1"}],
        },
        "kernel_symbols": [
            {"kernel_id": 1, "formatted_kernel_name": "gemm", "kernel_name": "gemm.kd"},
            {"kernel_id": 2, "formatted_kernel_name": "ncclDevKernel_Generic_1", "kernel_name": "x.kd"},
        ],
        "buffer_records": buffers,
    }


def write(path: Path, *processes: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"rocprofiler-sdk-tool": list(processes)}))
    return path


def test_all_kinds_of_records_become_ops(tmp_path: Path) -> None:
    path = write(
        tmp_path / "results.json",
        process(
            kernel_dispatch=[
                dispatch(2_000, 500, 1),
                dispatch(3_000, 900, 2, kernel=2, queue=4, agent=GPU + 1),
            ],
            hip_api=[call(100, 50, 1, 0), call(200, 50, 2, 0), call(300, 60, 3, 1), call(5_000, 900, 4, 2)],
            memory_copy=[
                {
                    **call(4_000, 400, 3, 1, kind=1),
                    "src_agent_id": {"handle": GPU},
                    "dst_agent_id": {"handle": CPU},
                    "stream_id": {"handle": 5},
                    "bytes": 4096,
                }
            ],
            marker_api=[call(50, 9_000, 50, 1, kind=3)],
        ),
    )
    trace = read_trace(path)
    ops = trace.ops
    found = {
        (Kind(kind).name, trace.names[name], int(device), int(start), int(end - start))
        for kind, name, device, start, end in zip(
            ops.kind, ops.name_id, ops.device, ops.start_ns, ops.end_ns, strict=True
        )
    }
    assert found == {
        ("ANNOTATION", "iteration 1", -1, 50, 9_000),
        ("CPU_CALL", "hipLaunchKernel", -1, 100, 50),
        ("CPU_CALL", "hipLaunchKernel", -1, 200, 50),
        ("CPU_CALL", "hipMemcpyAsync", -1, 300, 60),
        ("KERNEL", "gemm", 0, 2_000, 500),
        ("COLLECTIVE", "ncclDevKernel_Generic_1", 1, 3_000, 900),
        ("MEMCPY", "Memcpy DtoH (Device -> Host)", 0, 4_000, 400),
        ("SYNC", "hipDeviceSynchronize", -1, 5_000, 900),
    }
    assert trace.quality.completeness == 1.0
    assert trace.quality.kernels_without_launch == 0
    assert [(t.pid, t.tid, t.first_ns, t.last_ns) for t in trace.threads] == [(10, 11, 50, 9_050)]
    assert [d.name for d in trace.devices] == ["AMD Instinct", "AMD Instinct"]
    copy = int(np.flatnonzero(ops.kind == Kind.MEMCPY)[0])
    assert ops.bytes[copy] == 4096
    assert ops.stream[copy] == 3  # where the kernels of the same HIP stream ran


def test_shapes_of_launches_are_told_apart(tmp_path: Path) -> None:
    records = [dispatch(0, 5, 1), dispatch(10, 5, 2), dispatch(20, 5, 3, kernel=2)]
    shapes = read_rocprof(write(tmp_path / "a.json", process(kernel_dispatch=records))).shape_hash
    assert shapes[0] == shapes[1] != shapes[2]
    assert 0 not in shapes


def test_correlation_ids_of_two_processes_do_not_meet(tmp_path: Path) -> None:
    one = process(kernel_dispatch=[dispatch(2_000, 500, 1)], hip_api=[call(1_000, 50, 1, 0)])
    two = process(kernel_dispatch=[dispatch(9_000, 500, 1, agent=GPU + 1)], hip_api=[call(8_000, 50, 1, 0)])
    trace = read_trace(write(tmp_path / "a.json", one, two))
    assert trace.quality.repaired == {}
    assert trace.quality.completeness == 1.0


@pytest.mark.parametrize(
    "bad",
    [
        {**dispatch(0, 5, 1), "start_timestamp": None},
        {**dispatch(0, 5, 1), "start_timestamp": "soon"},
        {**dispatch(0, 5, 1), "end_timestamp": 1 << 70},
        {**dispatch(0, 5, 1), "dispatch_info": 7},
        {"kind": 2},
        17,
    ],
)
def test_a_malformed_record_is_counted(tmp_path: Path, bad: object) -> None:
    raw = read_rocprof(write(tmp_path / "a.json", process(kernel_dispatch=[dispatch(0, 5, 1), bad])))
    assert raw.dropped == {"malformed": 1}
    assert raw.category.tolist() == [RawCategory.KERNEL]


def test_handles_that_are_addresses_become_small_stream_numbers(tmp_path: Path) -> None:
    records = [dispatch(0, 5, 1, queue=140341013919232), dispatch(9, 5, 2, queue=140341013919999)]
    streams = read_rocprof(write(tmp_path / "a.json", process(kernel_dispatch=records))).stream
    assert len(set(streams.tolist())) == 2
    assert np.all(streams >= 0)


@pytest.mark.parametrize("content", ["", "[]", '"no"', '[{"agents": 5}]', '{"a": 1}'])
def test_other_json_under_the_same_key_is_an_error(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"rocprofiler-sdk-tool": ' + content + "}")
    with pytest.raises(TraceError):
        read_trace(path)


def test_a_file_that_ends_early_is_an_error_that_says_so(tmp_path: Path) -> None:
    whole = write(
        tmp_path / "a.json", process(kernel_dispatch=[dispatch(i * 9, 5, i + 1) for i in range(99)])
    )
    cut = tmp_path / "cut.json.gz"
    cut.write_bytes(gzip.compress(whole.read_bytes())[:-60])
    with pytest.raises(TraceError, match="ends early"):
        read_trace(cut)


def test_the_sample_repeats_its_sequence_of_kernels(samples: Path) -> None:
    trace = read_trace(samples / "rocprof" / "mi350x_rocprofiler_sdk_908_results.json.gz")
    assert trace.quality.kernels == 43_915
    assert trace.iteration_source == "period"
    assert {step.kernels for step in trace.quality.steps[1:-1]} == {822}
    assert trace.devices[0].name == "AMD Instinct MI350X"
