"""The report and the overlay: what they show is what was found, and they can be read anywhere."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import re
from collections import defaultdict
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kineto_files import write_job, write_trace

from emo.analysis import Analysis, analyze
from emo.errors import InputError
from emo.files import write_atomically
from emo.graph.critical import Spent
from emo.report import write_overlay, write_report
from emo.report.charts import Window, spread, step_area
from emo.report.contributors import top_contributors
from emo.report.curve import WhatIfCurve, what_if_curve
from emo.report.html import render
from emo.report.overlay import share_out
from emo.report.states import USABLE, Segments, State, gpu_segments, path_segments
from emo.report.text import Scale, count, digits, duration, escape, increase, name, percent, ticks
from emo.report.timeline import detail_range

EVIL = "</script><script>alert('&\"')</script>\x1b[31m"
US = 1_000

PLAN: dict[str, Any] = {
    "gpu_model": "A100",
    "target_slowdown_ratio": 0.05,
    "basis": "iterations",
    "predicted_slowdown_ratio": {"value": 0.02, "low": 0.0, "high": 0.04},
    "predicted_energy_saving_ratio": {"value": 0.117, "low": 0.06, "high": 0.171},
    "allowed_mode": "Recommend",
    "allowed_mode_reasons": ["time and power are <priors>"],
    "model_source": {"measured": False, "prior": True, "text": "assumptions"},
    "gpus": [{"rank": 0, "device": 0, "clock_mhz": 1234}],
    "rungs": [{"clocks_mhz": [1410]}, {"clocks_mhz": [1234]}],
}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    """Two ranks, four steps; rank 1 arrives 200 us later at the all-reduce."""
    return analyze(write_job(tmp_path_factory.mktemp("job"), [600, 800]))


@pytest.fixture(scope="module")
def lone(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    """One rank, four steps, with a kernel whose name is an attack."""
    return analyze([write_trace(tmp_path_factory.mktemp("lone") / "lone.json", second=EVIL)])


class Page(HTMLParser):
    """Reads a page strictly: tags close in order; keeps ids, references, texts by tag and scripts."""

    VOID = frozenset({"meta", "br", "path", "polyline"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.scripts: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.ids += [values["id"] or ""] if "id" in values else []
        self.references += [values[key] or "" for key in ("src", "href", "data", "action") if key in values]
        assert not any(key.startswith("on") for key in values)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in self.VOID

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)
        elif "style" not in self.open:
            self.text += data


def test_page_is_well_formed_and_needs_no_network(job: Analysis) -> None:
    text = render(job, plan=PLAN)
    page = Page(text)
    assert len(page.ids) == len(set(page.ids))
    assert {"summary", "plan", "lanes", "path", "whatif", "slack", "quality"} <= set(page.ids)
    assert page.references
    assert all(reference.startswith("#") and reference[1:] in page.ids for reference in page.references)
    assert not re.search(r"https?:|@import|url\(", text)


def test_same_analysis_gives_same_bytes(job: Analysis, tmp_path: Path) -> None:
    for run in ("a", "b"):
        write_report(job, tmp_path / f"{run}.html")
        write_overlay(job, tmp_path / f"{run}.json.gz")
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()


def test_names_cannot_become_markup(lone: Analysis) -> None:
    text = render(lone)
    page = Page(text)
    assert "<script>alert" not in text
    assert "</script><script>alert" in page.text  # as something to read
    assert "\x1b" not in text
    assert len(page.scripts) == 2  # the data and the program, nothing else


def test_summary_says_what_limits_the_job_and_what_to_do(job: Analysis, lone: Analysis) -> None:
    page = Page(render(job))
    assert "The GPU limits this job" in page.text or "The CPU limits this job" in page.text
    assert "emo plan RANK_TRACES" in page.text
    assert "Trace at least 10 iterations" in page.text
    assert "all 2 ranks" not in page.text  # both are given
    assert "emo plan lone.json" in Page(render(lone)).text
    assert "emo plan lone.json" not in Page(render(lone, plan=PLAN)).text  # it is there already


def test_missing_ranks_are_asked_for(tmp_path: Path) -> None:
    files = write_job(tmp_path, [600, 800, 700])
    assert "Give the traces of all 3 ranks (there are 2)" in Page(render(analyze(files[:2]))).text


def test_plan_section(lone: Analysis) -> None:
    page = Page(render(lone, plan=PLAN))
    assert "Recommend only" in page.text
    assert "prior" in page.text
    assert "time and power are <priors>" in page.text
    assert "1234\u202fMHz" in page.text
    assert "6\u202f% to 17\u202f%" in page.text
    assert "Plan" not in Page(render(lone)).text


def test_plan_that_is_no_document_is_refused(lone: Analysis) -> None:
    with pytest.raises(InputError, match="plan"):
        render(lone, plan=3)


def test_gate_reasons_and_findings_are_shown(tmp_path: Path) -> None:
    analysis = analyze([write_trace(tmp_path / "lost.json", lost_kernels=True)])
    assert analysis.gate_reasons
    page = Page(render(analysis))
    assert "Recommend only" in page.text
    assert "lost.json: " in page.text
    assert str(tmp_path) not in page.text  # the same report wherever the file lies


def test_every_quality_figure_is_in_the_report(job: Analysis) -> None:
    text = Page(render(job)).text
    for trace in job.traces:
        for figure in (trace.quality.records, trace.quality.launches, trace.quality.kernels):
            assert count(figure) in text
    assert "Replay error" in text
    assert "Cross-iteration error" in text


# --------------------------------------------------------------------------- states


def assert_states_are_the_accounts(analysis: Analysis) -> None:
    """Every instant of every GPU is in one state, and the states add up to what the analysis says."""
    makespan = analysis.timeline.makespan_ns
    for gpu, segments in zip(analysis.slack.gpus, gpu_segments(analysis), strict=True):
        assert segments.start_ns[0] == 0
        assert segments.end_ns[-1] == makespan
        assert (segments.start_ns[1:] == segments.end_ns[:-1]).all()
        assert sum(segments.total_ns(state) for state in USABLE) == gpu.slack_ns
        working = sum(segments.total_ns(s) for s in (State.COMPUTE, State.COLLECTIVE, State.COPY))
        assert working == gpu.busy_ns
    path = path_segments(analysis.path)
    assert path.total_ns(State.CPU) == analysis.path.total_ns(Spent.CPU)
    assert int((path.end_ns - path.start_ns).sum()) == makespan
    contributors = top_contributors(analysis, 10**9)
    assert sum(item.time_ns for item in contributors) == makespan


def test_states_of_a_small_job(job: Analysis, lone: Analysis) -> None:
    assert_states_are_the_accounts(job)
    assert_states_are_the_accounts(lone)


def test_states_by_hand(lone: Analysis) -> None:
    # A step lasts 1000 us: kernels at 120-420 and 520-720, counted from the first mark.
    segments = gpu_segments(lone)[0]
    busy = segments.state == State.COMPUTE
    assert (segments.start_ns[busy][:2] // US).tolist() == [120, 520]
    assert (segments.end_ns[busy][:2] // US).tolist() == [420, 720]


@pytest.mark.parametrize(
    "pattern",
    [
        "hta/df_index_resolver.json.gz",
        "hta/trace_diff_control_a100_rank3of8.json.gz",
        "param/worker*.json",
        "nsys/h100_2gpu_1s.sqlite",
        "rocprof/mi350x_rocprofiler_sdk_908_results.json.gz",
    ],
)
def test_real_traces(samples: Path, tmp_path: Path, pattern: str) -> None:
    analysis = analyze([str(path) for path in sorted(samples.glob(pattern))])
    assert_states_are_the_accounts(analysis)
    write_report(analysis, tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size <= 6_000_000
    Page((tmp_path / "report.html").read_text(encoding="utf-8"))
    write_overlay(analysis, tmp_path / "overlay.json")
    assert_overlay_tells_the_analysis(json.loads((tmp_path / "overlay.json").read_bytes()), analysis)


def test_shares_of_a_bin_are_the_time_spent_in_it() -> None:
    segments = Segments(np.array([0, 30, 100]), np.array([10, 60, 250]), np.array([0, 0, 1], np.int8))
    edges = np.array([0.0, 50.0, 100.0, 300.0])
    assert segments.shares(State(0), edges).tolist() == pytest.approx([0.6, 0.2, 0.0])
    assert segments.shares(State(1), edges).tolist() == pytest.approx([0.0, 0.0, 0.75])
    assert segments.shares(State(2), edges).tolist() == [0.0, 0.0, 0.0]


def test_step_area_has_one_step_per_change() -> None:
    assert step_area(np.array([0.0, 0.0, 0.5, 0.5, 1.0])) == "M0,100V100H2V50H4V0H5V100Z"


def test_zoom_data_is_the_timeline(job: Analysis) -> None:
    data = json.loads(Page(render(job)).scripts[0])
    makespan = job.timeline.makespan_ns
    assert data["makespan"] == makespan
    assert 0 <= data["low"] < data["high"] <= makespan
    for gpu, segments in enumerate(gpu_segments(job)):
        lane = data["lanes"][1 + gpu]
        for key, expected in (("start", segments.start_ns), ("end", segments.end_ns)):
            values = np.frombuffer(base64.b64decode(lane[key]), "<u4") * data["unit"]
            assert values.tolist() == expected.tolist()
        assert list(base64.b64decode(lane["state"])) == segments.state.tolist()


def test_detail_is_a_whole_iteration(job: Analysis) -> None:
    low, high, what = detail_range(job)
    iterations = job.graph.iterations
    assert (low, high) in zip(iterations.start_ns.tolist(), iterations.end_ns.tolist(), strict=True)
    assert what.startswith("iteration ")


# --------------------------------------------------------------------------- what-if curve


def test_curve_begins_at_the_recorded_step_and_never_falls(job: Analysis) -> None:
    curve = what_if_curve(job)
    assert curve is not None
    assert curve.step_ns[0] == job.step.recorded_ns
    assert (np.diff(curve.step_ns) >= 0).all()
    assert curve.step_ns[-1] <= 2.0 * curve.step_ns[0] * (1 + 1e-6)


def test_factor_for_a_slowdown_lies_on_the_curve() -> None:
    curve = WhatIfCurve(np.array([1.0, 1.5, 2.0]), np.array([100.0, 100.0, 110.0]), 100.0)
    assert curve.factor_for(0.01) == pytest.approx(1.55)
    assert curve.step_at(1.55) == pytest.approx(101.0)
    assert curve.factor_for(0.2) is None


# --------------------------------------------------------------------------- overlay


def events_by_track(overlay: dict[str, Any]) -> dict[tuple[int, int], list[tuple[int, int, dict[str, Any]]]]:
    """(pid, tid) -> (start ns, end ns, event) of the complete events, in order of time."""
    tracks = defaultdict(list)
    for event in overlay["traceEvents"]:
        if event["ph"] == "X":
            start = round(event["ts"] * 1000)
            tracks[event["pid"], event["tid"]].append((start, start + round(event["dur"] * 1000), event))
    return {track: sorted(events, key=lambda e: e[:2]) for track, events in tracks.items()}


def named(overlay: dict[str, Any], kind: str) -> dict[tuple[int, int], str]:
    """Names of processes (tid 0) or threads."""
    return {
        (e["pid"], e["tid"]): e["args"]["name"]
        for e in overlay["traceEvents"]
        if e["name"] == kind and e["ph"] == "M"
    }


def assert_overlay_tells_the_analysis(overlay: dict[str, Any], analysis: Analysis) -> None:
    tracks = events_by_track(overlay)
    threads, processes = named(overlay, "thread_name"), named(overlay, "process_name")
    for track, events in tracks.items():
        assert track in threads
        assert (track[0], 0) in processes
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(events))
    path = next(events for track, events in tracks.items() if threads[track] == "critical path")
    assert sum(end - start for start, end, _ in path) == analysis.timeline.makespan_ns
    windows = [
        e for track, events in tracks.items() if threads[track] == "slack windows" for _, _, e in events
    ]
    assert len(windows) == sum(len(gpu.windows) for gpu in analysis.slack.gpus)
    usable = sum(round(e["args"]["slack_us"] * 1000) for e in windows if not e["args"]["edge"])
    assert usable == sum(gpu.slack_ns for gpu in analysis.slack.gpus)
    ops = sum(
        len(events) for track, events in tracks.items() if threads[track].startswith(("stream", "thread"))
    )
    assert ops == len(analysis.graph.nodes)


def test_overlay(job: Analysis, tmp_path: Path) -> None:
    write_overlay(job, tmp_path / "overlay.json.gz")
    overlay = json.loads(gzip.decompress((tmp_path / "overlay.json.gz").read_bytes()))
    assert_overlay_tells_the_analysis(overlay, job)
    names = set(named(overlay, "process_name").values())
    assert {"EMO: critical path", "rank 0, GPU 0", "rank 1, GPU 0", "rank 0, CPU", "rank 1, CPU"} <= names
    late = [e for e in overlay["traceEvents"] if e.get("args", {}).get("late_rank") == 1]
    assert late
    assert all(e["args"]["cause"].startswith("PEER") for e in late)


def test_overlay_keeps_names_and_nanoseconds(lone: Analysis, tmp_path: Path) -> None:
    write_overlay(lone, tmp_path / "overlay.json")
    text = (tmp_path / "overlay.json").read_text(encoding="utf-8")
    first = next(e for e in json.loads(text)["traceEvents"] if e["name"] == "first")
    assert (first["ts"], first["dur"]) == (120.0, 300.0)
    assert '"ts":120.000,"dur":300.000' in text
    assert any(e["name"] == EVIL for e in json.loads(text)["traceEvents"])


def test_overlapping_ops_go_to_further_tracks() -> None:
    assert share_out([0, 5, 10, 12], [10, 20, 15, 13], 64) == [0, 1, 0, 2]
    assert share_out([0, 0, 0], [9, 9, 9], 2) == [0, 1, 1]


# --------------------------------------------------------------------------- files


def test_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    target.write_text("old")
    with pytest.raises(ZeroDivisionError), write_atomically(target) as stream:
        stream.write(b"half")
        raise ZeroDivisionError
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_written_file_keeps_its_permissions(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    target.write_text("old")
    target.chmod(0o640)
    with write_atomically(target) as stream:
        stream.write(b"new")
    assert target.read_text() == "new"
    assert target.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("place", ["missing/report.html", "."])
def test_unwritable_place_is_an_input_error(tmp_path: Path, place: str) -> None:
    with pytest.raises(InputError, match="cannot be written"), write_atomically(tmp_path / place):
        pass
    assert list(tmp_path.iterdir()) == []


# --------------------------------------------------------------------------- text


@pytest.mark.parametrize(
    ("nanoseconds", "expected"),
    [
        (0, "0 ns"),
        (850, "850 ns"),
        (12_345, "12.3 µs"),
        (348_033_000, "348 ms"),
        (1_738e6, "1 738 ms"),
        (43.5e9, "43.5 s"),
    ],
)
def test_durations(nanoseconds: float, expected: str) -> None:
    assert duration(nanoseconds).replace("\u202f", " ") == expected


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [
        (0, "0 %"),
        (0.00001, "< 0.01 %"),
        (0.0004, "0.04 %"),
        (0.05, "5 %"),
        (0.3747, "37 %"),
        (0.9997, "> 99.5 %"),
        (1, "100 %"),
    ],
)
def test_percentages(ratio: float, expected: str) -> None:
    assert percent(ratio).replace("\u202f", " ") == expected


def test_increase() -> None:
    assert [increase(ratio).replace("\u202f", " ") for ratio in (0.0, 0.00005, 0.043)] == [
        "none",
        "< 0.01 %",
        "+4.3 %",
    ]


def test_numbers_and_names() -> None:
    assert digits(0.04567) == "0.0457"
    assert digits(40.0) == "40"
    assert escape('<a href="x">\n') == "&lt;a href=&quot;x&quot;&gt;\ufffd"
    assert 'title="' + "k" * 200 in name("k" * 200)
    assert Scale.fitting([1_738e6]).number(693_247_000) == "693.2"


def test_ticks_are_round_and_few() -> None:
    assert ticks(0, 465, 7) == [0, 100, 200, 300, 400]
    assert ticks(1.0, 2.0, 7) == pytest.approx([1.0, 1.2, 1.4, 1.6, 1.8, 2.0])


def test_labels_are_kept_apart() -> None:
    assert spread([50.0, 51.0, 90.0], 8.0) == [50.0, 58.0, 90.0]


def test_window_positions() -> None:
    window = Window(100.0, 300.0, 4)
    assert window.edges_ns.tolist() == [100.0, 150.0, 200.0, 250.0, 300.0]
    assert window.position(150.0) == 0.25
