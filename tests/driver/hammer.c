/*
 * Every function of the simulated driver, from several threads at once, with good and bad arguments,
 * while another thread drives the GPUs. A sanitizer judges. Ends with 0 when results were in order.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nvml_abi.h"
#include "simgpu.h"

#define THREADS 4
#define ROUNDS 20

/* As the binding declares them: what is behind the pointers differs, the call does not. */
typedef int getter(nvml_device device, void *out);
typedef int pair_getter(nvml_device device, void *first, void *second);
typedef int text_getter(nvml_device device, char *text, unsigned size);

int nvmlInit_v2(void);
int nvmlShutdown(void);
const char *nvmlErrorString(int result);
int nvmlSystemGetDriverVersion(char *text, unsigned size);
int nvmlSystemGetProcessName(unsigned pid, char *text, unsigned size);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, nvml_device *device);
int nvmlDeviceGetHandleByUUID(const char *uuid, nvml_device *device);
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvml_device *device);
int nvmlDeviceGetClockInfo(nvml_device device, unsigned type, unsigned *mhz);
int nvmlDeviceGetSupportedGraphicsClocks(nvml_device device, unsigned memory_mhz, unsigned *count, unsigned *clocks);
int nvmlDeviceSetGpuLockedClocks(nvml_device device, unsigned low, unsigned high);
int nvmlDeviceResetGpuLockedClocks(nvml_device device);
int nvmlDeviceSetPowerManagementLimit(nvml_device device, unsigned limit_mw);
int nvmlDeviceGetFieldValues(nvml_device device, int count, nvml_field_value *fields);
int nvmlDeviceGetTemperature(nvml_device device, unsigned sensor, unsigned *celsius);
int nvmlDeviceGetComputeRunningProcesses_v3(nvml_device device, unsigned *count, nvml_process *processes);
int nvmlDeviceGetMigDeviceHandleByIndex(nvml_device device, unsigned index, nvml_device *instance);
int nvmlEventSetCreate(void **events);
int nvmlDeviceRegisterEvents(nvml_device device, unsigned long long types, void *events);
int nvmlEventSetWait_v2(void *events, nvml_event *event, unsigned timeout_ms);
int nvmlEventSetFree(void *events);
int nvmlGpmSampleAlloc(void **sample);
int nvmlGpmSampleFree(void *sample);
int nvmlGpmSampleGet(nvml_device device, void *sample);
int nvmlGpmMetricsGet(nvml_gpm_request *request);

#define GETTERS(use)                                                                                                   \
    use(nvmlDeviceGetIndex) use(nvmlDeviceGetMinorNumber) use(nvmlDeviceGetBoardId) use(nvmlDeviceGetBrand)            \
    use(nvmlDeviceGetArchitecture) use(nvmlDeviceGetNumGpuCores) use(nvmlDeviceGetMemoryBusWidth)                      \
    use(nvmlDeviceGetVirtualizationMode) use(nvmlDeviceGetPersistenceMode) use(nvmlDeviceGetPowerUsage)                \
    use(nvmlDeviceGetPowerManagementLimit) use(nvmlDeviceGetEnforcedPowerLimit)                                        \
    use(nvmlDeviceGetPowerManagementDefaultLimit) use(nvmlDeviceGetTotalEnergyConsumption)                             \
    use(nvmlDeviceGetPerformanceState) use(nvmlDeviceGetCurrentClocksEventReasons)                                     \
    use(nvmlDeviceGetSupportedClocksEventReasons) use(nvmlDeviceGetUtilizationRates) use(nvmlDeviceGetMemoryInfo)      \
    use(nvmlDeviceGetMaxMigDeviceCount) use(nvmlDeviceIsMigDeviceHandle) use(nvmlDeviceGetPciInfo_v3)                  \
    use(nvmlDeviceGetGpuInstanceId) use(nvmlDeviceGetComputeInstanceId) use(nvmlDeviceGetAttributes_v2)

#define PAIRS(use)                                                                                                     \
    use(nvmlDeviceGetPowerManagementLimitConstraints) use(nvmlDeviceGetCudaComputeCapability)                          \
    use(nvmlDeviceGetMigMode) use(nvmlDeviceGetEccMode)

#define TEXTS(use)                                                                                                     \
    use(nvmlDeviceGetName) use(nvmlDeviceGetUUID) use(nvmlDeviceGetSerial) use(nvmlDeviceGetVbiosVersion)

#define DECLARE_GETTER(name) getter name;
#define DECLARE_PAIR(name) pair_getter name;
#define DECLARE_TEXT(name) text_getter name;
GETTERS(DECLARE_GETTER)
PAIRS(DECLARE_PAIR)
TEXTS(DECLARE_TEXT)

#define LISTED(name) name,
static getter *const getters[] = {GETTERS(LISTED)};
static pair_getter *const pairs[] = {PAIRS(LISTED)};
static text_getter *const texts[] = {TEXTS(LISTED)};

#define COUNT(list) (sizeof(list) / sizeof *(list))

