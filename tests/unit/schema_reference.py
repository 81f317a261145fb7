"""The schema reference of docs/cli.md, made from the pydantic models.

``python tests/unit/schema_reference.py`` writes it into the docs; a test holds the two equal.
"""

from __future__ import annotations

import re
import types
import typing
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from emo.api.analysis import AnalysisReport, WhatIfReport
from emo.api.environment import DoctorReport, VersionReport
from emo.api.plan import PlanReport

DOCS = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
BEGIN, END = "<!-- schema reference: begin -->\n", "<!-- schema reference: end -->\n"

REPORTS: tuple[type[BaseModel], ...] = (AnalysisReport, WhatIfReport, PlanReport, VersionReport, DoctorReport)


def parts_of(report: type[BaseModel]) -> list[type[BaseModel]]:
    """A model and all models inside it, outermost first."""
    found = [report]
    for model in found:
        for field in model.model_fields.values():
            found += [inner for inner in models_in(field.annotation) if inner not in found]
    return found


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """The models that a field's type is made of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in typing.get_args(annotation) for model in models_in(argument)]


def type_name(annotation: Any) -> str:
    """A type as JSON has it: ``integer``, ``list of GpuReport``, ``"a" or "b"``, ``... or null``."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(type_name(argument) for argument in arguments)
    if origin is Literal:
        return ", ".join(f"`{argument}`" for argument in arguments)
    if origin is list:
        return f"list of {type_name(arguments[0])}"
    if origin is dict:
        return f"object of {type_name(arguments[1])}"
    if annotation is type(None):
        return "null"
    if issubclass(annotation, BaseModel):
        return f"[{annotation.__name__}](#{annotation.__name__.lower()})"
    return {int: "integer", float: "number", str: "string", bool: "boolean"}[annotation]


def unit_of(extra: Any) -> str:
    """The unit that a field's schema carries, or nothing."""
    return extra.get("unit", "") if isinstance(extra, dict) else ""


def reference() -> str:
    """All tables, in Markdown."""
    lines: list[str] = []
    written: set[type[BaseModel]] = set()
    for report in REPORTS:
        for model in parts_of(report):
            if model in written:
                continue
            written.add(model)
            level = "###" if model is report else "####"
            title = (model.__doc__ or "").strip().splitlines()[0]
            lines += [
                f"{level} {model.__name__}",
                "",
                title,
                "",
                "| field | type | unit | meaning |",
                "|---|---|---|---|",
            ]
            for name, field in model.model_fields.items():
                meaning = (field.description or "").replace("|", "\\|")
                key, unit = field.alias or name, unit_of(field.json_schema_extra)
                lines.append(f"| `{key}` | {type_name(field.annotation)} | {unit} | {meaning} |")
            lines.append("")
    return "\n".join(lines)


def replace_in(text: str) -> str:
    """The docs with the reference made anew."""
    pattern = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
    return pattern.sub(lambda _: f"{BEGIN}\n{reference()}\n{END}", text)


if __name__ == "__main__":
    DOCS.write_text(replace_in(DOCS.read_text(encoding="utf-8")), encoding="utf-8")
