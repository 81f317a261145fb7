"""A tiny language to write down a recorded run by hand, and to ask what it becomes under what-if.

All times are microseconds. A run is a set of ranks; a rank is what its profiler would have
written: calls on CPU threads, ops on streams, synchronisation records, marks. It goes through
``validate`` like any trace that a reader found.

    run = Run()
    gpu0 = run.rank(0)
    gpu0.launch("A", at=0, start=10, end=60)       # call "launch A" 0..5, kernel "A" 10..60 on stream 7
    gpu0.launch("B", at=5, start=60, end=80)
    run.replay(scale={"A": 2.0}).span("B")          # -> (110.0, 130.0)

Every op and call has a label that is unique in the run; a launch call is called "launch LABEL".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from emo.graph.build import build_graph
from emo.graph.model import EdgeType, Graph
from emo.graph.replay import Timeline, replay, unit_scale
from emo.trace.model import GPU_KINDS, CollectiveGroup, DeviceInfo, RawCategory, RawTrace, Thread, Trace
from emo.trace.validate import validate

US = 1_000
EPOCH_NS = 10**9  # recorded clocks do not start at zero

_COLUMNS: dict[str, tuple[type[np.signedinteger[Any]], int]] = {
    "category": (np.int8, 0),
    "start_ns": (np.int64, 0),
    "dur_ns": (np.int64, 0),
    "device": (np.int32, -1),
    "stream": (np.int32, -1),
    "thread": (np.int32, -1),
    "correlation": (np.int64, -1),
    "name_id": (np.int32, 0),
    "bytes": (np.int64, -1),
    "collective_group": (np.int32, -1),
    "collective_seq": (np.int64, -1),
    "graph_node": (np.int64, -1),
    "shape_hash": (np.int64, 0),
    "sync_correlation": (np.int64, -1),
    "sync_stream": (np.int32, -1),
}


@dataclass(slots=True)
class Rank:
    """One rank's recording. Every method adds records and returns nothing."""

    run: Run
    number: int
    device: int = 0
    clock_ns: int = 0  # how far its clock is ahead
    rows: list[dict[str, int]] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)
    threads: dict[str, int] = field(default_factory=dict)
    groups: list[CollectiveGroup] = field(default_factory=list)
    events: dict[str, tuple[int, int]] = field(default_factory=dict)  # label -> (correlation, stream)

    # --- what a thread does --------------------------------------------------------------------

    def call(self, name: str, at: int, until: int, *, label: str = "", thread: str = "main") -> int:
        """An API call; returns its correlation id."""
        correlation = self.run.next_correlation()
        self._add(RawCategory.API, name, at, until, thread=self._thread(thread), correlation=correlation)
        self.run.labels[label or f"{name} {at}"] = (self.number, correlation, "")
        return correlation

    def work(self, at: int, until: int, *, name: str = "aten::op", thread: str = "main") -> None:
        """A framework op: only says that the thread was there."""
        self._add(RawCategory.LABEL, name, at, until, thread=self._thread(thread))

    def mark(self, name: str, at: int, until: int, *, thread: str = "main") -> None:
        """A named range such as ``ProfilerStep#1``."""
        self._add(RawCategory.ANNOTATION, name, at, until, thread=self._thread(thread))

    def record(self, event: str, at: int, *, stream: int) -> None:
        """cudaEventRecord, 1 us; ``event`` is remembered for waits that a record explains."""
        correlation = self.call("cudaEventRecord", at, at + 1, label=f"record {event}")
        self.events[event] = (correlation, stream)

    def wait(self, at: int, *, event: str = "", stream: int = -1) -> None:
        """cudaStreamWaitEvent, 1 us. Without ``event`` nothing says what is waited for."""
        correlation = self.call("cudaStreamWaitEvent", at, at + 1)
        if event:
            self._says(correlation, event, stream=stream)

    def wait_for(
        self,
        name: str,
        at: int,
        until: int,
        *,
        label: str,
        event: str = "",
        stream: int = -1,
        thread: str = "main",
    ) -> None:
        """A call that waits for the GPU. ``event`` or ``stream``: a record says for what."""
        correlation = self.call(name, at, until, label=label, thread=thread)
        if event:
            self._says(correlation, event)
        elif stream >= 0:
            self._add(RawCategory.SYNC, "sync record", 0, 0, correlation=correlation, stream=stream)

    # --- what the GPU does ---------------------------------------------------------------------

    def launch(
        self,
        label: str,
        *,
        at: int,
        start: int,
        end: int,
        stream: int = 7,
        thread: str = "main",
        until: int | None = None,
        api: str = "cudaLaunchKernel",
        kind: RawCategory = RawCategory.KERNEL,
        name: str = "",
        **columns: int,
    ) -> None:
        """An op and the call (5 us) that launches it."""
        correlation = self.call(
            api, at, at + 5 if until is None else until, label=f"launch {label}", thread=thread
        )
        self.op(
            label,
            start=start,
            end=end,
            stream=stream,
            correlation=correlation,
            kind=kind,
            name=name,
            **columns,
        )

    def op(
        self,
        label: str,
        *,
        start: int,
        end: int,
        stream: int = 7,
        correlation: int = -1,
        kind: RawCategory = RawCategory.KERNEL,
        name: str = "",
        **columns: int,
    ) -> None:
        """An op on the GPU alone."""
        columns.setdefault("device", self.device)
        self._add(kind, name or label, start, end, stream=stream, correlation=correlation, **columns)
        self.run.labels[label] = (self.number, correlation, name or label)

    def graph(self, label: str, at: int, ops: Mapping[str, tuple[int, int, int]]) -> None:
        """One cudaGraphLaunch (5 us) of several ops: label -> (start, end, stream)."""
        correlation = self.call("cudaGraphLaunch", at, at + 5, label=label)
        for op, (start, end, stream) in ops.items():
            self.op(op, start=start, end=end, stream=stream, correlation=correlation)

    def collective(
        self,
        label: str,
        *,
        at: int,
        start: int,
        end: int,
        op: str = "AllReduce",
        stream: int = 20,
        group: tuple[int, ...] = (),
        sequence: int = -1,
        bytes: int = 4096,
    ) -> None:
        """A communication kernel. ``group``: the ranks of its process group, where metadata names it."""
        columns: dict[str, Any] = {"collective_seq": sequence, "bytes": bytes}
        if group:
            known = CollectiveGroup("group of " + " ".join(map(str, group)), len(group), group)
            if known not in self.groups:
                self.groups.append(known)
            columns["collective_group"] = self.groups.index(known)
        self.launch(label, at=at, start=start, end=end, stream=stream, name=f"ncclDevKernel_{op}", **columns)

    # --- inside --------------------------------------------------------------------------------

    def _thread(self, name: str) -> int:
        return self.threads.setdefault(name, len(self.threads))

    def _says(self, correlation: int, event: str, *, stream: int = -1) -> None:
        """A synchronisation record: the call with ``correlation`` waits for ``event``."""
        awaited, on_stream = self.events[event]
        self._add(
            RawCategory.SYNC,
            "sync record",
            0,
            0,
            correlation=correlation,
            stream=stream,
            sync_correlation=awaited,
            sync_stream=on_stream,
        )

    def _add(self, category: RawCategory, name: str, start: int, end: int, **columns: int) -> None:
        self.rows.append(
            {
                "category": category,
                "name_id": self.names.setdefault(name, len(self.names)),
                "start_ns": EPOCH_NS + start * self.run.unit_ns,
                "dur_ns": (end - start) * self.run.unit_ns,
                **columns,
            }
        )

    def trace(self, rank: int | None = None) -> Trace:
        """The validated trace."""
        columns: dict[str, Any] = {
            name: np.array([row.get(name, default) for row in self.rows], dtype=dtype)
            for name, (dtype, default) in _COLUMNS.items()
        }
        columns["start_ns"] += self.clock_ns
        threads = []
        for number in self.threads.values():
            mine = [row for row in self.rows if row.get("thread") == number]
            first = min(row["start_ns"] for row in mine)
            last = max(row["start_ns"] + row["dur_ns"] for row in mine)
            threads.append(Thread(1, number, first + self.clock_ns, last + self.clock_ns))
        return validate(
            RawTrace(
                path=f"rank{self.number}.json",
                format="kineto",
                **columns,
                names=list(self.names),
                threads=threads,
                groups=list(self.groups),
                devices=[DeviceInfo(self.device, "GPU")],
                rank=self.number if rank is None else rank,
                world_size=len(self.run.ranks),
            )
        )


