"""The GPU models that can be simulated: every figure with its source, or as an assumption.

An assumption says why, and gives the range in which the figure may really lie. The catalogue of the
planner is not used: the ground truth must not lean on what it judges.

``python -m emo.sim.presets --header`` prints the models for C, ``--table`` as Markdown.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from emo.sim.physics import SPEC_FIELDS, SWITCHING_FIELDS, GpuSpec, Switching

SENSOR_FIELDS = ("sensor_window_ms", "sensor_period_ms", "sensor_gain_low", "sensor_gain_high")
ALL_FIELDS = (*SPEC_FIELDS, *SWITCHING_FIELDS, *SENSOR_FIELDS)


@dataclass(frozen=True, slots=True)
class Figure:
    """A number with where it comes from; ``low``..``high`` is the range of an assumption."""

    value: float
    source: str
    low: float | None = None
    high: float | None = None

    @property
    def assumed(self) -> bool:
        """Whether no source gives the number."""
        return self.low is not None


def _assumed(value: float, low: float, high: float, why: str) -> Figure:
    return Figure(value, why, low, high)


# Publications that give more than one figure.
_CONTEXT = "measured with a CUDA context and nothing running, arXiv:2605.23918"
_BARE = "measured with no context, arXiv:2605.23918"
_LATENCY = "A100 5-25 ms, Hopper 10-100 ms with rare hundreds: measured per target clock, arXiv:2502.20075"
_PART_TIME = "25 % of the run time is sampled on A100 and H100, arXiv:2312.02741"
_GAIN = "boards against an external meter: -8..+13 % (range of published comparisons)"

_WHY_LEAKAGE = "no public split; at most what a context adds to deep idle"
_WHY_CURVE = (
    "no public curve; the sweeps of docs/simulator-physics.md have their knee at 0.65-0.8 of the maximum"
)
_WHY_LIMITED = "so that dense matrix work reaches the power limit a little below the highest clock"
_WHY_LINK = "no public figure; some pJ per bit at full link bandwidth"

_COMMON: Mapping[str, Figure] = {
    "clock_step_mhz": Figure(15, "15 MHz in the lists of supported clocks since Ampere (nvidia-smi)"),
    "leakage_per_c": _assumed(0.014, 0.008, 0.025, "leakage of FinFET logic doubles in some 30-90 degrees"),
    "stall_share": _assumed(
        0.5, 0.3, 0.8, "0.7 fits the Titan X sweeps; newer SMs gate their clocks more finely"
    ),
    "voltage_shape": _assumed(
        1, 0.8, 2, "straight above the knee in both sweeps of docs/simulator-physics.md"
    ),
    "uncore_slope": _assumed(
        0.03,
        0,
        0.1,
        "streaming speed is nearly flat over SM clocks (arXiv:2510.06902), not quite at low ones",
    ),
    "bound_sharpness": _assumed(4, 3, 8, "3.3 fits the Titan X sweeps; larger kernels overlap better"),
    "temperature_ambient_c": _assumed(25, 18, 35, "inlet air of a machine room"),
    "temperature_ref_c": Figure(35, "definition: temperature at which idle power is stated"),
    "thermal_tau_s": _assumed(
        20, 10, 40, "a V100 settles within 60 s, three time constants (github.com/bradrlaw/ai-server#15)"
    ),
    "latency_median_ms": Figure(12, _LATENCY),
    "latency_target_spread": Figure(0.5, _LATENCY),
    "latency_sigma": Figure(0.15, _LATENCY),
    "latency_tail_share": _assumed(0.01, 0, 0.05, "outliers are said to occur, not how often"),
    "latency_tail_ms": _assumed(10, 5, 50, "outliers stay within some multiples of the median"),
    "stall_us": _assumed(
        50, 10, 500, "no public figure; a clock generator locks within tens of microseconds"
    ),
    "sensor_window_ms": Figure(25, _PART_TIME),
    "sensor_period_ms": Figure(100, _PART_TIME),
    "sensor_gain_low": Figure(0.92, _GAIN),
    "sensor_gain_high": Figure(1.13, _GAIN),
}

_HOPPER: Mapping[str, Figure] = {
    **_COMMON,
    "clock_min_mhz": Figure(210, "H100 clock list, github.com/mertside/ai-inference-energy"),
    "clock_max_mhz": Figure(1980, "nvidia-smi -q -d CLOCK, github.com/awslabs/amazon-eks-ami#1985 (H200)"),
    "clock_base_mhz": _assumed(1590, 1095, 1980, "no public figure for SXM; only shown, not used"),
    "power_limit_w": Figure(700, "NVIDIA data sheet, SXM"),
    "power_limit_min_w": Figure(200, "AllowableMin of an SXM GPU, NVIDIA DGX user guide, power capping"),
    "power_limit_max_w": Figure(700, "AllowableMax of an SXM GPU, NVIDIA DGX user guide, power capping"),
    "leakage_w": _assumed(28, 12, 45, _WHY_LEAKAGE),
    "compute_w": _assumed(720, 600, 900, f"{_WHY_LIMITED}: 700 W at some 1750 MHz"),
    "link_w": _assumed(45, 25, 70, f"{_WHY_LINK}: 900 GB/s"),
    "voltage_floor": _assumed(0.7, 0.62, 0.8, _WHY_CURVE),
    "voltage_knee": _assumed(0.6, 0.5, 0.75, _WHY_CURVE),
    "thermal_resistance_c_per_w": _assumed(
        0.06, 0.045, 0.09, "32-39 C at 140-145 W (github.com/wilicc/gpu-burn#114)"
    ),
    "temperature_slowdown_c": _assumed(87, 83, 92, "drivers state a margin (T.Limit), not the temperature"),
    "latency_median_ms": Figure(35, _LATENCY),
    "latency_target_spread": Figure(0.8, _LATENCY),
    "latency_sigma": Figure(0.2, _LATENCY),
    "latency_tail_share": _assumed(0.02, 0.005, 0.05, "hundreds of ms are rare (arXiv:2502.20075)"),
    "latency_tail_ms": _assumed(150, 80, 400, "hundreds of ms (arXiv:2502.20075)"),
}

_FIGURES: Mapping[str, Mapping[str, Figure]] = {
    "A100": {
        **_COMMON,
        "clock_min_mhz": _assumed(
            210, 210, 510, "lowest clock of its successors and of its consumer relatives"
        ),
        "clock_max_mhz": Figure(1410, "A100 SXM4, nvidia-smi -q, github.com/NVIDIA/DCGM#152"),
        "clock_base_mhz": Figure(1155, "default application clock, SXM4 80 GB, github.com/NVIDIA/DCGM#152"),
        "power_limit_w": Figure(400, "A100 SXM4, nvidia-smi -q, github.com/NVIDIA/DCGM#152"),
        "power_limit_min_w": Figure(100, "A100 SXM4, nvidia-smi -q, github.com/NVIDIA/DCGM#152"),
        "power_limit_max_w": Figure(400, "A100 SXM4, nvidia-smi -q, github.com/NVIDIA/DCGM#152"),
        "idle_w": Figure(53.7, f"{_BARE} (an A100 of 300 W)"),
        "loaded_idle_w": Figure(80.0, f"{_CONTEXT} (an A100 of 300 W); 85 W while blocked in another study"),
        "leakage_w": _assumed(15, 8, 24, _WHY_LEAKAGE),
        "compute_w": _assumed(325, 270, 400, f"{_WHY_LIMITED}: 400 W at some 1350 MHz"),
        "memory_w": _assumed(70, 45, 100, "2.0 TB/s of HBM2e at 4-5 pJ per bit"),
        "link_w": _assumed(30, 15, 50, f"{_WHY_LINK}: 600 GB/s"),
        "voltage_floor": _assumed(
            0.75,
            0.68,
            0.82,
            "0.7125 V at 1080 MHz (github.com/NVIDIA/nvidia-docker#1648), some 0.95 V at the top",
        ),
        "voltage_knee": _assumed(
            0.72, 0.6, 0.78, "still at 0.7125 V at 1080 of 1410 MHz (github.com/NVIDIA/nvidia-docker#1648)"
        ),
        "thermal_resistance_c_per_w": _assumed(0.1, 0.07, 0.14, "some 65 C at 400 W in air-cooled servers"),
        "temperature_slowdown_c": _assumed(89, 85, 92, "3 C below the shutdown temperature"),
    },
    "H100": {
        **_HOPPER,
        "idle_w": Figure(71.8, _BARE),
        "loaded_idle_w": Figure(121.7, f"{_CONTEXT}; 140-145 W in github.com/wilicc/gpu-burn#114"),
        "memory_w": _assumed(105, 70, 150, "3.35 TB/s of HBM3 at 4 pJ per bit"),
    },
    "H200": {
        **_HOPPER,
        "idle_w": Figure(73.7, "average of idle H200s, conservemode.com/case-studies; 80.3 W elsewhere"),
        "loaded_idle_w": _assumed(
            124, 105, 145, "the H100's 50 W for a context on top of its own idle power"
        ),
        "memory_w": _assumed(
            120,
            90,
            190,
            "4.8 TB/s of HBM3e at 3.1 pJ per bit; all of decode draws 137-300 W (arXiv:2605.11999)",
        ),
    },
    "V100": {
        **_COMMON,
        "clock_min_mhz": Figure(135, "clock when idle, V100 SXM2, github.com/NVIDIA/nvidia-docker#914"),
        "clock_max_mhz": Figure(1530, "V100 SXM2, nvidia-smi -q, github.com/NVIDIA/nvidia-docker#1076"),
        "clock_step_mhz": Figure(7.5, "7 and 8 MHz in turn, github.com/mertside/ai-inference-energy"),
        "clock_base_mhz": Figure(1290, "default application clock, github.com/NVIDIA/nvidia-docker#1076"),
        "power_limit_w": Figure(300, "V100 SXM2, nvidia-smi -q, github.com/NVIDIA/nvidia-docker#1076"),
        "power_limit_min_w": Figure(150, "V100 SXM2, nvidia-smi -q, github.com/NVIDIA/nvidia-docker#1076"),
        "power_limit_max_w": Figure(300, "V100 SXM2, nvidia-smi -q, github.com/NVIDIA/nvidia-docker#1076"),
        "idle_w": _assumed(
            40, 33, 50, "33 W at the lowest clock, 45 W loaded (github.com/sasha0552/nvidia-pstated#6), PCIe"
        ),
        "loaded_idle_w": Figure(
            55, "53 W (github.com/zai-org/GLM-130B#32) to 57 W (nvidia-docker#1076), SXM2"
        ),
        "leakage_w": _assumed(9, 4, 14, _WHY_LEAKAGE),
        "compute_w": _assumed(255, 210, 320, f"{_WHY_LIMITED}: 300 W at some 1450 MHz"),
        "memory_w": _assumed(45, 30, 65, "0.9 TB/s of HBM2 at 6 pJ per bit"),
        "link_w": _assumed(20, 10, 35, f"{_WHY_LINK}: 300 GB/s"),
        "voltage_floor": _assumed(0.7, 0.62, 0.8, _WHY_CURVE),
        "voltage_knee": _assumed(0.62, 0.5, 0.72, _WHY_CURVE),
        "thermal_resistance_c_per_w": _assumed(
            0.12, 0.09, 0.16, "32 C at 57 W (github.com/NVIDIA/nvidia-docker#1076), some 60 C at 300 W"
        ),
        "temperature_slowdown_c": Figure(87, "GPU Slowdown Temp, github.com/NVIDIA/nvidia-docker#1076"),
        "latency_median_ms": _assumed(15, 8, 30, "not measured; calls alone take 4-16 ms"),
        "sensor_window_ms": _assumed(20, 10, 20, "older boards are sampled without gaps at a shorter period"),
        "sensor_period_ms": _assumed(
            20, 20, 100, "older boards are sampled without gaps at a shorter period"
        ),
    },
    "L40S": {
        **_COMMON,
        "clock_min_mhz": _assumed(210, 210, 210, "lowest clock of every Ada board seen"),
        "clock_max_mhz": Figure(2520, "boost clock, TechPowerUp GPU database"),
        "clock_base_mhz": Figure(1110, "base clock, TechPowerUp GPU database"),
        "power_limit_w": Figure(350, "NVIDIA L40S data sheet"),
        "power_limit_min_w": _assumed(100, 100, 150, "100 W on the A30 and A100 (nvidia-docker#1447, #1648)"),
        "power_limit_max_w": Figure(350, "NVIDIA L40S data sheet"),
        "idle_w": Figure(35.6, _BARE),
        "loaded_idle_w": Figure(102.0, f"{_CONTEXT}; 110 W in another study"),
        "leakage_w": _assumed(25, 12, 45, _WHY_LEAKAGE),
        "compute_w": _assumed(370, 300, 450, f"{_WHY_LIMITED}: 350 W at some 2100 MHz"),
        "memory_w": _assumed(60, 40, 80, "0.86 TB/s of GDDR6 at 7-9 pJ per bit"),
        "link_w": _assumed(8, 3, 15, f"{_WHY_LINK}: PCIe 4.0 x16"),
        "voltage_floor": _assumed(0.68, 0.6, 0.78, _WHY_CURVE),
        "voltage_knee": _assumed(0.6, 0.5, 0.75, _WHY_CURVE),
        "thermal_resistance_c_per_w": _assumed(0.14, 0.1, 0.18, "passive card, some 75 C at 350 W"),
        "temperature_slowdown_c": _assumed(92, 87, 95, "no public figure"),
        "latency_median_ms": _assumed(20, 8, 60, "not measured; between A100 and Hopper"),
        "latency_target_spread": _assumed(0.6, 0.3, 0.9, "not measured; between A100 and Hopper"),
        "sensor_window_ms": _assumed(100, 25, 100, "newer boards without HBM are sampled without gaps"),
        "sensor_period_ms": _assumed(100, 20, 100, "newer boards without HBM are sampled without gaps"),
    },
}


def _preset(name: str, figures: Mapping[str, Figure]) -> GpuSpec:
    values = {field: figures[field].value for field in ALL_FIELDS}
    switching = Switching(**{field: values.pop(field) for field in SWITCHING_FIELDS})
    return GpuSpec(name=name, switching=switching, **values)


FIGURES: Mapping[str, Mapping[str, Figure]] = MappingProxyType(
    {
        name: MappingProxyType({field: figures[field] for field in ALL_FIELDS})
        for name, figures in _FIGURES.items()
    }
)
PRESETS: dict[str, GpuSpec] = {name: _preset(name, figures) for name, figures in FIGURES.items()}


def header() -> str:
    """The models as a C header, for those who compile ``gpu_physics.c`` without Python."""
    lines = [
        "/* Generated by `python -m emo.sim.presets --header`; sources are in emo.sim.presets. */",
        "#ifndef EMO_GPU_PRESETS_H",
        "#define EMO_GPU_PRESETS_H",
        "",
        '#include "gpu_physics.h"',
        "",
        "typedef struct {",
        "    const char *name;",
        "    gp_spec spec;",
        "    gp_switching switching;",
        f"    double {', '.join(SENSOR_FIELDS)};",
        "} gp_preset;",
        "",
        "static const gp_preset GP_PRESETS[] = {",
    ]
    for name, spec in PRESETS.items():
        lines.append(f'    {{.name = "{name}",')
        lines += _c_fields("spec", spec, SPEC_FIELDS)
        lines += _c_fields("switching", spec.switching, SWITCHING_FIELDS)
        lines.append(
            "     " + ", ".join(f".{field} = {getattr(spec, field)!r}" for field in SENSOR_FIELDS) + "},"
        )
    lines += ["};", "", "#endif", ""]
    return "\n".join(lines)


def _c_fields(member: str, holder: object, names: tuple[str, ...]) -> list[str]:
    fields = [f"         .{field} = {float(getattr(holder, field))!r}," for field in names]
    return [f"     .{member} = {{", *fields, "     },"]


def table() -> str:
    """The models as Markdown: one table for each, every figure with its source or its range."""
    parts = []
    for name, figures in FIGURES.items():
        rows = [f"| {field} | {figure.value:g} | {_origin(figure)} |" for field, figure in figures.items()]
        parts.append(
            "\n".join([f"### {name}", "", "| figure | value | source |", "|---|---|---|", *rows, ""])
        )
    return "\n".join(parts)


def _origin(figure: Figure) -> str:
    if not figure.assumed:
        return figure.source
    return f"*assumed*, {figure.low:g} to {figure.high:g}: {figure.source}"


def main() -> None:
    """Prints the models as asked."""
    parser = argparse.ArgumentParser(prog="python -m emo.sim.presets", description=__doc__)
    form = parser.add_mutually_exclusive_group(required=True)
    form.add_argument("--header", action="store_true", help="as a C header")
    form.add_argument("--table", action="store_true", help="as Markdown tables")
    options = parser.parse_args()
    print(header() if options.header else table(), end="")


if __name__ == "__main__":
    main()
