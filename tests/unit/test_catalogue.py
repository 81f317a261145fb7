"""The GPU catalogue: names that people and traces use, and a source for every figure."""

from __future__ import annotations

import pytest

from emo.errors import InputError
from emo.models.catalogue import CATALOGUE, FIGURES, GpuModel, find_gpu, match_gpu
from emo.models.priors import MIN_CLOCK_RATIO

MODELS = pytest.mark.parametrize("model", CATALOGUE, ids=lambda model: model.name)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("V100", "V100"),
        ("Tesla V100-SXM2-32GB", "V100"),
        ("Tesla V100-DGXS-32GB", "V100"),
        ("a100", "A100"),
        ("NVIDIA A100-PG509-200", "A100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("h200", "H200"),
        ("NVIDIA L40S", "L40S"),
        ("A4000", "RTX A4000"),
        ("NVIDIA RTX A4000", "RTX A4000"),
        ("rtx_a4000", "RTX A4000"),
        ("AMD Instinct MI300X", "MI300X"),
        ("AMD Instinct MI300X VF", "MI300X"),
    ],
)
def test_finds_a_model_by_the_names_that_are_in_use(written: str, name: str) -> None:
    assert find_gpu(written).name == name


@pytest.mark.parametrize("written", ["", "GPU", "V100S", "GH200 480GB", "H20", "MI300", "L40", "RTX A40000"])
def test_does_not_take_one_gpu_for_another(written: str) -> None:
    assert match_gpu(written) is None
    with pytest.raises(InputError, match=r"expected one of V100, A100, .*MI300X"):
        find_gpu(written)


@MODELS
def test_every_figure_has_a_source_and_every_source_a_figure(model: GpuModel) -> None:
    given = {name for name in FIGURES if getattr(model, name) is not None}
    assert set(model.sources) == given
    assert all(source.strip() for source in model.sources.values())


@MODELS
def test_figures_are_of_the_right_size(model: GpuModel) -> None:
    assert 1_000 <= model.sm_clock_max_mhz <= 3_000
    assert (model.sm_clock_min_mhz or 0) < model.sm_clock_max_mhz * MIN_CLOCK_RATIO
    assert 0 < (model.idle_w or 1) < model.power_limit_w / 2
    assert 100 <= model.power_limit_w <= 1_000


def test_each_model_is_found_by_its_own_name() -> None:
    assert [match_gpu(model.name) for model in CATALOGUE] == list(CATALOGUE)
