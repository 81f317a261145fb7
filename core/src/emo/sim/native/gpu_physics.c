/* Physics of a simulated GPU; what each function means is in gpu_physics.h. */
#include "gpu_physics.h"

#include <math.h>

/* Relative room for rounding where a value should fall on a grid point. */
static const double ROUNDING = 1e-9;

static double clamp(double value, double low, double high)
{
    return fmin(fmax(value, low), high);
}

/* --- Clock and voltage ---------------------------------------------------------------------- */

static long grid_last(const gp_spec *spec)
{
    return (long)floor((spec->clock_max_mhz - spec->clock_min_mhz) / spec->clock_step_mhz + ROUNDING);
}

static double grid_clock_mhz(const gp_spec *spec, long index)
{
    return floor(spec->clock_min_mhz + (double)index * spec->clock_step_mhz + ROUNDING);
}

/* Index of the highest grid clock at or below the wish. */
static long grid_index(const gp_spec *spec, double wish_mhz)
{
    double wish = clamp(wish_mhz, spec->clock_min_mhz, spec->clock_max_mhz);
    long last = grid_last(spec);
    long index = (long)floor((wish - spec->clock_min_mhz) / spec->clock_step_mhz + ROUNDING);
    /* Whole MHz lie a little below the exact step: 1522 is the step of 1522.5. */
    if (index < last && grid_clock_mhz(spec, index + 1) <= wish)
        index++;
    return index < last ? index : last;
}

double gp_clock_on_grid_mhz(const gp_spec *spec, double wish_mhz)
{
    return grid_clock_mhz(spec, grid_index(spec, wish_mhz));
}

double gp_voltage(const gp_spec *spec, double clock_mhz)
{
    double knee = spec->voltage_knee;
    double rise = clamp((clock_mhz / spec->clock_max_mhz - knee) / (1.0 - knee), 0.0, 1.0);
    return spec->voltage_floor + (1.0 - spec->voltage_floor) * pow(rise, spec->voltage_shape);
}

/* --- Time ------------------------------------------------------------------------------------- */

/* What the neighbours leave of a shared unit: its work takes this many times as long. */
typedef struct {
    double compute, memory;
} crowding;

static const crowding ALONE = {1.0, 1.0};

/* The p-norm: close to the larger one when they differ, above both when they are alike. */
static double smooth_maximum(double a, double b, double sharpness)
{
    double high = fmax(a, b);
    if (high <= 0.0)
        return 0.0;
    return high * pow(1.0 + pow(fmin(a, b) / high, sharpness), 1.0 / sharpness);
}

static double duration_ns(const gp_spec *spec, const gp_kernel *kernel, double clock_mhz, crowding crowd)
{
    double slow = spec->clock_max_mhz / clock_mhz;
    double compute = kernel->compute_ns * slow * crowd.compute;
    double memory = kernel->memory_ns * (1.0 + spec->uncore_slope * (slow - 1.0)) * crowd.memory;
    return kernel->fixed_ns + smooth_maximum(compute, memory, spec->bound_sharpness);
}

double gp_duration_ns(const gp_spec *spec, const gp_kernel *kernel, double clock_mhz)
{
    return duration_ns(spec, kernel, clock_mhz, ALONE);
}

/* --- Several kernels at once ------------------------------------------------------------------ */

/* Use of the memory at the maximum clock, 1 when full, if its traffic takes `crowd.memory` times as long. */
static double memory_use(const gp_spec *spec, const gp_kernel *const *kernels, int count, crowding crowd)
{
    double use = 0.0;
    for (int i = 0; i < count; i++) {
        double duration = duration_ns(spec, kernels[i], spec->clock_max_mhz, crowd);
        if (duration > 0.0)
            use += kernels[i]->memory_activity * kernels[i]->memory_ns / duration;
    }
    return use;
}

/*
 * The least crowding at which SMs and memory are not used beyond what there is.
 *
 * Memory traffic takes `f` times as long for the least f with use(f) <= 1. The use falls with f, and
 * a kernel is never faster than its traffic, so that f lies between 1 and the sum of the activities.
 */
