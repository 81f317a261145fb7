/*
 * Functions of the extension module emo._native, one group per file.
 *
 * To add one: declare it here, list it in module.c, describe it in _native.pyi.
 */
#ifndef EMO_NATIVE_H
#define EMO_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* kineto_scan.c: JSON to columns */
PyObject *emo_kineto_new(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *emo_kineto_feed(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *emo_kineto_finish(PyObject *self, PyObject *const *args, Py_ssize_t nargs);

/* replay.c: passes over the dependency graph */
PyObject *emo_check_csr(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *emo_replay(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *emo_latest(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *emo_toposort(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *emo_accumulate(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *emo_longest_increasing(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *emo_trace_back(PyObject *self, PyObject *const *args, Py_ssize_t nargs);

#endif
