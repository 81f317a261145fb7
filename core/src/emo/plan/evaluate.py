"""What a choice of clocks does to a job: exact replays under every variant of what is not known.

A *variant* fixes three things that a trace leaves open: how sensitive the kernels are to the
clock, whether the inferred edges are true, and how much of the CPU's time was tracing. Slowdown is
always against the same variant at full clock, so a variant's own error cancels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from emo.graph.intervals import union
from emo.graph.model import F64, Graph
from emo.graph.replay import replay, unit_scale
from emo.graph.steps import MIN_ITERATIONS
from emo.models.catalogue import GpuModel
from emo.models.priors import (
    CLASSES,
    IDLE,
    STATES,
    WAITING,
    KernelClass,
    PowerPrior,
    TimeLevel,
    classify_kernels,
    power_priors,
    time_factors,
)
from emo.trace.model import I8, I32, I64, Kind

_KIND_CLASS = {
    Kind.MEMCPY: KernelClass.COPY,
    Kind.MEMSET: KernelClass.COPY,
    Kind.COLLECTIVE: KernelClass.COLLECTIVE,
    Kind.P2P: KernelClass.COLLECTIVE,
}


def node_classes(graph: Graph) -> I8:
    """:class:`KernelClass` of every node (int8 of length N); OTHER for API calls, where it means nothing."""
    nodes = graph.nodes
    classes = np.full(len(nodes), KernelClass.OTHER, np.int8)
    for index, trace in enumerate(graph.traces):
        mine = np.flatnonzero((nodes.trace == index) & (nodes.kind == Kind.KERNEL))
        name_id = trace.ops.name_id[nodes.row[mine]]
        used, where = np.unique(name_id, return_inverse=True)
        classes[mine] = classify_kernels([trace.names[i] for i in used.tolist()])[where]
    for kind, cls in _KIND_CLASS.items():
        classes[nodes.kind == kind] = cls
    return classes


@dataclass(frozen=True, slots=True)
class _Clock:
    """A stopwatch: from the latest of some points to the latest of others, less some waits.

    All are indices of points; ``waits_until[i]`` ends the wait that ``waits_from[i]`` begins.
    """

    ends: I32
    begins: I32
    waits_from: I32
    waits_until: I32

    def read(self, time_ns: I64) -> int:
        waited_ns = time_ns[self.waits_until] - time_ns[self.waits_from]
        return int(time_ns[self.ends].max() - time_ns[self.begins].max() - np.maximum(waited_ns, 0).sum())


_NO_POINTS = np.zeros(0, np.int32)


class PaceMeter:
    """Step time of replays of one graph, relative to each other, by every clock there is.

    With enough iterations the clocks are those of :func:`emo.graph.steps.step_ratio`: marks of each
    rank, completions on each GPU. Else the window is the step: its makespan, and each GPU from its
    first op to its last without the waits at collectives that the capture's opening caused, since
    what lies at the edges of a capture is no slack.
    """

    def __init__(self, graph: Graph) -> None:
        self._makespan = len(graph.iterations) < MIN_ITERATIONS
        self._clocks = _window_clocks(graph) if self._makespan else _iteration_clocks(graph)

    def paces(self, time_ns: I64) -> F64:
        """Nanoseconds by every clock: over all iterations but the first, or over the window."""
        makespan = [int(time_ns.max(initial=0))] if self._makespan else []
        return np.array(makespan + [clock.read(time_ns) for clock in self._clocks], np.float64)

    @staticmethod
    def ratio(paces: F64, reference: F64) -> float:
        """Step time / reference step time, by the clock that grew most."""
        usable = reference > 0
        return float((paces[usable] / reference[usable]).max()) if usable.any() else 1.0


def _iteration_clocks(graph: Graph) -> list[_Clock]:
    iterations = graph.iterations
    count = len(iterations)
    clocks = [
        _Clock(points[-1:], points[:1], _NO_POINTS, _NO_POINTS)
        for points in iterations.end_points
        if (points >= 0).all()
    ]
    inside = (iterations.node_iteration >= 0) & (iterations.node_iteration < count)
    for gpu in range(len(graph.gpus)):
        ops = np.flatnonzero((graph.nodes.gpu == gpu) & inside)
        iteration = iterations.node_iteration[ops]
        if len(np.unique(iteration)) == count:
            clocks.append(
                _Clock(graph.end_point[ops], graph.end_point[ops[iteration == 0]], _NO_POINTS, _NO_POINTS)
            )
    return clocks


def _window_clocks(graph: Graph) -> list[_Clock]:
    clocks = []
    for gpu in range(len(graph.gpus)):
        ops = np.flatnonzero(graph.nodes.gpu == gpu)
        first = ops[[int(graph.nodes.start_ns[ops].argmin())]]
        edges = [
            (graph.start_point[n], j.start_point)
            for j in graph.joints
            if j.edge
            for n in j.nodes
            if graph.nodes.gpu[n] == gpu
        ]
        waits = np.array(edges, np.int32).reshape(-1, 2)
        clocks.append(_Clock(graph.end_point[ops], graph.start_point[first], waits[:, 0], waits[:, 1]))
    return clocks


class TimeAccount:
    """How a GPU's time splits into classes of work, waiting and idling, in any replay of a graph."""

    def __init__(self, graph: Graph, classes: I8) -> None:
        nodes = graph.nodes
        self._gpus = len(graph.gpus)
        ops = np.flatnonzero(nodes.gpu >= 0)
        self._gpu = nodes.gpu[ops].astype(np.int64)
        self._entry = self._gpu * CLASSES + classes[ops]
        self._start, self._end = graph.start_point[ops], graph.end_point[ops]
        # Where an op's waiting for known peers ends (its joint's start, else its own), and how much
        # longer it waited for those that are not in the trace.
        wait_end = graph.start_point.copy()
        absent_ns = graph.peer_wait_ns[graph.end_point].copy()
        for joint in graph.joints:
            members = list(joint.nodes)
            wait_end[members] = joint.start_point
            if not joint.rooted:
                absent_ns[members] += graph.peer_wait_ns[joint.end_point]
        self._wait_end, self._absent_ns = wait_end[ops], absent_ns[ops]

    def of(self, time_ns: I64) -> F64:
        """Nanoseconds per GPU and state (shape (GPUs, STATES)); every row adds up to the makespan.

        Where streams overlap, the time is shared out in proportion to the ops' durations.
        """
        makespan = int(time_ns.max(initial=0))
        start, end = time_ns[self._start], time_ns[self._end]
        work_start = np.minimum(np.maximum(time_ns[self._wait_end], start) + self._absent_ns, end)
        busy_ns = self._union_ns(work_start, end, makespan)
        occupied_ns = self._union_ns(start, end, makespan)
        by_class = np.bincount(self._entry, weights=end - work_start, minlength=self._gpus * CLASSES)
        by_class = by_class.reshape(self._gpus, CLASSES)
        account = np.empty((self._gpus, STATES))
        account[:, :CLASSES] = by_class * (busy_ns / np.maximum(by_class.sum(axis=1), 1.0))[:, None]
        account[:, WAITING] = occupied_ns - busy_ns
        account[:, IDLE] = makespan - occupied_ns
        return account

    def _union_ns(self, start_ns: I64, end_ns: I64, makespan_ns: int) -> F64:
        """Time covered by intervals, per GPU: one pass, with each GPU on its own stretch of the time axis."""
        shift = self._gpu * (makespan_ns + 1)
        merged = union(start_ns + shift, end_ns + shift)
        gpu = merged.start_ns // (makespan_ns + 1)
        covered: F64 = np.bincount(gpu, weights=merged.end_ns - merged.start_ns, minlength=self._gpus).astype(
            np.float64
        )
        return covered