static crowding crowding_of(const gp_spec *spec, const gp_kernel *const *kernels, int count)
{
    double share = 0.0, high = 0.0, low = 1.0;
    for (int i = 0; i < count; i++) {
        share += kernels[i]->sm_share;
        high += kernels[i]->memory_activity;
    }
    crowding crowd = {fmax(share, 1.0), 1.0};
    if (count < 2 || high <= 1.0)
        return crowd;
    double over_low = memory_use(spec, kernels, count, crowd) - 1.0;
    if (over_low <= 0.0)
        return crowd;
    crowd.memory = high;
    double over_high = memory_use(spec, kernels, count, crowd) - 1.0;

    /* Regula falsi, in the Illinois variant: an end that stays put twice counts half. */
    for (int step = 0, kept = 0; step < 60 && over_high < 0.0 && high - low > ROUNDING * high; step++) {
        crowd.memory = (low * over_high - high * over_low) / (over_high - over_low);
        double over = memory_use(spec, kernels, count, crowd) - 1.0;
        if (fabs(over) < ROUNDING)
            return crowd;
        if (over > 0.0) {
            low = crowd.memory;
            over_low = over;
            if (kept == 1)
                over_high /= 2.0;
            kept = 1;
        } else {
            high = crowd.memory;
            over_high = over;
            if (kept == 2)
                over_low /= 2.0;
            kept = 2;
        }
    }
    crowd.memory = high;
    return crowd;
}

void gp_contention(const gp_spec *spec, const gp_kernel *const *kernels, int count, double clock_mhz, double *slowdown)
{
    crowding crowd = crowding_of(spec, kernels, count);
    for (int i = 0; i < count; i++) {
        double alone = gp_duration_ns(spec, kernels[i], clock_mhz);
        slowdown[i] = alone > 0.0 ? fmax(duration_ns(spec, kernels[i], clock_mhz, crowd) / alone, 1.0) : 1.0;
    }
}

/* --- Activity ----------------------------------------------------------------------------------- */

/* Adds what a kernel that takes `took_ns` at this clock keeps busy on average. */
static void add_activity(const gp_spec *spec, const gp_kernel *kernel, double clock_mhz, double took_ns,
                         gp_activity *sum)
{
    if (took_ns <= 0.0)
        return;
    double work = fmin(kernel->compute_ns * spec->clock_max_mhz / clock_mhz / took_ns, 1.0);
    sum->compute += kernel->compute_activity * kernel->sm_share * (work + spec->stall_share * (1.0 - work));
    sum->memory += kernel->memory_activity * kernel->memory_ns / took_ns;
    /* The same bytes in more time. */
    if (kernel->link_activity > 0.0)
        sum->link += kernel->link_activity * gp_duration_ns(spec, kernel, spec->clock_max_mhz) / took_ns;
}

static gp_activity at_most_full(gp_activity activity)
{
    activity.compute = fmin(activity.compute, 1.0);
    activity.memory = fmin(activity.memory, 1.0);
    activity.link = fmin(activity.link, 1.0);
    return activity;
}

gp_activity gp_activity_of(const gp_spec *spec, const gp_kernel *const *kernels, const double *slowdown, int count,
                           double clock_mhz)
{
    gp_activity sum = {0.0, 0.0, 0.0, 1};
    for (int i = 0; i < count; i++)
        add_activity(spec, kernels[i], clock_mhz, gp_duration_ns(spec, kernels[i], clock_mhz) * slowdown[i], &sum);
    return at_most_full(sum);
}

static gp_activity crowded_activity(const gp_spec *spec, const gp_kernel *const *kernels, int count, double clock_mhz,
                                    crowding crowd)
{
    gp_activity sum = {0.0, 0.0, 0.0, 1};
    for (int i = 0; i < count; i++)
        add_activity(spec, kernels[i], clock_mhz, duration_ns(spec, kernels[i], clock_mhz, crowd), &sum);
    return at_most_full(sum);
}

/* --- Power -------------------------------------------------------------------------------------- */

double gp_power_w(const gp_spec *spec, const gp_activity *activity, double clock_mhz, double temperature_c)
{
    double voltage = gp_voltage(spec, clock_mhz);
    double switching = clock_mhz / spec->clock_max_mhz * voltage * voltage;
    double power = spec->idle_w + activity->compute * spec->compute_w * switching +
                   activity->memory * spec->memory_w + activity->link * spec->link_w;
    if (activity->loaded) {
        /* Clock trees run whether or not anything is computed; an unloaded GPU is power-gated. */
        power += (spec->loaded_idle_w - spec->idle_w - spec->leakage_w) * switching;
        power += spec->leakage_w * voltage * voltage *
                 exp(spec->leakage_per_c * (temperature_c - spec->temperature_ref_c));
    }
    return power;
}

