"""The JSON documents: they are what their models promise, and they say what the run was."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import schema_reference
from kineto_files import ALL_REDUCE, write_job, write_trace
from pydantic import BaseModel, ValidationError

from emo.analysis import Analysis, analyze, read_traces
from emo.api.analysis import AnalysisReport, WhatIfReport
from emo.documents import analysis_document, whatif_document
from emo.graph.build import build_graph
from emo.graph.replay import replay
from emo.graph.whatif import Scaling, scale_vector
from emo.trace.model import StepQuality
from emo.trace.validate import is_complete

US = 1_000


def as_printed(document: dict[str, Any]) -> str:
    return json.dumps(document, allow_nan=False)


def analysis_report(analysis: Analysis) -> AnalysisReport:
    return AnalysisReport.model_validate_json(as_printed(analysis_document(analysis)))


# --------------------------------------------------------------------------- what the figures are


def test_one_rank_by_hand(tmp_path: Path) -> None:
    report = analysis_report(analyze([write_trace(tmp_path / "a.json", steps=4)]))
    assert report.makespan_ns == report.replay_makespan_ns == 4_000 * US
    assert (report.replay_error_ratio, report.max_start_error_ns, report.unexplained_ratio) == (0.0, 0, 0.0)
    assert (report.step_time_ns, report.basis) == (1_000 * US, "iterations")
    assert [(i.start_ns, i.end_ns) for i in report.iterations] == [
        (i * 1_000 * US, (i + 1) * 1_000 * US) for i in range(4)
    ]
    assert report.kernels == 8
    assert report.ops == 8 + 12  # three calls a step
    assert report.quality.completeness == 1.0
    assert (report.quality.steps, report.quality.complete_steps) == (4, 4)

    gpu = report.gpus[0]
    assert (gpu.device, gpu.rank, gpu.name) == (0, 0, "Test GPU")
    assert (gpu.busy_ns, gpu.peer_wait_ns, gpu.idle_ns) == (4 * 500 * US, 0, 4 * 500 * US)
    # Between ``first`` and ``second`` (420 to 520 us) the GPU waits for the CPU's launch at 500 us.
    window = next(window for window in gpu.top_windows if window.start_ns == 420 * US)
    assert (window.end_ns, window.slack_ns, window.cause, window.next_op) == (
        520 * US,
        100 * US,
        "cpu",
        "second",
    )
    assert (window.iteration, window.edge, window.culprit_rank) == (0, False, None)
    assert [w.slack_ns for w in gpu.top_windows] == sorted(
        (w.slack_ns for w in gpu.top_windows), reverse=True
    )
    assert gpu.slack_ns == sum(gpu.slack_by_cause.values()) == 4 * 100 * US
    assert gpu.slack_windows == 4 + 4 + 1  # two in each step, and the one before the first kernel
    assert gpu.persistent_slack_ns is None


def test_two_ranks_by_hand(tmp_path: Path) -> None:
    report = analysis_report(analyze(write_job(tmp_path, [750, 850])))
    assert [file.rank for file in report.files] == [0, 1]
    assert len(report.collectives) == 4
    for index, collective in enumerate(report.collectives):
        assert (collective.index, collective.name) == (index, ALL_REDUCE)
        assert collective.start_ns == (1_000 * index + 850) * US
        assert collective.wire_ns == 50 * US
        assert collective.wait_ns_by_rank == {"0": 100 * US, "1": 0}
        assert collective.residual_ns_by_rank == {"0": 0, "1": 0}
        assert (collective.edge, collective.rooted) == (index == 0, False)
    assert [gpu.peer_wait_ns for gpu in report.gpus] == [4 * 100 * US, 0]
    assert report.rules.clock_offset_ns_by_rank == {"0": 0, "1": 0}


@pytest.mark.parametrize("arrivals_us", [[750], [750, 850], [800, 760, 780]])
def test_accounts_add_up(tmp_path: Path, arrivals_us: list[int]) -> None:
    report = analysis_report(analyze(write_job(tmp_path, arrivals_us)))
    path = report.critical_path
    parts = (path.cpu_ns, path.gpu_ns, path.collective_ns, path.copy_ns, path.idle_ns)
    assert sum(parts) == report.makespan_ns
    assert sum(entry.time_ns for entry in path.top) <= path.gpu_ns + path.collective_ns + path.copy_ns
    assert sum(report.rules.edges_by_type.values()) == report.edges
    for gpu in report.gpus:
        assert gpu.busy_ns + gpu.peer_wait_ns + gpu.idle_ns == report.makespan_ns
        assert sum(gpu.slack_by_cause.values()) == gpu.slack_ns


def test_critical_path_names_the_work_that_decides(tmp_path: Path) -> None:
    # The wait at a step's end returns 5 us after the all-reduce, so its 50 us on the wire decide.
    report = analysis_report(analyze(write_job(tmp_path, [750, 850])))
    assert [(entry.name, entry.time_ns, entry.count) for entry in report.critical_path.top] == [
        (ALL_REDUCE, 4 * 50 * US, 4)
    ]


# --------------------------------------------------------------------------- what is not known is null


def test_few_iterations_give_null_not_a_number(tmp_path: Path) -> None:
    two = analysis_report(analyze([write_trace(tmp_path / "a.json", steps=2)]))
    assert (two.step_time_ns, two.basis) == (None, "window")
    assert (two.cross_iteration_error.median, two.cross_iteration_error.p95) == (None, None)
    assert any("basis: window" in hint for hint in two.hints)
    three = analysis_report(analyze([write_trace(tmp_path / "a.json", steps=3)]))
    assert (three.step_time_ns, three.basis) == (1_000 * US, "iterations")
    assert three.cross_iteration_error.median is None
    four = analysis_report(analyze([write_trace(tmp_path / "a.json", steps=4)]))
    assert four.cross_iteration_error.median == 0.0


UNTRACED = "the untraced step time is not known: emo plan --untraced-step-ms"


def test_an_analysis_alone_allows_recommend_only_and_says_what_else_is_missing(tmp_path: Path) -> None:
    nine = analysis_report(analyze([write_trace(tmp_path / "a.json", steps=9)]))
    assert nine.allowed_mode == "Recommend"
    assert nine.allowed_mode_reasons == [
        UNTRACED,
        "9 iterations: slack on which one can count needs at least 10",
    ]
    analysis = analyze([write_trace(tmp_path / "a.json", steps=10)])
    ten = analysis_report(analysis)
    assert (ten.allowed_mode, ten.allowed_mode_reasons) == ("Recommend", [UNTRACED])
    assert ten.gpus[0].persistent_slack_ns == 100 * US
    failed = analysis_report(replace(analysis, gate_reasons=("something",)))
    assert (failed.allowed_mode, failed.allowed_mode_reasons) == ("Recommend", ["something", UNTRACED])


def test_absent_ranks_and_lost_kernels_give_hints(tmp_path: Path) -> None:
    alone = analysis_report(analyze([write_trace(tmp_path / "a.json", rank=2, world_size=8, arrival_us=750)]))
    assert any(hint.startswith("1 of 8 ranks given") for hint in alone.hints)
    lost = analysis_report(analyze([write_trace(tmp_path / "b.json", lost_kernels=True)]))
    assert any("7 launches have no GPU op" in hint for hint in lost.hints)
    steps = lost.quality.files[0].steps
    assert (steps.total, steps.complete, steps.passed, steps.worst_completeness) == (4, 0, 0, 0.0)
    assert steps.failures[1].index == 1
    assert "no GPU op belongs to it" in steps.failures[1].reasons


def test_step_without_gpu_work_is_never_complete() -> None:
    def step(launches: int, without: int, kernels: int) -> StepQuality:
        return StepQuality(0, 1, launches, without, kernels, 0, 0)

    steps = [step(100, 1, 99), step(100, 2, 98), step(0, 0, 0), step(0, 0, 5)]
    assert [is_complete(s) for s in steps] == [True, False, False, True]


# --------------------------------------------------------------------------- whatif


def test_whatif_is_about_the_step(tmp_path: Path) -> None:
    graph = build_graph(read_traces(write_job(tmp_path, [750, 850])))
    scalings = [Scaling.parse("name:first=3"), Scaling.parse("kind:kernel=1")]
    scale = scale_vector(graph, scalings)
    document = whatif_document(graph, scalings, scale, replay(graph, scale), {"read": 0.25})
    report = WhatIfReport.model_validate_json(as_printed(document))
    # ``first`` (900 us) and ``second`` (200 us) now fill 120 to 1220 us: the all-reduce of rank 1
    # starts 370 us late, and so on by 370 us in every step.
    assert report.collectives[0].start_ns == 1_220 * US
    assert report.collectives[0].delay_ns == 370 * US
    assert [iteration.delay_ns for iteration in report.iterations] == [n * 370 * US for n in range(1, 5)]
    assert (report.step_time_ns, report.baseline_step_time_ns) == (1_370 * US, 1_000 * US)
    assert report.step_ratio == pytest.approx(1.37)
    assert report.makespan_ratio == pytest.approx(1.37)
    assert report.bound_ns == 4 * (900 + 200 + 50) * US
    assert report.scale[0].selector == "name:first"
    assert report.timings_s == {"read": 0.25}


# --------------------------------------------------------------------------- the contract


def all_models() -> list[type[BaseModel]]:
    return list(
        dict.fromkeys(part for r in schema_reference.REPORTS for part in schema_reference.parts_of(r))
    )


@pytest.mark.parametrize("model", all_models(), ids=lambda model: model.__name__)
def test_every_field_is_described_and_quantities_have_units(model: type[BaseModel]) -> None:
    by_suffix = {"_ns": "ns", "_ns_by": "ns", "_ratio": "ratio", "_s": "s", "_mhz": "MHz"}
    assert model.__doc__
    for name, field in model.model_fields.items():
        assert field.description, name
        if schema_reference.models_in(field.annotation):
            continue  # its parts carry the units
        unit = schema_reference.unit_of(field.json_schema_extra)
        for suffix, expected in by_suffix.items():
            if name.endswith(suffix):
                assert unit == expected, name
        if field.annotation in (int, float):
            assert unit or name in ("device", "index", "bytes"), name


def test_models_are_strict_and_closed(tmp_path: Path) -> None:
    good = analysis_document(analyze([write_trace(tmp_path / "a.json")]))
    AnalysisReport.model_validate_json(as_printed(good))
    for change in (
        {"surplus": 1},
        {"makespan_ns": 1.5},
        {"makespan_ns": -1},
        {"schema": "emo.analysis/v2"},
        {"basis": "steps"},
    ):
        with pytest.raises(ValidationError):
            AnalysisReport.model_validate_json(as_printed({**good, **change}))
    incomplete = dict(good)
    del incomplete["gpus"]
    with pytest.raises(ValidationError):
        AnalysisReport.model_validate_json(as_printed(incomplete))


def test_documents_hold_plain_values_only(tmp_path: Path) -> None:
    def check(value: Any) -> None:
        # A numpy scalar would survive json.dumps as a float, or break it as an integer.
        assert not isinstance(value, np.generic)
        if isinstance(value, dict):
            assert all(type(key) is str for key in value)
            for item in value.values():
                check(item)
        elif isinstance(value, list):
            for item in value:
                check(item)
        else:
            assert type(value) in (int, float, str, bool, type(None))

    check(analysis_document(analyze(write_job(tmp_path, [750, 850]))))


def test_path_that_is_no_text_is_printable(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "caf\udce9.json")
    report = analysis_report(analyze([path]))
    assert report.files[0].path.endswith("caf\ufffd.json")


def test_docs_hold_the_schema_reference() -> None:
    text = schema_reference.DOCS.read_text(encoding="utf-8")
    assert schema_reference.replace_in(text) == text, "run: python tests/unit/schema_reference.py"
    assert schema_reference.reference() in text
