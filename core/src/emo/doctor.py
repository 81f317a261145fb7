"""What of this machine EMO can use, and what to do about the rest.

Every check answers with what it found; none raises. NVML is called through ctypes alone: doctor
must work where the optional packages are missing, since it is what tells the user to install them.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import sys
import threading
from dataclasses import asdict, dataclass, field
from importlib import metadata
from typing import Any

# A GPU in trouble has been seen to hold an NVML call for up to a minute.
NVML_DEADLINE_S = 10.0

CAP_SYS_ADMIN = 21

_NVML_CLOCK_SM = 1


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: see :class:`emo.api.environment.Check`."""

    name: str
    group: str
    status: str
    found: str
    needed_for: str
    advice: str | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as NVML tells: see :class:`emo.api.environment.GpuDevice`."""

    index: int
    uuid: str
    name: str
    max_sm_clock_mhz: int | None
    energy_counter: bool


@dataclass(slots=True)
class NvmlAnswer:
    """What NVML said. ``error`` is None if it answered."""

    error: str | None = None
    driver: str = ""
    gpus: list[Gpu] = field(default_factory=list)


def emo_version() -> str:
    """Version of the installed distribution, or ``unknown``."""
    try:
        return metadata.version("emo")
    except metadata.PackageNotFoundError:
        return "unknown"


def native_file() -> str | None:
    """Path of the native extension, or None if it cannot be loaded."""
    try:
        from emo import _native
    except ImportError:
        return None
    return _native.__file__


def version_document() -> dict[str, Any]:
    """``emo.version/v1`` (:class:`emo.api.environment.VersionReport`)."""
    return {
        "schema": "emo.version/v1",
        "emo": emo_version(),
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "native": native_file(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def doctor_document() -> dict[str, Any]:
    """``emo.doctor/v1`` (:class:`emo.api.environment.DoctorReport`)."""
    answer = ask_nvml()
    findings = [*_core(), *_gpu(answer), *_extras()]
    return {
        "schema": "emo.doctor/v1",
        "checks": [asdict(finding) for finding in findings],
        "gpus": [asdict(gpu) for gpu in answer.gpus],
    }


# --------------------------------------------------------------------------- core


def _core() -> list[Finding]:
    version = emo_version()
    if version != "unknown":
        installed = Finding("package", "core", "ok", f"emo {version}", "everything")
    else:
        installed = Finding(
            "package",
            "core",
            "problem",
            "emo runs from a folder and is not installed",
            "extras and versions",
            "install it: pip install -e . in the repository, or make setup",
        )
    native = native_file()
    if native is not None:
        extension = Finding("native extension", "core", "ok", native, "reading and replaying")
    else:
        extension = Finding(
            "native extension",
            "core",
            "problem",
            "emo._native cannot be loaded",
            "reading and replaying",
            "build it with a C compiler: pip install -e . in the repository, or make setup",
        )
    python = Finding("python", "core", "ok", f"{platform.python_version()} at {sys.executable}", "everything")
    return [installed, python, extension]


# --------------------------------------------------------------------------- GPU


_GPU_PURPOSE = "measuring and setting clocks on this machine; analysis and planning work without"


def _gpu(answer: NvmlAnswer) -> list[Finding]:
    if answer.error is not None:
        return [_no_nvml(answer.error)]
    driver = f"{answer.driver}, {len(answer.gpus)} GPUs"
    return [
        Finding("NVIDIA driver", "gpu", "ok", driver, _GPU_PURPOSE),
        *(_device(gpu) for gpu in answer.gpus),
        _permission(),
    ]


def _no_nvml(error: str) -> Finding:
    if any(os.path.exists(path) for path in ("/dev/nvidiactl", "/proc/driver/nvidia/version")):
        return Finding(
            "NVIDIA driver",
            "gpu",
            "problem",
            f"a device is here, but NVML is not usable: {error}",
            _GPU_PURPOSE,
            "in a container, ask for the utility capability (NVIDIA_DRIVER_CAPABILITIES=utility); "
            "elsewhere reload or reinstall the driver",
        )
    return Finding(
        "NVIDIA driver",
        "gpu",
        "missing",
        f"none ({error})",
        _GPU_PURPOSE,
        "nothing if this machine has no NVIDIA GPU; else install its driver, and give a container its GPUs "
        "(docker run --gpus all)",
    )


def _device(gpu: Gpu) -> Finding:
    clock = f"up to {gpu.max_sm_clock_mhz} MHz" if gpu.max_sm_clock_mhz else "highest clock not told"
    counter = "energy counter" if gpu.energy_counter else "no energy counter"
    return Finding(
        f"GPU {gpu.index}",
        "gpu",
        "ok" if gpu.energy_counter else "problem",
        f"{gpu.name}, {clock}, {counter}",
        "metering",
        None
        if gpu.energy_counter
        else "expect less exact energy, integrated from power (before Volta: always)",
    )


def _permission() -> Finding:
    purpose = "setting clocks (the agent; analysis and planning never write to a GPU)"
    if may_set_clocks():
        return Finding("permission to set clocks", "gpu", "ok", "CAP_SYS_ADMIN", purpose)
    return Finding(
        "permission to set clocks",
        "gpu",
        "missing",
        "this process has no CAP_SYS_ADMIN",
        purpose,
        "none for analysis; the agent needs root, or a container with CAP_SYS_ADMIN added",
    )


def may_set_clocks() -> bool:
    """Whether this process holds CAP_SYS_ADMIN (or, where Linux does not tell, is root)."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            effective = re.search(r"^CapEff:\s*([0-9a-f]+)", status.read(), re.MULTILINE)
    except OSError:
        effective = None
    if effective is None:
        return hasattr(os, "geteuid") and os.geteuid() == 0
    return bool(int(effective[1], 16) >> CAP_SYS_ADMIN & 1)


