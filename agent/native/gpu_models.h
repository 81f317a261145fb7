/*
 * What a driver tells about a GPU model beside its physics: names, sizes, abilities.
 *
 * The physics of the same models is generated (gpu_presets.h); a test holds the two lists together.
 */
#ifndef EMO_GPU_MODELS_H
#define EMO_GPU_MODELS_H

typedef struct {
    const char *preset;  /* name of its physics */
    const char *product; /* as nvmlDeviceGetName says it */
    int architecture, compute_major, compute_minor;
    unsigned pci_device_id;
    unsigned cores, multiprocessors, memory_bus_bits;
    unsigned long long memory_mib;
    unsigned memory_clocks_mhz[2]; /* highest first, 0 when there is only one */
    int mig;                       /* can be divided into instances */
    int power_usage_is_average;    /* nvmlDeviceGetPowerUsage: the mean of a second, else the last sample */
    unsigned shutdown_c;           /* the slow-down temperature is part of the physics */
} gpu_model;

/* The model of that preset, or NULL. */
const gpu_model *gpu_model_of(const char *preset);

#endif
