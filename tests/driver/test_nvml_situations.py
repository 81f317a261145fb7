"""What goes wrong with GPUs, and what they forget: each situation as an agent would meet it."""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml as n  # type: ignore[import-untyped]
import pytest
from gpus import LOAD, SETTLED_S, Bench, bench, script, start

from emo.errors import InputError
from emo.sim.driver import SimulatedDriver


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    with bench(tmp_path, monkeypatch) as made:
        yield made


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """GPUs of whose driver nobody is a client yet."""
    with bench(tmp_path, monkeypatch, join=False) as made:
        yield made


LOCK = "n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0); n.nvmlDeviceSetGpuLockedClocks(h, 900, 900); "

SETTERS: dict[str, Callable[[Any], object]] = {
    "lock": lambda h: n.nvmlDeviceSetGpuLockedClocks(h, 900, 900),
    "unlock": n.nvmlDeviceResetGpuLockedClocks,
    "memory lock": lambda h: n.nvmlDeviceSetMemoryLockedClocks(h, 1593, 1593),
    "memory unlock": n.nvmlDeviceResetMemoryLockedClocks,
    "power limit": lambda h: n.nvmlDeviceSetPowerManagementLimit(h, 300_000),
    "persistence": lambda h: n.nvmlDeviceSetPersistenceMode(h, 0),
    "mig": lambda h: n.nvmlDeviceSetMigMode(h, 1),
}


# --- permission -------------------------------------------------------------------------------------


@pytest.mark.parametrize("setter", SETTERS)
def test_setters_need_root(gpus: Bench, monkeypatch: pytest.MonkeyPatch, setter: str) -> None:
    before = gpus.gpu()
    monkeypatch.setenv("EMO_SIMGPU_UID", "1000")
    with pytest.raises(n.NVMLError_NoPermission):
        SETTERS[setter](gpus.handle())
    assert gpus.gpu() == before
    assert n.nvmlDeviceGetPowerUsage(gpus.handle()) > 0, "anybody may read"
    monkeypatch.setenv("EMO_SIMGPU_UID", "0")
    SETTERS[setter](gpus.handle())


# --- what is forgotten, and when --------------------------------------------------------------------


def test_a_lock_outlives_its_process(alone: Bench) -> None:
    assert script(alone.driver, LOCK + "print('set')") == "set"
    assert alone.gpu().lock_mhz == (900, 900)
    alone.control(*LOAD)
    alone.wait(SETTLED_S)
    assert alone.gpu().clock_mhz == 900


