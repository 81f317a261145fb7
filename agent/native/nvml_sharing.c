/* Who shares a GPU: processes, memory, MIG instances. */
#include <string.h>

#include "nvml_call.h"

#define MIB (1024ULL * 1024ULL)
#define RESERVED_MIB 512ULL

/* --- Memory ------------------------------------------------------------------------------------------ */

static const gpu_instance *instance_of(const nvml_call *call)
{
    return call->instance == NO_INSTANCE ? NULL : &call->gpu->instances[call->instance];
}

static int is_on(const gpu_process *process, const gpu_instance *instance)
{
    return !instance || process->gpu_instance == instance->gpu_instance;
}

static nvml_memory_v2 memory_of(const nvml_call *call)
{
    const gpu_instance *instance = instance_of(call);
    nvml_memory_v2 memory = {.total = (instance ? instance->memory_mib : call->model->memory_mib) * MIB,
                             .reserved = (instance ? 0 : RESERVED_MIB) * MIB};
    for (int i = 0; i < call->gpu->process_count; i++)
        if (is_on(&call->gpu->processes[i], instance))
            memory.used += call->gpu->processes[i].memory_mib * MIB;
    unsigned long long taken = memory.used + memory.reserved;
    memory.free = memory.total > taken ? memory.total - taken : 0;
    return memory;
}

NVML_API int nvmlDeviceGetMemoryInfo(nvml_device device, nvml_memory *memory)
{
    nvml_call call;
    if (call_any_device(&call, __func__, device) && call_needs(&call, memory != NULL)) {
        nvml_memory_v2 found = memory_of(&call);
        *memory = (nvml_memory){found.total, found.free, found.total - found.free};
    }
    return call_end(&call);
}

NVML_API int nvmlDeviceGetMemoryInfo_v2(nvml_device device, nvml_memory_v2 *memory)
{
    enum { VERSION_2 = 0x02000028 };
    nvml_call call;
    if (!call_any_device(&call, __func__, device) || !call_needs(&call, memory != NULL))
        return call_end(&call);
    if (memory->version == VERSION_2) {
        *memory = memory_of(&call);
        memory->version = VERSION_2;
    } else {
        call.result = NVML_ARGUMENT_VERSION_MISMATCH;
    }
    return call_end(&call);
}

/* --- Processes ------------------------------------------------------------------------------------------ */

static void give_processes(nvml_call *call, unsigned *count, nvml_process *processes)
{
    const unsigned none = 0xffffffffu;
    unsigned room = *count, there_are = 0;
    for (int i = 0; i < call->gpu->process_count; i++) {
        const gpu_process *process = &call->gpu->processes[i];
        if (!is_on(process, instance_of(call)))
            continue;
        if (there_are < room && processes)
            processes[there_are] = (nvml_process){process->pid, process->memory_mib * MIB,
                                                  call->gpu->mig ? process->gpu_instance : none,
                                                  call->gpu->mig ? process->compute_instance : none};
        there_are++;
    }
    *count = there_are;
    if (there_are > 0 && (there_are > room || !processes))
        call->result = NVML_INSUFFICIENT_SIZE;
}

NVML_API int nvmlDeviceGetComputeRunningProcesses_v3(nvml_device device, unsigned *count, nvml_process *processes)
{
    nvml_call call;
    if (call_any_device(&call, __func__, device) && call_needs(&call, count != NULL))
        give_processes(&call, count, processes);
    return call_end(&call);
}

/* The same layout since MIG; old drivers have only this one. */
NVML_API int nvmlDeviceGetComputeRunningProcesses_v2(nvml_device device, unsigned *count, nvml_process *processes)
{
    nvml_call call;
    if (call_any_device(&call, __func__, device) && call_needs(&call, count != NULL))
        give_processes(&call, count, processes);
    return call_end(&call);
}

NVML_API int nvmlDeviceGetGraphicsRunningProcesses_v3(nvml_device device, unsigned *count, nvml_process *processes)
{
    nvml_call call;
    (void)processes;
    if (call_any_device(&call, __func__, device) && call_needs(&call, count != NULL))
        *count = 0;
    return call_end(&call);
}

NVML_API int nvmlDeviceGetMPSComputeRunningProcesses_v3(nvml_device device, unsigned *count, nvml_process *processes)
{
    nvml_call call;
    (void)processes;
    if (call_any_device(&call, __func__, device) && call_needs(&call, count != NULL))
        *count = 0;
    return call_end(&call);
}

