"""Random programs: hypothesis chooses what every rank does, a small simulator says when it happened.

The simulator knows the hardware's rules from the outside (streams in order, waits, blocking
calls, collectives) and adds delays that nothing explains. It shares no code with the engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from builder import Rank, Run
from hypothesis import strategies as st

from emo.trace.model import RawCategory

STREAMS = (7, 8, 9)
CALL = 5  # what a call takes that nothing holds
LATENCY = 7  # from the start of a launch call to the op, at least
ACTIONS = (
    "kernel",
    "kernel",
    "kernel",
    "overlap",
    "graph",
    "wait",
    "sync stream",
    "sync event",
    "sync device",
    "poll",
    "mark",
    "copy",
    "free",
    "host function",
    "other thread",
    "orphan",
)


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that a rank does. ``gap`` of CPU work before it; ``late``: a delay nothing explains."""

    what: str
    stream: int
    gap: int
    duration: int
    late: int


@dataclass(frozen=True, slots=True)
class Phase:
    """What every rank does before all of them meet (``collective`` empty: they do not)."""

    actions: tuple[tuple[Action, ...], ...]
    collective: str
    wire: int


_action = st.builds(
    Action,
    st.sampled_from(ACTIONS),
    st.sampled_from(STREAMS),
    st.sampled_from((0, 1, 3, 20, 150)),
    st.sampled_from((0, 1, 4, 25, 90, 400)),
    st.sampled_from((0, 0, 0, 1, 12, 60)),
)
_collectives = ("", "AllReduce", "AllGather", "Broadcast", "Reduce", "SendRecv")


@st.composite
def programs(draw: st.DrawFn, *, max_ranks: int = 3, records: bool | None = None) -> Run:
    """A recorded run of one to ``max_ranks`` ranks, with or without synchronisation records."""
    ranks = draw(st.integers(1, max_ranks))
    phases = draw(
        st.lists(
            st.builds(
                Phase,
                st.tuples(*[st.lists(_action, max_size=8).map(tuple)] * ranks),
                st.sampled_from(_collectives),
                st.sampled_from((3, 30, 120)),
            ),
            min_size=1,
            max_size=4,
        )
    )
    told = draw(st.booleans()) if records is None else records
    run = play(phases, ranks, records=told, unit_ns=draw(st.sampled_from((1_000, 1_357))))
    run.queue_depth = draw(st.sampled_from((1, 2, 5, 1_024)))
    return run


@dataclass(slots=True)
class _Clock:
    """Where a rank has got to."""

    gpu: Rank
    now: int = 0
    other: int = 0  # the second thread
    step: int = 0
    step_began: int = 0
    ready: dict[int, int] = field(default_factory=lambda: dict.fromkeys((*STREAMS, 20), 0))
    last_start: dict[int, int] = field(default_factory=lambda: dict.fromkeys((*STREAMS, 20), 0))
    count: int = 0

    def label(self, what: str) -> str:
        self.count += 1
        return f"{what} {self.gpu.number}.{self.count}"


def play(phases: list[Phase], ranks: int, *, records: bool, unit_ns: int = 1_000) -> Run:
    """Simulate the phases and write down what a profiler would have seen."""
    run = Run(unit_ns=unit_ns)
    clocks = [_Clock(run.rank(number)) for number in range(ranks)]
    for clock in clocks:
        _kernel(clock, Action("kernel", 7, 0, 10, 0))
    for number, phase in enumerate(phases):
        for clock, actions in zip(clocks, phase.actions, strict=True):
            for action in actions:
                _act(clock, action, records=records)
        if phase.collective:
            _meet(clocks, phase, number)
    for clock in clocks:
        clock.gpu.work(clock.now, clock.now + 1)
    return run


def _act(clock: _Clock, action: Action, *, records: bool) -> None:
    clock.now += action.gap
    what = action.what
    if what == "kernel":
        _kernel(clock, action)
    elif what == "overlap":
        _kernel(clock, action, overlap=True)
    elif what == "graph":
        _graph(clock, action)
    elif what == "wait":
        _wait(clock, action, records=records)
    elif what == "copy":
        _copy(clock, action)
    elif what == "host function":
        clock.gpu.call("cudaLaunchHostFunc", clock.now, clock.now + CALL, label=clock.label(what))
        clock.ready[action.stream] = max(clock.ready[action.stream], clock.now) + action.duration
        clock.now += CALL
    elif what == "other thread":
        _kernel_of_other_thread(clock, action)
    elif what == "mark":
        clock.gpu.mark(f"ProfilerStep#{clock.step}", clock.step_began, clock.now + 1)
        clock.step += 1
        clock.now = clock.step_began = clock.now + 1
    elif what == "poll":
        _poll(clock, action, records=records)
    elif what == "orphan":
        start = max(clock.ready[9], clock.now) + action.late
        clock.gpu.op(clock.label("orphan"), start=start, end=start + action.duration, stream=9)
        clock.ready[9] = start + action.duration
    else:
        _block(clock, action, records=records)


