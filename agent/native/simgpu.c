#define _GNU_SOURCE
#include "simgpu.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nvml_call.h"
#include "sim_state.h"

/* --- Errors ---------------------------------------------------------------------------------------- */

static void hand_over(const sim_error *from, char *error, size_t size)
{
    if (error && size > 0)
        snprintf(error, size, "%s", from->text);
}

/* Fills in the error and is false, so that a check can return it. */
__attribute__((format(printf, 2, 3))) static int refuse(sim_error *error, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
    return 0;
}

/* --- Values ------------------------------------------------------------------------------------------ */

/* Up to `most` numbers that fill the whole text; how many there were, or -1. */
static int parse_numbers(const char *text, double *numbers, int most)
{
    int count = 0;
    while (*text) {
        char *end;
        errno = 0;
        double number = strtod(text, &end);
        if (end == text || errno != 0 || !isfinite(number) || count == most || (*end && *end != ' '))
            return -1;
        numbers[count++] = number;
        text = end + strspn(end, " ");
    }
    return count;
}

static int parse_number(const char *text, double low, double high, double *number, sim_error *error)
{
    if (parse_numbers(text, number, 1) != 1 || *number < low || *number > high)
        return refuse(error, "expected a number from %g to %g, found %.40s", low, high, text);
    return 1;
}

static int parse_integer(const char *text, long low, long high, int *number, sim_error *error)
{
    double value;
    if (parse_numbers(text, &value, 1) != 1 || value != floor(value) || value < (double)low || value > (double)high)
        return refuse(error, "expected a whole number from %ld to %ld, found %.40s", low, high, text);
    *number = (int)value;
    return 1;
}

static int is_share(double value)
{
    return value >= 0.0 && value <= 1.0;
}

static int is_kernel(const gp_kernel *k)
{
    return isfinite(k->compute_ns + k->memory_ns + k->fixed_ns) && k->compute_ns >= 0.0 && k->memory_ns >= 0.0 &&
           k->fixed_ns >= 0.0 && is_share(k->compute_activity) && is_share(k->memory_activity) &&
           is_share(k->link_activity) && is_share(k->sm_share);
}

/* --- Keys of a GPU --------------------------------------------------------------------------------------- */

typedef int gpu_setter(sim_world *world, int index, const char *value, sim_error *error);

static int set_share(double *share, const char *value, sim_error *error)
{
    return parse_number(value, 0.0, 1.0, share, error);
}

static int set_flag(int *flag, const char *value, sim_error *error)
{
    return parse_integer(value, 0, 1, flag, error);
}

static int set_compute(sim_world *world, int index, const char *value, sim_error *error)
{
    world->gpus[index].load.kernel_count = 0;
    return set_share(&world->gpus[index].load.activity.compute, value, error);
}

static int set_memory(sim_world *world, int index, const char *value, sim_error *error)
{
    world->gpus[index].load.kernel_count = 0;
    return set_share(&world->gpus[index].load.activity.memory, value, error);
}

static int set_link(sim_world *world, int index, const char *value, sim_error *error)
{
    world->gpus[index].load.kernel_count = 0;
    return set_share(&world->gpus[index].load.activity.link, value, error);
}

static int set_busy(sim_world *world, int index, const char *value, sim_error *error)
{
    return set_share(&world->gpus[index].load.busy, value, error);
}

static int set_loaded(sim_world *world, int index, const char *value, sim_error *error)
{
    return set_flag(&world->gpus[index].load.activity.loaded, value, error);
}

static int add_kernel(sim_world *world, int index, const char *value, sim_error *error)
{
    gpu_load *load = &world->gpus[index].load;
    if (strcmp(value, "none") == 0) {
        load->kernel_count = 0;
        return 1;
    }
    double n[7];
    if (parse_numbers(value, n, 7) != 7 || load->kernel_count == MAX_KERNELS)
        return refuse(error, "expected compute_ns memory_ns fixed_ns, compute, memory and link activity, SM share, "
                             "for at most %d kernels", MAX_KERNELS);
    gp_kernel kernel = {n[0], n[1], n[2], n[3], n[4], n[5], n[6]};
    if (!is_kernel(&kernel))
        return refuse(error, "times are at least 0, activities and shares from 0 to 1");
    load->kernels[load->kernel_count++] = kernel;
    return 1;
}