/* --- MIG -------------------------------------------------------------------------------------------------- */

NVML_API int nvmlDeviceGetMigMode(nvml_device device, unsigned *current, unsigned *pending)
{
    nvml_call call;
    if (call_device(&call, __func__, device) && call_supports(&call, call.model->mig) &&
        call_needs(&call, current && pending)) {
        *current = (unsigned)call.gpu->mig;
        *pending = (unsigned)call.gpu->mig_pending;
    }
    return call_end(&call);
}

/* The mode changes at once when nobody else holds the GPU, else with the next load of the driver. */
NVML_API int nvmlDeviceSetMigMode(nvml_device device, unsigned mode, unsigned *activation)
{
    nvml_call call;
    if (!call_setter(&call, __func__, device, "%u", mode) || !call_supports(&call, call.model->mig) ||
        !call_needs(&call, mode <= 1 && activation))
        return call_end(&call);
    int busy = sim_client_count(call.world) > 1 || sim_gpu_is_loaded(call.gpu);
    call.gpu->mig_pending = (int)mode;
    *activation = busy && call.gpu->mig != (int)mode ? NVML_IN_USE : NVML_SUCCESS;
    if (!busy) {
        call.gpu->mig = (int)mode;
        call.gpu->instance_count = 0;
    }
    return call_end(&call);
}

NVML_API int nvmlDeviceGetMaxMigDeviceCount(nvml_device device, unsigned *count)
{
    nvml_call call;
    if (call_device(&call, __func__, device) && call_needs(&call, count != NULL))
        *count = call.gpu->mig ? MAX_INSTANCES : 0;
    return call_end(&call);
}

NVML_API int nvmlDeviceGetMigDeviceHandleByIndex(nvml_device device, unsigned index, nvml_device *instance)
{
    nvml_call call;
    if (!call_device(&call, __func__, device) || !call_supports(&call, call.model->mig && call.gpu->mig) ||
        !call_needs(&call, index < MAX_INSTANCES && instance))
        return call_end(&call);
    if ((int)index < call.gpu->instance_count)
        *instance = device_of(call.index, (int)index);
    else
        call.result = NVML_NOT_FOUND;
    return call_end(&call);
}

NVML_API int nvmlDeviceIsMigDeviceHandle(nvml_device device, unsigned *is_instance)
{
    nvml_call call;
    if (call_any_device(&call, __func__, device) && call_needs(&call, is_instance != NULL))
        *is_instance = call.instance != NO_INSTANCE;
    return call_end(&call);
}

/* A function about a MIG device only. */
static int begin_instance(nvml_call *call, const char *function, nvml_device device, int has_result)
{
    return call_any_device(call, function, device) && call_needs(call, has_result) &&
           call_needs(call, call->instance != NO_INSTANCE);
}

NVML_API int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvml_device instance, nvml_device *device)
{
    nvml_call call;
    if (begin_instance(&call, __func__, instance, device != NULL))
        *device = device_of(call.index, NO_INSTANCE);
    return call_end(&call);
}

NVML_API int nvmlDeviceGetGpuInstanceId(nvml_device instance, unsigned *id)
{
    nvml_call call;
    if (begin_instance(&call, __func__, instance, id != NULL))
        *id = instance_of(&call)->gpu_instance;
    return call_end(&call);
}

NVML_API int nvmlDeviceGetComputeInstanceId(nvml_device instance, unsigned *id)
{
    nvml_call call;
    if (begin_instance(&call, __func__, instance, id != NULL))
        *id = instance_of(&call)->compute_instance;
    return call_end(&call);
}

NVML_API int nvmlDeviceGetAttributes_v2(nvml_device instance, nvml_attributes *attributes)
{
    nvml_call call;
    if (begin_instance(&call, __func__, instance, attributes != NULL)) {
        const gpu_instance *found = instance_of(&call);
        memset(attributes, 0, sizeof *attributes);
        attributes->multiprocessors = call.model->multiprocessors * found->slices / MAX_INSTANCES;
        attributes->copy_engines = found->slices;
        attributes->gpu_slices = attributes->compute_slices = found->slices;
        attributes->memory_mib = found->memory_mib;
    }
    return call_end(&call);
}
