"""The document of a plan (``emo.plan/v1``), built from what was computed.

A plain dict of plain values, as for the other commands; the contract is :mod:`emo.api.plan`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from emo.analysis import Analysis
from emo.graph.model import EdgeType
from emo.graph.slack import PERSISTENT_ITERATIONS
from emo.graph.tracing import ASSUMED_TRACING_FACTOR
from emo.models.catalogue import GpuModel, match_gpu
from emo.models.priors import SOURCE
from emo.plan.evaluate import Evaluator, Interval
from emo.plan.static import Choice

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Solution:
    """What the search found: ``rungs`` from full clock to the plan, which is the last."""

    model: GpuModel
    target: float
    untraced_step_ms: float | None
    cpu_scale: float
    clocks_mhz: tuple[int, ...]
    rungs: tuple[Choice, ...]
    exact: bool


def plan_document(analysis: Analysis, evaluator: Evaluator, solution: Solution) -> Json:
    """``emo.plan/v1`` (:class:`emo.api.plan.PlanReport`), without ``timings_s``."""
    graph = analysis.graph
    plan = solution.rungs[-1]
    rungs = [_rung(evaluator, choice, solution.clocks_mhz) for choice in solution.rungs]
    energy_j = rungs[-1]["energy_j"]
    traced_ns, untraced_ms = analysis.step.recorded_ns, solution.untraced_step_ms
    return {
        "schema": "emo.plan/v1",
        "files": [trace.path for trace in graph.traces],
        "gpu_model": solution.model.name,
        "target_slowdown_ratio": float(solution.target),
        "basis": analysis.step.basis,
        "traced_step_time_ns": None if traced_ns is None else round(traced_ns),
        "untraced_step_time_ns": None if untraced_ms is None else round(untraced_ms * 1e6),
        "cpu_scale": solution.cpu_scale,
        "makespan_ns": graph.makespan_ns,
        "predicted_slowdown_ratio": rungs[-1]["predicted_slowdown_ratio"],
        "predicted_energy_saving_ratio": rungs[-1]["predicted_energy_saving_ratio"],
        "energy_j": energy_j,
        "reference_energy_j": rungs[0]["energy_j"],
        "lb_static_j": energy_j if solution.exact else None,
        "lb_free_j": None,
        "gap_ratio": 0.0 if solution.exact else None,
        "bounds_reason": _bounds_reason(solution.exact),
        "rungs": rungs,
        "gpus": _gpus(analysis, plan, solution.clocks_mhz),
        "packs": None,
        "packs_reason": "one clock per GPU for the whole step needs no packs",
        "model_source": _model_source(evaluator),
        "allowed_mode": "Recommend",
        "allowed_mode_reasons": _reasons(analysis, solution),
        "hints": _hints(analysis, solution),
        "trace_quality": {
            "completeness": float(min(trace.quality.completeness for trace in graph.traces)),
            "complete_steps": analysis.complete_steps,
            "unexplained_ratio": float(analysis.unexplained_ratio),
            "replay_error_ratio": float(analysis.replay_error_ratio),
        },
        "solver": {
            "name": "exhaustive" if solution.exact else "coordinate-descent",
            "exact": solution.exact,
            "candidates_mhz": list(solution.clocks_mhz),
            "evaluations": evaluator.replays,
            "variants": [variant.name for variant in evaluator.variants],
        },
    }


def _rung(evaluator: Evaluator, choice: Choice, clocks_mhz: Sequence[int]) -> Json:
    return {
        "clocks_mhz": [clocks_mhz[index] for index in choice],
        "predicted_slowdown_ratio": _estimate(evaluator.slowdown_interval(choice)),
        "predicted_energy_saving_ratio": _estimate(evaluator.saving_interval(choice)),
        "energy_j": evaluator.energy_j(choice),
    }


def _estimate(interval: Interval) -> Json:
    return asdict(interval)


def _bounds_reason(exact: bool) -> dict[str, str]:
    not_yet = "not computed: bounds come with the solver for packs and phases"
    if not exact:
        return dict.fromkeys(("lb_static_j", "lb_free_j", "gap_ratio"), not_yet)
    return {
        "lb_static_j": "all candidate clocks were tried: the plan is its own bound",
        "lb_free_j": not_yet,
        "gap_ratio": "all candidate clocks were tried",
    }


def _gpus(analysis: Analysis, plan: Choice, clocks_mhz: Sequence[int]) -> list[Json]:
    return [
        {
            "device": gpu.device,
            "rank": gpu.rank,
            "name": _names_by_gpu(analysis)[gpu.gpu],
            "clock_mhz": clocks_mhz[plan[gpu.gpu]],
            "busy_ns": gpu.busy_ns,
            "peer_wait_ns": gpu.peer_wait_ns,
            "idle_ns": gpu.idle_ns,
            "slack_ns": gpu.slack_ns,
        }
        for gpu in analysis.slack.gpus
    ]


def _names_by_gpu(analysis: Analysis) -> list[str | None]:
    """The model that the trace names, per GPU of the graph."""
    known = [{info.device: info.name for info in trace.devices} for trace in analysis.graph.traces]
    return [known[trace].get(device) or None for trace, device in analysis.graph.gpus]


def _model_source(evaluator: Evaluator) -> Json:
    time_ns = evaluator.time_by_class_ns()
    total_ns = max(sum(time_ns.values()), 1)
    return {
        "measured": False,
        "prior": True,
        "text": SOURCE,
        "busy_share_by_class": {cls.name.lower(): ns / total_ns for cls, ns in time_ns.items() if ns},
    }


def _reasons(analysis: Analysis, solution: Solution) -> list[str]:
    reasons = ["time and power are priors by kernel class; enforcing needs clocks profiled on this workload"]
    if solution.untraced_step_ms is None:
        reasons.append(
            f"no untraced step time: the profiler is assumed to slow the CPU {ASSUMED_TRACING_FACTOR:g} times"
        )
    others = {
        name
        for name in _names_by_gpu(analysis)
        if name and (other := match_gpu(name)) is not None and other is not solution.model
    }
    if others:
        names = ", ".join(sorted(others))
        reasons.append(f"planned for {solution.model.name}, but the trace is from {names}")
    reasons.extend(analysis.gate_reasons)
    count = len(analysis.graph.iterations)
    if analysis.step.basis == "iterations" and count < PERSISTENT_ITERATIONS:
        reasons.append(f"{count} iterations: slack that persists shows in {PERSISTENT_ITERATIONS} or more")
    return reasons


def _hints(analysis: Analysis, solution: Solution) -> list[str]:
    """What the user can do to get a better plan."""
    found = []
    traces = analysis.graph.traces
    world = max(trace.world_size for trace in traces)
    if world > len(traces):
        found.append(
            f"{len(traces)} of {world} ranks given: waits for the others are taken as fixed and never used; "
            "give the trace files of all ranks together"
        )
    if len(analysis.graph.iterations) < PERSISTENT_ITERATIONS:
        found.append(f"record {PERSISTENT_ITERATIONS} or more steps")
    if analysis.graph.report.edges_by_type.get(EdgeType.EVENT_INFERRED.name):
        found.append(
            "record what streams wait for (torch.profiler: enable_cuda_sync_events of _ExperimentalConfig): slack "
            "behind a wait that is only inferred is not used"
        )
    if solution.untraced_step_ms is None and analysis.step.basis == "iterations":
        found.append("measure the step time without the profiler and give it as --untraced-step-ms")
    return found
