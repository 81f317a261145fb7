"""One small program per edge rule of the engine: without the rule, a what-if goes wrong.

Each is a recorded run and a what-if, chosen so that an order which need not have decided in the
recorded run decides in the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from judge import Case

from emo.graph.model import EdgeType
from emo.sim.capture import CaptureOptions
from emo.sim.physics import KernelSpec
from emo.sim.player import Conditions
from emo.sim.program import Flag, Job, Program, Wait

US = 1_000.0
STEPS = 12
EXACT = replace(
    Conditions().noiseless(),
    gap_ns=200.0,
    launch_latency_ns=3_000.0,
    wake_ns=1_000.0,
    tracing_slowdown_low=1.0,
    tracing_slowdown_high=1.0,
)


@dataclass(frozen=True, slots=True)
class Stress:
    """A program, how it is recorded, and the what-if that needs the rule."""

    rule: EdgeType
    build: Callable[[], Program]
    asked: Case
    recorded: Case | None = None
    options: CaptureOptions = field(default_factory=CaptureOptions)
    conditions: Conditions = EXACT


def _kernel(job: Job, us: float, name: str = "", share: float = 1.0) -> int:
    return job.kernel(
        name or f"kernel_{us:g}us", KernelSpec(compute_ns=us * US, compute_activity=0.4, sm_share=share)
    )


def _copy(job: Job, us: float, name: str = "Memcpy DtoH (Device -> Pinned)") -> int:
    return job.kernel(name, KernelSpec(compute_ns=0, fixed_ns=us * US, sm_share=0.0))


def _wire(job: Job, us: float, operation: str) -> int:
    return job.kernel(
        f"ncclDevKernel_{operation}_RING_LL", KernelSpec(compute_ns=0, fixed_ns=us * US, sm_share=0.05)
    )


def _build(job: Job) -> Program:
    """Steps that vary a little, and a last mark."""
    for thread in job.threads:
        if thread.rank not in {other.rank for other in job.threads[: job.threads.index(thread)]}:
            with job.outside("after"):
                thread.sync_device()
                thread.mark()
    return job.build(STEPS, np.random.default_rng(7), step_spread=0.0)


def launch() -> Program:
    """The CPU works, then launches a kernel and waits for it: the GPU has nothing to do meanwhile."""
    job = Job("launch", 1)
    (t,) = job.main_threads()
    kernel = _kernel(job, 100)
    t.mark()
    for _ in range(10):
        t.cpu(100 * US)
        t.launch(kernel)
        t.sync_stream(0)
    return _build(job)


def stream() -> Program:
    """Kernels of one stream, launched well ahead."""
    job = Job("stream", 1)
    (t,) = job.main_threads()
    kernel = _kernel(job, 60)
    t.mark()
    for _ in range(30):
        t.launch(kernel)
    t.sync_device()
    return _build(job)


def event() -> Program:
    """A kernel must wait for one of another stream, which is done by then, until the GPU is slower."""
    job = Job("event", 1)
    (t,) = job.main_threads()
    one, other = _kernel(job, 80, "one"), _kernel(job, 10, "other")
    t.mark()
    for _ in range(12):
        t.launch(one, 0)
        t.record(0, 0)
        t.cpu(90 * US)
        t.wait(0, 1)
        t.launch(other, 1)
        t.sync_stream(1)
    return _build(job)


def sync() -> Program:
    """The CPU waits for one stream, again and again, and then works."""
    job = Job("sync", 1)
    (t,) = job.main_threads()
    kernel = _kernel(job, 80)
    t.mark()
    for _ in range(12):
        t.launch(kernel, 0)
        t.sync_stream(0)
        t.cpu(60 * US)
    return _build(job)


def blocking_copy() -> Program:
    """Results come back through pageable memory, and the CPU works on each."""
    job = Job("blocking-copy", 1)
    (t,) = job.main_threads()
    kernel, copy = _kernel(job, 80), _copy(job, 10, "Memcpy DtoH (Device -> Pageable)")
    t.mark()
    for _ in range(12):
        t.launch(kernel, 0)
        t.copy(copy, 0, flags=Flag.PAGEABLE | Flag.TO_HOST, bytes=4096)
        t.cpu(60 * US)
    return _build(job)


def implicit_sync() -> Program:
    """Memory is freed while kernels that use it still run."""
    job = Job("implicit-sync", 1)
    (t,) = job.main_threads()
    kernel = _kernel(job, 80)
    t.mark()
    for _ in range(12):
        t.launch(kernel, 0)
        t.free()
        t.cpu(60 * US)
    return _build(job)


def host_function() -> Program:
    """A CPU function in stream order holds a kernel, which also waits for another stream."""
    job = Job("host-function", 1)
    (t,) = job.main_threads()
    short, long = _kernel(job, 5, "short", 0.3), _kernel(job, 100, "long", 0.3)
    t.mark()
    for _ in range(10):
        t.launch(long, 1)
        t.record(0, 1)
        t.launch(short, 0)
        t.host_function(200 * US, 0)
        t.wait(0, 0)
        t.launch(short, 0)
        t.sync_stream(0)
    return _build(job)


def poll() -> Program:
    """The CPU asks for an event until it is done, then works."""
    job = Job("poll", 1)
    (t,) = job.main_threads()
    kernel = _kernel(job, 120)
    t.mark()
    for _ in range(12):
        t.launch(kernel, 0)
        t.record(0, 0)
        t.poll(0, interval_ns=2_000)
        t.cpu(60 * US)
    t.sync_device()
    return _build(job)


def graph_order() -> Program:
    """Branches of a graph meet: a copy decides when, until the GPU is slower."""
    job = Job("graph-order", 1)
    (t,) = job.main_threads()
    one, other, copy = _kernel(job, 90, "one"), _kernel(job, 10, "other"), _copy(job, 100)
    with job.new_graph() as (graph, capture):
        capture.record(0, 0)
        capture.wait(0, 1)
        capture.launch(one, 0)
        capture.record(1, 0)
        capture.copy(copy, 1, flags=Flag.TO_HOST, bytes=4096)
        capture.wait(1, 1)
        capture.launch(other, 1)
        capture.record(2, 1)
        capture.wait(2, 0)
        capture.launch(other, 0)
    t.mark()
    for _ in range(6):
        t.cpu(10 * US)
        t.graph(graph)
        t.sync_stream(0)
    return _build(job)


def handover() -> Program:
    """A main thread and an autograd thread take turns, and each waits for the GPU in its turn."""
    job = Job("handover", 1)
    (main,) = job.main_threads()
    engine = job.thread(0)
    kernel = _kernel(job, 80)
    main.mark()
    for _ in range(6):
        main.cpu(30 * US, "aten::op")
        main.launch(kernel)
        main.sync_stream(0)
        main.post(0)
        main.await_(1)
        engine.await_(0)
        engine.cpu(20 * US, "autograd::engine::evaluate_function: MmBackward0")
        engine.launch(kernel)
        engine.sync_stream(0)
        engine.post(1)
    return _build(job)


def back_pressure() -> Program:
    """One rank's CPU runs ahead, then sends what the other rank waits for. With a slower GPU its queue fills."""
    job = Job("back-pressure", 2)
    ahead, waiting = job.main_threads()
    kernel, short = _kernel(job, 10, share=0.5), _kernel(job, 20, share=0.5)
    exchange = _wire(job, 5, "AllReduce")
    world = job.group((0, 1), "AllReduce", name="0")
    for t in (ahead, waiting):
        t.mark()
    for _ in range(1_900):
        ahead.launch(kernel, 0)
    ahead.collective(world, exchange, 1, bytes=1024)
    ahead.sync_stream(1)
    waiting.collective(world, exchange, 1, bytes=1024)
    waiting.record(0, 1)
    waiting.wait(0, 0)
    for _ in range(1_600):
        waiting.launch(short, 0)
    for t in (ahead, waiting):
        t.collective(world, exchange, 0, bytes=4)  # they end the step together
        t.sync_device()
    return _build(job)


