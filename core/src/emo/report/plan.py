"""The section about a plan: target, prediction, clocks, rungs.

The plan comes as data (a mapping, or a pydantic model that dumps to one), so that a report can be
made of any version of it: what is not known by name is left out, what is missing is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from emo.errors import InputError
from emo.report.charts import table
from emo.report.text import digits, escape, percent


def plan_data(plan: object) -> Mapping[str, Any]:
    """The plan as a mapping; raises InputError for something else."""
    dump = getattr(plan, "model_dump", None)
    data = dump(mode="json") if callable(dump) else plan
    if not isinstance(data, Mapping):
        raise InputError(f"plan is a {type(plan).__name__}; expected a plan model or a mapping")
    return data


def plan_section(plan: object) -> str:
    """The body of the plan section, as HTML."""
    data = plan_data(plan)
    return _allowed(data) + _outcome(data) + _clocks(data) + _rungs(data)


def _allowed(data: Mapping[str, Any]) -> str:
    mode = data.get("allowed_mode")
    reasons = data.get("allowed_mode_reasons", data.get("reasons", ()))
    if isinstance(mode, Mapping):
        reasons, mode = mode.get("reasons", reasons), mode.get("mode", mode.get("value"))
    source = data.get("model_source")
    prior = _is_prior(source)
    label = "Recommend only" if mode != "Enforce" else "May be enforced"
    basis = "the energy model is a <b>prior</b>, not measured on this GPU" if prior else ""
    items = "".join(f"<li>{escape(reason)}</li>" for reason in _texts(reasons))
    css = "verdict good" if mode == "Enforce" else "verdict"
    tail = f": {basis}" if basis else ""
    return f'<div class="{css}"><b>{label}</b>{tail}.{f"<ul>{items}</ul>" if items else ""}</div>'


def _is_prior(source: object) -> bool:
    if isinstance(source, Mapping):
        return bool(source.get("prior")) or not source.get("measured")
    return source is None or "prior" in str(source).lower()


def _outcome(data: Mapping[str, Any]) -> str:
    rows = []
    target = data.get("max_slowdown_ratio", data.get("target_slowdown_ratio", data.get("max_slowdown")))
    if target is not None:
        rows.append(["Target: step at most longer by", _ratio(target), ""])
    for key, title in (
        ("predicted_slowdown_ratio", "Predicted slowdown"),
        ("predicted_energy_saving_ratio", "Predicted energy saving"),
    ):
        if key in data:
            rows.append([title, _ratio(data[key]), _interval(data[key])])
    for key, title, unit in (
        ("lb_static_j", "Lower bound, static clocks", "J"),
        ("lb_free_j", "Lower bound, free switching", "J"),
    ):
        if isinstance(data.get(key), int | float):
            rows.append([title, f"{digits(float(data[key]))}\u202f{unit}", "energy of the window"])
    if isinstance(data.get("gap_ratio"), int | float):
        rows.append(["Gap to the bound", percent(float(data["gap_ratio"])), ""])
    return table(["Quantity", "Value", "Interval"], rows, "facts") if rows else ""


def _ratio(value: object) -> str:
    if isinstance(value, Mapping):
        value = value.get("value")
    return (
        percent(float(value))
        if isinstance(value, int | float)
        else escape("not known" if value is None else value)
    )


def _interval(value: object) -> str:
    if not isinstance(value, Mapping):
        return ""
    low, high = value.get("low"), value.get("high")
    if not isinstance(low, int | float) or not isinstance(high, int | float):
        return ""
    return f"{percent(float(low))} to {percent(float(high))}"


def _clocks(data: Mapping[str, Any]) -> str:
    gpus = [gpu for gpu in _sequence(data.get("gpus")) if isinstance(gpu, Mapping)]
    if not gpus:
        return ""
    rows = [[_gpu_name(gpu), _clock(gpu)] for gpu in gpus]
    return "<h3>Clock of every GPU</h3>" + table(["GPU", "Clock"], rows, "numbers")


def _gpu_name(gpu: Mapping[str, Any]) -> str:
    parts = [f"{key} {gpu[key]}" for key in ("rank", "device") if gpu.get(key) is not None]
    return escape(", ".join(parts).replace("device", "GPU") or "GPU")


def _clock(gpu: Mapping[str, Any]) -> str:
    if gpu.get("clock_mhz") is not None:
        return f"{escape(gpu['clock_mhz'])}\u202fMHz"
    phases = [phase for phase in _sequence(gpu.get("phases")) if isinstance(phase, Mapping)]
    return (
        "; ".join(
            f"{escape(phase.get('name', 'phase'))} {escape(phase.get('clock_mhz', '?'))}\u202fMHz"
            for phase in phases
        )
        or "unchanged"
    )


def _rungs(data: Mapping[str, Any]) -> str:
    rungs = [rung for rung in _sequence(data.get("rungs")) if isinstance(rung, Mapping)]
    if not rungs:
        return ""
    rows = []
    for number, rung in enumerate(rungs):
        slowdown = rung.get("predicted_slowdown_ratio", rung.get("slowdown_ratio"))
        saving = rung.get("predicted_energy_saving_ratio", rung.get("energy_saving_ratio"))
        clocks = rung.get("clocks_mhz", rung.get("clock_mhz", rung.get("gpus")))
        rows.append([str(number), _ratio(slowdown), _ratio(saving), _clock_list(clocks)])
    return "<h3>Rungs, from fastest to slowest</h3>" + table(
        ["Rung", "Slowdown", "Energy saving", "Clocks (MHz)"], rows, "numbers"
    )


def _clock_list(clocks: object) -> str:
    if isinstance(clocks, Mapping):
        clocks = list(clocks.values())
    if not isinstance(clocks, Sequence) or isinstance(clocks, str):
        return escape("" if clocks is None else clocks)
    each = [clock.get("clock_mhz", "?") if isinstance(clock, Mapping) else clock for clock in clocks]
    # One number says it all where every GPU has the same clock.
    return escape(each[0] if len(set(map(str, each))) == 1 else ", ".join(map(str, each)))


def _sequence(value: object) -> Sequence[Any]:
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()


def _texts(reasons: object) -> list[str]:
    return [reasons] if isinstance(reasons, str) else [str(reason) for reason in _sequence(reasons)]
