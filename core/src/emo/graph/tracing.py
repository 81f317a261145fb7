"""Tracing slows the CPU: how the run would have been without the profiler.

A profiler costs CPU time in every call (x1.1-2 in step time has been measured), and next to none on
the GPU. So a trace shows GPUs that wait for their CPU more than they do untraced, and that part of
their slack does not exist. Where the untraced step time is not known, a factor is assumed.
"""

from __future__ import annotations

from emo.graph.model import F64, Graph
from emo.graph.replay import unit_scale

# Assumed ratio of CPU work with and without the profiler (docs/engine.md, "Tracing").
ASSUMED_TRACING_FACTOR = 1.5


def cpu_scale_vector(graph: Graph, factor: float) -> F64:
    """Scale vector with all CPU work times ``factor``."""
    scale = unit_scale(graph)
    scale[1 : 1 + len(graph.threads)] = factor
    return scale
