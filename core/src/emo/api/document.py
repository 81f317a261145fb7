"""What all documents share: strict, closed, immutable models whose fields carry their unit."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Document(BaseModel):
    """Base of every document and of its parts: no unknown field, no conversion between types."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        validate_by_name=True,
        validate_by_alias=True,
    )


def described(description: str, unit: str | None = None, **constraints: Any) -> Any:
    """A field with its description and, for a quantity, its unit (``unit`` in the JSON schema)."""
    return Field(description=description, json_schema_extra={"unit": unit} if unit else None, **constraints)


def duration_ns(description: str, **constraints: Any) -> Any:
    """A duration in nanoseconds, not negative."""
    return described(description, "ns", ge=0, **constraints)


def instant_ns(description: str) -> Any:
    """An instant in nanoseconds; the description says since when."""
    return described(description, "ns")


def ratio(description: str, **constraints: Any) -> Any:
    """A dimensionless ratio, not negative; 0.01 is one per cent."""
    return described(description, "ratio", ge=0, **constraints)


def count(description: str, **constraints: Any) -> Any:
    """A number of things."""
    return described(description, "count", ge=0, **constraints)


def schema_name() -> Any:
    """The ``schema`` field (BaseModel has an attribute of that name, hence the alias)."""
    return Field(alias="schema", description="kind and version of this document")
