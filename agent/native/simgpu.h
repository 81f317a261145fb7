/*
 * How the simulated GPUs are driven: the other side of NVML.
 *
 * Text of lines `key=value` changes anything (docs/simulated-driver.md lists the keys); a player that
 * runs a workload in real time sets the load and reads the delivered clock without text. Whoever uses
 * these functions is no client of the driver: it keeps no GPU in use and needs no privileges.
 *
 * Functions that can fail return 0 or -1, with a sentence in `error` (which may be NULL).
 */
#ifndef EMO_SIMGPU_H
#define EMO_SIMGPU_H

#include <stddef.h>
#include <stdint.h>

#include "gpu_physics.h"

#define SIMGPU_API __attribute__((visibility("default")))

typedef struct sim_state simgpu;

/*
 * Makes a state file with GPUs of these models, "H100,H100", at time 0, for that driver branch. It must not exist.
 * Time runs as the machine's does or, when frozen, moves only when told (`clock=SECONDS`).
 */
SIMGPU_API int simgpu_create(const char *path, const char *models, uint64_t seed, unsigned branch, int frozen, char *error,
                             size_t size);

/* NULL when it cannot be used. One handle may be used by one thread at a time. */
SIMGPU_API simgpu *simgpu_open(const char *path, char *error, size_t size);
SIMGPU_API void simgpu_close(simgpu *sim);

/* Applies all lines at one moment, or none of them. */
SIMGPU_API int simgpu_control(simgpu *sim, const char *text, char *error, size_t size);

/*
 * What runs on a GPU from now on: up to 8 kernels, or, with a count of 0, an activity that does not
 * depend on the clock (compute, memory, link, loaded, each 0..1). `busy` (0..1) is what the
 * utilisation is to say.
 */
SIMGPU_API int simgpu_load(simgpu *sim, int gpu, const double activity[4], const gp_kernel *kernels, int count,
                           double busy, char *error, size_t size);

/* Delivered clock now, and when it changes next as far as the driver knows (INT64_MAX: no change under way). */
SIMGPU_API int simgpu_clock(simgpu *sim, int gpu, int64_t *now_ns, double *clock_mhz, int64_t *change_ns);

/* Everything there is to know, as JSON. Returns its length without the final 0; at most size - 1 are written. */
SIMGPU_API size_t simgpu_describe(simgpu *sim, char *json, size_t size);

/* The driver branch of a state file, or -1: says which build of the library belongs to it. */
SIMGPU_API int simgpu_branch(simgpu *sim);

#endif
