"""Makes small raw traces, one record per call; times in ns unless told otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np

from emo.trace.model import DeviceInfo, RawCategory, RawTrace, Thread

_COLUMNS: dict[str, tuple[type[np.signedinteger[Any]], int]] = {
    "category": (np.int8, 0),
    "start_ns": (np.int64, 0),
    "dur_ns": (np.int64, 0),
    "device": (np.int32, -1),
    "stream": (np.int32, -1),
    "thread": (np.int32, -1),
    "correlation": (np.int64, -1),
    "name_id": (np.int32, 0),
    "bytes": (np.int64, -1),
    "collective_group": (np.int32, -1),
    "collective_seq": (np.int64, -1),
    "graph_node": (np.int64, -1),
    "shape_hash": (np.int64, 0),
    "sync_correlation": (np.int64, -1),
    "sync_stream": (np.int32, -1),
}


class RawBuilder:
    """Records in the order in which they are added."""

    def __init__(self) -> None:
        self.rows: list[dict[str, int]] = []
        self.names: dict[str, int] = {}

    def add(self, category: RawCategory, name: str, start: int, dur: int, **columns: int) -> RawBuilder:
        self.rows.append(
            {
                "category": category,
                "name_id": self.names.setdefault(name, len(self.names)),
                "start_ns": start,
                "dur_ns": dur,
                **columns,
            }
        )
        return self

    def call(self, name: str, start: int, dur: int, correlation: int = -1, thread: int = 0) -> RawBuilder:
        return self.add(RawCategory.API, name, start, dur, correlation=correlation, thread=thread)

    def kernel(
        self, name: str, start: int, dur: int, correlation: int = -1, stream: int = 7, **columns: int
    ) -> RawBuilder:
        columns.setdefault("device", 0)
        return self.add(
            RawCategory.KERNEL, name, start, dur, correlation=correlation, stream=stream, **columns
        )

    def launch(
        self, name: str, at: int, start: int, dur: int, correlation: int, *, thread: int = 0, stream: int = 7
    ) -> RawBuilder:
        """A kernel and its launch, which takes 4 us."""
        self.call("cudaLaunchKernel", at, 4_000, correlation, thread)
        return self.kernel(name, start, dur, correlation, stream)

    def mark(self, name: str, start: int, dur: int, thread: int = 0) -> RawBuilder:
        return self.add(RawCategory.ANNOTATION, name, start, dur, thread=thread)

    def label(self, name: str, start: int, dur: int, thread: int = 0) -> RawBuilder:
        return self.add(RawCategory.LABEL, name, start, dur, thread=thread)

    def sync(self, correlation: int, **columns: int) -> RawBuilder:
        """A synchronisation record about the call with ``correlation``."""
        return self.add(RawCategory.SYNC, "sync record", 0, 0, correlation=correlation, **columns)

    def build(self, devices: int = 1) -> RawTrace:
        columns: dict[str, Any] = {
            name: np.array([row.get(name, default) for row in self.rows], dtype=dtype)
            for name, (dtype, default) in _COLUMNS.items()
        }
        count = max((row.get("thread", -1) for row in self.rows), default=-1) + 1
        return RawTrace(
            path="made by a test",
            format="kineto",
            **columns,
            names=list(self.names),
            threads=[Thread(1, i, 0, 0) for i in range(count)],
            groups=[],
            devices=[DeviceInfo(i, "GPU") for i in range(devices)],
        )
