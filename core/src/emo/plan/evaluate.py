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


class PaceMeter:
    """Step time of replays of one graph, relative to each other.

    The same clocks as :func:`emo.graph.steps.step_ratio` (marks of each rank, completions on each
    GPU; the makespan where there are too few iterations), with the points looked up once.
    """

    def __init__(self, graph: Graph) -> None:
        iterations = graph.iterations
        self._spans: list[tuple[I32, I32]] = []  # (points, points): the later of each ends the last, the first iteration
        if len(iterations) < MIN_ITERATIONS:
            return
        for points in iterations.end_points:
            if (points >= 0).all():
                self._spans.append((points[-1:], points[:1]))
        count = len(iterations)
        for gpu in range(len(graph.gpus)):
            inside = (iterations.node_iteration >= 0) & (iterations.node_iteration < count)
            ops = np.flatnonzero((graph.nodes.gpu == gpu) & inside)
            iteration = iterations.node_iteration[ops]
            if len(np.unique(iteration)) == count:
                self._spans.append((graph.end_point[ops], graph.end_point[ops[iteration == 0]]))

    def paces(self, time_ns: I64) -> F64:
        """Nanoseconds over all iterations but the first, by every clock; the makespan if there is none."""
        if not self._spans:
            return np.array([time_ns.max(initial=0)], np.float64)
        return np.array([time_ns[last].max() - time_ns[first].max() for last, first in self._spans], np.float64)

    @staticmethod
    def ratio(paces: F64, reference: F64) -> float:
        """Step time / reference step time, by the clock that grew most."""
        usable = reference > 0
        return float((paces[usable] / reference[usable]).max()) if usable.any() else 1.0


class TimeAccount:
    """How a GPU's time splits into classes of work, waiting and idling, in any replay of a graph."""

    def __init__(self, graph: Graph, classes: I8) -> None:
        self._graph = graph
        nodes = graph.nodes
        self._ops = [np.flatnonzero(nodes.gpu == gpu) for gpu in range(len(graph.gpus))]
        self._classes = [classes[ops] for ops in self._ops]
        # The point at which an op's waiting for known peers ends: its joint's start, else its own.
        self._wait_end = graph.start_point.copy()
        self._wait_more_ns = graph.peer_wait_ns[graph.end_point].copy()
        for joint in graph.joints:
            members = list(joint.nodes)
            self._wait_end[members] = joint.start_point
            if not joint.rooted:
                self._wait_more_ns[members] += graph.peer_wait_ns[joint.end_point]

    def of(self, time_ns: I64) -> F64:
        """Nanoseconds per GPU and state (shape (GPUs, STATES)); every row adds up to the makespan.

        Where streams overlap, the time is shared out in proportion to the ops' durations.
        """
        makespan = int(time_ns.max(initial=0))
        account = np.zeros((len(self._ops), STATES))
        for gpu, ops in enumerate(self._ops):
            start, end = time_ns[self._graph.start_point[ops]], time_ns[self._graph.end_point[ops]]
            wait = np.maximum(time_ns[self._wait_end[ops]] - start, 0) + self._wait_more_ns[ops]
            work_start = np.minimum(start + wait, end)
            busy_ns = union(work_start, end).total_ns
            occupied_ns = union(start, end).total_ns if wait.any() else busy_ns
            by_class = np.bincount(self._classes[gpu], weights=end - work_start, minlength=CLASSES)
            if busy_ns:
                account[gpu, :CLASSES] = by_class * (busy_ns / by_class.sum())
            account[gpu, WAITING] = occupied_ns - busy_ns
            account[gpu, IDLE] = makespan - occupied_ns
        return account


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
        self, graph: Graph, graph_without_inferred: Graph | None, model: GpuModel, clocks_mhz: Sequence[int], cpu_scale: float
    ) -> None:
        self.gpus = len(graph.gpus)
        self.replays = 0
        self.powers: tuple[PowerPrior, ...] = power_priors(model)
        ratios = [clock / model.sm_clock_max_mhz for clock in clocks_mhz]
        self._factors = np.array([[time_factors(ratio, level) for ratio in ratios] for level in TimeLevel])
        self._watts = np.array([[power.power_w(model.power_limit_w, ratio) for ratio in ratios] for power in self.powers])
        classes = node_classes(graph)
        self.job = ScaledGraph(graph, classes)
        graphs = [("", self.job)]
        if graph_without_inferred is not None:
            graphs.append(
                ("inferred edges dropped", ScaledGraph(graph_without_inferred, node_classes(graph_without_inferred)))
            )
        scales = [cpu_scale] if cpu_scale == 1.0 else [cpu_scale, 1.0]
        self.variants: list[Variant] = []
        for level in (TimeLevel.VALUE, TimeLevel.LOW, TimeLevel.HIGH):
            for graph_name, job in graphs:
                for scale in scales:
                    name = f"clock sensitivity {_LEVEL_NAMES[level]}, CPU x {scale:.2f}"
                    reference = job.meter.paces(job.replay(np.ones((self.gpus, CLASSES)), scale))
                    self.variants.append(Variant(", ".join(filter(None, (name, graph_name))), job, level, scale, reference))
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
                1.0 - self._energies_j(self.account(variant, choice), choice) / self._energies_j(self.account(variant, full), full)
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
