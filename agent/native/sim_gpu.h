/*
 * One simulated GPU: what it is told, what runs on it, and how that evolves over time.
 *
 * Everything is a value in plain memory, shared by processes: no pointers. Between two *marks* (the
 * ticks of the sensor, a clock that lands, a change from outside) power is constant, so energy is
 * exact, and what a reader sees between two marks is extrapolated without touching the state. The
 * course of a GPU therefore does not depend on who looks at it, or how often.
 */
#ifndef EMO_SIM_GPU_H
#define EMO_SIM_GPU_H

#include <stdint.h>

#include "gpu_physics.h"

#define MAX_KERNELS 8
#define MAX_PROCESSES 32
#define MAX_INSTANCES 7
#define SENSOR_SAMPLES 10 /* with the period of 100 ms: one second */
#define NS_PER_S 1000000000LL

/* What the outside world makes the GPU do. */
typedef struct {
    gp_activity activity; /* independent of the clock; .loaded: a context is held */
    gp_kernel kernels[MAX_KERNELS];
    int kernel_count; /* > 0: these run side by side, and the activity follows the clock */
    double busy;      /* 0..1: share of the time in which a kernel runs, for the utilisation */
} gpu_load;

typedef struct {
    unsigned pid, gpu_instance, compute_instance;
    uint64_t memory_mib;
} gpu_process;

typedef struct {
    unsigned gpu_instance, compute_instance, slices;
    uint64_t memory_mib;
} gpu_instance;

/* A range of clocks, 0 to 0 when there is no lock. */
typedef struct {
    unsigned low_mhz, high_mhz;
} clock_lock;

/* What a driver forgets when it is unloaded. */
typedef struct {
    clock_lock sm, memory;
    double power_limit_w;
} gpu_settings;

/* How long each part was in use, weighted with how much of it. */
typedef struct {
    double busy_s, compute_s, memory_s;
} gpu_use;

/* What the sensor saw in one of its periods. */
typedef struct {
    double power_w, busy, memory;
} sensor_sample;

typedef struct {
    /* What it is. */
    char model[16];
    gp_spec spec;
    gp_switching switching;
    int64_t window_ns, period_ns, phase_ns; /* of the sensor: window, period, when the first one begins */
    double gain;                            /* of the sensor of this board */
    uint64_t seed;
    double latency_ms; /* of every clock change; < 0: as the model has it */

    /* What it was told. */
    gpu_settings settings;
    int persistence, persistence_at_load;
    int in_use; /* somebody has held it open since its settings were last forgotten */
    int mig, mig_pending;
    gpu_instance instances[MAX_INSTANCES];
    int instance_count;
    int virtualization;
    int lost;
    double brake_mhz;            /* external power brake: the clock stays at or below; 0: none */
    int64_t silent_until_ns;     /* real time: calls do not return before */
    uint64_t bad_energy_mj;      /* the next reads of the counter give this ... */
    unsigned bad_energy_reads;   /* ... so many times */

    /* What runs on it. */
    gpu_load load;
    gpu_process processes[MAX_PROCESSES];
    int process_count;

    /* Its course, as of now_ns. */
    int64_t now_ns;
    double granted_mhz;   /* what the settings ask for, once it has landed */
    double pending_mhz;   /* where a change that is under way goes; 0: none */
    int64_t pending_ns;   /* when it lands */
    uint64_t changes;     /* clock changes so far; numbers the draws of the latency */
    double clock_mhz;     /* delivered: at or below granted */
    gp_activity activity; /* of the load at that clock */
    double power_w, temperature_c, energy_j;
    unsigned reasons;
    int64_t power_capped_ns, thermal_capped_ns;
    double counter_base_j; /* energy when the counter last began at 0 */
    double window_j;                 /* of the window that is open */
    gpu_use use, use_at_last_sample; /* since the beginning */
    sensor_sample samples[SENSOR_SAMPLES];
    uint64_t sample_count;
} sim_gpu;

/* A GPU at rest at that time. The caller has filled in "what it is". */
void sim_gpu_start(sim_gpu *gpu, int64_t now_ns);

/* Lets time pass up to the last mark at or before now_ns. Time never goes back. */
void sim_gpu_advance(sim_gpu *gpu, int64_t now_ns);

/* Brings the state to now_ns exactly: before anything is changed from outside. */
void sim_gpu_settle(sim_gpu *gpu, int64_t now_ns);

/* Applies what was changed in settings, load, spec: after sim_gpu_settle and the change. */
void sim_gpu_changed(sim_gpu *gpu);

/* Clock locks and power limit are forgotten; what a driver does at its end. */
void sim_gpu_forget_settings(sim_gpu *gpu);

/* The driver begins anew: settings and counters forgotten, a pending MIG mode in force. */
void sim_gpu_reload(sim_gpu *gpu);

/* True energy and temperature at a moment at or after the last mark. */
double sim_gpu_energy_j(const sim_gpu *gpu, int64_t now_ns);
double sim_gpu_temperature_c(const sim_gpu *gpu, int64_t now_ns);

/* What the sensor says: last sample, mean of the last second, counter since the driver was loaded. */
double sim_gpu_sensor_power_w(const sim_gpu *gpu);
double sim_gpu_sensor_mean_power_w(const sim_gpu *gpu);
double sim_gpu_counter_j(const sim_gpu *gpu, int64_t now_ns);

gpu_use sim_gpu_use(const sim_gpu *gpu, int64_t now_ns);

/* Mean of the last second of what keeps the GPU busy, 0..1. */
double sim_gpu_busy(const sim_gpu *gpu);
double sim_gpu_memory_busy(const sim_gpu *gpu);

/* Somebody holds a context: clocks stay up. */
int sim_gpu_is_loaded(const sim_gpu *gpu);

#endif
