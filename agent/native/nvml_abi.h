/*
 * The part of NVML's binary interface that the simulated driver speaks.
 *
 * Numbers and layouts are those that the nvidia-ml-py binding expects; only what the simulator uses
 * is here. Names say what a thing means, so that the functions below read without a manual.
 */
#ifndef EMO_NVML_ABI_H
#define EMO_NVML_ABI_H

#include <stdint.h>

#define NVML_API __attribute__((visibility("default")))

enum nvml_return {
    NVML_SUCCESS = 0,
    NVML_UNINITIALIZED = 1,
    NVML_INVALID_ARGUMENT = 2,
    NVML_NOT_SUPPORTED = 3,
    NVML_NO_PERMISSION = 4,
    NVML_NOT_FOUND = 6,
    NVML_INSUFFICIENT_SIZE = 7,
    NVML_DRIVER_NOT_LOADED = 9,
    NVML_TIMEOUT = 10,
    NVML_GPU_IS_LOST = 15,
    NVML_LIB_RM_VERSION_MISMATCH = 18,
    NVML_IN_USE = 19,
    NVML_MEMORY = 20,
    NVML_INSUFFICIENT_RESOURCES = 23,
    NVML_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_UNKNOWN = 999,
};

enum nvml_clock { CLOCK_GRAPHICS = 0, CLOCK_SM = 1, CLOCK_MEMORY = 2, CLOCK_VIDEO = 3 };

enum nvml_clock_id { CLOCK_ID_CURRENT = 0, CLOCK_ID_BOOST_MAX = 3 };

enum nvml_architecture { ARCH_VOLTA = 5, ARCH_AMPERE = 7, ARCH_ADA = 8, ARCH_HOPPER = 9 };

enum nvml_virtualization { VIRT_NONE = 0, VIRT_PASSTHROUGH = 1, VIRT_GUEST = 2, VIRT_HOST_VGPU = 3, VIRT_HOST_VSGA = 4 };

/* Clock-event reasons: why the clock is what it is. */
enum nvml_reason {
    REASON_IDLE = 0x1,
    REASON_SOFTWARE_POWER_CAP = 0x4,
    REASON_HARDWARE_SLOWDOWN = 0x8,
    REASON_SOFTWARE_THERMAL = 0x20,
    REASON_HARDWARE_POWER_BRAKE = 0x80,
};

enum nvml_field {
    FIELD_MEMORY_TEMPERATURE = 82,
    FIELD_TOTAL_ENERGY = 83,
    FIELD_POWER_AVERAGE = 185,
    FIELD_POWER_INSTANT = 186,
    FIELD_POWER_LIMIT_MIN = 187,
    FIELD_POWER_LIMIT_MAX = 188,
    FIELD_POWER_LIMIT_DEFAULT = 189,
    FIELD_POWER_LIMIT_CURRENT = 190,
    FIELD_POWER_LIMIT_REQUESTED = 192,
};

enum nvml_value_type { VALUE_DOUBLE = 0, VALUE_UNSIGNED = 1, VALUE_UNSIGNED_LONG_LONG = 3 };

enum { NO_INSTANCE = -1 };

/* A device as callers hold it: opaque to them. */
typedef struct nvml_device_st *nvml_device;

typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} nvml_pci_info;

typedef struct {
    unsigned pid;
    unsigned long long used_bytes;
    unsigned gpu_instance, compute_instance;
} nvml_process;

typedef struct {
    unsigned gpu, memory;
} nvml_utilization;

typedef struct {
    unsigned long long total, free, used;
} nvml_memory;

typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} nvml_memory_v2;

typedef struct {
    unsigned version;
    int sensor, temperature;
} nvml_temperature;

typedef struct {
    unsigned multiprocessors, copy_engines, decoders, encoders, jpegs, ofas, gpu_slices, compute_slices;
    unsigned long long memory_mib;
} nvml_attributes;

typedef struct {
    unsigned long long reference_ns, violation_ns;
} nvml_violation;

typedef union {
    double real;
    unsigned number;
    unsigned long long big;
} nvml_value;

typedef struct {
    unsigned field, scope;
    int64_t timestamp_us, latency_us;
    unsigned type;
    int result;
    nvml_value value;
} nvml_field_value;

typedef struct {
    nvml_device device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
} nvml_event;

typedef struct {
    unsigned metric;
    int result;
    double value;
    const char *short_name, *long_name, *unit;
} nvml_gpm_metric;

/* As many metrics follow as the caller says. */
typedef struct {
    unsigned version, count;
    struct nvml_gpm_sample_st *first, *second;
    nvml_gpm_metric metrics[];
} nvml_gpm_request;

typedef struct {
    unsigned version, supported;
} nvml_gpm_support;

_Static_assert(sizeof(nvml_process) == 24 && sizeof(nvml_field_value) == 40 && sizeof(nvml_pci_info) == 68,
               "the layouts of the binding");

#endif
