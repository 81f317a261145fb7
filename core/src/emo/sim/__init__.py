"""Simulated GPUs and workloads: the ground truth that the planner does not know.

Its physics and its stream, queue and collective semantics are its own: nothing is shared with
:mod:`emo.graph`, :mod:`emo.models` or :mod:`emo.plan`, and they never import it.
"""
