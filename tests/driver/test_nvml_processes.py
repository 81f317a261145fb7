"""Many processes and threads on one driver: they agree, none breaks the state, nothing leaks."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from gpus import script, start

from emo.sim.driver import REPOSITORY, SimulatedDriver, build

MODELS = ["H100", "A100", "V100"]

HAMMER = """
import sys
n.nvmlInit()
handles = [n.nvmlDeviceGetHandleByIndex(i) for i in range(3)]
energies = [0, 0, 0]
for step in range(1500):
    for i, h in enumerate(handles):
        energy = n.nvmlDeviceGetTotalEnergyConsumption(h)
        assert energy >= energies[i], (i, energies[i], energy)
        energies[i] = energy
        clock = n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM)
        assert clock in CLOCKS[i], clock
        if step % 10 == 0:
            n.nvmlDeviceSetGpuLockedClocks(h, 600 + 15 * (step % 20), 1200)
        if step % 50 == 0:
            n.nvmlShutdown()
            n.nvmlInit()
        n.nvmlDeviceGetComputeRunningProcesses(h)
        n.nvmlDeviceGetCurrentClocksEventReasons(h)
print(*energies)
n.nvmlShutdown()
"""


@pytest.fixture
def driver(tmp_path: Path) -> SimulatedDriver:
    return SimulatedDriver.create(tmp_path / "state", MODELS, seed=3)


def _hammer() -> str:
    clocks = """
n.nvmlInit()
CLOCKS = []
for i in range(3):
    h = n.nvmlDeviceGetHandleByIndex(i)
    CLOCKS.append(set(n.nvmlDeviceGetSupportedGraphicsClocks(h, n.nvmlDeviceGetSupportedMemoryClocks(h)[0])))
n.nvmlShutdown()
"""
    return clocks + HAMMER


def test_three_processes_hammer_it_while_load_changes(driver: SimulatedDriver) -> None:
    clients = [start(driver, _hammer()) for _ in range(3)]
    changes = 0
    while any(client.poll() is None for client in clients):
        driver.control(f"gpu*.compute={changes % 10 / 10}", f"gpu0.memory={changes % 3 / 3}")
        changes += 1
        time.sleep(0.002)
    for client in clients:
        out, errors = client.communicate()
        assert client.returncode == 0, errors
        assert all(int(energy) > 0 for energy in out.split())
    assert changes > 20
    state = driver.state()
    assert state.clients == 0
    assert all(gpu.clock_changes > 10 for gpu in state.gpus)


def test_clients_that_are_killed_leave_a_sound_state(driver: SimulatedDriver) -> None:
    """Killed at any moment, also with the lock in hand: the next one goes on, and energy never jumps."""
    before = driver.state()
    for _ in range(12):
        client = start(
            driver, _hammer().replace("n.nvmlInit()\nhandles", "n.nvmlInit()\nprint(1, flush=True)\nhandles")
        )
        assert client.stdout is not None
        client.stdout.readline()
        time.sleep(0.01)
        client.send_signal(signal.SIGKILL)
        client.communicate()
        after = driver.state()
        assert after.clients == 0, "the kernel let go of its place"
        for old, new in zip(before.gpus, after.gpus, strict=True):
            most_j = 800 * (after.now_ns - before.now_ns) / 1e9
            assert 0 <= new.energy_j - old.energy_j <= most_j
        before = after


def test_processes_see_what_others_set(driver: SimulatedDriver) -> None:
    set_it = "n.nvmlInit(); n.nvmlDeviceSetPowerManagementLimit(n.nvmlDeviceGetHandleByIndex(0), 432000)"
    read_it = "n.nvmlInit(); print(n.nvmlDeviceGetPowerManagementLimit(n.nvmlDeviceGetHandleByIndex(0)))"
    script(driver, set_it)
    assert script(driver, read_it) == "432000"
    driver.close()
    with SimulatedDriver(driver.path) as again:
        assert again.state().gpus[0].power_limit_w == 432


# --- sanitizers -----------------------------------------------------------------------------------------


def _sanitized(tmp_path: Path, sanitize: str) -> Path:
    """The hammer in C, with the library of that sanitizer; skips where the compiler has none."""
    compiler = os.environ.get("CC", "cc")
    probe = tmp_path / "probe.c"
    probe.write_text("int main(void) { return 0; }\n")
    command = [compiler, f"-fsanitize={sanitize}", str(probe), "-o", str(tmp_path / "probe")]
    if shutil.which(compiler) is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip(f"{compiler} has no -fsanitize={sanitize}")
    ran = subprocess.run([tmp_path / "probe"], capture_output=True, text=True, check=False)
    if ran.returncode:
        pytest.skip(f"-fsanitize={sanitize} does not run here: {ran.stderr.strip()[:200]}")
    library = build(sanitize=sanitize)
    program = tmp_path / "hammer"
    native = REPOSITORY / "agent" / "native"
    physics = REPOSITORY / "core" / "src" / "emo" / "sim" / "native"
    subprocess.run(
        [
            *(compiler, "-std=c11", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-g", "-pthread"),
            *(
                f"-fsanitize={sanitize}",
                f"-I{native}",
                f"-I{physics}",
                str(Path(__file__).with_name("hammer.c")),
            ),
            *("-o", str(program), str(library), f"-Wl,-rpath,{library.parent}"),
        ],
        check=True,
    )
    return program


@pytest.mark.parametrize("sanitize", ["address,undefined", "thread"])
def test_threads_and_processes_under_a_sanitizer(tmp_path: Path, sanitize: str) -> None:
    program = _sanitized(tmp_path, sanitize)
    with SimulatedDriver.create(tmp_path / "state", MODELS, seed=3) as driver:
        environment = driver.environment(sanitize=sanitize, trace=tmp_path / "calls")
        environment |= {
            "ASAN_OPTIONS": "detect_leaks=1:halt_on_error=1",
            "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
            "TSAN_OPTIONS": "halt_on_error=1",
        }
        running = [
            subprocess.Popen(
                [program], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            for _ in range(2)
        ]
        for each in running:
            out, errors = each.communicate(timeout=120)
            assert (each.returncode, errors) == (0, ""), errors[-4000:]
            assert out == "calls failed: 0\n"
        assert driver.state().clients == 0
