"""Fuzz the trace readers for a fixed time: ``python tests/fuzz/fuzz_readers.py --seconds 60``.

Valid traces are damaged (bytes changed, cut out, doubled, put in from elsewhere, the end
cut off) and read. Whatever comes in, a reader gives columns that fit together or raises
``TraceError``, within seconds; and the Kineto scanner gives the same however its input
is cut into pieces, and the same as its twin where the text is still JSON.

Not part of the normal test run. Hypothesis shrinks a failure and prints how to repeat it.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sqlite3
import tempfile
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from emo.errors import TraceError
from emo.trace import _kineto_py
from emo.trace.kineto import Scan, scan_pieces
from emo.trace.model import RawTrace
from emo.trace.read import read_raw

LIMIT_S = 5.0
"""No damaged file of a few kilobytes may take longer to read."""

KINETO = json.dumps(
    {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "GPU"}],
        "distributedInfo": {"rank": 0, "world_size": 2, "pg_config": [{"pg_name": "0", "ranks": [0, 1]}]},
        "baseTimeNanoseconds": 1735632360000000000,
        "traceEvents": [
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 9, "tid": 9, "ts": 1.5, "dur": 20}
            | {"args": {"Input Dims": [[1, 2], []], "Call stack": 'a "b" \\ \u20ac'}},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9}
            | {"ts": 2e1, "dur": 3, "args": {"correlation": 5, "cbid": 211}},
            {
                "ph": "X",
                "cat": "kernel",
                "name": "k<float>(int)",
                "pid": 0,
                "tid": 7,
                "ts": "31.125",
                "dur": 9,
            }
            | {"args": {"device": 0, "stream": 7, "correlation": 5, "grid": [8, 1, 1], "block": [256, 1, 1]}},
            {
                "ph": "X",
                "cat": "kernel",
                "name": "ncclDevKernel_AllReduce",
                "pid": 0,
                "tid": 20,
                "ts": 50,
                "dur": 9,
            }
            | {"args": {"stream": 20, "dtype": "Float", "In msg nelems": 64, "Process Group Name": "0"}},
            {"ph": "X", "cat": "cuda_sync", "name": "Event Sync", "pid": 0, "tid": -1, "ts": 60, "dur": 1}
            | {"args": {"stream": -1, "wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 5}},
            {"ph": "f", "id": 5, "cat": "ac2g", "ts": 31},
        ],
        "traceName": "t",
    }
).encode()

ROCPROF = json.dumps(
    {
        "rocprofiler-sdk-tool": [
            {
                "metadata": {"pid": 1},
                "agents": [{"id": {"handle": 1}, "type": 2, "name": "gfx950", "logical_node_type_id": 0}],
                "strings": {"buffer_records": [{"kind": "KERNEL_DISPATCH", "operations": []}]},
                "kernel_symbols": [{"kernel_id": 1, "formatted_kernel_name": "k"}],
                "buffer_records": {
                    "kernel_dispatch": [
                        {"start_timestamp": 5, "end_timestamp": 9, "correlation_id": {"internal": 1}}
                        | {
                            "dispatch_info": {
                                "agent_id": {"handle": 1},
                                "queue_id": {"handle": 2},
                                "kernel_id": 1,
                            }
                        }
                    ]
                },
            }
        ]
    }
).encode()


def nsys() -> bytes:
    """The least SQLite export: two kernels and their launches."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "t.sqlite")
        base = sqlite3.connect(path)
        base.executescript(
            """
            CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (
                start INT, end INT, deviceId INT, contextId INT, streamId INT, correlationId INT,
                globalPid INT, demangledName INT, shortName INT, gridX INT, gridY INT, gridZ INT,
                blockX INT, blockY INT, blockZ INT, graphNodeId INT);
            CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (
                start INT, end INT, globalTid INT, correlationId INT, nameId INT);
            INSERT INTO StringIds VALUES (1, 'k'), (2, 'cudaLaunchKernel_v7000');
            INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL
                VALUES (10, 20, 0, 1, 7, 5, 1, 1, 1, 1, 1, 1, 1, 1, 1, NULL);
            INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (1, 3, 77, 5, 2);
            """
        )
        base.close()
        return path.read_bytes()


