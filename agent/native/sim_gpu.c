#include "sim_gpu.h"

#include <math.h>
#include <string.h>

/* A temperature that moves less than this in one tick has settled, and power with it. */
static const double SETTLED_C = 1e-4;

/* --- Random numbers: a function of seed and count, so that equal seeds give equal courses --------- */

static double uniform(uint64_t seed, uint64_t count)
{
    uint64_t bits = seed + count * UINT64_C(0x9E3779B97F4A7C15);
    bits = (bits ^ (bits >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    bits = (bits ^ (bits >> 27)) * UINT64_C(0x94D049BB133111EB);
    bits ^= bits >> 31;
    return (double)(bits >> 11) * 0x1p-53;
}

static int64_t latency_ns(const sim_gpu *gpu, double target_mhz)
{
    double latency_ms = gpu->latency_ms;
    if (latency_ms < 0.0) {
        double random[3];
        for (unsigned i = 0; i < 3; i++)
            random[i] = uniform(gpu->seed, 3 * gpu->changes + i + 1);
        latency_ms = gp_switch_latency_ms(&gpu->switching, target_mhz, gpu->spec.clock_max_mhz, random);
    }
    return (int64_t)llround(latency_ms * 1e6);
}

/* --- Load ------------------------------------------------------------------------------------------ */

static int works(const gpu_load *load)
{
    return load->kernel_count > 0 || load->activity.compute > 0.0 || load->activity.memory > 0.0 ||
           load->activity.link > 0.0;
}

int sim_gpu_is_loaded(const sim_gpu *gpu)
{
    return works(&gpu->load) || gpu->load.activity.loaded || gpu->process_count > 0;
}

static void point_at(const gpu_load *load, const gp_kernel *pointers[MAX_KERNELS])
{
    for (int i = 0; i < load->kernel_count; i++)
        pointers[i] = &load->kernels[i];
}

static gp_activity activity_at(const sim_gpu *gpu, double clock_mhz)
{
    const gpu_load *load = &gpu->load;
    if (load->kernel_count == 0) {
        gp_activity activity = load->activity;
        activity.loaded = sim_gpu_is_loaded(gpu);
        return activity;
    }
    const gp_kernel *kernels[MAX_KERNELS];
    double slowdown[MAX_KERNELS];
    point_at(load, kernels);
    gp_contention(&gpu->spec, kernels, load->kernel_count, clock_mhz, slowdown);
    return gp_activity_of(&gpu->spec, kernels, slowdown, load->kernel_count, clock_mhz);
}

/* --- Clocks ------------------------------------------------------------------------------------------ */

/* The clock that the settings ask for: the top of the range under load, its bottom at rest. */
static double wanted_mhz(const sim_gpu *gpu)
{
    const clock_lock *lock = &gpu->settings.sm;
    double low = lock->high_mhz ? lock->low_mhz : gpu->spec.clock_min_mhz;
    double high = lock->high_mhz ? lock->high_mhz : gpu->spec.clock_max_mhz;
    return gp_clock_on_grid_mhz(&gpu->spec, sim_gpu_is_loaded(gpu) ? high : low);
}

/* Grants and limits to delivered clock, power and reasons. */
static void arbitrate(sim_gpu *gpu)
{
    double limit_w = gpu->settings.power_limit_w;
    double thermal_w = gp_thermal_limit_w(&gpu->spec, gpu->temperature_c);
    double wish = gpu->granted_mhz;
    unsigned reasons = 0;
    if (gpu->brake_mhz > 0.0 && gpu->brake_mhz < wish) {
        wish = gp_clock_on_grid_mhz(&gpu->spec, gpu->brake_mhz);
        reasons |= 0x80 | 0x8; /* hardware power brake, hardware slow-down */
    }
    double cap_w = fmin(limit_w, thermal_w);
    if (gpu->load.kernel_count > 0) {
        const gp_kernel *kernels[MAX_KERNELS];
        point_at(&gpu->load, kernels);
        gpu->clock_mhz = gp_capped_clock_running_mhz(&gpu->spec, kernels, gpu->load.kernel_count, wish, cap_w,
                                                     gpu->temperature_c);
    } else {
        gp_activity activity = activity_at(gpu, wish);
        gpu->clock_mhz = gp_capped_clock_mhz(&gpu->spec, &activity, wish, cap_w, gpu->temperature_c);
    }
    gpu->activity = activity_at(gpu, gpu->clock_mhz);
    gpu->power_w = gp_power_w(&gpu->spec, &gpu->activity, gpu->clock_mhz, gpu->temperature_c);
    if (gpu->clock_mhz < wish)
        reasons |= thermal_w < limit_w ? 0x20u : 0x4u; /* software thermal slow-down, software power cap */
    if (!works(&gpu->load))
        reasons |= 0x1; /* idle */
    gpu->reasons = reasons;
}

static void retarget(sim_gpu *gpu)
{
    double target = wanted_mhz(gpu);
    if (target == (gpu->pending_mhz > 0.0 ? gpu->pending_mhz : gpu->granted_mhz))
        return;
    /* The late command wins: a change that is under way is replaced, or called off. */
    gpu->pending_mhz = 0.0;
    if (target == gpu->granted_mhz)
        return;
    int64_t latency = latency_ns(gpu, target);
    gpu->changes++;
    if (latency <= 0) {
        gpu->granted_mhz = target;
        return;
    }
    gpu->pending_mhz = target;
    gpu->pending_ns = gpu->now_ns + latency;
}

/* --- Time --------------------------------------------------------------------------------------------- */

static int64_t ticks_before(const sim_gpu *gpu, int64_t now_ns)
{
    int64_t since = now_ns - gpu->phase_ns;
    return since >= 0 ? since / gpu->window_ns : -1 - (-since - 1) / gpu->window_ns;
}

static gpu_use use_after(const sim_gpu *gpu, double dt_s)
{
    return (gpu_use){gpu->use.busy_s + gpu->load.busy * dt_s, gpu->use.compute_s + gpu->activity.compute * dt_s,
                     gpu->use.memory_s + gpu->activity.memory * dt_s};
}

/* Power is constant from now to then. */
static void pass(sim_gpu *gpu, int64_t then_ns)
{
    int64_t ns = then_ns - gpu->now_ns;
    if (ns <= 0)
        return;
    double dt_s = (double)ns / NS_PER_S;
    double temperature = gp_temperature_after_c(&gpu->spec, gpu->temperature_c, gpu->power_w, dt_s);
    double joules = gpu->power_w * dt_s;
    int64_t ticks_per_period = gpu->period_ns / gpu->window_ns;
    int64_t tick = ticks_before(gpu, gpu->now_ns) % ticks_per_period;
    if (tick == 0)
        gpu->window_j += joules;
    gpu->energy_j += joules;
    gpu->use = use_after(gpu, dt_s);
    if (gpu->reasons & 0x4)
        gpu->power_capped_ns += ns;
    if (gpu->reasons & 0x20)
        gpu->thermal_capped_ns += ns;
    if (fabs(temperature - gpu->temperature_c) >= SETTLED_C || ns < gpu->window_ns)
        gpu->temperature_c = temperature;
    gpu->now_ns = then_ns;
}

static void take_sample(sim_gpu *gpu)
{
    double window_s = (double)gpu->window_ns / NS_PER_S, period_s = (double)gpu->period_ns / NS_PER_S;
    sensor_sample *sample = &gpu->samples[gpu->sample_count++ % SENSOR_SAMPLES];
    sample->power_w = gpu->window_j / window_s;
    sample->busy = (gpu->use.busy_s - gpu->use_at_last_sample.busy_s) / period_s;
    sample->memory = (gpu->use.memory_s - gpu->use_at_last_sample.memory_s) / period_s;
    gpu->use_at_last_sample = gpu->use;
    gpu->window_j = 0.0;
}

void sim_gpu_advance(sim_gpu *gpu, int64_t now_ns)
{
    int64_t tick = ticks_before(gpu, gpu->now_ns) + 1;
    int64_t ticks_per_period = gpu->period_ns / gpu->window_ns;
    for (;;) {
        int64_t tick_ns = gpu->phase_ns + tick * gpu->window_ns;
        int lands = gpu->pending_mhz > 0.0 && gpu->pending_ns <= tick_ns;
        int64_t mark_ns = lands ? gpu->pending_ns : tick_ns;
        if (mark_ns > now_ns)
            return;
        double before_c = gpu->temperature_c;
        pass(gpu, mark_ns);
        /* Tick `tick` ends the window that is the first of its period. */
        if (mark_ns == tick_ns && (tick++ - 1) % ticks_per_period == 0)
            take_sample(gpu);
        if (lands) {
            gpu->granted_mhz = gpu->pending_mhz;
            gpu->pending_mhz = 0.0;
        }
        if (lands || gpu->temperature_c != before_c)
            arbitrate(gpu);
    }
}

void sim_gpu_settle(sim_gpu *gpu, int64_t now_ns)
{
    sim_gpu_advance(gpu, now_ns);
    pass(gpu, now_ns);
}

void sim_gpu_changed(sim_gpu *gpu)
{
    retarget(gpu);
    arbitrate(gpu);
}

void sim_gpu_start(sim_gpu *gpu, int64_t now_ns)
{
    gpu->now_ns = now_ns;
    gpu->temperature_c = gpu->spec.temperature_ambient_c + gpu->spec.thermal_resistance_c_per_w * gpu->spec.idle_w;
    gpu->settings.power_limit_w = gpu->spec.power_limit_w;
    gpu->granted_mhz = wanted_mhz(gpu);
    arbitrate(gpu);
    for (int i = 0; i < SENSOR_SAMPLES; i++)
        gpu->samples[i].power_w = gpu->power_w;
}

/* --- Forgetting ------------------------------------------------------------------------------------------ */

void sim_gpu_forget_settings(sim_gpu *gpu)
{
    memset(&gpu->settings, 0, sizeof gpu->settings);
    gpu->settings.power_limit_w = gpu->spec.power_limit_w;
    sim_gpu_changed(gpu);
}

void sim_gpu_reload(sim_gpu *gpu)
{
    gpu->in_use = 0;
    gpu->persistence = gpu->persistence_at_load;
    gpu->mig = gpu->mig_pending;
    gpu->counter_base_j = gpu->energy_j;
    gpu->power_capped_ns = gpu->thermal_capped_ns = 0;
    sim_gpu_forget_settings(gpu);
}

/* --- Reading ------------------------------------------------------------------------------------------------ */

static double since_s(const sim_gpu *gpu, int64_t now_ns)
{
    return now_ns > gpu->now_ns ? (double)(now_ns - gpu->now_ns) / NS_PER_S : 0.0;
}

double sim_gpu_energy_j(const sim_gpu *gpu, int64_t now_ns)
{
    return gpu->energy_j + gpu->power_w * since_s(gpu, now_ns);
}

double sim_gpu_temperature_c(const sim_gpu *gpu, int64_t now_ns)
{
    return gp_temperature_after_c(&gpu->spec, gpu->temperature_c, gpu->power_w, since_s(gpu, now_ns));
}

gpu_use sim_gpu_use(const sim_gpu *gpu, int64_t now_ns)
{
    return use_after(gpu, since_s(gpu, now_ns));
}

static const sensor_sample *last_sample(const sim_gpu *gpu)
{
    return &gpu->samples[(gpu->sample_count + SENSOR_SAMPLES - 1) % SENSOR_SAMPLES];
}

double sim_gpu_sensor_power_w(const sim_gpu *gpu)
{
    return last_sample(gpu)->power_w * gpu->gain;
}

double sim_gpu_sensor_mean_power_w(const sim_gpu *gpu)
{
    double sum = 0.0;
    for (int i = 0; i < SENSOR_SAMPLES; i++)
        sum += gpu->samples[i].power_w;
    return sum / SENSOR_SAMPLES * gpu->gain;
}

double sim_gpu_counter_j(const sim_gpu *gpu, int64_t now_ns)
{
    return (sim_gpu_energy_j(gpu, now_ns) - gpu->counter_base_j) * gpu->gain;
}

double sim_gpu_busy(const sim_gpu *gpu)
{
    double sum = 0.0;
    for (int i = 0; i < SENSOR_SAMPLES; i++)
        sum += gpu->samples[i].busy;
    return sum / SENSOR_SAMPLES;
}

double sim_gpu_memory_busy(const sim_gpu *gpu)
{
    double sum = 0.0;
    for (int i = 0; i < SENSOR_SAMPLES; i++)
        sum += gpu->samples[i].memory;
    return sum / SENSOR_SAMPLES;
}
