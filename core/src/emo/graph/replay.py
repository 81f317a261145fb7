"""Replay: when would everything have happened if some things took longer or shorter?

Linear time: one pass over the points in topological order. :func:`replay_python` is the
readable twin of the C pass; tests hold the two equal.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from emo import _native
from emo.errors import InputError
from emo.graph.model import F64, NEVER, Graph
from emo.trace.model import I32, I64


@dataclass(frozen=True, slots=True)
class Timeline:
    """Result of a replay. ``time_ns`` (P) per point; ``decided_by`` (P): the in-edge that bound, or -1."""

    time_ns: I64
    decided_by: I32
    makespan_ns: int


def unit_scale(graph: Graph) -> F64:
    """The scale vector of the recorded run: all ones."""
    return np.ones(graph.scale_size, np.float64)


def check_scale(graph: Graph, scale: F64) -> F64:
    """The scale vector as contiguous float64; raises InputError if it cannot be used."""
    scale = np.ascontiguousarray(scale, np.float64)
    if scale.shape != (graph.scale_size,):
        raise InputError(f"scale vector has shape {scale.shape}; expected ({graph.scale_size},)")
    if not np.isfinite(scale).all() or (scale < 0).any():
        raise InputError("scale factors must be finite and not negative")
    if scale[0] != 1.0:
        raise InputError("scale[0] is the constant 1: latencies do not scale")
    return scale


def replay(graph: Graph, scale: F64 | None = None, *, unexplained: bool = True) -> Timeline:
    """Replay the graph under a scale vector (see :class:`emo.graph.model.Graph`).

    With ``unexplained=False`` the remainders that no edge explains are taken as zero, which
    shows how much of the run the graph accounts for. Waits for absent peers always stay.
    """
    factors = unit_scale(graph) if scale is None else check_scale(graph, scale)
    delay = graph.peer_wait_ns + graph.unexplained_ns if unexplained else graph.peer_wait_ns
    time = np.empty(len(graph.time_ns), np.int64)
    decided = np.empty(len(graph.time_ns), np.int32)
    makespan = _native.replay(
        graph.row,
        graph.src,
        graph.lag_ns,
        graph.scaled_ns,
        graph.owner,
        factors,
        graph.release_ns,
        delay,
        time,
        decided,
    )
    return Timeline(time, decided, makespan)


def replay_python(graph: Graph, scale: F64 | None = None, *, unexplained: bool = True) -> Timeline:
    """The same as :func:`replay`, in plain Python: what the C pass must compute."""
    factors = (unit_scale(graph) if scale is None else check_scale(graph, scale)).tolist()
    row, src, owner = graph.row.tolist(), graph.src.tolist(), graph.owner.tolist()
    lag, scaled = graph.lag_ns.tolist(), graph.scaled_ns.tolist()
    time: list[int] = []
    decided: list[int] = []
    for point, release in enumerate(graph.release_ns.tolist()):
        latest, by = release, -1
        for edge in range(row[point], row[point + 1]):
            stretched = (
                scaled[edge]
                if factors[owner[edge]] == 1.0
                else int(scaled[edge] * factors[owner[edge]] + 0.5)
            )
            candidate = time[src[edge]] + lag[edge] + stretched
            if candidate > latest:
                latest, by = candidate, edge
        time.append(
            latest + int(graph.peer_wait_ns[point]) + (int(graph.unexplained_ns[point]) if unexplained else 0)
        )
        decided.append(by)
    return Timeline(np.array(time, np.int64), np.array(decided, np.int32), max(time, default=0))


def latest_times(graph: Graph, deadline_ns: I64, scale: F64 | None = None) -> I64:
    """Latest time of every point (P) so that no point misses its own ``deadline_ns`` (P).

    Use ``NEVER_LATE`` for points without a deadline of their own.
    """
    factors = unit_scale(graph) if scale is None else check_scale(graph, scale)
    latest = np.array(deadline_ns, np.int64)
    _native.latest(
        graph.row,
        graph.src,
        graph.lag_ns,
        graph.scaled_ns,
        graph.owner,
        factors,
        graph.peer_wait_ns + graph.unexplained_ns,
        latest,
    )
    return latest


NEVER_LATE = np.int64(-NEVER)
