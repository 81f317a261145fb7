"""GPUs that EMO knows, each figure with where it comes from.

A figure without a source is left out (None): a guess that looks like a fact is worse than a
gap. What stands in for a gap is decided, and labelled as a prior, in :mod:`emo.models.priors`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

from emo.errors import InputError


@dataclass(frozen=True, slots=True)
class GpuModel:
    """One GPU model. ``sources`` says for every other field that is not None where it comes from.

    ``sm_clock_*_mhz`` is the range in which the clock can be locked, ``clock_step_mhz`` the distance
    between settings (real lists are rounded down to whole MHz: 1530, 1522, 1515, ...).
    ``idle_w`` is the power of a GPU that has a context and nothing to do, at its full clock.
    ``peak_tflops`` is dense 16-bit matrix throughput, FP32 throughput where there is none.
    """

    name: str
    pattern: str  # the word in a name that means this model; lower case, separators as one space
    sm_clock_max_mhz: int
    sm_clock_min_mhz: int | None
    clock_step_mhz: float | None
    power_limit_w: float
    idle_w: float | None
    peak_tflops: float | None
    bandwidth_gb_s: float | None
    sources: dict[str, str]


FIGURES = tuple(field.name for field in fields(GpuModel) if field.name not in ("name", "pattern", "sources"))

_NVIDIA_STEP = "15 MHz in every list of supported clocks seen since Ampere (A100, H100, RTX A4000)"
_MEASURED_CLOCKS = (
    "clock list of a public energy study, github.com/mertside/ai-inference-energy, hardware/gpu_info.py"
)

CATALOGUE: tuple[GpuModel, ...] = (
    GpuModel(
        name="V100",
        pattern=r"v100",
        sm_clock_max_mhz=1530,
        sm_clock_min_mhz=135,
        clock_step_mhz=7.5,
        power_limit_w=300.0,
        idle_w=45.0,
        peak_tflops=125.0,
        bandwidth_gb_s=900.0,
        sources={
            "sm_clock_max_mhz": "V100 SXM2, nvidia-smi -q, github.com/NVIDIA/nvidia-docker#914",
            "sm_clock_min_mhz": "V100 SXM2, clock when idle, github.com/NVIDIA/nvidia-docker#914",
            "clock_step_mhz": f"7 and 8 MHz in turn: {_MEASURED_CLOCKS}",
            "power_limit_w": "NVIDIA V100 data sheet, SXM2 (PCIe: 250 W)",
            "idle_w": "with a model loaded, github.com/sasha0552/nvidia-pstated#6 (33 W at the lowest clock)",
            "peak_tflops": "NVIDIA V100 data sheet, SXM2, tensor",
            "bandwidth_gb_s": "NVIDIA V100 data sheet",
        },
    ),
    GpuModel(
        name="A100",
        pattern=r"a100",
        sm_clock_max_mhz=1410,
        sm_clock_min_mhz=None,
        clock_step_mhz=15.0,
        power_limit_w=400.0,
        idle_w=85.0,
        peak_tflops=312.0,
        bandwidth_gb_s=1555.0,
        sources={
            "sm_clock_max_mhz": "A100 SXM4, deviceQuery, Paderborn Center for Parallel Computing wiki",
            "clock_step_mhz": _MEASURED_CLOCKS,
            "power_limit_w": "NVIDIA A100 data sheet, SXM4 (PCIe: 250-300 W)",
            "idle_w": "power while blocked, published measurement (A40: 70 W)",
            "peak_tflops": "NVIDIA A100 data sheet, FP16 dense",
            "bandwidth_gb_s": "NVIDIA A100 data sheet, 40 GB",
        },
    ),
    GpuModel(
        name="H100",
        pattern=r"h100",
        sm_clock_max_mhz=1980,
        sm_clock_min_mhz=210,
        clock_step_mhz=15.0,
        power_limit_w=700.0,
        idle_w=None,
        peak_tflops=989.4,
        bandwidth_gb_s=3350.0,
        sources={
            "sm_clock_max_mhz": "H100 SXM: 132 SMs x 128 x 2 x 1980 MHz = 66.9 TFLOPS, NVIDIA's FP32 figure",
            "sm_clock_min_mhz": "H100 PCIe, github.com/mertside/ai-inference-energy",
            "clock_step_mhz": "H100 PCIe, github.com/mertside/ai-inference-energy",
            "power_limit_w": "NVIDIA H100 data sheet, SXM (PCIe: 350 W)",
            "peak_tflops": "NVIDIA H100 data sheet, SXM, FP16 dense",
            "bandwidth_gb_s": "NVIDIA H100 data sheet, SXM",
        },
    ),
    GpuModel(
        name="H200",
        pattern=r"h200",
        sm_clock_max_mhz=1980,
        sm_clock_min_mhz=None,
        clock_step_mhz=15.0,
        power_limit_w=700.0,
        idle_w=None,
        peak_tflops=989.4,
        bandwidth_gb_s=4800.0,
        sources={
            "sm_clock_max_mhz": "nvidia-smi -q -d CLOCK, github.com/awslabs/amazon-eks-ami#1985",
            "clock_step_mhz": _NVIDIA_STEP,
            "power_limit_w": "H200 TGP 700 W, MLPerf inference v4.1 system description",
            "peak_tflops": "NVIDIA H200 data sheet, SXM, FP16 dense",
            "bandwidth_gb_s": "NVIDIA H200 data sheet",
        },
    ),
    GpuModel(
        name="L40S",
        pattern=r"l40s",
        sm_clock_max_mhz=2520,
        sm_clock_min_mhz=None,
        clock_step_mhz=15.0,
        power_limit_w=350.0,
        idle_w=110.0,
        peak_tflops=362.05,
        bandwidth_gb_s=864.0,
        sources={
            "sm_clock_max_mhz": "boost clock, TechPowerUp GPU database",
            "clock_step_mhz": _NVIDIA_STEP,
            "power_limit_w": "NVIDIA L40S data sheet",
            "idle_w": "loaded but idle, published measurement (deep idle: 35 W)",
            "peak_tflops": "NVIDIA L40S data sheet, FP16 dense",
            "bandwidth_gb_s": "NVIDIA L40S data sheet",
        },
    ),
    GpuModel(
        name="RTX A4000",
        pattern=r"(?:rtx ?)?a4000",
        sm_clock_max_mhz=2100,
        sm_clock_min_mhz=None,
        clock_step_mhz=15.0,
        power_limit_w=140.0,
        idle_w=None,
        peak_tflops=19.2,
        bandwidth_gb_s=448.0,
        sources={
            "sm_clock_max_mhz": "highest of the Kernel Tuner sweep (under load the power limit gives 1740)",
            "clock_step_mhz": "all clocks of the Kernel Tuner sweep are multiples of 15 MHz",
            "power_limit_w": "NVIDIA RTX A4000 data sheet",
            "peak_tflops": "NVIDIA RTX A4000 data sheet, FP32",
            "bandwidth_gb_s": "NVIDIA RTX A4000 data sheet",
        },
    ),
    GpuModel(
        name="MI300X",
        pattern=r"mi300x",
        sm_clock_max_mhz=2100,
        sm_clock_min_mhz=None,
        clock_step_mhz=None,
        power_limit_w=750.0,
        idle_w=None,
        peak_tflops=1307.4,
        bandwidth_gb_s=5300.0,
        sources={
            "sm_clock_max_mhz": "AMD Instinct MI300X data sheet, peak engine clock",
            "power_limit_w": "AMD Instinct MI300X data sheet, TBP",
            "peak_tflops": "AMD Instinct MI300X data sheet, FP16 dense",
            "bandwidth_gb_s": "AMD Instinct MI300X data sheet",
        },
    ),
)


def match_gpu(name: str) -> GpuModel | None:
    """The model that a name means (``Tesla V100-SXM2-32GB``, ``h100``), or None."""
    words = re.sub(r"[\s_-]+", " ", name.lower())
    for model in CATALOGUE:
        # A whole word: a V100S is no V100, a GH200 no H200.
        if re.search(rf"(?<![a-z0-9])(?:{model.pattern})(?![a-z0-9])", words):
            return model
    return None


def find_gpu(name: str) -> GpuModel:
    """As :func:`match_gpu`; raises InputError with the known names."""
    model = match_gpu(name)
    if model is None:
        known = ", ".join(model.name for model in CATALOGUE)
        raise InputError(f"--gpu {name!r}: not a GPU that EMO knows; expected one of {known}")
    return model
