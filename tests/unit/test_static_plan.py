"""``emo plan``: the clocks that it chooses, what it promises, and what it refuses to promise."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from builder import Run
from hypothesis import given
from hypothesis import strategies as st

from emo.analysis import analyze_traces
from emo.api.plan import PlanReport
from emo.errors import InfeasibleError, InputError, QualityGateError
from emo.graph.build import build_graph
from emo.graph.model import INFERRED_TYPES, EdgeType, Graph
from emo.graph.replay import replay
from emo.graph.steps import recorded_step_time, step_ratio
from emo.graph.tracing import ASSUMED_TRACING_FACTOR
from emo.models.catalogue import CATALOGUE, GpuModel, find_gpu
from emo.models.priors import CLASSES, IDLE, WAITING, KernelClass, TimeLevel
from emo.plan import command, static
from emo.plan.command import PlanResult, parse_ratio, run
from emo.plan.evaluate import Evaluator, PaceMeter, ScaledGraph, node_classes
from emo.plan.static import Choice, candidate_clocks, frontier, search
from emo.plan.text import plan_text
from emo.plan.untraced import cpu_scale
from emo.trace.model import Trace

V100 = find_gpu("V100")

# --------------------------------------------------------------------------- recorded runs, by hand


def one_gpu(*, gpu_us: int, step_us: int = 1_000, steps: int = 5, name: str = "sgemm") -> Run:
    """Steps in each of which one kernel of ``gpu_us`` is launched and waited for; the rest is CPU."""
    job = Run()
    rank = job.rank(0)
    for step in range(steps):
        at = step * step_us
        rank.mark(f"ProfilerStep#{step}", at, at + step_us)
        rank.launch(f"K{step}", at=at, start=at + 10, end=at + 10 + gpu_us, name=name)
        rank.wait_for("cudaDeviceSynchronize", at + 8, at + 15 + gpu_us, label=f"sync {step}")
        rank.work(at + 20 + gpu_us, at + step_us)
    return job


def two_ranks(*, early_us: int = 100, late_us: int = 400, steps: int = 4) -> Run:
    """Data parallel: rank 0 computes for ``early_us``, rank 1 for ``late_us``, then both meet."""
    job = Run()
    step_us = late_us + 60
    for number, compute_us in ((0, early_us), (1, late_us)):
        rank = job.rank(number)
        for step in range(steps):
            at = step * step_us
            rank.mark(f"ProfilerStep#{step}", at, at + step_us)
            rank.launch(f"K{number}.{step}", at=at, start=at + 10, end=at + 10 + compute_us, name="sgemm")
            rank.collective(
                f"R{number}.{step}",
                at=at + 6,
                start=at + 12 + compute_us,
                end=at + 32 + late_us,
                stream=7,
                group=(0, 1),
                sequence=step,
            )
            rank.wait_for("cudaDeviceSynchronize", at + 14, at + 36 + late_us, label=f"sync {number}.{step}")
    return job


def evaluator(job: Run, clocks_mhz: Sequence[int] = (1530, 1200, 900, 765), scale: float = 1.0) -> Evaluator:
    return Evaluator(build_graph(job.traces()), None, V100, clocks_mhz, scale)


def planned(
    monkeypatch: pytest.MonkeyPatch,
    traces: list[Trace],
    *,
    max_slowdown: float = 0.05,
    gpu: str = "V100",
    untraced_step_ms: float | None = None,
) -> PlanResult:
    monkeypatch.setattr(command, "read_traces", lambda paths, progress: traces)
    result = run(["made by a test"], gpu=gpu, max_slowdown=max_slowdown, untraced_step_ms=untraced_step_ms)
    PlanReport.model_validate(result.document)
    assert json.loads(json.dumps(result.document, allow_nan=False)) == result.document
    return result


def clocks(result: PlanResult) -> list[int]:
    return [gpu["clock_mhz"] for gpu in result.document["gpus"]]


# --------------------------------------------------------------------------- candidates


@pytest.mark.parametrize("model", CATALOGUE, ids=lambda model: model.name)
def test_candidates_go_from_the_highest_clock_to_half_of_it(model: GpuModel) -> None:
    found = candidate_clocks(model)
    assert found[0] == model.sm_clock_max_mhz
    assert model.sm_clock_max_mhz / 2 <= found[-1] <= model.sm_clock_max_mhz * 0.51
    assert 2 <= len(found) <= static.MAX_CANDIDATES
    assert found == sorted(set(found), reverse=True)


def test_candidates_are_settings_that_the_gpu_has() -> None:
    # nvidia-smi lists 1530, 1522, 1515, 1507, ...: steps of 7.5 MHz, rounded down.
    settings = {int(1530 - 7.5 * step) for step in range(200)}
    assert set(candidate_clocks(V100)) <= settings
    assert all((1410 - clock) % 15 == 0 for clock in candidate_clocks(find_gpu("A100")))


# --------------------------------------------------------------------------- search


def random_problem(
    seed: int, gpus: int, clocks: int
) -> tuple[Callable[[Choice], float], Callable[[Choice], float]]:
    """(cost, slowdown) over choices: costs with a least value, a critical path over random pairs of GPUs."""
    rng = random.Random(seed)
    best = [rng.uniform(0, clocks) for _ in range(gpus)]
    weight = [rng.uniform(0.5, 2) for _ in range(gpus)]
    paths = [[rng.uniform(0, 1) * rng.choice([0, 1]) for _ in range(gpus)] for _ in range(3)]

    def slowdown(choice: Choice) -> float:
        return max(sum(p * i for p, i in zip(path, choice, strict=True)) for path in paths)

    def cost(choice: Choice) -> float:
        own = sum(w * (i - b) ** 2 for w, i, b in zip(weight, choice, best, strict=True))
        return 100 + own + 0.3 * slowdown(choice)

    return cost, slowdown


def brute_force(slowest: Choice, cost: Callable[[Choice], float], allowed: Callable[[Choice], bool]) -> float:
    return min(cost(c) for c in itertools.product(*(range(i + 1) for i in slowest)) if allowed(c))


@given(seed=st.integers(0, 10**6), gpus=st.integers(1, 3), clocks=st.integers(2, 4), target=st.floats(0, 4))
def test_few_combinations_are_searched_to_the_optimum(
    seed: int, gpus: int, clocks: int, target: float
) -> None:
    cost, slowdown = random_problem(seed, gpus, clocks)
    slowest = (clocks - 1,) * gpus
    found = search(slowest, cost, lambda choice: slowdown(choice) <= target)
    assert found.exact
    assert slowdown(found.choice) <= target
    assert cost(found.choice) == brute_force(slowest, cost, lambda choice: slowdown(choice) <= target)


@given(seed=st.integers(0, 10**6), gpus=st.integers(2, 3), target=st.floats(0, 4))
def test_descent_keeps_the_target_and_never_loses_to_full_clock(seed: int, gpus: int, target: float) -> None:
    cost, slowdown = random_problem(seed, gpus, 9)
    slowest = (8,) * gpus
    found = search(slowest, cost, lambda choice: slowdown(choice) <= target)
    assert not found.exact
    assert slowdown(found.choice) <= target
    assert brute_force(slowest, cost, lambda choice: slowdown(choice) <= target) <= cost(found.choice)
    assert cost(found.choice) <= cost((0,) * gpus)
    same = [(index,) * gpus for index in range(9) if slowdown((index,) * gpus) <= target]
    assert cost(found.choice) <= min(map(cost, same)), "nor to one clock everywhere"


@given(seed=st.integers(0, 10**6))
def test_descent_finds_the_optimum_where_gpus_do_not_depend_on_each_other(seed: int) -> None:
    rng = random.Random(seed)
    table = [[rng.random() for _ in range(9)] for _ in range(3)]

    def cost(choice: Choice) -> float:
        return 1 + sum(row[index] for row, index in zip(table, choice, strict=True))

    found = search((8, 8, 8), cost, lambda choice: True)
    assert cost(found.choice) == pytest.approx(1 + sum(map(min, table)))


def test_search_is_the_same_every_time_and_ties_go_to_the_faster_clock() -> None:
    found = [search((8, 8, 8), lambda choice: 1.0, lambda choice: True).choice for _ in range(2)]
    assert found == [(0, 0, 0), (0, 0, 0)]


def test_no_plan_where_not_even_full_clock_is_allowed() -> None:
    with pytest.raises(InfeasibleError, match="full clock"):
        search((3, 3), lambda choice: 1.0, lambda choice: False)


@given(seed=st.integers(0, 10**6), gpus=st.integers(1, 3), clocks=st.integers(3, 9), target=st.floats(0, 5))
def test_rungs_are_nested_and_each_slower_one_is_cheaper(
    seed: int, gpus: int, clocks: int, target: float
) -> None:
    cost, slowdown = random_problem(seed, gpus, clocks)
    rungs, exact = frontier(
        (clocks - 1,) * gpus, target, cost, lambda choice, share: slowdown(choice) <= share
    )
    assert rungs[0] == (0,) * gpus
    assert 1 <= len(rungs) <= static.MAX_RUNGS
    for faster, slower in itertools.pairwise(rungs):
        assert all(a <= b for a, b in zip(faster, slower, strict=True))
        assert cost(slower) < cost(faster)
        assert slowdown(faster) <= slowdown(slower) <= target
    if exact:
        assert cost(rungs[-1]) <= brute_force(
            (clocks - 1,) * gpus, cost, lambda choice: slowdown(choice) <= target
        ) * (1 + 1e-9)


# --------------------------------------------------------------------------- slowdown under the replay


def test_gpu_bound_work_slows_by_its_share_of_the_step() -> None:
    # 900 of 1,000 us are a kernel, which at worst slows as 1 / clock.
    ask = evaluator(one_gpu(gpu_us=900))
    pessimistic = next(variant for variant in ask.variants if variant.level == TimeLevel.LOW)
    assert ask.slowdown(pessimistic, (1,)) == pytest.approx(0.9 * (1530 / 1200 - 1), abs=1e-3)
    assert ask.slowdown(pessimistic, (3,)) == pytest.approx(0.9, abs=2e-3)
    # Likely: a tenth of a GEMM's time does not follow the clock.
    assert ask.slowdown(ask.nominal, (1,)) == pytest.approx(0.9 * 0.9 * (1530 / 1200 - 1), abs=1e-3)
    assert ask.slowdown_interval((0,)).high == 0.0


def test_cpu_work_never_slows_with_the_gpus_clock() -> None:
    ask = evaluator(one_gpu(gpu_us=0, name="sgemm"))
    assert ask.slowdown_interval((3,)).high == pytest.approx(0.0, abs=1e-4)


def test_the_profilers_cost_is_taken_out_of_the_cpu_in_half_of_the_variants() -> None:
    ask = evaluator(one_gpu(gpu_us=500), scale=1 / ASSUMED_TRACING_FACTOR)
    by_scale = {v.cpu_scale: ask.slowdown(v, (3,)) for v in ask.variants if v.level == TimeLevel.LOW}
    assert by_scale[1.0] == pytest.approx(0.5, abs=1e-3)
    # 500 us of GPU, 15 us of latency, 485 us of CPU / 1.5: the GPU is a larger part of the step.
    assert by_scale[1 / 1.5] == pytest.approx(500 / (515 + 485 / 1.5), abs=5e-3)


def test_a_collective_is_as_slow_as_its_slowest_participant() -> None:
    graph = build_graph(two_ranks().traces())
    job = ScaledGraph(graph, node_classes(graph))
    factors = np.ones((2, CLASSES))
    factors[1, KernelClass.COLLECTIVE] = 2.0
    scale = job.scale(factors, 1.0)
    assert len(graph.joints) == 4
    assert (scale[-4:] == 2.0).all()
    assert (
        scale[graph.node_owner(graph.joints[0].nodes[0])] != scale[graph.node_owner(graph.joints[0].nodes[1])]
    )


@given(
    gpu=st.floats(1, 3),
    cpu=st.floats(0.5, 1.5),
    gpu_us=st.integers(50, 900),
)
def test_pace_is_the_engines_step_time(gpu: float, cpu: float, gpu_us: int) -> None:
    graph = build_graph(one_gpu(gpu_us=gpu_us).traces())
    job = ScaledGraph(graph, node_classes(graph))
    time_ns = job.replay(np.full((1, CLASSES), gpu), cpu)
    reference = job.meter.paces(graph.time_ns)
    assert PaceMeter.ratio(job.meter.paces(time_ns), reference) == pytest.approx(step_ratio(graph, time_ns))


def test_pace_is_the_engines_step_time_across_ranks() -> None:
    graph = build_graph(two_ranks().traces())
    job = ScaledGraph(graph, node_classes(graph))
    time_ns = job.replay(np.array([np.full(CLASSES, 3.0), np.full(CLASSES, 1.3)]), 0.8)
    reference = job.meter.paces(graph.time_ns)
    assert PaceMeter.ratio(job.meter.paces(time_ns), reference) == pytest.approx(step_ratio(graph, time_ns))


def opening_wait() -> Run:
    """No iterations: rank 0 is through with its kernel early and waits for rank 1 in the first collective."""
    job = Run()
    for number, start in ((0, 110), (1, 500)):
        rank = job.rank(number)
        rank.launch(f"A{number}", at=0, start=10, end=100, name="sgemm")
        rank.collective(f"R{number}", at=start - 10, start=start, end=520, stream=7, group=(0, 1), sequence=0)
        rank.launch(f"B{number}", at=start, start=522, end=600, name="sgemm")
        rank.wait_for("cudaDeviceSynchronize", 510, 605, label=f"sync {number}")
    return job


def test_waits_that_come_from_the_opening_of_the_capture_are_not_used() -> None:
    graph = build_graph(opening_wait().traces())
    assert [joint.edge for joint in graph.joints] == [True]
    job = ScaledGraph(graph, node_classes(graph))
    factors = np.ones((2, CLASSES))
    factors[0, KernelClass.GEMM] = 2.0
    time_ns = job.replay(factors, 1.0)
    slowdown = PaceMeter.ratio(job.meter.paces(time_ns), job.meter.paces(graph.time_ns)) - 1.0
    # From its first op to its last rank 0 is active for 590 - 390 us. It arrives 80 us later (10 us of
    # the 90 were the launch's), and its last kernel takes 78 us more: both count in full.
    assert slowdown == pytest.approx((80 + 78) / 200, abs=1e-3)
    # The makespan alone would hide the first in the wait.
    assert time_ns.max() / graph.makespan_ns - 1 == pytest.approx(78 / 605, abs=0.01)


# --------------------------------------------------------------------------- energy


def test_time_account_is_that_of_the_slack_report() -> None:
    analysis = analyze_traces(two_ranks().traces())
    graph = analysis.graph
    account = ScaledGraph(graph, node_classes(graph)).time.of(graph.time_ns)
    for gpu in analysis.slack.gpus:
        row = account[gpu.gpu]
        assert row[:CLASSES].sum() == pytest.approx(gpu.busy_ns)
        assert row[WAITING] == pytest.approx(gpu.peer_wait_ns)
        assert row[IDLE] == pytest.approx(gpu.idle_ns)
        assert row.sum() == pytest.approx(graph.makespan_ns)
    assert account[0, WAITING] > account[1, WAITING]
    assert account[1, KernelClass.GEMM] == 4 * 400_000


def test_overlapping_streams_do_not_count_twice() -> None:
    job = Run()
    rank = job.rank(0)
    rank.launch("A", at=0, start=10, end=110, stream=7, name="sgemm")
    rank.launch("B", at=5, start=20, end=120, stream=8, name="softmax")
    rank.wait_for("cudaDeviceSynchronize", 12, 130, label="sync")
    graph = build_graph(job.traces())
    account = ScaledGraph(graph, node_classes(graph)).time.of(graph.time_ns)[0]
    assert account[:CLASSES].sum() == pytest.approx(110_000)
    assert account[KernelClass.GEMM] == pytest.approx(account[KernelClass.REDUCTION])
    assert account[IDLE] == pytest.approx(20_000)


def test_energy_is_power_times_time_in_every_state() -> None:
    ask = evaluator(one_gpu(gpu_us=900))
    power = ask.powers[0].power_w(V100.power_limit_w, 1.0)
    account = ask.account(ask.nominal, (0,))[0]
    assert ask.energy_j((0,)) == pytest.approx(float(power @ account) / 1e9)
    busy_j = 5 * 900e-6 * 0.9 * V100.power_limit_w
    assert busy_j < ask.energy_j((0,)) < busy_j + 5 * 100e-6 * 2 * 45.0
    assert ask.saving_interval((0,)).high == 0.0
    saving = ask.saving_interval((1,))
    assert saving.low < saving.value < saving.high


# --------------------------------------------------------------------------- plans


def test_gpu_bound_work_gets_a_clock_that_is_sure_to_keep_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    result = planned(monkeypatch, one_gpu(gpu_us=980).traces())
    assert 1530 / 1.06 < clocks(result)[0] < 1530
    slowdown = result.document["predicted_slowdown_ratio"]
    assert 0 <= slowdown["low"] <= slowdown["value"] <= slowdown["high"] <= 0.05
    assert 0 < result.document["predicted_energy_saving_ratio"]["value"] < 0.10
    assert result.document["allowed_mode"] == "Recommend"


def test_cpu_bound_work_goes_to_the_clock_of_least_energy(monkeypatch: pytest.MonkeyPatch) -> None:
    result = planned(monkeypatch, one_gpu(gpu_us=20).traces())
    chosen = clocks(result)[0]
    assert chosen <= 1530 * 0.75
    document = result.document
    graph = build_graph(one_gpu(gpu_us=20).traces())
    ask = Evaluator(graph, None, V100, document["solver"]["candidates_mhz"], 1 / ASSUMED_TRACING_FACTOR)
    energies = [
        ask.energy_j((i,)) for i in range(len(document["solver"]["candidates_mhz"])) if ask.within((i,), 0.05)
    ]
    assert document["lb_static_j"] == document["energy_j"] == pytest.approx(min(energies))
    assert document["gap_ratio"] == 0.0 and document["solver"]["exact"]


@pytest.mark.parametrize(
    "job", [one_gpu(gpu_us=980), one_gpu(gpu_us=20), two_ranks()], ids=["gpu", "cpu", "two"]
)
def test_a_target_of_zero_loses_nothing(monkeypatch: pytest.MonkeyPatch, job: Run) -> None:
    result = planned(monkeypatch, job.traces(), max_slowdown=0.0)
    assert result.document["predicted_slowdown_ratio"]["high"] <= 0.0
    assert result.document["predicted_energy_saving_ratio"]["value"] >= 0.0


def test_no_saving_is_said_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    result = planned(monkeypatch, one_gpu(gpu_us=980).traces(), max_slowdown=0.001)
    assert clocks(result) == [1530]
    assert result.document["predicted_energy_saving_ratio"] == {"value": 0.0, "low": 0.0, "high": 0.0}
    assert len(result.document["rungs"]) == 1
    assert "no saving within the target" in result.text


def test_the_rank_that_waits_is_slowed_and_the_one_that_is_waited_for_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = planned(monkeypatch, two_ranks().traces())
    early, late = clocks(result)
    assert early < 0.8 * 1530
    assert late > 1530 / 1.06
    assert result.document["predicted_slowdown_ratio"]["high"] <= 0.05
    assert result.document["lb_static_j"] is None
    assert "not computed" in result.document["bounds_reason"]["lb_static_j"]


@pytest.mark.parametrize("target", [0.0, 0.01, 0.03, 0.05, 0.2, 0.6])
def test_descent_on_a_real_graph_comes_close_to_the_optimum(
    monkeypatch: pytest.MonkeyPatch, target: float
) -> None:
    ask = evaluator(two_ranks(), [1530, 1500, 1455, 1400, 1200, 1000, 900, 765])
    best = brute_force((7, 7), ask.energy_j, lambda choice: ask.within(choice, target))
    monkeypatch.setattr(static, "EXHAUSTIVE_LIMIT", 0)
    found = search((7, 7), ask.energy_j, lambda choice: ask.within(choice, target))
    assert not found.exact
    assert ask.energy_j(found.choice) <= best * 1.01


def test_a_looser_target_never_costs_more(monkeypatch: pytest.MonkeyPatch) -> None:
    energies = [
        planned(monkeypatch, two_ranks().traces(), max_slowdown=target).document["energy_j"]
        for target in (0.0, 0.02, 0.05, 0.1)
    ]
    assert energies == sorted(energies, reverse=True)


def waits_without_record() -> Run:
    """Two streams with waits for which no record says what they wait for."""
    job = Run()
    rank = job.rank(0)
    for step in range(4):
        at = step * 1_000
        rank.mark(f"ProfilerStep#{step}", at, at + 1_000)
        rank.launch(f"A{step}", at=at, start=at + 10, end=at + 500, stream=7, name="sgemm")
        rank.wait(at + 20)
        rank.launch(f"B{step}", at=at + 25, start=at + 503, end=at + 900, stream=8, name="sgemm")
        rank.wait_for("cudaDeviceSynchronize", at + 40, at + 905, label=f"sync {step}")
    return job


def test_the_target_is_held_without_the_inferred_edges_too(monkeypatch: pytest.MonkeyPatch) -> None:
    traces = waits_without_record().traces()
    edge_types = set(build_graph(traces).edge_type.tolist())
    assert edge_types & INFERRED_TYPES == {EdgeType.EVENT_INFERRED}
    names = planned(monkeypatch, traces).document["solver"]["variants"]
    assert len(names) == len(set(names)) == 12
    assert sum("inferred edges dropped" in name for name in names) == 6
    assert len(planned(monkeypatch, one_gpu(gpu_us=500).traces()).document["solver"]["variants"]) == 6


# --------------------------------------------------------------------------- the untraced step time


def _job(graph: Graph) -> ScaledGraph:
    return ScaledGraph(graph, node_classes(graph))


@pytest.mark.parametrize("untraced_ms", [0.95, 0.8, 0.6])
def test_the_cpu_is_scaled_until_the_replay_takes_the_untraced_time(untraced_ms: float) -> None:
    graph = build_graph(one_gpu(gpu_us=500).traces())
    scale = cpu_scale(_job(graph), untraced_ms)
    factors = np.ones(graph.scale_size)
    factors[1 : 1 + len(graph.threads)] = scale
    traced_ns = recorded_step_time(graph).recorded_ns
    assert traced_ns == 1e6
    assert step_ratio(graph, replay(graph, factors).time_ns) == pytest.approx(untraced_ms, abs=1e-4)
    assert 0 < scale < 1


def test_an_untraced_time_within_noise_of_the_traced_one_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = build_graph(one_gpu(gpu_us=500).traces())
    assert cpu_scale(_job(graph), 1.005) == cpu_scale(_job(graph), 1.0) == 1.0
    document = planned(monkeypatch, one_gpu(gpu_us=500).traces(), untraced_step_ms=1.0).document
    assert len(document["solver"]["variants"]) == 3
    assert document["untraced_step_time_ns"] == 1_000_000
    assert not any("untraced" in reason for reason in document["allowed_mode_reasons"])


def test_without_an_untraced_time_a_factor_is_assumed_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    document = planned(monkeypatch, one_gpu(gpu_us=500).traces()).document
    assert document["cpu_scale"] == pytest.approx(1 / 1.5)
    assert document["untraced_step_time_ns"] is None
    assert any("no untraced step time" in reason for reason in document["allowed_mode_reasons"])


@pytest.mark.parametrize(
    ("untraced_ms", "why"),
    [
        (1.2, "longer than the traced step, 1 ms"),
        (0.3, r"shorter than the trace allows.*take 0\.5\d* ms"),
        (0.0, "above 0"),
        (-1.0, "above 0"),
        (float("nan"), "above 0"),
        (float("inf"), "above 0"),
    ],
)
def test_an_untraced_time_that_cannot_be_is_refused(untraced_ms: float, why: str) -> None:
    with pytest.raises(InputError, match=why):
        cpu_scale(_job(build_graph(one_gpu(gpu_us=500).traces())), untraced_ms)


def test_an_untraced_time_needs_iterations_to_compare_with() -> None:
    with pytest.raises(InputError, match="no iterations; expected at least 3"):
        cpu_scale(_job(build_graph(opening_wait().traces())), 0.5)


# --------------------------------------------------------------------------- the document and its words


def test_the_document_is_consistent(monkeypatch: pytest.MonkeyPatch) -> None:
    document = planned(monkeypatch, two_ranks().traces()).document
    assert document["schema"] == "emo.plan/v1"
    last = document["rungs"][-1]
    assert last["clocks_mhz"] == [gpu["clock_mhz"] for gpu in document["gpus"]]
    for key in ("predicted_slowdown_ratio", "predicted_energy_saving_ratio", "energy_j"):
        assert last[key] == document[key]
    saving = 1 - document["energy_j"] / document["reference_energy_j"]
    assert document["predicted_energy_saving_ratio"]["value"] == pytest.approx(saving)
    assert sum(document["model_source"]["busy_share_by_class"].values()) == pytest.approx(1.0)
    assert document["model_source"]["prior"] and not document["model_source"]["measured"]
    highs = [rung["predicted_slowdown_ratio"]["high"] for rung in document["rungs"]]
    assert highs == sorted(highs) and highs[0] == 0.0
    assert {"read", "graph", "replay", "variants", "solve"} <= set(document["timings_s"])


def test_equal_input_gives_an_equal_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (planned(monkeypatch, two_ranks().traces()).document for _ in range(2))
    del first["timings_s"], second["timings_s"]
    assert first == second


def test_the_order_of_the_files_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    traces = two_ranks().traces()
    assert clocks(planned(monkeypatch, traces)) == clocks(planned(monkeypatch, traces[::-1]))


def test_a_plan_for_another_gpu_than_the_traces_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    (trace,) = one_gpu(gpu_us=500).traces()
    object.__setattr__(trace.devices[0], "name", "NVIDIA A100-SXM4-40GB")
    reasons = planned(monkeypatch, [trace]).document["allowed_mode_reasons"]
    assert any("planned for V100, but the trace is from NVIDIA A100" in reason for reason in reasons)
    assert not any(
        "planned for" in r for r in planned(monkeypatch, [trace], gpu="A100").document["allowed_mode_reasons"]
    )


def test_the_words_fit_a_terminal_and_cannot_steer_it(monkeypatch: pytest.MonkeyPatch) -> None:
    (trace,) = one_gpu(gpu_us=500).traces()
    object.__setattr__(trace.devices[0], "name", "A100 \x1b[2J\r\n")
    text = planned(monkeypatch, [trace]).text
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text and "\r" not in text
    for word in ("Slack", "Plan", "Slowdown", "Saving", "Recommend only, because", "MHz instead of 1530 MHz"):
        assert word in text
    assert "priors" in text and "1.5 times" in text


def test_a_saving_that_may_turn_into_a_loss_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    document = planned(monkeypatch, two_ranks().traces()).document
    assert "cost energy" not in plan_text(document)
    document["predicted_energy_saving_ratio"]["low"] = -0.01
    assert "It may cost energy instead." in plan_text(document)


# --------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("text", "ratio"),
    [("5%", 0.05), ("2.5 %", 0.025), ("0.05", 0.05), (" 0 ", 0.0), ("0%", 0.0), ("1", 1.0), ("100%", 1.0)],
)
def test_a_share_is_read(text: str, ratio: float) -> None:
    assert parse_ratio(text) == pytest.approx(ratio)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("5", r"did you mean 5%\?"),
        ("", "not a number"),
        ("%", "not a number"),
        ("five", "not a number"),
        ("-1%", "between 0 % and 100%"),
        ("101%", "between 0 % and 100%"),
        ("nan", "between 0 % and 100%"),
        ("inf%", "between 0 % and 100%"),
        ("5%%", "not a number"),
    ],
)
def test_a_share_that_is_none_is_refused(text: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        parse_ratio(text)


def test_a_target_below_zero_and_an_unknown_gpu_are_refused_before_any_file_is_read() -> None:
    with pytest.raises(InputError, match="between 0 %"):
        run(["nowhere.json"], gpu="V100", max_slowdown=-0.01)
    with pytest.raises(InputError, match="not a GPU that EMO knows"):
        run(["nowhere.json"], gpu="abacus", max_slowdown=0.05)


def test_a_trace_without_a_complete_step_gives_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Run()
    rank = job.rank(0)
    rank.launch("A", at=0, start=10, end=100)
    for at in range(200, 400, 20):
        rank.call("cudaLaunchKernel", at, at + 5)
    with pytest.raises(QualityGateError, match="no step is complete"):
        planned(monkeypatch, job.traces())


# --------------------------------------------------------------------------- real traces


def test_a_real_training_run(samples: Path) -> None:
    result = run(
        [str(samples / "hta" / "trace_diff_control_a100_rank3of8.json.gz")], gpu="A100", max_slowdown=0.05
    )
    PlanReport.model_validate(result.document)
    assert 1410 / 1.2 < clocks(result)[0] < 1410
    assert 0.02 < result.document["predicted_energy_saving_ratio"]["value"] < 0.15
    assert result.document["basis"] == "iterations"


def test_real_ranks_of_one_job(samples: Path) -> None:
    paths = sorted(str(path) for path in (samples / "param").glob("worker[0-2]_*.json"))
    result = run(paths, gpu="V100", max_slowdown=0.05)
    PlanReport.model_validate(result.document)
    assert len(clocks(result)) == 3
    assert result.document["predicted_slowdown_ratio"]["high"] <= 0.05
    assert any("whole window" in reason for reason in result.document["allowed_mode_reasons"])
