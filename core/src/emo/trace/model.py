"""The columnar trace: what every reader produces and what the graph is built from.

One :class:`Trace` is one file, i.e. one rank (or one host, for profilers that
write all GPUs of a host into one file). Times are int64 nanoseconds on the clock
of that file; nothing is rounded on the way in. Two tables are kept apart because
their use differs: ``ops`` become nodes of the graph, ``labels`` (framework ops on
the CPU) only name what the CPU was doing between two calls.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

I8 = NDArray[np.int8]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]


class Kind(IntEnum):
    """What a row of ``ops`` is. Values are stable: they are stored."""

    CPU_CALL = 0  # a runtime or driver API call (launches, copies, malloc, queries, ...)
    KERNEL = 1
    MEMCPY = 2
    MEMSET = 3
    SYNC = 4  # an API call that blocks until the GPU got somewhere
    EVENT_RECORD = 5  # the API call
    EVENT_WAIT = 6  # the API call that makes a stream wait (cudaStreamWaitEvent)
    COLLECTIVE = 7  # a GPU kernel in which ranks meet
    P2P = 8  # a GPU kernel that sends to or receives from peers
    ANNOTATION = 9  # a named CPU range: ProfilerStep#, Optimizer.step#, NVTX, user_annotation


GPU_KINDS = (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET, Kind.COLLECTIVE, Kind.P2P)
API_KINDS = (Kind.CPU_CALL, Kind.SYNC, Kind.EVENT_RECORD, Kind.EVENT_WAIT)


class SyncInfo(IntEnum):
    """Where the knowledge of which event a wait waits for comes from."""

    ABSENT = 0  # there are waits, and nothing says for what
    INFERRED = 1  # patterns of streams stand in for the missing records
    RECORDED = 2  # synchronisation records name the event


@dataclass(frozen=True, slots=True)
class Ops:
    """Struct of arrays, all of length n, sorted by ``start_ns`` (stable).

    =================  =====  ====================================================
    kind               int8   :class:`Kind`
    start_ns, end_ns   int64  on the clock of the file; ``end_ns >= start_ns``
    device             int32  GPU ordinal as the trace writes it; -1 for CPU rows
    stream             int32  GPU rows: the stream. API rows: the stream concerned,
                              where a record says so, else -1
    thread             int32  CPU rows: index into ``Trace.threads``; -1 for GPU rows
    correlation        int64  joins an API call and its GPU ops; -1 unknown
    name_id            int32  index into ``Trace.names``
    bytes              int64  copies, sets and collectives; -1 unknown
    collective_group   int32  index into ``Trace.groups``; -1 unknown
    collective_seq     int64  sequence number within the group; -1 unknown
    graph_node         int64  CUDA-graph node id where recorded; -1 otherwise
    shape_hash         int64  hash of grid and block of a kernel; 0 unknown
    sync_correlation   int64  EVENT_WAIT and SYNC: correlation of the event record
                              that is waited for; -1: no record says; -2: a record
                              says that nothing known is waited for (an event from
                              before the window, or one that had completed)
    sync_stream        int32  EVENT_WAIT and SYNC: the stream that is waited for,
                              where recorded; -1 otherwise (all streams, or unknown)
    =================  =====  ====================================================
    """

    kind: I8
    start_ns: I64
    end_ns: I64
    device: I32
    stream: I32
    thread: I32
    correlation: I64
    name_id: I32
    bytes: I64
    collective_group: I32
    collective_seq: I64
    graph_node: I64
    shape_hash: I64
    sync_correlation: I64
    sync_stream: I32

    def __len__(self) -> int:
        return len(self.kind)


@dataclass(frozen=True, slots=True)
class Labels:
    """Framework ops on the CPU (``aten::mm``): names for CPU time, never nodes.

    Sorted by ``start_ns``; ``name_id`` indexes ``Trace.names``.
    """

    start_ns: I64
    end_ns: I64
    thread: I32
    name_id: I32

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, slots=True)
class Thread:
    """A CPU thread, and the span over which it did anything that was recorded."""

    pid: int
    tid: int
    first_ns: int
    last_ns: int


@dataclass(frozen=True, slots=True)
class CollectiveGroup:
    """A process group, as far as the trace tells."""

    name: str
    size: int  # -1 unknown
    ranks: tuple[int, ...] = ()  # empty: unknown


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A GPU as the trace describes it."""

    device: int
    name: str


