/* GPU performance monitoring, from Hopper on: how much of the GPU was in use between two samples. */
#include <stdlib.h>

#include "nvml_call.h"

enum { GPM_VERSION = 1 };

enum gpm_metric { GPM_GRAPHICS = 1, GPM_SM = 2, GPM_MEMORY_BANDWIDTH = 10 };

typedef struct nvml_gpm_sample_st {
    int64_t now_ns;
    gpu_use use;
} *nvml_gpm_sample;

static int has_gpm(const nvml_call *call)
{
    return call->model->architecture >= ARCH_HOPPER;
}

NVML_API int nvmlGpmQueryDeviceSupport(nvml_device device, nvml_gpm_support *support)
{
    nvml_call call;
    if (call_device(&call, __func__, device) && call_needs(&call, support != NULL))
        support->supported = (unsigned)has_gpm(&call);
    return call_end(&call);
}

NVML_API int nvmlGpmSampleAlloc(nvml_gpm_sample *sample)
{
    nvml_call call;
    if (call_begin(&call, __func__) && call_needs(&call, sample != NULL)) {
        *sample = calloc(1, sizeof **sample);
        if (!*sample)
            call.result = NVML_MEMORY;
    }
    return call_end(&call);
}

NVML_API int nvmlGpmSampleFree(nvml_gpm_sample sample)
{
    nvml_call call;
    if (call_begin(&call, __func__) && call_needs(&call, sample != NULL))
        free(sample);
    return call_end(&call);
}

NVML_API int nvmlGpmSampleGet(nvml_device device, nvml_gpm_sample sample)
{
    nvml_call call;
    if (call_device(&call, __func__, device) && call_supports(&call, has_gpm(&call)) &&
        call_needs(&call, sample != NULL)) {
        sample->now_ns = call.now_ns;
        sample->use = sim_gpu_use(call.gpu, call.now_ns);
    }
    return call_end(&call);
}

static void give_metric(nvml_gpm_metric *metric, const gpu_use *before, const gpu_use *after, double elapsed_s)
{
    double used_s;
    metric->result = NVML_SUCCESS;
    switch (metric->metric) {
    case GPM_GRAPHICS: used_s = after->busy_s - before->busy_s; break;
    case GPM_SM: used_s = after->compute_s - before->compute_s; break;
    case GPM_MEMORY_BANDWIDTH: used_s = after->memory_s - before->memory_s; break;
    default: metric->result = NVML_NOT_SUPPORTED; return;
    }
    metric->value = 100.0 * used_s / elapsed_s;
}

NVML_API int nvmlGpmMetricsGet(nvml_gpm_request *request)
{
    nvml_call call;
    if (!call_begin(&call, __func__) || !call_needs(&call, request && request->first && request->second))
        return call_end(&call);
    double elapsed_s = (double)(request->second->now_ns - request->first->now_ns) / NS_PER_S;
    if (request->version != GPM_VERSION)
        call.result = NVML_ARGUMENT_VERSION_MISMATCH;
    else if (call_needs(&call, elapsed_s > 0.0))
        for (unsigned i = 0; i < request->count; i++)
            give_metric(&request->metrics[i], &request->first->use, &request->second->use, elapsed_s);
    return call_end(&call);
}
