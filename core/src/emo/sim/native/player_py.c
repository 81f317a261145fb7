/* The player for Python: arrays in, arrays out, one capsule per game. */
#include "player.h"
#include "sim_native.h"

static const char CAPSULE[] = "emo.sim._sim.Player";

/* The input's arrays, in the order of the arguments of player_new. */
enum { OPS, THREADS, KERNELS, GROUPS, MEMBERS, GRAPHS, SPECS, SWITCHING, BOARDS, ARRIVALS, OPTIONS, INPUTS };

static const size_t ELEMENT[INPUTS] = {
    [OPS] = sizeof(pl_op),
    [THREADS] = sizeof(pl_thread_spec),
    [KERNELS] = sizeof(gp_kernel),
    [GROUPS] = sizeof(pl_group_spec),
    [MEMBERS] = sizeof(int32_t),
    [GRAPHS] = sizeof(pl_graph_spec),
    [SPECS] = sizeof(gp_spec),
    [SWITCHING] = sizeof(gp_switching),
    [BOARDS] = sizeof(pl_board),
    [ARRIVALS] = sizeof(int64_t),
    [OPTIONS] = sizeof(pl_options),
};

static void destroy(PyObject *capsule)
{
    pl_free(PyCapsule_GetPointer(capsule, CAPSULE));
}

static pl_player *player_of(PyObject *const *args, Py_ssize_t nargs, Py_ssize_t wanted)
{
    if (nargs != wanted) {
        PyErr_Format(PyExc_TypeError, "expected %zd arguments, got %zd", wanted, nargs);
        return NULL;
    }
    return PyCapsule_GetPointer(args[0], CAPSULE);
}

/* Number of a GPU of this player; -1 with an exception set. */
static int gpu_number(const pl_player *player, PyObject *object)
{
    long number = PyLong_AsLong(object);
    if (number == -1 && PyErr_Occurred())
        return -1;
    if (number < 0 || number >= pl_gpus(player)) {
        PyErr_Format(PyExc_IndexError, "there is no GPU %ld", number);
        return -1;
    }
    return (int)number;
}

static PyObject *new_player(const Py_buffer *views)
{
    int count[INPUTS];
    for (int i = 0; i < INPUTS; i++) {
        size_t length = (size_t)views[i].len;
        if (length % ELEMENT[i] != 0 || length / ELEMENT[i] > INT32_MAX / 2 || (uintptr_t)views[i].buf % 8 != 0)
            return PyErr_Format(PyExc_ValueError, "argument %d: %zd bytes do not fit", i + 1, views[i].len);
        count[i] = (int)(length / ELEMENT[i]);
    }
    if (count[OPTIONS] != 1 || count[SPECS] != count[BOARDS] || count[SWITCHING] != count[BOARDS])
        return PyErr_Format(PyExc_ValueError, "there must be one specification, switching and board per GPU");
    pl_input input = {
        .ops = views[OPS].buf, .threads = views[THREADS].buf, .kernels = views[KERNELS].buf,
        .groups = views[GROUPS].buf, .members = views[MEMBERS].buf, .graphs = views[GRAPHS].buf,
        .specs = views[SPECS].buf, .switching = views[SWITCHING].buf, .boards = views[BOARDS].buf,
        .arrivals = views[ARRIVALS].buf, .op_count = count[OPS], .thread_count = count[THREADS],
        .kernel_count = count[KERNELS], .group_count = count[GROUPS], .member_count = count[MEMBERS],
        .graph_count = count[GRAPHS], .rank_count = count[BOARDS], .arrival_count = count[ARRIVALS],
        .options = *(const pl_options *)views[OPTIONS].buf,
    };
    const char *wrong = pl_check(&input);
    if (wrong) {
        PyErr_SetString(PyExc_ValueError, wrong);
        return NULL;
    }
    pl_player *player = pl_new(&input);
    if (!player)
        return PyErr_NoMemory();
    PyObject *capsule = PyCapsule_New(player, CAPSULE, destroy);
    if (!capsule)
        pl_free(player);
    return capsule;
}

