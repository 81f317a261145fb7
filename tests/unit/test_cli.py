"""The command line: what it prints, where, and the code that it ends with."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from kineto_files import write_job, write_trace

import emo.analysis
from conftest import sample_files
from emo import cli, terminal
from emo.api.analysis import AnalysisReport, WhatIfReport
from emo.api.environment import DoctorReport, VersionReport
from emo.api.plan import PlanReport

CPU_ONLY = {
    "cupti_profiler_no_kernels.json.gz",
    "distributed_info_not_found.json.gz",
    "rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz",
    "rank_not_found.json.gz",
    "torch2.13_cpu_ondemand_iter.json",
}
"""Sample traces that hold no GPU activity, by the index that comes with them."""

INCOMPLETE = {"h100_2gpu_1s.sqlite"}
"""Cut out of a longer trace: half of its launches have their kernel after the cut."""


class Result(NamedTuple):
    """What one run of the program left."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The JSON on stdout; fails if there is anything else."""
        assert self.out.count("\n") == 1
        assert self.out.endswith("\n")
        return json.loads(self.out, parse_constant=lambda name: pytest.fail(f"{name} in the output"))

    def is_error(self, code: int, *parts: str) -> bool:
        """Exit code, nothing on stdout, one line on stderr that holds the parts."""
        assert (self.code, self.out) == (code, "")
        assert self.err.startswith("emo: error: ")
        assert self.err.count("\n") == 1
        for part in parts:
            assert part in self.err
        return True


