"""The Kineto reader: every schema to exact columns, every kind of damage to a count or a clear error."""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emo.errors import TraceError
from emo.trace import _kineto_py, kineto
from emo.trace.kineto import Scan, read_kineto, scan_pieces
from emo.trace.model import CollectiveGroup, DeviceInfo, RawCategory, RawTrace, Thread

LARGEST_TWIN_BYTES = 300_000  # of a sample as it is stored: the twin takes seconds for more


def event(cat: str, name: str = "op", **fields_: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 2, "ts": 10, "dur": 5, **fields_}


def kernel(name: Any = "k", *, ts: Any = 20, dur: Any = 5, **args: Any) -> dict[str, Any]:
    return event("kernel", name, pid=0, tid=7, ts=ts, dur=dur, args={"device": 0, "stream": 7, **args})


def write(folder: Path, events: list[Any], **top: Any) -> Path:
    path = folder / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, **top, "traceEvents": events}))
    return path


def read(folder: Path, events: list[Any], **top: Any) -> RawTrace:
    """Read by both readers, which must agree."""
    path = write(folder, events, **top)
    raw = read_kineto(path)
    assert differences(raw, _kineto_py.read(path)) == []
    return raw


def read_text(folder: Path, content: str | bytes) -> RawTrace:
    path = folder / "trace.json"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_kineto(path)


def differences(left: Any, right: Any) -> list[str]:
    """Fields of two dataclasses that are not equal in value and type."""
    found = []
    for f in fields(left):
        a, b = getattr(left, f.name), getattr(right, f.name)
        if f.name == "columns":
            found += [c for c in a if not same_array(a[c], b[c])]
        elif not (same_array(a, b) if isinstance(a, np.ndarray) else a == b):
            found.append(f.name)
    return found


def same_array(a: Any, b: Any) -> bool:
    return a.dtype == b.dtype and np.array_equal(a, b)


def pieces(content: bytes, size: int) -> list[bytes]:
    return [content[i : i + size] for i in range(0, len(content), size)]


# --------------------------------------------------------------------------- times


@pytest.mark.parametrize(
    ("text", "expected_ns"),
    [
        ("0", 0),
        ("-0.0", 0),
        ("1", 1_000),
        ("1669783687464300", 1_669_783_687_464_300_000),
        ("4203669604595.407", 4_203_669_604_595_407),
        # A float64 would make ...464. of this:
        ("1669783687464300.465", 1_669_783_687_464_300_465),
        ("0.0005", 1),
        ("0.00049999999999999999999", 0),
        ("-0.0005", -1),
        ("2.6785", 2_679),
        ("1.5e3", 1_500_000),
        ("1.5E+3", 1_500_000),
        ("15000e-4", 1_500),
        ("123456789e-10", 12),
        ("1e-300", 0),
        ("0e999999999999999999999", 0),
        ("0." + "0" * 300 + "1e302", 10_000),
        ("1" + "0" * 300 + "e-299", 10_000),
        ("-7", -7_000),
        ("2999999999999999.999", 2_999_999_999_999_999_999),
        ("3000000000000000", 3_000_000_000_000_000_000),
        ('"12.25"', 12_250),
    ],
)
def test_times_are_converted_digit_by_digit(tmp_path: Path, text: str, expected_ns: int) -> None:
    for key in ("ts", "dur"):
        written = json.dumps([{**kernel(), key: "HERE"}]).replace('"HERE"', text)
        raw = read_text(tmp_path, written)
        assert (raw.start_ns if key == "ts" else raw.dur_ns).tolist() == [expected_ns]
        assert raw.dropped == {}
        assert differences(raw, _kineto_py.read(tmp_path / "trace.json")) == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("null", kineto.NO_TIME),
        ("NaN", kineto.TIME_NOT_A_NUMBER),
        ("-Infinity", kineto.TIME_NOT_A_NUMBER),
        ("true", kineto.TIME_NOT_A_NUMBER),
        ('"soon"', kineto.TIME_NOT_A_NUMBER),
        ('""', kineto.TIME_NOT_A_NUMBER),
        ('"1."', kineto.TIME_NOT_A_NUMBER),
        ('"1e"', kineto.TIME_NOT_A_NUMBER),
        ('" 1"', kineto.TIME_NOT_A_NUMBER),
        ('"0x10"', kineto.TIME_NOT_A_NUMBER),
        ("[1]", kineto.TIME_NOT_A_NUMBER),
        ('{"us": 1}', kineto.TIME_NOT_A_NUMBER),
        ("3000000000000000.001", kineto.TIME_OUT_OF_RANGE),
        ("-1e30", kineto.TIME_OUT_OF_RANGE),
        ("1e99999999999999999999", kineto.TIME_OUT_OF_RANGE),
        ("1" + "0" * 5000, kineto.TIME_OUT_OF_RANGE),
    ],
)
def test_a_record_without_a_usable_time_is_dropped_and_counted(
    tmp_path: Path, text: str, reason: str
) -> None:
    for key in ("ts", "dur"):
        written = json.dumps([kernel("kept"), {**kernel("lost"), key: "HERE"}]).replace('"HERE"', text)
        raw = read_text(tmp_path, written)
        assert raw.names == ["kept"]
        assert raw.dropped == {reason: 1}
        assert differences(raw, _kineto_py.read(tmp_path / "trace.json")) == []