/* player_new(ops, threads, ..., options) -> player */
PyObject *sim_player_new(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    (void)self;
    if (nargs != INPUTS)
        return PyErr_Format(PyExc_TypeError, "expected %d arguments, got %zd", INPUTS, nargs);
    Py_buffer views[INPUTS];
    int held = 0;
    while (held < INPUTS && PyObject_GetBuffer(args[held], &views[held], PyBUF_SIMPLE) == 0)
        held++;
    PyObject *result = held == INPUTS ? new_player(views) : NULL;
    while (held > 0)
        PyBuffer_Release(&views[--held]);
    return result;
}

/* player_run(player, until_ns) -> status */
PyObject *sim_player_run(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    (void)self;
    pl_player *player = player_of(args, nargs, 2);
    if (!player)
        return NULL;
    long long until_ns = PyLong_AsLongLong(args[1]);
    if (until_ns == -1 && PyErr_Occurred())
        return NULL;
    int status;
    Py_BEGIN_ALLOW_THREADS
    status = pl_run(player, until_ns);
    Py_END_ALLOW_THREADS
    return status == PL_NO_MEMORY ? PyErr_NoMemory() : PyLong_FromLong(status);
}

/* player_request_clock(player, gpu, clock_mhz, settled) */
PyObject *sim_player_request_clock(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    (void)self;
    pl_player *player = player_of(args, nargs, 4);
    if (!player)
        return NULL;
    int gpu = gpu_number(player, args[1]);
    double clock_mhz = PyFloat_AsDouble(args[2]);
    int settled = PyObject_IsTrue(args[3]);
    if (gpu < 0 || settled < 0 || PyErr_Occurred())
        return NULL;
    pl_request_clock(player, gpu, clock_mhz, settled != 0);
    Py_RETURN_NONE;
}

/* player_limit_power(player, gpu, limit_w) */
PyObject *sim_player_limit_power(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    (void)self;
    pl_player *player = player_of(args, nargs, 3);
    if (!player)
        return NULL;
    int gpu = gpu_number(player, args[1]);
    double limit_w = PyFloat_AsDouble(args[2]);
    if (gpu < 0 || PyErr_Occurred())
        return NULL;
    pl_limit_power(player, gpu, limit_w);
    Py_RETURN_NONE;
}

/* player_state(player, gpu) -> (time_ns, energy_j, power_w, clock_mhz, wish_mhz, temperature_c, ...) */
PyObject *sim_player_state(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    (void)self;
    pl_player *player = player_of(args, nargs, 2);
    if (!player)
        return NULL;
    int gpu = gpu_number(player, args[1]);
    if (gpu < 0)
        return NULL;
    pl_state s = pl_gpu_state(player, gpu);
    return Py_BuildValue("(Ldddddddd)", (long long)s.time_ns, s.energy_j, s.power_w, s.clock_mhz, s.wish_mhz,
                         s.temperature_c, s.compute, s.memory, s.link);
}

static PyObject *as_bytes(const pl_array *array)
{
    return PyBytes_FromStringAndSize(array->data, (Py_ssize_t)(array->count * array->size));
}

/* player_results(player) -> (records, marks, samples, requests), each as bytes */
PyObject *sim_player_results(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    (void)self;
    pl_player *player = player_of(args, nargs, 1);
    if (!player)
        return NULL;
    return Py_BuildValue("(NNNN)", as_bytes(pl_records(player)), as_bytes(pl_marks(player)),
                         as_bytes(pl_samples(player)), as_bytes(pl_requests(player)));
}

/* player_progress(player) -> (now_ns, operations, stuck_thread, stuck_op) */
PyObject *sim_player_progress(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    (void)self;
    pl_player *player = player_of(args, nargs, 1);
    if (!player)
        return NULL;
    int op = -1;
    int thread = pl_stuck(player, &op);
    return Py_BuildValue("(LLii)", (long long)pl_now(player), (long long)pl_operations(player), thread, op);
}
