"""The section with the GPUs over time: the whole window, and a part of it from near."""

from __future__ import annotations

import base64
import json

import numpy as np

from emo.analysis import Analysis
from emo.report.charts import Lane, Window, lanes, legend
from emo.report.states import (
    GPU_STATES,
    PATH_STATES,
    PATH_TEXT,
    STATE_TEXT,
    Segments,
    State,
    gpu_segments,
    path_on_gpu,
    path_segments,
    stream_segments,
)
from emo.report.text import duration, escape, gpu_label, percent, plural
from emo.trace.model import I64

# Bins over all lanes of one chart: sets the size of the file for jobs with many GPUs.
_BINS = 24_000
_MAX_BINS = 1_200
_MAX_STREAM_LANES = 12
# More marks than this would be a grey wall.
_MAX_MARKS = 60
# A part is shown from near if it is this much shorter than the window; else a slice of it is.
_MAX_DETAIL_SHARE = 0.8
_SLICE_SHARE = 0.05
# Stretches that may be put into the file for zooming (12 bytes each); beyond that a trace viewer does better.
_MAX_ZOOM_SEGMENTS = 350_000

_STREAM_STATES = (State.COMPUTE, State.COLLECTIVE, State.COPY, State.PEER_WAIT)


def lanes_section(analysis: Analysis) -> tuple[str, str]:
    """(body of the section, data for zooming or an empty text), as HTML."""
    makespan = max(analysis.timeline.makespan_ns, 1)
    rows = _rows(analysis)
    marks = _marks(analysis)
    overview = Window(0, makespan, _bins(len(rows)))
    low, high, what = detail_range(analysis)
    near = _with_streams(analysis, rows)
    detail = Window(low, high, _bins(len(near)))
    on_path, on_gpus = _used(rows[:1]), _used(near[1:])
    mark_note = " Dashed lines are the boundaries of iterations." if marks else ""
    data = _zoom_data(near, makespan, marks, low, high)
    controls = (
        '<div class="zoom"><button data-do="in">Zoom in</button><button data-do="out">Zoom out</button>'
        '<button data-do="left">&larr; Earlier</button><button data-do="right">Later &rarr;</button>'
        '<button data-do="reset">Reset</button><output aria-live="off">Drag to move, Ctrl + wheel to zoom, '
        "click the upper chart to go there.</output></div>"
        if data
        else ""
    )
    caption = (
        f"{duration(makespan)} in {overview.bins} bins of {duration(makespan / overview.bins)}.{mark_note} "
        "The bar on the axis is the part shown below."
    )
    path_entries = [(state, PATH_TEXT[state]) for state in PATH_STATES if state in on_path]
    gpu_entries = [(state, STATE_TEXT[state]) for state in GPU_STATES if state in on_gpus]
    body = (
        "<p>Each lane shows how the time of its bin is divided: a full bar of one colour means that nothing "
        "else happened there.</p>"
        + legend("The critical path", path_entries)
        + legend("A GPU", gpu_entries, critical=True)
        + "<h3>Whole window</h3>"
        + lanes(rows, overview, marks, caption, "overview", (low, high))
        + f'<h3>From near: <span id="detail-title">{escape(what)}</span></h3>'
        + controls
        + lanes(near, detail, marks, _detail_note(analysis, near, rows, detail), "detail")
    )
    return body, data


def _used(rows: list[Lane]) -> set[State]:
    """States that occur in any of the lanes."""
    return {state for row in rows for state in row.states if row.segments.total_ns(state)}


