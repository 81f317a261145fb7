"""What a name means: API calls by what they do, GPU kernels by what they communicate.

Names repeat a million times and there are only some thousand different ones, so
everything here works on the table of unique names; the caller spreads the result
over rows with ``classes.api_class[ops.name_id]``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from emo.trace.model import I8


class ApiClass(IntEnum):
    """What a runtime or driver call does to the GPU, or to the thread that calls it."""

    OTHER = 0
    LAUNCH = 1  # one kernel
    GRAPH_LAUNCH = 2  # a whole recorded graph of GPU ops
    MEMCPY = 3  # may block: cudaMemcpy, hipMemcpyWithStream, cuMemcpyDtoH
    MEMCPY_ASYNC = 4  # returns early, except for pageable memory (the GPU op's name tells)
    MEMSET = 5
    MEMSET_ASYNC = 6
    SYNC_DEVICE = 7  # waits for every stream of the device (or context)
    SYNC_STREAM = 8
    SYNC_EVENT = 9
    EVENT_RECORD = 10
    STREAM_WAIT_EVENT = 11  # makes a stream wait; does not block the caller
    EVENT_QUERY = 12  # polls; also stream queries
    ALLOC = 13  # device or pinned memory: may synchronise implicitly
    FREE = 14
    HOST_FUNC = 15  # a CPU function in stream order
    CAPTURE_BEGIN = 16  # what is launched from here on is recorded, not run
    CAPTURE_END = 17


class CollectiveOp(IntEnum):
    """What ranks do together in a GPU kernel (or in an ``nccl:...`` annotation)."""

    NONE = 0
    ALL_REDUCE = 1
    ALL_GATHER = 2
    REDUCE_SCATTER = 3
    ALL_TO_ALL = 4
    BROADCAST = 5
    REDUCE = 6
    SEND_RECV = 7  # also how NCCL runs an all-to-all: the name alone cannot tell
    BARRIER = 8
    UNKNOWN = 9  # communicates, but the name does not say how (``ncclDevKernel_Generic``)


COPYING = (ApiClass.MEMCPY, ApiClass.MEMCPY_ASYNC, ApiClass.MEMSET, ApiClass.MEMSET_ASYNC)

LAUNCHING = (ApiClass.LAUNCH, ApiClass.GRAPH_LAUNCH, *COPYING)
"""Calls after which a GPU op is expected."""

BLOCKING_SYNC = (ApiClass.SYNC_DEVICE, ApiClass.SYNC_STREAM, ApiClass.SYNC_EVENT)
"""Calls whose only purpose is to block until the GPU got somewhere."""

EVERY_RANK_WAITS = (
    CollectiveOp.ALL_REDUCE,
    CollectiveOp.ALL_GATHER,
    CollectiveOp.REDUCE_SCATTER,
    CollectiveOp.ALL_TO_ALL,
    CollectiveOp.BARRIER,
)
"""Operations in which no rank can end before every rank has arrived."""


@dataclass(frozen=True, slots=True)
class NameClasses:
    """Classes of a name table, both int8 of its length.

    ``api_class`` holds :class:`ApiClass` and means something for API rows only;
    ``collective_op`` holds :class:`CollectiveOp` for GPU kernels and annotations.
    """

    api_class: I8
    collective_op: I8


# Tools append the ABI version (``cudaLaunchKernel_v7000``) or the stream mode.
_SUFFIX = re.compile(r"(?:_v\d+|_ptsz|_ptds|_spt)+$")

# The first pattern that matches the whole name (prefix and suffix removed) wins.
_API_PATTERNS: tuple[tuple[str, ApiClass], ...] = (
    (r"(?:Stream)?(?:LaunchHostFunc|AddCallback)", ApiClass.HOST_FUNC),
    (r"GraphLaunch", ApiClass.GRAPH_LAUNCH),
    (
        r"(?:Ext|Drv)?(?:Module)?Launch(?:Cooperative)?(?:Multi)?(?:Kernel|ByPtr|Grid)?(?:MultiDevice|Async|ExC?)?",
        ApiClass.LAUNCH,
    ),
    (r"Mem(?:ory)?cpy\w*Async\w*", ApiClass.MEMCPY_ASYNC),
    (r"Mem(?:ory)?cpy\w*", ApiClass.MEMCPY),
    (r"Memset\w*Async\w*", ApiClass.MEMSET_ASYNC),
    (r"Memset\w*", ApiClass.MEMSET),
    (r"(?:Device|Ctx|Thread)Synchronize", ApiClass.SYNC_DEVICE),
    (r"StreamSynchronize", ApiClass.SYNC_STREAM),
    (r"EventSynchronize", ApiClass.SYNC_EVENT),
    (r"EventRecord\w*", ApiClass.EVENT_RECORD),
    (r"StreamWaitEvent\w*", ApiClass.STREAM_WAIT_EVENT),
    (r"(?:Event|Stream)Query", ApiClass.EVENT_QUERY),
    (r"(?:Ext|Host)?Malloc(?:Host|Managed|Pitch|(?:3D|Mipmapped)?Array|3D|WithFlags)?", ApiClass.ALLOC),
    (r"HostAlloc|Mem(?:Host)?Alloc(?:Host|Managed|Pitch)?|MemHostRegister|HostRegister", ApiClass.ALLOC),
    (r"(?:Host)?Free(?:Host|Array|MipmappedArray)?|Mem(?:Free|FreeHost|HostUnregister)", ApiClass.FREE),
    (r"HostUnregister", ApiClass.FREE),
    (r"StreamBeginCapture\w*", ApiClass.CAPTURE_BEGIN),
    (r"StreamEndCapture", ApiClass.CAPTURE_END),
)
_API = [(re.compile(pattern), cls) for pattern, cls in _API_PATTERNS]
_API_PREFIXES = ("cuda", "hip", "cu")

# Libraries whose kernels let ranks meet: NCCL and RCCL (which keeps NCCL's names), oneCCL, MSCCL.
_LIBRARIES = ("nccl", "rccl", "oneccl", "msccl")
# The one-kernel all-reduces of inference servers and of PyTorch's symmetric memory.
_CUSTOM_ALL_REDUCE = (
    "cross_device_reduce",
    "one_shot_all_reduce",
    "two_shot_all_reduce",
    "multimem_all_reduce",
)
_PARAMETERS = re.compile(r"[(<]")
# Longer names first: "all_reduce" also contains "reduce".
_OPS: tuple[tuple[str, CollectiveOp], ...] = (
    ("barrier", CollectiveOp.BARRIER),
    ("allreduce", CollectiveOp.ALL_REDUCE),
    ("allgather", CollectiveOp.ALL_GATHER),
    ("reducescatter", CollectiveOp.REDUCE_SCATTER),
    ("alltoall", CollectiveOp.ALL_TO_ALL),
    ("sendrecv", CollectiveOp.SEND_RECV),
    ("broadcast", CollectiveOp.BROADCAST),
    ("bcast", CollectiveOp.BROADCAST),
    ("send", CollectiveOp.SEND_RECV),
    ("recv", CollectiveOp.SEND_RECV),
    ("reduce", CollectiveOp.REDUCE),
)


def api_class(name: str) -> ApiClass:
    """Class of one API call by its name; ``OTHER`` for what does not concern order."""
    for prefix in _API_PREFIXES:
        if name.startswith(prefix):
            stem = _SUFFIX.sub("", name[len(prefix) :])
            for pattern, cls in _API:
                if pattern.fullmatch(stem):
                    return cls
            return ApiClass.OTHER
    return ApiClass.OTHER


def collective_op(name: str) -> CollectiveOp:
    """What a kernel called ``name`` does between ranks; ``NONE`` for ordinary kernels."""
    if any(word in name for word in _CUSTOM_ALL_REDUCE):
        return CollectiveOp.ALL_REDUCE
    # Arguments and template parameters name types, not the operation.
    stem = _PARAMETERS.split(name, maxsplit=1)[0].lower().replace("_", "")
    if not any(library in stem for library in _LIBRARIES):
        return CollectiveOp.NONE
    for word, op in _OPS:
        if word in stem:
            return op
    return CollectiveOp.UNKNOWN


def classify_names(names: Sequence[str]) -> NameClasses:
    """Classify a table of unique names (about 1 ms per thousand; call once per trace)."""
    api = np.fromiter((api_class(name) for name in names), dtype=np.int8, count=len(names))
    coll = np.fromiter((collective_op(name) for name in names), dtype=np.int8, count=len(names))
    return NameClasses(api_class=api, collective_op=coll)
