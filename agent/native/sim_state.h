/*
 * The state of the simulated driver: one file, mapped by every process that has to do with it.
 *
 * It holds two copies of the world. A transaction takes the lock, works on the copy that is not in
 * force, and puts it in force with one store. A process that dies half-way therefore leaves the world
 * as it was; the lock is robust, so that the next one gets it.
 *
 * A process holds a byte of the file locked for as long as it uses the driver. The kernel lets go of
 * such a lock when the process dies, across containers too, which is how a client that left without a
 * word is noticed.
 */
#ifndef EMO_SIM_STATE_H
#define EMO_SIM_STATE_H

#include <stddef.h>
#include <stdint.h>

#include "sim_gpu.h"

#define MAX_GPUS 16
#define MAX_CLIENTS 256
#define MAX_FAILURES 64
#define MAX_EVENTS 32
#define ANY_GPU (-1)
#define ALWAYS (-1)

/* A call that fails, `times` times (or ALWAYS), on one GPU or on ANY_GPU. */
typedef struct {
    char function[64]; /* "*": every function */
    int result, gpu;
    long times;
} failure;

/* A critical error of a GPU, as drivers report it. */
typedef struct {
    int gpu;
    unsigned long long xid;
} xid_event;

typedef struct {
    int frozen;
    int64_t now_ns;    /* when frozen */
    int64_t offset_ns; /* else: to be added to the machine's monotonic clock */
} sim_clock;

typedef struct {
    sim_clock clock;
    char boot_id[40];
    unsigned branch;   /* of the driver that is installed: 580 */
    int driver_loaded;
    uint64_t load_count; /* a client of an earlier load has lost its connection */
    double setter_ms;    /* how long a call takes that changes something */
    uint64_t seed;
    unsigned char clients[MAX_CLIENTS]; /* 1: this byte of the file was locked by a client */
    failure failures[MAX_FAILURES];
    int failure_count;
    xid_event events[MAX_EVENTS];
    uint64_t event_count;
    int gpu_count;
    sim_gpu gpus[MAX_GPUS];
} sim_world;

/* A process's hold on a state file. */
typedef struct sim_state sim_state;

/* Text of what went wrong, for people. */
typedef struct {
    char text[256];
} sim_error;

/* What a world is made from. */
typedef struct {
    const char *models; /* "H100,H100" */
    uint64_t seed;
    unsigned branch;
    int frozen;
} sim_origin;

/* Makes a state file, or fails if there is one. 0, or -1 with an error. */
int sim_state_create(const char *path, const sim_origin *origin, sim_error *error);

/* NULL with an error when the file cannot be used. */
sim_state *sim_state_open(const char *path, sim_error *error);
void sim_state_close(sim_state *state);

/*
 * A transaction: the world as of now, to be changed at will, then put in force (commit) or left as it
 * was (abort). GPUs are as of the last mark: see sim_gpu.h. No other transaction runs meanwhile, in no
 * process, so be quick.
 */
sim_world *sim_begin(sim_state *state);
void sim_commit(sim_state *state);
void sim_abort(sim_state *state);

/* Simulated time of the world. */
int64_t sim_now_ns(const sim_world *world);

/* Time for waiting: the machine's, whatever the simulated clock does. */
int64_t real_now_ns(void);
void real_sleep_ns(int64_t ns);

/*
 * Clients, inside a transaction. Joining gives a slot, or -1 when there are too many or it fails.
 * `sim_reap` notices clients that died; whoever asks about the state runs it first.
 */
int sim_join(sim_state *state, sim_world *world);
void sim_leave(sim_state *state, sim_world *world, int slot);
void sim_reap(sim_state *state, sim_world *world);
int sim_client_count(const sim_world *world);

/* GPUs that nobody uses any more forget their settings, unless they are in persistence mode. */
void sim_release_unused(sim_world *world);

/* The driver is unloaded and loaded: every setting forgotten, every connection lost. */
void sim_reload_driver(sim_world *world);

#endif
