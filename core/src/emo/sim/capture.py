"""What a profiler would have written: Kineto JSON per rank, with what real captures lack and garble.

The quirks are those of real captures: fractional microseconds against ``baseTimeNanoseconds``, clocks
of hosts that disagree, synchronisation records only if asked for, the first kernels of a session
missing (one more per session), launches from before the window, NCCL metadata on the kernels, steps
as ``ProfilerStep#`` annotations, peers that nobody traced.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from emo.errors import InputError
from emo.sim.player import Run
from emo.sim.program import Code, Flag, Group

BASE_TIME_NS = 1_760_000_000_000_000_000
"""Unix time at which the virtual clock of a run stands at 0."""

GPUS_PER_HOST = 8


@dataclass(frozen=True, slots=True)
class CaptureOptions:
    """How the capture is taken.

    ``session``: the k-th of a process loses k kernels at its head (pytorch#192021). ``sync_records``:
    ``cuda_sync`` records, which only on-demand traces have by default. ``ranks``: those that are
    traced; None: all. ``ranks_per_host``: the clocks of hosts differ. ``query_records``: successful
    event queries have a synchronisation record too.
    """

    session: int = 0
    sync_records: bool = False
    query_records: bool = False
    nccl_metadata: bool = True
    ranks: tuple[int, ...] | None = None
    ranks_per_host: int = 4
    clock_offset_ns: int = 400_000
    clock_drift_ppm: float = 4.0


def write_captures(run: Run, folder: Path, options: CaptureOptions | None = None) -> list[Path]:
    """One ``rank<r>.json.gz`` per traced rank. Raises InputError if the run was not traced."""
    options = options or CaptureOptions()
    if run.trace_steps[1] < run.trace_steps[0]:
        raise InputError("the run was played without tracing; play it with tracing=True")
    folder.mkdir(parents=True, exist_ok=True)
    ranks = range(run.program.ranks) if options.ranks is None else options.ranks
    paths = []
    for rank in ranks:
        path = folder / f"rank{rank}.json.gz"
        text = json.dumps(capture(run, rank, options), separators=(",", ":"))
        # mtime 0: equal runs give equal bytes
        path.write_bytes(gzip.compress(text.encode(), compresslevel=1, mtime=0))
        paths.append(path)
    return paths


def capture(run: Run, rank: int, options: CaptureOptions) -> dict[str, Any]:
    """The document of one rank."""
    return _Capture(run, rank, options).document()


def _decimal_us(ns: int) -> float:
    """Nanoseconds as Kineto writes microseconds: three decimals. Exact for less than 100 days."""
    return ns / 1_000


class _Row(NamedTuple):
    """A record and the operation it is of, as plain Python numbers."""

    start_ns: int
    end_ns: int
    bytes: int
    lane: int
    code: int
    correlation: int
    kernel: int
    sequence: int
    op: int
    stream: int
    a: int
    flags: int
    name: int


class _Capture:
    """One rank's trace while it is put together."""

    def __init__(self, run: Run, rank: int, options: CaptureOptions) -> None:
        self.run, self.rank, self.options = run, rank, options
        self.program = run.program
        self.device = rank % GPUS_PER_HOST
        self.pid = 20_000 + 10 * rank
        host = rank // options.ranks_per_host
        rng = np.random.default_rng([run.seed, 0xC10C, host])
        self.offset_ns = int(rng.uniform(-1, 1) * options.clock_offset_ns) if host else 0
        self.drift = float(rng.uniform(-1, 1) * options.clock_drift_ppm * 1e-6) if host else 0.0
        marks = run.marks[run.marks["rank"] == rank]
        first, last = run.trace_steps
        self.mark_ns = {int(mark["step"]): int(mark["time_ns"]) for mark in marks}
        self.begin_ns = self.mark_ns[first]
        self.end_ns = self.mark_ns[last + 1]
        self.main_thread = int(np.flatnonzero(self.program.threads[:, 0] == rank)[0])
        # By event: correlation and stream of its last record.
        self.record_of: dict[int, tuple[int, int]] = {}

    def document(self) -> dict[str, Any]:
        """The JSON document."""
        mine = self.run.records[self.run.records["rank"] == self.rank]
        calls = mine[(mine["on_gpu"] == 0) & (mine["end_ns"] > 0)]
        calls = calls[np.argsort(calls["start_ns"], kind="stable")]
        events = list(self._steps())
        events += self._calls(calls)
        events += self._gpu(mine[mine["on_gpu"] == 1], calls)
        spec = self.run.specs[self.rank]
        return {
            "schemaVersion": 1,
            "deviceProperties": [{"id": self.device, "name": f"NVIDIA {spec.name}"}],
            "distributedInfo": self._distributed(),
            "baseTimeNanoseconds": BASE_TIME_NS,
            "displayTimeUnit": "ms",
            "traceName": f"rank{self.rank}.json",
            "traceEvents": events,
        }

    def _distributed(self) -> dict[str, Any]:
        config = [
            {"pg_name": g.name, "pg_desc": "", "pg_size": len(g.members), "ranks": list(g.members)}
            for g in self.program.groups
            if not g.point_to_point
        ]
        return {
            "backend": "nccl",
            "rank": self.rank,
            "world_size": self.program.ranks,
            "pg_count": len(config),
            "pg_config": config,
        }

    # ----------------------------------------------------------------------- times

    def _local_ns(self, time_ns: int) -> int:
        """On the clock of this rank's host."""
        return time_ns + self.offset_ns + round(time_ns * self.drift)

    def _event(
        self, cat: str, name: str, pid: int, tid: int, start_ns: int, end_ns: int, **args: Any
    ) -> dict[str, Any]:
        start, end = self._local_ns(start_ns), self._local_ns(end_ns)
        return {
            "ph": "X",
            "cat": cat,
            "name": name,
            "pid": pid,
            "tid": tid,
            "ts": _decimal_us(start),
            "dur": _decimal_us(end - start),
            "args": args,
        }

    # ----------------------------------------------------------------------- CPU

    def _steps(self) -> Iterator[dict[str, Any]]:
        first, last = self.run.trace_steps
        for step in range(first, last + 1):
            yield self._event(
                "user_annotation",
                f"ProfilerStep#{step}",
                self.pid,
                self.pid,
                self.mark_ns[step],
                self.mark_ns[step + 1],
            )

    def _tid(self, lane: int) -> int:
        return self.pid + lane - self.main_thread

    def _calls(self, calls: NDArray[np.void]) -> list[dict[str, Any]]:
        """Events of the CPU, in order of time. Events that were recorded before the window are known too."""
        events: list[dict[str, Any]] = []
        for row in self._rows(calls):
            if row.code == Code.RECORD:
                self.record_of[row.a] = (row.correlation, row.stream)
            if self.begin_ns <= row.start_ns < self.end_ns:
                events += self._call(row)
        return events

    def _rows(self, records: NDArray[np.void]) -> Iterator[_Row]:
        ops = self.program.ops[records["op"]]
        tables = [records] * 8 + [records] + [ops] * 4
        columns = [table[name].tolist() for table, name in zip(tables, _Row._fields, strict=True)]
        return map(_Row._make, zip(*columns, strict=True))

    def _call(self, row: _Row) -> Iterator[dict[str, Any]]:
        tid = self._tid(row.lane)
        if row.code == Code.CPU:
            name = self.program.names[row.name]
            if name:
                yield self._event("cpu_op", name, self.pid, tid, row.start_ns, row.end_ns)
            return
        if row.code not in _CALLS:
            return
        if row.code == Code.COLLECTIVE:
            text = self._communication(row)
            yield self._event("user_annotation", text, self.pid, tid, row.start_ns, row.end_ns)
        name = _CALLS[row.code]
        if row.code == Code.COPY and row.flags & Flag.BLOCKING:
            name = "cudaMemcpy"
        yield self._event(
            "cuda_runtime", name, self.pid, tid, row.start_ns, row.end_ns, correlation=row.correlation
        )
        if self.options.sync_records or (self.options.query_records and row.code == Code.POLL):
            yield from self._sync_record(row)

    def _communication(self, row: _Row) -> str:
        """How PyTorch annotates the call."""
        group = self.program.groups[row.a]
        if group.point_to_point:
            source, target = group.members
            if self.rank == source:
                return f"nccl:send {source}->{target}"
            return f"nccl:recv {target}<-{source}"
        return f"nccl:{_ANNOTATION.get(group.operation, group.operation.lower())}"

    def _sync_record(self, row: _Row) -> Iterator[dict[str, Any]]:
        """What CUPTI knows of a synchronisation; none for a query that found its event still open."""
        make = _SYNC_RECORDS.get(row.code)
        if make is None:
            return
        if row.code == Code.POLL and not self._was_done(row):
            return
        args = make(self, row)
        yield self._event(
            "cuda_sync",
            args["cuda_sync_kind"],
            self.device,
            int(args["stream"]),
            row.start_ns,
            row.end_ns,
            correlation=row.correlation,
            device=self.device,
            context=1,
            **args,
        )

    def _was_done(self, row: _Row) -> bool:
        """Whether this was the last query of its operation, the one that succeeded."""
        later = (
            (self.run.records["op"] == row.op)
            & (self.run.records["lane"] == row.lane)
            & (self.run.records["on_gpu"] == 0)
            & (self.run.records["start_ns"] > row.start_ns)
        )
        return not bool(later.any())

    # ----------------------------------------------------------------------- GPU

    def _gpu(self, gpu: NDArray[np.void], calls: NDArray[np.void]) -> list[dict[str, Any]]:
        """GPU operations that were launched or began within the window; the head of the session is lost."""
        launched = calls[(calls["start_ns"] >= self.begin_ns) & (calls["start_ns"] < self.end_ns)]
        chosen = np.isin(gpu["correlation"], launched["correlation"]) | (
            (gpu["start_ns"] >= self.begin_ns) & (gpu["start_ns"] < self.end_ns)
        )
        rows = gpu[chosen & (gpu["code"] != Code.HOST_FUNC)]
        rows = rows[np.argsort(rows["start_ns"], kind="stable")]
        return [self._gpu_event(row) for row in self._rows(rows[self.options.session :])]

    def _gpu_event(self, row: _Row) -> dict[str, Any]:
        kernel = self.program.kernels[row.kernel]
        stream = stream_number(row.lane)
        args: dict[str, Any] = {
            "device": self.device,
            "context": 1,
            "stream": stream,
            "correlation": row.correlation,
        }
        if row.code in (Code.COPY, Code.MEMSET):
            args["bytes"] = row.bytes
        else:
            args |= {"grid": [kernel.grid, 1, 1], "block": [kernel.block, 1, 1]}
        if row.code == Code.COLLECTIVE:
            args |= self._nccl(row, self.program.groups[row.a])
        elif row.sequence >= 0:
            args["graph node id"] = row.sequence + 1
        category = _GPU_CATEGORIES.get(row.code, "kernel")
        return self._event(category, kernel.name, self.device, stream, row.start_ns, row.end_ns, **args)

    def _nccl(self, row: _Row, group: Group) -> dict[str, Any]:
        if not self.options.nccl_metadata:
            return {}
        elements = row.bytes // 2
        members = list(group.members)
        if group.point_to_point:
            members = list(range(self.program.ranks))
        metadata = {
            "Collective name": group.operation.lower(),
            "In msg nelems": elements,
            "Out msg nelems": elements,
            "Group size": len(members),
            "dtype": "BFloat16",
            "Process Group Name": "pp" if group.point_to_point else group.name,
            "Process Group Ranks": str(members),
        }
        if not group.point_to_point:
            metadata["Seq"] = row.sequence
        return metadata


def stream_number(lane: int) -> int:
    """Number of a stream as CUDA gives them: 7 for the default stream of PyTorch, then in steps of 4."""
    return 7 if lane == 0 else 9 + 4 * lane


_GPU_CATEGORIES: dict[int, str] = {Code.COPY: "gpu_memcpy", Code.MEMSET: "gpu_memset"}

_CALLS: dict[int, str] = {
    Code.LAUNCH: "cudaLaunchKernel",
    Code.COLLECTIVE: "cudaLaunchKernelExC",
    Code.COPY: "cudaMemcpyAsync",
    Code.MEMSET: "cudaMemsetAsync",
    Code.RECORD: "cudaEventRecord",
    Code.WAIT: "cudaStreamWaitEvent",
    Code.SYNC_STREAM: "cudaStreamSynchronize",
    Code.SYNC_DEVICE: "cudaDeviceSynchronize",
    Code.SYNC_EVENT: "cudaEventSynchronize",
    Code.POLL: "cudaEventQuery",
    Code.MALLOC: "cudaMalloc",
    Code.FREE: "cudaFree",
    Code.GRAPH: "cudaGraphLaunch",
    Code.HOST_FUNC: "cudaLaunchHostFunc",
}

_ANNOTATION = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "AllToAll": "all_to_all",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
}