static int add_process(sim_world *world, int index, const char *value, sim_error *error)
{
    sim_gpu *gpu = &world->gpus[index];
    if (strcmp(value, "none") == 0) {
        gpu->process_count = 0;
        return 1;
    }
    double n[4] = {0, 0, 0, 0};
    int count = parse_numbers(value, n, 4);
    if (count < 2 || n[0] < 1 || n[0] > 4e9 || n[1] < 0 || n[2] < 0 || n[3] < 0 || n[2] > 100 || n[3] > 100)
        return refuse(error, "expected PID MEMORY_MIB [GPU_INSTANCE COMPUTE_INSTANCE], or none");
    if (gpu->process_count == MAX_PROCESSES)
        return refuse(error, "at most %d processes", MAX_PROCESSES);
    gpu->processes[gpu->process_count++] =
        (gpu_process){.pid = (unsigned)n[0], .memory_mib = (uint64_t)n[1], .gpu_instance = (unsigned)n[2],
                      .compute_instance = (unsigned)n[3]};
    gpu->in_use = 1;
    return 1;
}

static int set_lock(clock_lock *lock, const char *value, sim_error *error)
{
    double n[2];
    if (strcmp(value, "none") == 0) {
        *lock = (clock_lock){0, 0};
        return 1;
    }
    if (parse_numbers(value, n, 2) != 2 || n[0] < 0 || n[1] < 1 || n[0] > n[1] || n[1] > 1e5)
        return refuse(error, "expected LOW HIGH in MHz, or none; found %.40s", value);
    *lock = (clock_lock){(unsigned)n[0], (unsigned)n[1]};
    return 1;
}

static int set_sm_lock(sim_world *world, int index, const char *value, sim_error *error)
{
    return set_lock(&world->gpus[index].settings.sm, value, error);
}

static int set_memory_lock(sim_world *world, int index, const char *value, sim_error *error)
{
    return set_lock(&world->gpus[index].settings.memory, value, error);
}

static int set_power_limit(sim_world *world, int index, const char *value, sim_error *error)
{
    const gp_spec *spec = &world->gpus[index].spec;
    return parse_number(value, spec->power_limit_min_w, spec->power_limit_max_w,
                        &world->gpus[index].settings.power_limit_w, error);
}

static int set_persistence(sim_world *world, int index, const char *value, sim_error *error)
{
    sim_gpu *gpu = &world->gpus[index];
    if (!set_flag(&gpu->persistence, value, error))
        return 0;
    gpu->persistence_at_load = gpu->persistence;
    return 1;
}

static int set_mig(sim_world *world, int index, const char *value, sim_error *error)
{
    sim_gpu *gpu = &world->gpus[index];
    if (!gpu_model_of(gpu->model)->mig)
        return refuse(error, "%s has no MIG", gpu->model);
    if (!set_flag(&gpu->mig, value, error))
        return 0;
    gpu->mig_pending = gpu->mig;
    gpu->instance_count = 0;
    return 1;
}

static int add_instance(sim_world *world, int index, const char *value, sim_error *error)
{
    sim_gpu *gpu = &world->gpus[index];
    double n[4];
    if (parse_numbers(value, n, 4) != 4 || n[0] < 0 || n[1] < 0 || n[2] < 1 || n[2] > MAX_INSTANCES || n[3] < 0)
        return refuse(error, "expected GPU_INSTANCE COMPUTE_INSTANCE SLICES MEMORY_MIB");
    if (!gpu->mig || gpu->instance_count == MAX_INSTANCES)
        return refuse(error, "needs MIG mode, and at most %d instances", MAX_INSTANCES);
    gpu->instances[gpu->instance_count++] = (gpu_instance){(unsigned)n[0], (unsigned)n[1], (unsigned)n[2],
                                                          (uint64_t)n[3]};
    return 1;
}

static int set_virtualization(sim_world *world, int index, const char *value, sim_error *error)
{
    return parse_integer(value, VIRT_NONE, VIRT_HOST_VSGA, &world->gpus[index].virtualization, error);
}

static void report_xid(sim_world *world, int index, unsigned long long xid)
{
    world->events[world->event_count++ % MAX_EVENTS] = (xid_event){index, xid};
}

