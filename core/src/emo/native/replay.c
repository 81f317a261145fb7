/*
 * The sequential passes over the dependency graph.
 *
 * Points (instants: an op's start, its end, a mark, ...) are numbered in a
 * topological order, so every pass is one loop over memory in order. Edges are
 * stored by their head: the in-edges of point v are [row[v], row[v + 1]).
 *
 *     t[v] = max(release[v], max over in-edges (t[src] + lag + scaled * scale[owner])) + delay[v]
 *
 * Times are int64 nanoseconds relative to the window's opening. The arithmetic is
 * integer but for the one product, which is rounded to the nearest nanosecond: so
 * scale 1 is exact, and a larger scale never gives an earlier time.
 *
 * emo.graph.replay holds the readable twin of each function; tests hold them equal.
 */
#include "native.h"

#include <limits.h>
#include <stdint.h>
#include <string.h>

/* A borrowed, contiguous array of a fixed item size. */
typedef struct {
    Py_buffer view;
    Py_ssize_t n;
} Array;

static int array_get(PyObject *object, Py_ssize_t itemsize, int writable, const char *name, Array *out)
{
    int flags = PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(object, &out->view, flags) < 0)
        return -1;
    if (out->view.itemsize != itemsize) {
        PyErr_Format(PyExc_TypeError, "%s: item size is %zd bytes, expected %zd", name, out->view.itemsize, itemsize);
        PyBuffer_Release(&out->view);
        return -1;
    }
    out->n = out->view.len / itemsize;
    return 0;
}

static void arrays_release(Array *arrays, int count)
{
    for (int i = 0; i < count; i++)
        PyBuffer_Release(&arrays[i].view);
}

typedef struct {
    const char *name;
    Py_ssize_t itemsize;
    int writable;
} Spec;

static int arrays_get(PyObject *const *args, Py_ssize_t nargs, const Spec *specs, int count, Array *arrays)
{
    if (nargs != count) {
        PyErr_Format(PyExc_TypeError, "expected %d arrays, got %zd", count, nargs);
        return -1;
    }
    for (int i = 0; i < count; i++) {
        if (array_get(args[i], specs[i].itemsize, specs[i].writable, specs[i].name, &arrays[i]) < 0) {
            arrays_release(arrays, i);
            return -1;
        }
    }
    return 0;
}

static int fail(const char *what)
{
    PyErr_SetString(PyExc_ValueError, what);
    return -1;
}

static inline int64_t edge_weight(int64_t lag, int64_t scaled, double factor)
{
    return factor == 1.0 ? lag + scaled : lag + (int64_t)((double)scaled * factor + 0.5);
}

/* Rows must be a CSR over n points, and every edge must come from an earlier point. */
static int check_csr(const int64_t *row, Py_ssize_t n, const int32_t *src, const int32_t *owner, Py_ssize_t m, Py_ssize_t owners)
{
    if (row[0] != 0 || row[n] != m)
        return fail("row does not span the edges");
    for (Py_ssize_t v = 0; v < n; v++) {
        if (row[v + 1] < row[v])
            return fail("row decreases");
        for (int64_t e = row[v]; e < row[v + 1]; e++) {
            if (src[e] < 0 || src[e] >= v)
                return fail("an edge does not come from an earlier point");
            if (owner[e] < 0 || owner[e] >= owners)
                return fail("an edge's owner is outside the scale vector");
        }
    }
    return 0;
}

