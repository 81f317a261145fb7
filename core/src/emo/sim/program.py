"""Programs: what every rank of a job does, as arrays for the player.

A :class:`Job` is written like the code of a training script: threads that compute, launch, record,
wait and synchronise, streams, groups of ranks that meet. ``build()`` turns it into a
:class:`Program`, whose steps differ from each other as those of real jobs do: every operation may
belong to a *batch* (a micro-batch, a layer's tokens), and each batch of each step draws a size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import IntEnum, IntFlag

import numpy as np
from numpy.typing import NDArray

from emo.sim.physics import KernelSpec

OP_DTYPE = np.dtype(
    [
        ("code", np.int32),
        ("stream", np.int32),
        ("a", np.int32),
        ("kernel", np.int32),
        ("flags", np.int32),
        ("name", np.int32),
        ("scale", np.float64),
        ("cpu_ns", np.float64),
        ("bytes", np.int64),
        ("time_ns", np.int64),
    ]
)
"""``pl_op`` of native/player.h."""


class Code(IntEnum):
    """What an operation does; the numbers are those of native/player.h."""

    CPU = 0
    LAUNCH = 1
    RECORD = 2
    WAIT = 3
    SYNC_STREAM = 4
    SYNC_DEVICE = 5
    SYNC_EVENT = 6
    COPY = 7
    COLLECTIVE = 8
    MALLOC = 9
    FREE = 10
    POLL = 11
    POST = 12
    AWAIT = 13
    GRAPH = 14
    MARK = 15
    HOST_FUNC = 16
    SLEEP_UNTIL = 17
    TAKE = 18
    DONE = 19
    LOOP = 20
    MEMSET = 21


class Flag(IntFlag):
    """Flags of an operation.

    ``TO_HOST`` and ``ON_DEVICE`` only name a copy's direction: host to device without any. ``ROOM``: the
    kernel gets in only when those that run leave an SM free; others share the SMs.
    """

    BLOCKING = 1
    PAGEABLE = 2
    BY_BATCH = 4
    TO_HOST = 8
    ON_DEVICE = 16
    ROOM = 32


class Wait(IntEnum):
    """How the members of a group wait for each other."""

    ALL = 0
    BROADCAST = 1  # receivers for the root
    REDUCE = 2  # the root for all


@dataclass(frozen=True, slots=True)
class Kernel:
    """A class of GPU operations: what it is called, and what it is."""

    name: str
    spec: KernelSpec
    grid: int = 108
    block: int = 256


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that communicate. ``operation``: as NCCL calls it (AllReduce, SendRecv, ...)."""

    name: str
    members: tuple[int, ...]
    operation: str
    wait: Wait = Wait.ALL
    root: int = 0  # position among the members

    @property
    def point_to_point(self) -> bool:
        """Whether the first member sends to the second."""
        return self.operation == "SendRecv" and len(self.members) == 2


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A job that can be played. Arrays as native/player.h has them.

    ``threads`` is (T, 3) int32: rank, first operation, count; sorted by rank. ``groups`` is (G, 4):
    kind, root, first, count in ``members``. ``graphs`` is (K, 2): first, count. ``units``: what one
    step is worth, in ``unit``.
    """

    name: str
    ops: NDArray[np.void]
    threads: NDArray[np.int32]
    kernels: tuple[Kernel, ...]
    groups: tuple[Group, ...]
    graphs: NDArray[np.int32]
    names: tuple[str, ...]
    ranks: int
    streams: int
    events: int
    semaphores: int
    steps: int
    arrivals_ns: NDArray[np.int64]
    unit: str = "step"
    latency_bound: bool = False  # the latency of requests counts, not the step time

    def group_arrays(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """``(groups, members)`` for the player."""
        members = [rank for group in self.groups for rank in group.members]
        first = np.cumsum([0, *(len(group.members) for group in self.groups)])
        table = [
            (int(group.wait), group.root, int(at), len(group.members))
            for group, at in zip(self.groups, first, strict=False)
        ]
        return np.array(table, np.int32).reshape(-1, 4), np.array(members, np.int32)

    def clock_bound(self) -> Program:
        """The same program, in which kernels are pure compute and communication takes a fixed time.

        Then a clock changes all kernels by exactly the same known factor: what a what-if must predict.
        """
        return replace(self, kernels=tuple(replace(k, spec=_clock_bound(k)) for k in self.kernels))

    def with_cpu_speed(self, speed: float) -> Program:
        """The same program on CPUs that are ``speed`` times as fast."""
        ops = self.ops.copy()
        ops["cpu_ns"] /= speed
        return replace(self, ops=ops)


def _clock_bound(kernel: Kernel) -> KernelSpec:
    spec = kernel.spec
    total = spec.fixed_ns + max(spec.compute_ns, spec.memory_ns)
    if kernel.name.startswith(("nccl", "Mem")):
        return replace(spec, compute_ns=0.0, memory_ns=0.0, fixed_ns=total)
    return replace(spec, compute_ns=total, memory_ns=0.0, fixed_ns=0.0)


SECTIONS = ("before", "step", "after")
ANY_BATCH = -1


@dataclass(slots=True)
class ThreadBuilder:
    """A CPU thread of a rank: every method appends one operation.

    ``cpu_ns`` is what a call takes on the CPU. ``batch`` makes an operation's duration vary with the
    size of that batch.
    """

    job: Job
    rank: int
    _ops: dict[str, list[tuple[float, ...]]] = field(
        default_factory=lambda: {section: [] for section in SECTIONS}
    )
    _batches: dict[str, list[int]] = field(default_factory=lambda: {section: [] for section in SECTIONS})

    def add(
        self,
        code: Code,
        *,
        stream: int = 0,
        a: int = 0,
        kernel: int = 0,
        flags: int = 0,
        name: str = "",
        scale: float = 1.0,
        cpu_ns: float = 0.0,
        bytes: int = 0,
        time_ns: int = 0,
        batch: int = ANY_BATCH,
    ) -> None:
        """Append an operation; the fields are those of ``pl_op``."""
        number = self.job.name_number(name)
        section = self.job.section
        self._ops[section].append(
            (int(code), stream, a, kernel, flags, number, scale, cpu_ns, bytes, time_ns)
        )
        self._batches[section].append(batch)
        self.job.streams = max(self.job.streams, stream + 1)

    def cpu(self, ns: float, name: str = "", batch: int = ANY_BATCH) -> None:
        """Work of the CPU alone."""
        self.add(Code.CPU, cpu_ns=ns, name=name, batch=batch)

    def launch(
        self,
        kernel: int,
        stream: int = 0,
        *,
        scale: float = 1.0,
        cpu_ns: float = 5_000,
        batch: int = ANY_BATCH,
        flags: int = 0,
    ) -> None:
        """Launch a kernel."""
        self.add(
            Code.LAUNCH, stream=stream, kernel=kernel, scale=scale, cpu_ns=cpu_ns, batch=batch, flags=flags
        )

    def copy(
        self,
        kernel: int,
        stream: int = 0,
        *,
        flags: int = 0,
        bytes: int = 0,
        scale: float = 1.0,
        cpu_ns: float = 6_000,
        batch: int = ANY_BATCH,
    ) -> None:
        """Copy memory: ``flags`` say whether it blocks, and the direction."""
        self.add(
            Code.COPY,
            stream=stream,
            kernel=kernel,
            flags=flags,
            bytes=bytes,
            scale=scale,
            cpu_ns=cpu_ns,
            batch=batch,
        )

    def memset(self, kernel: int, stream: int = 0, *, bytes: int = 0, cpu_ns: float = 4_000) -> None:
        """Set memory."""
        self.add(Code.MEMSET, stream=stream, kernel=kernel, bytes=bytes, cpu_ns=cpu_ns)

    def record(self, event: int, stream: int = 0, cpu_ns: float = 1_000) -> None:
        """Record an event on a stream."""
        self.add(Code.RECORD, stream=stream, a=self.job.event_number(event), cpu_ns=cpu_ns)

    def wait(self, event: int, stream: int = 0, cpu_ns: float = 1_000) -> None:
        """Make a stream wait for an event."""
        self.add(Code.WAIT, stream=stream, a=self.job.event_number(event), cpu_ns=cpu_ns)

    def sync_stream(self, stream: int = 0, cpu_ns: float = 3_000) -> None:
        """Wait until a stream is empty."""
        self.add(Code.SYNC_STREAM, stream=stream, cpu_ns=cpu_ns)

    def sync_device(self, cpu_ns: float = 3_000) -> None:
        """Wait until the GPU is idle."""
        self.add(Code.SYNC_DEVICE, cpu_ns=cpu_ns)

    def sync_event(self, event: int, cpu_ns: float = 3_000) -> None:
        """Wait for an event."""
        self.add(Code.SYNC_EVENT, a=self.job.event_number(event), cpu_ns=cpu_ns)

    def poll(self, event: int, interval_ns: int = 20_000, cpu_ns: float = 1_000) -> None:
        """Ask for an event until it has completed."""
        self.add(Code.POLL, a=self.job.event_number(event), time_ns=interval_ns, cpu_ns=cpu_ns)

    def collective(
        self,
        group: int,
        kernel: int,
        stream: int = 0,
        *,
        bytes: int = 0,
        scale: float = 1.0,
        cpu_ns: float = 12_000,
        batch: int = ANY_BATCH,
    ) -> None:
        """Meet the other ranks of a group; ``kernel`` is the time on the wire."""
        self.add(
            Code.COLLECTIVE,
            stream=stream,
            a=group,
            kernel=kernel,
            bytes=bytes,
            scale=scale,
            cpu_ns=cpu_ns,
            batch=batch,
        )

    def malloc(self, *, blocking: bool = False, cpu_ns: float = 40_000) -> None:
        """Allocate device memory."""
        self.add(Code.MALLOC, flags=Flag.BLOCKING if blocking else 0, cpu_ns=cpu_ns)

    def free(self, cpu_ns: float = 30_000) -> None:
        """Free device memory: waits for the GPU."""
        self.add(Code.FREE, cpu_ns=cpu_ns)

    def post(self, semaphore: int) -> None:
        """Hand over to a thread that awaits the semaphore."""
        self.job.semaphores = max(self.job.semaphores, semaphore + 1)
        self.add(Code.POST, a=semaphore)

    def await_(self, semaphore: int, cpu_ns: float = 8_000) -> None:
        """Wait for another thread; ``cpu_ns`` is the time to wake up."""
        self.job.semaphores = max(self.job.semaphores, semaphore + 1)
        self.add(Code.AWAIT, a=semaphore, cpu_ns=cpu_ns)

    def graph(self, graph: int, *, scale: float = 1.0, cpu_ns: float = 8_000, batch: int = ANY_BATCH) -> None:
        """Launch a graph."""
        self.add(Code.GRAPH, a=graph, scale=scale, cpu_ns=cpu_ns, batch=batch)

    def host_function(self, run_ns: float, stream: int = 0, cpu_ns: float = 4_000) -> None:
        """Run a CPU function in the order of a stream."""
        self.add(Code.HOST_FUNC, stream=stream, scale=run_ns, cpu_ns=cpu_ns)

    def take(self, max_batch: int, patience_ns: int) -> None:
        """Take up to ``max_batch`` requests; wait for more until the oldest has waited ``patience_ns``."""
        self.add(Code.TAKE, a=max_batch, time_ns=patience_ns)

    def answer(self) -> None:
        """The requests of the batch are done."""
        self.add(Code.DONE)

    def loop(self, to: int) -> None:
        """Go back to the thread's operation number ``to`` while requests are left."""
        self.add(Code.LOOP, a=to)

    def mark(self, units: float = 1.0) -> None:
        """A step begins here, which is worth ``units``; the last mark ends the last step."""
        self.add(Code.MARK, scale=units)

    def table(self, sizes: NDArray[np.float64]) -> NDArray[np.void]:
        """All operations: ``before``, the step once for each row of ``sizes`` (steps, batches), ``after``."""
        parts = [np.array(self._ops[section], OP_DTYPE) for section in SECTIONS]
        steps = len(sizes)
        repeated = np.tile(parts[1], (steps, 1))
        batch = np.array(self._batches["step"], np.int64)
        varies = batch >= 0
        repeated["scale"][:, varies] *= sizes[:, batch[varies]]
        repeated["a"][:, parts[1]["code"] == Code.MARK] = np.arange(steps)[:, None]
        parts[2]["a"][parts[2]["code"] == Code.MARK] = steps
        return np.concatenate([parts[0], repeated.reshape(-1), parts[2]])


