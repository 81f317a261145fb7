"""Makes the traces of a small made-up training job: two ranks, one with a slow input pipeline.

Every step: load a batch (rank 1 takes longer), forward and backward on stream 7, an all-reduce on
stream 20 that waits for the gradients, the optimizer, and reading the loss back. Synchronisation
records say what waits for what (in torch.profiler: enable_cuda_sync_events). The GPU of rank 0
is done early and spins in the all-reduce until rank 1 arrives: that is the slack to find.

The files have the format of the PyTorch profiler (Kineto). The job is played, not drawn: the CPU
launches ahead, streams run in order, the collective begins when both ranks are there.
"""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MS, US = 1_000_000, 1_000
COMPUTE, COMMUNICATION = 7, 20
BASE_NS = 1_750_000_000_000_000_000

FORWARD = [("ampere_sgemm_128x64_tn", 260 * US), ("vectorized_elementwise_kernel<4, relu>", 60 * US)] * 12
BACKWARD = [
    ("ampere_sgemm_128x64_nt", 300 * US),
    ("vectorized_elementwise_kernel<4, relu_backward>", 70 * US),
] * 20
OPTIMIZER = [("multi_tensor_apply_kernel<adam>", 180 * US)] * 4


@dataclass
class Rank:
    """One process and its GPU: a CPU clock, the time at which each stream is free, the events so far."""

    rank: int
    load_ns: int
    random: random.Random
    cpu_ns: int = 0
    free_ns: dict[int, int] = field(default_factory=lambda: {COMPUTE: 0, COMMUNICATION: 0})
    events: list[dict[str, Any]] = field(default_factory=list)
    correlation: int = 0

    def vary(self, nanoseconds: int) -> int:
        """A duration with two per cent of noise."""
        return round(nanoseconds * self.random.gauss(1.0, 0.02))

    def cpu(self, nanoseconds: int) -> None:
        """Work on the CPU that is no API call."""
        self.cpu_ns += self.vary(nanoseconds)

    def event(self, category: str, name: str, start_ns: int, end_ns: int, track: int, **args: Any) -> None:
        """Add a complete event; times in microseconds as Kineto writes them."""
        process = self.rank if category.startswith(("kernel", "gpu", "cuda_sync")) else 1000 + self.rank
        self.events.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": process,
                "tid": track,
                "ts": start_ns / 1000,
                "dur": (end_ns - start_ns) / 1000,
                "args": args,
            }
        )

    def call(self, name: str, duration_ns: int = 4 * US) -> int:
        """An API call; returns its correlation id."""
        self.correlation += 1
        begin = self.cpu_ns
        self.cpu_ns += self.vary(duration_ns)
        self.event("cuda_runtime", name, begin, self.cpu_ns, 1000 + self.rank, correlation=self.correlation)
        return self.correlation

    def launch(self, name: str, duration_ns: int, stream: int = COMPUTE) -> None:
        """Launch a kernel; it runs when the stream is free."""
        begin = self.cpu_ns
        correlation = self.call("cudaLaunchKernel")
        start = max(begin + 5 * US, self.free_ns[stream] + US)
        self.free_ns[stream] = start + self.vary(duration_ns)
        self.event(
            "kernel", name, start, self.free_ns[stream], stream,
            correlation=correlation, device=self.rank, stream=stream, grid=[80, 1, 1], block=[256, 1, 1],
        )  # fmt: skip

    def wait_for_stream(self, waiting: int, stream: int) -> None:
        """Record an event on a stream and make another wait for it, with the record that says so."""
        recorded = self.call("cudaEventRecord", US)
        begin = self.cpu_ns
        correlation = self.call("cudaStreamWaitEvent", US)
        self.event(
            "cuda_sync", "Stream Wait Event", begin, self.cpu_ns, waiting,
            cuda_sync_kind="Stream Wait Event", stream=waiting, wait_on_stream=stream,
            wait_on_cuda_event_record_corr_id=recorded, correlation=correlation, device=self.rank,
        )  # fmt: skip

    def read_back(self) -> None:
        """Copy the loss to pageable memory: the call returns when everything before it is done."""
        begin = self.cpu_ns
        self.correlation += 1
        start = max(begin + 5 * US, self.free_ns[COMPUTE] + US)
        self.free_ns[COMPUTE] = start + 2 * US
        self.cpu_ns = self.free_ns[COMPUTE] + 6 * US
        self.event(
            "cuda_runtime",
            "cudaMemcpyAsync",
            begin,
            self.cpu_ns,
            1000 + self.rank,
            correlation=self.correlation,
        )
        self.event(
            "gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", start, start + 2 * US, COMPUTE,
            correlation=self.correlation, device=self.rank, stream=COMPUTE, bytes=4,
        )  # fmt: skip

    def document(self, world_size: int) -> dict[str, Any]:
        """The whole file."""
        return {
            "schemaVersion": 1,
            "deviceProperties": [{"id": self.rank, "name": "NVIDIA A100-SXM4-80GB"}],
            "distributedInfo": {"backend": "nccl", "rank": self.rank, "world_size": world_size},
            "baseTimeNanoseconds": BASE_NS,
            "traceEvents": self.events,
        }