/* check_csr(row, src, owner, owners_as_array) -> None: called once per graph, so that the passes need not. */
PyObject *emo_check_csr(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    (void)self;
    static const Spec specs[] = {{"row", 8, 0}, {"src", 4, 0}, {"owner", 4, 0}, {"scale", 8, 0}};
    Array a[4];
    if (arrays_get(args, nargs, specs, 4, a) < 0)
        return NULL;
    int rc = a[0].n < 1 || a[1].n != a[2].n
                 ? fail("arrays differ in length")
                 : check_csr(a[0].view.buf, a[0].n - 1, a[1].view.buf, a[2].view.buf, a[1].n, a[3].n);
    arrays_release(a, 4);
    if (rc < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* replay(row, src, lag, scaled, owner, scale, release, delay, out_time, out_edge) -> makespan
 *
 * out_edge[v] is the in-edge that decided t[v] (the first of equals), or -1 if the release did. */
PyObject *emo_replay(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    (void)self;
    static const Spec specs[] = {{"row", 8, 0},     {"src", 4, 0},   {"lag", 8, 0},      {"scaled", 8, 0},
                                 {"owner", 4, 0},   {"scale", 8, 0}, {"release", 8, 0},  {"delay", 8, 0},
                                 {"out_time", 8, 1}, {"out_edge", 4, 1}};
    Array a[10];
    if (arrays_get(args, nargs, specs, 10, a) < 0)
        return NULL;
    Py_ssize_t n = a[6].n, m = a[1].n;
    if (a[0].n != n + 1 || a[2].n != m || a[3].n != m || a[4].n != m || a[7].n != n || a[8].n != n || a[9].n != n || m > INT_MAX) {
        arrays_release(a, 10);
        fail("arrays differ in length");
        return NULL;
    }
    const int64_t *row = a[0].view.buf, *lag = a[2].view.buf, *scaled = a[3].view.buf;
    const int32_t *src = a[1].view.buf, *owner = a[4].view.buf;
    const double *scale = a[5].view.buf;
    const int64_t *release = a[6].view.buf, *delay = a[7].view.buf;
    int64_t *out = a[8].view.buf;
    int32_t *decided = a[9].view.buf;
    int64_t makespan = 0;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t v = 0; v < n; v++) {
        int64_t t = release[v];
        int32_t by = -1;
        for (int64_t e = row[v]; e < row[v + 1]; e++) {
            int64_t candidate = out[src[e]] + edge_weight(lag[e], scaled[e], scale[owner[e]]);
            if (candidate > t) {
                t = candidate;
                by = (int32_t)e;
            }
        }
        t += delay[v];
        out[v] = t;
        decided[v] = by;
        if (t > makespan)
            makespan = t;
    }
    Py_END_ALLOW_THREADS
    arrays_release(a, 10);
    return PyLong_FromLongLong(makespan);
}

/* latest(row, src, lag, scaled, owner, scale, delay, inout_latest) -> None
 *
 * On entry inout_latest holds each point's own deadline; on return the latest time at which
 * the point may happen so that no deadline is missed. */
PyObject *emo_latest(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    (void)self;
    static const Spec specs[] = {{"row", 8, 0},   {"src", 4, 0},   {"lag", 8, 0},   {"scaled", 8, 0},
                                 {"owner", 4, 0}, {"scale", 8, 0}, {"delay", 8, 0}, {"latest", 8, 1}};
    Array a[8];
    if (arrays_get(args, nargs, specs, 8, a) < 0)
        return NULL;
    Py_ssize_t n = a[6].n, m = a[1].n;
    if (a[0].n != n + 1 || a[2].n != m || a[3].n != m || a[4].n != m || a[7].n != n) {
        arrays_release(a, 8);
        fail("arrays differ in length");
        return NULL;
    }
    const int64_t *row = a[0].view.buf, *lag = a[2].view.buf, *scaled = a[3].view.buf, *delay = a[6].view.buf;
    const int32_t *src = a[1].view.buf, *owner = a[4].view.buf;
    const double *scale = a[5].view.buf;
    int64_t *latest = a[7].view.buf;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t v = n - 1; v >= 0; v--) {
        int64_t own = latest[v] - delay[v];
        for (int64_t e = row[v]; e < row[v + 1]; e++) {
            int64_t bound = own - edge_weight(lag[e], scaled[e], scale[owner[e]]);
            if (bound < latest[src[e]])
                latest[src[e]] = bound;
        }
    }
    Py_END_ALLOW_THREADS
    arrays_release(a, 8);
    Py_RETURN_NONE;
}