def collective() -> Program:
    """Two ranks meet; each is the later one in turn."""
    job = Job("collective", 2)
    reduce = _wire(job, 10, "AllReduce")
    world = job.group((0, 1), "AllReduce", name="0")
    short, long = _kernel(job, 60, "short"), _kernel(job, 100, "long")
    for rank, t in enumerate(job.main_threads()):
        t.mark()
        for turn in range(10):
            t.launch(long if (turn + rank) % 2 else short, 0)
            t.collective(world, reduce, 0, bytes=4096)
        t.sync_device()
    return _build(job)


def send_receive() -> Program:
    """One rank sends to the other; each is the later one in turn."""
    job = Job("send-receive", 2)
    transfer = job.kernel("ncclDevKernel_SendRecv", KernelSpec(compute_ns=0, fixed_ns=8 * US, sm_share=0.05))
    pair = job.group((0, 1), "SendRecv")
    reduce = _wire(job, 5, "AllReduce")
    world = job.group((0, 1), "AllReduce", name="0")
    short, long = _kernel(job, 60, "short"), _kernel(job, 100, "long")
    for rank, t in enumerate(job.main_threads()):
        t.mark()
        for turn in range(8):
            t.launch(long if (turn + rank) % 2 else short, 0)
            t.collective(pair, transfer, 0, bytes=4096)
        t.collective(world, reduce, 0, bytes=4)  # from which the clocks are aligned
        t.sync_device()
    return _build(job)


