"""One door for all formats: look at what the file holds, read it, validate it.

The name of the file decides nothing. Whatever cannot be used ends in a
:class:`~emo.errors.TraceError` that says what the file is instead.
"""

from __future__ import annotations

import os
import stat
from os import PathLike, fspath

from emo.errors import TraceError
from emo.trace.columns import one_of
from emo.trace.model import API_KINDS, RawTrace, Trace
from emo.trace.source import Source, describe

EXPECTED = "expected a Kineto (PyTorch profiler) JSON, an nsys SQLite export or a rocprofiler-sdk JSON"
HINT = "give the file that the profiler wrote, as it is or compressed with gzip"

GPU_EXPECTED = "expected kernels or copies of at least one GPU"
GPU_HINT = (
    "record again with GPU activities: torch.profiler with ProfilerActivity.CUDA (also for ROCm), "
    "nsys with --trace=cuda, rocprofv3 with --kernel-trace"
)

_SQLITE = b"SQLite format 3\0"
_CONVERT = {
    ".nsys-rep": "export it with `nsys export --type sqlite`",
    ".qdrep": "export it with `nsys export --type sqlite`",
    ".pftrace": "record JSON instead (rocprofv3 --output-format json)",
    ".zip": "unpack it and give the trace inside",
    ".zst": "decompress it with `zstd -d` first",
    ".bz2": "decompress it with `bunzip2` first",
    ".xz": "decompress it with `unxz` first",
}
"""Advice by the end of the name, for formats that hold a trace but cannot be read as they are."""


def read_trace(path: str | PathLike[str]) -> Trace:
    """Read and validate a trace of any supported format.

    Raises :class:`TraceError` for what is no trace, cannot be read, or holds no GPU activity.
    """
    raw = read_raw(path)
    from emo.trace.validate import validate  # after the reading: a bad file is told without numpy's set-up

    trace = validate(raw)
    if not trace.quality.kernels:
        raise _no_gpu(trace)
    return trace


def read_raw(path: str | PathLike[str]) -> RawTrace:
    """The columns of a trace as they stand in the file. Raises :class:`TraceError`."""
    # Each reader is imported here: a command that reads one format does not pay for the others.
    kind = sniff(path)
    if kind == "nsys":
        from emo.trace.nsys import read_nsys

        return read_nsys(path)
    if kind == "rocprof":
        from emo.trace.rocprof import read_rocprof

        return read_rocprof(path)
    from emo.trace.kineto import read_kineto

    return read_kineto(path)


def sniff(path: str | PathLike[str]) -> str:
    """Format of a file by its content: "kineto", "nsys" or "rocprof".

    Raises :class:`TraceError` if it is none of them or cannot be read.
    """
    _require_file(path)
    with Source(path) as source:
        head, compressed = source.head, source.gzip
    if head.startswith(_SQLITE):
        if compressed:
            raise TraceError(path, "a compressed SQLite file", expected=EXPECTED, hint="use `gunzip` first")
        return "nsys"
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] in (b"{", b"["):
        return "rocprof" if b'"rocprofiler-sdk-tool"' in text else "kineto"
    if compressed and not head:
        found = "a gzip file that is damaged or holds nothing"
    elif not text:
        found = "nothing but white space"
    else:
        found = f"{describe(head)} inside gzip" if compressed else describe(head)
    hint = next((advice for end, advice in _CONVERT.items() if fspath(path).endswith(end)), HINT)
    raise TraceError(path, found, expected=EXPECTED, hint=hint)


def _require_file(path: str | PathLike[str]) -> None:
    """Raise :class:`TraceError` for what is missing, empty, or could block for ever when read."""
    try:
        info = os.stat(path)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise TraceError(
            path, f"cannot be opened ({reason})", expected=EXPECTED, hint="check the path and its permissions"
        ) from error
    if stat.S_ISDIR(info.st_mode):
        raise TraceError(path, "a directory", expected=EXPECTED, hint="give the trace files inside it")
    if not stat.S_ISREG(info.st_mode):
        raise TraceError(path, "a pipe or a device, not a file", expected=EXPECTED, hint=HINT)
    if info.st_size == 0:
        raise TraceError(path, "an empty file (0 bytes)", expected=EXPECTED, hint="record the trace again")


def _no_gpu(trace: Trace) -> TraceError:
    quality = trace.quality
    calls = int(one_of(trace.ops.kind, API_KINDS).sum())
    found = f"no GPU activity ({len(trace.labels)} CPU ops, {calls} runtime calls"
    if quality.launches:
        found += f", {quality.launches} of them launches whose kernels were not recorded"
    found += ", and the file ends early)" if quality.truncated else ")"
    return TraceError(trace.path, found, expected=GPU_EXPECTED, hint=GPU_HINT)
