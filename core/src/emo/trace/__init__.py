"""Trace files to columns: readers, validation, iterations."""
