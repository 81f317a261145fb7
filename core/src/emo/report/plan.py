"""The section about a plan: what it may be used for, prediction, clocks, rungs.

The plan comes as a document of ``emo.plan/v1`` (:class:`emo.api.plan.PlanReport`, or the mapping
that it is made from). Keys that a document lacks leave their row out, so that a report can be made
of documents older or newer than this module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from emo.errors import InputError
from emo.report.charts import table
from emo.report.text import THIN, digits, duration, escape, percent, upper

Document = Mapping[str, Any]


def plan_section(plan: object) -> str:
    """The body of the plan section, as HTML. Raises InputError if ``plan`` is no plan document."""
    data = _document(plan)
    return _use(data) + _outcome(data) + _clocks(data) + _rungs(data) + _hints(data)


def _document(plan: object) -> Document:
    dump = getattr(plan, "model_dump", None)
    data = dump(mode="json") if callable(dump) else plan
    if not isinstance(data, Mapping):
        raise InputError(f"plan is a {type(plan).__name__}; expected a plan document or a mapping")
    return data


def _use(data: Document) -> str:
    """What the plan may be used for, and what it rests on."""
    enforce = data.get("allowed_mode") == "Enforce"
    source = data.get("model_source")
    source = source if isinstance(source, Mapping) else {}
    basis = "measured" if source.get("measured") and not source.get("prior") else "prior"
    head = f"<b>{'May be enforced' if enforce else 'Recommend only'}</b> (models: {basis})."
    text = f" {upper(escape(source['text']))}." if source.get("text") else ""
    reasons = "".join(f"<li>{escape(reason)}</li>" for reason in _list(data.get("allowed_mode_reasons")))
    css = "verdict good" if enforce else "verdict"
    return f'<div class="{css}">{head}{text}{f"<ul>{reasons}</ul>" if reasons else ""}</div>'


def _outcome(data: Document) -> str:
    saving, slowdown = data.get("predicted_energy_saving_ratio"), data.get("predicted_slowdown_ratio")
    about = "step time" if data.get("basis") == "iterations" else "length of the recorded window"
    bounds = data.get("bounds_reason")
    bounds = bounds if isinstance(bounds, Mapping) else {}
    rows = [
        ("GPU model", escape(data.get("gpu_model") or ""), ""),
        ("Slowdown allowed", _ratio(data.get("target_slowdown_ratio")), f"of the {about}"),
        ("Slowdown predicted", _ratio(slowdown), _interval(slowdown)),
        ("Energy saving predicted", _ratio(saving), _interval(saving)),
        ("Energy under the plan", _energy(data.get("energy_j")), "all GPUs, over the recorded window"),
        ("Energy at the highest clock", _energy(data.get("reference_energy_j")), "the reference"),
        ("Bound, static clocks", _energy(data.get("lb_static_j")), escape(bounds.get("lb_static_j", ""))),
        ("Bound, free switching", _energy(data.get("lb_free_j")), escape(bounds.get("lb_free_j", ""))),
        ("Gap to the static bound", _ratio(data.get("gap_ratio")), escape(bounds.get("gap_ratio", ""))),
        ("Step time without profiler", _time(data.get("untraced_step_time_ns")), "as given"),
    ]
    return table(["Quantity", "Value", "Note"], [row for row in rows if row[1]], "facts")


def _clocks(data: Document) -> str:
    rows = [
        [
            f"rank {escape(gpu.get('rank', '?'))}, GPU {escape(gpu.get('device', '?'))}",
            f"{escape(gpu.get('clock_mhz', '?'))}{THIN}MHz",
            _time(gpu.get("busy_ns")),
            _time(gpu.get("peer_wait_ns")),
            _time(gpu.get("slack_ns")),
        ]
        for gpu in _list(data.get("gpus"))
        if isinstance(gpu, Mapping)
    ]
    head = ["GPU", "Clock", "Busy", "Waiting in collectives", "Usable slack"]
    return f"<h3>Clock of every GPU</h3>{table(head, rows, 'numbers')}" if rows else ""


def _rungs(data: Document) -> str:
    rows: list[list[str]] = []
    for rung in _list(data.get("rungs")):
        if not isinstance(rung, Mapping):
            continue
        slowdown, saving = rung.get("predicted_slowdown_ratio"), rung.get("predicted_energy_saving_ratio")
        cells = [_ratio(slowdown), _interval(slowdown), _ratio(saving), _interval(saving)]
        rows.append([str(len(rows)), _distinct(_list(rung.get("clocks_mhz"))), *cells])
    head = ["Rung", "Clocks (MHz)", "Slowdown", "interval", "Energy saving", "interval"]
    title = "<h3>Rungs: from the highest clock to the plan, which is the last</h3>"
    return title + table(head, rows, "numbers") if rows else ""


def _hints(data: Document) -> str:
    hints = "".join(f"<li>{escape(hint)}</li>" for hint in _list(data.get("hints")))
    return f"<h3>What would make the plan better</h3><ul>{hints}</ul>" if hints else ""


def _distinct(clocks: Sequence[Any]) -> str:
    """One number says it all where every GPU has the same clock."""
    return escape(clocks[0] if len(set(clocks)) == 1 else ", ".join(map(str, clocks)))


def _ratio(value: object) -> str:
    """The likeliest value of a ratio or an estimate; empty if there is none."""
    if isinstance(value, Mapping):
        value = value.get("value")
    return percent(float(value)) if isinstance(value, int | float) else ""


def _interval(value: object) -> str:
    if not isinstance(value, Mapping):
        return ""
    low, high = _ratio(value.get("low")), _ratio(value.get("high"))
    return f"{low} to {high}" if low and high else ""


def _energy(value: object) -> str:
    return f"{digits(float(value))}{THIN}J" if isinstance(value, int | float) else ""


def _time(value: object) -> str:
    return duration(float(value)) if isinstance(value, int | float) else ""


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()
