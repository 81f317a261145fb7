/* The extension module emo.sim._sim: the physics of the simulated GPUs, and the player. */
#include "sim_native.h"

/* A METH_FASTCALL function goes into the table as a PyCFunction; the step over void * silences the cast. */
#define FUNCTION(name) {#name, (PyCFunction)(void *)sim_##name, METH_FASTCALL, NULL}

static PyMethodDef methods[] = {
    FUNCTION(clock_on_grid_mhz),
    FUNCTION(voltage),
    FUNCTION(duration_ns),
    FUNCTION(contention),
    FUNCTION(activity),
    FUNCTION(power_w),
    FUNCTION(capped_clock_mhz),
    FUNCTION(capped_clock_running_mhz),
    FUNCTION(thermal_limit_w),
    FUNCTION(temperature_after_c),
    FUNCTION(switch_latency_ms),
    FUNCTION(player_new),
    FUNCTION(player_run),
    FUNCTION(player_request_clock),
    FUNCTION(player_limit_power),
    FUNCTION(player_state),
    FUNCTION(player_results),
    FUNCTION(player_progress),
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "emo.sim._sim",
    .m_doc = "Native parts of the simulator. Typed in _sim.pyi.",
    .m_size = 0,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__sim(void)
{
    return PyModuleDef_Init(&module);
}
