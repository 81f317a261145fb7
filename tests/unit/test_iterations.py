"""Where iterations are found, and what must not be taken for one."""

from __future__ import annotations

import numpy as np
import pytest
from raw_builder import RawBuilder

from emo.trace.model import Trace
from emo.trace.validate import validate

MS = 1_000_000


class Steps:
    """A workload of ``count`` steps of 1 ms, four kernels each, with an optional wait at the end of a step."""

    def __init__(self, count: int, *, wait: bool = True, api: bool = True, kernels: int = 4) -> None:
        self.raw = RawBuilder()
        number = 0
        for step in range(count):
            for i in range(kernels):
                number += 1
                at = 3 + step * MS + i * (800_000 // kernels)
                if api:
                    self.raw.call("cudaLaunchKernel", at, 100, number)
                self.raw.kernel(f"kernel {i}", at + 1_000, 300, number, shape_hash=i + 1)
            if wait and api:
                self.raw.call("cudaStreamSynchronize", 3 + step * MS + 850_000, 50_000)

    def trace(self) -> Trace:
        return validate(self.raw.build())


def bounds(trace: Trace) -> list[tuple[int, int]]:
    return [(it.start_ns, it.end_ns) for it in trace.iterations]


def test_profiler_steps_are_iterations() -> None:
    steps = Steps(4)
    for i in range(4):
        steps.raw.mark(f"ProfilerStep#{i + 7}", i * MS, MS)
    trace = steps.trace()
    assert trace.iteration_source == "ProfilerStep"
    assert [it.name for it in trace.iterations] == [f"ProfilerStep#{i}" for i in (7, 8, 9, 10)]
    assert bounds(trace) == [(i * MS, (i + 1) * MS) for i in range(4)]
    assert [step.kernels for step in trace.quality.steps] == [4] * 4


def test_profiler_steps_among_the_labels_of_a_2021_trace_are_found() -> None:
    steps = Steps(3)
    for i in range(3):
        steps.raw.label(f"ProfilerStep#{i}", i * MS, MS)
    assert steps.trace().iteration_source == "ProfilerStep"


def test_the_same_step_marked_twice_counts_once() -> None:
    steps = Steps(3)
    for i in range(3):
        steps.raw.mark(f"ProfilerStep#{i}", i * MS, MS).mark(f"ProfilerStep#{i}", i * MS, MS)
    assert len(steps.trace().iterations) == 3


def test_an_iteration_goes_from_the_end_of_an_optimizer_step_to_the_end_of_the_next() -> None:
    steps = Steps(5)
    for i in range(5):
        steps.raw.mark("Optimizer.step#SGD.step", i * MS + 600_000, 100_000)
        steps.raw.mark("Optimizer.zero_grad#SGD.zero_grad", i * MS, 1_000)
    trace = steps.trace()
    assert trace.iteration_source == "Optimizer.step"
    assert bounds(trace) == [(i * MS + 700_000, (i + 1) * MS + 700_000) for i in range(4)]


def test_an_optimizer_step_that_was_open_at_the_end_lasts_to_the_end() -> None:
    steps = Steps(4)
    for i in range(4):
        steps.raw.mark("Optimizer.step#Adam.step", i * MS + 500_000, 400_000 if i < 3 else 0)
    trace = steps.trace()
    assert len(trace.iterations) == 3
    assert trace.iterations[-1].end_ns > 3 * MS + 850_000


def test_of_two_optimizers_the_one_that_steps_last_closes_the_iteration() -> None:
    steps = Steps(4)
    for i in range(4):
        steps.raw.mark("Optimizer.step#G.step", i * MS + 100_000, 100_000)
        steps.raw.mark("Optimizer.step#D.step", i * MS + 700_000, 100_000)
    assert bounds(steps.trace())[0] == (800_000, MS + 800_000)


@pytest.mark.parametrize("text", ["iteration {}", "train step {}", "Batch {}"])
def test_named_ranges_with_a_number_are_iterations(text: str) -> None:
    steps = Steps(4, wait=False)
    for i in range(4):
        steps.raw.mark(text.format(i), i * MS, MS - 10)
        steps.raw.mark("nccl:all_reduce", i * MS + 100, 50)  # repeats too, but holds no launches
    trace = steps.trace()
    assert trace.iteration_source == "nvtx"
    assert [it.name for it in trace.iterations] == [text.format(i) for i in range(4)]


def test_named_ranges_on_another_thread_or_with_few_launches_are_not_iterations() -> None:
    steps = Steps(6, wait=False)
    for i in range(6):
        steps.raw.mark(f"iteration {i}", i * MS, MS - 10, thread=1)
        steps.raw.mark(f"step {i}", i * MS, 10_000)
    assert steps.trace().iteration_source == "none"


def test_ranges_of_layers_are_not_iterations() -> None:
    steps = Steps(6, wait=False)
    for i in range(6):
        steps.raw.mark(f"encoder.block.{i}", i * MS, MS - 10)
    assert steps.trace().iterations == []


def test_ranges_without_a_telling_name_count_if_the_cpu_waits_in_each() -> None:
    steps = Steps(6)
    for i in range(6):
        steps.raw.mark(f"forward {i}", i * MS, MS - 10)
    assert steps.trace().iteration_source == "nvtx"


def replays(count: int, *, fetch: bool) -> Trace:
    """``count`` replays of a graph of five kernels, each with a copy to the host afterwards if ``fetch``."""
    raw = RawBuilder()
    for i in range(count):
        raw.call("cudaGraphLaunch", i * MS + 3, 20_000, 2 * i + 1)
        for k in range(5):
            raw.kernel(f"kernel {k}", i * MS + 30_000 + k * 100_000, 90_000, 2 * i + 1)
        if fetch:
            raw.call("cudaMemcpyAsync", i * MS + 600_000, 9_000, 2 * i + 2)
            raw.kernel("sampling", i * MS + 610_000, 100, 2 * i + 2)
            raw.call("cudaStreamSynchronize", i * MS + 700_000, 9_000)
    return validate(raw.build())


def test_replays_of_a_graph_are_iterations() -> None:
    trace = replays(5, fetch=True)
    assert trace.iteration_source == "graph"
    starts = [start for start, _ in bounds(trace)]
    assert starts == [i * MS + 3 for i in range(4)]  # where the fifth ends is not in the trace
    assert [step.kernels for step in trace.quality.steps] == [6] * 4


def test_replays_that_never_meet_the_cpu_are_layers() -> None:
    assert replays(5, fetch=False).iterations == []


def test_a_repeating_kernel_sequence_is_cut_at_the_launch_of_its_first_kernel() -> None:
    trace = Steps(6).trace()
    assert trace.iteration_source == "period"
    assert [start for start, _ in bounds(trace)] == [i * MS + 3 for i in range(5)]
    assert [step.launches for step in trace.quality.steps] == [4] * 5


def test_a_prologue_does_not_hide_the_period() -> None:
    steps = Steps(10)
    for i in range(5):
        steps.raw.launch(f"warm-up {i}", -(i + 1) * 10_001, -(i + 1) * 10_001 + 2_000, 300, 1_000 + i)
    trace = steps.trace()
    assert trace.iteration_source == "period"
    assert len(trace.iterations) == 9
    assert trace.iterations[0].start_ns == 3


def test_layers_inside_an_iteration_are_not_the_period() -> None:
    """Each iteration: 8 equal layers, then one kernel more and a wait."""
    raw, number = RawBuilder(), 0
    for step in range(5):
        for i in range(25):
            number += 1
            name = "head" if i == 24 else f"layer {i % 3}"
            at = step * MS + i * 20_001
            raw.call("cudaLaunchKernel", at, 100, number).kernel(name, at + 1_000, 300, number)
        raw.call("cudaStreamSynchronize", step * MS + 900_000, 9_000)
    trace = validate(raw.build())
    assert [step.kernels for step in trace.quality.steps] == [25] * 4


def test_a_sequence_that_never_meets_the_cpu_is_not_an_iteration() -> None:
    assert Steps(6, wait=False).trace().iterations == []


def test_without_any_call_only_long_periods_count() -> None:
    assert len(Steps(5, api=False, kernels=150).trace().iterations) == 5
    assert Steps(5, api=False, kernels=20).trace().iterations == []


def test_kernels_that_do_not_repeat_have_no_iterations() -> None:
    rng = np.random.default_rng(1)
    raw = RawBuilder()
    for i, kernel in enumerate(rng.integers(0, 20, 400)):
        raw.launch(f"kernel {kernel}", i * 10_001, i * 10_001 + 2_000, 300, i + 1)
    raw.call("cudaDeviceSynchronize", 5 * MS, 1_000)
    trace = validate(raw.build())
    assert (trace.iterations, trace.iteration_source) == ([], "none")
    assert len(trace.quality.steps) == 1  # the window stands in


def test_too_few_marks_are_still_told() -> None:
    steps = Steps(1)
    steps.raw.mark("ProfilerStep#3", 0, MS)
    trace = steps.trace()
    assert trace.iteration_source == "ProfilerStep"
    assert len(trace.iterations) == 1