static int set_xid(sim_world *world, int index, const char *value, sim_error *error)
{
    int xid;
    if (!parse_integer(value, 1, 1000, &xid, error))
        return 0;
    report_xid(world, index, (unsigned long long)xid);
    return 1;
}

/* A GPU that comes back was reset: what it was told is gone. */
static int set_lost(sim_world *world, int index, const char *value, sim_error *error)
{
    enum { FALLEN_OFF_THE_BUS = 79 };
    sim_gpu *gpu = &world->gpus[index];
    int was_lost = gpu->lost;
    if (!set_flag(&gpu->lost, value, error))
        return 0;
    if (gpu->lost && !was_lost)
        report_xid(world, index, FALLEN_OFF_THE_BUS);
    if (!gpu->lost && was_lost)
        sim_gpu_reload(gpu);
    return 1;
}

static int reset_gpu(sim_world *world, int index, const char *value, sim_error *error)
{
    int yes;
    if (!parse_integer(value, 1, 1, &yes, error))
        return 0;
    sim_gpu_reload(&world->gpus[index]);
    return 1;
}

static int set_silence(sim_world *world, int index, const char *value, sim_error *error)
{
    double seconds;
    if (!parse_number(value, 0.0, 3600.0, &seconds, error))
        return 0;
    world->gpus[index].silent_until_ns = real_now_ns() + (int64_t)(seconds * NS_PER_S);
    return 1;
}

static int set_latency(sim_world *world, int index, const char *value, sim_error *error)
{
    if (strcmp(value, "model") == 0) {
        world->gpus[index].latency_ms = -1.0;
        return 1;
    }
    return parse_number(value, 0.0, 60000.0, &world->gpus[index].latency_ms, error);
}

static int set_ambient(sim_world *world, int index, const char *value, sim_error *error)
{
    gp_spec *spec = &world->gpus[index].spec;
    return parse_number(value, -20.0, spec->temperature_slowdown_c - 1.0, &spec->temperature_ambient_c, error);
}

static int set_brake(sim_world *world, int index, const char *value, sim_error *error)
{
    return parse_number(value, 0.0, 1e5, &world->gpus[index].brake_mhz, error);
}

static int set_gain(sim_world *world, int index, const char *value, sim_error *error)
{
    return parse_number(value, 0.5, 2.0, &world->gpus[index].gain, error);
}

static int set_bad_energy(sim_world *world, int index, const char *value, sim_error *error)
{
    double n[2];
    if (parse_numbers(value, n, 2) != 2 || n[0] < 0 || n[0] > 1e15 || n[1] < 0 || n[1] > 1e6)
        return refuse(error, "expected MILLIJOULES TIMES, found %.40s", value);
    world->gpus[index].bad_energy_mj = (uint64_t)n[0];
    world->gpus[index].bad_energy_reads = (unsigned)n[1];
    return 1;
}

static const struct {
    const char *name;
    gpu_setter *set;
} GPU_KEYS[] = {
    {"compute", set_compute},
    {"memory", set_memory},
    {"link", set_link},
    {"busy", set_busy},
    {"loaded", set_loaded},
    {"kernel", add_kernel},
    {"process", add_process},
    {"lock", set_sm_lock},
    {"memory_lock", set_memory_lock},
    {"power_limit", set_power_limit},
    {"persistence", set_persistence},
    {"mig", set_mig},
    {"instance", add_instance},
    {"virtualization", set_virtualization},
    {"xid", set_xid},
    {"lost", set_lost},
    {"reset", reset_gpu},
    {"silent", set_silence},
    {"latency_ms", set_latency},
    {"ambient_c", set_ambient},
    {"brake_mhz", set_brake},
    {"gain", set_gain},
    {"bad_energy", set_bad_energy},
};

/* One key of one GPU, at this moment of its course. */
static int apply_to_gpu(sim_world *world, int index, const char *key, const char *value, sim_error *error)
{
    for (size_t i = 0; i < sizeof GPU_KEYS / sizeof *GPU_KEYS; i++) {
        if (strcmp(GPU_KEYS[i].name, key) != 0)
            continue;
        sim_gpu *gpu = &world->gpus[index];
        sim_gpu_settle(gpu, sim_now_ns(world));
        if (!GPU_KEYS[i].set(world, index, value, error))
            return 0;
        sim_gpu_changed(gpu);
        return 1;
    }
    return refuse(error, "no such key of a GPU: %.40s", key);
}

