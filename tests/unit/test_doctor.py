"""Doctor on machines of every kind: no driver, a driver that answers, refuses, or hangs."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from emo import doctor

needs_compiler = pytest.mark.skipif(
    shutil.which("cc") is None, reason="no C compiler to build a stand-in for NVML"
)

NVML = r"""
#include <string.h>
#include <unistd.h>
typedef void *gpu_t;
static int text_is(char *to, unsigned size, const char *text) { strncpy(to, text, size); return 0; }

int nvmlInit_v2(void) { return INIT; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return code == 9 ? "Driver Not Loaded" : "?"; }
int nvmlSystemGetDriverVersion(char *to, unsigned size) { return text_is(to, size, "580.1"); }
int nvmlDeviceGetCount_v2(unsigned *count) { if (HANG) sleep(30); *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, gpu_t *gpu) { *gpu = (gpu_t)(i + 1L); return 0; }
int nvmlDeviceGetUUID(gpu_t g, char *to, unsigned n) {
    return text_is(to, n, g == (gpu_t)1 ? "GPU-a" : "GPU-b");
}
int nvmlDeviceGetName(gpu_t g, char *to, unsigned n) { return text_is(to, n, "Fake H100"); }
int nvmlDeviceGetMaxClockInfo(gpu_t g, int type, unsigned *mhz) { *mhz = 1980; return type == 1 ? 0 : 2; }
int nvmlDeviceGetTotalEnergyConsumption(gpu_t g, unsigned long long *mj) { return g == (gpu_t)1 ? 0 : 3; }
"""

Build = Callable[..., str]


@pytest.fixture
def nvml(tmp_path: Path) -> Build:
    """Builds a stand-in for libnvidia-ml.so.1 and returns its path."""

    def build(init: int = 0, hang: int = 0) -> str:
        source, library = tmp_path / "nvml.c", tmp_path / "libnvidia-ml.so.1"
        source.write_text(NVML)
        defines = [f"-DINIT={init}", f"-DHANG={hang}"]
        subprocess.run(
            ["cc", "-shared", "-fPIC", *defines, "-o", library, source], check=True, capture_output=True
        )
        return str(library)

    return build


@needs_compiler
def test_gpus_are_found(nvml: Build) -> None:
    answer = doctor.ask_nvml(nvml())
    assert (answer.error, answer.driver) == (None, "580.1")
    assert answer.gpus == [
        doctor.Gpu(0, "GPU-a", "Fake H100", 1980, True),
        doctor.Gpu(1, "GPU-b", "Fake H100", 1980, False),
    ]


@needs_compiler
def test_driver_that_refuses_is_quoted(nvml: Build) -> None:
    assert doctor.ask_nvml(nvml(init=9)).error == "nvmlInit failed: Driver Not Loaded"


@needs_compiler
def test_driver_that_hangs_does_not_hang_doctor(nvml: Build) -> None:
    begun = time.monotonic()
    answer = doctor.ask_nvml(nvml(hang=1), deadline_s=0.2)
    assert answer.error is not None
    assert "did not answer within 0.2 s" in answer.error
    assert time.monotonic() - begun < 10


def test_library_that_is_no_nvml_is_told() -> None:
    assert doctor.ask_nvml("libnothing.so.1").error == "libnothing.so.1 not found"
    answer = doctor.ask_nvml("libc.so.6")
    assert answer.error is not None
    assert "lacks a function" in answer.error


def test_findings_follow_what_nvml_says(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [doctor.Gpu(0, "GPU-a", "Fake", 1980, True), doctor.Gpu(1, "GPU-b", "Fake", None, False)]
    monkeypatch.setattr(doctor, "ask_nvml", lambda: doctor.NvmlAnswer(driver="580.1", gpus=gpus))
    for may, status in ((True, "ok"), (False, "missing")):
        monkeypatch.setattr(doctor, "may_set_clocks", lambda may=may: may)
        document = doctor.doctor_document()
        found = {check["name"]: check["status"] for check in document["checks"] if check["group"] == "gpu"}
        assert found == {
            "NVIDIA driver": "ok",
            "GPU 0": "ok",
            "GPU 1": "problem",
            "permission to set clocks": status,
        }
        assert [gpu["uuid"] for gpu in document["gpus"]] == ["GPU-a", "GPU-b"]


def test_a_device_without_usable_nvml_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "ask_nvml", lambda: doctor.NvmlAnswer(error="broken"))
    for present, status in ((True, "problem"), (False, "missing")):
        monkeypatch.setattr(os.path, "exists", lambda _path, present=present: present)
        check = next(
            check for check in doctor.doctor_document()["checks"] if check["name"] == "NVIDIA driver"
        )
        assert check["status"] == status
        assert "broken" in check["found"]
        assert check["advice"]


def test_extras_are_those_of_the_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    requirements = ["numpy>=2", 'ortools>=9.12; extra == "plan"', "emo-no-such>=1 ; extra == 'agent'"]
    monkeypatch.setattr(metadata, "requires", lambda _name: requirements)
    monkeypatch.setattr(doctor, "_has", lambda package: package != "emo-no-such")
    extras = {
        check["name"]: check for check in doctor.doctor_document()["checks"] if check["group"] == "extras"
    }
    assert {name: check["status"] for name, check in extras.items()} == {"[plan]": "ok", "[agent]": "missing"}
    assert extras["[agent]"]["advice"] == "pip install 'emo[agent]'"


def test_source_tree_that_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_name: str) -> str:
        raise metadata.PackageNotFoundError("emo")

    monkeypatch.setattr(metadata, "version", missing)
    monkeypatch.setattr(metadata, "requires", missing)
    check = next(check for check in doctor.doctor_document()["checks"] if check["name"] == "package")
    assert check["status"] == "problem"
    assert doctor.version_document()["emo"] == "unknown"