def rooted() -> Program:
    """A broadcast: receivers wait for the root."""
    job = Job("rooted", 2)
    spread = _wire(job, 8, "Broadcast")
    reduce = _wire(job, 5, "AllReduce")
    group = job.group((0, 1), "Broadcast", name="1", wait=Wait.BROADCAST, root=0)
    world = job.group((0, 1), "AllReduce", name="0")
    before, after = _kernel(job, 100, "before"), _kernel(job, 80, "after")
    for rank, t in enumerate(job.main_threads()):
        t.mark()
        for _ in range(8):
            if rank == 0:
                t.launch(before, 0)
            t.collective(group, spread, 0, bytes=4096)
            if rank == 1:
                t.launch(after, 0)
            t.collective(world, reduce, 0, bytes=4)
        t.sync_device()
    return _build(job)


def contention() -> Program:
    """A short kernel on its own stream gets in only when a long one leaves the GPU."""
    job = Job("contention", 1)
    (t,) = job.main_threads()
    long, short = _kernel(job, 120, "long"), _kernel(job, 10, "short")
    t.mark()
    for _ in range(10):
        t.launch(long, 0)
        t.cpu(5 * US)
        t.launch(short, 1, flags=Flag.ROOM)
        t.sync_stream(1)
        t.cpu(30 * US)
    t.sync_device()
    return _build(job)


SLOW = Case((0.5,))
RECORDED_SYNCS = CaptureOptions(sync_records=True)
STRESS: tuple[Stress, ...] = (
    Stress(EdgeType.LAUNCH, launch, Case((1.0,), cpu=0.5)),
    Stress(EdgeType.STREAM, stream, SLOW),
    Stress(EdgeType.EVENT, event, SLOW, options=RECORDED_SYNCS),
    Stress(EdgeType.EVENT_INFERRED, event, SLOW),
    Stress(EdgeType.SYNC, sync, SLOW, options=RECORDED_SYNCS),
    Stress(EdgeType.SYNC_INFERRED, sync, SLOW),
    Stress(EdgeType.BLOCKING_COPY, blocking_copy, SLOW),
    Stress(EdgeType.IMPLICIT_SYNC, implicit_sync, SLOW),
    Stress(EdgeType.HOST_FUNCTION, host_function, SLOW, options=RECORDED_SYNCS),
    Stress(EdgeType.POLL, poll, SLOW, options=CaptureOptions(query_records=True, sync_records=True)),
    Stress(EdgeType.GRAPH_ORDER, graph_order, SLOW),
    Stress(EdgeType.HANDOVER, handover, SLOW),
    Stress(EdgeType.BACK_PRESSURE, back_pressure, Case((0.5, 1.0))),
    Stress(EdgeType.COLLECTIVE, collective, Case((0.5, 1.0))),
    Stress(EdgeType.P2P, send_receive, Case((0.5, 1.0))),
    Stress(EdgeType.ROOTED, rooted, Case((0.5, 1.0))),
    Stress(EdgeType.CONTENTION, contention, SLOW),
)