class ScaledGraph:
    """A graph with what is needed to replay it at any clocks and CPU scale."""

    def __init__(self, graph: Graph, classes: I8) -> None:
        self.graph = graph
        self.meter = PaceMeter(graph)
        self.time = TimeAccount(graph, classes)
        self._ops = np.flatnonzero(graph.nodes.gpu >= 0)
        self._first_node = 1 + len(graph.threads)
        # Index into a (GPUs x CLASSES) table of factors, per GPU op.
        self._entry = graph.nodes.gpu[self._ops].astype(np.int64) * CLASSES + classes[self._ops]
        members = [joint.nodes for joint in graph.joints]
        self._member = np.array([node for nodes in members for node in nodes], np.int64)
        self._joint_row = np.cumsum([0, *map(len, members)])[:-1]

    def scale(self, factors: F64, cpu_scale: float) -> F64:
        """Scale vector for time factors per GPU and class (shape (GPUs, CLASSES))."""
        scale = unit_scale(self.graph)
        scale[1 : self._first_node] = cpu_scale
        scale[self._first_node + self._ops] = factors.reshape(-1)[self._entry]
        if len(self._member):
            # Communication is as slow as its slowest participant.
            scale[self._first_node + len(self.graph.nodes) :] = np.maximum.reduceat(
                scale[self._first_node + self._member], self._joint_row
            )
        return scale

    def replay(self, factors: F64, cpu_scale: float) -> I64:
        """Time of every point (P)."""
        return replay(self.graph, self.scale(factors, cpu_scale)).time_ns


