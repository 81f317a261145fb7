/*
 * How every NVML function begins and ends.
 *
 *     int nvmlDeviceGetPowerUsage(nvml_device device, unsigned *milliwatts)
 *     {
 *         nvml_call call;
 *         if (call_device(&call, __func__, device) && call_needs(&call, milliwatts != NULL))
 *             *milliwatts = ...call.gpu...;
 *         return call_end(&call);
 *     }
 *
 * call_begin and call_device do what is common: is the library initialised, is the driver there, does
 * the GPU answer, is it lost, is a failure injected. They open a transaction (sim_state.h) that
 * call_end commits, and call_end writes the line of the call trace. After a check that failed the
 * function body is skipped and call.result says why.
 */
#ifndef EMO_NVML_CALL_H
#define EMO_NVML_CALL_H

#include "gpu_models.h"
#include "nvml_abi.h"
#include "sim_state.h"

typedef struct {
    const char *function;
    int result;
    int index;    /* of the GPU, or -1 */
    int instance; /* of a MIG device: its place in the list of the GPU, or -1 */
    sim_world *world;
    sim_gpu *gpu;
    const gpu_model *model;
    int64_t now_ns;
    char arguments[96]; /* of a setter, for the trace */
    struct attachment *attachment;
} nvml_call;

/* A function about the system. 1: go on. */
int call_begin(nvml_call *call, const char *function);

/* A function about a whole GPU. */
int call_device(nvml_call *call, const char *function, nvml_device device);

/* A function that knows GPUs and MIG devices. */
int call_any_device(nvml_call *call, const char *function, nvml_device device);

/* A setter: it takes its time, needs privileges, and its arguments are traced. */
int call_setter(nvml_call *call, const char *function, nvml_device device, const char *arguments, ...)
    __attribute__((format(printf, 4, 5), nonnull(4)));

/* After a check of arguments: INVALID_ARGUMENT unless it holds. 1: go on. */
int call_needs(nvml_call *call, int holds);

/* After a check of abilities: NOT_SUPPORTED unless it holds. 1: go on. */
int call_supports(nvml_call *call, int holds);

/* A setter's change: inside, the GPU's time is exactly now, and what follows from the change follows. */
void call_change_begin(nvml_call *call);
void call_change_end(nvml_call *call);

/* Gives text to a caller's buffer; INSUFFICIENT_SIZE when it is too small. */
void call_text(nvml_call *call, char *buffer, unsigned size, const char *format, ...)
    __attribute__((format(printf, 4, 5), nonnull(4)));

int call_end(nvml_call *call);

/* Ends a successful look that is not the end of the function: nothing is traced. */
void call_drop(nvml_call *call);

/* Devices as callers hold them. */
nvml_device device_of(int index, int instance);

/* Identity of GPUs and MIG devices, in buffers of at least 80 characters. */
void uuid_of(const sim_world *world, int index, int instance, char uuid[80]);
void bus_id_of(int index, char bus_id[32]);

#endif
