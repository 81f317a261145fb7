"""``emo plan``: from trace files to a plan and its summary in words. Computes; prints nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from emo.analysis import Analysis, Progress, Stopwatch, analyze_traces, read_traces
from emo.errors import InputError, QualityGateError
from emo.graph.build import build_graph
from emo.graph.model import INFERRED_TYPES, Graph
from emo.models.catalogue import find_gpu
from emo.plan.document import Solution, plan_document
from emo.plan.evaluate import Evaluator, ScaledGraph, node_classes
from emo.plan.static import candidate_clocks, frontier
from emo.plan.text import plan_text
from emo.plan.untraced import cpu_scale

# Clocks below half of the highest are never chosen; slowing everything to that doubles the step time.
MAX_SLOWDOWN = 1.0


@dataclass(frozen=True, slots=True)
class PlanResult:
    """``document`` follows :class:`emo.api.plan.PlanReport`; ``text`` is for people."""

    document: dict[str, Any]
    analysis: Analysis
    text: str


def parse_ratio(text: str, option: str = "--max-slowdown") -> float:
    """``5%`` or ``0.05`` -> 0.05; raises InputError for anything else."""
    expected = "expected a share like 5% or 0.05"
    stripped = text.strip()
    try:
        ratio = float(stripped.removesuffix("%"))
    except ValueError:
        raise InputError(f"{option} {text!r}: not a number; {expected}") from None
    if stripped.endswith("%"):
        ratio /= 100.0
    elif ratio > MAX_SLOWDOWN:
        raise InputError(f"{option} {text!r}: {expected}; did you mean {stripped}%?")
    _check_slowdown(ratio, f"{option} {text!r}")
    return ratio


def _check_slowdown(ratio: float, what: str) -> None:
    if not (math.isfinite(ratio) and 0.0 <= ratio <= MAX_SLOWDOWN):
        raise InputError(f"{what}: expected a share between 0 % and {MAX_SLOWDOWN:.0%}")


def run(
    paths: Sequence[str],
    *,
    gpu: str,
    max_slowdown: float,
    untraced_step_ms: float | None = None,
    progress: Progress | None = None,
) -> PlanResult:
    """Plan one clock per GPU so that the step takes at most ``1 + max_slowdown`` times as long.

    Raises TraceError and InputError for what cannot be used, QualityGateError if no step is
    complete, InfeasibleError if no clocks meet the target.
    """
    model = find_gpu(gpu)
    _check_slowdown(max_slowdown, f"--max-slowdown {max_slowdown:g}")
    report = progress or (lambda _: None)
    watch = Stopwatch()
    with watch.stage("read"):
        traces = read_traces(paths, progress)
    analysis = analyze_traces(traces, progress=progress, watch=watch)
    graph = analysis.graph
    if not analysis.complete_steps:
        raise QualityGateError(
            f"{', '.join(paths)}: no step is complete, launches lack their GPU ops; expected 99 % of them; "
            "record again with a larger profiler buffer or a shorter window"
        )
    clocks_mhz = candidate_clocks(model)
    report("searching for clocks")
    with watch.stage("variants"):
        scale = cpu_scale(ScaledGraph(graph, node_classes(graph)), untraced_step_ms)
        evaluator = Evaluator(graph, _without_inferred(graph), model, clocks_mhz, scale)
    with watch.stage("solve"):
        slowest = (len(clocks_mhz) - 1,) * len(graph.gpus)
        rungs, exact = frontier(slowest, max_slowdown, evaluator.energy_j, evaluator.within)
        solution = Solution(
            model, max_slowdown, untraced_step_ms, scale, tuple(clocks_mhz), tuple(rungs), exact
        )
        document = plan_document(analysis, evaluator, solution)
    document["timings_s"] = {name: round(seconds, 6) for name, seconds in watch.seconds.items()}
    return PlanResult(document, analysis, plan_text(document))


def _without_inferred(graph: Graph) -> Graph | None:
    """The graph without its inferred edges; None if it has none."""
    if not np.isin(graph.edge_type, list(INFERRED_TYPES)).any():
        return None
    return build_graph(graph.traces, without=INFERRED_TYPES, queue_depth=graph.report.queue_depth)
