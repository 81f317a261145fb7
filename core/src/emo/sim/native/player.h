/*
 * The player: runs the programs of all ranks of a job on simulated GPUs, in virtual time.
 *
 * Event-driven. What can happen next is either a CPU thread that goes on, a GPU on which
 * something ends or becomes visible, or a collective whose wire time is over: the *actors*,
 * each with the time of its next event in one heap. Between two events of a GPU the set of
 * running kernels, the clock and therefore every rate and the power are constant, so work and
 * energy are advanced in closed form. Virtual times are whole nanoseconds.
 */
#ifndef EMO_PLAYER_H
#define EMO_PLAYER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu_physics.h"

#define PL_NEVER INT64_MAX

/* Operations of a program. The numbers are those of emo.sim.program.Code. */
enum {
    PL_CPU = 0,          /* work of the CPU alone */
    PL_LAUNCH = 1,       /* a kernel on a stream */
    PL_RECORD = 2,       /* event record */
    PL_WAIT = 3,         /* a stream waits for an event */
    PL_SYNC_STREAM = 4,
    PL_SYNC_DEVICE = 5,
    PL_SYNC_EVENT = 6,
    PL_COPY = 7,
    PL_COLLECTIVE = 8,   /* also a send or receive: a collective of two */
    PL_MALLOC = 9,
    PL_FREE = 10,
    PL_POLL = 11,        /* asks for an event again and again until it has completed */
    PL_POST = 12,        /* hands over to a thread that ... */
    PL_AWAIT = 13,       /* ... awaits it */
    PL_GRAPH = 14,       /* launches a whole graph */
    PL_MARK = 15,        /* a unit of work is done */
    PL_HOST_FUNC = 16,   /* a CPU function in stream order */
    PL_SLEEP_UNTIL = 17,
    PL_TAKE = 18,        /* takes a batch from the queue of requests */
    PL_DONE = 19,        /* the batch is answered */
    PL_LOOP = 20,        /* goes back while requests are left */
    PL_MEMSET = 21,
};

/* Flags of an operation. */
enum {
    PL_BLOCKING = 1,  /* copy: returns when the data has moved; malloc: waits for the GPU */
    PL_PAGEABLE = 2,  /* copy from or to pageable memory: blocks likewise */
    PL_BY_BATCH = 4,  /* kernel: class + batch - 1 */
    PL_ROOM = 32,     /* kernel: gets in only when those that run leave an SM free */
};

/* How the members of a group wait for each other. */
enum { PL_ALL_WAIT = 0, PL_BROADCAST = 1, PL_REDUCE = 2 };

/* One operation. 56 bytes; the layout is that of emo.sim.program.OP_DTYPE. */
typedef struct {
    int32_t code;
    int32_t stream;
    int32_t a;      /* event, semaphore, graph, group, step or target, by code */
    int32_t kernel; /* class of the kernel */
    int32_t flags;
    int32_t name;
    double scale;   /* of the kernel's duration; units of work of a mark */
    double cpu_ns;  /* CPU work, or what the call itself takes */
    int64_t bytes;
    int64_t time_ns; /* of SLEEP_UNTIL; interval of POLL; longest wait of TAKE */
} pl_op;

typedef struct {
    int32_t rank, first, count;
} pl_thread_spec;

typedef struct {
    int32_t kind, root, first, count; /* members[first .. first + count) are ranks */
} pl_group_spec;

typedef struct {
    int32_t first, count; /* operations of the graph */
} pl_graph_spec;

/* What differs from board to board and from rank to rank. */
typedef struct {
    double power_gain;    /* of this board */
    double speed;         /* durations are divided by it: below 1 for a straggler */
    double cpu_speed;
    double tracing_slowdown; /* >= 1: CPU work takes this much longer while the profiler is on */
    double temperature_c; /* at the start */
} pl_board;

typedef struct {
    double seed;
    double queue_depth;       /* launches that a GPU takes before the next launch call blocks */
    double launch_latency_ns; /* from the start of a launch call until the GPU sees it, at least */
    double launch_jitter_ns;  /* ... and at most this much more */
    double gap_ns;            /* between two kernels of a stream */
    double wake_ns;           /* from the end of GPU work until a blocked thread goes on */
    double residual_ns;       /* ranks end a collective up to this much apart */
    double gpu_noise, cpu_noise; /* relative standard deviation */
    double trace_first, trace_last; /* steps while which the profiler is on; none if last < first */
    double record;            /* 1: keep a record of every operation */
    double tick_ms;           /* period of power capping, thermal state and history */
    double spin_activity;     /* compute activity of a kernel that spins for its peers */
    double streams, events, semaphores; /* per rank */
} pl_options;