@dataclass(frozen=True, slots=True)
class Iteration:
    """One repetition of the workload: ``[start_ns, end_ns)`` on the CPU clock of the file."""

    start_ns: int
    end_ns: int
    name: str


@dataclass(frozen=True, slots=True)
class StepQuality:
    """Quality of one iteration (or of the whole window when there are none)."""

    start_ns: int
    end_ns: int
    launches: int
    launches_without_kernel: int
    kernels: int
    kernels_without_launch: int
    repaired: int

    @property
    def completeness(self) -> float:
        """Launches that have their GPU op / launches; 1.0 if there was none."""
        return 1.0 - self.launches_without_kernel / self.launches if self.launches else 1.0


@dataclass(slots=True)
class TraceQuality:
    """What was repaired, dropped or found missing, and how much of it.

    Nothing here is ever raised: a bad record is counted. ``dropped`` and
    ``repaired`` map a reason to a count; the reasons are a closed list in
    ``emo.trace.validate``.
    """

    records: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    repaired: dict[str, int] = field(default_factory=dict)
    launches: int = 0
    launches_without_kernel: int = 0
    kernels: int = 0
    kernels_without_launch: int = 0
    completeness: float = 1.0
    sync_info: SyncInfo = SyncInfo.ABSENT
    head_loss_ns: int = 0  # from the window's opening to the first GPU op that has a launch
    clock_skew_ns: int = 0  # GPU ops were shifted by this much so that none starts before its launch
    overlap_ratio: float = 0.0  # time with >= 2 streams busy / time with >= 1, worst GPU
    truncated: bool = False
    steps: list[StepQuality] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Trace:
    """One file, validated. Immutable; the graph refers to ops by row number."""

    path: str
    format: str  # "kineto" | "nsys" | "rocprof"
    rank: int  # -1 unknown
    world_size: int  # -1 unknown
    ops: Ops
    labels: Labels
    names: list[str]
    threads: list[Thread]
    groups: list[CollectiveGroup]
    devices: list[DeviceInfo]
    iterations: list[Iteration]
    iteration_source: str  # "ProfilerStep" | "Optimizer.step" | "nvtx" | "graph" | "period" | "none"
    window_start_ns: int  # earliest and latest instant of any recorded activity
    window_end_ns: int
    quality: TraceQuality
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class RawTrace:
    """What a reader hands to :func:`emo.trace.validate.validate`: columns as found.

    ``category`` says what the record claims to be; durations may be negative,
    order is the file's, correlation ids may repeat. ``dur_ns`` instead of an end,
    so that nothing is computed from a value that may be nonsense.
    """

    path: str
    format: str
    category: I8  # RawCategory
    start_ns: I64
    dur_ns: I64
    device: I32
    stream: I32
    thread: I32  # index into threads, -1 for GPU rows
    correlation: I64
    name_id: I32
    bytes: I64
    collective_group: I32
    collective_seq: I64
    graph_node: I64
    shape_hash: I64
    sync_correlation: I64
    sync_stream: I32
    names: list[str]
    threads: list[Thread]
    groups: list[CollectiveGroup]
    devices: list[DeviceInfo]
    rank: int = -1
    world_size: int = -1
    dropped: dict[str, int] = field(default_factory=dict)  # by the reader: not a number, no time, ...
    truncated: bool = False
    metadata: dict[str, str] = field(default_factory=dict)


class RawCategory(IntEnum):
    """What a raw record claims to be."""

    LABEL = 0  # framework op on the CPU
    API = 1  # runtime or driver call
    KERNEL = 2
    MEMCPY = 3
    MEMSET = 4
    ANNOTATION = 5
    SYNC = 6  # synchronisation record (cuda_sync): folded into its API call by correlation
