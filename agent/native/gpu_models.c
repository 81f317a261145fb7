#include "gpu_models.h"

#include <string.h>

#include "nvml_abi.h"

/*
 * Product data: NVIDIA's data sheets (cores, multiprocessors, bus width, memory) and the PCI ID
 * repository; memory clocks and framebuffer sizes as nvidia-smi lists them. Power is a one-second
 * mean from Ampere on, except on GA100 (NVML reference, nvmlDeviceGetPowerUsage).
 */
static const gpu_model MODELS[] = {
    {"A100", "NVIDIA A100-SXM4-80GB", ARCH_AMPERE, 8, 0, 0x20B210DE, 6912, 108, 5120, 81920, {1593, 0}, 1, 0, 92},
    {"H100", "NVIDIA H100 80GB HBM3", ARCH_HOPPER, 9, 0, 0x233010DE, 16896, 132, 5120, 81559, {2619, 1593}, 1, 1, 92},
    {"H200", "NVIDIA H200", ARCH_HOPPER, 9, 0, 0x233510DE, 16896, 132, 6144, 143771, {3201, 1593}, 1, 1, 92},
    {"V100", "Tesla V100-SXM2-32GB", ARCH_VOLTA, 7, 0, 0x1DB510DE, 5120, 80, 4096, 32768, {877, 0}, 0, 0, 90},
    {"L40S", "NVIDIA L40S", ARCH_ADA, 8, 9, 0x26B910DE, 18176, 142, 384, 46068, {9001, 405}, 0, 1, 98},
};

const gpu_model *gpu_model_of(const char *preset)
{
    for (size_t i = 0; i < sizeof MODELS / sizeof *MODELS; i++)
        if (strcmp(MODELS[i].preset, preset) == 0)
            return &MODELS[i];
    return NULL;
}
