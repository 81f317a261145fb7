/* Power, energy, temperature, utilisation: what the sensors say. */
#include <math.h>

#include "driver_version.h"
#include "nvml_call.h"

/* A guest sees nothing of the board's sensors. */
static int begin_sensor(nvml_call *call, const char *function, nvml_device device, int has_result)
{
    return call_device(call, function, device) && call_supports(call, call->gpu->virtualization != VIRT_GUEST) &&
           call_needs(call, has_result);
}

static unsigned milliwatts(double power_w)
{
    return (unsigned)lround(power_w * 1000.0);
}

/* --- Power ----------------------------------------------------------------------------------------------- */

NVML_API int nvmlDeviceGetPowerUsage(nvml_device device, unsigned *power_mw)
{
    nvml_call call;
    if (begin_sensor(&call, __func__, device, power_mw != NULL))
        *power_mw = milliwatts(call.model->power_usage_is_average ? sim_gpu_sensor_mean_power_w(call.gpu)
                                                                  : sim_gpu_sensor_power_w(call.gpu));
    return call_end(&call);
}

NVML_API int nvmlDeviceGetPowerManagementMode(nvml_device device, unsigned *mode)
{
    nvml_call call;
    if (begin_sensor(&call, __func__, device, mode != NULL))
        *mode = 1;
    return call_end(&call);
}

NVML_API int nvmlDeviceGetPowerManagementLimit(nvml_device device, unsigned *limit_mw)
{
    nvml_call call;
    if (begin_sensor(&call, __func__, device, limit_mw != NULL))
        *limit_mw = milliwatts(call.gpu->settings.power_limit_w);
    return call_end(&call);
}

NVML_API int nvmlDeviceGetEnforcedPowerLimit(nvml_device device, unsigned *limit_mw)
{
    nvml_call call;
    if (begin_sensor(&call, __func__, device, limit_mw != NULL))
        *limit_mw = milliwatts(call.gpu->settings.power_limit_w);
    return call_end(&call);
}

NVML_API int nvmlDeviceGetPowerManagementDefaultLimit(nvml_device device, unsigned *limit_mw)
{
    nvml_call call;
    if (begin_sensor(&call, __func__, device, limit_mw != NULL))
        *limit_mw = milliwatts(call.gpu->spec.power_limit_w);
    return call_end(&call);
}

NVML_API int nvmlDeviceGetPowerManagementLimitConstraints(nvml_device device, unsigned *low_mw, unsigned *high_mw)
{
    nvml_call call;
    if (begin_sensor(&call, __func__, device, low_mw && high_mw)) {
        *low_mw = milliwatts(call.gpu->spec.power_limit_min_w);
        *high_mw = milliwatts(call.gpu->spec.power_limit_max_w);
    }
    return call_end(&call);
}

NVML_API int nvmlDeviceSetPowerManagementLimit(nvml_device device, unsigned limit_mw)
{
    nvml_call call;
    double limit_w = limit_mw / 1000.0;
    if (call_setter(&call, __func__, device, "%u", limit_mw) &&
        call_needs(&call, limit_w >= call.gpu->spec.power_limit_min_w && limit_w <= call.gpu->spec.power_limit_max_w)) {
        call_change_begin(&call);
        call.gpu->settings.power_limit_w = limit_w;
        call_change_end(&call);
    }
    return call_end(&call);
}

/* --- Energy ------------------------------------------------------------------------------------------------ */

/* One in a while, a counter gives a value that has nothing to do with the one before and after. */
static unsigned long long counter_mj(nvml_call *call)
{
    if (call->gpu->bad_energy_reads > 0) {
        call->gpu->bad_energy_reads--;
        return call->gpu->bad_energy_mj;
    }
    return (unsigned long long)(sim_gpu_counter_j(call->gpu, call->now_ns) * 1000.0);
}

NVML_API int nvmlDeviceGetTotalEnergyConsumption(nvml_device device, unsigned long long *energy_mj)
{
    nvml_call call;
    if (begin_sensor(&call, __func__, device, energy_mj != NULL))
        *energy_mj = counter_mj(&call);
    return call_end(&call);
}

/* --- Field values --------------------------------------------------------------------------------------------- */

static void give_power(nvml_field_value *field, double power_w)
{
    field->type = VALUE_UNSIGNED;
    field->value.number = milliwatts(power_w);
}

