"""The built-in workloads, and what emo makes of the traces that they emit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from judge import Case, Judge, wait_errors_ns

from emo.sim.capture import CaptureOptions
from emo.sim.player import play
from emo.sim.program import Program
from emo.sim.workloads import WORKLOADS, serving, slow_input, workload

PERIODIC = [name for name in WORKLOADS if name != "serving"]  # dynamic batches foretell nothing
STEPS = {"pipeline-8": 6, "cpu-bound": 12, "decode": 10}


@pytest.mark.parametrize("name", PERIODIC)
def test_the_engine_understands_the_traces(name: str, tmp_path: Path) -> None:
    judge = Judge.record(workload(name, STEPS.get(name, 8)), tmp_path, seed=1)
    analysis = judge.analysis
    assert analysis.replay_error_ratio == 0.0
    assert analysis.max_start_error_ns <= 1_000
    assert analysis.prediction_errors.pairs > 0
    assert (analysis.prediction_errors.median or 0) <= 0.02
    assert (analysis.prediction_errors.p95 or 0) <= 0.05
    missing, errors = wait_errors_ns(judge)
    assert missing == 0
    if judge.program.ranks > 1:
        assert len(errors) > 0
        # Ranks end up to 6 us apart, which bounds how well clocks can be aligned.
        assert np.abs(errors).max() <= 25_000
        assert np.median(np.abs(errors)) <= 5_000


@pytest.mark.parametrize("sync_records", [False, True])
@pytest.mark.parametrize("name", [name for name in PERIODIC if name != "pipeline-8"])
def test_what_if_foretells_other_clocks(name: str, sync_records: bool, tmp_path: Path) -> None:
    program = workload(name, STEPS.get(name, 8)).clock_bound()
    judge = Judge.record(program, tmp_path, options=CaptureOptions(sync_records=sync_records))
    n = program.ranks
    for clocks in ((0.7,) * n, (0.7, *(1.0,) * (n - 1)), (*(1.0,) * (n - 1), 0.8)):
        assert judge.ask(Case(clocks)).error < 0.05


@pytest.mark.parametrize("cpu", [0.5, 1.5])
@pytest.mark.parametrize("name", ["pipeline", "recommendation", "cpu-bound"])
def test_what_if_foretells_other_cpus(name: str, cpu: float, tmp_path: Path) -> None:
    judge = Judge.record(workload(name, STEPS.get(name, 8)), tmp_path)
    assert judge.ask(Case((1.0,) * judge.program.ranks, cpu=cpu)).error < 0.05


@pytest.mark.parametrize(
    ("name", "sync_records"),
    [
        ("pipeline", True),
        ("pipeline", False),
        ("prefill", False),
        ("cpu-bound", False),
    ],
)
def test_what_if_foretells_the_way_back_from_a_low_clock(
    name: str, sync_records: bool, tmp_path: Path
) -> None:
    program = workload(name, STEPS.get(name, 8)).clock_bound()
    base = Case((0.7,) * program.ranks)
    judge = Judge.record(program, tmp_path, base=base, options=CaptureOptions(sync_records=sync_records))
    assert judge.ask(Case((1.0,) * program.ranks)).error < 0.05


def test_lost_head_kernels_unmatch_nothing(tmp_path: Path) -> None:
    judge = Judge.record(workload("pipeline", 8), tmp_path, options=CaptureOptions(session=2))
    missing, _ = wait_errors_ns(judge)
    assert missing <= 4


def test_serving_is_played_by_arrivals() -> None:
    for load in (0.6, 0.9):
        program = serving(10, seed=2, load=load)
        run = play(program, "A100", 2)
        requests = run.requests
        assert len(requests) == 400 == run.units
        assert (requests["taken_ns"] >= requests["arrival_ns"]).all()
        assert (requests["done_ns"] > requests["taken_ns"]).all()
        assert set(requests["rank"]) == {0, 1}
        assert requests["batch"].max() <= 16


def test_serving_has_a_longer_tail_under_load_and_at_lower_clocks() -> None:
    def p99(load: float, clock: float | None) -> float:
        return float(np.quantile(play(serving(20, 2, load=load), "A100", 2, clocks=clock).latencies_ns, 0.99))

    assert p99(0.9, None) > p99(0.6, None)
    assert p99(0.6, 900.0) > p99(0.6, None)


def test_slack_is_where_the_program_put_it() -> None:
    """One rank waits for its input, the others wait for it: their clocks can fall, the step does not notice."""
    program = slow_input(8, seed=3)
    slow = int(np.argmax(_first_cpu_ns(program)))
    fast = play(program, "A100", 3)
    others = [1410.0 if rank == slow else 1230.0 for rank in range(program.ranks)]
    assert play(program, "A100", 3, clocks=others).step_time_ns() < 1.005 * fast.step_time_ns()
    itself = [1230.0 if rank == slow else 1410.0 for rank in range(program.ranks)]
    assert play(program, "A100", 3, clocks=itself).step_time_ns() > 1.05 * fast.step_time_ns()


def _first_cpu_ns(program: Program) -> list[float]:
    return [float(program.ops["cpu_ns"][first + 1]) for _, first, _ in program.threads.tolist()]


def test_a_balanced_job_has_no_slack() -> None:
    program = workload("balanced", 8)
    for rank in range(program.ranks):
        clocks = [1170.0 if r == rank else 1410.0 for r in range(program.ranks)]
        slowed = play(program, "A100", 0, clocks=clocks).step_time_ns()
        assert slowed > 1.1 * play(program, "A100", 0).step_time_ns()


def test_boundness_differs() -> None:
    def slowdown(name: str) -> float:
        program = workload(name, 6)
        return play(program, "A100", clocks=1005.0).step_time_ns() / play(program, "A100").step_time_ns()

    assert slowdown("cpu-bound") < 1.01
    assert slowdown("decode") < 1.10
    assert slowdown("prefill") > 1.2
    assert slowdown("balanced") > 1.25


def test_a_seed_means_the_same_job_again() -> None:
    for name in WORKLOADS:
        one, again, other = workload(name, 3, 4), workload(name, 3, 4), workload(name, 3, 5)
        assert one.ops.tobytes() == again.ops.tobytes()
        changed = one.ops.tobytes() != other.ops.tobytes()
        assert changed or one.arrivals_ns.tobytes() != other.arrivals_ns.tobytes()