def test_missing_times_are_counted_and_negative_durations_kept(tmp_path: Path) -> None:
    without = [{k: v for k, v in kernel().items() if k != key} for key in ("ts", "dur")]
    raw = read(tmp_path, [*without, kernel(dur=-3)])
    assert raw.dropped == {kineto.NO_TIME: 2}
    assert raw.dur_ns.tolist() == [-3_000]


def test_base_time_is_added_wherever_it_stands(tmp_path: Path) -> None:
    events = json.dumps([kernel(ts=4203669604595.407), event("cpu_op", ts=1)])
    base = '"baseTimeNanoseconds": 1735632360000000000'
    for content in (f'{{{base}, "traceEvents": {events}}}', f'{{"traceEvents": {events}, {base}}}'):
        raw = read_text(tmp_path, content)
        assert raw.start_ns.tolist() == [
            1_735_632_360_000_000_000 + 4_203_669_604_595_407,
            1_735_632_360_000_001_000,
        ]
        assert raw.threads == [Thread(1, 2, 1_735_632_360_000_001_000, 1_735_632_360_000_006_000)]
        assert raw.metadata["baseTimeNanoseconds"] == "1735632360000000000"


# --------------------------------------------------------------------------- schemas


@pytest.mark.parametrize(
    ("cat", "category"),
    [
        ("Operator", RawCategory.LABEL),
        ("Runtime", RawCategory.API),
        ("Kernel", RawCategory.KERNEL),
        ("Memcpy", RawCategory.MEMCPY),
        ("Memset", RawCategory.MEMSET),
        ("cpu_op", RawCategory.LABEL),
        ("cuda_runtime", RawCategory.API),
        ("cuda_driver", RawCategory.API),
        ("kernel", RawCategory.KERNEL),
        ("gpu_memcpy", RawCategory.MEMCPY),
        ("gpu_memset", RawCategory.MEMSET),
        ("user_annotation", RawCategory.ANNOTATION),
        ("cuda_sync", RawCategory.SYNC),
    ],
)
def test_categories_of_2021_and_of_today(tmp_path: Path, cat: str, category: RawCategory) -> None:
    raw = read(tmp_path, [event(cat)])
    assert raw.category.tolist() == [category]
    on_cpu = category in (RawCategory.LABEL, RawCategory.API, RawCategory.ANNOTATION)
    assert raw.thread.tolist() == [0 if on_cpu else -1]


def test_what_is_no_activity_is_ignored_and_not_counted(tmp_path: Path) -> None:
    others = [event(cat) for cat in ("gpu_user_annotation", "overhead", "Trace", "cuda_profiler_range", "")]
    flows = [{**event("ac2g"), "ph": ph} for ph in "sf"]
    named = [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}]
    raw = read(tmp_path, [*others, *flows, *named, {**event("kernel"), "ph": "E"}, {}, kernel()])
    assert len(raw.category) == 1
    assert raw.dropped == {}


def test_elements_that_are_no_complete_events_are_counted(tmp_path: Path) -> None:
    raw = read(tmp_path, [1, "text", None, [], [kernel()], {**event("kernel"), "ph": "B"}, kernel()])
    assert raw.dropped == {kineto.NOT_AN_OBJECT: 5, kineto.BEGIN_END_EVENT: 1}
    assert len(raw.category) == 1


