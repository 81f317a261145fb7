"""What is assumed about time and power when nothing has been measured: priors by kernel class.

Time, with x = clock / highest clock (two-term form):

    t(x) = t(1) * (m + (1 - m) / x)

``m`` is the part that the SM clock does not touch: memory, links, latency. A kernel's name
tells little about it, so every class has a wide interval, and a plan must hold at its low end.

Power. Voltage falls with the clock down to a floor, which it reaches at the knee; below the
knee a slower clock saves no energy per cycle:

    v(x)      = floor at or below the knee, 1 at x = 1, straight in between
    idle(x)   = idle * (1 - k + k * x * v(x)^2)
    busy(c,x) = idle(x) + (share_c * limit - idle) * (u_c + (1 - u_c) * x * v(x)^2)

``share_c`` is the share of the power limit that class c draws at full clock, ``u_c`` the part of
it that does not follow the SM clock (memory, links, fabric). A GPU that waits in a collective spins: it
draws the power of the collective class.

Evidence, all measured: GTX Titan X, 24 kernels at two memory clocks (hpc-ulisboa/gpuPTXModel,
BSD-3), fitted with the form above; RTX A4000, one FP32 kernel (KernelTuner/kernel_tuner,
Apache-2.0). Published means agree: at <= 5 % slowdown per kernel 5.5 % saved on V100 and 11.3 % on
RTX 8000, least energy near 0.6-0.7 of the highest clock. None of these is your GPU or your kernel.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import product

import numpy as np
from numpy.typing import NDArray

from emo.models.catalogue import GpuModel

F64 = NDArray[np.float64]
I8 = NDArray[np.int8]

# Below half of the highest clock nothing that was fitted above it holds.
MIN_CLOCK_RATIO = 0.5

SOURCE = (
    "priors by kernel class from published sweeps (GTX Titan X, 24 kernels; RTX A4000); "
    "not measured on this GPU or workload"
)


class KernelClass(IntEnum):
    """What a GPU op mostly does. Values index the columns of every table here."""

    GEMM = 0  # matrix products and convolutions
    ATTENTION = 1
    ELEMENTWISE = 2  # also gather, scatter, concatenation, optimizer steps
    REDUCTION = 3  # also normalisation, softmax, sort, matrix times vector
    COPY = 4
    COLLECTIVE = 5
    OTHER = 6


@dataclass(frozen=True, slots=True)
class ClassPrior:
    """Prior of one kernel class."""

    clock_free: tuple[float, float, float]  # m of the time model: (low, value, high)
    power_share: float  # of the power limit, at full clock
    uncore_share: float  # u of the power model
    source: str


CLASS_PRIORS: dict[KernelClass, ClassPrior] = {
    KernelClass.GEMM: ClassPrior(
        (0.0, 0.1, 0.5), 0.9, 0.2,
        "Titan X gemm, 2mm, 3mm: m 0.03-0.07 (low memory clock: 0.25-0.49), 0.8-0.89 of TDP; A4000: 0.99",
    ),
    KernelClass.ATTENTION: ClassPrior(
        (0.0, 0.2, 0.7), 0.8, 0.2,
        "assumed: between GEMM (prefill) and memory-bound (decode)",
    ),
    KernelClass.ELEMENTWISE: ClassPrior(
        (0.1, 0.5, 1.0), 0.65, 0.4,
        "Titan X stencil2d, fdtd2d, blackscholes: m 0.09-0.24 (low memory clock: 0.9-1.0), 0.66-0.92 of TDP",
    ),
    KernelClass.REDUCTION: ClassPrior(
        (0.1, 0.5, 1.0), 0.6, 0.4,
        "Titan X reduction, sort, bicg, mvt: m 0.14-0.19 (low memory clock: 0.54-1.0), 0.45-0.65 of TDP",
    ),
    KernelClass.COPY: ClassPrior(
        (0.3, 0.9, 1.0), 0.35, 0.7,
        "assumed: links and memory have their own clocks; copies on the device use a little of the SM's",
    ),
    KernelClass.COLLECTIVE: ClassPrior(
        (0.6, 0.9, 1.0), 0.4, 0.3,
        "assumed: links have their own clocks; power from 85 of 400 W (A100, blocked) to that of a reduction",
    ),
    KernelClass.OTHER: ClassPrior(
        (0.0, 0.3, 1.0), 0.65, 0.3,
        "Titan X, all 24 kernels: m 0.03-0.50 (low memory clock: 0.04-1.0), 0.44-0.92 of TDP",
    ),
}  # fmt: skip

CLASSES = len(KernelClass)

# Patterns are tried in this order on the name without arguments and template parameters.
_NAME_PATTERNS: tuple[tuple[KernelClass, str], ...] = (
    (
        KernelClass.COLLECTIVE,
        r"nccl|rccl|cross_device_reduce|(?:one|two)_shot_all_reduce|multimem_all_reduce",
    ),
    (KernelClass.ATTENTION, r"attention|attn|fmha|flash_(?:fwd|bwd)"),
    (KernelClass.REDUCTION, r"gemv|softmax|norm|triton_(?:red|per)_|reduce|radixsort|devicescan|topk|argmax"),
    (KernelClass.REDUCTION, r"(?:^|::|_)bn_|batch_?norm"),
    (KernelClass.COPY, r"memcpy|memset|copybuffer|fillbuffer"),
    (
        KernelClass.ELEMENTWISE,
        r"elementwise|triton_poi_|multi_tensor_apply|catarray|embedding|index|gather|scatter",
    ),
    (KernelClass.ELEMENTWISE, r"permute|transpose|rotary|act_and_mul|kv_?cache|reshape_and_cache|dropout"),
    (KernelClass.GEMM, r"gemm|cijk_|matmul|cutlass|xmma|cublas|triton_(?:mm|tem)_|wmma|mfma"),
    (KernelClass.GEMM, r"convol|conv[12357]|conv_|winograd|dgrad|wgrad|fprop|scudnn"),
)
_PATTERNS = [(cls, re.compile(pattern, re.IGNORECASE)) for cls, pattern in _NAME_PATTERNS]


def kernel_class(name: str) -> KernelClass:
    """Class of a kernel by its name (``volta_sgemm_128x64_nt`` -> GEMM)."""
    stem = re.split(r"[<(]", name.replace("(anonymous namespace)", ""), maxsplit=1)[0]
    for cls, pattern in _PATTERNS:
        if pattern.search(stem):
            return cls
    return KernelClass.OTHER


def classify_kernels(names: Sequence[str]) -> I8:
    """:class:`KernelClass` of every name of a table (int8 of its length)."""
    return np.fromiter((kernel_class(name) for name in names), dtype=np.int8, count=len(names))


class TimeLevel(IntEnum):
    """Which value of the interval of ``m`` is taken; LOW is pessimistic: most sensitive to the clock."""

    LOW = 0
    VALUE = 1
    HIGH = 2


def time_factors(ratio: float, level: TimeLevel) -> F64:
    """t(x) / t(1) of every class at clock ratio x (float64 of length CLASSES)."""
    clock_free = np.array([CLASS_PRIORS[cls].clock_free[level] for cls in KernelClass])
    factors: F64 = clock_free + (1.0 - clock_free) / ratio
    return factors


@dataclass(frozen=True, slots=True)
class PowerPrior:
    """One set of parameters of the power model; see the module's docstring."""

    name: str
    knee: float
    floor_voltage: float  # relative to the voltage at the highest clock
    idle_share: float  # of the power limit
    clocked_idle_share: float  # k: the part of idle power that follows the clock
    collective_share: float  # share of the power limit while communicating or waiting in a collective

    def clock_power(self, ratio: float) -> float:
        """Power of what follows the clock, relative to full clock: x * v(x)^2."""
        height = max(ratio - self.knee, 0.0) / (1.0 - self.knee)
        voltage = self.floor_voltage + (1.0 - self.floor_voltage) * height
        return ratio * voltage * voltage

    def power_w(self, limit_w: float, ratio: float) -> F64:
        """Watts at clock ratio x: one entry per class, then waiting in a collective, then idle."""
        clocked = self.clock_power(ratio)
        full_idle = self.idle_share * limit_w
        idle = full_idle * (1.0 - self.clocked_idle_share + self.clocked_idle_share * clocked)
        share = np.array([CLASS_PRIORS[cls].power_share for cls in KernelClass])
        share[KernelClass.COLLECTIVE] = self.collective_share
        uncore = np.array([CLASS_PRIORS[cls].uncore_share for cls in KernelClass])
        above_idle = np.maximum(share * limit_w - full_idle, 0.0)
        busy = idle + above_idle * (uncore + (1.0 - uncore) * clocked)
        watts: F64 = np.concatenate([busy, [busy[KernelClass.COLLECTIVE], idle]])
        return watts