@dataclass(slots=True)
class Run:
    """A job: its ranks and the labels of everything in them. ``unit_ns``: what one of its times means."""

    unit_ns: int = US
    queue_depth: int = 1024
    ranks: dict[int, Rank] = field(default_factory=dict)
    labels: dict[str, tuple[int, int, str]] = field(default_factory=dict)  # rank, correlation, GPU op's name
    correlations: int = 0

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """How a failing property test shows it: a line per record."""
        lines = [f"Run in units of {self.unit_ns} ns, queue of {self.queue_depth}"]
        for rank in self.ranks.values():
            names = list(rank.names)
            for row in rank.rows:
                start = (row["start_ns"] - EPOCH_NS) // self.unit_ns
                end = start + row["dur_ns"] // self.unit_ns
                where = f"stream {row['stream']}" if "stream" in row else f"thread {row.get('thread')}"
                lines.append(f"  rank {rank.number} {where}: {names[row['name_id']]} {start}..{end}")
        printer.text("\n".join(lines))

    def rank(self, number: int, *, device: int = 0) -> Rank:
        """The rank with this number; made when first asked for."""
        return self.ranks.setdefault(number, Rank(self, number, device))

    def next_correlation(self) -> int:
        self.correlations += 1
        return self.correlations

    def traces(self) -> list[Trace]:
        """One trace per rank."""
        return [rank.trace() for rank in self.ranks.values()]

    def graph(self, *, without: Collection[EdgeType] = ()) -> Graph:
        """The dependency graph of the job."""
        return build_graph(self.traces(), without=without, queue_depth=self.queue_depth)

    def replay(
        self,
        scale: Mapping[str, float] | None = None,
        *,
        cpu: Mapping[str, float] | None = None,
        without: Collection[EdgeType] = (),
    ) -> Replayed:
        """Replay with ops slowed by label, and threads by ``"RANK NAME"`` (``"0 main"``)."""
        graph = self.graph(without=without)
        found = Replayed(self, graph, replay(graph))
        factors = unit_scale(graph)
        for label, factor in (scale or {}).items():
            factors[graph.node_owner(found.node(label))] = factor
        for key, factor in (cpu or {}).items():
            number, name = key.split(maxsplit=1)
            trace = [graph.rank_of(index) for index in range(len(graph.traces))].index(int(number))
            thread = self.ranks[int(number)].threads[name]
            factors[graph.thread_owner(graph.threads.index((trace, thread)))] = factor
        first_joint = graph.scale_size - len(graph.joints)
        for joint in graph.joints:
            factors[first_joint + joint.index] = max(factors[graph.node_owner(n)] for n in joint.nodes)
        return Replayed(self, graph, replay(graph, factors))