def test_a_plain_array_of_events_is_a_trace(tmp_path: Path) -> None:
    raw = read_text(tmp_path, json.dumps([kernel("a"), kernel("b")]))
    assert raw.names == ["a", "b"]
    assert (raw.rank, raw.world_size, raw.devices) == (-1, -1, [])


def test_keys_may_stand_in_any_order_and_be_escaped(tmp_path: Path) -> None:
    items = list(kernel("k", correlation=9).items())
    for seed in range(10):
        random.Random(seed).shuffle(items)
        raw = read_text(tmp_path, json.dumps([dict(items)]).replace('"dur"', '"d\\u0075r"'))
        assert (raw.start_ns[0], raw.dur_ns[0], raw.correlation[0]) == (20_000, 5_000, 9)


def test_rank_world_size_devices_and_metadata(tmp_path: Path) -> None:
    raw = read(
        tmp_path,
        [kernel()],
        distributedInfo={"backend": "nccl", "rank": 3, "world_size": 8},
        deviceProperties=[{"id": 0, "name": "Tesla V100"}, {"id": 1, "name": "Tesla V100"}, {"name": "?"}, 4],
        trace_id="8DAB",
        cuda_runtime_version=12040,
        with_flops=True,
    )
    assert (raw.rank, raw.world_size) == (3, 8)
    assert raw.devices == [DeviceInfo(0, "Tesla V100"), DeviceInfo(1, "Tesla V100")]
    assert raw.metadata == {
        "schemaVersion": "1",
        "trace_id": "8DAB",
        "cuda_runtime_version": "12040",
        "with_flops": "true",
    }


@pytest.mark.parametrize(
    "info", [None, {}, {"rank": None}, {"rank": "x", "world_size": -1}, [], {"rank": 1.5}]
)
def test_a_missing_or_odd_rank_is_unknown(tmp_path: Path, info: Any) -> None:
    raw = read(tmp_path, [kernel()], distributedInfo=info)
    assert (raw.rank, raw.world_size) == (-1, -1)


# --------------------------------------------------------------------------- fields


def test_device_and_stream_of_gpu_ops(tmp_path: Path) -> None:
    events = [
        event("kernel", pid=5, tid=9, args={"device": 1, "stream": 2}),
        event("Kernel", pid=3, tid="stream 7"),  # 2021 without args
        event("kernel", pid="3", tid="9"),
        event("kernel", pid="gpu", tid="queue"),
        event("kernel", args={"device": -1, "stream": -1}),
        event("kernel", args={"device": 4294967295, "stream": 4294967295}),
        event("kernel", args={"device": "1", "stream": "0x7f"}, tid=4),
    ]
    raw = read(tmp_path, events)
    assert raw.device.tolist() == [1, 3, 3, -1, -1, -1, 1]
    assert raw.stream.tolist() == [2, 7, 9, -1, -1, -1, 4]


def test_a_call_has_a_stream_only_where_the_record_says_so(tmp_path: Path) -> None:
    events = [event("cuda_runtime", tid=7), event("cuda_runtime", args={"stream": 3, "device": 1})]
    raw = read(tmp_path, events)
    assert raw.stream.tolist() == [-1, 3]
    assert raw.device.tolist() == [-1, -1]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (7, 7),
        ("7", 7),
        (0, -1),
        (-1, -1),
        (2**63 - 1, 2**63 - 1),
        (2**63, -1),
        (10**40, -1),
        (1.0, -1),
        ("7x", -1),
        (None, -1),
        ([7], -1),
    ],
)
def test_correlation_is_an_id_or_unknown(tmp_path: Path, value: Any, expected: int) -> None:
    assert read(tmp_path, [kernel(correlation=value)]).correlation.tolist() == [expected]


def test_bytes_of_copies_and_collectives(tmp_path: Path) -> None:
    collective = {"In msg nelems": 1000, "Out msg nelems": 4000}
    events = [
        event("gpu_memcpy", args={"bytes": 92928}),
        event("Memset", args={"Bytes": "20736"}),
        event("cuda_runtime", args={"size": "2560"}),
        kernel(**collective, dtype="BFloat16"),
        kernel(**collective, dtype="Float"),
        kernel(**collective, dtype="unknown"),
        kernel(**{"In msg nelems": -1}, dtype="Float"),
        kernel(**{"In msg nelems": 2**62}, dtype="Float"),
        kernel(),
    ]
    assert read(tmp_path, events).bytes.tolist() == [92928, 20736, 2560, 2000, 4000, -1, -1, -1, -1]