/* --- Keys of the system --------------------------------------------------------------------------------------- */

static int set_clock(sim_world *world, const char *value, sim_error *error)
{
    int64_t now_ns = sim_now_ns(world);
    double seconds;
    if (strcmp(value, "real") == 0) {
        world->clock = (sim_clock){.offset_ns = now_ns - real_now_ns()};
        return 1;
    }
    if (!parse_number(value, 0.0, 1e8, &seconds, error))
        return 0;
    int64_t then_ns = (int64_t)llround(seconds * NS_PER_S);
    if (then_ns < now_ns)
        return refuse(error, "time does not go back: it is %.9f s", (double)now_ns / NS_PER_S);
    world->clock = (sim_clock){.frozen = 1, .now_ns = then_ns};
    for (int i = 0; i < world->gpu_count; i++)
        sim_gpu_advance(&world->gpus[i], then_ns);
    return 1;
}

static int set_driver(sim_world *world, const char *value, sim_error *error)
{
    int forced = strcmp(value, "reload force") == 0;
    if (strcmp(value, "load") == 0) {
        world->driver_loaded = 1;
        return 1;
    }
    if (!forced && strcmp(value, "reload") != 0 && strcmp(value, "unload") != 0)
        return refuse(error, "expected load, unload, reload or reload force, found %.40s", value);
    /* As with a kernel module: whoever holds it open keeps it from being removed. */
    if (!forced && sim_client_count(world) > 0)
        return refuse(error, "%d processes use the driver", sim_client_count(world));
    sim_reload_driver(world);
    world->driver_loaded = strcmp(value, "unload") != 0;
    return 1;
}

static int add_failure(sim_world *world, const char *value, sim_error *error)
{
    if (strcmp(value, "none") == 0) {
        world->failure_count = 0;
        return 1;
    }
    failure wanted = {.gpu = ANY_GPU, .times = ALWAYS};
    if (world->failure_count == MAX_FAILURES)
        return refuse(error, "at most %d failures", MAX_FAILURES);
    if (sscanf(value, "%63s %d %d %ld", wanted.function, &wanted.result, &wanted.gpu, &wanted.times) < 2 ||
        wanted.gpu < ANY_GPU || wanted.gpu >= world->gpu_count || wanted.times < ALWAYS || wanted.result <= 0)
        return refuse(error, "expected FUNCTION CODE [GPU or -1 [TIMES or -1]], found %.60s", value);
    world->failures[world->failure_count++] = wanted;
    return 1;
}

static int apply_to_system(sim_world *world, const char *key, const char *value, sim_error *error)
{
    if (strcmp(key, "clock") == 0)
        return set_clock(world, value, error);
    if (strcmp(key, "driver") == 0)
        return set_driver(world, value, error);
    if (strcmp(key, "fail") == 0)
        return add_failure(world, value, error);
    if (strcmp(key, "setter_ms") == 0)
        return parse_number(value, 0.0, 60000.0, &world->setter_ms, error);
    return refuse(error, "no such key: %.40s", key);
}

/* --- Lines ------------------------------------------------------------------------------------------------------ */

/* "gpu3.KEY" is for one GPU, "gpu*.KEY" for all. */
static int apply_line(sim_world *world, const char *key, const char *value, sim_error *error)
{
    const char *dot = strncmp(key, "gpu", 3) == 0 ? strchr(key, '.') : NULL;
    if (!dot)
        return apply_to_system(world, key, value, error);
    int from = 0, to = world->gpu_count - 1;
    if (strncmp(key, "gpu*.", 5) != 0) {
        char number[8];
        if (dot - key - 3 >= (long)sizeof number)
            return refuse(error, "no such GPU: %.40s", key);
        snprintf(number, sizeof number, "%.*s", (int)(dot - key - 3), key + 3);
        if (!parse_integer(number, 0, world->gpu_count - 1, &from, error))
            return refuse(error, "no such GPU: %.40s", key);
        to = from;
    }
    for (int index = from; index <= to; index++)
        if (!apply_to_gpu(world, index, dot + 1, value, error))
            return 0;
    return 1;
}

