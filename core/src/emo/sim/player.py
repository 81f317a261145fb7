"""Plays programs on simulated GPUs: in one go with :func:`play`, or step by step with :class:`Player`.

Virtual time: a second of a GPU costs as much as there are operations in it. Everything random (the
boards, stragglers, noise, latencies of clock changes) follows from the seed and from what it is for,
never from when it happens: two runs with the same seed and other clocks are paired.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from emo.errors import InputError
from emo.sim import _sim
from emo.sim.physics import GpuSpec
from emo.sim.presets import PRESETS
from emo.sim.program import Code, Program
from emo.sim.truth import MARK_DTYPE, RECORD_DTYPE, REQUEST_DTYPE, SAMPLE_DTYPE

PAUSED, FINISHED, DEADLOCK = 0, 1, 2
FOREVER_NS = 2**62


@dataclass(frozen=True, slots=True)
class Conditions:
    """How the machine behaves, beside the GPUs themselves. Times that a call or a GPU takes.

    Launch latency, gap and wake-up are those of the real traces (facts: a kernel starts 5-10 us after
    its launch call began, kernels of one stream follow each other within 1-2 us, a blocked thread is
    back 5-15 us after the GPU was done); ranks end a collective 1.5-24 us apart.
    """

    queue_depth: int = 1024
    launch_latency_ns: float = 4_500
    launch_jitter_ns: float = 1_500
    gap_ns: float = 900
    wake_ns: float = 7_000
    residual_ns: float = 6_000
    gpu_noise: float = 0.004
    cpu_noise: float = 0.08
    tick_ms: float = 5.0
    spin_activity: float = 0.8
    board_power_spread: float = 0.03
    board_speed_spread: float = 0.004
    straggler_chance: float = 0.1
    straggler_speed: float = 0.97
    tracing_slowdown_low: float = 1.1
    tracing_slowdown_high: float = 2.0

    def noiseless(self) -> Conditions:
        """Equal boards and nothing random: for timelines worked out by hand."""
        return replace(
            self,
            launch_jitter_ns=0.0,
            residual_ns=0.0,
            gpu_noise=0.0,
            cpu_noise=0.0,
            board_power_spread=0.0,
            board_speed_spread=0.0,
            straggler_chance=0.0,
        )


@dataclass(frozen=True, slots=True)
class Board:
    """What differs from one board (and its host) to the next; the first five as ``pl_board``."""

    power_gain: float
    speed: float
    cpu_speed: float
    tracing_slowdown: float
    temperature_c: float
    sensor_gain: float
    sensor_phase_ms: float


def make_boards(specs: Sequence[GpuSpec], seed: int, conditions: Conditions) -> tuple[Board, ...]:
    """Boards for a seed: equal seeds, equal boards."""
    rng = np.random.default_rng([seed, 0xB0A2D])
    boards = []
    for spec in specs:
        slow = rng.random() < conditions.straggler_chance
        warm_w = 0.7 * spec.power_limit_w
        boards.append(
            Board(
                power_gain=float(np.clip(rng.normal(1.0, conditions.board_power_spread), 0.85, 1.15)),
                speed=float(1.0 - abs(rng.normal(0.0, conditions.board_speed_spread)))
                * (conditions.straggler_speed if slow else 1.0),
                cpu_speed=1.0,
                tracing_slowdown=float(
                    rng.uniform(conditions.tracing_slowdown_low, conditions.tracing_slowdown_high)
                ),
                temperature_c=spec.temperature_ambient_c + warm_w * spec.thermal_resistance_c_per_w,
                sensor_gain=float(rng.uniform(spec.sensor_gain_low, spec.sensor_gain_high)),
                sensor_phase_ms=float(rng.integers(0, int(spec.sensor_period_ms))),
            )
        )
    return tuple(boards)


@dataclass(frozen=True, slots=True)
class ClockChange:
    """At ``at_s`` a GPU is asked for a clock; 0 MHz takes the lock away."""

    at_s: float
    gpu: int
    clock_mhz: float


@dataclass(frozen=True, slots=True)
class GpuState:
    """A GPU at one moment."""

    time_ns: int
    energy_j: float
    power_w: float
    clock_mhz: float
    wish_mhz: float
    temperature_c: float
    compute: float
    memory: float
    link: float


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """What a run gave. Arrays as :mod:`emo.sim.truth` describes them."""

    program: Program
    specs: tuple[GpuSpec, ...]
    boards: tuple[Board, ...]
    seed: int
    records: NDArray[np.void]
    marks: NDArray[np.void]
    samples: NDArray[np.void]
    requests: NDArray[np.void]
    end_ns: int
    operations: int
    energy_j: tuple[float, ...]  # per GPU, whole run
    trace_steps: tuple[int, int] = (0, -1)

    @property
    def total_energy_j(self) -> float:
        """Energy of all GPUs."""
        return float(sum(self.energy_j))

    def _by_step(self, column: str) -> NDArray[np.float64]:
        """(ranks, steps + 1): a column of the marks."""
        table = np.full((self.program.ranks, self.program.steps + 1), np.nan)
        table[self.marks["rank"], self.marks["step"]] = self.marks[column]
        return table

    @property
    def step_times_ns(self) -> NDArray[np.float64]:
        """Time of each step: from when its last rank began it to when the last rank began the next."""
        times: NDArray[np.float64] = np.diff(np.nanmax(self._by_step("time_ns"), axis=0))
        return times

    def step_time_ns(self, skip: int = 1) -> float:
        """Mean time of a step, without the first ones."""
        return float(self.step_times_ns[self._skipped(skip) :].mean())

    def step_energy_j(self, skip: int = 1) -> float:
        """Mean energy of a step over all GPUs, without the first ones."""
        energy, skip = self._by_step("energy_j"), self._skipped(skip)
        return float((energy[:, -1] - energy[:, skip]).sum() / (self.program.steps - skip))

    def _skipped(self, skip: int) -> int:
        """At least one step must be left."""
        return min(skip, self.program.steps - 1)

    @property
    def units(self) -> float:
        """Work done: of training the marks' units (of one rank), of serving the requests."""
        if len(self.requests):
            return float(len(self.requests))
        mine = self.marks[(self.marks["rank"] == 0) & (self.marks["step"] < self.program.steps)]
        return float(mine["units"].sum())

    @property
    def latencies_ns(self) -> NDArray[np.int64]:
        """Of served requests: from arrival to answer."""
        latencies: NDArray[np.int64] = self.requests["done_ns"] - self.requests["arrival_ns"]
        return latencies

    def power_history(self, gpu: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """``(time_s, power_w)``: mean power up to each moment of the grid."""
        rows = self.samples[self.samples["gpu"] == gpu]
        time_s = rows["time_ns"] * 1e-9
        power_w = np.diff(rows["energy_j"], prepend=0.0) / np.diff(time_s, prepend=0.0)
        return time_s, power_w

    def clock_history(self, gpu: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """``(time_s, clock_mhz)``: delivered clock at each moment of the grid."""
        rows = self.samples[self.samples["gpu"] == gpu]
        return rows["time_ns"] * 1e-9, rows["clock_mhz"].copy()


@dataclass(slots=True)
class Player:
    """A run in progress. ``trace_steps``: first and last step during which the profiler is on."""

    program: Program
    specs: tuple[GpuSpec, ...]
    seed: int
    conditions: Conditions = field(default_factory=Conditions)
    trace_steps: tuple[int, int] = (0, -1)
    keep_records: bool = True
    boards: tuple[Board, ...] = ()
    _native: _sim.Player = field(init=False, repr=False)

    def __post_init__(self) -> None:
        program = self.program
        if len(self.specs) != program.ranks:
            raise InputError(f"{program.name}: {program.ranks} ranks, but {len(self.specs)} GPUs")
        if not self.boards:
            self.boards = make_boards(self.specs, self.seed, self.conditions)
        groups, members = program.group_arrays()
        self._native = _sim.player_new(
            np.ascontiguousarray(program.ops),
            program.threads,
            b"".join(kernel.spec.packed() for kernel in program.kernels),
            groups,
            members,
            program.graphs,
            b"".join(spec.packed() for spec in self.specs),
            b"".join(spec.switching.packed() for spec in self.specs),
            np.array(
                [
                    (b.power_gain, b.speed, b.cpu_speed, b.tracing_slowdown, b.temperature_c)
                    for b in self.boards
                ]
            ),
            program.arrivals_ns,
            self._options(),
        )

    def _options(self) -> NDArray[np.float64]:
        """``pl_options``, in the order of its fields."""
        c, program = self.conditions, self.program
        return np.array(
            [
                self.seed,
                c.queue_depth,
                c.launch_latency_ns,
                c.launch_jitter_ns,
                c.gap_ns,
                c.wake_ns,
                c.residual_ns,
                c.gpu_noise,
                c.cpu_noise,
                self.trace_steps[0],
                self.trace_steps[1],
                float(self.keep_records),
                c.tick_ms,
                c.spin_activity,
                program.streams,
                program.events,
                program.semaphores,
            ],
            np.float64,
        )

    def run_until(self, time_ns: int = FOREVER_NS) -> bool:
        """Play everything that happens before ``time_ns``; True once the program is finished.

        Raises InputError if the program waits for something that never comes.
        """
        status = _sim.player_run(self._native, time_ns)
        if status == DEADLOCK:
            raise InputError(self._stuck())
        return status == FINISHED

    def run_paced(
        self, each: Callable[[Player], None], *, speed: float = 1.0, period_s: float = 0.05
    ) -> None:
        """Play to the end in step with the wall clock, ``speed`` times as fast; ``each`` is called per period.

        ``each`` may look at the GPUs, ask for clocks, and send what progress marks are new.
        """
        began_ns, began_s = self.now_ns, time.monotonic()
        finished = False
        while not finished:
            due_ns = began_ns + round((time.monotonic() - began_s) * speed * 1e9)
            finished = self.run_until(due_ns)
            each(self)
            if not finished:
                time.sleep(period_s)

    def _stuck(self) -> str:
        now_ns, _, thread, op = _sim.player_progress(self._native)
        what = f"{self.program.name}: nothing can happen any more after {now_ns / 1e6:.3f} ms"
        if thread < 0:
            return f"{what}: GPU work waits for what never comes"
        code = Code(int(self.program.ops["code"][op])).name
        rank = int(self.program.threads[thread, 0])
        return f"{what}: thread {thread} of rank {rank} waits in {code} (operation {op})"

    @property
    def now_ns(self) -> int:
        """Virtual time."""
        return _sim.player_progress(self._native)[0]

    def request_clock(self, gpu: int, clock_mhz: float, *, settled: bool = False) -> None:
        """Lock a clock (0: no lock). Takes effect after the switch latency, or at once if ``settled``."""
        _sim.player_request_clock(self._native, gpu, clock_mhz, settled)

    def limit_power(self, gpu: int, limit_w: float) -> None:
        """Set the power limit, within the range of the model."""
        _sim.player_limit_power(self._native, gpu, limit_w)

    def state(self, gpu: int) -> GpuState:
        """A GPU at the present time."""
        return GpuState(*_sim.player_state(self._native, gpu))

    def run(self) -> Run:
        """What happened so far."""
        records, marks, samples, requests = _sim.player_results(self._native)
        now_ns, operations, _, _ = _sim.player_progress(self._native)
        return Run(
            program=self.program,
            specs=self.specs,
            boards=self.boards,
            seed=self.seed,
            records=np.frombuffer(records, RECORD_DTYPE),
            marks=np.frombuffer(marks, MARK_DTYPE),
            samples=np.frombuffer(samples, SAMPLE_DTYPE),
            requests=np.frombuffer(requests, REQUEST_DTYPE),
            end_ns=now_ns,
            operations=operations,
            energy_j=tuple(self.state(gpu).energy_j for gpu in range(len(self.specs))),
            trace_steps=self.trace_steps,
        )


def specs_for(gpus: str | GpuSpec | Sequence[GpuSpec], count: int) -> tuple[GpuSpec, ...]:
    """One specification per rank; a name or a single one stands for all. Raises InputError."""
    if isinstance(gpus, str):
        if gpus not in PRESETS:
            raise InputError(f"unknown GPU {gpus!r}; known: {', '.join(PRESETS)}")
        gpus = PRESETS[gpus]
    return (gpus,) * count if isinstance(gpus, GpuSpec) else tuple(gpus)


def play(
    program: Program,
    gpus: str | GpuSpec | Sequence[GpuSpec] = "A100",
    seed: int = 0,
    *,
    clocks: float | Sequence[float] | Sequence[ClockChange] | None = None,
    power_limit_w: float | None = None,
    tracing: bool | tuple[int, int] = False,
    records: bool = False,
    conditions: Conditions | None = None,
) -> Run:
    """Play a program from beginning to end.

    ``clocks``: one for all GPUs, or one per GPU, locked before the run (0: no lock), or changes in the
    course of it. ``tracing``: True for the whole run, or the first and last step during which the
    profiler is on; implies ``records``. Raises InputError for input that does not fit together.
    """
    last = program.steps - 1
    trace_steps = ((0, last) if tracing else (0, -1)) if isinstance(tracing, bool) else tracing
    player = Player(
        program,
        specs_for(gpus, program.ranks),
        seed,
        conditions or Conditions(),
        trace_steps,
        keep_records=records or trace_steps[1] >= trace_steps[0],
    )
    wanted: Sequence[float | ClockChange] = clocks if isinstance(clocks, Sequence) else ()
    if isinstance(clocks, int | float):
        wanted = [float(clocks)] * program.ranks
    changes = [item for item in wanted if isinstance(item, ClockChange)]
    for gpu, item in enumerate(wanted):
        if not isinstance(item, ClockChange):
            player.request_clock(gpu, item, settled=True)
    if power_limit_w is not None:
        for gpu in range(program.ranks):
            player.limit_power(gpu, power_limit_w)
    for change in sorted(changes, key=lambda change: change.at_s):
        player.run_until(round(change.at_s * 1e9))
        player.request_clock(change.gpu, change.clock_mhz)
    player.run_until()
    return player.run()
