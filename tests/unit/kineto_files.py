"""Small Kineto files whose timeline can be checked by hand.

A step lasts 1000 us. In it the CPU launches two kernels, ``first`` (runs 120-420 us) and ``second``
(520-720 us), and, in a job of several ranks, an all-reduce that ends at 900 us on every rank; then
it waits for the stream (from 855 us, from 675 us without the all-reduce) until 5 us after its last
kernel.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

STEP_US = 1000
FIRST_US, SECOND_US = 300, 200
ALL_REDUCE_END_US = 900
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
STREAM = 7


def write_job(folder: Path, arrivals_us: Sequence[int], steps: int = 4) -> list[str]:
    """One file per rank; ``arrivals_us``: when, in a step, each rank enters the all-reduce."""
    files = []
    for rank, arrival_us in enumerate(arrivals_us):
        path = folder / f"rank{rank}.json"
        files.append(write_trace(path, steps, rank=rank, world_size=len(arrivals_us), arrival_us=arrival_us))
    return files


def write_trace(
    path: Path,
    steps: int = 4,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    arrival_us: int | None = None,
    second: str = "second",
    lost_kernels: bool = False,
) -> str:
    """Write one file and return its path. ``lost_kernels``: all but the very first are missing."""
    events: list[dict[str, Any]] = []
    for step in range(steps):
        at = step * STEP_US
        events.append(_cpu("user_annotation", f"ProfilerStep#{step}", at, STEP_US))
        events += _launch(at + 100, at + 120, FIRST_US, "first", 10 * step + 1)
        events += _launch(at + 500, at + 520, SECOND_US, second, 10 * step + 2)
        until = 720
        if arrival_us is not None:
            events += _launch(
                at + arrival_us - 20,
                at + arrival_us,
                ALL_REDUCE_END_US - arrival_us,
                ALL_REDUCE,
                10 * step + 3,
            )
            until = ALL_REDUCE_END_US
        wait = at + until - 45
        events.append(_cpu("cuda_runtime", "cudaStreamSynchronize", wait, 50, correlation=10 * step + 4))
    if lost_kernels:
        kernels = [event for event in events if event["cat"] == "kernel"]
        events = [event for event in events if event not in kernels[1:]]
    document: dict[str, Any] = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "Test GPU"}],
        "traceEvents": events,
    }
    if rank is not None:
        document["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": world_size}
    path.write_text(json.dumps(document), encoding="utf-8")
    return str(path)


def _launch(
    call_us: int, kernel_us: int, duration_us: int, name: str, correlation: int
) -> list[dict[str, Any]]:
    kernel = {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": 0,
        "tid": STREAM,
        "ts": kernel_us,
        "dur": duration_us,
        "args": {"device": 0, "stream": STREAM, "correlation": correlation},
    }
    return [_cpu("cuda_runtime", "cudaLaunchKernel", call_us, 10, correlation=correlation), kernel]


def _cpu(category: str, name: str, start_us: int, duration_us: int, **args: int) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 100,
        "tid": 100,
        "ts": start_us,
        "dur": duration_us,
        "args": args,
    }