static int power_field_w(const sim_gpu *gpu, unsigned field, double *power_w)
{
    switch (field) {
    case FIELD_POWER_AVERAGE: *power_w = sim_gpu_sensor_mean_power_w(gpu); return 1;
    case FIELD_POWER_INSTANT: *power_w = sim_gpu_sensor_power_w(gpu); return 1;
    case FIELD_POWER_LIMIT_MIN: *power_w = gpu->spec.power_limit_min_w; return 1;
    case FIELD_POWER_LIMIT_MAX: *power_w = gpu->spec.power_limit_max_w; return 1;
    case FIELD_POWER_LIMIT_DEFAULT: *power_w = gpu->spec.power_limit_w; return 1;
    case FIELD_POWER_LIMIT_CURRENT:
    case FIELD_POWER_LIMIT_REQUESTED: *power_w = gpu->settings.power_limit_w; return 1;
    default: return 0;
    }
}

static void give_field(nvml_call *call, nvml_field_value *field)
{
    double power_w;
    field->timestamp_us = call->now_ns / 1000;
    field->latency_us = 0;
    field->result = NVML_SUCCESS;
    if (call->gpu->virtualization == VIRT_GUEST) {
        field->result = NVML_NOT_SUPPORTED;
    } else if (field->field == FIELD_TOTAL_ENERGY) {
        field->type = VALUE_UNSIGNED_LONG_LONG;
        field->value.big = counter_mj(call);
    } else if (DRIVER_BRANCH >= FIRST_BRANCH_WITH_POWER_FIELDS && power_field_w(call->gpu, field->field, &power_w)) {
        give_power(field, power_w);
    } else {
        field->result = NVML_NOT_SUPPORTED;
    }
}

NVML_API int nvmlDeviceGetFieldValues(nvml_device device, int count, nvml_field_value *fields)
{
    nvml_call call;
    if (call_device(&call, __func__, device) && call_needs(&call, count > 0 && fields))
        for (int i = 0; i < count; i++)
            give_field(&call, &fields[i]);
    return call_end(&call);
}

/* --- Temperature -------------------------------------------------------------------------------------------------- */

NVML_API int nvmlDeviceGetTemperature(nvml_device device, unsigned sensor, unsigned *temperature_c)
{
    nvml_call call;
    if (begin_sensor(&call, __func__, device, temperature_c && sensor == 0))
        *temperature_c = (unsigned)lround(sim_gpu_temperature_c(call.gpu, call.now_ns));
    return call_end(&call);
}

NVML_API int nvmlDeviceGetTemperatureV(nvml_device device, nvml_temperature *reading)
{
    enum { VERSION_1 = 0x100000C };
    nvml_call call;
    if (!begin_sensor(&call, __func__, device, reading && reading->sensor == 0))
        return call_end(&call);
    if (reading->version == VERSION_1)
        reading->temperature = (int)lround(sim_gpu_temperature_c(call.gpu, call.now_ns));
    else
        call.result = NVML_ARGUMENT_VERSION_MISMATCH;
    return call_end(&call);
}

NVML_API int nvmlDeviceGetTemperatureThreshold(nvml_device device, unsigned kind, unsigned *temperature_c)
{
    enum { SHUTDOWN = 0, SLOWDOWN = 1, MEMORY_MAX = 2, GPU_MAX = 3 };
    nvml_call call;
    if (begin_sensor(&call, __func__, device, temperature_c != NULL) && call_supports(&call, kind <= GPU_MAX)) {
        unsigned slowdown = (unsigned)lround(call.gpu->spec.temperature_slowdown_c);
        *temperature_c = kind == SHUTDOWN ? call.model->shutdown_c : kind == MEMORY_MAX ? 95 : slowdown;
    }
    return call_end(&call);
}

NVML_API int nvmlDeviceGetFanSpeed(nvml_device device, unsigned *percent)
{
    nvml_call call;
    (void)percent;
    if (call_device(&call, __func__, device))
        call.result = NVML_NOT_SUPPORTED; /* data-centre boards have none */
    return call_end(&call);
}

/* --- Utilisation ----------------------------------------------------------------------------------------------------- */

NVML_API int nvmlDeviceGetUtilizationRates(nvml_device device, nvml_utilization *rates)
{
    nvml_call call;
    if (call_device(&call, __func__, device) && call_supports(&call, !call.gpu->mig) &&
        call_needs(&call, rates != NULL)) {
        rates->gpu = (unsigned)lround(sim_gpu_busy(call.gpu) * 100.0);
        rates->memory = (unsigned)lround(sim_gpu_memory_busy(call.gpu) * 100.0);
    }
    return call_end(&call);
}