@pytest.mark.parametrize(
    "end", ["n.nvmlShutdown()", "", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"]
)
def test_without_persistence_a_lock_goes_with_the_last_client(alone: Bench, end: str) -> None:
    alone.control("gpu0.persistence=0")
    start(alone.driver, LOCK + end).communicate(timeout=60)
    assert alone.gpu().lock_mhz == (0, 0)


def test_without_persistence_a_lock_stays_while_anybody_uses_the_gpu(gpus: Bench) -> None:
    gpus.control("gpu0.persistence=0")
    script(gpus.driver, LOCK)
    assert gpus.gpu().lock_mhz == (900, 900), "this process is still a client"
    gpus.control("gpu0.process=77 100")
    n.nvmlShutdown()
    assert gpus.gpu().lock_mhz == (900, 900), "a workload is still a client"
    gpus.control("gpu0.process=none")
    assert gpus.gpu().lock_mhz == (0, 0)
    n.nvmlInit()


def test_a_driver_reload_forgets_locks_and_counters(alone: Bench) -> None:
    alone.control("gpu0.bad_energy=0 0")
    script(alone.driver, LOCK + "n.nvmlDeviceSetPowerManagementLimit(h, 300000)")
    alone.wait(10)
    before = alone.gpu()
    assert before.lock_mhz == (900, 900)
    assert before.power_limit_w == 300
    alone.control("driver=reload")
    after = alone.gpu()
    assert after.lock_mhz == (0, 0)
    assert after.power_limit_w == 700
    assert (before.counter_j > 100, after.counter_j) == (True, 0.0)
    assert after.energy_j == before.energy_j, "what was used was used"


def test_a_reboot_forgets_too(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with SimulatedDriver.create(path, ["H100"]) as driver:
        script(driver, LOCK)
        before = driver.state()
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    path.write_bytes(path.read_bytes().replace(boot_id, b"another boot".ljust(len(boot_id), b"-")))
    with SimulatedDriver(path) as driver:
        after = driver.state()
    assert (before.gpus[0].lock_mhz, after.gpus[0].lock_mhz) == ((900, 900), (0, 0))
    assert after.gpus[0].energy_j >= before.gpus[0].energy_j - 1 and after.now_ns > 0
    assert after.gpus[0].counter_j < 1


def test_a_driver_in_use_is_not_reloaded_unless_forced(gpus: Bench) -> None:
    with pytest.raises(InputError, match="1 processes use the driver"):
        gpus.control("driver=reload")
    handle = gpus.handle()
    gpus.control("driver=reload force")
    with pytest.raises(n.NVMLError_Unknown):
        n.nvmlDeviceGetPowerUsage(handle)
    n.nvmlShutdown()
    n.nvmlInit()
    assert n.nvmlDeviceGetPowerUsage(gpus.handle()) > 0


def test_an_unloaded_driver(alone: Bench) -> None:
    alone.control("driver=unload")
    with pytest.raises(n.NVMLError_DriverNotLoaded):
        n.nvmlInit()
    alone.control("driver=load")
    n.nvmlInit()
    n.nvmlShutdown()


def test_a_lock_that_somebody_else_set_shows_only_in_the_clock(alone: Bench) -> None:
    alone.control("gpu0.lock=210 1200", *LOAD)
    alone.wait(SETTLED_S)
    n.nvmlInit()
    assert alone.sm_clock() == 1200
    assert n.nvmlDeviceGetCurrentClocksEventReasons(alone.handle()) == n.nvmlClocksEventReasonNone
    n.nvmlShutdown()


# --- a GPU that is lost, or sick --------------------------------------------------------------------


def test_a_lost_gpu_leaves_the_others_alone(gpus: Bench) -> None:
    lost, other = gpus.handle(0), gpus.handle(1)
    n.nvmlDeviceSetGpuLockedClocks(lost, 900, 900)
    gpus.control("gpu0.lost=1")
    for call in (n.nvmlDeviceGetPowerUsage, n.nvmlDeviceGetUUID, n.nvmlDeviceResetGpuLockedClocks):
        with pytest.raises(n.NVMLError_GpuIsLost):
            call(lost)
    with pytest.raises(n.NVMLError_GpuIsLost):
        gpus.handle(0)
    assert n.nvmlDeviceGetCount() == 2
    assert n.nvmlDeviceGetPowerUsage(other) > 0
    gpus.control("gpu0.lost=0")
    assert n.nvmlDeviceGetPowerUsage(lost) > 0
    assert gpus.gpu().lock_mhz == (0, 0), "it was reset"


def test_critical_errors_are_events(gpus: Bench) -> None:
    first, second = gpus.handle(0), gpus.handle(1)
    events = n.nvmlEventSetCreate()
    assert n.nvmlDeviceGetSupportedEventTypes(first) == n.nvmlEventTypeXidCriticalError
    n.nvmlDeviceRegisterEvents(first, n.nvmlEventTypeXidCriticalError, events)
    with pytest.raises(n.NVMLError_NotSupported):
        n.nvmlDeviceRegisterEvents(first, n.nvmlEventTypeClock, events)
    with pytest.raises(n.NVMLError_Timeout):
        n.nvmlEventSetWait(events, 10)
    gpus.control("gpu1.xid=31", "gpu0.xid=48", "gpu0.lost=1")
    seen = [n.nvmlEventSetWait(events, 0) for _ in range(2)]
    assert [(each.eventType, each.eventData) for each in seen] == [(8, 48), (8, 79)], "79: fell off the bus"
    assert n.addressof(seen[0].device.contents) == n.addressof(first.contents) != n.addressof(second.contents)
    gpus.control("gpu0.lost=0")
    for xid in range(1, 101):
        gpus.control(f"gpu0.xid={xid}")
    assert n.nvmlEventSetWait(events, 0).eventData > 60, "what nobody fetched in time is forgotten"
    n.nvmlEventSetFree(events)


def test_who_waits_for_an_event_learns_of_it_at_once(gpus: Bench) -> None:
    text = """
n.nvmlInit()
events = n.nvmlEventSetCreate()
n.nvmlDeviceRegisterEvents(n.nvmlDeviceGetHandleByIndex(1), n.nvmlEventTypeXidCriticalError, events)
print("waiting", flush=True)
print(n.nvmlEventSetWait(events, 30000).eventData)
"""
    waiting = start(gpus.driver, text)
    assert waiting.stdout is not None
    waiting.stdout.readline()
    gpus.control("gpu1.xid=63")
    assert waiting.communicate(timeout=20)[0].strip() == "63"


def test_a_silent_gpu_keeps_nobody_else_waiting(gpus: Bench) -> None:
    silent, other = gpus.handle(0), gpus.handle(1)
    gpus.control("gpu0.silent=30")
    answered = threading.Event()

    def ask() -> None:
        n.nvmlDeviceGetPowerUsage(silent)
        answered.set()

    waiting = threading.Thread(target=ask, daemon=True)
    waiting.start()
    took_s = []
    for pause_ms in range(100):
        time.sleep(pause_ms % 7 / 2e3)
        started_s = time.perf_counter()
        n.nvmlDeviceGetPowerUsage(other)
        took_s.append(time.perf_counter() - started_s)
    assert statistics.median(took_s) < 3e-4, "who waits for the GPU holds nothing that others need"
    script(gpus.driver, "n.nvmlInit(); n.nvmlDeviceGetPowerUsage(n.nvmlDeviceGetHandleByIndex(1))")
    assert not answered.is_set()
    gpus.control("gpu0.silent=0")
    assert answered.wait(10), "it answers again"
    waiting.join()


def test_setters_can_take_their_time(gpus: Bench) -> None:
    gpus.control("setter_ms=50")
    started_s = time.monotonic()
    n.nvmlDeviceSetGpuLockedClocks(gpus.handle(), 900, 900)
    assert time.monotonic() - started_s >= 0.05
    assert gpus.gpu().lock_mhz == (900, 900)


# --- injected failures ------------------------------------------------------------------------------


def test_a_call_fails_so_many_times_on_one_gpu(gpus: Bench) -> None:
    gpus.control("fail=nvmlDeviceSetGpuLockedClocks 4 0 2")
    n.nvmlDeviceSetGpuLockedClocks(gpus.handle(1), 900, 900)
    for _ in range(2):
        with pytest.raises(n.NVMLError_NoPermission):
            n.nvmlDeviceSetGpuLockedClocks(gpus.handle(0), 900, 900)
    n.nvmlDeviceSetGpuLockedClocks(gpus.handle(0), 900, 900)


def test_every_call_fails_until_it_is_taken_back(gpus: Bench) -> None:
    handle = gpus.handle()
    gpus.control("fail=* 999")
    for _ in range(3):
        with pytest.raises(n.NVMLError_Unknown):
            n.nvmlDeviceGetPowerUsage(handle)
    n.nvmlShutdown()
    with pytest.raises(n.NVMLError_Unknown):
        n.nvmlInit()
    gpus.control("fail=none")
    n.nvmlInit()
    assert n.nvmlDeviceGetPowerUsage(handle) > 0


def test_failures_are_the_same_for_all_processes(gpus: Bench) -> None:
    gpus.control("fail=nvmlDeviceGetUUID 999 -1 1")
    text = """
n.nvmlInit()
try:
    n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByIndex(0))
except n.NVMLError_Unknown:
    print("failed")
"""
    assert script(gpus.driver, text) == "failed"
    assert n.nvmlDeviceGetUUID(gpus.handle())


# --- sharing ----------------------------------------------------------------------------------------


def test_mig(gpus: Bench) -> None:
    gpus.control(
        "gpu0.mig=1",
        "gpu0.instance=1 0 3 40000",
        "gpu0.instance=2 0 4 40000",
        "gpu0.process=55 1024 1 0",
        "gpu0.process=56 2048 2 0",
    )
    whole = gpus.handle()
    assert n.nvmlDeviceGetMigMode(whole) == [1, 1]
    with pytest.raises(n.NVMLError_NotSupported):
        n.nvmlDeviceGetUtilizationRates(whole)
    assert n.nvmlDeviceGetMaxMigDeviceCount(whole) == 7
    first, second = (n.nvmlDeviceGetMigDeviceHandleByIndex(whole, i) for i in (0, 1))
    with pytest.raises(n.NVMLError_NotFound):
        n.nvmlDeviceGetMigDeviceHandleByIndex(whole, 2)
    uuid = n.nvmlDeviceGetUUID(first)
    assert uuid.startswith("MIG-") and uuid != n.nvmlDeviceGetUUID(second)
    assert n.nvmlDeviceIsMigDeviceHandle(n.nvmlDeviceGetHandleByUUID(uuid)).value == 1
    assert n.nvmlDeviceGetUUID(n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(first)) == gpus.gpu().uuid
    assert [n.nvmlDeviceGetGpuInstanceId(each) for each in (first, second)] == [1, 2]
    assert n.nvmlDeviceGetComputeInstanceId(first) == 0
    attributes = n.nvmlDeviceGetAttributes_v2(second)
    assert (attributes.gpuInstanceSliceCount, attributes.memorySizeMB) == (4, 40000)
    assert n.nvmlDeviceGetMemoryInfo(first).used == 1024 << 20
    assert [p.pid for p in n.nvmlDeviceGetComputeRunningProcesses(first)] == [55]
    assert [(p.pid, p.gpuInstanceId) for p in n.nvmlDeviceGetComputeRunningProcesses(whole)] == [
        (55, 1),
        (56, 2),
    ]
    for call in (n.nvmlDeviceGetPowerUsage, SETTERS["lock"], n.nvmlDeviceGetTotalEnergyConsumption):
        with pytest.raises(n.NVMLError_NotSupported):
            call(first)
    SETTERS["lock"](whole)
    assert gpus.gpu().lock_mhz == (900, 900), "the physical GPU has a clock"


def test_mig_mode_waits_for_the_gpu_to_be_free(gpus: Bench) -> None:
    gpus.control("gpu0.process=55 1024")
    assert n.nvmlDeviceSetMigMode(gpus.handle(), 1) == n.NVML_ERROR_IN_USE
    assert n.nvmlDeviceGetMigMode(gpus.handle()) == [0, 1]
    gpus.control("gpu0.process=none", "driver=reload force")
    n.nvmlShutdown()
    n.nvmlInit()
    assert n.nvmlDeviceGetMigMode(gpus.handle()) == [1, 1]
    assert n.nvmlDeviceSetMigMode(gpus.handle(), 0) == n.NVML_SUCCESS
    assert n.nvmlDeviceGetMigMode(gpus.handle()) == [0, 0]


def test_a_guest_may_not_steer_and_pass_through_may(gpus: Bench) -> None:
    gpus.control("gpu0.virtualization=2", "gpu1.virtualization=1")
    guest, passed = gpus.handle(0), gpus.handle(1)
    assert n.nvmlDeviceGetVirtualizationMode(guest) == n.NVML_GPU_VIRTUALIZATION_MODE_VGPU
    for call in (SETTERS["lock"], SETTERS["power limit"], n.nvmlDeviceGetPowerUsage):
        with pytest.raises(n.NVMLError_NotSupported):
            call(guest)
    n.nvmlDeviceSetGpuLockedClocks(passed, 900, 900)
    assert n.nvmlDeviceGetTotalEnergyConsumption(passed) >= 0


# --- old drivers ------------------------------------------------------------------------------------


PROBE = """
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
calls = {
    "lock": lambda: n.nvmlDeviceSetGpuLockedClocks(h, 900, 900),
    "memory lock": lambda: n.nvmlDeviceSetMemoryLockedClocks(h, 1215, 1215),
    "reasons": lambda: n.nvmlDeviceGetCurrentClocksEventReasons(h),
    "old reasons": lambda: n.nvmlDeviceGetCurrentClocksThrottleReasons(h),
    "processes": lambda: n.nvmlDeviceGetComputeRunningProcesses(h),
    "temperature": lambda: n.nvmlDeviceGetTemperature(h, 0),
    "new temperature": lambda: n.nvmlDeviceGetTemperatureV(h, 0),
}
for name, call in calls.items():
    try:
        call()
    except (n.NVMLError_FunctionNotFound, n.NVMLLibraryMismatchError):
        print(name)
if n.nvmlDeviceGetFieldValues(h, [186])[0].nvmlReturn:
    print("power field")
"""


@pytest.mark.parametrize(
    ("branch", "missing"),
    [
        (450, {"memory lock", "reasons", "processes", "new temperature", "power field"}),
        (470, {"reasons", "processes", "new temperature", "power field"}),
        (535, {"new temperature"}),
        (580, set()),
    ],
)
def test_old_drivers_lack_symbols(tmp_path: Path, branch: int, missing: set[str]) -> None:
    with SimulatedDriver.create(tmp_path / "state", ["A100"], branch=branch) as driver:
        assert set(script(driver, PROBE).splitlines()) == missing
        assert script(driver, "n.nvmlInit(); print(n.nvmlSystemGetDriverVersion())").startswith(f"{branch}.")


def test_a_library_of_another_driver_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with SimulatedDriver.create(tmp_path / "state", ["A100"], branch=470):
        monkeypatch.setenv("EMO_SIMGPU_STATE", str(tmp_path / "state"))
        with pytest.raises(n.NVMLError_LibRmVersionMismatch):
            n.nvmlInit()


# --- the call trace ---------------------------------------------------------------------------------


def test_the_trace_says_who_called_what(alone: Bench, tmp_path: Path) -> None:
    trace = tmp_path / "calls"
    text = (
        LOCK
        + """
try:
    n.nvmlDeviceSetPowerManagementLimit(h, 1)
except n.NVMLError:
    pass
n.nvmlShutdown()
"""
    )
    client = start(alone.driver, text, trace=trace, uid=0)
    client.communicate(timeout=60)
    calls = [json.loads(line) for line in trace.read_text().splitlines()]
    assert [(call["call"], call["gpu"], call["arguments"], call["result"]) for call in calls] == [
        ("nvmlInitWithFlags", -1, [], 0),
        ("nvmlDeviceGetHandleByIndex_v2", -1, [], 0),
        ("nvmlDeviceSetGpuLockedClocks", 0, [900, 900], 0),
        ("nvmlDeviceSetPowerManagementLimit", 0, [1], 2),
        ("nvmlShutdown", -1, [], 0),
    ]
    assert {(call["pid"], call["uid"]) for call in calls} == {(client.pid, 0)}


# --- control ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "nothing",
        "nonsense=1",
        "gpu0.nonsense=1",
        "gpu9.compute=1",
        "gpux.compute=1",
        "gpu0.compute=2",
        "gpu0.compute=nan",
        "gpu0.compute=",
        "gpu0.compute=0.5 0.5",
        "gpu0.lock=900 600",
        "gpu0.power_limit=1",
        "gpu0.process=0 1",
        "gpu0.instance=1 0 1 1",
        "gpu0.kernel=1 2 3",
        "fail=nvmlInit",
        "fail=nvmlDeviceGetName 4 7",
        "clock=-1",
        "driver=explode",
        "gpu*.mig=2",
    ],
)
def test_a_line_that_cannot_be_used_changes_nothing(alone: Bench, line: str) -> None:
    before = alone.driver.state()
    with pytest.raises(InputError, match="line 2: "):
        alone.control("gpu0.compute=0.5", line)
    assert alone.driver.state() == before


def test_time_does_not_go_back(alone: Bench) -> None:
    alone.wait(5)
    with pytest.raises(InputError, match="time does not go back"):
        alone.control("clock=4")
    alone.control("clock=real")
    first = alone.driver.state().now_ns
    assert 5e9 <= first < alone.driver.state().now_ns
