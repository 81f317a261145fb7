"""What-if: selectors from the command line to a scale vector, and a bound that no replay may beat."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from emo.errors import InputError
from emo.graph.model import F64, Bool, Graph
from emo.graph.replay import unit_scale
from emo.trace.columns import distinct
from emo.trace.model import GPU_KINDS, I64, Kind

SELECTORS = "gpu, cpu, rank:R, cpu:R, device:D, stream:S, name:REGEX, kind:KIND"
_KINDS = {kind.name.lower(): kind for kind in GPU_KINDS}
MAX_FACTOR = 1e6


@dataclass(frozen=True, slots=True)
class Scaling:
    """``selector=factor`` as the user wrote it."""

    selector: str
    factor: float

    @classmethod
    def parse(cls, text: str) -> Scaling:
        """Parse ``SELECTOR=FACTOR``; raises InputError with what was expected."""
        selector, separator, factor_text = text.rpartition("=")
        if not separator or not selector:
            raise InputError(
                f"--scale {text!r}: expected SELECTOR=FACTOR, e.g. gpu=1.1; selectors: {SELECTORS}"
            )
        try:
            factor = float(factor_text)
        except ValueError:
            raise InputError(
                f"--scale {text!r}: {factor_text!r} is not a number; e.g. {selector}=1.1"
            ) from None
        if not 0 <= factor <= MAX_FACTOR:
            raise InputError(f"--scale {text!r}: the factor must be between 0 and {MAX_FACTOR:g}")
        return cls(selector, factor)


def scale_vector(graph: Graph, scalings: Sequence[Scaling]) -> F64:
    """The scale vector for all scalings together; factors of several that match the same op multiply.

    Raises InputError for an unknown selector and for one that matches nothing.
    """
    scale = unit_scale(graph)
    threads = len(graph.threads)
    for scaling in scalings:
        matched_threads, matched_nodes = _select(graph, scaling.selector)
        if not matched_threads.any() and not matched_nodes.any():
            raise InputError(
                f"--scale {scaling.selector}: matches nothing in this trace; {_available(graph, scaling.selector)}"
            )
        scale[1 : 1 + threads][matched_threads] *= scaling.factor
        scale[1 + threads : 1 + threads + len(graph.nodes)][matched_nodes] *= scaling.factor
    for number, joint in enumerate(graph.joints):
        # A joint operation is as slow as its slowest participant.
        scale[1 + threads + len(graph.nodes) + number] = max(
            scale[graph.node_owner(node)] for node in joint.nodes
        )
    return scale


def _select(graph: Graph, selector: str) -> tuple[Bool, Bool]:
    """(threads, nodes) that a selector means."""
    nodes = graph.nodes
    on_gpu = np.isin(nodes.kind, GPU_KINDS)
    no_threads, no_nodes = np.zeros(len(graph.threads), bool), np.zeros(len(nodes), bool)
    name, separator, value = selector.partition(":")
    if not separator:
        if name == "gpu":
            return no_threads, on_gpu
        if name == "cpu":
            return ~no_threads, no_nodes
    elif name == "cpu":
        return _of_rank(graph, value, selector)[[t for t, _ in graph.threads]], no_nodes
    elif name == "rank":
        return no_threads, on_gpu & _of_rank(graph, value, selector)[nodes.trace]
    elif name in ("device", "stream"):
        number = _integer(value, selector)
        table = graph.gpus if name == "device" else [(trace, stream) for trace, _, stream in graph.streams]
        column = nodes.gpu if name == "device" else nodes.stream
        wanted = np.array([own == number for _, own in table], bool)
        return no_threads, on_gpu & wanted[np.maximum(column, 0)] if len(wanted) else no_nodes
    elif name == "kind":
        if value.lower() not in _KINDS:
            raise InputError(f"--scale {selector}: unknown kind; expected one of {', '.join(_KINDS)}")
        return no_threads, nodes.kind == _KINDS[value.lower()]
    elif name == "name":
        return no_threads, on_gpu & _named(graph, value, selector)
    raise InputError(f"--scale {selector}: unknown selector; expected one of {SELECTORS}")


def _integer(text: str, selector: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InputError(f"--scale {selector}: {text!r} is not a whole number") from None


def _of_rank(graph: Graph, text: str, selector: str) -> Bool:
    rank = _integer(text, selector)
    return np.array([graph.rank_of(trace) == rank for trace in range(len(graph.traces))], bool)


def _named(graph: Graph, pattern: str, selector: str) -> Bool:
    try:
        regex = re.compile(pattern)
    except re.error as error:
        raise InputError(f"--scale {selector}: not a regular expression ({error})") from None
    result = np.zeros(len(graph.nodes), bool)
    for index, trace in enumerate(graph.traces):
        mine = np.flatnonzero(graph.nodes.trace == index)
        name_id = trace.ops.name_id[graph.nodes.row[mine]]
        used = distinct(name_id)
        matches = np.zeros(len(trace.names), bool)
        matches[used] = [regex.search(trace.names[i]) is not None for i in used.tolist()]
        result[mine] = matches[name_id]
    return result


def _available(graph: Graph, selector: str) -> str:
    """What the selector could have named."""
    ranks = sorted({graph.rank_of(trace) for trace in range(len(graph.traces))})
    kinds = [
        Kind(kind).name.lower() for kind in distinct(graph.nodes.kind).tolist() if Kind(kind) in GPU_KINDS
    ]
    known = {
        "rank": f"it has ranks {ranks}",
        "cpu": f"it has CPU threads of ranks {sorted({graph.rank_of(t) for t, _ in graph.threads})}",
        "device": f"it has devices {sorted({device for _, device in graph.gpus})}",
        "stream": f"it has streams {sorted({stream for _, _, stream in graph.streams})}",
        "kind": f"it has kinds {kinds}",
    }
    return known.get(selector.partition(":")[0], "check the pattern against the kernel names in the trace")


def busiest_stream_bound_ns(graph: Graph, scale: F64) -> int:
    """No schedule is shorter than the work of its busiest stream, waits for peers left out.

    Where ops overlap on one stream, each counts up to the start of the next that outlasts it.
    """
    nodes = graph.nodes
    wait = wait_ns(graph)
    longest = 0
    for stream in range(len(graph.streams)):
        ops = np.flatnonzero(nodes.stream == stream)
        ops = ops[np.lexsort((nodes.sequence[ops], nodes.start_ns[ops]))]
        latest = np.maximum.accumulate(np.r_[np.int64(-1), nodes.end_ns[ops]])
        ops = ops[nodes.end_ns[ops] > latest[:-1]]
        upto = np.minimum(nodes.end_ns[ops], np.r_[nodes.start_ns[ops][1:], np.iinfo(np.int64).max])
        work = np.maximum(upto - nodes.start_ns[ops] - wait[ops], 0)
        longest = max(longest, int((work * scale[1 + len(graph.threads) + ops]).sum()))
    return longest


def wait_ns(graph: Graph, time_ns: I64 | None = None) -> I64:
    """Per node (N): the part of a communication op that is waiting for peers, known or unknown.

    ``time_ns`` (P) are the times of a replay; the recorded ones by default.
    """
    time = graph.time_ns if time_ns is None else time_ns
    wait = np.where(graph.nodes.gpu >= 0, graph.peer_wait_ns[graph.end_point], 0)
    for joint in graph.joints:
        waiting = np.array(joint.waiting, np.int64)
        wait[waiting] = np.maximum(time[joint.start_point] - time[graph.start_point[waiting]], 0)
        if not joint.rooted:
            wait[waiting] += graph.peer_wait_ns[joint.end_point]
    return wait
