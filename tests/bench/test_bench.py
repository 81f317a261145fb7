"""The bench itself: honest ratios, reasons for what is skipped, no outcome that fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import bench_peer
import bench_process
from bench_process import BenchError, run_process

import bench

PYTHON = Path(sys.executable)


def script(folder: Path, name: str, text: str) -> tuple[Path, Path]:
    """The command that runs ``text`` as a Python program."""
    path = folder / name
    path.write_text(text)
    return PYTHON, path


def test_ratio_is_the_median_over_rounds_and_more_is_better() -> None:
    row = bench.measured("x", "s", [1.0, 2.0, 1.0], [10.0, 40.0, 90.0], goal=">= 15x", least_ratio=15)
    assert (row.emo, row.peer, row.ratio) == (1.0, 40.0, 20.0)
    assert (row.ratio_low, row.ratio_high) == (10.0, 90.0)
    assert row.goal_met is True


def test_a_goal_on_a_ratio_is_not_judged_without_a_peer() -> None:
    row = bench.measured("x", "s", [1.0], [], goal=">= 15x", least_ratio=15)
    assert row.ratio is None
    assert row.goal_met is None


def test_missed_goals_are_said() -> None:
    assert bench.measured("x", "s", [2.0], [4.0], least_ratio=15).goal_met is False
    assert bench.measured("x", "MB", [241.0], [], most=240).goal_met is False


def test_process_reports_its_time_memory_and_output(tmp_path: Path) -> None:
    large = script(tmp_path, "large.py", "import time; b = b'x' * 90_000_000; time.sleep(0.1); print('{}')")
    # Measured from a small process: a child's peak is never below the one of its parent, here pytest.
    measure = script(
        tmp_path,
        "measure.py",
        f"import sys; sys.path.insert(0, {str(Path(bench.__file__).parent)!r})\n"
        "from bench_process import run_process\n"
        "run = run_process(sys.argv[1:])\n"
        "print(run.wall_s, run.peak_rss_bytes, run.last_json())\n",
    )
    output = subprocess.run([*measure, *large], capture_output=True, text=True, timeout=60, check=True).stdout
    wall_s, peak_rss_bytes, document = output.split()
    assert float(wall_s) >= 0.1
    assert 90e6 <= int(peak_rss_bytes) < 130e6
    assert document == "{}"


def test_failing_process_is_named_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="ended with 3: out of luck"):
        run_process(
            script(tmp_path, "bad.py", "import sys; print('out of luck', file=sys.stderr); sys.exit(3)")
        )
    with pytest.raises(BenchError, match="cannot start"):
        run_process((tmp_path / "absent",))


def test_output_that_is_not_json_is_refused() -> None:
    with pytest.raises(BenchError, match="expected a JSON object"):
        bench_process.ProcessRun(0.0, 0, "warming up\n").last_json()
    with pytest.raises(BenchError, match="expected a JSON object"):
        bench_process.ProcessRun(0.0, 0, "noise\n{}").whole_json()


def test_analyze_and_peer_take_turns(tmp_path: Path) -> None:
    log = tmp_path / "log"
    record = f"import json, sys; open({str(log)!r}, 'a').write(sys.argv[0][-5:-3] + ' ')\n"
    emo = script(tmp_path, "us.py", record + "print(json.dumps({'timings_s': {'replay': 0.002}}))")
    hta = script(
        tmp_path, "hi.py", record + "print(json.dumps({'seconds': 9.0, 'reevaluate_s': [0.5, 0.3, 0.4]}))"
    )
    rows = {row.what: row for row in bench.bench_analyze(emo, hta, "", rounds=2)}
    assert log.read_text().split() == ["us", "hi", "us", "hi", "us", "hi"]
    replay = rows["one what-if replay"]
    assert (replay.emo, replay.peer, replay.goal_met) == (2.0, 400.0, True)
    assert replay.ratio == pytest.approx(200)


def test_without_the_peer_emo_is_measured_and_the_reason_given(tmp_path: Path) -> None:
    emo = script(tmp_path, "emo.py", 'print(\'{"timings_s": {"replay": 0.002}}\')')
    rows = bench.bench_analyze(emo, None, "no ratio: offline", rounds=1)
    assert all(row.emo is not None and row.ratio is None and row.note == "no ratio: offline" for row in rows)


def test_analysis_without_timings_is_a_failure_to_run(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"timings_s\.replay"):
        bench.bench_analyze(script(tmp_path, "emo.py", "print('{}')"), None, "", rounds=1)


def test_peer_that_cannot_be_installed_is_a_reason_not_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pins = tmp_path / "pins.txt"
    folder = tmp_path / "peer"
    with pytest.raises(bench_peer.PeerUnavailableError, match=r"pins\.txt: No such file"):
        bench_peer.prepare_peer(folder, pins)

    pins.write_text("nothing==1\n")
    offline = [str(PYTHON), "-c", "import sys; sys.exit('network is unreachable')"]
    monkeypatch.setattr(bench_peer, "_install", lambda *_: bench_peer._run(offline))
    with pytest.raises(bench_peer.PeerUnavailableError, match="network is unreachable"):
        bench_peer.prepare_peer(folder, pins)


def test_peer_is_installed_once_per_set_of_pins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed: list[str] = []

    def install(folder: Path, python: Path, requirements: Path) -> None:
        installed.append(requirements.read_text())
        python.parent.mkdir(parents=True)
        python.touch()

    monkeypatch.setattr(bench_peer, "_install", install)
    pins = tmp_path / "pins.txt"
    for text in ("a==1", "a==1", "a==2"):
        pins.write_text(text)
        assert bench_peer.prepare_peer(tmp_path / "peer", pins).exists()
    assert installed == ["a==1", "a==2"]


def test_json_output_is_one_document_also_without_samples(tmp_path: Path) -> None:
    program = Path(bench.__file__)
    if not PYTHON.with_name("emo").exists():
        pytest.skip("emo is not installed beside this interpreter")
    done = subprocess.run(
        [PYTHON, program, "--json", "--rounds", "1"],
        env=os.environ | {"EMO_SAMPLES": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    document = json.loads(done.stdout)
    assert document["schema"] == "emo.bench/v1"
    assert [row["what"] for row in document["rows"]][:1] == ["emo --help, whole process"]
    assert any("EMO_SAMPLES" in row["note"] for row in document["rows"])