def test_process_groups(tmp_path: Path) -> None:
    def collective(name: Any, ranks: Any = None, **args: Any) -> dict[str, Any]:
        known = {"Process Group Name": name, "Process Group Ranks": ranks}
        return kernel(**{k: v for k, v in known.items() if v is not None}, **args)

    events = [
        kernel(),
        collective("0", "[0, 1]", **{"Group size": 2, "Seq": 5}),
        collective("tp", "[0, 1, ...]", **{"Group size": 64}),
        collective("0", "[0, 1]", **{"Group size": 2, "Seq": 6}),
        collective("known"),
        collective(4, "[4, 5, 6]"),
        collective(None, **{"Group size": 8, "Seq num": "7"}),
    ]
    config = [{"pg_name": "known", "pg_size": 3, "ranks": [0, 2, 4]}, {"pg_name": "other"}, 5]
    raw = read(tmp_path, events, distributedInfo={"rank": 0, "pg_config": config})
    assert raw.collective_group.tolist() == [-1, 0, 1, 0, 2, 3, 4]
    assert raw.collective_seq.tolist() == [-1, 5, -1, 6, -1, -1, 7]
    assert raw.groups == [
        CollectiveGroup("0", 2, (0, 1)),
        CollectiveGroup("tp", 64, ()),
        CollectiveGroup("known", 3, (0, 2, 4)),
        CollectiveGroup("4", 3, (4, 5, 6)),
        CollectiveGroup("", 8, ()),
    ]


def test_shape_hash_tells_grids_and_blocks_apart(tmp_path: Path) -> None:
    shapes: list[dict[str, Any]] = [
        {"grid": [8, 16, 5], "block": [128, 1, 1]},
        {"grid": [8, 16, 5], "block": [128, 1, 2]},
        {"grid": [81, 6, 5], "block": [128, 1, 1]},
        {"grid": [128, 1, 1], "block": [8, 16, 5]},
        {"grid": [8, 16, 5]},
        {"block": [8, 16, 5]},
        {"grid": "grid(100,)"},
        {"grid": [[8]], "block": ["8"]},
        {},
    ]
    raw = read(tmp_path, [kernel(**shape) for shape in shapes])
    hashes = raw.shape_hash.tolist()
    assert len(set(hashes[:6])) == 6
    assert hashes[6:] == [0, 0, 0]
    assert min(hashes[:6]) > 0
    spaced = read_text(
        tmp_path,
        '[{"ph":"X","cat":"kernel","ts":1,"dur":1,"args":{"block":[128,1,1],"grid":[ 8 ,\n16, 5 ]}}]',
    )
    assert spaced.shape_hash[0] == hashes[0]


def test_synchronisation_records(tmp_path: Path) -> None:
    def sync(name: str, **args: Any) -> dict[str, Any]:
        return event("cuda_sync", name, pid=0, tid=-1, args={"device": 0, "correlation": 50, **args})

    record = "wait_on_cuda_event_record_corr_id"
    events = [
        sync("Stream Wait Event", stream=24, wait_on_stream=20, **{record: 1385}),
        sync("Event Sync", stream=-1, wait_on_stream=-1, **{record: -1}),
        sync("Stream Wait Event", stream=20, wait_on_stream=7),  # older: does not say which record
        sync("Stream Sync", stream=7),
        sync("Context Sync", stream=4294967295),
        event("cuda_event", "Event Record", args={"stream": 7, "correlation": 49}),
    ]
    raw = read(tmp_path, events)
    assert raw.stream.tolist() == [24, -1, 20, 7, -1, 7]
    assert raw.sync_stream.tolist() == [20, -1, 7, -1, -1, -1]
    assert raw.sync_correlation.tolist() == [1385, -2, -1, -1, -1, -1]
    assert raw.correlation.tolist() == [50, 50, 50, 50, 50, 49]
    assert set(raw.thread.tolist()) == {-1}


