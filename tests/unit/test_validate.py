"""What validation repairs, drops and counts, and what it leaves alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_builder import RawBuilder

from emo.trace.classify import ApiClass, CollectiveOp, api_class, collective_op
from emo.trace.model import GPU_KINDS, Kind, RawCategory, StepQuality, SyncInfo, Trace
from emo.trace.validate import gate, validate

US = 1_000
MS = 1_000_000


def rows(trace: Trace, name: str) -> list[int]:
    return [i for i in range(len(trace.ops)) if trace.names[trace.ops.name_id[i]] == name]


def row(trace: Trace, name: str) -> int:
    (found,) = rows(trace, name)
    return found


# --------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cudaLaunchKernel", ApiClass.LAUNCH),
        ("cudaLaunchKernel_v7000", ApiClass.LAUNCH),
        ("cudaLaunchKernelExC_v11060", ApiClass.LAUNCH),
        ("cuLaunchKernelEx", ApiClass.LAUNCH),
        ("cudaLaunchCooperativeKernel", ApiClass.LAUNCH),
        ("hipExtModuleLaunchKernel", ApiClass.LAUNCH),
        ("hipGraphLaunch", ApiClass.GRAPH_LAUNCH),
        ("cudaLaunchHostFunc", ApiClass.HOST_FUNC),
        ("cudaMemcpyAsync", ApiClass.MEMCPY_ASYNC),
        ("cuMemcpyHtoDAsync_v2", ApiClass.MEMCPY_ASYNC),
        ("hipMemcpyWithStream", ApiClass.MEMCPY),
        ("cuMemcpyDtoH_v2", ApiClass.MEMCPY),
        ("cudaMemsetAsync_ptsz", ApiClass.MEMSET_ASYNC),
        ("hipMemset", ApiClass.MEMSET),
        ("cuCtxSynchronize", ApiClass.SYNC_DEVICE),
        ("hipStreamSynchronize", ApiClass.SYNC_STREAM),
        ("cudaEventSynchronize", ApiClass.SYNC_EVENT),
        ("cudaEventRecordWithFlags_v11010", ApiClass.EVENT_RECORD),
        ("cudaStreamWaitEvent", ApiClass.STREAM_WAIT_EVENT),
        ("cudaEventQuery", ApiClass.EVENT_QUERY),
        ("cudaMallocHost", ApiClass.ALLOC),
        ("cuMemFree_v2", ApiClass.FREE),
        ("cudaMallocAsync", ApiClass.OTHER),
        ("cudaFreeAsync", ApiClass.OTHER),
        ("cudaStreamIsCapturing", ApiClass.OTHER),
        ("cudaFuncSetAttribute", ApiClass.OTHER),
        ("aten::mm", ApiClass.OTHER),
    ],
)
def test_calls_are_told_apart_by_name(name: str, expected: ApiClass) -> None:
    assert api_class(name) is expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", CollectiveOp.ALL_REDUCE),
        (
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            CollectiveOp.ALL_REDUCE,
        ),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", CollectiveOp.ALL_GATHER),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(x)", CollectiveOp.REDUCE_SCATTER),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL(x)", CollectiveOp.REDUCE),
        ("ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*)", CollectiveOp.BROADCAST),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", CollectiveOp.SEND_RECV),
        ("ncclDevKernel_Generic_1", CollectiveOp.UNKNOWN),
        ("void vllm::cross_device_reduce_2stage<__half, 8>(x)", CollectiveOp.ALL_REDUCE),
        ("nccl:all_to_all", CollectiveOp.ALL_TO_ALL),
        ("nccl:_reduce_scatter_base", CollectiveOp.REDUCE_SCATTER),
        ("void at::native::reduce_kernel<512, 1, ReduceOp>(x)", CollectiveOp.NONE),
        ("ampere_sgemm_128x64_tn", CollectiveOp.NONE),
    ],
)
def test_communicating_kernels_are_told_apart_by_name(name: str, expected: CollectiveOp) -> None:
    assert collective_op(name) is expected


# --------------------------------------------------------------------------- order and kinds


def test_rows_are_sorted_by_start_with_the_cpu_before_the_gpu() -> None:
    raw = (
        RawBuilder().kernel("k", 10, 5, 1).call("cudaLaunchKernel", 10, 2, 1).label("aten::mm", 3, 9).build()
    )
    trace = validate(raw)
    assert trace.ops.kind.tolist() == [Kind.CPU_CALL, Kind.KERNEL]
    assert trace.ops.end_ns.tolist() == [12, 15]
    assert trace.labels.start_ns.tolist() == [3]
    assert (trace.window_start_ns, trace.window_end_ns) == (3, 15)


def test_a_clean_trace_has_nothing_to_repair() -> None:
    trace = validate(
        RawBuilder().launch("k", 0, 9_000, 5_000, 1).launch("k", 5_000, 14_000, 5_000, 2).build()
    )
    quality = trace.quality
    assert (quality.dropped, quality.repaired, quality.clock_skew_ns) == ({}, {}, 0)
    assert (quality.launches, quality.kernels, quality.completeness) == (2, 2, 1.0)
    assert quality.head_loss_ns == 9_000
    assert [gate(step) for step in quality.steps] == [[]]


def test_an_empty_trace_is_a_trace() -> None:
    trace = validate(RawBuilder().build())
    assert len(trace.ops) == 0
    assert trace.quality.sync_info is SyncInfo.ABSENT
    assert trace.iteration_source == "none"


def test_send_and_receive_inside_an_all_to_all_annotation_is_a_collective() -> None:
    name = "ncclDevKernel_SendRecv(x)"
    raw = (
        RawBuilder()
        .mark("nccl:all_to_all", 0, 10_000)
        .launch(name, 1_000, 20_000, 5_000, 1)
        .mark("nccl:send 0->1", 30_000, 10_000)
        .launch(name, 31_000, 40_000, 5_000, 2)
        .launch(name, 50_000, 60_000, 5_000, 3)
        .build()
    )
    trace = validate(raw)
    assert trace.ops.kind[rows(trace, name)].tolist() == [Kind.COLLECTIVE, Kind.P2P, Kind.P2P]


def test_a_generic_kernel_is_what_the_annotation_around_its_launch_says() -> None:
    name = "ncclDevKernel_Generic_1"
    raw = (
        RawBuilder()
        .mark("nccl:recv 0<-1", 0, 10_000)
        .launch(name, 1_000, 20_000, 5_000, 1)
        .launch(name, 50_000, 60_000, 5_000, 2)
        .build()
    )
    trace = validate(raw)
    assert trace.ops.kind[rows(trace, name)].tolist() == [Kind.P2P, Kind.COLLECTIVE]


# --------------------------------------------------------------------------- times


def test_a_negative_duration_becomes_zero_and_is_counted() -> None:
    trace = validate(RawBuilder().launch("k", 0, 9_000, -7, 1).build())
    assert trace.ops.end_ns[row(trace, "k")] == 9_000
    assert trace.quality.repaired == {"negative_duration": 1}
    assert "1 of 2 records were repaired" in gate(trace.quality.steps[0])[0]


@pytest.mark.parametrize("far", [10**15, -(10**15), 4 * 10**18, -(4 * 10**18), 2**63 - 1, -(2**63)])
def test_a_record_from_another_time_is_dropped(far: int) -> None:
    raw = RawBuilder().launch("k", 0, 9_000, 5_000, 1).label("aten::mm", 0, 5)
    raw.kernel("lost", far, 10).label("lost", far, 10)
    trace = validate(raw.build())
    assert trace.quality.dropped == {"time_jump": 2}
    assert (trace.window_start_ns, trace.window_end_ns) == (0, 14_000)


def test_a_duration_of_weeks_is_dropped() -> None:
    raw = RawBuilder().launch("k", 0, 9_000, 5_000, 1).kernel("lost", 10_000, 10**15).build()
    assert validate(raw).quality.dropped == {"time_jump": 1}


def test_a_pause_of_minutes_is_kept() -> None:
    pause = 600 * 10**9
    trace = validate(RawBuilder().launch("a", 0, 9_000, 5, 1).launch("b", pause, pause + 9_000, 5, 2).build())
    assert trace.quality.dropped == {}
    assert trace.quality.kernels == 2


# --------------------------------------------------------------------------- API calls


def test_a_nested_launch_is_folded_into_the_outer_call() -> None:
    raw = (
        RawBuilder()
        .call("cudaLaunchKernel", 0, 9_003, 1)
        .call("cuLaunchKernel", 1_001, 5_000, 2)
        .kernel("k", 10_000, 5_000, 2)
        .build()
    )
    trace = validate(raw)
    assert trace.quality.dropped == {"nested_call": 1}
    assert trace.quality.completeness == 1.0
    assert (
        trace.ops.correlation[row(trace, "k")] == trace.ops.correlation[row(trace, "cudaLaunchKernel")] == 1
    )


def test_an_outer_call_that_means_nothing_takes_the_name_of_the_inner_one() -> None:
    raw = (
        RawBuilder()
        .call("cudaGraphInstantiate", 1, 90_000)
        .call("cudaStreamSynchronize", 10_000, 50_000, 5)
        .sync(5, stream=7)
        .build()
    )
    trace = validate(raw)
    wait = row(trace, "cudaStreamSynchronize")
    assert len(trace.ops) == 1
    assert trace.ops.kind[wait] == Kind.SYNC
    assert (trace.ops.start_ns[wait], trace.ops.end_ns[wait]) == (1, 90_001)
    assert (trace.ops.correlation[wait], trace.ops.sync_stream[wait]) == (5, 7)


def test_a_call_around_everything_is_dropped_and_what_it_holds_is_kept() -> None:
    builder = RawBuilder().call("cudaProfilerStart", 1, 10 * MS)
    for i in range(40):
        builder.launch("k", 100_001 * (i + 1), 100_001 * (i + 1) + 9_000, 5_000, i + 1)
    trace = validate(builder.build())
    assert trace.quality.dropped == {"envelope_call": 1}
    assert (trace.quality.launches, trace.quality.completeness) == (40, 1.0)


def test_calls_that_only_touch_by_rounding_are_not_nested() -> None:
    raw = (
        RawBuilder().call("cudaEventQuery", 0, 10 * US, 1).call("cudaEventRecord", 9 * US, 1 * US, 2).build()
    )
    trace = validate(raw)
    assert trace.ops.end_ns.tolist() == [9 * US, 10 * US]
    assert trace.quality.repaired == {"rounded_end": 1}
    assert trace.quality.steps[0].repaired == 0  # rounding casts no doubt on the trace


def test_calls_of_different_threads_may_overlap() -> None:
    raw = (
        RawBuilder()
        .call("cudaStreamSynchronize", 1, 99_999, 1)
        .call("cudaLaunchKernel", 5_001, 9, 2, 1)
        .build()
    )
    trace = validate(raw)
    assert len(trace.ops) == 2
    assert (trace.quality.dropped, trace.quality.repaired) == ({}, {})


def test_calls_that_overlap_without_nesting_are_cut_and_counted() -> None:
    raw = RawBuilder().call("cudaMalloc", 1, 50_000).call("cudaFree", 20_001, 50_000).build()
    trace = validate(raw)
    assert trace.ops.end_ns.tolist() == [20_001, 70_001]
    assert trace.quality.repaired == {"call_overlap": 1}


def test_the_first_launch_keeps_an_id_that_repeats() -> None:
    raw = (
        RawBuilder()
        .call("cudaGetDevice", 0, 100, 1)
        .call("cudaLaunchKernel", 10_000, 4_000, 1)
        .call("cudaLaunchKernel", 20_000, 4_000, 1)
        .kernel("k", 30_000, 5_000, 1)
        .build()
    )
    trace = validate(raw)
    assert trace.ops.correlation.tolist() == [-1, 1, -1, 1]
    assert trace.quality.repaired == {"duplicate_correlation": 2}
    assert trace.quality.launches_without_kernel == 1


def test_a_graph_launch_has_many_kernels() -> None:
    builder = RawBuilder().call("cudaGraphLaunch", 0, 9_000, 1)
    for i in range(300):
        builder.kernel("k", 10_000 + 2_000 * i, 1_500, 1)
    quality = validate(builder.build()).quality
    assert (quality.launches, quality.kernels, quality.kernels_without_launch) == (1, 300, 0)
    assert quality.repaired == {}


# --------------------------------------------------------------------------- synchronisation records


def test_a_record_says_which_event_a_stream_waits_for() -> None:
    raw = (
        RawBuilder()
        .call("cudaEventRecord", 0, 900, 1)
        .call("cudaStreamWaitEvent", 10_000, 900, 2)
        .sync(2, stream=20, sync_stream=7, sync_correlation=1)
        .call("cudaStreamWaitEvent", 20_000, 900, 3)
        .sync(3, stream=20, sync_stream=7, sync_correlation=999)
        .call("cudaStreamWaitEvent", 30_000, 900, 4)
        .build()
    )
    trace = validate(raw)
    ops, waits = trace.ops, rows(trace, "cudaStreamWaitEvent")
    assert ops.kind[waits].tolist() == [Kind.EVENT_WAIT] * 3
    assert ops.stream[waits].tolist() == [20, 20, -1]
    assert ops.sync_stream[waits].tolist() == [7, 7, -1]
    assert ops.sync_correlation[waits].tolist() == [1, -2, -1]  # 999 was recorded before the window
    assert trace.quality.sync_info is SyncInfo.RECORDED


def test_a_record_without_its_call_is_counted() -> None:
    trace = validate(RawBuilder().launch("k", 0, 9_000, 5_000, 1).sync(77, stream=7).build())
    assert trace.quality.dropped == {"sync_without_call": 1}


def test_sync_info_is_inferred_with_waits_but_no_records_and_absent_without_waits() -> None:
    waits = RawBuilder().call("cudaStreamWaitEvent", 0, 900, 1).build()
    only_stream = RawBuilder().call("cudaStreamSynchronize", 0, 900, 1).sync(1, stream=7).build()
    stream_told_events_not = (
        RawBuilder()
        .call("cudaStreamWaitEvent", 0, 900, 1)
        .call("cudaStreamSynchronize", 2_000, 900, 2)
        .sync(2, stream=7)
    )
    assert validate(waits).quality.sync_info is SyncInfo.INFERRED
    assert validate(only_stream).quality.sync_info is SyncInfo.RECORDED
    assert validate(stream_told_events_not.build()).quality.sync_info is SyncInfo.INFERRED
    assert validate(RawBuilder().launch("k", 0, 9, 5, 1).build()).quality.sync_info is SyncInfo.ABSENT


# --------------------------------------------------------------------------- clocks and streams


def launches(lead_ns: list[int]) -> RawBuilder:
    """A launch every 100 us, each kernel ``lead_ns`` after its launch."""
    builder = RawBuilder()
    for i, lead in enumerate(lead_ns):
        builder.launch("k", 100_001 * i, 100_001 * i + lead, 3_000, i + 1)
    return builder


def test_a_gpu_clock_that_is_behind_is_shifted_by_the_least_amount() -> None:
    trace = validate(launches([-20_000 + 10 * i for i in range(500)]).build())
    assert trace.quality.clock_skew_ns == 20_000
    ops = trace.ops
    launch_of = dict(
        zip(ops.correlation[ops.kind == Kind.CPU_CALL], ops.start_ns[ops.kind == Kind.CPU_CALL], strict=True)
    )
    gpu = np.flatnonzero(ops.kind == Kind.KERNEL)
    assert min(ops.start_ns[i] - launch_of[ops.correlation[i]] for i in gpu) == 0
    assert trace.quality.kernels_without_launch == 0
    assert np.all(np.diff(ops.start_ns) >= 0)


def test_one_kernel_before_its_launch_loses_it_and_no_clock_moves() -> None:
    trace = validate(launches([5_000] * 1_500 + [-50_000]).build())
    quality = trace.quality
    assert quality.clock_skew_ns == 0
    assert quality.repaired == {"kernel_before_launch": 1}
    assert (quality.kernels_without_launch, quality.launches_without_kernel) == (1, 1)


def test_an_offset_of_more_than_ten_milliseconds_is_not_corrected() -> None:
    quality = validate(launches([-20 * MS] * 20).build()).quality
    assert quality.clock_skew_ns == 0
    assert quality.repaired == {"kernel_before_launch": 20}


def test_overlap_by_rounding_is_removed_and_real_overlap_is_kept() -> None:
    raw = (
        RawBuilder()
        .kernel("a", 0, 10_000)
        .kernel("b", 9_000, 20_000)
        .kernel("c", 20_000, 20_000)
        .kernel("other stream", 5_000, 50_000, stream=8)
        .build()
    )
    trace = validate(raw)
    ends = {trace.names[n]: int(e) for n, e in zip(trace.ops.name_id, trace.ops.end_ns, strict=True)}
    assert ends == {"a": 9_000, "b": 29_000, "c": 40_000, "other stream": 55_000}
    assert trace.quality.repaired == {"rounded_end": 1}
    assert trace.metadata["overlapping_ops_on_one_stream"] == "1"


def test_overlap_ratio_counts_streams_not_ops() -> None:
    alone = RawBuilder().kernel("a", 0, 100).kernel("b", 50, 100)
    assert validate(alone.build()).quality.overlap_ratio == 0.0
    two = RawBuilder().kernel("a", 0, 100_000).kernel("b", 50_000, 100_000, stream=8)
    assert validate(two.build()).quality.overlap_ratio == pytest.approx(50 / 150)


def test_a_gpu_op_without_a_device_goes_to_the_only_one() -> None:
    trace = validate(RawBuilder().kernel("k", 0, 5, device=-1).build(devices=0))
    assert trace.ops.device.tolist() == [0]
    assert trace.quality.repaired == {"device_guessed": 1}


def test_a_gpu_op_without_a_device_is_dropped_where_there_are_several() -> None:
    raw = (
        RawBuilder().kernel("k", 0, 5, device=0).kernel("k", 9, 5, device=1).kernel("lost", 20, 5, device=-1)
    )
    trace = validate(raw.build(devices=2))
    assert trace.quality.dropped == {"no_device": 1}
    assert trace.quality.kernels == 2


# --------------------------------------------------------------------------- completeness and the gate


def test_a_lost_kernel_makes_the_step_incomplete_and_not_idle() -> None:
    builder = RawBuilder()
    for step in range(3):
        base = step * MS
        builder.mark(f"ProfilerStep#{step}", base, MS)
        for i in range(10):
            at, correlation = base + 50_001 * i, step * 10 + i + 1
            if step == 1:
                builder.call("cudaLaunchKernel", at, 4_000, correlation)
            else:
                builder.launch("k", at, at + 9_000, 5_000, correlation)
    quality = validate(builder.build()).quality
    assert [step.completeness for step in quality.steps] == [1.0, 0.0, 1.0]
    assert [bool(gate(step)) for step in quality.steps] == [False, True, False]
    assert any("10 of 10 launches have no GPU op" in reason for reason in gate(quality.steps[1]))


def test_a_graph_that_lost_its_kernels_is_not_one_launch_of_many() -> None:
    builder = RawBuilder()
    for step in range(3):
        base = step * MS
        builder.mark(f"ProfilerStep#{step}", base, MS)
        for i in range(200):
            builder.launch("k", base + 4_001 * i, base + 4_001 * i + 2_000, 900, 1_000 * step + i + 1)
        builder.call("cudaGraphLaunch", base + 900_001, 9_000, 1_000 * step + 999)
        for i in range(50 if step != 1 else 0):
            builder.kernel("g", base + 910_001 + 1_000 * i, 900, 1_000 * step + 999)
    steps = validate(builder.build()).quality.steps
    assert [step.launches for step in steps] == [201, 250, 201]
    assert [bool(gate(step)) for step in steps] == [False, True, False]


def test_a_queued_kernel_belongs_to_the_step_that_launched_it() -> None:
    raw = (
        RawBuilder()
        .mark("ProfilerStep#0", 0, MS)
        .mark("ProfilerStep#1", MS, MS)
        .launch("k", 1_000, 1_500_000, 5_000, 1)
        .launch("k", MS + 1_000, 1_600_000, 5_000, 2)
        .build()
    )
    assert [step.kernels for step in validate(raw).quality.steps] == [1, 1]


def test_a_memset_of_nothing_is_no_launch_but_a_lost_one_is() -> None:
    raw = (
        RawBuilder()
        .launch("k", 0, 9_000, 5_000, 1)
        .call("cudaMemsetAsync", 20_000, 240, 2)
        .call("cudaMemsetAsync", 30_001, 4_000, 3)
        .build()
    )
    quality = validate(raw).quality
    assert (quality.launches, quality.launches_without_kernel) == (2, 1)


def test_what_is_captured_into_a_graph_is_no_launch() -> None:
    raw = (
        RawBuilder()
        .call("cudaStreamBeginCapture", 0, 900)
        .call("cudaLaunchKernel", 10_000, 4_000, 1)
        .call("cudaStreamEndCapture", 20_000, 900)
        .launch("k", 30_000, 40_000, 5_000, 2)
        .build()
    )
    quality = validate(raw).quality
    assert (quality.launches, quality.completeness) == (1, 1.0)


@pytest.mark.parametrize(
    ("step", "passes"),
    [
        (StepQuality(0, 1, 1000, 10, 990, 9, 1), True),
        (StepQuality(0, 1, 1000, 11, 990, 0, 0), False),
        (StepQuality(0, 1, 1000, 0, 1000, 11, 0), False),
        (StepQuality(0, 1, 1000, 0, 1000, 0, 3), False),
        (StepQuality(0, 1, 0, 0, 0, 0, 0), False),
    ],
)
def test_the_gate_has_the_thresholds_of_the_design(step: StepQuality, passes: bool) -> None:
    assert (gate(step) == []) is passes


# --------------------------------------------------------------------------- any input

_times = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 10**9)
_record = st.tuples(
    st.sampled_from(list(RawCategory)),
    st.sampled_from(
        ["cudaLaunchKernel", "cudaGraphLaunch", "cudaStreamWaitEvent", "ncclDevKernel_SendRecv", "k"]
    ),
    _times,
    _times,
    st.integers(-1, 5),
    st.integers(-1, 2),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(_record, max_size=40))
def test_no_records_make_it_raise_and_the_result_keeps_its_promises(
    records: list[tuple[RawCategory, str, int, int, int, int]],
) -> None:
    builder = RawBuilder()
    for category, name, start, dur, correlation, where in records:
        if category in (RawCategory.LABEL, RawCategory.API, RawCategory.ANNOTATION):
            columns = {"thread": max(where, 0)}
        else:
            columns = {"device": where, "stream": where, "sync_correlation": correlation}
        builder.add(category, name, start, dur, correlation=correlation, **columns)
    trace = validate(builder.build())
    ops, quality = trace.ops, trace.quality
    assert np.all(np.diff(ops.start_ns) >= 0)
    assert np.all(ops.end_ns >= ops.start_ns)
    calls = np.isin(ops.kind, (Kind.CPU_CALL, Kind.SYNC, Kind.EVENT_RECORD, Kind.EVENT_WAIT))
    known = ops.correlation[calls & (ops.correlation >= 0)]
    assert len(np.unique(known)) == len(known)
    gpu = np.isin(ops.kind, GPU_KINDS)
    assert np.all(ops.device[gpu] >= 0)
    assert quality.kernels == np.count_nonzero(gpu)
    assert 0.0 <= quality.completeness <= 1.0
    assert 0.0 <= quality.overlap_ratio <= 1.0
    for thread in range(len(trace.threads)):
        mine = np.flatnonzero(calls & (ops.thread == thread))
        assert np.all(ops.end_ns[mine][:-1] <= ops.start_ns[mine][1:])  # a thread does one thing at a time