def _bins(rows: int) -> int:
    return max(100, min(_MAX_BINS, _BINS // max(rows, 1)))


def _rows(analysis: Analysis) -> list[Lane]:
    """The critical path, then one lane per GPU."""
    makespan = max(analysis.timeline.makespan_ns, 1)
    path = path_segments(analysis.path)
    cpu = path.total_ns(State.CPU) / makespan
    rows = [Lane("critical path", f"CPU {percent(cpu)}", path, PATH_STATES)]
    for gpu, segments in zip(analysis.slack.gpus, gpu_segments(analysis), strict=True):
        note = f"busy {percent(gpu.busy_ns / makespan)}, slack {percent(gpu.slack_ns / makespan)}"
        label = gpu_label(analysis.graph, gpu.gpu)
        shown = tuple(state for state in GPU_STATES if state != State.GAP)
        rows.append(Lane(label, note, segments, shown, critical=path_on_gpu(analysis, gpu.gpu)))
    return rows


def _with_streams(analysis: Analysis, rows: list[Lane]) -> list[Lane]:
    """The rows, with a thin lane per stream below its GPU where that tells more and can be read."""
    graph = analysis.graph
    if not len(graph.gpus) < len(graph.streams) <= _MAX_STREAM_LANES:
        return rows
    result = rows[:1]
    for row, gpu in zip(rows[1:], analysis.slack.gpus, strict=True):
        result.append(row)
        mine = [s for s in range(len(graph.streams)) if graph.streams[s][:2] == graph.gpus[gpu.gpu]]
        result += [_stream_lane(analysis, s) for s in sorted(mine, key=lambda s: graph.streams[s][2])]
    return result


def _stream_lane(analysis: Analysis, stream: int) -> Lane:
    segments = stream_segments(analysis.graph, stream)
    busy = sum(segments.total_ns(state) for state in _STREAM_STATES[:3])
    note = f"busy {percent(busy / max(analysis.timeline.makespan_ns, 1))}"
    return Lane(f"stream {analysis.graph.streams[stream][2]}", note, segments, _STREAM_STATES, thin=True)


def _marks(analysis: Analysis) -> list[float]:
    iterations = analysis.graph.iterations
    if not 0 < len(iterations) <= _MAX_MARKS:
        return []
    return [float(t) for t in np.r_[iterations.start_ns[:1], iterations.end_ns].tolist()]


def detail_range(analysis: Analysis) -> tuple[float, float, str]:
    """(from, to, what it is): the iteration of median length, else the slice with the most slack."""
    makespan = max(analysis.timeline.makespan_ns, 1)
    iterations = analysis.graph.iterations
    if len(iterations):
        # The first is warm-up where there is a choice.
        candidates = np.arange(1 if len(iterations) >= 3 else 0, len(iterations))
        lengths = (iterations.end_ns - iterations.start_ns)[candidates]
        chosen = int(candidates[np.argsort(lengths, kind="stable")[(len(lengths) - 1) // 2]])
        low, high = int(iterations.start_ns[chosen]), int(iterations.end_ns[chosen])
        if 0 < high - low <= _MAX_DETAIL_SHARE * makespan:
            kind = "the one of median length" if len(iterations) >= 3 else "the only one"
            return low, high, f"iteration {chosen}, {kind if len(iterations) != 2 else 'the shorter one'}"
    width = makespan * _SLICE_SHARE
    starts = np.linspace(0, makespan - width, 96)
    best = float(starts[int(np.argmax(_slack_between(analysis, starts, width)))])
    return best, best + width, f"the {percent(_SLICE_SHARE)} of the window with the most usable slack"


def _slack_between(analysis: Analysis, starts: np.ndarray, width: float) -> np.ndarray:
    """Usable slack (ns, all GPUs) of the windows that begin within ``width`` of each start."""
    total = np.zeros(len(starts))
    for gpu in analysis.slack.gpus:
        mine = ~gpu.windows.edge
        begins, upto = gpu.windows.start_ns[mine], np.r_[0, np.cumsum(gpu.windows.slack_ns[mine])]
        total += upto[np.searchsorted(begins, starts + width)] - upto[np.searchsorted(begins, starts)]
    return total


def _detail_note(analysis: Analysis, near: list[Lane], rows: list[Lane], window: Window) -> str:
    length = window.high_ns - window.low_ns
    text = f'<span id="detail-extent">{duration(length)} in bins of {duration(length / window.bins)}</span>.'
    streams = len(analysis.graph.streams)
    if len(near) == len(rows) and streams > len(analysis.graph.gpus):
        text += f" {plural(streams, 'stream')} are too many to show one by one here."
    return text + " Names of kernels: <code>emo analyze --overlay out.json.gz</code>, in a trace viewer."


def _zoom_data(rows: list[Lane], makespan: int, marks: list[float], low: float, high: float) -> str:
    """All stretches of all lanes, for the script that redraws the lower chart; empty if too many."""
    if sum(len(row.segments.state) for row in rows) > _MAX_ZOOM_SEGMENTS:
        return ""
    # 2^31 steps over the window: finer than any screen, and exact up to 2 s.
    unit = max(1.0, makespan / 2**31)
    data = {
        "unit": unit,
        "makespan": makespan,
        "low": low,
        "high": high,
        "marks": marks,
        "names": {int(state): STATE_TEXT[state] for state in State},
        "lanes": [
            {
                "states": [int(state) for state in row.states],
                **_packed(row.segments, unit),
                "critical": _packed(row.critical, unit) if row.critical is not None else None,
            }
            for row in rows
        ],
    }
    text = json.dumps(data, separators=(",", ":"), sort_keys=True)
    return f'<script type="application/json" id="zoom-data">{text}</script>'


def _packed(segments: Segments, unit: float) -> dict[str, str]:
    def encode(array: I64, dtype: str) -> str:
        return base64.b64encode(np.ascontiguousarray(array.astype(dtype)).tobytes()).decode("ascii")

    return {
        "start": encode(np.rint(segments.start_ns / unit).astype(np.int64), "<u4"),
        "end": encode(np.rint(segments.end_ns / unit).astype(np.int64), "<u4"),
        "state": encode(segments.state.astype(np.int64), "u1"),
    }
