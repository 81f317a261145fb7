/* The extension module emo._native: what is too slow in Python, and nothing else. */
#include "native.h"

/* A METH_FASTCALL function goes into the table as a PyCFunction; the step over void * silences the cast. */
#define FUNCTION(name) {#name, (PyCFunction)(void *)emo_##name, METH_FASTCALL, NULL}

static PyMethodDef methods[] = {
    FUNCTION(kineto_new),
    FUNCTION(kineto_feed),
    FUNCTION(kineto_finish),
    FUNCTION(check_csr),
    FUNCTION(replay),
    FUNCTION(latest),
    FUNCTION(toposort),
    FUNCTION(trace_back),
    FUNCTION(longest_increasing),
    FUNCTION(accumulate),
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "emo._native",
    .m_doc = "Native parts of EMO: the Kineto scanner and the replay passes. Typed in _native.pyi.",
    .m_size = 0,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&module);
}