static char *trimmed(char *text)
{
    text += strspn(text, " \t\r");
    size_t length = strlen(text);
    while (length > 0 && strchr(" \t\r", text[length - 1]))
        text[--length] = '\0';
    return text;
}

static int apply_text(sim_world *world, char *text, sim_error *error)
{
    int number = 0;
    for (char *line = text, *next; line; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        number++;
        line = trimmed(line);
        if (*line == '\0' || *line == '#')
            continue;
        char *equals = strchr(line, '=');
        sim_error why;
        if (!equals)
            return refuse(error, "line %d: expected KEY=VALUE, found %.40s", number, line);
        *equals = '\0';
        if (!apply_line(world, trimmed(line), trimmed(equals + 1), &why))
            return refuse(error, "line %d: %.200s", number, why.text);
    }
    return 1;
}

static int is_gpu(const sim_world *world, int index)
{
    return index >= 0 && index < world->gpu_count;
}

/* --- What is exported ----------------------------------------------------------------------------------------------- */

int simgpu_create(const char *path, const char *models, uint64_t seed, unsigned branch, int frozen, char *error,
                  size_t size)
{
    sim_error why = {""};
    int failed = sim_state_create(path, &(sim_origin){models, seed, branch, frozen}, &why);
    hand_over(&why, error, size);
    return failed ? -1 : 0;
}

simgpu *simgpu_open(const char *path, char *error, size_t size)
{
    sim_error why = {""};
    simgpu *sim = sim_state_open(path, &why);
    hand_over(&why, error, size);
    return sim;
}

void simgpu_close(simgpu *sim)
{
    sim_state_close(sim);
}

int simgpu_control(simgpu *sim, const char *text, char *error, size_t size)
{
    sim_error why = {""};
    char *copy = strdup(text);
    if (!copy) {
        refuse(&why, "out of memory");
        hand_over(&why, error, size);
        return -1;
    }
    sim_world *world = sim_begin(sim);
    sim_reap(sim, world);
    int applied = apply_text(world, copy, &why);
    if (applied) {
        sim_release_unused(world);
        sim_commit(sim);
    } else {
        sim_abort(sim);
    }
    free(copy);
    hand_over(&why, error, size);
    return applied ? 0 : -1;
}

static int make_load(gpu_load *load, const double activity[4], const gp_kernel *kernels, int count, double busy,
                     sim_error *error)
{
    if (count < 0 || count > MAX_KERNELS)
        return refuse(error, "at most %d kernels", MAX_KERNELS);
    int holds = is_share(busy);
    for (int i = 0; i < 4; i++)
        holds = holds && is_share(activity[i]);
    for (int i = 0; i < count; i++)
        holds = holds && is_kernel(&kernels[i]);
    if (!holds)
        return refuse(error, "times are at least 0, activities and shares from 0 to 1");
    *load = (gpu_load){.activity = {activity[0], activity[1], activity[2], activity[3] > 0.0},
                       .kernel_count = count,
                       .busy = busy};
    for (int i = 0; i < count; i++)
        load->kernels[i] = kernels[i];
    return 1;
}

int simgpu_load(simgpu *sim, int index, const double activity[4], const gp_kernel *kernels, int count, double busy,
                char *error, size_t size)
{
    sim_error why = {""};
    gpu_load load;
    int applied = make_load(&load, activity, kernels, count, busy, &why);
    if (applied) {
        sim_world *world = sim_begin(sim);
        applied = is_gpu(world, index) || refuse(&why, "there is no GPU %d", index);
        if (applied) {
            sim_gpu *gpu = &world->gpus[index];
            sim_gpu_settle(gpu, sim_now_ns(world));
            gpu->load = load;
            sim_gpu_changed(gpu);
            sim_reap(sim, world);
        }
        sim_commit(sim);
    }
    hand_over(&why, error, size);
    return applied ? 0 : -1;
}

int simgpu_clock(simgpu *sim, int index, int64_t *now_ns, double *clock_mhz, int64_t *change_ns)
{
    sim_world *world = sim_begin(sim);
    int known = is_gpu(world, index);
    if (known) {
        const sim_gpu *gpu = &world->gpus[index];
        *now_ns = sim_now_ns(world);
        *clock_mhz = gpu->clock_mhz;
        *change_ns = gpu->pending_mhz > 0.0 ? gpu->pending_ns : INT64_MAX;
    }
    sim_commit(sim);
    return known ? 0 : -1;
}

