"""One read of one trace, timed inside a fresh process, as one JSON line: see ``bench.py``.

    python tests/bench/read_columns.py columns TRACE   # EMO: gunzip, decode, columns
    python tests/bench/read_columns.py orjson TRACE    # gunzip, then orjson.loads of all bytes

Imports are not counted. A fresh process for each read keeps the two apart: neither finds
memory that the other has already touched.
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
import time

SMALLEST_TRACE = b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1}]}'


def time_columns(trace: str) -> dict[str, float]:
    """``{"seconds"}`` of EMO's Kineto reader, decompression included."""
    from emo.trace.kineto import read_kineto

    # The reader imports parts of itself at the first call; start-up is not what is measured here.
    with tempfile.NamedTemporaryFile(suffix=".json") as first:
        first.write(SMALLEST_TRACE)
        first.flush()
        read_kineto(first.name)
    start = time.perf_counter()
    raw = read_kineto(trace)
    seconds = time.perf_counter() - start
    del raw
    return {"seconds": seconds}


def time_orjson(trace: str) -> dict[str, float]:
    """``{"gunzip_s", "loads_s", "seconds"}`` of a plain parse into Python objects."""
    import orjson

    start = time.perf_counter()
    with open(trace, "rb") as file:
        content = file.read()
    if content[:2] == b"\x1f\x8b":
        content = gzip.decompress(content)
    unpacked = time.perf_counter()
    document = orjson.loads(content)
    done = time.perf_counter()
    del document
    return {"gunzip_s": unpacked - start, "loads_s": done - unpacked, "seconds": done - start}


READERS = {"columns": time_columns, "orjson": time_orjson}

if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in READERS:
        sys.exit(f"usage: read_columns.py {'|'.join(READERS)} TRACE")
    print(json.dumps(READERS[sys.argv[1]](sys.argv[2])))
