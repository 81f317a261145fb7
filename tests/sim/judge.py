"""Compares what emo makes of the emitted traces with what the player knows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from emo.analysis import Analysis, analyze
from emo.graph.model import EdgeType, Graph
from emo.graph.replay import replay, unit_scale
from emo.sim.capture import CaptureOptions, write_captures
from emo.sim.player import Conditions, Run, play, specs_for
from emo.sim.program import Program
from emo.sim.truth import Meeting, meetings
from emo.trace.model import Kind


@dataclass(frozen=True, slots=True)
class Case:
    """A what-if: clocks as shares of the maximum, one per rank, and how fast the CPUs are."""

    clocks: tuple[float, ...]
    cpu: float = 1.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """A what-if's answer beside the truth, both as step time over that of the recorded run."""

    predicted: float
    true: float

    @property
    def error(self) -> float:
        """Relative."""
        return abs(self.predicted / self.true - 1.0)


@dataclass(frozen=True, slots=True)
class Judge:
    """One recorded run of a program (at ``base``), its analysis, and what-ifs against it."""

    program: Program
    gpu: str
    seed: int
    conditions: Conditions
    steps: tuple[int, int]
    base: Case
    run: Run
    analysis: Analysis

    @classmethod
    def record(
        cls,
        program: Program,
        folder: Path,
        *,
        gpu: str = "A100",
        seed: int = 0,
        steps: tuple[int, int] | None = None,
        conditions: Conditions | None = None,
        options: CaptureOptions | None = None,
        base: Case | None = None,
        without: Sequence[EdgeType] = (),
    ) -> Judge:
        """Play, capture, analyse."""
        steps = steps or (1, program.steps - 2)
        base = base or Case((1.0,) * program.ranks)
        conditions = conditions or Conditions()
        run = _play(program, gpu, seed, steps, conditions, base)
        analysis = analyze(write_captures(run, folder, options), without=without)
        return cls(program, gpu, seed, conditions, steps, base, run, analysis)

    def ask(self, case: Case) -> Verdict:
        """What the replay foretells for other clocks, and what the player then does."""
        graph = self.analysis.graph
        again = _play(self.program, self.gpu, self.seed, self.steps, self.conditions, case)
        factors = [
            old / new for old, new in zip(_mhz(self.gpu, self.base), _mhz(self.gpu, case), strict=True)
        ]
        scale = unit_scale(graph)
        scale[1 : 1 + len(graph.threads)] = self.base.cpu / case.cpu
        kernels = np.flatnonzero(graph.nodes.kind == Kind.KERNEL)
        ranks = np.array([graph.rank_of(int(trace)) for trace in graph.nodes.trace[kernels]])
        scale[1 + len(graph.threads) + kernels] = np.array(factors)[ranks]
        foretold = step_ns(graph, replay(graph, scale).time_ns)
        recorded = step_ns(graph, self.analysis.timeline.time_ns)
        return Verdict(foretold / recorded, self._true_step_ns(again) / self._true_step_ns(self.run))

    def _true_step_ns(self, run: Run) -> float:
        first, last = self.steps
        return float(run.step_times_ns[first + 1 : last + 1].mean())


def _mhz(gpu: str, case: Case) -> list[float]:
    spec = specs_for(gpu, 1)[0]
    return [
        spec.clock_min_mhz
        + round((share * spec.clock_max_mhz - spec.clock_min_mhz) / spec.clock_step_mhz) * spec.clock_step_mhz
        for share in case.clocks
    ]


def _play(
    program: Program, gpu: str, seed: int, steps: tuple[int, int], conditions: Conditions, case: Case
) -> Run:
    faster = program.with_cpu_speed(case.cpu)
    return play(faster, gpu, seed, clocks=_mhz(gpu, case), tracing=steps, conditions=conditions)


def step_ns(graph: Graph, time_ns: np.ndarray) -> float:
    """Step time of a replay: from the end of the first iteration to that of the last."""
    ends = time_ns[graph.iterations.end_points].max(axis=0)
    return float(ends[-1] - ends[0]) / (len(ends) - 1)


def wait_errors_ns(judge: Judge) -> tuple[int, np.ndarray]:
    """(meetings of the truth that the engine did not find, errors of the waits of those it found)."""
    graph = judge.analysis.graph
    joint_of = _joint_of_kernels(graph)
    begin_ns, end_ns = _window(judge)
    missing = 0
    errors: list[int] = []
    for meeting, places in zip(*_places(judge), strict=True):
        if not all(begin_ns <= at < end_ns for at in meeting.arrived_ns.values()):
            continue
        found = {joint_of.get(place, -1) for place in places}
        if len(found) != 1 or -1 in found:
            missing += 1
            continue
        waits = graph.joints[found.pop()].wait_ns_by_rank
        errors += [waits.get(rank, 0) - true for rank, true in meeting.wait_ns.items()]
    return missing, np.array(errors)


Place = tuple[int, int, int]  # rank, correlation, and which of that launch's communicating kernels


def _joint_of_kernels(graph: Graph) -> dict[Place, int]:
    joint_of_row = {
        (int(graph.nodes.trace[node]), int(graph.nodes.row[node])): number
        for number, joint in enumerate(graph.joints)
        for node in joint.nodes
    }
    result = {}
    for index, trace in enumerate(graph.traces):
        seen: Counter[int] = Counter()
        for row in np.flatnonzero(np.isin(trace.ops.kind, (Kind.COLLECTIVE, Kind.P2P))).tolist():
            correlation = int(trace.ops.correlation[row])
            if (index, row) in joint_of_row:
                result[trace.rank, correlation, seen[correlation]] = joint_of_row[index, row]
            seen[correlation] += 1
    return result


def _places(judge: Judge) -> tuple[list[Meeting], list[list[Place]]]:
    """The meetings of the truth, and where each of their kernels is to be found in the traces."""
    found = meetings(judge.program, judge.run.records)
    entries = sorted(
        (meeting.arrived_ns[rank], rank, correlation, number)
        for number, meeting in enumerate(found)
        for rank, correlation in meeting.correlation.items()
    )
    seen: Counter[tuple[int, int]] = Counter()
    places: list[list[Place]] = [[] for _ in found]
    for _, rank, correlation, number in entries:
        places[number].append((rank, correlation, seen[rank, correlation]))
        seen[rank, correlation] += 1
    return found, places


def _window(judge: Judge) -> tuple[int, int]:
    marks = judge.run.marks
    first, last = judge.steps
    return (
        int(marks["time_ns"][marks["step"] == first].max()),
        int(marks["time_ns"][marks["step"] == last + 1].min()),
    )
