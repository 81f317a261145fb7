/* The system, how devices are found, and who they are. */
#include <stdio.h>
#include <string.h>

#include "driver_version.h"
#include "nvml_call.h"

/* --- The system ------------------------------------------------------------------------------------- */

NVML_API const char *nvmlErrorString(int result)
{
    switch (result) {
    case NVML_SUCCESS: return "Success";
    case NVML_UNINITIALIZED: return "Uninitialized";
    case NVML_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_NOT_SUPPORTED: return "Not Supported";
    case NVML_NO_PERMISSION: return "Insufficient Permissions";
    case NVML_NOT_FOUND: return "Not Found";
    case NVML_INSUFFICIENT_SIZE: return "Insufficient Size";
    case NVML_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_TIMEOUT: return "Timeout";
    case NVML_GPU_IS_LOST: return "GPU is lost";
    case NVML_LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
    case NVML_IN_USE: return "In use by another client";
    case NVML_MEMORY: return "Insufficient Memory";
    case NVML_INSUFFICIENT_RESOURCES: return "Insufficient Resources";
    case NVML_ARGUMENT_VERSION_MISMATCH: return "Argument version mismatch";
    default: return "Unknown Error";
    }
}

NVML_API int nvmlSystemGetDriverVersion(char *version, unsigned size)
{
    nvml_call call;
    if (call_begin(&call, __func__))
        call_text(&call, version, size, "%s", DRIVER_VERSION);
    return call_end(&call);
}

NVML_API int nvmlSystemGetNVMLVersion(char *version, unsigned size)
{
    nvml_call call;
    if (call_begin(&call, __func__))
        call_text(&call, version, size, "%d.%s", CUDA_VERSION / 1000, DRIVER_VERSION);
    return call_end(&call);
}

NVML_API int nvmlSystemGetCudaDriverVersion(int *version)
{
    nvml_call call;
    if (call_begin(&call, __func__) && call_needs(&call, version != NULL))
        *version = CUDA_VERSION;
    return call_end(&call);
}

NVML_API int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    nvml_call call;
    if (call_begin(&call, __func__) && call_needs(&call, version != NULL))
        *version = CUDA_VERSION;
    return call_end(&call);
}

NVML_API int nvmlSystemGetProcessName(unsigned pid, char *name, unsigned size)
{
    nvml_call call;
    if (!call_begin(&call, __func__))
        return call_end(&call);
    char path[32], found[64] = "";
    snprintf(path, sizeof path, "/proc/%u/comm", pid);
    FILE *file = fopen(path, "re");
    if (file) {
        if (!fgets(found, sizeof found, file))
            found[0] = '\0';
        fclose(file);
    }
    found[strcspn(found, "\n")] = '\0';
    if (found[0])
        call_text(&call, name, size, "%s", found);
    else
        call.result = NVML_NOT_FOUND;
    return call_end(&call);
}

/* --- Finding devices ---------------------------------------------------------------------------------- */

NVML_API int nvmlDeviceGetCount_v2(unsigned *count)
{
    nvml_call call;
    if (call_begin(&call, __func__) && call_needs(&call, count != NULL))
        *count = (unsigned)call.world->gpu_count;
    return call_end(&call);
}

/* A handle of that GPU, or why there is none. */
static void give_device(nvml_call *call, int index, int instance, nvml_device *device)
{
    if (call->world->gpus[index].lost)
        call->result = NVML_GPU_IS_LOST;
    else
        *device = device_of(index, instance);
}

NVML_API int nvmlDeviceGetHandleByIndex_v2(unsigned index, nvml_device *device)
{
    nvml_call call;
    if (call_begin(&call, __func__) && call_needs(&call, device && index < (unsigned)call.world->gpu_count))
        give_device(&call, (int)index, NO_INSTANCE, device);
    return call_end(&call);
}

NVML_API int nvmlDeviceGetHandleByUUID(const char *uuid, nvml_device *device)
{
    nvml_call call;
    if (!call_begin(&call, __func__) || !call_needs(&call, uuid && device))
        return call_end(&call);
    call.result = NVML_NOT_FOUND;
    for (int index = 0; index < call.world->gpu_count; index++) {
        for (int instance = NO_INSTANCE; instance < call.world->gpus[index].instance_count; instance++) {
            char candidate[80];
            uuid_of(call.world, index, instance, candidate);
            if (strcmp(candidate, uuid) != 0)
                continue;
            call.result = NVML_SUCCESS;
            give_device(&call, index, instance, device);
        }
    }
    return call_end(&call);
}

NVML_API int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvml_device *device)
{
    nvml_call call;
    if (!call_begin(&call, __func__) || !call_needs(&call, bus_id && device))
        return call_end(&call);
    call.result = NVML_NOT_FOUND;
    for (int index = 0; index < call.world->gpu_count; index++) {
        char candidate[32];
        bus_id_of(index, candidate);
        /* Both forms of the domain are in use: eight digits and four. */
        if (strcmp(candidate, bus_id) != 0 && strcmp(candidate + 4, bus_id) != 0)
            continue;
        call.result = NVML_SUCCESS;
        give_device(&call, index, NO_INSTANCE, device);
    }
    return call_end(&call);
}