def all_reduce(ranks: list[Rank], sequence: int) -> None:
    """Each rank waits for its gradients, then all run the collective together, then go on."""
    arrivals = []
    for rank in ranks:
        rank.wait_for_stream(COMMUNICATION, COMPUTE)
        begin = rank.cpu_ns
        rank.call("cudaLaunchKernel")
        arrivals.append(
            (max(begin + 5 * US, rank.free_ns[COMPUTE] + US, rank.free_ns[COMMUNICATION]), rank.correlation)
        )
    done = max(start for start, _ in arrivals) + ranks[0].vary(900 * US)
    for rank, (start, correlation) in zip(ranks, arrivals, strict=True):
        end = done + rank.random.randint(0, 2 * US)
        rank.event(
            "kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", start, end, COMMUNICATION,
            correlation=correlation, device=rank.rank, stream=COMMUNICATION, **{
                "Collective name": "allreduce", "Process Group Name": "0", "Group size": len(ranks),
                "Process Group Ranks": str([r.rank for r in ranks]), "Seq": sequence,
                "In msg nelems": 4_000_000, "dtype": "Float",
            },
        )  # fmt: skip
        rank.free_ns[COMMUNICATION] = end
        rank.wait_for_stream(COMPUTE, COMMUNICATION)
        rank.free_ns[COMPUTE] = max(rank.free_ns[COMPUTE], end)


def make_job(folder: Path, steps: int = 14, seed: int = 1) -> list[Path]:
    """Play the job and write one file per rank; returns the paths."""
    ranks = [Rank(0, 1 * MS, random.Random(seed)), Rank(1, 4 * MS, random.Random(seed + 1))]
    for step in range(steps):
        begins = [rank.cpu_ns for rank in ranks]
        for rank in ranks:
            rank.cpu(rank.load_ns)
            for name, duration_ns in FORWARD + BACKWARD:
                rank.cpu(6 * US)
                rank.launch(name, duration_ns)
        all_reduce(ranks, step)
        for rank, begin in zip(ranks, begins, strict=True):
            for name, duration_ns in OPTIMIZER:
                rank.cpu(6 * US)
                rank.launch(name, duration_ns)
            rank.read_back()
            rank.cpu(50 * US)
            rank.event("user_annotation", f"ProfilerStep#{step}", begin, rank.cpu_ns, 1000 + rank.rank)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for rank in ranks:
        path = folder / f"rank{rank.rank}.json.gz"
        # A fixed time in the gzip header: equal jobs give equal files.
        text = json.dumps(rank.document(len(ranks)))
        path.write_bytes(gzip.compress(text.encode(), mtime=0))
        paths.append(path)
    return paths
