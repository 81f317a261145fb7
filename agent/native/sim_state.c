#define _GNU_SOURCE
#include "sim_state.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "gpu_models.h"
#include "gpu_presets.h"

#define STATE_MAGIC UINT64_C(0x3155504753454d45)

/* The whole file. Its size tells one version of the layout from another. */
typedef struct {
    uint64_t magic;
    uint64_t size;
    pthread_mutex_t lock;
    _Atomic unsigned in_force;
    sim_world worlds[2];
} state_file;

struct sim_state {
    int fd;
    state_file *file;
};

/* Locked bytes lie behind everything that is mapped. */
#define CLIENT_BYTES ((off_t)(sizeof(state_file) + 4096))

__attribute__((format(printf, 2, 3))) static void explain(sim_error *error, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
}

/* --- Time --------------------------------------------------------------------------------------- */

int64_t real_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * NS_PER_S + now.tv_nsec;
}

void real_sleep_ns(int64_t ns)
{
    struct timespec rest = {.tv_sec = ns / NS_PER_S, .tv_nsec = ns % NS_PER_S};
    while (ns > 0 && nanosleep(&rest, &rest) != 0 && errno == EINTR) {
    }
}

int64_t sim_now_ns(const sim_world *world)
{
    return world->clock.frozen ? world->clock.now_ns : real_now_ns() + world->clock.offset_ns;
}

static void read_boot_id(char id[40])
{
    memset(id, 0, 40);
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (!file)
        return;
    if (fscanf(file, "%39s", id) != 1)
        id[0] = '\0';
    fclose(file);
}

/* --- Making a world -------------------------------------------------------------------------------- */

static const gp_preset *preset_of(const char *name)
{
    for (size_t i = 0; i < sizeof GP_PRESETS / sizeof *GP_PRESETS; i++)
        if (strcmp(GP_PRESETS[i].name, name) == 0)
            return &GP_PRESETS[i];
    return NULL;
}

static uint64_t mix(uint64_t bits)
{
    bits = (bits ^ (bits >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    bits = (bits ^ (bits >> 27)) * UINT64_C(0x94D049BB133111EB);
    return bits ^ (bits >> 31);
}

/* A board of that model; which one, the seed says. */
static void build_gpu(sim_gpu *gpu, const gp_preset *preset, uint64_t seed, int index)
{
    memset(gpu, 0, sizeof *gpu);
    snprintf(gpu->model, sizeof gpu->model, "%s", preset->name);
    gpu->spec = preset->spec;
    gpu->switching = preset->switching;
    gpu->latency_ms = -1.0;
    gpu->window_ns = (int64_t)llround(preset->sensor_window_ms * 1e6);
    int64_t windows = llround(fmax(preset->sensor_period_ms / preset->sensor_window_ms, 1.0));
    gpu->period_ns = windows * gpu->window_ns;
    gpu->seed = mix(mix(seed + 1) + (uint64_t)index);
    double draw = (double)(mix(gpu->seed + 1) >> 11) * 0x1p-53;
    gpu->gain = preset->sensor_gain_low + draw * (preset->sensor_gain_high - preset->sensor_gain_low);
    gpu->phase_ns = (int64_t)(mix(gpu->seed + 2) % (uint64_t)gpu->period_ns);
    gpu->persistence = gpu->persistence_at_load = 1;
    sim_gpu_start(gpu, 0);
}

static int build_world(sim_world *world, const sim_origin *origin, sim_error *error)
{
    memset(world, 0, sizeof *world);
    world->clock = (sim_clock){.frozen = origin->frozen, .offset_ns = -real_now_ns()};
    read_boot_id(world->boot_id);
    world->branch = origin->branch;
    world->driver_loaded = 1;
    world->load_count = 1;
    world->seed = origin->seed;
    char list[512];
    if (strlen(origin->models) >= sizeof list) {
        explain(error, "the list of models is longer than %zu characters", sizeof list - 1);
        return -1;
    }
    strcpy(list, origin->models);
    char *rest = list;
    for (char *name = strtok_r(rest, ", ", &rest); name; name = strtok_r(NULL, ", ", &rest)) {
        const gp_preset *preset = preset_of(name);
        if (!preset || !gpu_model_of(name)) {
            explain(error, "there is no GPU model %.32s", name);
            return -1;
        }
        if (world->gpu_count == MAX_GPUS) {
            explain(error, "more than %d GPUs", MAX_GPUS);
            return -1;
        }
        build_gpu(&world->gpus[world->gpu_count], preset, origin->seed, world->gpu_count);
        world->gpu_count++;
    }
    return 0;
}

static int init_lock(pthread_mutex_t *lock)
{
    pthread_mutexattr_t kind;
    if (pthread_mutexattr_init(&kind) != 0)
        return -1;
    int failed = pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED) != 0 ||
                 pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST) != 0 || pthread_mutex_init(lock, &kind) != 0;
    pthread_mutexattr_destroy(&kind);
    return failed ? -1 : 0;
}