SEEDS = {
    "kineto": KINETO,
    "array": KINETO[KINETO.index(b'[{"ph"') :],
    "gzip": gzip.compress(KINETO),
    "rocprof": ROCPROF,
    "nsys": nsys(),
}

FRAGMENTS = [
    b'"',
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"null",
    b"NaN",
    b"-",
    b"1e999",
    b"\x00",
    b"\xff",
    b" ",
]
FRAGMENTS += [b"\\u", b"\\ud83d", b"9" * 30, b'"traceEvents":[', b'"ts":', b"\x1f\x8b", b"\xef\xbb\xbf"]

places = st.floats(0, 1, exclude_max=True)
edits = st.one_of(
    st.tuples(
        st.just("put"), places, st.one_of(st.sampled_from(FRAGMENTS), st.binary(min_size=1, max_size=4))
    ),
    st.tuples(st.just("over"), places, st.binary(min_size=1, max_size=4)),
    st.tuples(st.just("drop"), places, st.integers(1, 40)),
    st.tuples(st.just("copy"), places, st.integers(1, 400)),
    st.tuples(st.just("end"), places, st.just(0)),
)


def damage(content: bytes, todo: list[tuple[str, float, Any]]) -> bytes:
    """``content`` after some edits, each at a relative place."""
    for kind, place, what in todo:
        at = int(place * len(content))
        if kind == "put":
            content = content[:at] + what + content[at:]
        elif kind == "over":
            content = content[:at] + what + content[at + len(what) :]
        elif kind == "drop":
            content = content[:at] + content[at + what :]
        elif kind == "copy":
            content = content[: at + what] + content[at:]
        else:
            content = content[:at]
    return content


def check_raw(raw: RawTrace) -> None:
    """Columns of one length, whose indices point into their tables."""
    n = len(raw.category)
    for column in (getattr(raw, f.name) for f in fields(raw)):
        assert not isinstance(column, np.ndarray) or len(column) == n
    for index, table in (
        (raw.name_id, raw.names),
        (raw.thread, raw.threads),
        (raw.collective_group, raw.groups),
    ):
        assert n == 0 or (index.max() < len(table) and index.min() >= -1)
    assert all(count > 0 for count in raw.dropped.values())


def check_reading(content: bytes) -> None:
    """Any reader, by content: columns or ``TraceError``, soon."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        file.write(content)
        file.flush()
        begin = time.monotonic()
        message = ""
        try:
            check_raw(read_raw(file.name))
        except TraceError as error:
            message = str(error)
        assert "\n" not in message, "a message is one line"
        assert time.monotonic() - begin < LIMIT_S


def check_scanner(content: bytes, size: int) -> None:
    """The Kineto scanner does not depend on how its input is cut, and agrees with its twin on JSON."""
    whole = scan_pieces([content])
    cut = scan_pieces([content[i : i + size] for i in range(0, len(content), size)])
    assert equal(whole, cut)
    try:
        json.loads(content.removeprefix(b"\xef\xbb\xbf").decode(), strict=False, parse_int=str)
    except (ValueError, RecursionError):
        return
    assert equal(whole, _kineto_py.scan_text(content))


def equal(left: Scan, right: Scan) -> bool:
    same_columns = all(np.array_equal(left.columns[name], right.columns[name]) for name in left.columns)
    rest = [f.name for f in fields(left) if f.name != "columns"]
    return same_columns and all(getattr(left, name) == getattr(right, name) for name in rest)


@settings(
    max_examples=500,
    deadline=None,
    database=None,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)
@given(st.sampled_from(list(SEEDS)), st.lists(edits, max_size=6), st.integers(1, 700))
def fuzz(seed: str, todo: list[tuple[str, float, Any]], size: int) -> None:
    content = damage(SEEDS[seed], todo)
    check_reading(content)
    check_scanner(content, size)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    seconds = parser.parse_args().seconds
    end = time.monotonic() + seconds
    rounds = 0
    while time.monotonic() < end:
        fuzz()
        rounds += 1
    print(f"{rounds * 500} damaged traces in {seconds:.0f} s: no failure")


if __name__ == "__main__":
    main()
