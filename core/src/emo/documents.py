"""The JSON documents of the command line, built from what the engine computed.

Plain dicts of plain values: ``emo analyze --json`` is timed from process start to exit, and
importing pydantic costs a good part of that. The contract is :mod:`emo.api`; the tests validate
what is built here against it, strictly.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from emo.analysis import Analysis
from emo.graph.critical import CriticalPath, Spent
from emo.graph.model import BuildReport, Collective, EdgeType, Graph
from emo.graph.predict import PredictionErrors
from emo.graph.replay import Timeline
from emo.graph.slack import PERSISTENT_ITERATIONS, Cause, GpuSlack, SlackWindows
from emo.graph.steps import MIN_ITERATIONS, recorded_step_time, step_ratio
from emo.graph.whatif import Scaling, busiest_stream_bound_ns
from emo.trace.model import Kind, StepQuality, Trace, TraceQuality
from emo.trace.validate import MIN_COMPLETENESS, gate, is_complete

Json = dict[str, Any]

TOP_WINDOWS = 20
TOP_NAMES = 10
MAX_FAILURES = 5

_KERNEL_KINDS = (Kind.KERNEL, Kind.COLLECTIVE, Kind.P2P)


# --------------------------------------------------------------------------- analyze


def analysis_document(analysis: Analysis, *, without: Sequence[EdgeType] = ()) -> Json:
    """``emo.analysis/v1`` (:class:`emo.api.analysis.AnalysisReport`)."""
    graph, timeline = analysis.graph, analysis.timeline
    iterations = graph.iterations
    reasons = allowed_mode_reasons(analysis)
    return {
        "schema": "emo.analysis/v1",
        "files": [_file(trace) for trace in graph.traces],
        "origin_ns": int(graph.origin_ns),
        "makespan_ns": graph.makespan_ns,
        "replay_makespan_ns": int(timeline.makespan_ns),
        "replay_error_ratio": float(analysis.replay_error_ratio),
        "max_start_error_ns": int(analysis.max_start_error_ns),
        "unexplained_ratio": float(analysis.unexplained_ratio),
        "unexplained_gpu_ratio": analysis.unexplained_gpu_ratio,
        "unexplained_by_iteration": {
            str(step): ratio for step, ratio in analysis.unexplained_by_step.items()
        },
        "unexplained_ns_by": dict(analysis.unexplained_ns_by),
        "step_time_ns": _rounded(analysis.step.recorded_ns),
        "basis": analysis.step.basis,
        "ops": len(graph.nodes),
        "kernels": int(np.isin(graph.nodes.kind, _KERNEL_KINDS).sum()),
        "edges": len(graph.src),
        "iterations": [
            {"start_ns": start, "end_ns": end}
            for start, end in zip(iterations.start_ns.tolist(), iterations.end_ns.tolist(), strict=True)
        ],
        "cross_iteration_error": _cross_iteration_error(analysis.prediction_errors),
        "quality": _quality(graph.traces),
        "allowed_mode": "Recommend" if reasons else "Enforce",
        "allowed_mode_reasons": reasons,
        "critical_path": _critical_path(graph, analysis.path),
        "gpus": [
            _gpu(graph, traced, untraced)
            for traced, untraced in zip(analysis.slack.gpus, analysis.untraced_slack.gpus, strict=True)
        ],
        "collectives": [_collective(graph, joint) for joint in graph.joints],
        "rules": _rules(graph.report, without),
        "hints": hints(analysis),
        "timings_s": _timings(analysis.timings_s),
    }


def allowed_mode_reasons(analysis: Analysis) -> list[str]:
    """Why a plan from this trace is good for Recommend only; empty: Enforce is not ruled out."""
    reasons = [*analysis.gate_reasons, "the untraced step time is not known: emo plan --untraced-step-ms"]
    count = len(analysis.graph.iterations)
    if analysis.step.basis == "iterations" and count < PERSISTENT_ITERATIONS:
        reasons.append(
            f"{count} iterations: slack on which one can count needs at least {PERSISTENT_ITERATIONS}"
        )
    return reasons


def hints(analysis: Analysis) -> list[str]:
    """What the user can do to get a better answer."""
    found = []
    traces = analysis.graph.traces
    world = max(trace.world_size for trace in traces)
    absent = sum(gpu.peer_wait_ns for gpu in analysis.slack.gpus) > 0 and not analysis.graph.joints
    if world > len(traces) or absent:
        of = f" of {world}" if world > len(traces) else ""
        found.append(
            f"{len(traces)}{of} ranks given: waits for the others cannot be told from work and are never "
            "slack; give the trace files of all ranks together"
        )
    if analysis.step.basis == "window":
        found.append(
            f"basis: window, because a step time needs {MIN_ITERATIONS} iterations and "
            f"{len(analysis.graph.iterations) or 'none'} were found; record {PERSISTENT_ITERATIONS} or more "
            "(torch.profiler: call prof.step() after each)"
        )
    elif len(analysis.graph.iterations) < PERSISTENT_ITERATIONS:
        found.append(f"record {PERSISTENT_ITERATIONS} or more steps to see which slack persists")
    for trace in traces:
        if trace.quality.truncated:
            found.append(f"{trace.path} ends early: record it again for the whole window")
        elif trace.quality.launches_without_kernel > (1 - MIN_COMPLETENESS) * trace.quality.launches:
            found.append(
                f"{trace.path}: {trace.quality.launches_without_kernel} launches have no GPU op; "
                "record with a larger profiler buffer or a shorter window"
            )
    return found + list(analysis.graph.report.findings)


def _file(trace: Trace) -> Json:
    return {
        "path": _text(trace.path),
        "format": trace.format,
        "rank": trace.rank if trace.rank >= 0 else None,
        "world_size": trace.world_size if trace.world_size >= 0 else None,
        "gpus": [f"{device.device}: {device.name}" for device in trace.devices],
        "iteration_source": trace.iteration_source,
        "iterations": len(trace.iterations),
    }


def _cross_iteration_error(errors: PredictionErrors) -> Json:
    return {
        "median": errors.median,
        "p95": errors.p95,
        "completion_median": errors.completion_median,
        "completion_p95": errors.completion_p95,
        "pairs": errors.pairs,
        "skipped_pairs": errors.skipped_pairs,
    }


def _quality(traces: Sequence[Trace]) -> Json:
    files = [_file_quality(trace.path, trace.quality) for trace in traces]
    return {
        "completeness": min(file["completeness"] for file in files),
        "steps": sum(file["steps"]["total"] for file in files),
        "complete_steps": sum(file["steps"]["complete"] for file in files),
        "files": files,
    }


def _file_quality(path: str, quality: TraceQuality) -> Json:
    return {
        "path": _text(path),
        "records": quality.records,
        "dropped": dict(quality.dropped),
        "repaired": dict(quality.repaired),
        "launches": quality.launches,
        "launches_without_kernel": quality.launches_without_kernel,
        "kernels": quality.kernels,
        "kernels_without_launch": quality.kernels_without_launch,
        "completeness": float(quality.completeness),
        "sync_info": quality.sync_info.name.capitalize(),
        "head_loss_ns": quality.head_loss_ns,
        "clock_skew_ns": quality.clock_skew_ns,
        "overlap_ratio": float(quality.overlap_ratio),
        "truncated": quality.truncated,
        "steps": _steps(quality.steps),
    }


def _steps(steps: Sequence[StepQuality]) -> Json:
    failures = [{"index": index, "reasons": gate(step)} for index, step in enumerate(steps) if gate(step)]
    return {
        "total": len(steps),
        "complete": sum(map(is_complete, steps)),
        "passed": len(steps) - len(failures),
        "worst_completeness": float(min((step.completeness for step in steps), default=1.0)),
        "failures": failures[:MAX_FAILURES],
    }


def _critical_path(graph: Graph, path: CriticalPath) -> Json:
    totals = {f"{spent.name.lower()}_ns": path.total_ns(spent) for spent in Spent}
    return {**totals, "capture_ns": path.capture_ns, "top": _top_names(graph, path)}


def _top_names(graph: Graph, path: CriticalPath) -> list[Json]:
    """Names of GPU work by their time on the critical path, largest first."""
    mine = path.node >= 0
    mine[mine] = graph.nodes.gpu[path.node[mine]] >= 0
    node, duration_ns = path.node[mine], (path.end_ns - path.start_ns)[mine]
    sums: dict[str, list[int]] = {}
    for index, trace in enumerate(graph.traces):
        here = graph.nodes.trace[node] == index
        names, inverse = np.unique(trace.ops.name_id[graph.nodes.row[node[here]]], return_inverse=True)
        # Sums of int64 as float64 are exact up to 2^53 ns, more than a hundred days.
        time_ns = np.bincount(inverse, weights=duration_ns[here], minlength=len(names))
        for name, spent_ns, times in zip(
            names.tolist(), time_ns.tolist(), np.bincount(inverse).tolist(), strict=True
        ):
            entry = sums.setdefault(trace.names[name], [0, 0])
            entry[0] += int(spent_ns)
            entry[1] += times
    ranked = sorted(sums.items(), key=lambda item: (-item[1][0], item[0]))[:TOP_NAMES]
    return [{"name": name, "time_ns": spent_ns, "count": times} for name, (spent_ns, times) in ranked]


def _gpu(graph: Graph, gpu: GpuSlack, untraced: GpuSlack) -> Json:
    trace, device = graph.gpus[gpu.gpu]
    names = [info.name for info in graph.traces[trace].devices if info.device == device and info.name]
    return {
        "device": gpu.device,
        "rank": gpu.rank,
        "name": names[0] if names else None,
        "busy_ns": gpu.busy_ns,
        "peer_wait_ns": gpu.peer_wait_ns,
        "idle_ns": gpu.idle_ns,
        "slack_ns": gpu.slack_ns,
        "untraced_slack_ns": untraced.slack_ns,
        "edge_slack_ns": gpu.edge_slack_ns,
        "persistent_slack_ns": gpu.persistent_slack_ns,
        "slack_windows": len(gpu.windows),
        "slack_by_cause": {cause.name.lower(): ns for cause, ns in gpu.windows.slack_by_cause_ns().items()},
        "top_windows": _top_windows(graph, gpu.windows),
    }


def _top_windows(graph: Graph, windows: SlackWindows) -> list[Json]:
    order = np.lexsort((windows.start_ns, -windows.slack_ns))[:TOP_WINDOWS]
    return [
        {
            "start_ns": int(windows.start_ns[i]),
            "end_ns": int(windows.end_ns[i]),
            "slack_ns": int(windows.slack_ns[i]),
            "cause": Cause(int(windows.cause[i])).name.lower(),
            "culprit_rank": int(windows.culprit[i]) if windows.culprit[i] >= 0 else None,
            "next_op": _name(graph, int(windows.next_node[i])),
            "iteration": int(windows.iteration[i]) if windows.iteration[i] >= 0 else None,
            "edge": bool(windows.edge[i]),
        }
        for i in order.tolist()
    ]


def _name(graph: Graph, node: int) -> str | None:
    if node < 0:
        return None
    trace = graph.traces[int(graph.nodes.trace[node])]
    return trace.names[int(trace.ops.name_id[graph.nodes.row[node]])]


def _collective(graph: Graph, joint: Collective) -> Json:
    return {
        "index": joint.index,
        "name": joint.name,
        "start_ns": int(graph.time_ns[joint.start_point]),
        "wire_ns": int(joint.wire_ns),
        "wait_ns_by_rank": _by_rank(joint.wait_ns_by_rank),
        "residual_ns_by_rank": _by_rank(joint.residual_ns_by_rank),
        "edge": bool(joint.edge),
        "rooted": bool(joint.rooted),
    }


def _rules(report: BuildReport, without: Sequence[EdgeType]) -> Json:
    return {
        "edges_by_type": dict(report.edges_by_type),
        "violated_by_type": dict(report.violated_by_type),
        "left_out": [rule.name for rule in without],
        "inferred_patterns_kept": report.inferred_patterns_kept,
        "inferred_patterns_dropped": report.inferred_patterns_dropped,
        "inferred_waits_dropped": report.inferred_waits_dropped,
        "cyclic_edges_dropped": report.cyclic_edges_dropped,
        "queue_depth": report.queue_depth,
        "max_outstanding_launches": report.max_outstanding_launches,
        "clock_offset_ns_by_rank": _by_rank(report.clock_offsets_ns),
        "collectives_unmatched": report.collectives_unmatched,
        "large_residuals": report.large_residuals,
        "findings": list(report.findings),
    }


# --------------------------------------------------------------------------- whatif


def whatif_document(
    graph: Graph,
    scalings: Sequence[Scaling],
    scale: np.ndarray,
    timeline: Timeline,
    timings_s: Mapping[str, float],
) -> Json:
    """``emo.whatif/v1`` (:class:`emo.api.analysis.WhatIfReport`).

    ``timeline`` is the replay under ``scale``, which is the scale vector of ``scalings``.
    """
    step = recorded_step_time(graph)
    ratio = step_ratio(graph, timeline.time_ns)
    return {
        "schema": "emo.whatif/v1",
        "files": [_text(trace.path) for trace in graph.traces],
        "scale": [{"selector": scaling.selector, "factor": float(scaling.factor)} for scaling in scalings],
        "makespan_ns": int(timeline.makespan_ns),
        "baseline_ns": graph.makespan_ns,
        "makespan_ratio": timeline.makespan_ns / max(graph.makespan_ns, 1),
        "bound_ns": busiest_stream_bound_ns(graph, scale),
        "step_time_ns": _rounded(step.recorded_ns * ratio if step.recorded_ns is not None else None),
        "baseline_step_time_ns": _rounded(step.recorded_ns),
        "step_ratio": float(ratio),
        "basis": step.basis,
        "iterations": _replayed_iterations(graph, timeline),
        "collectives": [
            {
                "index": joint.index,
                "name": joint.name,
                "start_ns": int(timeline.time_ns[joint.start_point]),
                "delay_ns": int(timeline.time_ns[joint.start_point] - graph.time_ns[joint.start_point]),
            }
            for joint in graph.joints
        ],
        "timings_s": _timings(timings_s),
    }


def _replayed_iterations(graph: Graph, timeline: Timeline) -> list[Json]:
    result = []
    for index, points in enumerate(graph.iterations.end_points.T):
        marked = points[points >= 0]
        if len(marked):
            end_ns = int(timeline.time_ns[marked].max())
            delay_ns = end_ns - int(graph.time_ns[marked].max())
            result.append({"index": index, "end_ns": end_ns, "delay_ns": delay_ns})
    return result


# --------------------------------------------------------------------------- values


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)


def _by_rank(values: Mapping[int, int]) -> dict[str, int]:
    return {str(rank): int(values[rank]) for rank in sorted(values)}


def _timings(seconds: Mapping[str, float]) -> dict[str, float]:
    return {stage: round(value, 6) for stage, value in seconds.items()}


def _text(path: str) -> str:
    """A path as valid Unicode: bytes that are none become replacement characters."""
    return os.fsencode(path).decode(errors="replace")
