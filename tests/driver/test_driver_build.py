"""The library and its sources belong together: models, symbols, builds."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from gpus import script

from emo.errors import EmoError, InputError
from emo.sim.driver import BRANCHES, REPOSITORY, SOURCES, SimulatedDriver, build
from emo.sim.presets import PRESETS, header


def test_the_models_in_c_are_those_in_python() -> None:
    assert (SOURCES / "gpu_presets.h").read_text() == header(), (
        "run: python -m emo.sim.presets --header > agent/native/gpu_presets.h"
    )


def test_every_model_can_be_simulated(tmp_path: Path) -> None:
    with SimulatedDriver.create(tmp_path / "state", list(PRESETS), frozen=True) as driver:
        state = driver.state()
        assert [gpu.model for gpu in state.gpus] == list(PRESETS)
        for gpu, spec in zip(state.gpus, PRESETS.values(), strict=True):
            assert gpu.clock_mhz == spec.clock_min_mhz
            assert gpu.power_w == spec.idle_w
            assert gpu.power_limit_w == spec.power_limit_w


def _exported(branch: int) -> set[str]:
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", str(build(branch))], capture_output=True, text=True, check=True
    )
    return {line.split()[-1] for line in listing.stdout.splitlines()}


def test_a_branch_exports_what_its_header_had() -> None:
    listed = [line.split() for line in (SOURCES / "symbols.txt").read_text().splitlines() if line[0] != "#"]
    for branch in BRANCHES:
        assert _exported(branch) == {name for name, since in listed if int(since) <= branch}
    assert len([name for name in _exported(BRANCHES[-1]) if name.startswith("nvml")]) >= 60
    assert _exported(BRANCHES[0]) < _exported(BRANCHES[-1])


def test_every_function_in_the_sources_is_listed() -> None:
    sources = "\n".join(path.read_text() for path in sorted(SOURCES.glob("*.c")))
    defined = set(re.findall(r"^NVML_API .*?(nvml\w+)\(", sources, re.MULTILINE))
    defined |= set(re.findall(r"^GIVES_NUMBER\((nvml\w+)", sources, re.MULTILINE))
    listed = {line.split()[0] for line in (SOURCES / "symbols.txt").read_text().splitlines()}
    assert defined == {name for name in listed if name.startswith("nvml")}


def test_a_build_is_used_where_there_is_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMO_SIMGPU_LIBRARY", str(REPOSITORY / "build" / "simgpu"))
    monkeypatch.setenv("PATH", "")
    assert build(580) == REPOSITORY / "build" / "simgpu" / "580" / "libnvidia-ml.so.1"
    monkeypatch.setenv("EMO_SIMGPU_LIBRARY", str(tmp_path))
    with pytest.raises(InputError, match="no such file"):
        build(580)
    monkeypatch.delenv("EMO_SIMGPU_LIBRARY")
    with pytest.raises(EmoError, match="make not found"):
        build(580)


def test_a_child_finds_the_driver_by_its_environment_alone(tmp_path: Path) -> None:
    with SimulatedDriver.create(tmp_path / "state", ["L40S"]) as driver:
        found = driver.environment({"LD_LIBRARY_PATH": "/elsewhere"})
        assert found["LD_LIBRARY_PATH"] == f"{build().parent}:/elsewhere"
        assert set(found) == {"LD_LIBRARY_PATH", "EMO_SIMGPU_STATE"}
        name = "n.nvmlInit(); print(n.nvmlDeviceGetName(n.nvmlDeviceGetHandleByIndex(0)))"
        assert script(driver, name) == "NVIDIA L40S"


@pytest.mark.parametrize(
    ("models", "branch", "message"),
    [(["X1"], 580, "no GPU model X1"), (["A100"] * 17, 580, "more than 16"), (["A100"], 390, "driver 390")],
)
def test_what_cannot_be_made(tmp_path: Path, models: list[str], branch: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        SimulatedDriver.create(tmp_path / "state", models, branch=branch)
    assert list(tmp_path.iterdir()) == []


def test_a_state_is_not_made_twice_and_not_taken_for_another_file(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with SimulatedDriver.create(path, ["A100"]) as driver:
        before = driver.state().seed
        with pytest.raises(InputError, match="File exists"):
            SimulatedDriver.create(path, ["H100"], seed=9)
        assert driver.state().seed == before
    with pytest.raises(EmoError, match="closed"):
        driver.state()
    path.write_bytes(path.read_bytes()[:-1])
    for wrong in (path, tmp_path / "nowhere", tmp_path):
        with pytest.raises(InputError, match="no simulated GPUs"):
            SimulatedDriver(wrong)


def test_the_manual_has_every_key_and_no_other() -> None:
    manual = (REPOSITORY / "docs" / "simulated-driver.md").read_text()
    source = (SOURCES / "simgpu.c").read_text()
    rows = re.findall(r"^\| (`[a-z_]+`(?:, `[a-z_]+`)*) \|", manual, re.MULTILINE)
    described = {key for row in rows for key in re.findall(r"`([a-z_]+)`", row)}
    of_a_gpu = set(re.findall(r'^    \{"([a-z_]+)", ', source, re.MULTILINE))
    of_the_system = set(re.findall(r'strcmp\(key, "([a-z_]+)"\) == 0', source))
    assert len(of_a_gpu) > 20
    assert described == of_a_gpu | of_the_system
