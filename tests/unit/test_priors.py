"""Priors: what a kernel's name says, and that time and power behave like those of real GPUs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from emo.models.catalogue import CATALOGUE, GpuModel, find_gpu
from emo.models.priors import (
    CLASSES,
    IDLE,
    MIN_CLOCK_RATIO,
    WAITING,
    KernelClass,
    TimeLevel,
    kernel_class,
    power_priors,
    time_factors,
)

RATIOS = np.linspace(MIN_CLOCK_RATIO, 1.0, 51)
MODELS = pytest.mark.parametrize("model", CATALOGUE, ids=lambda model: model.name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("volta_sgemm_128x64_nt", KernelClass.GEMM),
        ("void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm>(cutlass::Params)", KernelClass.GEMM),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT320x224x64", KernelClass.GEMM),
        ("void cudnn::detail::dgrad_engine<float, 512, 6>(int, int)", KernelClass.GEMM),
        ("void implicit_convolve_sgemm<float, float, 1024>(int)", KernelClass.GEMM),
        ("volta_scudnn_winograd_128x128_ldg1", KernelClass.GEMM),
        ("attn_fwd", KernelClass.ATTENTION),
        ("void pytorch_flash::flash_fwd_kernel<Traits>(Params)", KernelClass.ATTENTION),
        ("void paged_attention_ll4mi_QKV_mfma16_kernel<0>(int)", KernelClass.ATTENTION),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::softmax_op>(int)",
            KernelClass.ELEMENTWISE,
        ),
        (
            "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float>(float*)",
            KernelClass.ELEMENTWISE,
        ),
        (
            "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>>",
            KernelClass.ELEMENTWISE,
        ),
        ("triton_poi_fused_addmm_gelu_view_15", KernelClass.ELEMENTWISE),
        ("void at::native::reduce_kernel<128, 4, at::native::ReduceOp<float>>(R)", KernelClass.REDUCTION),
        ("void at::native::(anonymous namespace)::cunn_SoftMaxForward<8>(float*)", KernelClass.REDUCTION),
        ("void cudnn::bn_bw_1C11_kernel_new<float>(float)", KernelClass.REDUCTION),
        ("gemvNSP_kernel<float>", KernelClass.REDUCTION),
        ("triton_red_fused_native_layer_norm_19", KernelClass.REDUCTION),
        ("Memcpy HtoD (Pinned -> Device)", KernelClass.COPY),
        ("__amd_rocclr_fillBufferAligned", KernelClass.COPY),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)", KernelClass.COLLECTIVE),
        ("my_kernel", KernelClass.OTHER),
        ("convert_fp8", KernelClass.OTHER),
    ],
)
def test_class_of_a_kernel(name: str, expected: KernelClass) -> None:
    assert kernel_class(name) == expected


def test_time_is_that_of_full_clock_at_full_clock_and_grows_as_the_clock_falls() -> None:
    for level in TimeLevel:
        factors = np.array([time_factors(ratio, level) for ratio in RATIOS])
        assert factors.shape == (len(RATIOS), CLASSES)
        assert np.allclose(factors[-1], 1.0)
        assert (np.diff(factors, axis=0) <= 0).all()
        assert (factors <= 1.0 / RATIOS[:, None] + 1e-12).all(), "nothing slows more than the clock itself"


def test_the_pessimistic_end_is_the_most_sensitive_to_the_clock() -> None:
    low, value, high = (time_factors(0.7, level) for level in TimeLevel)
    assert (low >= value).all() and (value >= high).all()
    assert low[KernelClass.GEMM] == pytest.approx(1 / 0.7)
    assert value[KernelClass.COLLECTIVE] < 1.05 < value[KernelClass.GEMM]


@MODELS
def test_power_falls_with_the_clock_and_idles_above_zero(model: GpuModel) -> None:
    for power in power_priors(model):
        watts = np.array([power.power_w(model.power_limit_w, ratio) for ratio in RATIOS])
        assert (np.diff(watts, axis=0) > 0).all()
        assert (watts[:, IDLE] > 0).all()
        assert (watts <= model.power_limit_w + 1e-9).all()
        assert (watts[:, :CLASSES] >= watts[:, [IDLE]]).all()
        assert (watts[:, WAITING] == watts[:, KernelClass.COLLECTIVE]).all(), "a GPU that waits spins"


def test_idle_power_at_full_clock_is_the_catalogues() -> None:
    model = find_gpu("A100")
    assert power_priors(model)[0].power_w(model.power_limit_w, 1.0)[IDLE] == pytest.approx(85.0)


def test_below_the_knee_a_cycle_costs_the_same() -> None:
    power = power_priors(find_gpu("V100"))[0]
    assert power.clock_power(0.6) / 0.6 == pytest.approx(power.clock_power(0.7) / 0.7)
    assert power.clock_power(1.0) == 1.0
    assert power.clock_power(0.9) / 0.9 > power.clock_power(0.8) / 0.8


@MODELS
def test_savings_without_slack_are_of_the_published_size(model: GpuModel) -> None:
    """Published means over kernels: 5.5 % (V100) and 11.3 % (RTX 8000) at <= 5 % slowdown per kernel."""
    power = power_priors(model)[0]
    full = power.power_w(model.power_limit_w, 1.0)
    for cls in (KernelClass.GEMM, KernelClass.ELEMENTWISE, KernelClass.OTHER):
        best = 0.0
        for ratio in RATIOS:
            slower = time_factors(ratio, TimeLevel.VALUE)[cls]
            if slower <= 1.05:
                best = max(best, 1 - slower * power.power_w(model.power_limit_w, ratio)[cls] / full[cls])
        assert 0.02 <= best <= 0.16, cls.name


def test_least_energy_of_compute_bound_work_lies_below_full_clock() -> None:
    model = find_gpu("V100")
    power = power_priors(model)[0]
    energy = [
        time_factors(ratio, TimeLevel.VALUE)[KernelClass.GEMM]
        * power.power_w(model.power_limit_w, ratio)[KernelClass.GEMM]
        for ratio in RATIOS
    ]
    assert 0.55 <= RATIOS[int(np.argmin(energy))] <= 0.9
    assert 0.10 <= 1 - min(energy) / energy[-1] <= 0.30, "published: 21-23 % at the optimum"


def test_corners_enclose_the_prior() -> None:
    prior, *corners = power_priors(find_gpu("H100"))
    assert len(corners) == len({corner.name for corner in corners})
    for field in ("knee", "floor_voltage", "idle_share", "clocked_idle_share", "collective_share"):
        values = [getattr(corner, field) for corner in corners]
        assert min(values) <= getattr(prior, field) <= max(values)


def test_the_measured_a4000_sweep_lies_between_the_corners(samples: Path) -> None:
    sweep = samples.parent / "dvfs" / "rtx_a4000_fp32_clock_sweep.json"
    if not sweep.is_file():
        pytest.skip(f"no measured sweep at {sweep}")
    rows = json.loads(sweep.read_text())["cache"].values()
    # Above its power limit the GPU delivers 1740 MHz whatever is asked for.
    measured = sorted((row["core_freq"], row["nvml_power"]) for row in rows if row["nvml_gr_clock"] <= 1710)
    top_mhz, top_w = measured[-1]
    model = find_gpu("RTX A4000")
    full = [p.power_w(model.power_limit_w, 1.0)[KernelClass.GEMM] for p in power_priors(model)]
    seen = 0
    for clock_mhz, watts in measured:
        ratio = clock_mhz / top_mhz
        if ratio < MIN_CLOCK_RATIO:
            continue
        shares = [
            p.power_w(model.power_limit_w, ratio)[KernelClass.GEMM] / at_full
            for p, at_full in zip(power_priors(model), full, strict=True)
        ]
        assert min(shares) - 0.03 <= watts / top_w <= max(shares) + 0.03, f"{clock_mhz:.0f} MHz"
        seen += 1
    assert seen >= 4
