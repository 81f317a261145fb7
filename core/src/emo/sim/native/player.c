/* Plays programs on simulated GPUs; what that means is in player.h. */
#include "player.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_RUNNING = 64,     /* streams of a GPU on which something runs at one time */
    CACHED_MIXES = 256,   /* sets of running kernels whose contention is remembered, per GPU */
    NOBODY = -1,
    NO_KERNEL = INT32_MIN, /* a host function: it runs on the CPU */
};

/* --- State -------------------------------------------------------------------------------------- */

/* Something on a stream: a GPU operation, or an event record or wait in its order. */
typedef struct {
    int32_t code, kernel, op, group, member, slot, call, correlation, sequence;
    int32_t wait_stream;  /* of WAIT: done when that stream has got ... */
    int64_t wait_target;  /* ... that far */
    int64_t visible_ns;   /* the GPU knows of it from then on */
    int64_t ready_ns, start_ns, end_ns, joint_ns;
    int64_t bytes;
    double scale;         /* of its duration, noise included */
    double left;          /* share of the work that is to be done; of a host function nothing */
    double rate;          /* share per nanosecond; 0 while it waits for peers */
    int32_t cause_kind, cause;
    bool started, spinning;
} item;

typedef struct {
    item *items; /* a ring */
    int64_t first, count, room;
    int64_t added, done;  /* how many came and went, ever: positions on the stream */
    int64_t free_ns;      /* end of the last kernel plus the gap */
    int64_t cause_ns;     /* when the last thing happened that the next item had to wait for ... */
    int32_t cause_kind, cause; /* ... and what */
    int32_t last_record;  /* of the item that retired last */
    int64_t last_end_ns;
} stream;

typedef struct {
    int32_t stream; /* NOBODY: never recorded */
    int64_t target;
} event;

typedef struct {
    int32_t posted, poster; /* poster: thread that posted last */
    int32_t poster_record;
} semaphore;

/* Slow-downs of one set of kernels at one clock. */
typedef struct {
    int32_t kernels[MAX_RUNNING];
    int count;
    double clock_mhz;
    double slowdown[MAX_RUNNING];
    gp_activity activity;
} mix;

typedef struct {
    gp_spec spec;
    gp_switching switching;
    pl_board board;
    stream *streams;
    event *events;
    semaphore *semaphores;
    int32_t running[MAX_RUNNING]; /* streams whose head runs */
    int running_count;
    double *alone_ns;    /* per class: duration at the present clock */
    mix *mixes;
    int outstanding;     /* launches */

    double clock_mhz, wish_mhz, pending_mhz, cap_mhz, limit_w;
    int64_t switch_ns, stalled_until_ns;
    uint64_t switches;
    double temperature_c;

    int64_t since_ns;    /* everything below is as of then */
    double power_w, energy_j;
    gp_activity activity;
    double compute_s, memory_s, link_s;      /* activity x time since the last tick */
    double mean_compute, mean_memory, mean_link;
    double tick_energy_j;

    bool dirty;          /* the set of running kernels, or the clock, has changed */
    bool queued;         /* on the list of GPUs to look at */
    bool tracing;
    int32_t first_thread, thread_count;
} gpu;

typedef struct {
    int32_t rank, pc, end, first;
    int64_t executed;
    bool blocked;
    int32_t wait_code;        /* what a blocked thread waits for */
    int32_t wait_stream;
    int64_t wait_target, call_start_ns, own_end_ns;
    int64_t *device_targets;  /* of a device synchronise: per stream, how far it has to get */
    int32_t record;           /* of the blocked call; its end is filled in when it returns */
    int32_t batch, first_request;
} thread;

typedef struct {
    pl_group_spec spec;
    int64_t *arrived;    /* per member: how many it has entered, ever */
    int64_t *entered;    /* per member: how many were put on its streams */
    int32_t *on_stream;  /* per member: where its present one runs */
    int64_t sequence;    /* of the one that is on the wire, or next to be */
    bool active;
    double left, rate;
    int64_t since_ns, joint_ns;
} group;

struct pl_player {
    pl_input in;
    pl_options opt;
    int64_t now;
    gpu *gpus;
    thread *threads;
    group *groups;
    int stream_count, event_count, semaphore_count;

    /* Actors: threads, then GPUs, then groups. A binary heap of those with a next event. */
    int actor_count, heap_count;
    int64_t *due_ns; /* per actor */
    int32_t *heap, *place;

    int32_t *to_touch; /* GPUs to look at before time goes on */
    int touch_count;

    int32_t *slots;  /* per launch in flight: its items that are not done */
    int32_t *free_slots;
    int slot_count, free_count;

    int64_t next_tick_ns, tick_ns;
    int ticks_to_sample;
    int threads_left, next_request;
    int32_t correlation;
    int64_t operations;
    bool failed; /* no memory */
    pl_array records, marks, samples, requests;
};

/* --- Memory -------------------------------------------------------------------------------------- */

/* Room for one more element, zeroed; NULL, and the player fails, if there is none. */
static void *append(pl_player *p, pl_array *array)
{
    if (array->count == array->room) {
        size_t room = array->room ? array->room * 2 : 256;
        void *data = realloc(array->data, room * array->size);
        if (!data) {
            p->failed = true;
            return NULL;
        }
        array->data = data;
        array->room = room;
    }
    void *element = (char *)array->data + array->count++ * array->size;
    memset(element, 0, array->size);
    return element;
}

static item *at(const stream *s, int64_t position)
{
    return &s->items[(s->first + position) & (s->room - 1)];
}

static item *head(const stream *s)
{
    return at(s, 0);
}

static item *push(pl_player *p, stream *s)
{
    if (s->count == s->room) {
        int64_t room = s->room ? s->room * 2 : 64;
        item *items = malloc((size_t)room * sizeof(item));
        if (!items) {
            p->failed = true;
            return NULL;
        }
        for (int64_t i = 0; i < s->count; i++)
            items[i] = *at(s, i);
        free(s->items);
        s->items = items;
        s->room = room;
        s->first = 0;
    }
    item *added = at(s, s->count++);
    memset(added, 0, sizeof *added);
    s->added++;
    return added;
}

/* --- Random numbers: a function of what they are for, never of the order of events ------------------ */

