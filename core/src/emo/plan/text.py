"""A plan in words: 80 columns of plain text, findings before figures."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

Json = dict[str, Any]

_COLUMNS = 80
_SHOWN_GPUS = 16


def plan_text(document: Json) -> str:
    """The summary of an ``emo.plan/v1`` document."""
    findings = [
        _paragraph(_slack(document), "Slack     "),
        _paragraph(_plan(document), "Plan      "),
        _paragraph(_slowdown(document), "Slowdown  "),
        _paragraph(_saving(document), "Saving    "),
    ]
    parts = [
        _paragraph(_headline(document)),
        "\n".join(findings),
        _gpu_table(document),
        _rung_table(document),
        _bullets("Recommend only, because", document["allowed_mode_reasons"]),
        _bullets("For a better plan", document["hints"]),
    ]
    return "\n\n".join(part for part in parts if part)


def _headline(document: Json) -> str:
    step_ns = document["traced_step_time_ns"]
    what = "the window taken as one step" if step_ns is None else f"{step_ns / 1e6:.1f} ms per step, traced"
    count = len(document["gpus"])
    gpus = "1 GPU" if count == 1 else f"{count} GPUs"
    allowed = _percent(document["target_slowdown_ratio"])
    return f"{gpus} planned as {document['gpu_model']}, {what}; at most {allowed} slower"


def _slack(document: Json) -> str:
    gpus = document["gpus"]
    whole_ns = document["makespan_ns"] * len(gpus)
    slack, busy, wait, idle = (
        _percent(sum(gpu[part] for gpu in gpus) / whole_ns)
        for part in ("slack_ns", "busy_ns", "peer_wait_ns", "idle_ns")
    )
    return (
        f"{slack} of the GPUs' time can be filled without delay; they work {busy}, wait for other ranks "
        f"{wait}, idle {idle}."
    )


def _plan(document: Json) -> str:
    candidates = document["solver"]["candidates_mhz"]
    clocks = {gpu["clock_mhz"] for gpu in document["gpus"]}
    if clocks == {candidates[0]}:
        return f"full clock, {candidates[0]} MHz: nothing slower is sure to keep the target and saves energy."
    found = "the best" if document["solver"]["exact"] else "the best found (heuristic search)"
    return (
        f"{_span(clocks, ' to ')} MHz instead of {candidates[0]} MHz; {found} of {len(candidates)} "
        "candidate clocks per GPU."
    )


def _slowdown(document: Json) -> str:
    variants = len(document["solver"]["variants"])
    return (
        f"{_range(document['predicted_slowdown_ratio'])}; the target holds in all {variants} variants of "
        "what the trace and the priors leave open."
    )


def _saving(document: Json) -> str:
    estimate = document["predicted_energy_saving_ratio"]
    if len(document["rungs"]) == 1:
        return "no saving within the target."
    text = f"{_range(estimate)} of the GPUs' energy: by assumption, nothing was measured."
    return f"{text} It may cost energy instead." if estimate["low"] < 0 else text


def _range(estimate: Json) -> str:
    value, low, high = (_percent(estimate[key]) for key in ("value", "low", "high"))
    return f"{value} likely, {low} to {high} plausible"


def _gpu_table(document: Json) -> str:
    rows = [("rank:GPU", "clock", "busy", "peer wait", "idle", "slack")]
    gpus = document["gpus"]
    for gpu in gpus[:_SHOWN_GPUS]:
        busy, wait, idle, slack = (
            _percent(gpu[part] / document["makespan_ns"])
            for part in ("busy_ns", "peer_wait_ns", "idle_ns", "slack_ns")
        )
        rows.append((f"{gpu['rank']}:{gpu['device']}", f"{gpu['clock_mhz']} MHz", busy, wait, idle, slack))
    more = len(gpus) - _SHOWN_GPUS
    return _table(rows) + (f"\n{more} more in --json" if more > 0 else "")


def _rung_table(document: Json) -> str:
    if len(document["rungs"]) == 1:
        return ""
    rows: list[Sequence[str]] = [("rungs, MHz", "slowdown", "at most", "saving", "at least")]
    for rung in document["rungs"]:
        slowdown, saving = rung["predicted_slowdown_ratio"], rung["predicted_energy_saving_ratio"]
        figures = (slowdown["value"], slowdown["high"], saving["value"], saving["low"])
        rows.append((_span(set(rung["clocks_mhz"]), "-"), *map(_percent, figures)))
    return _table(rows)


def _span(clocks: set[int], between: str) -> str:
    return str(min(clocks)) if len(clocks) == 1 else f"{min(clocks)}{between}{max(clocks)}"


def _percent(ratio: float) -> str:
    return f"{100 * ratio + 0.0:.1f} %".replace("-0.0 %", "0.0 %")


def _paragraph(text: str, lead: str = "") -> str:
    # Names come from the trace: what a terminal would act on is no text.
    plain = "".join(char if char.isprintable() else " " for char in text)
    filled = textwrap.fill(
        plain.replace(" %", "\N{NO-BREAK SPACE}%"),  # a number stays with its unit
        _COLUMNS,
        initial_indent=lead,
        subsequent_indent=" " * len(lead),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return filled.replace("\N{NO-BREAK SPACE}", " ")


def _bullets(title: str, lines: Sequence[str]) -> str:
    return "\n".join([title, *(_paragraph(line, "  - ") for line in lines)]) if lines else ""


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they need to be: the first to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]
        ).rstrip()
        for row in rows
    )
