/*
 * Physics of a simulated GPU: how long work takes and how much power is drawn, over clocks.
 *
 * The ground truth of the simulator. The player (player.c) and the simulated driver
 * (agent/native) both compile this one file, so that they cannot disagree. It shares no formula
 * with emo.models: what a planner assumes must not be what it is judged by.
 *
 * No state, no I/O, no allocation. Units are in the names; clocks are core (SM) clocks.
 */
#ifndef EMO_GPU_PHYSICS_H
#define EMO_GPU_PHYSICS_H

#include <stdint.h>

/* One GPU model. Filled from presets.py through one generated table; every figure has its source there. */
typedef struct {
    double clock_min_mhz, clock_max_mhz, clock_step_mhz, clock_base_mhz;
    double power_limit_w, power_limit_min_w, power_limit_max_w;
    double idle_w;          /* deep idle: no context, lowest clock */
    double loaded_idle_w;   /* a context is loaded, clocks at maximum, nothing runs, at temperature_ref_c */
    double leakage_w;       /* part of the above that is leakage, at voltage 1 and temperature_ref_c */
    double leakage_per_c;   /* it grows by e to this power per degree */
    double compute_w;       /* dynamic power of fully active SMs at the maximum clock */
    double memory_w;        /* dynamic power of fully active memory */
    double link_w;          /* dynamic power of fully active links */
    double stall_share;     /* SMs that wait (for memory, for a peer) switch this much of what they switch at work */
    double voltage_floor;   /* relative to the voltage at the maximum clock */
    double voltage_knee;    /* clock / maximum below which the voltage stays at its floor */
    double voltage_shape;   /* exponent of the rise above the knee */
    double uncore_slope;    /* memory time grows by this share per unit of (maximum / clock - 1) */
    double bound_sharpness; /* exponent of the smooth maximum of compute and memory time */
    double temperature_ambient_c, temperature_ref_c, thermal_resistance_c_per_w, thermal_tau_s;
    double temperature_slowdown_c;
} gp_spec;

/* What a kernel is, whatever the clock: times at the maximum clock with the GPU to itself. */
typedef struct {
    double compute_ns;      /* SM work: goes with the clock */
    double memory_ns;       /* memory traffic: nearly independent of the clock */
    double fixed_ns;        /* latency that nothing changes */
    double compute_activity; /* 0..1: how hard the SMs switch while they work */
    double memory_activity;  /* 0..1 */
    double link_activity;    /* 0..1 */
    double sm_share;         /* 0..1: share of the SMs that it occupies */
} gp_kernel;

/* What runs at one moment, summed over the kernels that run. */
typedef struct {
    double compute; /* 0..1 activity of all SMs */
    double memory;  /* 0..1 activity of the memory */
    double link;    /* 0..1 activity of the links */
    int loaded;     /* 1: a context is loaded, so clocks and voltage stay up while nothing runs */
} gp_activity;

/* Clock on the grid of the model, at or below the wish, within its range. As the driver lists them, in whole MHz:
 * steps of 7.5 give 1530, 1522, 1515. */
double gp_clock_on_grid_mhz(const gp_spec *spec, double wish_mhz);

/* Voltage relative to that at the maximum clock. */
double gp_voltage(const gp_spec *spec, double clock_mhz);

/* Duration of a kernel that has the GPU to itself. */
double gp_duration_ns(const gp_spec *spec, const gp_kernel *kernel, double clock_mhz);

/*
 * Slow-down (>= 1) of each of `count` kernels that run together: SMs are shared beyond sm_share 1,
 * memory bandwidth beyond full use. slowdown[i] multiplies gp_duration_ns.
 *
 * The shares are those of the maximum clock at every clock, so that a lower clock never speeds a
 * kernel up by slowing its neighbour. All 1 for kernels that fit side by side.
 */
void gp_contention(const gp_spec *spec, const gp_kernel *const *kernels, int count, double clock_mhz, double *slowdown);

/* Activity of kernels that run together at the given slow-downs. */
gp_activity gp_activity_of(const gp_spec *spec, const gp_kernel *const *kernels, const double *slowdown, int count,
                           double clock_mhz);

/* Board power. */
double gp_power_w(const gp_spec *spec, const gp_activity *activity, double clock_mhz, double temperature_c);

/* Highest clock on the grid, at or below the wish, whose power is within the limit; the minimum clock if none is. */
double gp_capped_clock_mhz(const gp_spec *spec, const gp_activity *activity, double wish_mhz, double limit_w,
                           double temperature_c);

/* The same for kernels that run together, whose activity changes with the clock. */
double gp_capped_clock_running_mhz(const gp_spec *spec, const gp_kernel *const *kernels, int count, double wish_mhz,
                                   double limit_w, double temperature_c);

/* Power that holds a GPU at its slow-down temperature; infinite while it is below. The cap is the lower of both. */
double gp_thermal_limit_w(const gp_spec *spec, double temperature_c);

/* Temperature after dt_s seconds at constant power. */
double gp_temperature_after_c(const gp_spec *spec, double temperature_c, double power_w, double dt_s);

/* Switching: how long the old clock goes on after a change is asked for, and how long nothing runs at the change. */
typedef struct {
    double latency_median_ms;     /* over all target clocks */
    double latency_target_spread; /* the median of a target clock is up to e to this power longer or shorter */
    double latency_sigma;         /* of the logarithm, from change to change */
    double latency_tail_share;    /* share of the changes that take longer still ... */
    double latency_tail_ms;       /* ... by this much on average, exponentially distributed */
    double stall_us;
} gp_switching;

/* Latency of one change. Deterministic in `random`, uniform numbers in [0, 1): the caller owns the generator. */
double gp_switch_latency_ms(const gp_switching *switching, double target_mhz, double clock_max_mhz,
                            const double random[3]);

#endif