/* toposort(row, src, hint, out_order) -> number of points placed
 *
 * row/src: in-edges by head, points in their original numbering. Points are placed in the order
 * of `hint`, each right after those of its predecessors that are not placed yet, so the result
 * follows the hint wherever the edges allow it. Points on a cycle are left out: the return value
 * is then smaller than n, and out_order beyond it holds the points left. */
PyObject *emo_toposort(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    (void)self;
    static const Spec specs[] = {{"row", 8, 0}, {"src", 4, 0}, {"hint", 4, 0}, {"out_order", 4, 1}};
    Array a[4];
    if (arrays_get(args, nargs, specs, 4, a) < 0)
        return NULL;
    Py_ssize_t n = a[2].n, placed = 0;
    const int64_t *row = a[0].view.buf;
    const int32_t *src = a[1].view.buf, *hint = a[2].view.buf;
    int32_t *order = a[3].view.buf;
    /* 0 new, 1 on the stack, 2 placed, 3 on a cycle (or behind one) */
    unsigned char *state = PyMem_RawCalloc((size_t)n + 1, 1);
    int32_t *stack = PyMem_RawMalloc(((size_t)n + 1) * sizeof *stack);
    int64_t *next = PyMem_RawMalloc(((size_t)n + 1) * sizeof *next);
    if (!state || !stack || !next || a[0].n != n + 1 || a[3].n != n) {
        PyMem_RawFree(state);
        PyMem_RawFree(stack);
        PyMem_RawFree(next);
        arrays_release(a, 4);
        if (!state || !stack || !next)
            return PyErr_NoMemory();
        fail("arrays differ in length");
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < n; i++) {
        Py_ssize_t depth = 0;
        if (state[hint[i]])
            continue;
        stack[0] = hint[i];
        next[0] = row[hint[i]];
        state[hint[i]] = 1;
        while (depth >= 0) {
            int32_t v = stack[depth];
            if (next[depth] < row[v + 1]) {
                int32_t u = src[next[depth]++];
                if (state[u] == 0) {
                    depth++;
                    stack[depth] = u;
                    next[depth] = row[u];
                    state[u] = 1;
                } else if (state[u] == 1 || state[u] == 3) {
                    state[v] = 3; /* v waits for something that waits for v, or for such a point */
                }
                continue;
            }
            if (state[v] == 1) {
                state[v] = 2;
                order[placed++] = v;
            }
            depth--;
            if (depth >= 0 && state[v] == 3)
                state[stack[depth]] = 3;
        }
    }
    Py_ssize_t rest = placed;
    for (Py_ssize_t i = 0; i < n; i++)
        if (state[hint[i]] != 2)
            order[rest++] = hint[i];
    Py_END_ALLOW_THREADS
    PyMem_RawFree(state);
    PyMem_RawFree(stack);
    PyMem_RawFree(next);
    arrays_release(a, 4);
    return PyLong_FromSsize_t(placed);
}

/* trace_back(src, decided_by, point, out_points) -> count
 *
 * Follows the deciding edges from `point` to the point that no edge decided; writes the points passed,
 * first the given one. */
PyObject *emo_trace_back(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    (void)self;
    if (nargs != 4) {
        PyErr_SetString(PyExc_TypeError, "expected (src, decided_by, point, out_points)");
        return NULL;
    }
    static const Spec specs[] = {{"src", 4, 0}, {"decided_by", 4, 0}, {"out_points", 4, 1}};
    PyObject *const buffers[] = {args[0], args[1], args[3]};
    long point = PyLong_AsLong(args[2]);
    if (point == -1 && PyErr_Occurred())
        return NULL;
    Array a[3];
    if (arrays_get(buffers, 3, specs, 3, a) < 0)
        return NULL;
    const int32_t *src = a[0].view.buf, *decided = a[1].view.buf;
    int32_t *out = a[2].view.buf;
    Py_ssize_t n = a[1].n, m = a[0].n, count = 0;
    int bad = point < 0 || point >= n || a[2].n < n;
    while (!bad) {
        out[count++] = (int32_t)point;
        int32_t edge = decided[point];
        if (edge < 0)
            break;
        bad = edge >= m || src[edge] >= point || src[edge] < 0;
        point = bad ? -1 : src[edge];
    }
    arrays_release(a, 3);
    if (bad) {
        fail("a deciding edge does not come from an earlier point");
        return NULL;
    }
    return PyLong_FromSsize_t(count);
}