class Job:
    """A job under construction."""

    def __init__(self, name: str, ranks: int) -> None:
        self.name = name
        self.ranks = ranks
        self.section = "step"
        self.streams = 1
        self.events = 0
        self.semaphores = 0
        self.kernels: list[Kernel] = []
        self.groups: list[Group] = []
        self.threads: list[ThreadBuilder] = []
        self._graphs: list[list[tuple[float, ...]]] = []
        self._names: dict[str, int] = {"": 0}

    def name_number(self, name: str) -> int:
        """Number of a name, the same for equal names."""
        return self._names.setdefault(name, len(self._names))

    def event_number(self, event: int) -> int:
        """The event, which now exists."""
        self.events = max(self.events, event + 1)
        return event

    def new_event(self) -> int:
        """An event that nobody uses yet. Events are per rank."""
        return self.event_number(self.events)

    def kernel(self, name: str, spec: KernelSpec, grid: int = 108, block: int = 256) -> int:
        """Declare a class of kernels; returns its number."""
        self.kernels.append(Kernel(name, spec, grid, block))
        return len(self.kernels) - 1

    def group(
        self,
        members: Sequence[int],
        operation: str,
        *,
        name: str = "0",
        wait: Wait = Wait.ALL,
        root: int = 0,
    ) -> int:
        """Declare a group of ranks; returns its number."""
        self.groups.append(Group(name, tuple(members), operation, wait, root))
        return len(self.groups) - 1

    def thread(self, rank: int) -> ThreadBuilder:
        """A new CPU thread of a rank. The first of a rank is its main thread: marks belong there."""
        self.threads.append(ThreadBuilder(self, rank))
        return self.threads[-1]

    def main_threads(self) -> list[ThreadBuilder]:
        """One new thread per rank."""
        return [self.thread(rank) for rank in range(self.ranks)]

    @contextmanager
    def outside(self, section: str) -> Iterator[None]:
        """What is appended within is done once: ``before`` the steps or ``after`` them."""
        inside, self.section = self.section, section
        try:
            yield
        finally:
            self.section = inside

    @contextmanager
    def new_graph(self) -> Iterator[tuple[int, ThreadBuilder]]:
        """``with job.new_graph() as (graph, capture)``: what is launched on ``capture`` becomes the graph."""
        capture = ThreadBuilder(self, 0)
        self._graphs.append([])
        yield len(self._graphs) - 1, capture
        self._graphs[-1] = capture._ops[self.section]

    def build(
        self,
        steps: int,
        rng: np.random.Generator,
        *,
        step_spread: float = 0.0,
        batch_spread: float = 0.0,
        batches: int = 1,
        units: float = 1.0,
        unit: str = "step",
        arrivals_ns: NDArray[np.int64] | None = None,
        latency_bound: bool = False,
    ) -> Program:
        """The program of ``steps`` steps, whose sizes vary by the given relative deviations."""
        sizes = rng.lognormal(0.0, step_spread, (steps, 1)) * rng.lognormal(
            0.0, batch_spread, (steps, batches)
        )
        threads = sorted(self.threads, key=lambda thread: thread.rank)
        tables = [thread.table(sizes) for thread in threads]
        graphs = [np.array(ops, OP_DTYPE) for ops in self._graphs]
        lengths = [len(table) for table in (*tables, *graphs)]
        first = np.cumsum([0, *lengths])
        ops = np.concatenate([*tables, *graphs]) if lengths else np.empty(0, OP_DTYPE)
        ops["scale"][ops["code"] == Code.MARK] *= units
        count = len(threads)
        return Program(
            name=self.name,
            ops=ops,
            threads=np.array(
                [(thread.rank, first[i], lengths[i]) for i, thread in enumerate(threads)], np.int32
            ).reshape(-1, 3),
            kernels=tuple(self.kernels),
            groups=tuple(self.groups),
            graphs=np.array(
                [(first[count + i], lengths[count + i]) for i in range(len(graphs))], np.int32
            ).reshape(-1, 2),
            names=tuple(self._names),
            ranks=self.ranks,
            streams=self.streams,
            events=self.events,
            semaphores=self.semaphores,
            steps=steps,
            arrivals_ns=np.empty(0, np.int64) if arrivals_ns is None else arrivals_ns,
            unit=unit,
            latency_bound=latency_bound,
        )