def test_graph_nodes(tmp_path: Path) -> None:
    raw = read(tmp_path, [kernel(**{"graph node id": 12}), kernel(**{"graph node id": 0}), kernel()])
    assert raw.graph_node.tolist() == [12, -1, -1]


def test_threads_span_all_their_records(tmp_path: Path) -> None:
    events = [
        event("cpu_op", ts=100, dur=10),
        event("cuda_runtime", tid="2", ts=105, dur=-50),
        event("python_function", ts=1, dur=2),
        event("user_annotation", tid="main", ts=7, dur=1),
        event("python_function", tid=8, ts=300, dur=4),
        event("gpu_user_annotation", ts=0, dur=9000),
        event("cpu_op", ts=None),
    ]
    raw = read(tmp_path, events)
    assert raw.thread.tolist() == [0, 0, 1]
    assert [(t.first_ns, t.last_ns) for t in raw.threads] == [
        (1_000, 110_000),
        (7_000, 8_000),
        (300_000, 304_000),
    ]
    assert [(t.pid, t.tid) for t in raw.threads[::2]] == [(1, 2), (1, 8)]
    assert raw.threads[1].tid < -1
    assert raw.names == ["op"]


# --------------------------------------------------------------------------- text


def test_names_are_decoded_once_and_in_order_of_first_use(tmp_path: Path) -> None:
    names = ['say "hi"', "tab\tnew\nline", "\\", "é€😀", "\x00", "", "lambda()#1}", "é€😀"]
    raw = read(tmp_path, [kernel(name) for name in names])
    assert raw.names == names[:-1]
    assert raw.name_id.tolist() == [0, 1, 2, 3, 4, 5, 6, 3]
    escaped = read_text(tmp_path, json.dumps([kernel("é€😀")], ensure_ascii=True))
    assert escaped.names == ["é€😀"]


def test_what_is_no_text_is_replaced(tmp_path: Path) -> None:
    template = json.dumps([kernel("HERE"), kernel("THERE"), kernel("k")]).encode()
    raw = read_text(tmp_path, template.replace(b"HERE", b"a\xffb", 1).replace(b"THERE", b"a\xfeb"))
    assert raw.names == ["a�b", "k"]
    assert raw.name_id.tolist() == [0, 0, 1]
    half_pairs = read_text(
        tmp_path, template.replace(b"HERE", b"\\ud83d", 1).replace(b"THERE", b"\\ude00\\ud83d\\u0041")
    )
    assert half_pairs.names == ["�", "��A", "k"]
    for text in (*raw.names, *half_pairs.names):
        text.encode()


def test_names_that_are_no_strings_are_empty(tmp_path: Path) -> None:
    raw = read(tmp_path, [kernel(name) for name in (5, None, ["a"], {"b": 1})])
    assert raw.names == [""]


# --------------------------------------------------------------------------- damage

SMALL = json.dumps(
    {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": 'V"100'}],
        "baseTimeNanoseconds": 1735632360000000000,
        "traceEvents": [
            event("cpu_op", "aten::mm", args={"Input Dims": [[1, 2], []]}),
            kernel("k\u20ac\\", ts=20.125, correlation=3, grid=[1, 2, 3]),
            None,
        ],
        "distributedInfo": {"rank": 1, "world_size": 2},
        "version": 12,
    }
).encode()


def test_a_file_cut_anywhere_gives_its_complete_events(tmp_path: Path) -> None:
    events_begin = SMALL.index(b'"traceEvents": [') + len(b'"traceEvents": [')
    first_end = SMALL.index(b"}}, {") + 2
    for cut in range(1, len(SMALL) + 1):
        scan = scan_pieces([SMALL[:cut]])
        assert differences(scan, _kineto_py.scan_text(SMALL[:cut])) == [], cut
        assert scan.truncated == (cut < len(SMALL))
        assert scan.has_events == (cut >= events_begin)
        assert (len(scan.columns["start_ns"]) > 0) == (cut >= first_end)


def test_pieces_may_be_cut_anywhere() -> None:
    whole = scan_pieces([SMALL])
    assert len(whole.columns["start_ns"]) == 2
    for size in range(1, 60):
        assert differences(scan_pieces(pieces(SMALL, size)), whole) == [], size


