/*
 * Functions of the extension module emo.sim._sim, one group per file.
 *
 * To add one: declare it here, list it in module.c, describe it in _sim.pyi.
 */
#ifndef EMO_SIM_NATIVE_H
#define EMO_SIM_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* physics_py.c: the physics for Python, on packed float64 */
PyObject *sim_clock_on_grid_mhz(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *sim_voltage(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *sim_duration_ns(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *sim_contention(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *sim_activity(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *sim_power_w(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *sim_capped_clock_mhz(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *sim_capped_clock_running_mhz(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *sim_thermal_limit_w(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *sim_temperature_after_c(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *sim_switch_latency_ms(PyObject *self, PyObject *const *args, Py_ssize_t nargs);

/* player_py.c: the player for Python; layouts in player.h and emo.sim.program */
PyObject *sim_player_new(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *sim_player_run(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *sim_player_request_clock(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *sim_player_limit_power(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *sim_player_state(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *sim_player_results(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *sim_player_progress(PyObject *self, PyObject *const *args, Py_ssize_t nargs);

#endif
