"""The command emo-simgpu, as a person uses it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


class Cli:
    def __init__(self, state: Path) -> None:
        self.state = state

    def run(self, *arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable,
            "-m",
            "emo.sim.simgpu",
            arguments[0],
            "--state",
            str(self.state),
            *arguments[1:],
        ]
        return subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=60)

    def ok(self, *arguments: str, text: str | None = None) -> str:
        done = self.run(*arguments, text=text)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def gpu(self, index: int = 0) -> dict[str, Any]:
        gpu: dict[str, Any] = json.loads(self.ok("list", "--json"))["gpus"][index]
        return gpu


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    made = Cli(tmp_path / "state")
    made.ok("create", "H100", "A100", "--seed", "4")
    return made


def test_load_and_lock(cli: Cli) -> None:
    cli.ok("load", "0", "--compute", "0.5", "--memory", "0.3")
    cli.ok("lock", "*", "210", "900")
    gpu = cli.gpu()
    assert (gpu["compute"], gpu["memory"], gpu["busy"], gpu["lock_mhz"]) == (0.5, 0.3, 1, [210, 900])
    table = cli.ok("list")
    assert "driver 580" in table
    assert "210-900" in table
    cli.ok("load", "0")
    cli.ok("unlock", "1")
    assert (cli.gpu()["compute"], cli.gpu()["busy"]) == (0, 0)
    assert cli.gpu(1)["lock_mhz"] == [0, 0]


def test_lose_restore_reload(cli: Cli) -> None:
    cli.ok("lock", "0", "210", "900")
    cli.ok("lose", "0")
    assert "lost" in cli.ok("list")
    cli.ok("restore", "0")
    assert cli.gpu()["lock_mhz"] == [0, 0]
    cli.ok("lock", "0", "210", "900")
    cli.ok("reload")
    assert cli.gpu()["lock_mhz"] == [0, 0]


def test_run_a_script_of_the_unmodified_binding(cli: Cli, tmp_path: Path) -> None:
    trace = tmp_path / "calls"
    text = "import pynvml as n; n.nvmlInit(); n.nvmlDeviceSetGpuLockedClocks(n.nvmlDeviceGetHandleByIndex(1), 300, 600)"
    cli.ok("run", "--trace", str(trace), "--", sys.executable, "-c", text)
    assert cli.gpu(1)["lock_mhz"] == [300, 600]
    assert (
        '"call":"nvmlDeviceSetGpuLockedClocks","gpu":1,"arguments":[300,600],"result":0' in trace.read_text()
    )
    refused = cli.run("run", "--uid", "1000", "--", sys.executable, "-c", text)
    assert refused.returncode == 1
    assert "NVMLError_NoPermission" in refused.stderr
    assert cli.run("run", "--", sys.executable, "-c", "import sys; sys.exit(7)").returncode == 7


def test_failures(cli: Cli) -> None:
    text = "import pynvml as n; n.nvmlInit()"
    cli.ok("fail", "nvmlInitWithFlags", "9", "--times", "1")
    assert "DriverNotLoaded" in cli.run("run", "--", sys.executable, "-c", text).stderr
    cli.ok("run", "--", sys.executable, "-c", text)
    cli.ok("fail", "*")
    cli.ok("fail", "none")
    cli.ok("run", "--", sys.executable, "-c", text)


def test_keys_and_control_files(cli: Cli, tmp_path: Path) -> None:
    cli.ok("set", "gpu0.compute=0.4", "gpu1.persistence=0")
    cli.ok("apply", "-", text="# a comment\n\n gpu0.memory = 0.2 \ngpu0.process=12 100\n")
    gpu = cli.gpu()
    assert (gpu["compute"], gpu["memory"], gpu["processes"]) == (0.4, 0.2, [12])
    assert cli.gpu(1)["persistence"] is False


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("lock", "0", "900", "600"), "line 1: expected LOW HIGH"),
        (("set", "gpu7.compute=1"), "no such GPU"),
        (("create", "H100"), "File exists"),
        (("create", "X9", "--replace"), "no GPU model X9"),
        (("run", "--", "no-such-command"), "command not found"),
    ],
)
def test_an_error_is_one_line(cli: Cli, arguments: tuple[str, ...], message: str) -> None:
    done = cli.run(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("emo-simgpu: error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_without_gpus(tmp_path: Path) -> None:
    done = Cli(tmp_path / "nowhere").run("list")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no simulated GPUs" in done.stderr
