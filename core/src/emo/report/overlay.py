"""The overlay: the trace as a Chrome JSON trace, with tracks for the critical path and for slack.

It opens by itself in a trace viewer: what ran is written again, compactly, beside what EMO found.
Times are microseconds from the window's opening, with the nanoseconds as decimals. Events of one
track never overlap: viewers nest what overlaps, and drop what does not nest.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from os import PathLike, fspath
from typing import BinaryIO

import numpy as np

from emo.analysis import Analysis
from emo.files import write_atomically
from emo.graph.critical import Spent
from emo.graph.model import Graph
from emo.graph.slack import CAUSE_TEXT, Cause, GpuSlack
from emo.report.contributors import stretch_names
from emo.report.text import gpu_label
from emo.trace.model import I64

# Process numbers of the overlay: one for the path, one per GPU, one per file's CPU threads.
_PATH_PID = 1
_GPU_PID = 100
_CPU_PID = 100_000
_SLACK_TID = 0
# Threads of a process are numbered by stream or thread, with room for the lanes that overlaps need.
_LANES = 64
_LINES_PER_WRITE = 4096

_SPENT_TEXT = {
    Spent.CPU: "CPU",
    Spent.GPU: "GPU",
    Spent.COLLECTIVE: "collective",
    Spent.COPY: "copy",
    Spent.IDLE: "latency or unexplained",
}


def write_overlay(analysis: Analysis, path: str | PathLike[str]) -> None:
    """Write the overlay; compressed if the name ends in ``.gz``. The same bytes for the same analysis.

    Raises InputError if ``path`` cannot be written.
    """
    with write_atomically(path) as stream:
        if fspath(path).endswith(".gz"):
            # Neither name nor time goes into the header, so that equal input gives equal bytes.
            with gzip.GzipFile("", "wb", compresslevel=4, fileobj=stream, mtime=0) as packed:
                _write(analysis, packed)
        else:
            _write(analysis, stream)


def _write(analysis: Analysis, stream: BinaryIO | gzip.GzipFile) -> None:
    stream.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
    pending: list[str] = []
    separator = ""
    for event in _events(analysis):
        pending.append(event)
        if len(pending) == _LINES_PER_WRITE:
            stream.write((separator + ",\n".join(pending)).encode("utf-8"))
            pending.clear()
            separator = ",\n"
    stream.write((separator + ",\n".join(pending) if pending else "").encode("utf-8"))
    stream.write(b"\n]}\n")


def _events(analysis: Analysis) -> Iterator[str]:
    yield from _path_events(analysis)
    for gpu in analysis.slack.gpus:
        yield from _slack_events(analysis, gpu)
    yield from _gpu_ops(analysis)
    yield from _api_calls(analysis)


def _path_events(analysis: Analysis) -> Iterator[str]:
    yield from _process(_PATH_PID, "EMO: critical path", 0)
    yield _thread(_PATH_PID, 0, "critical path", 0)
    path, what = analysis.path, _Quoted()
    columns = (path.start_ns.tolist(), path.end_ns.tolist(), path.spent.tolist(), stretch_names(analysis))
    for start, end, spent, name in zip(*columns, strict=True):
        cause = _SPENT_TEXT[Spent(spent)]
        yield _event(_PATH_PID, 0, what[cause], start, end, f'{{"of":{what[name]}}}')


def _slack_events(analysis: Analysis, gpu: GpuSlack) -> Iterator[str]:
    pid = _GPU_PID + gpu.gpu
    yield from _process(pid, gpu_label(analysis.graph, gpu.gpu), 1 + gpu.gpu)
    yield _thread(pid, _SLACK_TID, "slack windows", 0)
    windows = gpu.windows
    for index in range(len(windows)):
        cause, edge = Cause(int(windows.cause[index])), bool(windows.edge[index])
        args: dict[str, object] = {
            "slack_us": int(windows.slack_ns[index]) / 1000,
            "cause": cause.name,
            "why": CAUSE_TEXT[cause],
            "edge": edge,
            "iteration": int(windows.iteration[index]),
        }
        if windows.culprit[index] >= 0:
            args["late_rank"] = int(windows.culprit[index])
        name = "cut by the capture" if edge else f"slack: {cause.name.lower().replace('_', ' ')}"
        start, end = int(windows.start_ns[index]), int(windows.end_ns[index])
        yield _event(pid, _SLACK_TID, json.dumps(name), start, end, json.dumps(args, separators=(",", ":")))


def _gpu_ops(analysis: Analysis) -> Iterator[str]:
    graph = analysis.graph
    number = {gpu: index for index, gpu in enumerate(graph.gpus)}
    for stream, (trace, device, name) in enumerate(graph.streams):
        ops = np.flatnonzero(graph.nodes.stream == stream)
        pid, tid = _GPU_PID + number[trace, device], (1 + stream) * _LANES
        yield from _ops(graph, ops, trace, pid, tid, f"stream {name}", 1 + stream)


def _api_calls(analysis: Analysis) -> Iterator[str]:
    graph = analysis.graph
    for trace in sorted({trace for trace, _ in graph.threads}):
        label = f"rank {graph.rank_of(trace)}, CPU" if len(graph.traces) > 1 else "CPU"
        yield from _process(_CPU_PID + trace, label, 1 + len(graph.gpus) + trace)
    for thread, (trace, row) in enumerate(graph.threads):
        calls = np.flatnonzero(graph.nodes.thread == thread)
        tid = graph.traces[trace].threads[row].tid
        yield from _ops(graph, calls, trace, _CPU_PID + trace, (1 + thread) * _LANES, f"thread {tid}", thread)


def _ops(graph: Graph, ops: I64, trace: int, pid: int, tid: int, label: str, sort: int) -> Iterator[str]:
    """Ops of one stream or thread. Where they overlap, they are shared out over several tracks."""
    ops = ops[np.argsort(graph.nodes.start_ns[ops], kind="stable")]
    start, end = graph.nodes.start_ns[ops].tolist(), graph.nodes.end_ns[ops].tolist()
    lane = share_out(start, end, _LANES)
    for number in sorted(set(lane)):
        yield _thread(pid, tid + number, label if number == 0 else f"{label} (overlap {number})", sort)
    names, quoted = graph.traces[trace].names, _Quoted()
    ids = graph.traces[trace].ops.name_id[graph.nodes.row[ops]].tolist()
    correlation = graph.traces[trace].ops.correlation[graph.nodes.row[ops]].tolist()
    for index, name_id in enumerate(ids):
        args = f'{{"correlation":{correlation[index]}}}' if correlation[index] >= 0 else "{}"
        yield _event(pid, tid + lane[index], quoted[names[name_id]], start[index], end[index], args)


def share_out(start: Sequence[int], end: Sequence[int], most: int) -> list[int]:
    """A track for each interval (sorted by start), so that those of one track do not overlap.

    Beyond ``most`` tracks the last one takes what is left, overlapping.
    """
    free_from: list[int] = []
    result = []
    for begin, stop in zip(start, end, strict=True):
        lane = next((number for number, free in enumerate(free_from) if free <= begin), len(free_from))
        lane = min(lane, most - 1)
        if lane == len(free_from):
            free_from.append(stop)
        free_from[lane] = max(stop, free_from[lane])
        result.append(lane)
    return result


class _Quoted(dict[str, str]):
    """JSON strings, each made once."""

    def __missing__(self, text: str) -> str:
        quoted = self[text] = json.dumps(text)
        return quoted


def _event(pid: int, tid: int, quoted_name: str, start_ns: int, end_ns: int, args: str) -> str:
    return (
        f'{{"ph":"X","pid":{pid},"tid":{tid},"name":{quoted_name},'
        f'"ts":{_micros(start_ns)},"dur":{_micros(end_ns - start_ns)},"args":{args}}}'
    )


def _micros(nanoseconds: int) -> str:
    """Microseconds with three decimals, exact: no float in between."""
    sign, size = ("-", -nanoseconds) if nanoseconds < 0 else ("", nanoseconds)
    return f"{sign}{size // 1000}.{size % 1000:03d}"


def _process(pid: int, name: str, sort: int) -> Iterable[str]:
    yield _metadata(pid, 0, "process_name", {"name": name})
    yield _metadata(pid, 0, "process_sort_index", {"sort_index": sort})


def _thread(pid: int, tid: int, name: str, sort: int) -> str:
    return ",\n".join(
        (
            _metadata(pid, tid, "thread_name", {"name": name}),
            _metadata(pid, tid, "thread_sort_index", {"sort_index": sort}),
        )
    )


def _metadata(pid: int, tid: int, kind: str, args: dict[str, object]) -> str:
    return json.dumps({"ph": "M", "pid": pid, "tid": tid, "name": kind, "args": args}, separators=(",", ":"))