/* What draws power: kernels, or an activity that does not depend on the clock when there are none. */
typedef struct {
    const gp_activity *activity;
    const gp_kernel *const *kernels;
    int count;
    crowding crowd;
} consumers;

static double power_of(const gp_spec *spec, const consumers *who, double clock_mhz, double temperature_c)
{
    if (who->activity)
        return gp_power_w(spec, who->activity, clock_mhz, temperature_c);
    gp_activity activity = crowded_activity(spec, who->kernels, who->count, clock_mhz, who->crowd);
    return gp_power_w(spec, &activity, clock_mhz, temperature_c);
}

/* Power rises with the clock, so the clocks within the limit are the lowest ones of the grid: bisection. */
static double capped_clock_mhz(const gp_spec *spec, const consumers *who, double wish_mhz, double limit_w,
                               double temperature_c)
{
    long too_high = grid_index(spec, wish_mhz), within = 0;
    if (power_of(spec, who, grid_clock_mhz(spec, too_high), temperature_c) <= limit_w)
        return grid_clock_mhz(spec, too_high);
    while (too_high - within > 1) {
        long middle = within + (too_high - within) / 2;
        if (power_of(spec, who, grid_clock_mhz(spec, middle), temperature_c) <= limit_w)
            within = middle;
        else
            too_high = middle;
    }
    return grid_clock_mhz(spec, within);
}

double gp_capped_clock_mhz(const gp_spec *spec, const gp_activity *activity, double wish_mhz, double limit_w,
                           double temperature_c)
{
    consumers fixed = {activity, 0, 0, ALONE};
    return capped_clock_mhz(spec, &fixed, wish_mhz, limit_w, temperature_c);
}

double gp_capped_clock_running_mhz(const gp_spec *spec, const gp_kernel *const *kernels, int count, double wish_mhz,
                                   double limit_w, double temperature_c)
{
    consumers running = {0, kernels, count, crowding_of(spec, kernels, count)};
    return capped_clock_mhz(spec, &running, wish_mhz, limit_w, temperature_c);
}

/* --- Temperature ---------------------------------------------------------------------------------- */

double gp_thermal_limit_w(const gp_spec *spec, double temperature_c)
{
    if (temperature_c < spec->temperature_slowdown_c)
        return INFINITY;
    return (spec->temperature_slowdown_c - spec->temperature_ambient_c) / spec->thermal_resistance_c_per_w;
}

double gp_temperature_after_c(const gp_spec *spec, double temperature_c, double power_w, double dt_s)
{
    double settled_c = spec->temperature_ambient_c + spec->thermal_resistance_c_per_w * power_w;
    return settled_c + (temperature_c - settled_c) * exp(-dt_s / spec->thermal_tau_s);
}

/* --- Switching ------------------------------------------------------------------------------------ */

/* A number in [-1, 1) that belongs to a target clock: which targets are slow follows no pattern that is known. */
static double target_character(double target_mhz, double clock_max_mhz)
{
    uint64_t bits = (uint64_t)llround(clamp(target_mhz / clock_max_mhz, 0.0, 2.0) * 1e4);
    /* The finaliser of splitmix64. */
    bits = (bits + 1) * UINT64_C(0x9E3779B97F4A7C15);
    bits = (bits ^ (bits >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    bits = (bits ^ (bits >> 27)) * UINT64_C(0x94D049BB133111EB);
    bits ^= bits >> 31;
    return (double)(bits >> 11) * 0x1p-52 - 1.0;
}

double gp_switch_latency_ms(const gp_switching *switching, double target_mhz, double clock_max_mhz,
                            const double random[3])
{
    static const double TURN = 6.283185307179586;
    double normal = sqrt(-2.0 * log(1.0 - random[0])) * cos(TURN * random[1]); /* Box-Muller */
    double latency = switching->latency_median_ms *
                     exp(switching->latency_target_spread * target_character(target_mhz, clock_max_mhz) +
                         switching->latency_sigma * normal);
    /* Below the share, random[2] is uniform again: it says how far into the tail. */
    if (random[2] < switching->latency_tail_share)
        latency -= switching->latency_tail_ms * log(1.0 - random[2] / switching->latency_tail_share);
    return latency;
}
