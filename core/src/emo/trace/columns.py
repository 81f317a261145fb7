"""Small vectorised operations on columns that several modules of this package share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from emo.trace.model import I8, I64

Mask = NDArray[np.bool_]
T = TypeVar("T", bound=np.generic)


def one_of(values: I8, wanted: Sequence[int]) -> Mask:
    """Which of ``values`` (codes from 0 to 127) are in ``wanted``."""
    table = np.zeros(128, dtype=bool)
    table[list(wanted)] = True
    return table[values]


def row_of(keys: I64, rows: I64, wanted: I64) -> I64:
    """For each of ``wanted`` the row with that key; -1 for none and for negative values.

    ``keys`` are non-negative and unique, ``rows`` belong to them one by one.
    """
    found = np.full(len(wanted), -1, dtype=np.int64)
    if not len(keys) or not len(wanted):
        return found
    top = int(keys.max())
    if top < 8 * len(keys) + (1 << 20):  # dense ids: a table is several times faster than a search
        table = np.full(top + 1, -1, dtype=np.int64)
        table[keys] = rows
        inside = (wanted >= 0) & (wanted <= top)
        found[inside] = table[wanted[inside]]
        return found
    order = np.argsort(keys)
    position = np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)
    hit = (keys[order[position]] == wanted) & (wanted >= 0)
    found[hit] = rows[order[position[hit]]]
    return found


def distinct(values: NDArray[T]) -> NDArray[T]:
    """The different values, sorted. ``np.unique`` does the same, but imports ``numpy.ma`` first (50 ms)."""
    ordered = np.sort(values)
    first = np.ones(len(ordered), dtype=bool)
    first[1:] = ordered[1:] != ordered[:-1]
    return ordered[first]


def runs(order: I64, key: NDArray[np.integer]) -> Iterator[I64]:
    """``order`` cut where ``key[order]`` changes; nothing for an empty ``order``."""
    if len(order):
        yield from np.split(order, np.flatnonzero(np.diff(key[order])) + 1)


def lane_of(device: NDArray[np.int32], stream: NDArray[np.int32]) -> I64:
    """One number per (device, stream)."""
    return device.astype(np.int64) << 32 | (stream.astype(np.int64) & 0xFFFFFFFF)


def shape_hash(*dimensions: I64) -> I64:
    """One number per launch shape (grid, block), never 0; equal shapes give equal numbers anywhere."""
    mixed = np.full(len(dimensions[0]), 0x9E3779B97F4A7C15, dtype=np.uint64)
    for dimension in dimensions:
        # FNV-1a over whole words, then a shift, so that small numbers reach the high bits and back.
        mixed = (mixed ^ dimension.astype(np.uint64)) * np.uint64(0x100000001B3)
        mixed ^= mixed >> np.uint64(29)
    result = mixed.astype(np.int64)
    return np.where(result == 0, 1, result)
