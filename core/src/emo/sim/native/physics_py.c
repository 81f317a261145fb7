/*
 * The physics for Python. Structures come as buffers of float64 in the order of their fields in
 * gpu_physics.h; results go into a writable buffer, or are one float.
 */
#include "sim_native.h"

#include "gpu_physics.h"

enum {
    SPEC_FIELDS = sizeof(gp_spec) / sizeof(double),
    KERNEL_FIELDS = sizeof(gp_kernel) / sizeof(double),
    SWITCHING_FIELDS = sizeof(gp_switching) / sizeof(double),
    ACTIVITY_FIELDS = 4, /* compute, memory, link, loaded */
    MAX_BUFFERS = 5,
    MAX_NUMBERS = 4,
};

/* The arguments of one call: first its buffers, then its numbers. */
typedef struct {
    Py_buffer views[MAX_BUFFERS];
    double *data[MAX_BUFFERS];
    Py_ssize_t length[MAX_BUFFERS]; /* in float64 */
    double number[MAX_NUMBERS];
    int held;
} arguments;

static void release(arguments *call)
{
    while (call->held > 0)
        PyBuffer_Release(&call->views[--call->held]);
}

static int hold(arguments *call, PyObject *object, int writable)
{
    Py_buffer *view = &call->views[call->held];
    if (PyObject_GetBuffer(object, view, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) < 0)
        return -1;
    int at = call->held++;
    if (view->len % (Py_ssize_t)sizeof(double) != 0 || (uintptr_t)view->buf % sizeof(double) != 0) {
        PyErr_Format(PyExc_ValueError, "argument %d: not a buffer of aligned float64", at + 1);
        return -1;
    }
    call->data[at] = view->buf;
    call->length[at] = view->len / (Py_ssize_t)sizeof(double);
    return 0;
}

/*
 * Takes arguments as the signature says, one letter each: `s` a gp_spec, `w` a gp_switching, `a` an
 * activity, `k` gp_kernels (one or more), `i` an input, `o` an output, `d` a number (these last).
 * Returns -1 with an exception set, and nothing held, if they are not so.
 */
static int take(arguments *call, const char *signature, PyObject *const *args, Py_ssize_t nargs)
{
    int numbers = 0;
    call->held = 0;
    if (nargs != (Py_ssize_t)strlen(signature)) {
        PyErr_Format(PyExc_TypeError, "expected %zu arguments, got %zd", strlen(signature), nargs);
        return -1;
    }
    for (Py_ssize_t i = 0; i < nargs; i++) {
        char kind = signature[i];
        if (kind == 'd') {
            call->number[numbers] = PyFloat_AsDouble(args[i]);
            if (call->number[numbers++] == -1.0 && PyErr_Occurred())
                goto fail;
            continue;
        }
        if (hold(call, args[i], kind == 'o') < 0)
            goto fail;
        Py_ssize_t length = call->length[i];
        int fits = kind == 's'   ? length == SPEC_FIELDS
                   : kind == 'w' ? length == SWITCHING_FIELDS
                   : kind == 'a' ? length == ACTIVITY_FIELDS
                   : kind == 'k' ? length % KERNEL_FIELDS == 0
                                 : 1;
        if (!fits) {
            PyErr_Format(PyExc_ValueError, "argument %zd: %zd numbers do not fit", i + 1, length);
            goto fail;
        }
    }
    return 0;
fail:
    release(call);
    return -1;
}

static int same_length(arguments *call, int a, int b)
{
    if (call->length[a] == call->length[b])
        return 0;
    PyErr_Format(PyExc_ValueError, "arguments %d and %d: lengths %zd and %zd differ", a + 1, b + 1, call->length[a],
                 call->length[b]);
    release(call);
    return -1;
}

static PyObject *number(arguments *call, double value)
{
    release(call);
    return PyFloat_FromDouble(value);
}

static PyObject *nothing(arguments *call)
{
    release(call);
    Py_RETURN_NONE;
}

static const gp_spec *spec_of(const arguments *call)
{
    return (const gp_spec *)call->data[0];
}

static gp_activity activity_from(const double *packed)
{
    return (gp_activity){packed[0], packed[1], packed[2], packed[3] != 0.0};
}

/* Pointers to the packed kernels of an argument, to be freed; NULL with an exception set. */
static const gp_kernel **kernels_of(arguments *call, int argument, int *count)
{
    Py_ssize_t total = call->length[argument] / KERNEL_FIELDS;
    const gp_kernel **kernels = total <= INT_MAX ? PyMem_New(const gp_kernel *, (size_t)total) : NULL;
    if (!kernels) {
        release(call);
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t i = 0; i < total; i++)
        kernels[i] = (const gp_kernel *)call->data[argument] + i;
    *count = (int)total;
    return kernels;
}

