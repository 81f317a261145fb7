#define _GNU_SOURCE
#include "nvml_call.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver_version.h"

static const int64_t POLL_NS = 2000000;

/* --- This process's connection to the driver ------------------------------------------------------- */

/* Lives as long as the library is initialised and a call is under way, whichever is longer. */
typedef struct attachment {
    sim_state *state;
    int slot;
    uint64_t load_count;
    int holders;
} attachment;

static pthread_mutex_t local_lock = PTHREAD_MUTEX_INITIALIZER;
static attachment *attached;
static unsigned init_count;

static attachment *hold(void)
{
    pthread_mutex_lock(&local_lock);
    attachment *held = attached;
    if (held)
        held->holders++;
    pthread_mutex_unlock(&local_lock);
    return held;
}

static void let_go(attachment *held)
{
    pthread_mutex_lock(&local_lock);
    int last = --held->holders == 0;
    pthread_mutex_unlock(&local_lock);
    if (!last)
        return;
    sim_world *world = sim_begin(held->state);
    sim_leave(held->state, world, held->slot);
    sim_commit(held->state);
    sim_state_close(held->state);
    free(held);
}

/* --- Devices ------------------------------------------------------------------------------------------ */

struct nvml_device_st {
    char unused;
};

/* A handle is an address in here: a GPU, then its MIG devices, then the next GPU. */
#define PER_GPU (1 + MAX_INSTANCES)
static struct nvml_device_st devices[MAX_GPUS * PER_GPU];

nvml_device device_of(int index, int instance)
{
    return &devices[index * PER_GPU + instance + 1];
}

static int find_device(nvml_call *call, nvml_device device)
{
    uintptr_t offset = (uintptr_t)device - (uintptr_t)devices;
    if (offset >= sizeof devices)
        return 0;
    int place = (int)(offset / sizeof *devices);
    call->index = place / PER_GPU;
    call->instance = place % PER_GPU - 1;
    return 1;
}

void uuid_of(const sim_world *world, int index, int instance, char uuid[80])
{
    uint64_t seed = world->gpus[index].seed;
    snprintf(uuid, 80, "%s-%08x-%04x-4%03x-8%03x-%08x%02x%02x", instance == NO_INSTANCE ? "GPU" : "MIG",
             (unsigned)(seed >> 32), (unsigned)(seed >> 16 & 0xffff), (unsigned)(seed & 0xfff), (unsigned)(seed >> 52),
             (unsigned)(seed * 2654435761u >> 32), (unsigned)index, (unsigned)(instance + 1));
}

void bus_id_of(int index, char bus_id[32])
{
    snprintf(bus_id, 32, "00000000:%02X:00.0", 0x10 + index);
}

/* --- The call trace -------------------------------------------------------------------------------------- */

static unsigned effective_uid(void)
{
    const char *pretended = getenv("EMO_SIMGPU_UID");
    return pretended && *pretended ? (unsigned)strtoul(pretended, NULL, 10) : (unsigned)geteuid();
}

static void trace(const nvml_call *call)
{
    const char *path = getenv("EMO_SIMGPU_TRACE");
    if (!path || !*path)
        return;
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0)
        return;
    /* One write, so that lines of several processes do not mix. */
    dprintf(fd, "{\"t_ns\":%lld,\"pid\":%d,\"uid\":%u,\"call\":\"%s\",\"gpu\":%d,\"arguments\":[%s],\"result\":%d}\n",
            (long long)call->now_ns, (int)getpid(), effective_uid(), call->function, call->index, call->arguments,
            call->result);
    close(fd);
}

/* --- Begin ------------------------------------------------------------------------------------------------- */

static int fails(nvml_call *call, int result)
{
    call->result = result;
    return 0;
}

/* The result that somebody wanted this call to have, or success. */
static int injected_result(nvml_call *call)
{
    sim_world *world = call->world;
    for (int i = 0; i < world->failure_count; i++) {
        failure *wanted = &world->failures[i];
        int named = strcmp(wanted->function, "*") == 0 || strcmp(wanted->function, call->function) == 0;
        if (!named || wanted->times == 0 || (wanted->gpu != ANY_GPU && wanted->gpu != call->index))
            continue;
        if (wanted->times > 0)
            wanted->times--;
        return wanted->result;
    }
    return NVML_SUCCESS;
}

static void open_transaction(nvml_call *call)
{
    call->world = sim_begin(call->attachment->state);
    call->now_ns = sim_now_ns(call->world);
    call->gpu = call->index >= 0 && call->index < call->world->gpu_count ? &call->world->gpus[call->index] : NULL;
}

enum about { THE_SYSTEM, A_DEVICE, A_SETTING };

/* A call that takes its time, or a GPU that does not answer, keeps the caller waiting and nobody else: no lock is held. */
static void wait_for_answer(nvml_call *call, enum about about)
{
    int64_t done_ns = about == A_SETTING ? real_now_ns() + (int64_t)(call->world->setter_ms * 1e6) : 0;
    while (call->gpu && !call->gpu->lost && (call->gpu->silent_until_ns > real_now_ns() || done_ns > real_now_ns())) {
        sim_abort(call->attachment->state);
        real_sleep_ns(POLL_NS);
        open_transaction(call);
    }
}

static int is_there(nvml_call *call)
{
    if (!call->world->driver_loaded)
        return fails(call, NVML_DRIVER_NOT_LOADED);
    /* The driver was loaded anew under us: nothing but a new initialisation helps. */
    if (call->attachment->load_count != call->world->load_count)
        return fails(call, NVML_UNKNOWN);
    return 1;
}