def _event_sync(capture: _Capture, row: _Row) -> dict[str, Any]:
    correlation, stream = capture.record_of.get(row.a, (-1, -1))
    return {
        "cuda_sync_kind": "Event Sync",
        "wait_on_stream": stream_number(stream) if stream >= 0 else -1,
        "wait_on_cuda_event_record_corr_id": correlation,
        "wait_on_cuda_event_id": row.a,
        "stream": -1,
    }


def _stream_wait(capture: _Capture, row: _Row) -> dict[str, Any]:
    return _event_sync(capture, row) | {
        "cuda_sync_kind": "Stream Wait Event",
        "stream": stream_number(row.stream),
    }


def _stream_sync(_: _Capture, row: _Row) -> dict[str, Any]:
    return {"cuda_sync_kind": "Stream Sync", "stream": stream_number(row.stream)}


def _context_sync(_: _Capture, row: _Row) -> dict[str, Any]:
    return {"cuda_sync_kind": "Context Sync", "stream": 4294967295}


_SYNC_RECORDS: dict[int, Callable[[_Capture, _Row], dict[str, Any]]] = {
    Code.WAIT: _stream_wait,
    Code.SYNC_STREAM: _stream_sync,
    Code.SYNC_EVENT: _event_sync,
    Code.POLL: _event_sync,
    Code.SYNC_DEVICE: _context_sync,
}


def progress_datagrams(run: Run, rank: int) -> list[dict[str, Any]]:
    """The datagrams that ``emo.progress`` of a rank's process would have sent, in order."""
    marks = run.marks[run.marks["rank"] == rank]
    return [
        {
            "schema": "emo.progress/v1",
            "pid": 20_000 + 10 * rank,
            "boottime_ns": int(mark["time_ns"]),
            "units": float(mark["units"]),
            "remaining": run.program.steps - int(mark["step"]),
            "phase": None,
            "batch": None,
        }
        for mark in marks
        if mark["step"] > 0
    ]
