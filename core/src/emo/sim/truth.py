"""What really happened in a run: exact times, what everything waited for, energy.

Only tests and reports of the simulator look at this. The planner sees what
:mod:`emo.sim.capture` and :mod:`emo.sim.meter` emit.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from emo.sim.program import Code, Program

RECORD_DTYPE = np.dtype(
    [
        ("start_ns", np.int64),
        ("end_ns", np.int64),
        ("ready_ns", np.int64),
        ("joint_ns", np.int64),
        ("bytes", np.int64),
        ("rank", np.int32),
        ("lane", np.int32),
        ("code", np.int32),
        ("on_gpu", np.int32),
        ("op", np.int32),
        ("correlation", np.int32),
        ("kernel", np.int32),
        ("cause_kind", np.int32),
        ("cause", np.int32),
        ("sequence", np.int32),
    ]
)
"""``pl_record`` of native/player.h: one operation of a CPU thread or of a GPU stream."""

MARK_DTYPE = np.dtype(
    [
        ("time_ns", np.int64),
        ("energy_j", np.float64),
        ("units", np.float64),
        ("rank", np.int32),
        ("step", np.int32),
    ]
)
"""``pl_mark``: a rank passed the beginning of a step (or the end of the last)."""

SAMPLE_DTYPE = np.dtype(
    [
        ("time_ns", np.int64),
        ("energy_j", np.float64),
        ("clock_mhz", np.float64),
        ("temperature_c", np.float64),
        ("gpu", np.int32),
        ("unused", np.int32),
    ]
)
"""``pl_sample``: state of a GPU on a fixed grid of time."""

REQUEST_DTYPE = np.dtype(
    [
        ("arrival_ns", np.int64),
        ("taken_ns", np.int64),
        ("done_ns", np.int64),
        ("batch", np.int32),
        ("rank", np.int32),
    ]
)
"""``pl_request``: a request that was served, in a batch of so many."""


class Cause(IntEnum):
    """Why something started, or a blocked thread went on."""

    NONE = 0
    LAUNCH = 1
    STREAM = 2
    EVENT = 3
    GPU = 4
    QUEUE = 5
    THREAD = 6


@dataclass(frozen=True, slots=True)
class Meeting:
    """A collective as it really was: when its ranks arrived, and when the last one did."""

    group: int
    sequence: int
    arrived_ns: dict[int, int]  # by rank
    joint_ns: int
    ended_ns: dict[int, int]
    correlation: dict[int, int]

    @property
    def wait_ns(self) -> dict[int, int]:
        """By rank: from its arrival until it need not wait any more."""
        return {rank: max(self.joint_ns - at, 0) for rank, at in self.arrived_ns.items()}


def gpu_records(records: NDArray[np.void], rank: int, stream: int | None = None) -> NDArray[np.void]:
    """GPU operations of a rank (on one stream), in the order in which they ended."""
    chosen = (records["on_gpu"] == 1) & (records["rank"] == rank)
    if stream is not None:
        chosen &= records["lane"] == stream
    rows: NDArray[np.void] = records[chosen]
    return rows


def meetings(program: Program, records: NDArray[np.void]) -> list[Meeting]:
    """All collectives of a run, sorted by when their last member arrived."""
    rows = records[(records["on_gpu"] == 1) & (records["code"] == Code.COLLECTIVE)]
    groups = program.ops["a"][rows["op"]]
    found: dict[tuple[int, int], list[NDArray[np.void]]] = {}
    for row, group in zip(rows, groups.tolist(), strict=True):
        found.setdefault((group, int(row["sequence"])), []).append(row)
    result = [
        Meeting(
            group,
            sequence,
            {int(row["rank"]): int(row["start_ns"]) for row in members},
            max(int(row["joint_ns"]) for row in members),
            {int(row["rank"]): int(row["end_ns"]) for row in members},
            {int(row["rank"]): int(row["correlation"]) for row in members},
        )
        for (group, sequence), members in found.items()
    ]
    return sorted(result, key=lambda meeting: (meeting.joint_ns, meeting.group, meeting.sequence))


def busy_ns(records: NDArray[np.void], rank: int) -> int:
    """Time in which anything ran on the GPU of a rank, waiting in collectives included."""
    rows = np.sort(gpu_records(records, rank), order="start_ns")
    if not len(rows):
        return 0
    latest = np.maximum.accumulate(rows["end_ns"])
    before = np.r_[rows["start_ns"][0], latest[:-1]]
    return int(np.maximum(latest - np.maximum(rows["start_ns"], before), 0).sum())