static int begin(nvml_call *call, const char *function, nvml_device device, enum about about)
{
    memset(call, 0, sizeof *call);
    call->function = function;
    call->index = call->instance = -1;
    call->attachment = hold();
    if (!call->attachment)
        return fails(call, NVML_UNINITIALIZED);
    int known = about != THE_SYSTEM && find_device(call, device);
    open_transaction(call);
    wait_for_answer(call, about);
    int injected = injected_result(call);
    if (injected != NVML_SUCCESS)
        return fails(call, injected);
    if (!is_there(call))
        return 0;
    if (about == THE_SYSTEM)
        return 1;
    if (!known || !call->gpu || call->instance >= call->gpu->instance_count)
        return fails(call, NVML_INVALID_ARGUMENT);
    if (call->gpu->lost)
        return fails(call, NVML_GPU_IS_LOST);
    call->model = gpu_model_of(call->gpu->model);
    return 1;
}

int call_begin(nvml_call *call, const char *function)
{
    return begin(call, function, NULL, THE_SYSTEM);
}

int call_any_device(nvml_call *call, const char *function, nvml_device device)
{
    return begin(call, function, device, A_DEVICE);
}

/* Clocks, power and energy belong to the physical GPU; an instance has none of its own. */
static int is_whole(nvml_call *call)
{
    return call_supports(call, call->instance == NO_INSTANCE);
}

int call_device(nvml_call *call, const char *function, nvml_device device)
{
    return begin(call, function, device, A_DEVICE) && is_whole(call);
}

int call_setter(nvml_call *call, const char *function, nvml_device device, const char *arguments, ...)
{
    int ready = begin(call, function, device, A_SETTING) && is_whole(call);
    va_list values;
    va_start(values, arguments);
    vsnprintf(call->arguments, sizeof call->arguments, arguments, values);
    va_end(values);
    /* A guest sees the board that its host shares out; it may not steer it. */
    if (!ready || !call_supports(call, call->gpu->virtualization != VIRT_GUEST))
        return 0;
    return effective_uid() == 0 || fails(call, NVML_NO_PERMISSION);
}

int call_needs(nvml_call *call, int holds)
{
    return holds || fails(call, NVML_INVALID_ARGUMENT);
}

int call_supports(nvml_call *call, int holds)
{
    return holds || fails(call, NVML_NOT_SUPPORTED);
}

void call_change_begin(nvml_call *call)
{
    sim_gpu_settle(call->gpu, call->now_ns);
}

void call_change_end(nvml_call *call)
{
    sim_gpu_changed(call->gpu);
}

void call_text(nvml_call *call, char *buffer, unsigned size, const char *format, ...)
{
    char text[96];
    va_list values;
    va_start(values, format);
    int length = vsnprintf(text, sizeof text, format, values);
    va_end(values);
    if (!buffer)
        call->result = NVML_INVALID_ARGUMENT;
    else if (length < 0 || (unsigned)length >= size)
        call->result = NVML_INSUFFICIENT_SIZE;
    else
        memcpy(buffer, text, (size_t)length + 1);
}

static void close_transaction(nvml_call *call)
{
    if (call->world)
        sim_commit(call->attachment->state);
}

void call_drop(nvml_call *call)
{
    close_transaction(call);
    let_go(call->attachment);
}

int call_end(nvml_call *call)
{
    close_transaction(call); /* before the trace is written: others need not wait for a disk */
    trace(call);
    if (call->attachment)
        let_go(call->attachment);
    return call->result;
}

/* --- Initialisation ------------------------------------------------------------------------------------------- */

static int attach(nvml_call *call)
{
    const char *path = getenv("EMO_SIMGPU_STATE");
    sim_error error;
    sim_state *state = path && *path ? sim_state_open(path, &error) : NULL;
    attachment *made = state ? malloc(sizeof *made) : NULL;
    if (!made) {
        if (state)
            sim_state_close(state);
        return NVML_DRIVER_NOT_LOADED;
    }
    *made = (attachment){.state = state, .slot = -1, .holders = 1};
    sim_world *world = sim_begin(state);
    call->world = world;
    call->now_ns = sim_now_ns(world);
    sim_reap(state, world);
    int result = injected_result(call);
    if (result == NVML_SUCCESS && !world->driver_loaded)
        result = NVML_DRIVER_NOT_LOADED;
    if (result == NVML_SUCCESS && world->branch != DRIVER_BRANCH)
        result = NVML_LIB_RM_VERSION_MISMATCH;
    if (result == NVML_SUCCESS && (made->slot = sim_join(state, world)) < 0)
        result = NVML_INSUFFICIENT_RESOURCES;
    made->load_count = world->load_count;
    sim_commit(state);
    call->world = NULL;
    if (result != NVML_SUCCESS) {
        sim_state_close(state);
        free(made);
        return result;
    }
    attached = made;
    return NVML_SUCCESS;
}

static int64_t time_at(sim_state *state)
{
    int64_t now_ns = sim_now_ns(sim_begin(state));
    sim_abort(state);
    return now_ns;
}

NVML_API int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    nvml_call call = {.function = __func__, .index = -1};
    pthread_mutex_lock(&local_lock);
    if (init_count == 0)
        call.result = attach(&call);
    if (call.result == NVML_SUCCESS)
        init_count++;
    pthread_mutex_unlock(&local_lock);
    trace(&call);
    return call.result;
}

NVML_API int nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

NVML_API int nvmlShutdown(void)
{
    nvml_call call = {.function = __func__, .index = -1};
    attachment *leaving = NULL;
    pthread_mutex_lock(&local_lock);
    if (init_count == 0) {
        call.result = NVML_UNINITIALIZED;
    } else {
        call.now_ns = time_at(attached->state);
        if (--init_count == 0) {
            leaving = attached;
            attached = NULL;
        }
    }
    pthread_mutex_unlock(&local_lock);
    if (leaving)
        let_go(leaving);
    trace(&call);
    return call.result;
}