PyObject *sim_clock_on_grid_mhz(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    (void)self;
    arguments call;
    if (take(&call, "sd", args, nargs) < 0)
        return NULL;
    return number(&call, gp_clock_on_grid_mhz(spec_of(&call), call.number[0]));
}

PyObject *sim_voltage(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    (void)self;
    arguments call;
    if (take(&call, "sio", args, nargs) < 0 || same_length(&call, 1, 2) < 0)
        return NULL;
    for (Py_ssize_t i = 0; i < call.length[1]; i++)
        call.data[2][i] = gp_voltage(spec_of(&call), call.data[1][i]);
    return nothing(&call);
}

PyObject *sim_duration_ns(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    (void)self;
    arguments call;
    if (take(&call, "skio", args, nargs) < 0 || same_length(&call, 2, 3) < 0)
        return NULL;
    if (call.length[1] != KERNEL_FIELDS) {
        release(&call);
        PyErr_SetString(PyExc_ValueError, "argument 2: expected one kernel");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < call.length[2]; i++)
        call.data[3][i] = gp_duration_ns(spec_of(&call), (const gp_kernel *)call.data[1], call.data[2][i]);
    return nothing(&call);
}

PyObject *sim_contention(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    (void)self;
    arguments call;
    int count;
    if (take(&call, "skod", args, nargs) < 0)
        return NULL;
    const gp_kernel **kernels = kernels_of(&call, 1, &count);
    if (!kernels)
        return NULL;
    if (call.length[2] == count)
        gp_contention(spec_of(&call), kernels, count, call.number[0], call.data[2]);
    else
        PyErr_SetString(PyExc_ValueError, "argument 3: expected one slow-down per kernel");
    PyMem_Free(kernels);
    release(&call);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

PyObject *sim_activity(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    (void)self;
    arguments call;
    int count;
    if (take(&call, "skiod", args, nargs) < 0)
        return NULL;
    const gp_kernel **kernels = kernels_of(&call, 1, &count);
    if (!kernels)
        return NULL;
    if (call.length[2] == count && call.length[3] == ACTIVITY_FIELDS) {
        gp_activity sum = gp_activity_of(spec_of(&call), kernels, call.data[2], count, call.number[0]);
        call.data[3][0] = sum.compute;
        call.data[3][1] = sum.memory;
        call.data[3][2] = sum.link;
        call.data[3][3] = sum.loaded;
    } else {
        PyErr_SetString(PyExc_ValueError, "arguments 3 and 4: expected one slow-down per kernel and an activity");
    }
    PyMem_Free(kernels);
    release(&call);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

PyObject *sim_power_w(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    (void)self;
    arguments call;
    if (take(&call, "saiod", args, nargs) < 0 || same_length(&call, 2, 3) < 0)
        return NULL;
    gp_activity activity = activity_from(call.data[1]);
    for (Py_ssize_t i = 0; i < call.length[2]; i++)
        call.data[3][i] = gp_power_w(spec_of(&call), &activity, call.data[2][i], call.number[0]);
    return nothing(&call);
}

PyObject *sim_capped_clock_mhz(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    (void)self;
    arguments call;
    if (take(&call, "saddd", args, nargs) < 0)
        return NULL;
    gp_activity activity = activity_from(call.data[1]);
    return number(&call, gp_capped_clock_mhz(spec_of(&call), &activity, call.number[0], call.number[1],
                                             call.number[2]));
}

PyObject *sim_capped_clock_running_mhz(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    (void)self;
    arguments call;
    int count;
    if (take(&call, "skddd", args, nargs) < 0)
        return NULL;
    const gp_kernel **kernels = kernels_of(&call, 1, &count);
    if (!kernels)
        return NULL;
    double clock_mhz = gp_capped_clock_running_mhz(spec_of(&call), kernels, count, call.number[0], call.number[1],
                                                   call.number[2]);
    PyMem_Free(kernels);
    return number(&call, clock_mhz);
}

PyObject *sim_thermal_limit_w(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    (void)self;
    arguments call;
    if (take(&call, "sd", args, nargs) < 0)
        return NULL;
    return number(&call, gp_thermal_limit_w(spec_of(&call), call.number[0]));
}

PyObject *sim_temperature_after_c(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    (void)self;
    arguments call;
    if (take(&call, "sddd", args, nargs) < 0)
        return NULL;
    return number(&call, gp_temperature_after_c(spec_of(&call), call.number[0], call.number[1], call.number[2]));
}

PyObject *sim_switch_latency_ms(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    (void)self;
    arguments call;
    if (take(&call, "widd", args, nargs) < 0)
        return NULL;
    if (call.length[1] != 3) {
        release(&call);
        PyErr_SetString(PyExc_ValueError, "argument 2: expected three numbers in [0, 1)");
        return NULL;
    }
    return number(&call, gp_switch_latency_ms((const gp_switching *)call.data[0], call.number[0], call.number[1],
                                              call.data[1]));
}
