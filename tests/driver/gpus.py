"""What the driver's tests share: GPUs on a clock that stands still, and scripts in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pynvml  # type: ignore[import-untyped]
import pytest

from emo.sim.driver import STATE_VARIABLE, GpuState, SimulatedDriver

nvml: ModuleType = pynvml

SM, MEMORY = pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM
INSTANT_POWER, MEAN_POWER = 186, 185
LOAD = ("gpu0.compute=0.5", "gpu0.memory=0.5", "gpu0.busy=1")
# With a margin for the transients of sensor and clock.
SETTLED_S = 2.0


class Bench:
    """Simulated GPUs whose time moves only when told, and this process as a client of their driver."""

    def __init__(self, driver: SimulatedDriver) -> None:
        self.driver = driver
        self.now_s = 0.0

    def control(self, *lines: str) -> None:
        self.driver.control(*lines)

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.control(f"clock={self.now_s:.9f}")

    def gpu(self, index: int = 0) -> GpuState:
        return self.driver.state().gpus[index]

    def handle(self, index: int = 0) -> Any:
        return pynvml.nvmlDeviceGetHandleByIndex(index)

    def sm_clock(self, index: int = 0) -> int:
        clock: int = pynvml.nvmlDeviceGetClockInfo(self.handle(index), SM)
        return clock


@contextmanager
def bench(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    models: tuple[str, ...] = ("H100", "A100"),
    seed: int = 1,
    join: bool = True,
) -> Iterator[Bench]:
    """GPUs at time 0, driver loaded; with ``join`` this process has initialised NVML."""
    state = folder / "gpus.state"
    with SimulatedDriver.create(state, models, seed=seed, frozen=True) as driver:
        monkeypatch.setenv(STATE_VARIABLE, str(state))
        made = Bench(driver)
        if join:
            pynvml.nvmlInit()
        try:
            yield made
        finally:
            if join:
                pynvml.nvmlShutdown()


def script(driver: SimulatedDriver, text: str, **environment: Any) -> str:
    """What a script prints that runs in a process of its own, with ``n`` as the binding."""
    done = start(driver, text, **environment)
    out, errors = done.communicate(timeout=60)
    assert done.returncode == 0, errors
    return out.strip()


def start(driver: SimulatedDriver, text: str, **environment: Any) -> subprocess.Popen[str]:
    """The same, left running."""
    return subprocess.Popen(
        [sys.executable, "-c", f"import pynvml as n\n{text}"],
        env=driver.environment(**environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