@pytest.mark.parametrize("kept", [0.2, 0.6, 0.999])
def test_a_truncated_gzip_gives_what_it_holds(tmp_path: Path, kept: float) -> None:
    rng = random.Random(1)
    events = [kernel(str(rng.random()), ts=i) for i in range(3000)]
    compressed = gzip.compress(json.dumps({"traceEvents": events}).encode())
    path = tmp_path / "trace.json.gz"
    path.write_bytes(compressed[: int(len(compressed) * kept)])
    raw = read_kineto(path)
    assert raw.truncated
    assert 0.9 * kept < len(raw.start_ns) / 3000 < 1.0
    assert raw.start_ns.tolist() == [1000 * i for i in range(len(raw.start_ns))]


def test_a_gzip_that_breaks_gives_what_came_before(tmp_path: Path) -> None:
    rng = random.Random(1)
    compressed = bytearray(
        gzip.compress(json.dumps([kernel(str(rng.random())) for _ in range(9000)]).encode())
    )
    middle = len(compressed) // 2
    compressed[middle : middle + 200] = bytes(200)
    path = tmp_path / "trace.json.gz"
    path.write_bytes(compressed)
    raw = read_kineto(path)
    assert raw.truncated
    assert 0 < len(raw.start_ns) < 9000


def test_a_gzip_of_several_members_is_one_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(b"".join(gzip.compress(piece) for piece in pieces(SMALL, 100)) + b"\x00" * 10)
    raw = read_kineto(path)
    assert len(raw.start_ns) == 2
    assert not raw.truncated


def test_a_byte_order_mark_and_what_follows_the_document_are_ignored(tmp_path: Path) -> None:
    raw = read_text(tmp_path, b"\xef\xbb\xbf \n" + SMALL + b"\n}garbage")
    assert len(raw.start_ns) == 2
    assert not raw.truncated


@pytest.mark.parametrize(
    "bad",
    [
        '{"ph":"X","cat":"kernel" "ts":1}',
        '{"ph":"X","cat":"kernel","ts":1 2,"dur":1}',
        '{"ph",}',
        '{5:5,"args":{"a":[{}]}}',
    ],
)
def test_an_event_that_is_no_json_is_dropped_and_counted(tmp_path: Path, bad: str) -> None:
    good = json.dumps(kernel())
    raw = read_text(tmp_path, f'{{"traceEvents": [{good}, {bad}, {good}], "schemaVersion": 2}}')
    assert len(raw.start_ns) == 2
    assert raw.dropped == {kineto.MALFORMED_RECORD: 1}
    assert not raw.truncated
    assert differences(raw, _kineto_py.read(tmp_path / "trace.json")) == []


def test_bare_nan_in_a_field_that_is_not_needed_does_no_harm(tmp_path: Path) -> None:
    bad = json.dumps(kernel(**{"memory bandwidth (GB/s)": "HERE"})).replace('"HERE"', "-nan(ind)")
    raw = read_text(tmp_path, f"[{bad}, {json.dumps(kernel())}]")
    assert len(raw.start_ns) == 2
    assert raw.dropped == {}


def test_text_that_breaks_off_ends_the_walk(tmp_path: Path) -> None:
    raw = read_text(tmp_path, f'{{"traceEvents": [{json.dumps(kernel())}]; "rank": 1}}')
    assert len(raw.start_ns) == 1
    assert raw.truncated


def test_deep_nesting_is_skipped(tmp_path: Path) -> None:
    deep = "[" * 200_000 + "]" * 200_000
    good = json.dumps(kernel())
    raw = read_text(
        tmp_path, f'{{"x": {deep}, "traceEvents": [{good}, {{"ph": "X", "args": {deep}}}, {good}]}}'
    )
    assert len(raw.start_ns) == 2
    assert not raw.truncated


