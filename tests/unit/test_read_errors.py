"""What is no usable trace ends in an error that says what it is and what to do."""

from __future__ import annotations

import gzip
import json
import os
import sqlite3
from pathlib import Path

import pytest

from emo.errors import TraceError
from emo.trace.read import read_trace, sniff


def refuse(path: Path) -> str:
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert caught.value.expected in text and caught.value.hint in text
    return text


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "an empty file (0 bytes)"),
        (b" \n\t ", "nothing but white space"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 64, "a PNG image"),
        (b"PK\x03\x04" + b"\0" * 64, "a ZIP archive"),
        (b"hello", "'hello'"),
        (bytes(range(200)), "binary data"),
        (b"\x1f\x8b", "gzip"),
        (b"\x1f\x8b" + b"\xff" * 99, "gzip"),
        (gzip.compress(b""), "gzip"),
        (gzip.compress(b"\x89PNG\r\n"), "a PNG image inside gzip"),
        (gzip.compress(b"SQLite format 3\0" + b"\0" * 99), "a compressed SQLite file"),
        (b"SQLite format 3\0", "SQLite"),
        (b"SQLite format 3\0" + b"\x01" * 4096, "SQLite"),
        (b"{}", "traceEvents"),
        (b"[]", "trace events"),
        (b"{", "traceEvents"),
        (b'{"a": [1, 2, {"b": "c"}]}', "traceEvents"),
        (b"\xef\xbb\xbf{}", "traceEvents"),
        (b"[" * 100_000, ""),
        (b'{"rocprofiler-sdk-tool": ' + b"[" * 100_000, ""),
    ],
)
def test_what_is_no_trace_is_named(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "file.json"  # the name promises a trace; the content decides
    path.write_bytes(content)
    assert says in refuse(path)


def test_what_cannot_be_opened_is_named(tmp_path: Path) -> None:
    assert "No such file" in refuse(tmp_path / "missing.json")
    assert "a directory" in refuse(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert "a pipe or a device" in refuse(pipe)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="the superuser may read everything")
def test_a_file_without_permission_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret.json"
    path.write_text("{}")
    path.chmod(0)
    assert "ermission" in refuse(path)


def test_a_database_of_something_else_is_refused_with_its_tables(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE customers (id INTEGER)")
    assert "customers" in refuse(path)


def test_advice_depends_on_the_kind_of_file(tmp_path: Path) -> None:
    path = tmp_path / "report.nsys-rep"
    path.write_bytes(b"\0\1\2\3" * 64)
    assert "nsys export --type sqlite" in refuse(path)


def test_a_trace_without_gpu_activity_is_refused_with_what_it_holds(tmp_path: Path) -> None:
    def event(name: str, cat: str, ts: int) -> dict[str, object]:
        return {
            "ph": "X",
            "cat": cat,
            "name": name,
            "pid": 1,
            "tid": 1,
            "ts": ts,
            "dur": 5,
            "args": {"correlation": ts},
        }

    path = tmp_path / "cpu.json"
    events = [event("aten::mm", "cpu_op", 1), event("cudaLaunchKernel", "cuda_runtime", 2)]
    path.write_text(json.dumps({"traceEvents": events}))
    text = refuse(path)
    assert "no GPU activity (1 CPU ops, 1 runtime calls, 1 of them launches" in text
    assert "ProfilerActivity.CUDA" in text


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'{"traceEvents": []}', "kineto"),
        (b"\n[{}]", "kineto"),
        (b'{"rocprofiler-sdk-tool": []}', "rocprof"),
        (b"SQLite format 3\0rest", "nsys"),
    ],
)
def test_the_content_tells_the_format(tmp_path: Path, content: bytes, expected: str) -> None:
    for name, data in (("x.png", content), ("x.bin", gzip.compress(content))):
        path = tmp_path / name
        path.write_bytes(data)
        if expected == "nsys" and name == "x.bin":
            continue
        assert sniff(path) == expected


def test_every_sample_is_a_trace_or_tells_that_it_has_no_gpu_activity(samples: Path) -> None:
    without_gpu = set()
    for path in sorted(p for p in samples.glob("*/*") if p.suffix in (".gz", ".json", ".sqlite")):
        try:
            assert read_trace(path).quality.kernels > 0
        except TraceError as error:
            assert "no GPU activity" in str(error)
            without_gpu.add(path.name.split(".")[0])
    assert without_gpu == {
        "cupti_profiler_no_kernels",
        "distributed_info_not_found",
        "rank-34",
        "rank_not_found",
        "torch2",
    }
