"""Documents of ``emo version`` and ``emo doctor``."""

from __future__ import annotations

from typing import Literal

from emo.api.document import Document, described, schema_name


class VersionReport(Document):
    """``emo version --json``."""

    schema_: Literal["emo.version/v1"] = schema_name()
    emo: str = described("version of EMO; 'unknown' if it runs from a source tree that is not installed")
    python: str = described("version and implementation of Python")
    native: str | None = described("file of the native extension; null: it cannot be loaded")
    platform: str = described("operating system and machine")


class Check(Document):
    """One thing that doctor looked at."""

    name: str = described("what was looked at")
    group: Literal["core", "gpu", "extras"] = described("which part of EMO needs it")
    status: Literal["ok", "missing", "problem"] = described(
        "ok; missing: not there, and only some uses need it; problem: there, but not usable as it is"
    )
    found: str = described("what was found")
    needed_for: str = described("what it is for")
    advice: str | None = described("what to do about it; null: nothing")


class GpuDevice(Document):
    """A GPU of this machine, as NVML tells."""

    index: int = described("index in NVML")
    uuid: str = described("UUID")
    name: str = described("model")
    max_sm_clock_mhz: int | None = described("highest SM clock; null: not told", "MHz")
    energy_counter: bool = described("the total energy counter can be read")


class DoctorReport(Document):
    """``emo doctor --json``."""

    schema_: Literal["emo.doctor/v1"] = schema_name()
    checks: list[Check] = described("all checks, in order")
    gpus: list[GpuDevice] = described("GPUs that NVML finds here")