WAITING = CLASSES
IDLE = CLASSES + 1
STATES = CLASSES + 2
"""Columns of a power table and of a time account: the classes, waiting, idle."""

# (knee, floor voltage): Titan X 0.87 and 0.90, A4000 0.77 and 0.78 of the delivered maximum.
_KNEES = {"early knee": (0.87, 0.90), "deep knee": (0.77, 0.78)}
_KNEE = (0.80, 0.85)
# Loaded-idle power / power limit in W: B200 140/1000, V100 45/300, A100 85/400, A40 70/300, L40S 110/350.
_IDLE_SHARES = {"little idle power": 0.14, "much idle power": 0.31}
_IDLE_SHARE = 0.21
# V100: 45 W loaded-idle at full clock, 33 W at the lowest. The interval around it is assumed.
_CLOCKED_IDLE_SHARE = 0.3
_CLOCKED_IDLE_SHARES = (0.1, 0.4)
# Of the power limit, while spinning in a collective: from A100 blocked (85 of 400 W) to a busy reduction.
_COLLECTIVE_SHARES = (0.21, 0.65)


def power_priors(model: GpuModel) -> tuple[PowerPrior, ...]:
    """The prior for a GPU, first, then the corners of what is plausible, for the interval of a saving."""
    idle_share = _IDLE_SHARE if model.idle_w is None else model.idle_w / model.power_limit_w
    corners = [
        PowerPrior(
            f"{knee_name}, {idle_name} ({clocked:.0%} clocked), collectives {share:.0%}",
            *knee,
            idle,
            clocked,
            share,
        )
        for (knee_name, knee), (idle_name, idle), clocked, share in product(
            _KNEES.items(), _IDLE_SHARES.items(), _CLOCKED_IDLE_SHARES, _COLLECTIVE_SHARES
        )
    ]
    collective = CLASS_PRIORS[KernelClass.COLLECTIVE].power_share
    return (PowerPrior("prior", *_KNEE, idle_share, _CLOCKED_IDLE_SHARE, collective), *corners)