def test_values_beyond_their_limits_are_skipped_without_being_held(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (kineto, _kineto_py):
        monkeypatch.setattr(module, "MAX_RECORD_BYTES", 300)
        monkeypatch.setattr(module, "MAX_METADATA_BYTES", 40)
    long = 'quotes " and \\ and ]}' * 20
    document = {
        "text": long,
        "list": [[long], {"a": long}],
        "number": 5,
        "traceEvents": [kernel("a"), kernel(long), long, kernel("b")],
        "after": [long],
        "last": "x",
    }
    content = json.dumps(document).replace('"number": 5', '"number": 5' + "0" * 400).encode()
    whole = _kineto_py.scan_text(content)
    assert whole.names == ["a", "b"]
    assert whole.dropped == {kineto.TOO_LARGE: 2}
    assert list(whole.metadata) == ["last"]
    for size in (1, 2, 3, 7, 64, 301, len(content)):
        assert differences(scan_pieces(pieces(content, size)), whole) == [], size


def test_a_huge_event_costs_time_in_proportion(tmp_path: Path) -> None:
    """Doubling the window keeps the walk linear: 8 MiB in 1 KiB pieces would else be 32 GiB of scanning."""
    big = json.dumps([kernel("big", text="x" * (8 << 20)), kernel("k")]).encode()
    assert scan_pieces(pieces(big, 1024)).names == ["big", "k"]


# --------------------------------------------------------------------------- what is no trace


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "an empty file"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "a PNG image"),
        (b"SQLite format 3\x00", "an SQLite database"),
        (b"\x00\x01\x02", "binary data"),
        (b"hello", "text that begins with 'hello'"),
        (b'"traceEvents"', "text that begins with"),
        (b"{}", "without trace events"),
        (b'{"a": 1, "b": [2]}', "without a traceEvents array (keys: 'a', 'b')"),
        (b'{"two\\nlines": 1}', "(keys: 'two\\nlines')"),
        (b'{"traceEvents": 5}', "without a traceEvents array"),
        (b'{"traceEvents": {"a": 1}}', "without a traceEvents array"),
        (b"[]", "without trace events"),
        (b'[1, {"a": 2}]', "without trace events"),
        (b'{"schemaVersion": 1, "dev', "ends or breaks before any traceEvents"),
        (b"{", "ends or breaks before any traceEvents"),
        (b"[", "ends or breaks before any traceEvents"),
        (gzip.compress(b"hello"), "gzip-compressed file that holds text"),
        (gzip.compress(b""), "gzip-compressed file that holds nothing"),
        (b"\x1f\x8b", "gzip-compressed file that holds nothing"),
        (b"\x1f\x8bgarbage, not deflate", "gzip-compressed file that holds nothing"),
    ],
)
def test_what_is_no_trace_is_refused_in_words(tmp_path: Path, content: bytes, found: str) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(TraceError) as caught:
        read_kineto(path)
    assert found in caught.value.found
    assert "Kineto" in caught.value.expected
    assert str(path) in str(caught.value)


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "absent.json", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(TraceError, match=reason):
            read_kineto(path)


def test_a_trace_without_events_or_gpu_is_no_error(tmp_path: Path) -> None:
    raw = read(tmp_path, [])
    assert len(raw.start_ns) == 0
    assert raw.start_ns.dtype == np.int64
    assert len(read(tmp_path, [event("cpu_op")]).start_ns) == 1


# --------------------------------------------------------------------------- the twin

texts = st.text(max_size=12)
numbers = st.one_of(
    st.integers(-(10**25), 10**25),
    st.integers(-3, 10),
    st.sampled_from([4294967295, 2**31 - 1, 2**31, 2**63 - 1, 2**63, -(2**63), 1669783687464300]),
    st.floats(allow_nan=True, allow_infinity=True),
    st.decimals(min_value=-(10**14), max_value=10**14, places=3).map(float),
)
scalars = st.one_of(st.none(), st.booleans(), numbers, texts, st.integers().map(str))
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
ARGS_KEYS = """
    correlation, device, stream, bytes, Bytes, size, dtype, grid, block, External id, Seq, Ev Idx,
    wait_on_stream, wait_on_cuda_event_record_corr_id, Group size, Process Group Name, Process Group Ranks,
    In msg nelems,
    graph node id
"""
args_keys = st.sampled_from([key.strip() for key in ARGS_KEYS.split(",")])
args_values = st.one_of(
    values,
    st.integers(0, 2**32).map(str),
    st.lists(st.integers(0, 2000), max_size=3),
    st.sampled_from(["Float", "Half", "[0, 1]", "[0, 1, ...]"]),
)
events_ = st.fixed_dictionaries(
    {},
    optional={
        "ph": st.sampled_from(["X", "X", "X", "B", "i", 5, None]),
        "cat": st.one_of(st.sampled_from(list(kineto.CATEGORIES)), texts, st.none()),
        "name": st.one_of(texts, scalars),
        "pid": st.one_of(st.integers(0, 3), scalars),
        "tid": st.one_of(st.integers(0, 3), st.just("stream 7"), scalars),
        "ts": st.one_of(st.integers(0, 10**16), numbers, scalars),
        "dur": st.one_of(st.integers(-5, 10**6), numbers, scalars),
        "args": st.one_of(st.dictionaries(args_keys, args_values, max_size=8), values),
        "extra": values,
    },
)
likely_events = st.builds(
    lambda event_, cat: {"ph": "X", "cat": cat, "ts": 1.5, "dur": 2, **event_},
    events_,
    st.sampled_from(list(kineto.CATEGORIES)),
)
documents = st.builds(
    lambda before, events, after: {**before, "traceEvents": events, **after},
    st.dictionaries(texts, values, max_size=2),
    st.lists(st.one_of(likely_events, events_, values), max_size=8),
    st.fixed_dictionaries(
        {},
        optional={
            "distributedInfo": st.dictionaries(st.sampled_from(["rank", "world_size", "pg_config"]), values),
            "deviceProperties": st.lists(
                st.dictionaries(st.sampled_from(["id", "name"]), scalars), max_size=2
            ),
            "baseTimeNanoseconds": numbers,
        },
    ),
)


