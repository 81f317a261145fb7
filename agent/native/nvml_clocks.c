/* Clocks: what they are, what may be asked for, why they are lower, and the locks. */
#include <math.h>

#include "nvml_call.h"

/* --- Reading ----------------------------------------------------------------------------------------- */

static unsigned sm_clock_mhz(const sim_gpu *gpu)
{
    return (unsigned)lround(gpu->clock_mhz);
}

/* The highest memory clock within the lock. Physics does not know this clock: see docs/simulated-driver.md. */
static unsigned memory_clock_mhz(const sim_gpu *gpu, const gpu_model *model)
{
    const unsigned *clocks = model->memory_clocks_mhz;
    unsigned high = gpu->settings.memory.high_mhz;
    return high && high < clocks[0] && clocks[1] ? clocks[1] : clocks[0];
}

static unsigned clock_mhz(const nvml_call *call, unsigned type)
{
    return type == CLOCK_MEMORY ? memory_clock_mhz(call->gpu, call->model) : sm_clock_mhz(call->gpu);
}

static unsigned clock_max_mhz(const nvml_call *call, unsigned type)
{
    return type == CLOCK_MEMORY ? call->model->memory_clocks_mhz[0] : (unsigned)lround(call->gpu->spec.clock_max_mhz);
}

NVML_API int nvmlDeviceGetClockInfo(nvml_device device, unsigned type, unsigned *mhz)
{
    nvml_call call;
    if (call_device(&call, __func__, device) && call_needs(&call, mhz && type <= CLOCK_VIDEO))
        *mhz = clock_mhz(&call, type);
    return call_end(&call);
}

NVML_API int nvmlDeviceGetMaxClockInfo(nvml_device device, unsigned type, unsigned *mhz)
{
    nvml_call call;
    if (call_device(&call, __func__, device) && call_needs(&call, mhz && type <= CLOCK_VIDEO))
        *mhz = clock_max_mhz(&call, type);
    return call_end(&call);
}

NVML_API int nvmlDeviceGetMaxCustomerBoostClock(nvml_device device, unsigned type, unsigned *mhz)
{
    nvml_call call;
    if (call_device(&call, __func__, device) && call_needs(&call, mhz && type <= CLOCK_VIDEO))
        *mhz = clock_max_mhz(&call, type);
    return call_end(&call);
}

NVML_API int nvmlDeviceGetClock(nvml_device device, unsigned type, unsigned id, unsigned *mhz)
{
    nvml_call call;
    /* Application clocks are on their way out and nothing here uses them. */
    if (call_device(&call, __func__, device) && call_needs(&call, mhz && type <= CLOCK_VIDEO) &&
        call_supports(&call, id == CLOCK_ID_CURRENT || id == CLOCK_ID_BOOST_MAX))
        *mhz = id == CLOCK_ID_CURRENT ? clock_mhz(&call, type) : clock_max_mhz(&call, type);
    return call_end(&call);
}

NVML_API int nvmlDeviceGetMinMaxClockOfPState(nvml_device device, unsigned type, unsigned state, unsigned *low,
                                              unsigned *high)
{
    nvml_call call;
    if (call_device(&call, __func__, device) && call_needs(&call, low && high && type <= CLOCK_VIDEO) &&
        call_supports(&call, state == 0)) {
        *high = clock_max_mhz(&call, type);
        *low = type == CLOCK_MEMORY ? *high : (unsigned)lround(call.gpu->spec.clock_min_mhz);
    }
    return call_end(&call);
}

NVML_API int nvmlDeviceGetPerformanceState(nvml_device device, unsigned *state)
{
    nvml_call call;
    if (call_device(&call, __func__, device) && call_needs(&call, state != NULL))
        *state = sim_gpu_is_loaded(call.gpu) || call.gpu->settings.sm.high_mhz ? 0 : 8;
    return call_end(&call);
}

/* Whether the caller's array takes that many; says how many there are either way. */
static int fits(nvml_call *call, unsigned *count, const unsigned *clocks, unsigned there_are)
{
    unsigned room = *count;
    *count = there_are;
    if (clocks && room >= there_are)
        return 1;
    call->result = NVML_INSUFFICIENT_SIZE;
    return 0;
}

NVML_API int nvmlDeviceGetSupportedMemoryClocks(nvml_device device, unsigned *count, unsigned *clocks)
{
    nvml_call call;
    if (call_device(&call, __func__, device) && call_needs(&call, count != NULL)) {
        const unsigned *known = call.model->memory_clocks_mhz;
        unsigned there_are = known[1] ? 2 : 1;
        if (fits(&call, count, clocks, there_are))
            for (unsigned i = 0; i < there_are; i++)
                clocks[i] = known[i];
    }
    return call_end(&call);
}