/* accumulate(src, decided_by, value, reset, out) -> None
 *
 * Sums `value` along the chain of deciding edges: out[v] = value[v] + out[tail of v's deciding edge],
 * begun anew after points with reset[v] != 0 (whose own out is 0). */
PyObject *emo_accumulate(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    (void)self;
    static const Spec specs[] = {
        {"src", 4, 0}, {"decided_by", 4, 0}, {"value", 8, 0}, {"reset", 1, 0}, {"out", 8, 1}};
    Array a[5];
    if (arrays_get(args, nargs, specs, 5, a) < 0)
        return NULL;
    const int32_t *src = a[0].view.buf, *decided = a[1].view.buf;
    const int64_t *value = a[2].view.buf;
    const unsigned char *reset = a[3].view.buf;
    int64_t *out = a[4].view.buf;
    Py_ssize_t n = a[1].n;
    int bad = a[2].n != n || a[3].n != n || a[4].n != n;
    for (Py_ssize_t v = 0; v < n && !bad; v++) {
        int32_t edge = decided[v];
        bad = edge >= a[0].n || (edge >= 0 && (src[edge] < 0 || src[edge] >= v));
        if (!bad)
            out[v] = reset[v] ? 0 : value[v] + (edge >= 0 ? out[src[edge]] : 0);
    }
    arrays_release(a, 5);
    if (bad) {
        fail("arrays differ in length, or a deciding edge does not come from an earlier point");
        return NULL;
    }
    Py_RETURN_NONE;
}

/* longest_increasing(values, out_keep) -> length
 *
 * Marks the members of a longest strictly increasing subsequence (patience sorting, n log n). */
PyObject *emo_longest_increasing(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    (void)self;
    static const Spec specs[] = {{"values", 8, 0}, {"out_keep", 1, 1}};
    Array a[2];
    if (arrays_get(args, nargs, specs, 2, a) < 0)
        return NULL;
    Py_ssize_t n = a[0].n, length = 0;
    const int64_t *values = a[0].view.buf;
    unsigned char *keep = a[1].view.buf;
    /* top[k]: position of the least value that ends an increasing run of k + 1; before[i]: the one before i in its run */
    Py_ssize_t *top = PyMem_RawMalloc(((size_t)n + 1) * sizeof *top);
    Py_ssize_t *before = PyMem_RawMalloc(((size_t)n + 1) * sizeof *before);
    if (!top || !before || a[1].n != n) {
        int lengths_differ = top && before;
        PyMem_RawFree(top);
        PyMem_RawFree(before);
        arrays_release(a, 2);
        if (!lengths_differ)
            return PyErr_NoMemory();
        fail("arrays differ in length");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        Py_ssize_t low = 0, high = length;
        while (low < high) {
            Py_ssize_t middle = low + (high - low) / 2;
            if (values[top[middle]] < values[i])
                low = middle + 1;
            else
                high = middle;
        }
        before[i] = low ? top[low - 1] : -1;
        top[low] = i;
        if (low == length)
            length++;
    }
    memset(keep, 0, (size_t)n);
    for (Py_ssize_t i = length ? top[length - 1] : -1; i >= 0; i = before[i])
        keep[i] = 1;
    PyMem_RawFree(top);
    PyMem_RawFree(before);
    arrays_release(a, 2);
    return PyLong_FromSsize_t(length);
}