class Shuffled(json.JSONEncoder):
    """Keys in another order, however deep they stand."""

    def __init__(self, seed: int, **options: Any) -> None:
        super().__init__(**options)
        self.random = random.Random(seed)

    def encode(self, value: Any) -> str:
        return super().encode(self.shuffled(value))

    def shuffled(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.shuffled(item) for item in value]
        if not isinstance(value, dict):
            return value
        keys = list(value)
        self.random.shuffle(keys)
        return {key: self.shuffled(value[key]) for key in keys}


def scan_both(content: bytes, size: int) -> Scan:
    scan = scan_pieces(pieces(content, size))
    assert differences(scan, _kineto_py.scan_text(content)) == []
    return scan


@given(
    documents,
    st.integers(0, 2**32),
    st.booleans(),
    st.sampled_from([None, 0, 3]),
    st.integers(1, 300),
    st.floats(0, 1),
)
def test_the_twin_agrees_on_any_document(
    document: Any, seed: int, ascii_: bool, indent: int | None, size: int, kept: float
) -> None:
    content = (
        Shuffled(seed, ensure_ascii=ascii_, indent=indent).encode(document).encode("utf-8", "surrogatepass")
    )
    scan = scan_both(content, size)
    assert not scan.truncated
    scan_both(content[: int(kept * len(content))] or b"{", size)


def test_the_twin_agrees_on_the_samples(samples: Path) -> None:
    compared = 0
    for path in sorted([*samples.glob("*/*.json"), *samples.glob("*/*.json.gz")]):
        if path.stat().st_size > LARGEST_TWIN_BYTES or "rocprof" in path.parts:
            continue
        assert differences(read_kineto(path), _kineto_py.read(path)) == [], path
        compared += 1
    assert compared > 10


@pytest.mark.parametrize(
    ("name", "rows", "kernels", "rank", "world_size"),
    [
        # Counts of INDEX.md, which were taken with another JSON parser.
        ("hta/df_index_resolver.json.gz", 123_378, 19_370, 1, 2),
        ("tracelens/inference_xdit_sd_3.5_profile_trace_rank_0.json.gz", 65_880, 8_042, 0, 1),
        ("kineto_tb/nw0_v1.json.gz", 54_319, 9_564, -1, -1),
    ],
)
def test_large_samples(samples: Path, name: str, rows: int, kernels: int, rank: int, world_size: int) -> None:
    raw = read_kineto(samples / name)
    assert len(raw.category) == rows
    assert np.count_nonzero(raw.category == RawCategory.KERNEL) == kernels
    assert (raw.rank, raw.world_size) == (rank, world_size)
    assert raw.dropped == {}
    assert not raw.truncated
    gpu = np.isin(raw.category, (RawCategory.KERNEL, RawCategory.MEMCPY, RawCategory.MEMSET))
    assert min(raw.device[gpu].min(), raw.stream[gpu].min()) >= 0
    assert raw.correlation[gpu].min() > 0