/* Why something started, or a blocked thread went on. */
enum {
    PL_CAUSE_NONE = 0,
    PL_CAUSE_LAUNCH = 1,  /* it became visible to the GPU; `cause` is the launch call */
    PL_CAUSE_STREAM = 2,  /* its predecessor on the stream ended */
    PL_CAUSE_EVENT = 3,   /* what its stream waited for ended */
    PL_CAUSE_GPU = 4,     /* a thread: the GPU work that it waited for ended */
    PL_CAUSE_QUEUE = 5,   /* a thread: a slot of the launch queue became free */
    PL_CAUSE_THREAD = 6,  /* a thread: another thread handed over */
};

/* What happened. The layout is that of emo.sim.truth.RECORD_DTYPE. */
typedef struct {
    int64_t start_ns, end_ns;
    int64_t ready_ns;   /* GPU: visible from then on; a thread: held until then */
    int64_t joint_ns;   /* collective: when the last one arrived that it had to wait for; else -1 */
    int64_t bytes;
    int32_t rank, lane; /* lane: stream of a GPU operation, thread (number within the job) of a call */
    int32_t code, on_gpu;
    int32_t op;         /* index of the operation in the program */
    int32_t correlation;
    int32_t kernel;     /* class, as played */
    int32_t cause_kind, cause; /* cause: index of the record that let it start; -1 unknown */
    int32_t sequence;   /* of a collective in its group; of a graph's kernel in its graph; else -1 */
} pl_record;

typedef struct {
    int64_t time_ns;
    double energy_j; /* of the rank's GPU up to then */
    double units;
    int32_t rank, step;
} pl_mark;

typedef struct {
    int64_t time_ns;
    double energy_j, clock_mhz, temperature_c;
    int32_t gpu, unused;
} pl_sample;

typedef struct {
    int64_t arrival_ns, taken_ns, done_ns;
    int32_t batch, rank;
} pl_request;

/* A buffer that grows. */
typedef struct {
    void *data;
    size_t count, room, size;
} pl_array;

typedef struct pl_player pl_player;

typedef struct {
    const pl_op *ops;
    const pl_thread_spec *threads;
    const gp_kernel *kernels;
    const pl_group_spec *groups;
    const int32_t *members;
    const pl_graph_spec *graphs;
    const gp_spec *specs; /* one per rank */
    const gp_switching *switching;
    const pl_board *boards;
    const int64_t *arrivals;
    int op_count, thread_count, kernel_count, group_count, member_count, graph_count, rank_count, arrival_count;
    pl_options options;
} pl_input;

/* Copies the input. NULL if there is no memory. The input must be consistent: check it before. */
pl_player *pl_new(const pl_input *input);
void pl_free(pl_player *player);

/* Why an input cannot be played, or NULL. */
const char *pl_check(const pl_input *input);

enum { PL_PAUSED = 0, PL_FINISHED = 1, PL_DEADLOCK = 2, PL_NO_MEMORY = 3 };

/* Plays everything that happens before until_ns. Pausing changes nothing of what happens. */
int pl_run(pl_player *player, int64_t until_ns);

/* Asks for a clock at the present time; 0 MHz: no lock. `settled`: takes effect at once, as if set long ago. */
void pl_request_clock(pl_player *player, int gpu, double clock_mhz, bool settled);
void pl_limit_power(pl_player *player, int gpu, double limit_w);

typedef struct {
    int64_t time_ns;
    double energy_j, power_w, clock_mhz, wish_mhz, temperature_c, compute, memory, link;
} pl_state;
pl_state pl_gpu_state(const pl_player *player, int gpu);

const pl_array *pl_records(const pl_player *player);
const pl_array *pl_marks(const pl_player *player);
const pl_array *pl_samples(const pl_player *player);
const pl_array *pl_requests(const pl_player *player);
/* First thread that waits for ever, and the operation it waits in; -1 if none. */
int pl_stuck(const pl_player *player, int *op);
int64_t pl_now(const pl_player *player);
int pl_gpus(const pl_player *player);
int64_t pl_operations(const pl_player *player);

#endif