NVML_API int nvmlDeviceGetSupportedGraphicsClocks(nvml_device device, unsigned memory_mhz, unsigned *count,
                                                  unsigned *clocks)
{
    nvml_call call;
    if (!call_device(&call, __func__, device) || !call_needs(&call, count != NULL))
        return call_end(&call);
    const gp_spec *spec = &call.gpu->spec;
    const unsigned *known = call.model->memory_clocks_mhz;
    unsigned there_are = 1 + (unsigned)lround((spec->clock_max_mhz - spec->clock_min_mhz) / spec->clock_step_mhz);
    if (memory_mhz == 0 || (memory_mhz != known[0] && memory_mhz != known[1]))
        call.result = NVML_NOT_FOUND;
    else if (fits(&call, count, clocks, there_are))
        for (unsigned i = 0; i < there_are; i++)
            clocks[i] = (unsigned)gp_clock_on_grid_mhz(spec, spec->clock_max_mhz - i * spec->clock_step_mhz);
    return call_end(&call);
}

/* --- Why the clock is what it is ------------------------------------------------------------------------ */

static int give_reasons(nvml_call *call, int ready, unsigned long long *reasons)
{
    if (ready && call_needs(call, reasons != NULL))
        *reasons = call->gpu->reasons;
    return call_end(call);
}

static int give_supported_reasons(nvml_call *call, int ready, unsigned long long *reasons)
{
    if (ready && call_needs(call, reasons != NULL))
        *reasons = REASON_IDLE | REASON_SOFTWARE_POWER_CAP | REASON_HARDWARE_SLOWDOWN | REASON_SOFTWARE_THERMAL |
                   REASON_HARDWARE_POWER_BRAKE;
    return call_end(call);
}

NVML_API int nvmlDeviceGetCurrentClocksEventReasons(nvml_device device, unsigned long long *reasons)
{
    nvml_call call;
    return give_reasons(&call, call_device(&call, __func__, device), reasons);
}

NVML_API int nvmlDeviceGetCurrentClocksThrottleReasons(nvml_device device, unsigned long long *reasons)
{
    nvml_call call;
    return give_reasons(&call, call_device(&call, __func__, device), reasons);
}

NVML_API int nvmlDeviceGetSupportedClocksEventReasons(nvml_device device, unsigned long long *reasons)
{
    nvml_call call;
    return give_supported_reasons(&call, call_device(&call, __func__, device), reasons);
}

NVML_API int nvmlDeviceGetSupportedClocksThrottleReasons(nvml_device device, unsigned long long *reasons)
{
    nvml_call call;
    return give_supported_reasons(&call, call_device(&call, __func__, device), reasons);
}

NVML_API int nvmlDeviceGetViolationStatus(nvml_device device, unsigned policy, nvml_violation *violation)
{
    nvml_call call;
    enum { POWER = 0, THERMAL = 1 };
    if (call_device(&call, __func__, device) && call_needs(&call, violation != NULL) &&
        call_supports(&call, policy <= THERMAL)) {
        violation->reference_ns = (unsigned long long)(call.now_ns / 1000); /* microseconds, unlike the other */
        violation->violation_ns =
            (unsigned long long)(policy == POWER ? call.gpu->power_capped_ns : call.gpu->thermal_capped_ns);
    }
    return call_end(&call);
}

/* --- Locks ------------------------------------------------------------------------------------------------- */

/* A lock is a request: what the clock becomes, and when, is for the GPU to say. */
static void set_lock(nvml_call *call, clock_lock *lock, unsigned low_mhz, unsigned high_mhz)
{
    call_change_begin(call);
    *lock = (clock_lock){low_mhz, high_mhz};
    call_change_end(call);
}

NVML_API int nvmlDeviceSetGpuLockedClocks(nvml_device device, unsigned low_mhz, unsigned high_mhz)
{
    nvml_call call;
    if (call_setter(&call, __func__, device, "%u,%u", low_mhz, high_mhz) &&
        call_needs(&call, low_mhz <= high_mhz && high_mhz > 0))
        set_lock(&call, &call.gpu->settings.sm, low_mhz, high_mhz);
    return call_end(&call);
}

NVML_API int nvmlDeviceResetGpuLockedClocks(nvml_device device)
{
    nvml_call call;
    if (call_setter(&call, __func__, device, "%s", ""))
        set_lock(&call, &call.gpu->settings.sm, 0, 0);
    return call_end(&call);
}

NVML_API int nvmlDeviceSetMemoryLockedClocks(nvml_device device, unsigned low_mhz, unsigned high_mhz)
{
    nvml_call call;
    if (call_setter(&call, __func__, device, "%u,%u", low_mhz, high_mhz) &&
        call_supports(&call, call.model->architecture >= ARCH_AMPERE) &&
        call_needs(&call, low_mhz <= high_mhz && high_mhz > 0))
        set_lock(&call, &call.gpu->settings.memory, low_mhz, high_mhz);
    return call_end(&call);
}

NVML_API int nvmlDeviceResetMemoryLockedClocks(nvml_device device)
{
    nvml_call call;
    if (call_setter(&call, __func__, device, "%s", "") &&
        call_supports(&call, call.model->architecture >= ARCH_AMPERE))
        set_lock(&call, &call.gpu->settings.memory, 0, 0);
    return call_end(&call);
}