@dataclass(frozen=True, slots=True)
class Replayed:
    """A graph of a :class:`Run` and one replay of it."""

    run: Run
    graph: Graph
    timeline: Timeline

    def node(self, label: str) -> int:
        """Node number of an op or a call."""
        rank, correlation, gpu_name = self.run.labels[label]
        nodes = self.graph.nodes
        for node in range(len(nodes)):
            trace = self.graph.traces[nodes.trace[node]]
            row = nodes.row[node]
            if (
                self.graph.rank_of(int(nodes.trace[node])) != rank
                or trace.ops.correlation[row] != correlation
            ):
                continue
            on_gpu = int(nodes.kind[node]) in GPU_KINDS
            if on_gpu == bool(gpu_name) and gpu_name in ("", trace.names[trace.ops.name_id[row]]):
                return node
        raise KeyError(f"{label!r} is no node of the graph")

    def span(self, label: str) -> tuple[float, float]:
        """(start, end) of an op or a call, microseconds from the window's opening."""
        node, time = self.node(label), self.timeline.time_ns
        return (
            float(time[self.graph.start_point[node]]) / self.run.unit_ns,
            float(time[self.graph.end_point[node]]) / self.run.unit_ns,
        )

    def recorded(self, label: str) -> tuple[float, float]:
        """(start, end) as recorded."""
        node, time = self.node(label), self.graph.time_ns
        return (
            float(time[self.graph.start_point[node]]) / self.run.unit_ns,
            float(time[self.graph.end_point[node]]) / self.run.unit_ns,
        )


Spans = Mapping[str, tuple[float, float]]


def expect(
    run: Run,
    rule: EdgeType | None,
    spans: Spans,
    *,
    scale: Mapping[str, float] | None = None,
    cpu: Mapping[str, float] | None = None,
) -> None:
    """Assert the timeline under what-if, and that ``rule`` is what makes it so.

    ``spans`` are the (start, end) worked out by hand. The recorded run must be reproduced with
    and without the rule; the changed one must come out wrong without it. ``rule`` is None for the
    two rules without which there is no graph: OP and PROGRAM.
    """
    for without in [[], [rule]] if rule is not None else [[]]:
        baseline = run.replay(without=without)
        assert np.array_equal(baseline.timeline.time_ns, baseline.graph.time_ns)
        changed = run.replay(scale, cpu=cpu, without=without)
        found = {label: changed.span(label) for label in spans}
        if without:
            assert found != dict(spans), "the rule makes no difference here"
        else:
            assert found == dict(spans)