int simgpu_branch(simgpu *sim)
{
    sim_world *world = sim_begin(sim);
    int branch = (int)world->branch;
    sim_abort(sim);
    return branch;
}

/* --- Describing ------------------------------------------------------------------------------------------------------- */

/* Text that goes on growing when it no longer fits, so that the length it would have is known. */
typedef struct {
    char *text;
    size_t size, length;
} writer;

__attribute__((format(printf, 2, 3))) static void write_text(writer *out, const char *format, ...)
{
    size_t room = out->length < out->size ? out->size - out->length : 0;
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(room ? out->text + out->length : NULL, room, format, arguments);
    va_end(arguments);
    if (length > 0)
        out->length += (size_t)length;
}

static void write_gpu(writer *out, const sim_world *world, int index)
{
    const sim_gpu *gpu = &world->gpus[index];
    const gpu_settings *settings = &gpu->settings;
    int64_t now_ns = sim_now_ns(world);
    char uuid[80];
    uuid_of(world, index, NO_INSTANCE, uuid);
    write_text(out, "{\"index\":%d,\"model\":\"%s\",\"uuid\":\"%s\",", index, gpu->model, uuid);
    write_text(out, "\"clock_mhz\":%.17g,\"granted_mhz\":%.17g,\"pending_mhz\":%.17g,\"pending_ns\":%lld,",
               gpu->clock_mhz, gpu->granted_mhz, gpu->pending_mhz, (long long)gpu->pending_ns);
    write_text(out, "\"clock_changes\":%llu,\"power_w\":%.17g,\"energy_j\":%.17g,\"temperature_c\":%.17g,",
               (unsigned long long)gpu->changes, gpu->power_w, sim_gpu_energy_j(gpu, now_ns),
               sim_gpu_temperature_c(gpu, now_ns));
    write_text(out, "\"sensor_power_w\":%.17g,\"counter_j\":%.17g,\"gain\":%.17g,\"reasons\":%u,",
               sim_gpu_sensor_power_w(gpu), sim_gpu_counter_j(gpu, now_ns), gpu->gain, gpu->reasons);
    write_text(out, "\"lock_mhz\":[%u,%u],\"memory_lock_mhz\":[%u,%u],\"power_limit_w\":%.17g,", settings->sm.low_mhz,
               settings->sm.high_mhz, settings->memory.low_mhz, settings->memory.high_mhz, settings->power_limit_w);
    write_text(out, "\"compute\":%.17g,\"memory\":%.17g,\"link\":%.17g,\"busy\":%.17g,\"loaded\":%s,",
               gpu->activity.compute, gpu->activity.memory, gpu->activity.link, gpu->load.busy,
               sim_gpu_is_loaded(gpu) ? "true" : "false");
    write_text(out, "\"persistence\":%s,\"mig\":%s,\"lost\":%s,\"virtualization\":%d,\"processes\":[",
               gpu->persistence ? "true" : "false", gpu->mig ? "true" : "false", gpu->lost ? "true" : "false",
               gpu->virtualization);
    for (int i = 0; i < gpu->process_count; i++)
        write_text(out, "%s%u", i ? "," : "", gpu->processes[i].pid);
    write_text(out, "]}");
}

size_t simgpu_describe(simgpu *sim, char *json, size_t size)
{
    writer out = {json, size, 0};
    sim_world *world = sim_begin(sim);
    sim_reap(sim, world);
    write_text(&out, "{\"now_ns\":%lld,\"frozen\":%s,\"driver\":%u,\"driver_loaded\":%s,\"clients\":%d,\"seed\":%llu,",
               (long long)sim_now_ns(world), world->clock.frozen ? "true" : "false", world->branch,
               world->driver_loaded ? "true" : "false", sim_client_count(world), (unsigned long long)world->seed);
    write_text(&out, "\"gpus\":[");
    for (int i = 0; i < world->gpu_count; i++) {
        write_text(&out, i ? "," : "");
        write_gpu(&out, world, i);
    }
    write_text(&out, "]}");
    sim_commit(sim);
    return out.length;
}