static state_file *map_file(int fd)
{
    void *memory = mmap(NULL, sizeof(state_file), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static int fill_file(int fd, const sim_origin *origin, sim_error *error)
{
    /* Every user of the machine may use a driver. */
    if (ftruncate(fd, (off_t)sizeof(state_file)) != 0 || fchmod(fd, 0666) != 0) {
        explain(error, "%s", strerror(errno));
        return -1;
    }
    state_file *file = map_file(fd);
    if (!file) {
        explain(error, "%s", strerror(errno));
        return -1;
    }
    int failed = build_world(&file->worlds[0], origin, error);
    if (!failed && (failed = init_lock(&file->lock)))
        explain(error, "no robust lock on this system");
    if (!failed) {
        file->size = sizeof(state_file);
        file->magic = STATE_MAGIC;
    }
    munmap(file, sizeof(state_file));
    return failed;
}

int sim_state_create(const char *path, const sim_origin *origin, sim_error *error)
{
    /* Whoever opens the path sees a whole file or none. */
    char draft[4096];
    if (snprintf(draft, sizeof draft, "%s.%d.new", path, (int)getpid()) >= (int)sizeof draft) {
        explain(error, "the path is too long");
        return -1;
    }
    int fd = open(draft, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        explain(error, "%.200s: %s", draft, strerror(errno));
        return -1;
    }
    int failed = fill_file(fd, origin, error);
    close(fd);
    if (!failed && (failed = link(draft, path)) != 0)
        explain(error, "%.200s: %s", path, strerror(errno));
    unlink(draft);
    return failed;
}

/* --- Opening and closing ----------------------------------------------------------------------------- */

sim_state *sim_state_open(const char *path, sim_error *error)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    struct stat info;
    if (fd < 0 || fstat(fd, &info) != 0) {
        explain(error, "%.200s: %s", path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return NULL;
    }
    state_file *file = info.st_size == (off_t)sizeof(state_file) ? map_file(fd) : NULL;
    sim_state *state = file ? malloc(sizeof *state) : NULL;
    if (!state || file->magic != STATE_MAGIC || file->size != sizeof(state_file)) {
        explain(error, "%.200s: not a state of this simulated driver; make a new one", path);
        free(state);
        if (file)
            munmap(file, sizeof(state_file));
        close(fd);
        return NULL;
    }
    state->fd = fd;
    state->file = file;
    return state;
}

void sim_state_close(sim_state *state)
{
    munmap(state->file, sizeof(state_file));
    close(state->fd);
    free(state);
}

/* --- Transactions --------------------------------------------------------------------------------------- */

static sim_world *draft_of(const sim_state *state)
{
    return &state->file->worlds[1 - atomic_load(&state->file->in_force)];
}

/* After a reboot the file is still there, but no driver ever kept a setting over one. */
static void notice_reboot(sim_world *world)
{
    static _Thread_local char boot_id[40];
    if (boot_id[0] == '\0')
        read_boot_id(boot_id);
    if (strcmp(boot_id, world->boot_id) == 0)
        return;
    memcpy(world->boot_id, boot_id, sizeof boot_id);
    if (!world->clock.frozen) {
        int64_t last_ns = 0;
        for (int i = 0; i < world->gpu_count; i++)
            last_ns = world->gpus[i].now_ns > last_ns ? world->gpus[i].now_ns : last_ns;
        world->clock.offset_ns = last_ns - real_now_ns();
    }
    sim_reload_driver(world);
}

sim_world *sim_begin(sim_state *state)
{
    if (pthread_mutex_lock(&state->file->lock) == EOWNERDEAD)
        pthread_mutex_consistent(&state->file->lock); /* its draft is simply not used */
    const sim_world *world = &state->file->worlds[atomic_load(&state->file->in_force)];
    sim_world *draft = draft_of(state);
    memcpy(draft, world, offsetof(sim_world, gpus) + (size_t)world->gpu_count * sizeof(sim_gpu));
    notice_reboot(draft);
    int64_t now_ns = sim_now_ns(draft);
    for (int i = 0; i < draft->gpu_count; i++)
        sim_gpu_advance(&draft->gpus[i], now_ns);
    return draft;
}

void sim_commit(sim_state *state)
{
    atomic_store(&state->file->in_force, 1 - atomic_load(&state->file->in_force));
    sim_abort(state);
}

void sim_abort(sim_state *state)
{
    pthread_mutex_unlock(&state->file->lock);
}

/* --- Clients ----------------------------------------------------------------------------------------------- */

static struct flock byte_of(int slot, short kind)
{
    return (struct flock){.l_type = kind, .l_whence = SEEK_SET, .l_start = CLIENT_BYTES + slot, .l_len = 1};
}

static int is_alive(const sim_state *state, int slot)
{
    struct flock lock = byte_of(slot, F_WRLCK);
    return fcntl(state->fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

int sim_client_count(const sim_world *world)
{
    int count = 0;
    for (int i = 0; i < MAX_CLIENTS; i++)
        count += world->clients[i];
    return count;
}

int sim_join(sim_state *state, sim_world *world)
{
    for (int slot = 0; slot < MAX_CLIENTS; slot++) {
        struct flock lock = byte_of(slot, F_WRLCK);
        if (world->clients[slot] || fcntl(state->fd, F_OFD_SETLK, &lock) != 0)
            continue;
        world->clients[slot] = 1;
        for (int i = 0; i < world->gpu_count; i++)
            world->gpus[i].in_use = 1;
        return slot;
    }
    return -1;
}

void sim_leave(sim_state *state, sim_world *world, int slot)
{
    struct flock lock = byte_of(slot, F_UNLCK);
    fcntl(state->fd, F_OFD_SETLK, &lock);
    world->clients[slot] = 0;
    sim_release_unused(world);
}

void sim_reap(sim_state *state, sim_world *world)
{
    for (int slot = 0; slot < MAX_CLIENTS; slot++)
        if (world->clients[slot] && !is_alive(state, slot))
            world->clients[slot] = 0;
    sim_release_unused(world);
}

void sim_release_unused(sim_world *world)
{
    if (sim_client_count(world) > 0)
        return;
    int64_t now_ns = sim_now_ns(world);
    for (int i = 0; i < world->gpu_count; i++) {
        sim_gpu *gpu = &world->gpus[i];
        if (!gpu->in_use || sim_gpu_is_loaded(gpu))
            continue;
        gpu->in_use = 0;
        if (gpu->persistence)
            continue;
        sim_gpu_settle(gpu, now_ns);
        sim_gpu_forget_settings(gpu);
    }
}

void sim_reload_driver(sim_world *world)
{
    world->driver_loaded = 1;
    world->load_count++;
    memset(world->clients, 0, sizeof world->clients);
    int64_t now_ns = sim_now_ns(world);
    for (int i = 0; i < world->gpu_count; i++) {
        sim_gpu_settle(&world->gpus[i], now_ns);
        sim_gpu_reload(&world->gpus[i]);
    }
}