static void ask_everything(nvml_device device)
{
    union {
        unsigned long long numbers[16];
        char text[128];
    } out;
    for (size_t i = 0; i < COUNT(getters); i++) {
        getters[i](device, &out);
        getters[i](device, NULL);
    }
    for (size_t i = 0; i < COUNT(pairs); i++) {
        pairs[i](device, &out.numbers[0], &out.numbers[1]);
        pairs[i](device, NULL, &out.numbers[1]);
    }
    for (size_t i = 0; i < COUNT(texts); i++) {
        texts[i](device, out.text, sizeof out.text);
        texts[i](device, out.text, 3);
        texts[i](device, NULL, 0);
    }
    unsigned mhz[256], count = 256;
    nvmlDeviceGetClockInfo(device, 1, mhz);
    nvmlDeviceGetSupportedGraphicsClocks(device, 2619, &count, mhz);
    nvmlDeviceGetTemperature(device, 0, mhz);
    nvml_field_value fields[4] = {{.field = 83}, {.field = 185}, {.field = 186}, {.field = 12345}};
    nvmlDeviceGetFieldValues(device, 4, fields);
    nvml_process processes[8];
    count = 1;
    nvmlDeviceGetComputeRunningProcesses_v3(device, &count, processes);
}

static void watch(nvml_device device)
{
    void *events = NULL, *first = NULL, *second = NULL;
    nvml_event event;
    if (nvmlEventSetCreate(&events) == NVML_SUCCESS) {
        nvmlDeviceRegisterEvents(device, 8, events);
        nvmlEventSetWait_v2(events, &event, 1);
        nvmlEventSetFree(events);
    }
    if (nvmlGpmSampleAlloc(&first) == NVML_SUCCESS && nvmlGpmSampleAlloc(&second) == NVML_SUCCESS) {
        nvmlGpmSampleGet(device, first);
        nvmlGpmSampleGet(device, second);
        struct {
            nvml_gpm_request head;
            nvml_gpm_metric metrics[3];
        } request = {.head = {.version = 1, .count = 3, .first = first, .second = second}};
        for (unsigned i = 0; i < 3; i++)
            request.metrics[i].metric = 1 + i;
        nvmlGpmMetricsGet(&request.head);
    }
    nvmlGpmSampleFree(first);
    nvmlGpmSampleFree(second);
}

static void set_things(nvml_device device, unsigned round)
{
    nvmlDeviceSetGpuLockedClocks(device, 600, 900 + round % 7 * 15);
    nvmlDeviceSetPowerManagementLimit(device, 250000 + round);
    nvmlDeviceSetGpuLockedClocks(device, 900, 600);
    if (round % 5 == 0)
        nvmlDeviceResetGpuLockedClocks(device);
}

/* One client's life: initialised and shut down over and over, while others are in the middle of calls. */
static void *client(void *argument)
{
    long *failures = argument;
    for (unsigned round = 0; round < ROUNDS; round++) {
        if (nvmlInit_v2() != NVML_SUCCESS) {
            ++*failures;
            continue;
        }
        char text[96];
        nvml_device device = NULL, instance;
        nvmlSystemGetDriverVersion(text, sizeof text);
        nvmlSystemGetProcessName(1, text, sizeof text);
        nvmlDeviceGetHandleByUUID("GPU-none", &device);
        nvmlDeviceGetHandleByPciBusId_v2("00000000:11:00.0", &device);
        for (unsigned index = 0; index < 4; index++) {
            if (nvmlDeviceGetHandleByIndex_v2(index, &device) != NVML_SUCCESS) {
                *failures += index < 3;
                continue;
            }
            ask_everything(device);
            watch(device);
            set_things(device, round);
            if (nvmlDeviceGetMigDeviceHandleByIndex(device, 0, &instance) == NVML_SUCCESS)
                ask_everything(instance);
        }
        ask_everything(NULL);
        nvmlErrorString((int)round);
        *failures += nvmlShutdown() != NVML_SUCCESS;
    }
    return NULL;
}

static void drive(simgpu *sim)
{
    static const char *const lines[] = {
        "gpu0.compute=0.9\ngpu0.memory=0.4\ngpu0.busy=1",
        "gpu0.process=none\ngpu0.process=77 100\ngpu1.kernel=none\ngpu1.kernel=1e6 2e6 0 1 1 0.5 0.5",
        "gpu1.mig=1\ngpu1.instance=1 0 3 1000",
        "gpu1.mig=0",
        "fail=none\nfail=nvmlDeviceGetName 999 0 3",
        "gpu0.xid=48\ngpu2.bad_energy=200 1",
        "gpu0.compute=7",
        "nonsense",
    };
    char error[128], json[8192];
    gp_kernel kernel = {1e6, 5e5, 0, 1, 1, 0, 0.7};
    const double idle[4] = {0, 0, 0, 1};
    for (int i = 0; i < 20 * ROUNDS; i++) {
        simgpu_control(sim, lines[(size_t)i % COUNT(lines)], error, sizeof error);
        simgpu_load(sim, i % 4, idle, &kernel, i % 2, 1.0, error, sizeof error);
        int64_t now_ns, change_ns;
        double clock_mhz;
        simgpu_clock(sim, i % 4, &now_ns, &clock_mhz, &change_ns);
        simgpu_describe(sim, json, sizeof json);
        simgpu_describe(sim, json, 10);
    }
}

int main(void)
{
    char error[256];
    simgpu *sim = simgpu_open(getenv("EMO_SIMGPU_STATE"), error, sizeof error);
    if (!sim || simgpu_open("/nowhere", error, sizeof error) || simgpu_create("/nowhere/x", "H100", 0, 580, 0, error, 9) == 0)
        return 2;
    pthread_t threads[THREADS];
    long failures[THREADS] = {0}, failed = 0;
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, client, &failures[i]) != 0)
            return 3;
    drive(sim);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        failed += failures[i];
    }
    simgpu_close(sim);
    printf("calls failed: %ld\n", failed);
    return failed != 0;
}