/* --- Who they are ----------------------------------------------------------------------------------------- */

NVML_API int nvmlDeviceGetName(nvml_device device, char *name, unsigned size)
{
    nvml_call call;
    if (call_any_device(&call, __func__, device))
        call_text(&call, name, size, "%s", call.model->product);
    return call_end(&call);
}

NVML_API int nvmlDeviceGetUUID(nvml_device device, char *uuid, unsigned size)
{
    nvml_call call;
    if (call_any_device(&call, __func__, device)) {
        char text[80];
        uuid_of(call.world, call.index, call.instance, text);
        call_text(&call, uuid, size, "%s", text);
    }
    return call_end(&call);
}

NVML_API int nvmlDeviceGetSerial(nvml_device device, char *serial, unsigned size)
{
    nvml_call call;
    if (call_device(&call, __func__, device))
        call_text(&call, serial, size, "%013llu", (unsigned long long)(call.gpu->seed % 10000000000000u));
    return call_end(&call);
}

NVML_API int nvmlDeviceGetVbiosVersion(nvml_device device, char *version, unsigned size)
{
    nvml_call call;
    if (call_device(&call, __func__, device))
        call_text(&call, version, size, "%02X.00.00.00.01", (unsigned)call.model->architecture * 16);
    return call_end(&call);
}

NVML_API int nvmlDeviceGetPciInfo_v3(nvml_device device, nvml_pci_info *info)
{
    nvml_call call;
    if (call_device(&call, __func__, device) && call_needs(&call, info != NULL)) {
        memset(info, 0, sizeof *info);
        bus_id_of(call.index, info->bus_id);
        memcpy(info->bus_id_legacy, info->bus_id + 4, 13);
        info->bus = 0x10u + (unsigned)call.index;
        info->device_id = call.model->pci_device_id;
    }
    return call_end(&call);
}

/* Functions that give one number about a GPU: VALUE may use `call`. */
#define GIVES_NUMBER(function, type, value)                                                                            \
    NVML_API int function(nvml_device device, type *number)                                                           \
    {                                                                                                                  \
        nvml_call call;                                                                                                \
        if (call_device(&call, __func__, device) && call_needs(&call, number != NULL))                                 \
            *number = (value);                                                                                         \
        return call_end(&call);                                                                                        \
    }

GIVES_NUMBER(nvmlDeviceGetIndex, unsigned, (unsigned)call.index)
GIVES_NUMBER(nvmlDeviceGetMinorNumber, unsigned, (unsigned)call.index)
GIVES_NUMBER(nvmlDeviceGetBoardId, unsigned, (0x10u + (unsigned)call.index) << 8)
GIVES_NUMBER(nvmlDeviceGetMultiGpuBoard, unsigned, 0)
GIVES_NUMBER(nvmlDeviceGetBrand, unsigned, call.model->architecture == ARCH_VOLTA ? 2 : 14) /* Tesla, NVIDIA */
GIVES_NUMBER(nvmlDeviceGetArchitecture, unsigned, (unsigned)call.model->architecture)
GIVES_NUMBER(nvmlDeviceGetNumGpuCores, unsigned, call.model->cores)
GIVES_NUMBER(nvmlDeviceGetMemoryBusWidth, unsigned, call.model->memory_bus_bits)
GIVES_NUMBER(nvmlDeviceGetDisplayMode, unsigned, 0)
GIVES_NUMBER(nvmlDeviceGetDisplayActive, unsigned, 0)
GIVES_NUMBER(nvmlDeviceGetComputeMode, unsigned, 0)
GIVES_NUMBER(nvmlDeviceGetNumFans, unsigned, 0)
GIVES_NUMBER(nvmlDeviceGetVirtualizationMode, unsigned, (unsigned)call.gpu->virtualization)
GIVES_NUMBER(nvmlDeviceGetPersistenceMode, unsigned, (unsigned)call.gpu->persistence)

NVML_API int nvmlDeviceSetPersistenceMode(nvml_device device, unsigned mode)
{
    nvml_call call;
    if (call_setter(&call, __func__, device, "%u", mode) && call_needs(&call, mode <= 1))
        call.gpu->persistence = (int)mode;
    return call_end(&call);
}

NVML_API int nvmlDeviceGetCudaComputeCapability(nvml_device device, int *major, int *minor)
{
    nvml_call call;
    if (call_device(&call, __func__, device) && call_needs(&call, major && minor)) {
        *major = call.model->compute_major;
        *minor = call.model->compute_minor;
    }
    return call_end(&call);
}

NVML_API int nvmlDeviceGetEccMode(nvml_device device, unsigned *current, unsigned *pending)
{
    nvml_call call;
    if (call_device(&call, __func__, device) && call_needs(&call, current && pending))
        *current = *pending = 1;
    return call_end(&call);
}