def ask_nvml(library: str = "libnvidia-ml.so.1", deadline_s: float = NVML_DEADLINE_S) -> NvmlAnswer:
    """What NVML says of driver and GPUs, or why it does not; returns within ``deadline_s``."""
    answer = NvmlAnswer(
        error=f"NVML did not answer within {deadline_s:g} s: a GPU hangs; see the kernel log for Xid"
    )
    result: list[NvmlAnswer] = []
    # A daemon thread: a call that never returns must not keep the process from ending.
    thread = threading.Thread(target=lambda: result.append(_ask_nvml(library)), daemon=True)
    thread.start()
    thread.join(deadline_s)
    return result[0] if result else answer


def _ask_nvml(library: str) -> NvmlAnswer:
    try:
        nvml = ctypes.CDLL(library)
    except OSError:
        return NvmlAnswer(error=f"{library} not found")
    try:
        code = nvml.nvmlInit_v2()
        if code:
            return NvmlAnswer(error=f"nvmlInit failed: {_error_text(nvml, code)}")
        try:
            return _query(nvml)
        finally:
            nvml.nvmlShutdown()
    except AttributeError as error:
        return NvmlAnswer(error=f"{library} lacks a function ({error})")


def _query(nvml: ctypes.CDLL) -> NvmlAnswer:
    answer = NvmlAnswer(driver=_string(nvml.nvmlSystemGetDriverVersion) or "unknown driver")
    count = ctypes.c_uint()
    code = nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    if code:
        return NvmlAnswer(error=f"GPUs cannot be counted: {_error_text(nvml, code)}")
    for index in range(count.value):
        handle = ctypes.c_void_p()
        if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
            continue
        clock, energy = ctypes.c_uint(), ctypes.c_ulonglong()
        told = nvml.nvmlDeviceGetMaxClockInfo(handle, _NVML_CLOCK_SM, ctypes.byref(clock)) == 0
        answer.gpus.append(
            Gpu(
                index=index,
                uuid=_string(nvml.nvmlDeviceGetUUID, handle) or "unknown",
                name=_string(nvml.nvmlDeviceGetName, handle) or "unknown",
                max_sm_clock_mhz=clock.value if told else None,
                energy_counter=nvml.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(energy)) == 0,
            )
        )
    return answer


def _string(function: Any, *arguments: Any) -> str | None:
    buffer = ctypes.create_string_buffer(128)
    if function(*arguments, buffer, ctypes.c_uint(len(buffer))):
        return None
    return buffer.value.decode(errors="replace")


def _error_text(nvml: ctypes.CDLL, code: int) -> str:
    nvml.nvmlErrorString.restype = ctypes.c_char_p
    text = nvml.nvmlErrorString(code)
    return text.decode(errors="replace") if text else f"error {code}"


# --------------------------------------------------------------------------- extras


def _extras() -> list[Finding]:
    """One finding per extra of the distribution, from its own metadata."""
    try:
        requirements = metadata.requires("emo") or []
    except metadata.PackageNotFoundError:
        return []
    by_extra: dict[str, list[str]] = {}
    for requirement in requirements:
        extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)", requirement)
        name = re.match(r"[A-Za-z0-9._-]+", requirement)
        if extra and name:
            by_extra.setdefault(extra[1], []).append(name[0])
    return [_extra(extra, packages) for extra, packages in by_extra.items()]


def _extra(extra: str, packages: list[str]) -> Finding:
    missing = [package for package in packages if not _has(package)]
    if not missing:
        return Finding(f"[{extra}]", "extras", "ok", ", ".join(packages), f"the extra '{extra}'")
    return Finding(
        f"[{extra}]",
        "extras",
        "missing",
        f"not installed: {', '.join(missing)}",
        f"the extra '{extra}'",
        f"pip install 'emo[{extra}]'",
    )


def _has(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True