static uint64_t mixed(uint64_t bits)
{
    /* The finaliser of splitmix64. */
    bits += UINT64_C(0x9E3779B97F4A7C15);
    bits = (bits ^ (bits >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    bits = (bits ^ (bits >> 27)) * UINT64_C(0x94D049BB133111EB);
    return bits ^ (bits >> 31);
}

static uint64_t random_bits(const pl_player *p, uint64_t what, uint64_t which, uint64_t count)
{
    return mixed(mixed(mixed((uint64_t)p->opt.seed ^ what << 56) ^ which) ^ count);
}

static double uniform(uint64_t bits)
{
    return (double)(bits >> 11) * 0x1p-53;
}

/* A factor around 1: four uniforms make a sum that is normal enough, and bounded by 3.5 deviations. */
static double noise(uint64_t bits, double deviation)
{
    double sum = 0.0;
    for (int i = 0; i < 4; i++)
        sum += (double)(bits >> (16 * i) & 0xFFFF) / 65536.0;
    return fmax(1.0 + deviation * (sum - 2.0) * 1.7320508, 0.1);
}

enum { FOR_KERNEL = 1, FOR_CPU = 2, FOR_WIRE = 3, FOR_RESIDUAL = 4, FOR_SWITCH = 5, FOR_LATENCY = 6 };

/* --- Heap of actors --------------------------------------------------------------------------------- */

static bool earlier(const pl_player *p, int32_t a, int32_t b)
{
    return p->due_ns[a] < p->due_ns[b] || (p->due_ns[a] == p->due_ns[b] && a < b);
}

static void put(pl_player *p, int position, int32_t actor)
{
    p->heap[position] = actor;
    p->place[actor] = position;
}

static void rise(pl_player *p, int position, int32_t actor)
{
    while (position > 0 && earlier(p, actor, p->heap[(position - 1) / 2])) {
        put(p, position, p->heap[(position - 1) / 2]);
        position = (position - 1) / 2;
    }
    put(p, position, actor);
}

static void sink(pl_player *p, int position, int32_t actor)
{
    for (;;) {
        int child = 2 * position + 1;
        if (child >= p->heap_count)
            break;
        if (child + 1 < p->heap_count && earlier(p, p->heap[child + 1], p->heap[child]))
            child++;
        if (!earlier(p, p->heap[child], actor))
            break;
        put(p, position, p->heap[child]);
        position = child;
    }
    put(p, position, actor);
}

/* Sets when an actor is to be looked at next; PL_NEVER takes it off the heap. */
static void schedule(pl_player *p, int32_t actor, int64_t due_ns)
{
    int position = p->place[actor];
    if (p->due_ns[actor] == due_ns)
        return;
    p->due_ns[actor] = due_ns;
    if (due_ns == PL_NEVER) {
        int32_t last = p->heap[--p->heap_count];
        p->place[actor] = NOBODY;
        if (last != actor) {
            if (position > 0 && earlier(p, last, p->heap[(position - 1) / 2]))
                rise(p, position, last);
            else
                sink(p, position, last);
        }
        return;
    }
    if (position == NOBODY) {
        rise(p, p->heap_count++, actor);
    } else if (position > 0 && earlier(p, actor, p->heap[(position - 1) / 2])) {
        rise(p, position, actor);
    } else {
        sink(p, position, actor);
    }
}

static int32_t gpu_actor(const pl_player *p, int32_t rank)
{
    return p->in.thread_count + rank;
}

static int32_t group_actor(const pl_player *p, int32_t number)
{
    return p->in.thread_count + p->in.rank_count + number;
}

/* This GPU is to be looked at before time goes on. */
static void touch(pl_player *p, int32_t rank)
{
    if (!p->gpus[rank].queued) {
        p->gpus[rank].queued = true;
        p->to_touch[p->touch_count++] = rank;
    }
}

/* --- Records ----------------------------------------------------------------------------------------- */

static int32_t record_item(pl_player *p, int32_t rank, int32_t lane, const item *it)
{
    if (p->opt.record == 0.0)
        return NOBODY;
    pl_record *r = append(p, &p->records);
    if (!r)
        return NOBODY;
    *r = (pl_record){.start_ns = it->start_ns, .end_ns = it->end_ns, .ready_ns = it->ready_ns,
                     .joint_ns = it->joint_ns, .bytes = it->bytes, .rank = rank, .lane = lane, .code = it->code,
                     .on_gpu = 1, .op = it->op, .correlation = it->correlation, .kernel = it->kernel,
                     .cause_kind = it->cause_kind, .cause = it->cause, .sequence = it->sequence};
    return (int32_t)p->records.count - 1;
}

static int32_t record_call(pl_player *p, int32_t number, int32_t op, int64_t start_ns, int64_t end_ns,
                           int64_t ready_ns, int32_t correlation, int32_t cause_kind, int32_t cause)
{
    if (p->opt.record == 0.0)
        return NOBODY;
    pl_record *r = append(p, &p->records);
    if (!r)
        return NOBODY;
    const pl_op *o = &p->in.ops[op];
    *r = (pl_record){.start_ns = start_ns, .end_ns = end_ns, .ready_ns = ready_ns, .joint_ns = -1,
                     .bytes = o->bytes, .rank = p->threads[number].rank, .lane = number, .code = o->code,
                     .on_gpu = 0, .op = op, .correlation = correlation, .kernel = o->kernel,
                     .cause_kind = cause_kind, .cause = cause, .sequence = -1};
    return (int32_t)p->records.count - 1;
}

/* The blocked call of a thread returns. */
static void end_call(pl_player *p, const thread *t, int64_t end_ns, int32_t cause_kind, int32_t cause)
{
    if (t->record == NOBODY || p->failed)
        return;
    pl_record *r = (pl_record *)p->records.data + t->record;
    r->end_ns = end_ns;
    r->ready_ns = p->now;
    r->cause_kind = cause_kind;
    r->cause = cause;
}

/* --- Groups ------------------------------------------------------------------------------------------- */

static item *member_item(const pl_player *p, const group *g, int member)
{
    int32_t rank = p->in.members[g->spec.first + member];
    return head(&p->gpus[rank].streams[g->on_stream[member]]);
}

static void advance_group(pl_player *p, group *g)
{
    g->left = fmax(g->left - g->rate * (double)(p->now - g->since_ns), 0.0);
    g->since_ns = p->now;
}

/* The wire is as fast as its slowest member. */
static void rate_group(pl_player *p, int32_t number)
{
    group *g = &p->groups[number];
    advance_group(p, g);
    g->rate = INFINITY;
    for (int m = 0; m < g->spec.count; m++)
        g->rate = fmin(g->rate, member_item(p, g, m)->rate);
    int64_t due = PL_NEVER;
    if (g->left <= 0.0)
        due = p->now;
    else if (g->rate > 0.0)
        due = p->now + (int64_t)ceil(g->left / g->rate - 1e-6);
    schedule(p, group_actor(p, number), due);
}

/* Everybody has arrived: the wire time begins. */
static void activate(pl_player *p, int32_t number)
{
    group *g = &p->groups[number];
    g->active = true;
    g->left = 1.0;
    g->rate = 0.0;
    g->since_ns = g->joint_ns = p->now;
    for (int m = 0; m < g->spec.count; m++) {
        int32_t rank = p->in.members[g->spec.first + m];
        item *it = member_item(p, g, m);
        it->spinning = false;
        it->joint_ns = p->now;
        p->gpus[rank].dirty = true;
        touch(p, rank);
    }
}

/* Whether member m need not wait for anybody, in its present operation. */
static bool may_pass(const group *g, int m)
{
    int64_t mine = g->arrived[m];
    if (g->spec.kind == PL_BROADCAST)
        return m == g->spec.root || g->arrived[g->spec.root] >= mine;
    if (m != g->spec.root)
        return true;
    for (int other = 0; other < g->spec.count; other++)
        if (g->arrived[other] < mine)
            return false;
    return true;
}

/* In a rooted operation every member has its own end; lets those go on that were only waiting for this one. */
static void release_rooted(pl_player *p, group *g)
{
    for (int m = 0; m < g->spec.count; m++) {
        if (g->on_stream[m] == NOBODY)
            continue;
        item *it = member_item(p, g, m);
        if (it->spinning && may_pass(g, m)) {
            int32_t rank = p->in.members[g->spec.first + m];
            it->spinning = false;
            it->joint_ns = p->now;
            p->gpus[rank].dirty = true;
            touch(p, rank);
        }
    }
}

static void arrive(pl_player *p, item *it, int32_t lane)
{
    group *g = &p->groups[it->group];
    it->spinning = true;
    g->arrived[it->member]++;
    g->on_stream[it->member] = lane;
    if (g->spec.kind != PL_ALL_WAIT) {
        release_rooted(p, g);
        return;
    }
    for (int m = 0; m < g->spec.count; m++)
        if (g->arrived[m] <= g->sequence)
            return;
    activate(p, it->group);
}

/* The wire time is over: all members end, a little apart. */
static void finish_group(pl_player *p, int32_t number)
{
    group *g = &p->groups[number];
    advance_group(p, g);
    schedule(p, group_actor(p, number), PL_NEVER);
    if (g->left > 1e-9) { /* due was rounded: not there yet */
        rate_group(p, number);
        return;
    }
    g->active = false;
    for (int m = 0; m < g->spec.count; m++) {
        int32_t rank = p->in.members[g->spec.first + m];
        item *it = member_item(p, g, m);
        uint64_t bits = random_bits(p, FOR_RESIDUAL, (uint64_t)number << 20 | (uint64_t)m, (uint64_t)g->sequence);
        it->end_ns = p->now + (int64_t)(p->opt.residual_ns * uniform(bits));
        it->left = 0.0;
        p->gpus[rank].dirty = true;
        touch(p, rank);
    }
    g->sequence++;
}

/* --- GPU: work and energy between events --------------------------------------------------------------- */

static void advance(pl_player *p, gpu *g)
{
    double dt_ns = (double)(p->now - g->since_ns);
    if (dt_ns <= 0.0)
        return;
    for (int i = 0; i < g->running_count; i++) {
        item *it = head(&g->streams[g->running[i]]);
        if (it->group == NOBODY || p->groups[it->group].spec.kind != PL_ALL_WAIT)
            it->left -= it->rate * dt_ns;
    }
    double dt_s = dt_ns * 1e-9;
    g->energy_j += g->power_w * dt_s;
    g->compute_s += g->activity.compute * dt_s;
    g->memory_s += g->activity.memory * dt_s;
    g->link_s += g->activity.link * dt_s;
    g->since_ns = p->now;
}

static void set_clock(pl_player *p, gpu *g, double clock_mhz)
{
    if (clock_mhz == g->clock_mhz)
        return;
    g->clock_mhz = clock_mhz;
    for (int k = 0; k < p->in.kernel_count; k++)
        g->alone_ns[k] = gp_duration_ns(&g->spec, &p->in.kernels[k], clock_mhz);
    g->dirty = true;
}

/* A kernel that waits for its peers: it turns round in a loop on few SMs. */
static gp_kernel spin_kernel(const pl_player *p, const gp_kernel *waiting)
{
    return (gp_kernel){.compute_ns = 1.0, .compute_activity = p->opt.spin_activity, .sm_share = waiting->sm_share};
}

/* Slow-downs and activity of what runs now; remembered, because the same few sets come back all the time. */
static const mix *present_mix(pl_player *p, gpu *g)
{
    int32_t key[MAX_RUNNING];
    uint64_t hash = 0;
    for (int i = 0; i < g->running_count; i++) {
        const item *it = head(&g->streams[g->running[i]]);
        /* Spinning kernels are told apart by the sign. */
        key[i] = it->code == PL_HOST_FUNC ? NO_KERNEL : it->spinning ? -1 - it->kernel : it->kernel;
        hash = mixed(hash ^ (uint64_t)(uint32_t)key[i]);
    }
    hash = mixed(hash ^ (uint64_t)(g->clock_mhz * 8.0));
    mix *m = &g->mixes[hash % CACHED_MIXES];
    if (m->count == g->running_count && m->clock_mhz == g->clock_mhz &&
        memcmp(m->kernels, key, sizeof(int32_t) * (size_t)g->running_count) == 0)
        return m;

    gp_kernel kernels[MAX_RUNNING];
    const gp_kernel *pointers[MAX_RUNNING];
    for (int i = 0; i < g->running_count; i++) {
        kernels[i] = key[i] == NO_KERNEL ? (gp_kernel){0} : key[i] < 0 ? spin_kernel(p, &p->in.kernels[-1 - key[i]]) : p->in.kernels[key[i]];
        pointers[i] = &kernels[i];
    }
    m->count = g->running_count;
    m->clock_mhz = g->clock_mhz;
    memcpy(m->kernels, key, sizeof(int32_t) * (size_t)g->running_count);
    gp_contention(&g->spec, pointers, g->running_count, g->clock_mhz, m->slowdown);
    m->activity = gp_activity_of(&g->spec, pointers, m->slowdown, g->running_count, g->clock_mhz);
    return m;
}

/* Rates, power and the ends of what runs, after the set or the clock has changed. */
static void rate(pl_player *p, gpu *g)
{
    const mix *m = present_mix(p, g);
    bool stalled = g->stalled_until_ns > p->now;
    for (int i = 0; i < g->running_count; i++) {
        item *it = head(&g->streams[g->running[i]]);
        if (it->code == PL_HOST_FUNC || (it->group != NOBODY && it->left <= 0.0))
            continue; /* its end is fixed */
        double took_ns = g->alone_ns[it->kernel] * m->slowdown[i] * it->scale / g->board.speed;
        it->rate = it->spinning || stalled ? 0.0 : took_ns > 0.0 ? 1.0 / took_ns : INFINITY;
        if (it->group != NOBODY && p->groups[it->group].spec.kind == PL_ALL_WAIT) {
            if (p->groups[it->group].active && !it->spinning)
                rate_group(p, it->group);
            continue;
        }
        if (it->rate == 0.0)
            it->end_ns = PL_NEVER;
        else if (it->left * took_ns <= 1e-3)
            it->end_ns = p->now;
        else
            it->end_ns = p->now + (int64_t)ceil(it->left * took_ns - 1e-3);
    }
    g->activity = stalled ? (gp_activity){0.0, 0.0, 0.0, 1} : m->activity;
    g->activity.loaded = 1;
    g->power_w = gp_power_w(&g->spec, &g->activity, g->clock_mhz, g->temperature_c) * g->board.power_gain;
    g->dirty = false;
}

/* --- GPU: streams ----------------------------------------------------------------------------------------- */

static void stop_running(gpu *g, int32_t lane)
{
    for (int i = 0; i < g->running_count; i++) {
        if (g->running[i] == lane) {
            memmove(&g->running[i], &g->running[i + 1], sizeof(int32_t) * (size_t)(g->running_count - i - 1));
            g->running_count--;
            return;
        }
    }
}

static void free_slot(pl_player *p, gpu *g, int32_t slot)
{
    if (slot == NOBODY || --p->slots[slot] > 0)
        return;
    g->outstanding--;
    p->free_slots[p->free_count++] = slot;
}

/* The head of a stream is done. */
static void retire(pl_player *p, gpu *g, int32_t lane)
{
    stream *s = &g->streams[lane];
    item *it = head(s);
    int32_t rank = (int32_t)(g - p->gpus);
    if (it->code != PL_RECORD && it->code != PL_WAIT) {
        if (it->group != NOBODY)
            p->groups[it->group].on_stream[it->member] = NOBODY;
        stop_running(g, lane);
        g->dirty = true;
        if (it->code != PL_HOST_FUNC) {
            s->last_record = record_item(p, rank, lane, it);
            s->free_ns = p->now + (int64_t)p->opt.gap_ns;
        }
        s->cause_kind = PL_CAUSE_STREAM;
        s->cause = s->last_record;
        s->cause_ns = p->now;
        s->last_end_ns = p->now;
    }
    free_slot(p, g, it->slot);
    p->operations++;
    s->done++;
    s->first = (s->first + 1) & (s->room - 1);
    s->count--;
}

static void start(pl_player *p, gpu *g, int32_t lane)
{
    stream *s = &g->streams[lane];
    item *it = head(s);
    it->started = true;
    it->start_ns = p->now;
    it->ready_ns = it->visible_ns;
    it->left = 1.0;
    it->joint_ns = -1;
    if (s->cause_kind != PL_CAUSE_NONE && s->cause_ns > it->visible_ns) {
        it->cause_kind = s->cause_kind;
        it->cause = s->cause;
    } else {
        it->cause_kind = PL_CAUSE_LAUNCH;
        it->cause = it->call;
    }
    if (it->code == PL_HOST_FUNC) {
        it->end_ns = p->now + (int64_t)it->scale;
        it->left = 0.0;
    } else {
        it->end_ns = PL_NEVER;
    }
    /* Sorted, so that equal sets have equal keys. */
    int i = g->running_count++;
    while (i > 0 && g->running[i - 1] > lane) {
        g->running[i] = g->running[i - 1];
        i--;
    }
    g->running[i] = lane;
    g->dirty = true;
    if (it->group != NOBODY)
        arrive(p, it, lane);
}

/* Whether what runs occupies all SMs. */
static bool is_full(const pl_player *p, const gpu *g)
{
    double share = 0.0;
    for (int i = 0; i < g->running_count; i++)
        if (head(&g->streams[g->running[i]])->code != PL_HOST_FUNC)
            share += p->in.kernels[head(&g->streams[g->running[i]])->kernel].sm_share;
    return share >= 1.0;
}

/* What the head of a stream can do now. True if something changed that others may wait for. */
static bool move_on(pl_player *p, gpu *g, int32_t lane, int64_t *next_ns)
{
    stream *s = &g->streams[lane];
    bool moved = false;
    while (s->count > 0) {
        item *it = head(s);
        if (it->started) {
            if (it->end_ns > p->now)
                break;
            retire(p, g, lane);
            moved = true;
            continue;
        }
        if (it->visible_ns > p->now) {
            *next_ns = it->visible_ns < *next_ns ? it->visible_ns : *next_ns;
            break;
        }
        if (it->code == PL_WAIT) {
            const stream *other = &g->streams[it->wait_stream];
            if (other->done < it->wait_target)
                break;
            if (other->last_end_ns == p->now && p->now > s->cause_ns && it->wait_stream != lane) {
                s->cause_kind = PL_CAUSE_EVENT;
                s->cause = other->last_record;
                s->cause_ns = p->now;
            }
        }
        if (it->code == PL_WAIT || it->code == PL_RECORD) {
            retire(p, g, lane);
            moved = true;
            continue;
        }
        if (s->free_ns > p->now) {
            *next_ns = s->free_ns < *next_ns ? s->free_ns : *next_ns;
            break;
        }
        if (g->running_count == MAX_RUNNING || (p->in.ops[it->op].flags & PL_ROOM && is_full(p, g)))
            break;
        start(p, g, lane);
        break;
    }
    return moved;
}

static void wake_threads(pl_player *p, int32_t rank);

/* Looks at a GPU at the present time: what ends, what starts, how fast it goes on, when it is due again. */
static void look_at(pl_player *p, int32_t rank)
{
    gpu *g = &p->gpus[rank];
    advance(p, g);
    if (g->switch_ns <= p->now) {
        g->switch_ns = PL_NEVER;
        g->wish_mhz = g->pending_mhz;
        double clock = fmin(g->wish_mhz, g->cap_mhz);
        if (clock != g->clock_mhz)
            g->stalled_until_ns = p->now + (int64_t)(g->switching.stall_us * 1e3);
        set_clock(p, g, clock);
    }
    if (g->stalled_until_ns == p->now)
        g->dirty = true;

    int64_t next_ns;
    bool moved = false;
    do {
        bool again;
        do {
            again = false;
            next_ns = PL_NEVER;
            for (int32_t lane = 0; lane < p->stream_count; lane++)
                again |= move_on(p, g, lane, &next_ns);
            moved |= again;
        } while (again);
        if (g->dirty)
            rate(p, g);
        again = false;
        for (int i = 0; i < g->running_count; i++) {
            int64_t end_ns = head(&g->streams[g->running[i]])->end_ns;
            again |= end_ns <= p->now;
            next_ns = end_ns < next_ns ? end_ns : next_ns;
        }
        if (!again)
            break;
    } while (true);

    if (g->switch_ns < next_ns)
        next_ns = g->switch_ns;
    if (g->stalled_until_ns > p->now && g->stalled_until_ns < next_ns)
        next_ns = g->stalled_until_ns;
    schedule(p, gpu_actor(p, rank), next_ns);
    if (moved)
        wake_threads(p, rank);
}

/* Power cap, thermal state, history: on a fixed grid of time. */
static void tick(pl_player *p)
{
    double dt_s = (double)p->tick_ns * 1e-9;
    double weight = fmin(dt_s / 0.05, 1.0); /* the loop looks at the last 50 ms or so */
    bool first = p->next_tick_ns == p->tick_ns;
    for (int32_t rank = 0; rank < p->in.rank_count; rank++) {
        gpu *g = &p->gpus[rank];
        advance(p, g);
        double w = first ? 1.0 : weight;
        g->mean_compute += w * (g->compute_s / dt_s - g->mean_compute);
        g->mean_memory += w * (g->memory_s / dt_s - g->mean_memory);
        g->mean_link += w * (g->link_s / dt_s - g->mean_link);
        g->compute_s = g->memory_s = g->link_s = 0.0;
        gp_activity mean = {g->mean_compute, g->mean_memory, g->mean_link, 1};
        double mean_w = (g->energy_j - g->tick_energy_j) / dt_s;
        g->tick_energy_j = g->energy_j;
        g->temperature_c = gp_temperature_after_c(&g->spec, g->temperature_c, mean_w, dt_s);
        double limit_w = fmin(g->limit_w, gp_thermal_limit_w(&g->spec, g->temperature_c)) / g->board.power_gain;
        g->cap_mhz = gp_capped_clock_mhz(&g->spec, &mean, g->spec.clock_max_mhz, limit_w, g->temperature_c);
        set_clock(p, g, fmin(g->wish_mhz, g->cap_mhz));
        g->dirty = true; /* the temperature changes the power */
        pl_sample *sample = append(p, &p->samples);
        if (sample)
            *sample = (pl_sample){p->now, g->energy_j, g->clock_mhz, g->temperature_c, rank, 0};
        touch(p, rank);
    }
    p->next_tick_ns += p->tick_ns;
}

/* --- Threads ------------------------------------------------------------------------------------------------ */

static gpu *gpu_of(pl_player *p, const thread *t)
{
    return &p->gpus[t->rank];
}

/* What CPU work of this length really takes now. */
static int64_t cpu_time_ns(pl_player *p, int32_t number, double cpu_ns)
{
    thread *t = &p->threads[number];
    gpu *g = gpu_of(p, t);
    double factor = noise(random_bits(p, FOR_CPU, (uint64_t)number, (uint64_t)t->executed), p->opt.cpu_noise);
    if (g->tracing)
        factor *= g->board.tracing_slowdown;
    return (int64_t)llround(cpu_ns * factor / g->board.cpu_speed);
}

static bool streams_done(const pl_player *p, const thread *t)
{
    const gpu *g = &p->gpus[t->rank];
    if (t->wait_code != PL_SYNC_DEVICE)
        return g->streams[t->wait_stream].done >= t->wait_target;
    for (int s = 0; s < p->stream_count; s++)
        if (g->streams[s].done < t->device_targets[s])
            return false;
    return true;
}

/* A blocked call goes on: it still takes the wake-up, and never less than its own time. */
static void unblock(pl_player *p, int32_t number, int32_t cause_kind, int32_t cause)
{
    thread *t = &p->threads[number];
    int64_t end = p->now + (int64_t)p->opt.wake_ns;
    if (end < t->own_end_ns)
        end = t->own_end_ns;
    end_call(p, t, end, cause_kind, cause);
    t->blocked = false;
    t->pc++;
    schedule(p, number, end);
}

/* The GPU operation of this rank that ended just now, for the cause of a wake-up. */
static int32_t last_ended(const pl_player *p, const thread *t)
{
    const gpu *g = &p->gpus[t->rank];
    if (t->wait_code != PL_SYNC_DEVICE)
        return g->streams[t->wait_stream].last_record;
    int32_t best = 0;
    for (int32_t s = 1; s < p->stream_count; s++)
        if (g->streams[s].last_end_ns > g->streams[best].last_end_ns)
            best = s;
    return g->streams[best].last_record;
}

static void wake_threads(pl_player *p, int32_t rank)
{
    gpu *g = &p->gpus[rank];
    for (int32_t number = g->first_thread; number < g->first_thread + g->thread_count; number++) {
        thread *t = &p->threads[number];
        if (!t->blocked)
            continue;
        if (t->wait_code == PL_LAUNCH) {
            if (g->outstanding < (int)p->opt.queue_depth && p->due_ns[number] == PL_NEVER)
                schedule(p, number, p->now); /* executes the launch again */
        } else if (t->wait_code == PL_SYNC_STREAM || t->wait_code == PL_SYNC_DEVICE) {
            if (streams_done(p, t))
                unblock(p, number, PL_CAUSE_GPU, last_ended(p, t));
        }
    }
}

static void block(pl_player *p, int32_t number, int32_t code, int32_t lane, int64_t target)
{
    thread *t = &p->threads[number];
    t->blocked = true;
    t->wait_code = code;
    t->wait_stream = lane;
    t->wait_target = target;
    t->call_start_ns = p->now;
    t->record = NOBODY;
    schedule(p, number, PL_NEVER);
}

/* A call that waits for the GPU, as far as block() was told. */
static void call_that_waits(pl_player *p, int32_t number)
{
    thread *t = &p->threads[number];
    t->own_end_ns = p->now + cpu_time_ns(p, number, p->in.ops[t->pc].cpu_ns);
    t->record = record_call(p, number, t->pc, p->now, t->own_end_ns, p->now, p->correlation++, PL_CAUSE_NONE, NOBODY);
    if (streams_done(p, t)) {
        t->blocked = false;
        t->pc++;
        schedule(p, number, t->own_end_ns);
    }
}

static void wait_for_device(pl_player *p, int32_t number)
{
    thread *t = &p->threads[number];
    block(p, number, PL_SYNC_DEVICE, 0, 0);
    for (int s = 0; s < p->stream_count; s++)
        t->device_targets[s] = gpu_of(p, t)->streams[s].added;
    call_that_waits(p, number);
}

static void wait_for_stream(pl_player *p, int32_t number, int32_t lane, int64_t target)
{
    block(p, number, PL_SYNC_STREAM, lane, target);
    call_that_waits(p, number);
}

static void wait_for_event(pl_player *p, int32_t number, const event *e)
{
    bool recorded = e->stream != NOBODY;
    wait_for_stream(p, number, recorded ? e->stream : 0, recorded ? e->target : 0);
}

static int32_t new_slot(pl_player *p)
{
    if (p->free_count == 0) {
        p->failed = true; /* cannot be: there are as many slots as launches that fit all queues */
        return NOBODY;
    }
    int32_t slot = p->free_slots[--p->free_count];
    p->slots[slot] = 0;
    return slot;
}

static int member_of(const pl_player *p, const group *g, int32_t rank)
{
    for (int m = 0; m < g->spec.count; m++)
        if (p->in.members[g->spec.first + m] == rank)
            return m;
    return NOBODY;
}

/* From a call until the GPU sees what it launched. */
static int64_t latency_ns(const pl_player *p, const thread *t, const stream *s)
{
    uint64_t which = (uint64_t)t->rank << 16 | (uint64_t)(s - p->gpus[t->rank].streams);
    double late = uniform(random_bits(p, FOR_LATENCY, which, (uint64_t)s->added));
    return (int64_t)(p->opt.launch_latency_ns + p->opt.launch_jitter_ns * late * late);
}

/* Puts one operation on its stream. */
static void enqueue(pl_player *p, int32_t number, const pl_op *o, double scale, int32_t slot, int32_t call,
                    int32_t correlation, int32_t in_graph)
{
    thread *t = &p->threads[number];
    gpu *g = gpu_of(p, t);
    stream *s = &g->streams[o->stream];
    item *it = push(p, s);
    if (!it)
        return;
    it->code = o->code;
    it->op = (int32_t)(o - p->in.ops);
    it->kernel = o->kernel + (o->flags & PL_BY_BATCH ? t->batch - 1 : 0);
    it->group = it->member = NOBODY;
    it->slot = NOBODY;
    it->call = call;
    it->correlation = correlation;
    it->sequence = in_graph;
    it->visible_ns = p->now + latency_ns(p, t, s);
    it->bytes = o->bytes;
    it->scale = o->scale * scale;
    if (o->code == PL_RECORD) {
        g->events[o->a] = (event){o->stream, s->added};
    } else if (o->code == PL_WAIT) {
        event e = g->events[o->a];
        it->wait_stream = e.stream == NOBODY ? o->stream : e.stream;
        it->wait_target = e.stream == NOBODY ? 0 : e.target;
    } else if (o->code != PL_HOST_FUNC) {
        it->slot = slot;
        if (slot != NOBODY)
            p->slots[slot]++;
        uint64_t which = (uint64_t)t->rank << 16 | (uint64_t)o->stream;
        uint64_t kind = FOR_KERNEL, count = (uint64_t)s->added;
        if (o->code == PL_COLLECTIVE) {
            group *gr = &p->groups[o->a];
            it->group = o->a;
            it->member = member_of(p, gr, t->rank);
            it->sequence = (int32_t)gr->entered[it->member]++;
            kind = FOR_WIRE;
            which = (uint64_t)o->a;
            count = (uint64_t)it->sequence;
        }
        it->scale *= noise(random_bits(p, kind, which, count), p->opt.gpu_noise);
    } else {
        it->scale = o->scale;
    }
    if (s->count == 1) /* behind others it changes nothing yet */
        touch(p, t->rank);
}

/* A call that puts something on a stream; it blocks while the launch queue is full. */
static void launch(pl_player *p, int32_t number, const pl_op *o)
{
    thread *t = &p->threads[number];
    gpu *g = gpu_of(p, t);
    bool takes_slot = o->code != PL_RECORD && o->code != PL_WAIT && o->code != PL_HOST_FUNC;
    if (takes_slot && g->outstanding >= (int)p->opt.queue_depth) {
        if (!t->blocked)
            block(p, number, PL_LAUNCH, 0, 0);
        else
            schedule(p, number, PL_NEVER);
        return;
    }
    int64_t began = t->blocked ? t->call_start_ns : p->now;
    int64_t end = p->now + cpu_time_ns(p, number, o->cpu_ns);
    int32_t slot = takes_slot ? new_slot(p) : NOBODY;
    int32_t correlation = p->correlation++;
    int32_t call = record_call(p, number, t->pc, began, end, p->now, correlation,
                               t->blocked ? PL_CAUSE_QUEUE : PL_CAUSE_NONE, NOBODY);
    t->blocked = false;
    if (takes_slot)
        g->outstanding++;
    if (o->code == PL_GRAPH) {
        const pl_graph_spec *graph = &p->in.graphs[o->a];
        for (int i = 0; i < graph->count; i++)
            enqueue(p, number, &p->in.ops[graph->first + i], o->scale, slot, call, correlation, i);
    } else {
        enqueue(p, number, o, 1.0, slot, call, correlation, -1);
    }
    if (o->code == PL_COPY && o->flags & (PL_BLOCKING | PL_PAGEABLE)) {
        block(p, number, PL_SYNC_STREAM, o->stream, g->streams[o->stream].added);
        t->own_end_ns = end;
        t->record = call;
        return;
    }
    t->pc++;
    schedule(p, number, end);
}

static void mark(pl_player *p, int32_t number, const pl_op *o)
{
    thread *t = &p->threads[number];
    gpu *g = gpu_of(p, t);
    advance(p, g);
    pl_mark *m = append(p, &p->marks);
    if (m)
        *m = (pl_mark){p->now, g->energy_j, o->scale, t->rank, o->a};
    g->tracing = p->opt.trace_first <= o->a && o->a <= p->opt.trace_last;
}

/* When the next batch is due: it is full, or its oldest request has waited long enough. PL_NEVER: no request left. */
static int64_t batch_due_ns(const pl_player *p, const pl_op *o)
{
    int first = p->next_request, full = first + o->a - 1;
    if (first >= p->in.arrival_count)
        return PL_NEVER;
    int64_t patience = p->in.arrivals[first] + o->time_ns;
    if (full < p->in.arrival_count && p->in.arrivals[full] < patience)
        return p->in.arrivals[full];
    return patience;
}

/* Takes the requests that are there. False if the batch is not due yet: the thread sleeps. */
static bool take_batch(pl_player *p, int32_t number, const pl_op *o)
{
    thread *t = &p->threads[number];
    int64_t due = batch_due_ns(p, o);
    if (due == PL_NEVER) {
        t->pc = t->end; /* all is answered, or will be by others */
        return true;
    }
    if (due > p->now) {
        schedule(p, number, due);
        return false;
    }
    t->first_request = p->next_request;
    t->batch = 0;
    while (t->batch < o->a && p->next_request < p->in.arrival_count && p->in.arrivals[p->next_request] <= p->now) {
        pl_request *r = append(p, &p->requests);
        if (r)
            *r = (pl_request){p->in.arrivals[p->next_request], p->now, -1, 0, t->rank};
        p->next_request++;
        t->batch++;
    }
    t->pc++;
    return true;
}

static void answer_batch(pl_player *p, thread *t)
{
    pl_request *requests = p->requests.data;
    for (int i = 0; i < t->batch && !p->failed; i++) {
        requests[t->first_request + i].done_ns = p->now;
        requests[t->first_request + i].batch = t->batch;
    }
}

/* Time passes on the CPU; then the next operation. */
static void pass(pl_player *p, int32_t number, int64_t end_ns, bool is_call)
{
    thread *t = &p->threads[number];
    record_call(p, number, t->pc, p->now, end_ns, p->now, is_call ? p->correlation++ : 0, PL_CAUSE_NONE, NOBODY);
    t->pc++;
    schedule(p, number, end_ns);
}

static void post(pl_player *p, int32_t number, const pl_op *o)
{
    thread *t = &p->threads[number];
    semaphore *s = &gpu_of(p, t)->semaphores[o->a];
    s->posted++;
    for (int32_t other = 0; other < p->in.thread_count; other++) {
        thread *w = &p->threads[other];
        if (w->rank == t->rank && w->blocked && w->wait_code == PL_AWAIT && w->wait_stream == o->a && s->posted > 0) {
            s->posted--;
            w->blocked = false;
            record_call(p, other, w->pc, w->call_start_ns, p->now, p->now, 0, PL_CAUSE_THREAD, number);
            w->pc++;
            schedule(p, other, p->now + cpu_time_ns(p, other, p->in.ops[w->pc - 1].cpu_ns));
        }
    }
    t->pc++;
}

/* Executes the operation at hand. True if the next one follows at the same instant. */
static bool execute(pl_player *p, int32_t number)
{
    thread *t = &p->threads[number];
    gpu *g = gpu_of(p, t);
    const pl_op *o = &p->in.ops[t->pc];
    if (!t->blocked)
        t->executed++;
    p->operations++;
    switch (o->code) {
    case PL_CPU:
        pass(p, number, p->now + cpu_time_ns(p, number, o->cpu_ns * o->scale), false);
        return false;
    case PL_SYNC_STREAM:
        wait_for_stream(p, number, o->stream, g->streams[o->stream].added);
        return false;
    case PL_SYNC_DEVICE:
    case PL_FREE:
        wait_for_device(p, number);
        return false;
    case PL_SYNC_EVENT:
        wait_for_event(p, number, &g->events[o->a]);
        return false;
    case PL_MALLOC:
        if (o->flags & PL_BLOCKING)
            wait_for_device(p, number);
        else
            pass(p, number, p->now + cpu_time_ns(p, number, o->cpu_ns), true);
        return false;
    case PL_POLL: {
        const event *e = &g->events[o->a];
        bool done = e->stream == NOBODY || g->streams[e->stream].done >= e->target;
        pass(p, number, p->now + cpu_time_ns(p, number, o->cpu_ns), true);
        if (!done) {
            t->pc--; /* asks again */
            schedule(p, number, p->due_ns[number] + o->time_ns);
        }
        return false;
    }
    case PL_POST:
        post(p, number, o);
        return true;
    case PL_AWAIT:
        if (g->semaphores[o->a].posted > 0) {
            g->semaphores[o->a].posted--;
            t->pc++;
            return true;
        }
        block(p, number, PL_AWAIT, o->a, 0);
        return false;
    case PL_MARK:
        mark(p, number, o);
        t->pc++;
        return true;
    case PL_SLEEP_UNTIL:
        pass(p, number, o->time_ns > p->now ? o->time_ns : p->now, false);
        return false;
    case PL_TAKE:
        return take_batch(p, number, o);
    case PL_DONE:
        answer_batch(p, t);
        t->pc++;
        return true;
    case PL_LOOP:
        t->pc = p->next_request < p->in.arrival_count ? t->first + o->a : t->pc + 1;
        return true;
    default:
        launch(p, number, o);
        return false;
    }
}

static void go_on(pl_player *p, int32_t number)
{
    thread *t = &p->threads[number];
    while (t->pc < t->end && !p->failed)
        if (!execute(p, number))
            return;
    if (t->pc >= t->end && p->due_ns[number] != PL_NEVER) {
        p->threads_left--;
        schedule(p, number, PL_NEVER);
    }
}

/* --- The loop ------------------------------------------------------------------------------------------------ */

static void settle(pl_player *p)
{
    /* The list may grow while it is worked on: GPUs affect each other through collectives. */
    while (p->touch_count > 0) {
        int32_t rank = p->to_touch[--p->touch_count];
        p->gpus[rank].queued = false;
        look_at(p, rank);
    }
}

static bool gpus_idle(const pl_player *p)
{
    for (int32_t rank = 0; rank < p->in.rank_count; rank++)
        for (int s = 0; s < p->stream_count; s++)
            if (p->gpus[rank].streams[s].count > 0)
                return false;
    return true;
}

int pl_run(pl_player *p, int64_t until_ns)
{
    settle(p);
    while (!p->failed) {
        if (p->threads_left == 0 && gpus_idle(p))
            return PL_FINISHED;
        int64_t due = p->heap_count ? p->due_ns[p->heap[0]] : PL_NEVER;
        if (due == PL_NEVER)
            return PL_DEADLOCK;
        if ((due < p->next_tick_ns ? due : p->next_tick_ns) >= until_ns) {
            p->now = until_ns > p->now ? until_ns : p->now;
            return PL_PAUSED;
        }
        if (p->next_tick_ns <= due) {
            p->now = p->next_tick_ns;
            tick(p);
            settle(p);
            continue;
        }
        p->now = due;
        int32_t actor = p->heap[0];
        if (actor < p->in.thread_count) {
            go_on(p, actor);
        } else if (actor < group_actor(p, 0)) {
            touch(p, actor - p->in.thread_count);
        } else {
            finish_group(p, actor - group_actor(p, 0));
        }
        settle(p);
    }
    return PL_NO_MEMORY;
}

/* --- Control and state ----------------------------------------------------------------------------------------- */

void pl_request_clock(pl_player *p, int rank, double clock_mhz, bool settled)
{
    gpu *g = &p->gpus[rank];
    double wish = clock_mhz > 0.0 ? gp_clock_on_grid_mhz(&g->spec, clock_mhz) : g->spec.clock_max_mhz;
    g->pending_mhz = wish;
    g->switch_ns = p->now;
    if (!settled) {
        double random[3];
        for (int i = 0; i < 3; i++)
            random[i] = uniform(random_bits(p, FOR_SWITCH, (uint64_t)rank, g->switches * 3 + (uint64_t)i));
        g->switches++;
        double latency_ms = gp_switch_latency_ms(&g->switching, wish, g->spec.clock_max_mhz, random);
        g->switch_ns += (int64_t)(latency_ms * 1e6);
    } else {
        advance(p, g);
        g->switch_ns = PL_NEVER;
        g->wish_mhz = wish;
        set_clock(p, g, fmin(wish, g->cap_mhz));
    }
    touch(p, rank);
}

void pl_limit_power(pl_player *p, int rank, double limit_w)
{
    gpu *g = &p->gpus[rank];
    g->limit_w = fmin(fmax(limit_w, g->spec.power_limit_min_w), g->spec.power_limit_max_w);
}

pl_state pl_gpu_state(const pl_player *p, int rank)
{
    const gpu *g = &p->gpus[rank];
    double ahead_s = (double)(p->now - g->since_ns) * 1e-9;
    return (pl_state){p->now, g->energy_j + g->power_w * ahead_s, g->power_w, g->clock_mhz, g->wish_mhz,
                      g->temperature_c, g->activity.compute, g->activity.memory, g->activity.link};
}

const pl_array *pl_records(const pl_player *p)
{
    return &p->records;
}

const pl_array *pl_marks(const pl_player *p)
{
    return &p->marks;
}

const pl_array *pl_samples(const pl_player *p)
{
    return &p->samples;
}

const pl_array *pl_requests(const pl_player *p)
{
    return &p->requests;
}

int pl_stuck(const pl_player *p, int *op)
{
    for (int number = 0; number < p->in.thread_count; number++) {
        if (p->threads[number].pc < p->threads[number].end) {
            *op = p->threads[number].pc;
            return number;
        }
    }
    return NOBODY;
}

int64_t pl_now(const pl_player *p)
{
    return p->now;
}

int pl_gpus(const pl_player *p)
{
    return p->in.rank_count;
}

int64_t pl_operations(const pl_player *p)
{
    return p->operations;
}

/* --- Beginning and end ------------------------------------------------------------------------------------------- */

static bool in_range(int32_t value, int count)
{
    return value >= 0 && value < count;
}

static const char *check_op(const pl_input *in, const pl_op *o, bool in_graph)
{
    int code = o->code;
    if (code < PL_CPU || code > PL_MEMSET)
        return "an operation has an unknown code";
    bool on_gpu = code == PL_LAUNCH || code == PL_COPY || code == PL_COLLECTIVE || code == PL_MEMSET;
    if (in_graph && !on_gpu && code != PL_RECORD && code != PL_WAIT)
        return "a graph holds an operation that is not for the GPU";
    if ((on_gpu || code == PL_RECORD || code == PL_WAIT || code == PL_SYNC_STREAM || code == PL_HOST_FUNC) &&
        !in_range(o->stream, (int)in->options.streams))
        return "an operation names a stream that does not exist";
    if (on_gpu && !in_range(o->kernel, in->kernel_count))
        return "an operation names a kernel that does not exist";
    if ((code == PL_RECORD || code == PL_WAIT || code == PL_SYNC_EVENT || code == PL_POLL) &&
        !in_range(o->a, (int)in->options.events))
        return "an operation names an event that does not exist";
    if ((code == PL_POST || code == PL_AWAIT) && !in_range(o->a, (int)in->options.semaphores))
        return "an operation names a semaphore that does not exist";
    if (code == PL_COLLECTIVE && !in_range(o->a, in->group_count))
        return "an operation names a group that does not exist";
    if (code == PL_GRAPH && !in_range(o->a, in->graph_count))
        return "an operation names a graph that does not exist";
    if (code == PL_TAKE && o->a < 1)
        return "a batch must hold at least one request";
    if (!(o->cpu_ns >= 0.0 && o->cpu_ns < 1e15 && o->scale >= 0.0 && o->scale < 1e15 && o->time_ns >= 0))
        return "an operation has a time or scale that is negative or absurd";
    return NULL;
}

/* With batches, classes of kernels are counted from the operation's own: the largest batch must still have one. */
static int largest_batch(const pl_input *in)
{
    int largest = 1;
    for (int i = 0; i < in->op_count; i++)
        if (in->ops[i].code == PL_TAKE && in->ops[i].a > largest)
            largest = in->ops[i].a;
    return largest;
}

static bool is_member(const pl_input *in, int32_t group_number, int32_t rank)
{
    const pl_group_spec *g = &in->groups[group_number];
    for (int m = 0; m < g->count; m++)
        if (in->members[g->first + m] == rank)
            return true;
    return false;
}

static const char *check_thread(const pl_input *in, const pl_thread_spec *t)
{
    if (!in_range(t->rank, in->rank_count) || t->first < 0 || t->count < 0 || t->first > in->op_count - t->count)
        return "a thread lies outside the job";
    for (int i = t->first; i < t->first + t->count; i++) {
        const pl_op *o = &in->ops[i];
        if (o->code == PL_COLLECTIVE && !is_member(in, o->a, t->rank))
            return "a rank takes part in an operation of a group that it does not belong to";
        if (o->code == PL_LOOP && !in_range(o->a, t->count))
            return "a loop goes back to nowhere";
        if (o->code != PL_GRAPH)
            continue;
        const pl_graph_spec *graph = &in->graphs[o->a];
        for (int j = graph->first; j < graph->first + graph->count; j++)
            if (in->ops[j].code == PL_COLLECTIVE && !is_member(in, in->ops[j].a, t->rank))
                return "a graph takes part in an operation of a group that its rank does not belong to";
    }
    return NULL;
}

const char *pl_check(const pl_input *in)
{
    const pl_options *opt = &in->options;
    if (in->rank_count < 1 || in->thread_count < 1)
        return "there is nothing to play";
    if (!(opt->streams >= 1 && opt->streams <= 4096 && opt->events >= 0 && opt->events < 1e7 &&
          opt->semaphores >= 0 && opt->semaphores < 1e7 && opt->queue_depth >= 1 && opt->queue_depth <= 1e6 &&
          opt->tick_ms >= 0.01 && opt->tick_ms <= 1e6))
        return "an option is out of range";
    for (int g = 0; g < in->group_count; g++) {
        const pl_group_spec *s = &in->groups[g];
        if (s->count < 1 || s->first < 0 || s->first > in->member_count - s->count ||
            (s->kind != PL_ALL_WAIT && !in_range(s->root, s->count)) || !in_range(s->kind, 3))
            return "a group is malformed";
        for (int m = 0; m < s->count; m++)
            if (!in_range(in->members[s->first + m], in->rank_count))
                return "a group has a member that does not exist";
    }
    for (int g = 0; g < in->graph_count; g++)
        if (in->graphs[g].first < 0 || in->graphs[g].count < 1 ||
            in->graphs[g].first > in->op_count - in->graphs[g].count)
            return "a graph lies outside the job";
    int batch = largest_batch(in);
    for (int i = 0; i < in->op_count; i++) {
        const char *wrong = check_op(in, &in->ops[i], false);
        if (wrong)
            return wrong;
        if (in->ops[i].flags & PL_BY_BATCH && in->ops[i].kernel + batch > in->kernel_count)
            return "a batch may be larger than there are kernels for";
    }
    for (int g = 0; g < in->graph_count; g++) {
        bool runs = false;
        for (int i = in->graphs[g].first; i < in->graphs[g].first + in->graphs[g].count; i++) {
            const char *wrong = check_op(in, &in->ops[i], true);
            if (wrong)
                return wrong;
            runs |= in->ops[i].code != PL_RECORD && in->ops[i].code != PL_WAIT;
        }
        if (!runs)
            return "a graph runs nothing";
    }
    for (int t = 0; t < in->thread_count; t++) {
        const char *wrong = check_thread(in, &in->threads[t]);
        if (wrong)
            return wrong;
        if (t > 0 && in->threads[t].rank < in->threads[t - 1].rank)
            return "threads are not sorted by rank";
    }
    return NULL;
}

/* A copy of `count` elements; sets *failed if there is no memory. */
static void *copied(const void *data, size_t count, size_t size, bool *failed)
{
    void *copy = calloc(count ? count : 1, size);
    if (!copy)
        *failed = true;
    else if (count)
        memcpy(copy, data, count * size);
    return copy;
}

static void *zeroed(size_t count, size_t size, bool *failed)
{
    return copied(NULL, 0, (count ? count : 1) * size, failed);
}

static void new_gpu(pl_player *p, gpu *g, int rank)
{
    g->spec = p->in.specs[rank];
    g->switching = p->in.switching[rank];
    g->board = p->in.boards[rank];
    g->streams = zeroed((size_t)p->stream_count, sizeof(stream), &p->failed);
    g->events = zeroed((size_t)p->event_count, sizeof(event), &p->failed);
    g->semaphores = zeroed((size_t)p->semaphore_count, sizeof(semaphore), &p->failed);
    g->alone_ns = zeroed((size_t)p->in.kernel_count, sizeof(double), &p->failed);
    g->mixes = zeroed(CACHED_MIXES, sizeof(mix), &p->failed);
    if (p->failed)
        return;
    for (int s = 0; s < p->stream_count; s++) {
        g->streams[s].cause = g->streams[s].last_record = NOBODY;
        g->streams[s].last_end_ns = g->streams[s].cause_ns = -1;
    }
    for (int e = 0; e < p->event_count; e++)
        g->events[e].stream = NOBODY;
    for (int m = 0; m < CACHED_MIXES; m++)
        g->mixes[m].count = NOBODY;
    g->wish_mhz = g->cap_mhz = g->spec.clock_max_mhz;
    g->limit_w = g->spec.power_limit_w;
    g->switch_ns = PL_NEVER;
    g->temperature_c = g->board.temperature_c;
    set_clock(p, g, g->spec.clock_max_mhz);
    touch(p, rank);
}

static void new_group(pl_player *p, group *g, const pl_group_spec *spec)
{
    size_t count = (size_t)spec->count;
    g->spec = *spec;
    g->arrived = zeroed(count, sizeof(int64_t), &p->failed);
    g->entered = zeroed(count, sizeof(int64_t), &p->failed);
    g->on_stream = zeroed(count, sizeof(int32_t), &p->failed);
    for (size_t m = 0; m < count && g->on_stream; m++)
        g->on_stream[m] = NOBODY;
}

static void new_actors(pl_player *p)
{
    size_t count = (size_t)p->in.thread_count + (size_t)p->in.rank_count + (size_t)p->in.group_count;
    p->actor_count = (int)count;
    p->due_ns = zeroed(count, sizeof(int64_t), &p->failed);
    p->heap = zeroed(count, sizeof(int32_t), &p->failed);
    p->place = zeroed(count, sizeof(int32_t), &p->failed);
    p->to_touch = zeroed((size_t)p->in.rank_count, sizeof(int32_t), &p->failed);
    size_t slots = (size_t)p->in.rank_count * (size_t)p->opt.queue_depth;
    p->slots = zeroed(slots, sizeof(int32_t), &p->failed);
    p->free_slots = zeroed(slots, sizeof(int32_t), &p->failed);
    if (p->failed)
        return;
    p->free_count = p->slot_count = (int)slots;
    for (size_t i = 0; i < slots; i++)
        p->free_slots[i] = (int32_t)(slots - 1 - i);
    for (size_t i = 0; i < count; i++) {
        p->due_ns[i] = PL_NEVER;
        p->place[i] = NOBODY;
    }
}

static void new_threads(pl_player *p)
{
    for (int32_t i = 0; i < p->in.thread_count; i++) {
        const pl_thread_spec *spec = &p->in.threads[i];
        p->threads[i] = (thread){.rank = spec->rank, .pc = spec->first, .first = spec->first,
                                 .end = spec->first + spec->count, .batch = 1};
        p->threads[i].device_targets = zeroed((size_t)p->stream_count, sizeof(int64_t), &p->failed);
        gpu *g = &p->gpus[spec->rank];
        if (g->thread_count++ == 0)
            g->first_thread = i;
        p->threads_left++;
        schedule(p, i, 0);
    }
}

pl_player *pl_new(const pl_input *input)
{
    pl_player *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    bool *failed = &p->failed;
    p->in = *input;
    p->in.ops = copied(input->ops, (size_t)input->op_count, sizeof(pl_op), failed);
    p->in.threads = copied(input->threads, (size_t)input->thread_count, sizeof(pl_thread_spec), failed);
    p->in.kernels = copied(input->kernels, (size_t)input->kernel_count, sizeof(gp_kernel), failed);
    p->in.groups = copied(input->groups, (size_t)input->group_count, sizeof(pl_group_spec), failed);
    p->in.members = copied(input->members, (size_t)input->member_count, sizeof(int32_t), failed);
    p->in.graphs = copied(input->graphs, (size_t)input->graph_count, sizeof(pl_graph_spec), failed);
    p->in.specs = copied(input->specs, (size_t)input->rank_count, sizeof(gp_spec), failed);
    p->in.switching = copied(input->switching, (size_t)input->rank_count, sizeof(gp_switching), failed);
    p->in.boards = copied(input->boards, (size_t)input->rank_count, sizeof(pl_board), failed);
    p->in.arrivals = copied(input->arrivals, (size_t)input->arrival_count, sizeof(int64_t), failed);
    p->opt = input->options;
    p->stream_count = (int)p->opt.streams;
    p->event_count = (int)p->opt.events;
    p->semaphore_count = (int)p->opt.semaphores;
    p->records.size = sizeof(pl_record);
    p->marks.size = sizeof(pl_mark);
    p->samples.size = sizeof(pl_sample);
    p->requests.size = sizeof(pl_request);
    p->tick_ns = p->next_tick_ns = (int64_t)(p->opt.tick_ms * 1e6);
    p->correlation = 1;
    new_actors(p);
    p->gpus = zeroed((size_t)input->rank_count, sizeof(gpu), failed);
    p->groups = zeroed((size_t)input->group_count, sizeof(group), failed);
    p->threads = zeroed((size_t)input->thread_count, sizeof(thread), failed);
    for (int rank = 0; rank < input->rank_count && !p->failed; rank++)
        new_gpu(p, &p->gpus[rank], rank);
    for (int i = 0; i < input->group_count && !p->failed; i++)
        new_group(p, &p->groups[i], &p->in.groups[i]);
    if (!p->failed)
        new_threads(p);
    if (p->failed) {
        pl_free(p);
        return NULL;
    }
    return p;
}

void pl_free(pl_player *p)
{
    if (!p)
        return;
    for (int rank = 0; p->gpus && rank < p->in.rank_count; rank++) {
        gpu *g = &p->gpus[rank];
        for (int s = 0; g->streams && s < p->stream_count; s++)
            free(g->streams[s].items);
        free(g->streams);
        free(g->events);
        free(g->semaphores);
        free(g->alone_ns);
        free(g->mixes);
    }
    for (int i = 0; p->groups && i < p->in.group_count; i++) {
        free(p->groups[i].arrived);
        free(p->groups[i].entered);
        free(p->groups[i].on_stream);
    }
    for (int i = 0; p->threads && i < p->in.thread_count; i++)
        free(p->threads[i].device_targets);
    const void *owned[] = {p->in.ops, p->in.threads, p->in.kernels, p->in.groups, p->in.members, p->in.graphs,
                           p->in.specs, p->in.switching, p->in.boards, p->in.arrivals, p->gpus, p->groups,
                           p->threads, p->due_ns, p->heap, p->place, p->to_touch, p->slots, p->free_slots,
                           p->records.data, p->marks.data, p->samples.data, p->requests.data};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        free((void *)owned[i]);
    free(p);
}
