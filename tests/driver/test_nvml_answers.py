"""The unmodified binding, call by call: what it is told, on a GPU whose course is known."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml as n  # type: ignore[import-untyped]
import pytest
from gpus import LOAD, SETTLED_S, Bench, bench

from emo.sim.presets import PRESETS

H100 = PRESETS["H100"]


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    with bench(tmp_path, monkeypatch) as made:
        made.control(*LOAD, "gpu0.process=4242 2048", "gpu0.gain=1")
        made.wait(SETTLED_S)
        yield made


def test_system(gpus: Bench) -> None:
    assert n.nvmlSystemGetDriverVersion().startswith("580.")
    assert n.nvmlSystemGetNVMLVersion() == "13." + n.nvmlSystemGetDriverVersion()
    assert n.nvmlSystemGetCudaDriverVersion() == n.nvmlSystemGetCudaDriverVersion_v2() == 13000
    assert n.nvmlDeviceGetCount() == 2
    assert n.nvmlSystemGetProcessName(1)
    assert str(n.NVMLError(n.NVML_ERROR_GPU_IS_LOST)) == "GPU is lost"


def test_a_device_is_found_by_every_name(gpus: Bench) -> None:
    handle = gpus.handle(1)
    same = [
        n.nvmlDeviceGetHandleByUUID(n.nvmlDeviceGetUUID(handle)),
        n.nvmlDeviceGetHandleByPciBusId(n.nvmlDeviceGetPciInfo(handle).busId),
        n.nvmlDeviceGetHandleByPciBusId(n.nvmlDeviceGetPciInfo(handle).busIdLegacy),
        n.nvmlDeviceGetHandleByIndex(n.nvmlDeviceGetIndex(handle)),
    ]
    assert [n.nvmlDeviceGetMinorNumber(each) for each in same] == [1, 1, 1, 1]
    for lookup in (n.nvmlDeviceGetHandleByUUID, n.nvmlDeviceGetHandleByPciBusId):
        with pytest.raises(n.NVMLError_NotFound):
            lookup("nobody")
    with pytest.raises(n.NVMLError_InvalidArgument):
        n.nvmlDeviceGetHandleByIndex(2)


def test_identity(gpus: Bench) -> None:
    first, second = gpus.handle(0), gpus.handle(1)
    assert n.nvmlDeviceGetName(first) == "NVIDIA H100 80GB HBM3"
    assert n.nvmlDeviceGetName(second) == "NVIDIA A100-SXM4-80GB"
    assert n.nvmlDeviceGetUUID(first) == gpus.gpu(0).uuid != n.nvmlDeviceGetUUID(second)
    assert len(n.nvmlDeviceGetUUID(first)) == len("GPU-00000000-0000-0000-0000-000000000000")
    assert n.nvmlDeviceGetSerial(first) != n.nvmlDeviceGetSerial(second)
    assert n.nvmlDeviceGetBoardId(first) != n.nvmlDeviceGetBoardId(second)
    assert n.nvmlDeviceGetArchitecture(first) == n.NVML_DEVICE_ARCH_HOPPER
    assert n.nvmlDeviceGetArchitecture(second) == n.NVML_DEVICE_ARCH_AMPERE
    assert n.nvmlDeviceGetCudaComputeCapability(first) == (9, 0)
    assert n.nvmlDeviceGetBrand(first) == n.NVML_BRAND_NVIDIA
    assert n.nvmlDeviceGetNumGpuCores(second) == 6912
    assert n.nvmlDeviceGetMemoryBusWidth(second) == 5120
    assert n.nvmlDeviceGetMultiGpuBoard(first) == 0
    assert n.nvmlDeviceGetVbiosVersion(first)
    assert n.nvmlDeviceGetPciInfo(first).pciDeviceId == 0x233010DE


def test_modes(gpus: Bench) -> None:
    handle = gpus.handle()
    assert n.nvmlDeviceGetPersistenceMode(handle) == 1
    n.nvmlDeviceSetPersistenceMode(handle, 0)
    assert n.nvmlDeviceGetPersistenceMode(handle) == 0
    assert n.nvmlDeviceGetVirtualizationMode(handle) == n.NVML_GPU_VIRTUALIZATION_MODE_NONE
    assert n.nvmlDeviceGetComputeMode(handle) == 0
    assert n.nvmlDeviceGetEccMode(handle) == [1, 1]
    assert n.nvmlDeviceGetDisplayMode(handle) == n.nvmlDeviceGetDisplayActive(handle) == 0
    assert n.nvmlDeviceGetPowerManagementMode(handle) == 1
    assert n.nvmlDeviceGetPerformanceState(handle) == 0
    assert n.nvmlDeviceGetPerformanceState(gpus.handle(1)) == 8
    assert n.nvmlDeviceGetMigMode(handle) == [0, 0]
    assert n.nvmlDeviceGetMaxMigDeviceCount(handle) == 0
    assert n.nvmlDeviceIsMigDeviceHandle(handle).value == 0
    assert n.nvmlDeviceGetNumFans(handle) == 0


def test_clocks(gpus: Bench) -> None:
    handle = gpus.handle()
    assert gpus.sm_clock() == gpus.gpu().clock_mhz
    assert n.nvmlDeviceGetClock(handle, n.NVML_CLOCK_SM, n.NVML_CLOCK_ID_CURRENT) == gpus.gpu().clock_mhz
    assert n.nvmlDeviceGetMaxClockInfo(handle, n.NVML_CLOCK_SM) == H100.clock_max_mhz
    assert n.nvmlDeviceGetMaxCustomerBoostClock(handle, n.NVML_CLOCK_GRAPHICS) == H100.clock_max_mhz
    assert n.nvmlDeviceGetMinMaxClockOfPState(handle, n.NVML_CLOCK_SM, 0) == (
        H100.clock_min_mhz,
        H100.clock_max_mhz,
    )
    memory = n.nvmlDeviceGetSupportedMemoryClocks(handle)
    assert n.nvmlDeviceGetClockInfo(handle, n.NVML_CLOCK_MEM) == memory[0] == 2619
    assert n.nvmlDeviceGetSupportedGraphicsClocks(handle, memory[0]) == list(H100.clocks_mhz()[::-1])
    with pytest.raises(n.NVMLError_NotFound):
        n.nvmlDeviceGetSupportedGraphicsClocks(handle, 1234)
    with pytest.raises(n.NVMLError_InvalidArgument):
        n.nvmlDeviceGetClockInfo(handle, 9)


@pytest.mark.parametrize("model", PRESETS)
def test_every_model_lists_the_clocks_of_its_physics(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bench(tmp_path, monkeypatch, (model,)) as gpus:
        handle = gpus.handle()
        for memory in n.nvmlDeviceGetSupportedMemoryClocks(handle):
            assert n.nvmlDeviceGetSupportedGraphicsClocks(handle, memory) == list(
                PRESETS[model].clocks_mhz()[::-1]
            )


def test_power_limits(gpus: Bench) -> None:
    handle = gpus.handle()
    low, high = n.nvmlDeviceGetPowerManagementLimitConstraints(handle)
    default = n.nvmlDeviceGetPowerManagementDefaultLimit(handle)
    assert (low, default, high) == (200_000, 700_000, 700_000)
    n.nvmlDeviceSetPowerManagementLimit(handle, 500_000)
    assert n.nvmlDeviceGetPowerManagementLimit(handle) == 500_000
    assert n.nvmlDeviceGetEnforcedPowerLimit(handle) == 500_000
    assert n.nvmlDeviceGetPowerManagementDefaultLimit(handle) == default
    for limit in (low - 1, high + 1):
        with pytest.raises(n.NVMLError_InvalidArgument):
            n.nvmlDeviceSetPowerManagementLimit(handle, limit)
    assert n.nvmlDeviceGetPowerManagementLimit(handle) == 500_000


def test_power_energy_temperature(gpus: Bench) -> None:
    handle, truth = gpus.handle(), gpus.gpu()
    assert n.nvmlDeviceGetPowerUsage(handle) == pytest.approx(truth.power_w * 1e3, rel=0.01)
    assert n.nvmlDeviceGetTotalEnergyConsumption(handle) == pytest.approx(truth.energy_j * 1e3, abs=1)
    celsius = round(truth.temperature_c)
    assert n.nvmlDeviceGetTemperature(handle, n.NVML_TEMPERATURE_GPU) == celsius
    assert n.nvmlDeviceGetTemperatureV(handle, n.NVML_TEMPERATURE_GPU) == celsius
    slowdown = n.nvmlDeviceGetTemperatureThreshold(handle, n.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
    shutdown = n.nvmlDeviceGetTemperatureThreshold(handle, n.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN)
    assert celsius < slowdown == H100.temperature_slowdown_c < shutdown


def test_field_values(gpus: Bench) -> None:
    handle, truth = gpus.handle(), gpus.gpu()
    energy, mean, instant, unknown = n.nvmlDeviceGetFieldValues(handle, [83, 185, 186, 9999])
    assert energy.valueType == n.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
    assert energy.value.ullVal == n.nvmlDeviceGetTotalEnergyConsumption(handle)
    assert mean.value.uiVal == n.nvmlDeviceGetPowerUsage(handle)
    assert instant.value.uiVal == pytest.approx(truth.sensor_power_w * 1e3, abs=1)
    assert energy.timestamp == round(gpus.now_s * 1e6)
    assert [field.nvmlReturn for field in (energy, mean, instant)] == [n.NVML_SUCCESS] * 3
    assert unknown.nvmlReturn == n.NVML_ERROR_NOT_SUPPORTED
    limits = n.nvmlDeviceGetFieldValues(handle, [187, 188, 189, 190])
    assert [field.value.uiVal for field in limits] == [200_000, 700_000, 700_000, 700_000]


def test_reasons(gpus: Bench) -> None:
    busy, idle = gpus.handle(0), gpus.handle(1)
    assert n.nvmlDeviceGetCurrentClocksEventReasons(busy) == n.nvmlClocksEventReasonNone
    assert n.nvmlDeviceGetCurrentClocksEventReasons(idle) == n.nvmlClocksEventReasonGpuIdle
    assert n.nvmlDeviceGetCurrentClocksThrottleReasons(idle) == n.nvmlClocksEventReasonGpuIdle
    supported = n.nvmlDeviceGetSupportedClocksEventReasons(busy)
    assert supported & n.nvmlClocksEventReasonSwPowerCap
    assert supported == n.nvmlDeviceGetSupportedClocksThrottleReasons(busy)
    assert n.nvmlDeviceGetViolationStatus(busy, n.NVML_PERF_POLICY_POWER).violationTime == 0


def test_utilisation_and_memory(gpus: Bench) -> None:
    handle = gpus.handle()
    rates = n.nvmlDeviceGetUtilizationRates(handle)
    assert (rates.gpu, rates.memory) == (100, 50)
    rates = n.nvmlDeviceGetUtilizationRates(gpus.handle(1))
    assert (rates.gpu, rates.memory) == (0, 0)
    memory = n.nvmlDeviceGetMemoryInfo(handle)
    detailed = n.nvmlDeviceGetMemoryInfo(handle, version=n.nvmlMemory_v2)
    assert memory.total == memory.used + memory.free == detailed.total == 81559 << 20
    assert detailed.used == 2048 << 20
    assert memory.used == detailed.used + detailed.reserved


def _gpm(gpus: Bench, metrics: list[int], seconds: float) -> Any:
    first, second = n.nvmlGpmSampleAlloc(), n.nvmlGpmSampleAlloc()
    n.nvmlGpmSampleGet(gpus.handle(), first)
    gpus.wait(seconds)
    n.nvmlGpmSampleGet(gpus.handle(), second)
    request = n.c_nvmlGpmMetricsGet_t()
    request.version, request.numMetrics = n.NVML_GPM_METRICS_GET_VERSION, len(metrics)
    request.sample1, request.sample2 = first, second
    for place, metric in enumerate(metrics):
        request.metrics[place].metricId = metric
    n.nvmlGpmMetricsGet(request)
    for sample in (first, second):
        n.nvmlGpmSampleFree(sample)
    return request.metrics


def test_performance_monitoring_from_hopper_on(gpus: Bench) -> None:
    assert n.nvmlGpmQueryDeviceSupport(gpus.handle(0)).isSupportedDevice == 1
    assert n.nvmlGpmQueryDeviceSupport(gpus.handle(1)).isSupportedDevice == 0
    wanted = [n.NVML_GPM_METRIC_SM_UTIL, n.NVML_GPM_METRIC_DRAM_BW_UTIL, n.NVML_GPM_METRIC_GRAPHICS_UTIL, 99]
    compute, memory, graphics, unknown = _gpm(gpus, wanted, 0.123)[:4]
    assert [each.value for each in (compute, memory, graphics)] == pytest.approx([50, 50, 100])
    assert [each.nvmlReturn for each in (compute, memory, graphics)] == [n.NVML_SUCCESS] * 3
    assert unknown.nvmlReturn == n.NVML_ERROR_NOT_SUPPORTED
    with pytest.raises(n.NVMLError_InvalidArgument):
        _gpm(gpus, wanted, 0)


def test_processes(gpus: Bench) -> None:
    handle = gpus.handle()
    (process,) = n.nvmlDeviceGetComputeRunningProcesses(handle)
    assert (process.pid, process.usedGpuMemory) == (4242, 2048 << 20)
    assert n.nvmlDeviceGetGraphicsRunningProcesses(handle) == []
    assert n.nvmlDeviceGetMPSComputeRunningProcesses(handle) == []
    assert n.nvmlDeviceGetComputeRunningProcesses(gpus.handle(1)) == []


def test_locks_are_requests(gpus: Bench) -> None:
    handle = gpus.handle()
    n.nvmlDeviceSetGpuLockedClocks(handle, 1200, 1200)
    n.nvmlDeviceSetMemoryLockedClocks(handle, 1593, 1593)
    gpus.wait(SETTLED_S)
    assert gpus.sm_clock() == 1200
    assert n.nvmlDeviceGetClockInfo(handle, n.NVML_CLOCK_MEM) == 1593
    n.nvmlDeviceResetGpuLockedClocks(handle)
    n.nvmlDeviceResetMemoryLockedClocks(handle)
    gpus.wait(SETTLED_S)
    assert gpus.sm_clock() == H100.clock_max_mhz
    assert n.nvmlDeviceGetClockInfo(handle, n.NVML_CLOCK_MEM) == 2619
    for low, high in ((1500, 1000), (0, 0)):
        with pytest.raises(n.NVMLError_InvalidArgument):
            n.nvmlDeviceSetGpuLockedClocks(handle, low, high)


@pytest.mark.parametrize(("wish", "given"), [(1207, 1200), (100, 210), (9000, 1980)])
def test_a_lock_is_clamped_to_the_clocks_that_there_are(gpus: Bench, wish: int, given: int) -> None:
    n.nvmlDeviceSetGpuLockedClocks(gpus.handle(), wish, wish)
    gpus.wait(SETTLED_S)
    assert gpus.sm_clock() == given


def test_volta_locks_no_memory_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with bench(tmp_path, monkeypatch, ("V100",)) as gpus:
        n.nvmlDeviceSetGpuLockedClocks(gpus.handle(), 1200, 1200)
        for call in (lambda h: n.nvmlDeviceSetMemoryLockedClocks(h, 877, 877), n.nvmlDeviceGetMigMode):
            with pytest.raises(n.NVMLError_NotSupported):
                call(gpus.handle())


def test_calls_need_an_initialised_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with bench(tmp_path, monkeypatch) as gpus:
        handle = gpus.handle()
        n.nvmlInit()  # counted
        n.nvmlShutdown()
        assert n.nvmlDeviceGetIndex(handle) == 0
        n.nvmlShutdown()
        for call in (n.nvmlDeviceGetCount, n.nvmlShutdown, lambda: n.nvmlDeviceGetPowerUsage(handle)):
            with pytest.raises(n.NVMLError_Uninitialized):
                call()
        n.nvmlInit()
        assert n.nvmlDeviceGetPowerUsage(handle) > 0


def test_no_driver_where_there_is_no_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with bench(tmp_path, monkeypatch, join=False):
        pass  # the library is loaded now
    for state in ("", str(tmp_path / "nowhere"), __file__):
        monkeypatch.setenv("EMO_SIMGPU_STATE", state)
        with pytest.raises(n.NVMLError_DriverNotLoaded):
            n.nvmlInit()


def test_not_a_device(gpus: Bench) -> None:
    strange: Any = n.c_nvmlDevice_t()
    with pytest.raises(n.NVMLError_InvalidArgument):
        n.nvmlDeviceGetPowerUsage(strange)
    with pytest.raises(n.NVMLError_FunctionNotFound):
        n.nvmlDeviceGetNvLinkState(gpus.handle(), 0)
    with pytest.raises(n.NVMLError_NotSupported):
        n.nvmlDeviceGetFanSpeed(gpus.handle())