@dataclass(frozen=True, slots=True)
class Variant:
    """One combination of what is not known; ``job`` is the graph with or without inferred edges."""

    name: str
    job: ScaledGraph
    level: TimeLevel
    cpu_scale: float
    reference: F64  # paces at full clock


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with the lowest and highest that are plausible."""

    value: float
    low: float
    high: float


class Evaluator:
    """Slowdown and energy of clock choices. A choice is a tuple of indices into ``clocks_mhz``, one per GPU.

    Results are remembered: a search asks for the same choice again and again.
    """

    def __init__(
        self,
        graph: Graph,
        graph_without_inferred: Graph | None,
        model: GpuModel,
        clocks_mhz: Sequence[int],
        cpu_scale: float,
    ) -> None:
        self.gpus = len(graph.gpus)
        self.replays = 0
        self.powers: tuple[PowerPrior, ...] = power_priors(model)
        ratios = [clock / model.sm_clock_max_mhz for clock in clocks_mhz]
        self._factors = np.array([[time_factors(ratio, level) for ratio in ratios] for level in TimeLevel])
        self._watts = np.array(
            [[power.power_w(model.power_limit_w, ratio) for ratio in ratios] for power in self.powers]
        )
        classes = node_classes(graph)
        self.job = ScaledGraph(graph, classes)
        graphs = [("", self.job)]
        if graph_without_inferred is not None:
            graphs.append(
                (
                    "inferred edges dropped",
                    ScaledGraph(graph_without_inferred, node_classes(graph_without_inferred)),
                )
            )
        scales = [cpu_scale] if cpu_scale == 1.0 else [cpu_scale, 1.0]
        self.variants: list[Variant] = []
        for level in (TimeLevel.VALUE, TimeLevel.LOW, TimeLevel.HIGH):
            for graph_name, job in graphs:
                for scale in scales:
                    cpu = "as traced" if scale == 1.0 else f"x {scale:.2f}"
                    name = f"clock sensitivity {_LEVEL_NAMES[level]}, CPU {cpu}"
                    reference = job.meter.paces(job.replay(np.ones((self.gpus, CLASSES)), scale))
                    self.variants.append(
                        Variant(", ".join(filter(None, (name, graph_name))), job, level, scale, reference)
                    )
        self.nominal = self.variants[0]
        # The variant that refused last is asked first: most choices fail by the same one.
        self._strictest_first = sorted(self.variants, key=lambda variant: variant.level != TimeLevel.LOW)
        self._slowdowns: dict[tuple[str, tuple[int, ...]], float] = {}
        self._accounts: dict[tuple[str, tuple[int, ...]], F64] = {}

    def slowdown(self, variant: Variant, choice: tuple[int, ...]) -> float:
        """Step time / step time at full clock - 1, in one variant."""
        key = (variant.name, choice)
        if key not in self._slowdowns:
            self._replay(variant, choice)
        return self._slowdowns[key]

    def account(self, variant: Variant, choice: tuple[int, ...]) -> F64:
        """Time per GPU and state, in one variant."""
        key = (variant.name, choice)
        if key not in self._accounts:
            self._accounts[key] = variant.job.time.of(self._replay(variant, choice))
        return self._accounts[key]

    def _replay(self, variant: Variant, choice: tuple[int, ...]) -> I64:
        self.replays += 1
        time_ns = variant.job.replay(self._factors[variant.level, list(choice)], variant.cpu_scale)
        ratio = PaceMeter.ratio(variant.job.meter.paces(time_ns), variant.reference)
        self._slowdowns[variant.name, choice] = ratio - 1.0
        return time_ns

    def within(self, choice: tuple[int, ...], target: float) -> bool:
        """True if the slowdown stays within the target in every variant."""
        for position, variant in enumerate(self._strictest_first):
            if self.slowdown(variant, choice) > target:
                self._strictest_first.insert(0, self._strictest_first.pop(position))
                return False
        return True

    def slowdown_interval(self, choice: tuple[int, ...]) -> Interval:
        """Slowdown over all variants; the value is the one of the likeliest."""
        all_of_them = [self.slowdown(variant, choice) for variant in self.variants]
        return Interval(all_of_them[0], min(all_of_them), max(all_of_them))

    def energy_j(self, choice: tuple[int, ...]) -> float:
        """Joules of all GPUs over the window, in the likeliest variant."""
        return float(self._energies_j(self.account(self.nominal, choice), choice)[0])

    def saving_interval(self, choice: tuple[int, ...]) -> Interval:
        """1 - energy / energy at full clock over all variants and power priors."""
        full = (0,) * self.gpus
        savings = np.array(
            [
                1.0
                - self._energies_j(self.account(variant, choice), choice)
                / self._energies_j(self.account(variant, full), full)
                for variant in self.variants
            ]
        )
        return Interval(float(savings[0, 0]), float(savings.min()), float(savings.max()))

    def _energies_j(self, account_ns: F64, choice: tuple[int, ...]) -> F64:
        """Joules by each power prior."""
        watts = self._watts[:, list(choice), :]
        energies: F64 = np.einsum("pgs,gs->p", watts, account_ns) / 1e9
        return energies

    def time_by_class_ns(self) -> dict[KernelClass, int]:
        """Busy time of all GPUs by kernel class, as recorded."""
        account = self.job.time.of(self.job.graph.time_ns)
        return {cls: round(float(account[:, cls].sum())) for cls in KernelClass}


_LEVEL_NAMES = {TimeLevel.LOW: "high", TimeLevel.VALUE: "likely", TimeLevel.HIGH: "low"}