Run = Callable[..., Result]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs the program in this process."""

    def call(*arguments: str) -> Result:
        code = cli.main([str(argument) for argument in arguments])
        captured = capfd.readouterr()
        return Result(code, captured.out, captured.err)

    return call


def run_process(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the program as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "emo", *arguments], capture_output=True, text=True, timeout=60, **options
    )


# --------------------------------------------------------------------------- sample traces


@pytest.mark.parametrize("path", sample_files(), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_sample_is_analysed_or_refused_with_advice(run: Run, path: Path) -> None:
    result = run("analyze", str(path), "--json")
    if path.name in CPU_ONLY:
        assert result.is_error(2, str(path), "no GPU activity", "expected kernels", "record again")
        return
    assert (result.code, result.err) == (0, "")
    report = AnalysisReport.model_validate_json(result.out)
    if path.name in INCOMPLETE:
        assert report.quality.complete_steps == 0
        assert [gpu.slack_ns for gpu in report.gpus] == [0] * len(report.gpus)
    assert report.replay_error_ratio <= 0.001
    assert report.max_start_error_ns <= 1_000
    assert report.kernels > 0


def test_ranks_of_one_job_are_analysed_together(run: Run, samples: Path) -> None:
    files = [str(path) for path in sorted(samples.glob("param/worker*"))]
    report = AnalysisReport.model_validate_json(run("analyze", *reversed(files), "--json").out)
    assert len(report.collectives) == 8
    assert [gpu.rank for gpu in report.gpus] == list(range(8))
    assert report.collectives[0].edge


# --------------------------------------------------------------------------- analyze


def test_analyze_prints_one_json_document(run: Run, tmp_path: Path) -> None:
    result = run("analyze", write_trace(tmp_path / "a.json"), "--json")
    assert (result.code, result.err) == (0, "")
    assert result.document["schema"] == "emo.analysis/v1"
    assert result.document["step_time_ns"] == 1_000_000


def test_summary_fits_80_columns_and_is_plain_in_a_pipe(run: Run, tmp_path: Path) -> None:
    result = run("analyze", *write_job(tmp_path, [750, 850]))
    assert result.code == 0
    assert "\033" not in result.out
    assert max(len(line) for line in result.out.splitlines()) <= 80
    assert not any(line.endswith(" ") for line in result.out.splitlines())
    for words in ("2 ranks", "1.000 ms per step over 4 iterations", "Bound by  CPU work", "4 matched"):
        assert words in result.out
    assert "rank 0 waited longest for the others (300.0 us)" in result.out  # 3 x 100 us: the first is edge


def test_summary_is_bold_on_a_terminal_unless_no_color(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    path = write_trace(tmp_path / "a.json")
    for environment, bold in (({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False)):
        with monkeypatch.context() as patch:
            patch.delenv("NO_COLOR", raising=False)
            for name, value in environment.items():
                patch.setenv(name, value)
            screen = Terminal()
            patch.setattr(sys, "stdout", screen)
            assert cli.main(["analyze", path]) == 0
        assert ("\033[1mQuality" in screen.getvalue()) is bold


def test_few_iterations_and_absent_ranks_are_said(run: Run, tmp_path: Path) -> None:
    path = write_trace(tmp_path / "a.json", steps=2, rank=0, world_size=4, arrival_us=750)
    out = " ".join(run("analyze", path).out.split())
    assert "taken as one step" in out
    assert "basis: window" in out
    assert "1 of 4 ranks given" in out
    assert "give the trace files of all ranks together" in out
    assert "Recommend only" in out


def test_names_from_a_trace_cannot_steer_the_terminal(run: Run, tmp_path: Path) -> None:
    path = write_trace(tmp_path / "a.json", second="evil\x1b]0;title\x07\nemo: error: fake")
    out = run("analyze", path).out
    assert "evil ]0;title" in out
    assert "\x1b" not in out
    assert not any(line.startswith("emo: error") for line in out.splitlines())


def test_left_out_rule_changes_the_graph(run: Run, tmp_path: Path) -> None:
    path = write_trace(tmp_path / "a.json")
    whole = run("analyze", path, "--json").document
    part = run("analyze", path, "--json", "--without", "sync-inferred").document
    assert part["rules"]["left_out"] == ["SYNC_INFERRED"]
    assert "SYNC_INFERRED" in whole["rules"]["edges_by_type"]
    assert "SYNC_INFERRED" not in part["rules"]["edges_by_type"]
    assert run("analyze", path, "--queue-depth", "2", "--json").document["rules"]["queue_depth"] == 2


def test_no_complete_step_is_shown_and_refused(run: Run, tmp_path: Path) -> None:
    path = write_trace(tmp_path / "a.json", lost_kernels=True)
    result = run("analyze", path, "--json")
    assert (result.code, result.err) == (0, "")
    assert result.document["quality"]["complete_steps"] == 0
    assert [gpu["slack_ns"] for gpu in result.document["gpus"]] == [0] * len(result.document["gpus"])
    refused = run("whatif", path, "--scale", "gpu=2")
    assert refused.code == 4
    assert refused.err.startswith(f"emo: error: {path}: no step is complete")


# --------------------------------------------------------------------------- output files


def test_report_and_overlay_are_written(run: Run, tmp_path: Path) -> None:
    report, overlay = tmp_path / "report.html", tmp_path / "overlay.json.gz"
    path = write_trace(tmp_path / "a.json")
    result = run("analyze", path, "-o", str(report), "--overlay", str(overlay))
    assert result.code == 0
    assert f"written: {report}" in result.out
    assert report.read_text(encoding="utf-8").lstrip().lower().startswith("<!doctype html>")
    assert overlay.read_bytes()[:2] == b"\x1f\x8b"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.json", "overlay.json.gz", "report.html"]


@pytest.mark.parametrize("option", ["-o", "--overlay"])
def test_output_without_directory_is_refused_before_any_work(run: Run, tmp_path: Path, option: str) -> None:
    # The trace does not exist either: the complaint about the output comes first.
    result = run("analyze", "missing.json", option, str(tmp_path / "no" / "out"))
    assert result.is_error(2, "no directory", str(tmp_path / "no"), "create it first")


def test_output_never_replaces_a_trace_a_directory_or_the_other_output(run: Run, tmp_path: Path) -> None:
    path = write_trace(tmp_path / "a.json")
    before = Path(path).read_bytes()
    assert run("analyze", path, "-o", path).is_error(2, "would overwrite the trace")
    assert Path(path).read_bytes() == before
    assert run("analyze", path, "-o", str(tmp_path)).is_error(2, "is a directory")
    same = str(tmp_path / "x")
    assert run("analyze", path, "-o", same, "--overlay", same).is_error(
        2, "would overwrite the file of --output"
    )


def test_failed_run_leaves_the_old_report(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = tmp_path / "report.html"
    report.write_text("old")
    assert run("analyze", str(tmp_path / "missing.json"), "-o", str(report)).code == 2
    assert report.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


# --------------------------------------------------------------------------- whatif


def test_whatif_answers_what_the_timeline_says(run: Run, tmp_path: Path) -> None:
    files = write_job(tmp_path, [750, 850])
    nothing = run("whatif", *files, "--scale", "gpu=1", "--json").document
    assert nothing["makespan_ns"] == nothing["baseline_ns"] == 4_000_000
    assert nothing["step_ratio"] == 1.0
    assert [c["delay_ns"] for c in nothing["collectives"]] == [0, 0, 0, 0]

    # Half the wire time (50 us on each of 4 collectives) is 25 us less in every step.
    faster = run("whatif", *files, "--scale", "kind:collective=0.5", "--json")
    report = WhatIfReport.model_validate_json(faster.out)
    assert report.makespan_ns == 3_900_000
    assert report.step_time_ns == 975_000
    assert [c.delay_ns for c in report.collectives] == [0, -25_000, -50_000, -75_000]
    assert [i.delay_ns for i in report.iterations] == [-25_000, -50_000, -75_000, -100_000]


def test_whatif_summary_names_the_change(run: Run, tmp_path: Path) -> None:
    out = run("whatif", *write_job(tmp_path, [750, 850]), "--scale", "kind:collective=0.5").out
    assert "What if kind:collective x 0.5:" in out
    assert "1.000 ms -> 975.0 us (-2.50 %)" in out


@pytest.mark.parametrize(
    ("scale", "parts"),
    [
        ("gpu", ("expected SELECTOR=FACTOR",)),
        ("gpu=fast", ("'fast' is not a number",)),
        ("gpu=nan", ("must be between",)),
        ("gpu=-1", ("must be between",)),
        ("gpux=2", ("unknown selector", "rank:R")),
        ("rank:9=2", ("matches nothing", "it has ranks [0, 1]")),
        ("name:(=2", ("not a regular expression",)),
        ("name:zzz=2", ("matches nothing",)),
        ("kind:foo=2", ("unknown kind", "kernel")),
        ("stream:x=2", ("not a whole number",)),
    ],
)
def test_bad_scale_is_told(run: Run, tmp_path: Path, scale: str, parts: tuple[str, ...]) -> None:
    assert run("whatif", *write_job(tmp_path, [750, 850]), "--scale", scale).is_error(2, "--scale", *parts)


# --------------------------------------------------------------------------- plan


def test_plan_in_words_as_json_and_in_files(run: Run, tmp_path: Path) -> None:
    files = write_job(tmp_path, [750, 850], steps=10)
    report, plan = tmp_path / "report.html", tmp_path / "plan.json"
    options = ("--gpu", "A100", "--max-slowdown", "5%", "-o", str(report), "--plan", str(plan))
    result = run("plan", *files, *options, "--json")
    assert (result.code, result.err) == (0, "")
    document = PlanReport.model_validate_json(result.out)
    assert document.allowed_mode == "Recommend"
    assert document.target_slowdown_ratio == 0.05
    assert plan.read_text() == result.out
    assert '<section id="plan"' in report.read_text(encoding="utf-8")

    words = run("plan", *files, *options)
    assert words.code == 0
    assert f"written: {plan}" in words.out
    assert max(len(line) for line in words.out.splitlines() if not line.startswith("written")) <= 80


def test_plan_refuses_what_it_cannot_use(run: Run, tmp_path: Path) -> None:
    path = write_trace(tmp_path / "a.json")
    assert run("plan", path).is_error(2, "--gpu")
    assert run("plan", path, "--gpu", "Abacus").is_error(2, "Abacus", "A100")
    assert run("plan", path, "--gpu", "A100", "--max-slowdown", "much").is_error(2, "--max-slowdown")
    assert run("plan", path, "--gpu", "A100", "--plan", path).is_error(2, "would overwrite the trace")
    lost = write_trace(tmp_path / "b.json", lost_kernels=True)
    assert run("plan", lost, "--gpu", "A100").is_error(4, "no step is complete")


# --------------------------------------------------------------------------- version, doctor


def test_version(run: Run) -> None:
    report = VersionReport.model_validate_json(run("version", "--json").out)
    assert report.python.startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")
    assert report.native is not None
    assert run("version").out.startswith(f"emo       {report.emo}\n")


def test_doctor_ends_well_with_and_without_json(run: Run) -> None:
    result = run("doctor", "--json")
    assert (result.code, result.err) == (0, "")
    report = DoctorReport.model_validate_json(result.out)
    assert {"core", "gpu"} <= {check.group for check in report.checks}
    assert all(check.advice for check in report.checks if check.status != "ok")
    text = run("doctor")
    assert text.code == 0
    assert all(check.name in text.out for check in report.checks)


# --------------------------------------------------------------------------- usage and failures


@pytest.mark.parametrize(
    "arguments",
    [
        ["bogus"],
        ["analyze"],
        ["analyze", "--foo", "x"],
        ["analyze", "x", "--queue-depth", "0"],
        ["analyze", "x", "--queue-depth", "many"],
        ["analyze", "x", "--without", "gravity"],
        ["whatif", "x"],
        ["version", "surplus"],
    ],
)
def test_bad_usage_is_one_line_and_code_2(run: Run, arguments: list[str]) -> None:
    assert run(*arguments).is_error(2)


def test_trace_given_twice_is_refused(run: Run, tmp_path: Path) -> None:
    path = write_trace(tmp_path / "a.json", rank=0, world_size=2)
    assert run("analyze", path, path).is_error(2, "rank 0 is given more than once")


@pytest.mark.parametrize("content", [b"", b"\x89PNG\r\n\x1a\n", b"{}", b"[1, 2", b"\x1f\x8b\x08"])
def test_file_that_is_no_trace_is_named(run: Run, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a file\nwith a break.json"
    path.write_bytes(content)
    assert run("analyze", str(path)).is_error(2, "a file with a break.json", "expected")


def test_without_command_the_help_is_shown(run: Run) -> None:
    result = run()
    assert result.code == 0
    assert "analyze" in result.out
    assert result.out == run("--help").out


@pytest.mark.parametrize("command", ["analyze", "whatif", "plan", "version", "doctor"])
def test_help_of_every_command(run: Run, command: str) -> None:
    result = run(command, "--help")
    assert result.code == 0
    assert f"Usage: emo {command}" in result.out
    assert max(len(line) for line in result.out.splitlines()) <= 80


def test_own_failure_is_one_line(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("of\nsome kind")

    monkeypatch.setattr(emo.analysis, "analyze", fail)
    monkeypatch.delenv("EMO_DEBUG", raising=False)
    assert run("analyze", "x").is_error(1, "internal: ValueError: of some kind; please report", "EMO_DEBUG=1")
    monkeypatch.setenv("EMO_DEBUG", "1")
    result = run("analyze", "x")
    assert result.code == 1
    assert "Traceback" in result.err
    assert result.err.splitlines()[-1].startswith("emo: error: internal: ValueError")


@pytest.mark.parametrize(
    ("error", "code", "words"), [(KeyboardInterrupt, 130, ""), (MemoryError, 1, "out of memory")]
)
def test_interruption_and_exhaustion_end_quietly(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: type[BaseException], code: int, words: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(emo.analysis, "analyze", fail)
    result = run("analyze", "x")
    assert result.code == code
    assert "Traceback" not in result.err
    assert words in result.err


def test_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "a.json", steps=200)  # more output than a pipe holds
    process = subprocess.Popen(
        [sys.executable, "-m", "emo", "analyze", path, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(timeout=60) == 141


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_full_disk_is_told(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "emo", "version"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert (result.returncode, result.stderr) == (1, "emo: error: standard output: No space left on device\n")


# --------------------------------------------------------------------------- start-up


@pytest.mark.parametrize(
    ("arguments", "unwanted"),
    [
        (["--help"], {"numpy", "pydantic", "rich", "emo.graph.model"}),
        (["analyze", "{trace}", "--json"], {"pydantic", "rich", "scipy", "networkx", "ortools"}),
        (["whatif", "{trace}", "--scale", "gpu=2", "--json"], {"pydantic", "rich", "scipy", "networkx"}),
    ],
)
def test_commands_import_only_what_they_need(
    tmp_path: Path, arguments: list[str], unwanted: set[str]
) -> None:
    trace = write_trace(tmp_path / "a.json")
    program = (
        "import sys; from emo.cli import main; code = main(sys.argv[1:]); "
        "print('\\n' + ' '.join(sys.modules)); sys.exit(code)"
    )
    command = [sys.executable, "-c", program, *(word.format(trace=trace) for word in arguments)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert not unwanted & set(result.stdout.splitlines()[-1].split())


# --------------------------------------------------------------------------- progress


class _Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_appears_on_a_terminal_once_work_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = _Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(terminal, "QUIET_S", 0.01)
    monkeypatch.setenv("TERM", "xterm")
    with terminal.StageProgress(2) as progress:
        progress("reading [bold]a.json")
        deadline = time.monotonic() + 20
        while "reading [bold]a.json" not in screen.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
    assert "reading [bold]a.json" in screen.getvalue()


def test_no_progress_for_short_work_or_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for screen, quiet_s in ((_Screen(), 60.0), (io.StringIO(), 0.0)):
        monkeypatch.setattr(sys, "stderr", screen)
        monkeypatch.setattr(terminal, "QUIET_S", quiet_s)
        with terminal.StageProgress(1) as progress:
            progress("reading")
            time.sleep(0.05)
        assert screen.getvalue() == ""