def _kernel(clock: _Clock, action: Action, *, overlap: bool = False) -> None:
    ready = clock.ready[action.stream]
    if overlap and ready > clock.last_start[action.stream]:
        ready = (ready + clock.last_start[action.stream]) // 2
    start = max(ready, clock.now + LATENCY) + action.late
    end = start + action.duration
    clock.gpu.launch(clock.label("kernel"), at=clock.now, start=start, end=end, stream=action.stream)
    clock.last_start[action.stream] = start
    clock.ready[action.stream] = max(end, clock.ready[action.stream])
    clock.now += CALL


def _kernel_of_other_thread(clock: _Clock, action: Action) -> None:
    at = max(clock.other + CALL, clock.now)
    start = max(clock.ready[action.stream], at + LATENCY) + action.late
    clock.gpu.launch(
        clock.label("kernel"),
        at=at,
        start=start,
        end=start + action.duration,
        stream=action.stream,
        thread="other",
    )
    clock.ready[action.stream] = start + action.duration
    clock.other = clock.now = at + CALL


def _graph(clock: _Clock, action: Action) -> None:
    first = max(clock.ready[7], clock.now + LATENCY) + action.late
    second = max(first + action.duration, clock.ready[8])
    ops = {
        clock.label("node"): (first, first + action.duration, 7),
        clock.label("node"): (second, second + action.duration, 8),
    }
    clock.gpu.graph(clock.label("replay"), clock.now, ops)
    clock.ready[7], clock.ready[8] = first + action.duration, second + action.duration
    clock.now += CALL


def _wait(clock: _Clock, action: Action, *, records: bool) -> None:
    """``action.stream`` waits for the next stream; a kernel follows at once."""
    awaited = STREAMS[(STREAMS.index(action.stream) + 1) % len(STREAMS)]
    if records:
        event = clock.label("event")
        clock.gpu.record(event, clock.now, stream=awaited)
        clock.gpu.wait(clock.now + 1, event=event, stream=action.stream)
        clock.now += 1
    else:
        clock.gpu.wait(clock.now)
    clock.now += 1
    clock.ready[action.stream] = max(clock.ready[action.stream], clock.ready[awaited])
    _kernel(clock, action)


def _copy(clock: _Clock, action: Action) -> None:
    start = max(clock.ready[action.stream], clock.now + LATENCY) + action.late
    end = start + action.duration
    clock.gpu.launch(
        clock.label("copy"),
        at=clock.now,
        until=end + 2,
        start=start,
        end=end,
        stream=action.stream,
        api="cudaMemcpyAsync",
        kind=RawCategory.MEMCPY,
        name="Memcpy DtoH (Device -> Pageable)",
    )
    clock.ready[action.stream] = end
    clock.now = end + 2


def _poll(clock: _Clock, action: Action, *, records: bool) -> None:
    """Query an event until it has come, 20 between queries; only records tell which query was the last."""
    event = clock.label("event")
    clock.gpu.record(event, clock.now, stream=action.stream)
    clock.now += 1
    while clock.now < clock.ready[action.stream]:
        clock.gpu.call("cudaEventQuery", clock.now, clock.now + 1)
        clock.now += 20
    said = event if records else ""
    clock.gpu.wait_for("cudaEventQuery", clock.now, clock.now + 1, label=clock.label("poll"), event=said)
    clock.now += 1


def _block(clock: _Clock, action: Action, *, records: bool) -> None:
    label, gpu = clock.label(action.what), clock.gpu
    event = ""
    if action.what == "sync event" and records:
        event = clock.label("event")
        gpu.record(event, clock.now, stream=action.stream)
        clock.now += 1
    one_stream = action.what in ("sync stream", "sync event")
    done = clock.ready[action.stream] if one_stream else max(clock.ready.values())
    until = max(done, clock.now) + CALL
    if action.what == "sync stream":
        stream = action.stream if records else -1
        gpu.wait_for("cudaStreamSynchronize", clock.now, until, label=label, stream=stream)
    elif action.what == "sync event":
        gpu.wait_for("cudaEventSynchronize", clock.now, until, label=label, event=event)
    else:
        name = "cudaFree" if action.what == "free" else "cudaDeviceSynchronize"
        gpu.wait_for(name, clock.now, until, label=label)
    clock.now = until


def _meet(clocks: list[_Clock], phase: Phase, number: int) -> None:
    """All ranks take part; in a send and its receive only the first two."""
    if phase.collective == "SendRecv":
        clocks = clocks[:2]
    starts = [max(clock.ready[20], clock.now + LATENCY) for clock in clocks]
    arrived = max(starts)
    for rank, (clock, start) in enumerate(zip(clocks, starts, strict=True)):
        if phase.collective == "Broadcast":
            end = max(start, starts[0]) + phase.wire
        elif phase.collective == "Reduce":
            end = (arrived if rank == 0 else start) + phase.wire
        else:
            end = arrived + phase.wire + rank  # a residual
        clock.gpu.collective(
            f"meeting {number}.{rank}", at=clock.now, start=start, end=end, op=phase.collective
        )
        clock.ready[20] = end
        clock.now += CALL
