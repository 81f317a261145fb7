"""Sets of instants as sorted, disjoint intervals: arrays ``start_ns`` and ``end_ns`` of equal length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from emo.trace.model import I64


@dataclass(frozen=True, slots=True)
class Intervals:
    """Disjoint, sorted, non-empty half-open intervals."""

    start_ns: I64
    end_ns: I64

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def total_ns(self) -> int:
        """Summed length."""
        return int((self.end_ns - self.start_ns).sum())

    def within(self, low_ns: int, high_ns: int) -> Intervals:
        """The part inside ``[low_ns, high_ns)``."""
        start, end = np.maximum(self.start_ns, low_ns), np.minimum(self.end_ns, high_ns)
        keep = end > start
        return Intervals(start[keep], end[keep])

    def complement(self, low_ns: int, high_ns: int) -> Intervals:
        """What is left of ``[low_ns, high_ns)``."""
        inside = self.within(low_ns, high_ns)
        start = np.r_[np.int64(low_ns), inside.end_ns]
        end = np.r_[inside.start_ns, np.int64(high_ns)]
        keep = end > start
        return Intervals(start[keep], end[keep])

    def minus(self, other: Intervals) -> Intervals:
        """The part of this set that is not in ``other``."""
        if len(self) == 0 or len(other) == 0:
            return self
        low = int(min(self.start_ns[0], other.start_ns[0]))
        high = int(max(self.end_ns[-1], other.end_ns[-1]))
        # a \\ b = complement of (complement of a, and b)
        outside = self.complement(low, high)
        return union(
            np.concatenate([outside.start_ns, other.start_ns]), np.concatenate([outside.end_ns, other.end_ns])
        ).complement(low, high)


def union(start_ns: I64, end_ns: I64) -> Intervals:
    """Merge any intervals (unsorted, overlapping, empty) into a disjoint set."""
    keep = end_ns > start_ns
    start, end = start_ns[keep], end_ns[keep]
    if len(start) == 0:
        return Intervals(np.zeros(0, np.int64), np.zeros(0, np.int64))
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    begins = np.r_[True, start[1:] > end[:-1]]
    stops = np.r_[begins[1:], True]
    return Intervals(start[begins], end[stops])
