"""Document of ``emo plan``.

Saving = 1 - joules / joules of the reference, for the same work; the reference is every GPU at its
highest clock. Slowdown = step time / step time of the reference - 1.
"""

from __future__ import annotations

from typing import Literal

from emo.api.analysis import Basis
from emo.api.document import Document, count, described, duration_ns, ratio, schema_name


class Estimate(Document):
    """A predicted ratio with the range that the priors and the trace leave open; 0.01 is one per cent."""

    value: float = described("likeliest", "ratio")
    low: float = described("lowest that is plausible", "ratio")
    high: float = described("highest that is plausible", "ratio")


class PlannedGpu(Document):
    """The clock of one GPU, and where its time went in the trace."""

    device: int = described("GPU number as the trace writes it")
    rank: int = count("rank that the file names, else the position of the file")
    name: str | None = described("model of the GPU by the trace; null: the trace does not say")
    clock_mhz: int = described("clock to lock the SMs at", "MHz", gt=0)
    busy_ns: int = duration_ns("at least one stream worked, in the recorded window")
    peer_wait_ns: int = duration_ns("only waited for other ranks inside a collective")
    idle_ns: int = duration_ns("nothing ran")
    slack_ns: int = duration_ns("usable slack, edges of the capture left out")


class Rung(Document):
    """One plan of the frontier. No GPU's clock is higher in a later rung than in an earlier one."""

    clocks_mhz: list[int] = described("clock of every GPU, in the order of gpus[]", "MHz")
    predicted_slowdown_ratio: Estimate = described("slowdown; high is what the target is held against")
    predicted_energy_saving_ratio: Estimate = described("saving; below zero: it costs energy")
    energy_j: float = described("likeliest energy of all GPUs over the recorded window", "J", ge=0)


class ModelSource(Document):
    """What the predictions of time and power rest on."""

    measured: bool = described("profiled clocks of this workload")
    prior: bool = described("assumptions by kernel class")
    text: str = described("the source in words")
    busy_share_by_class: dict[str, float] = described("share of the GPUs' busy time by kernel class", "ratio")


class Solver(Document):
    """How the plan was found."""

    name: Literal["exhaustive", "coordinate-descent"] = described("method")
    exact: bool = described("no choice of candidate clocks within the target needs less energy")
    candidates_mhz: list[int] = described("clocks to choose from, highest first", "MHz")
    evaluations: int = count("replays of the whole trace")
    variants: list[str] = described("what the target was held under; the first is the likeliest")


class TraceCondition(Document):
    """Quality of the trace in brief; ``emo analyze`` has it in full."""

    completeness: float = ratio("launches with a GPU op / launches, worst file", le=1)
    complete_steps: int = count("iterations whose launches have their GPU ops")
    unexplained_ratio: float = ratio("share of the makespan that rests on delays that no rule explains")
    replay_error_ratio: float = ratio("|replayed / recorded makespan - 1|")


class PlanReport(Document):
    """``emo plan --json``: one clock per GPU, chosen under the exact replay of the trace."""

    schema_: Literal["emo.plan/v1"] = schema_name()
    files: list[str] = described("the trace files")
    gpu_model: str = described("GPU model that was planned for")
    target_slowdown_ratio: float = ratio("slowdown that was allowed")
    basis: Basis = described("what the slowdown is about: iterations, or the whole window as one step")
    traced_step_time_ns: int | None = duration_ns("step time in the trace; null with basis window")
    untraced_step_time_ns: int | None = duration_ns("step time without the profiler; null: not given")
    cpu_scale: float = ratio("CPU work without the profiler / with it", le=1)
    makespan_ns: int = duration_ns("the recorded window, over which energies are counted")
    predicted_slowdown_ratio: Estimate = described("slowdown of the plan; high is within the target")
    predicted_energy_saving_ratio: Estimate = described("saving of the plan")
    energy_j: float = described("likeliest energy of all GPUs over the window under the plan", "J", ge=0)
    reference_energy_j: float = described("the same at the highest clock", "J", ge=0)
    lb_static_j: float | None = described(
        "no plan with one candidate clock per GPU within the target needs less, by the same models", "J"
    )
    lb_free_j: float | None = described("no plan with free switching needs less", "J")
    gap_ratio: float | None = ratio("energy_j / lb_static_j - 1")
    bounds_reason: dict[Literal["lb_static_j", "lb_free_j", "gap_ratio"], str] = described(
        "what a bound is, or why it is null"
    )
    rungs: list[Rung] = described("from full clock to the plan, which is the last; each slower and cheaper")
    gpus: list[PlannedGpu] = described("per GPU")
    packs: int | None = count("packs that the trace was divided into")
    packs_reason: str | None = described("why packs is null")
    model_source: ModelSource = described("what the predictions rest on")
    allowed_mode: Literal["Recommend", "Enforce"] = described("what the plan may be used for")
    allowed_mode_reasons: list[str] = described("why Recommend only; empty for Enforce")
    hints: list[str] = described("what would make the plan better")
    trace_quality: TraceCondition = described("quality of the trace")
    solver: Solver = described("how the plan was found")
    timings_s: dict[str, float] = described("seconds per stage: as emo analyze, then variants, solve", "s")
