"""What the emitted Kineto traces look like, as emo's own reader sees them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emo.errors import InputError
from emo.sim.capture import BASE_TIME_NS, CaptureOptions, progress_datagrams, write_captures
from emo.sim.player import Run, play
from emo.sim.program import Code
from emo.sim.workloads import workload
from emo.trace.model import Kind, SyncInfo
from emo.trace.read import read_trace


@pytest.fixture(scope="module")
def run() -> Run:
    return play(workload("pipeline", 7), "A100", 3, tracing=(2, 5))


def captured(run: Run, folder: Path, **options: Any) -> list[dict[str, Any]]:
    paths = write_captures(run, folder, CaptureOptions(**options))
    return [json.loads(gzip.decompress(path.read_bytes())) for path in paths]


def gpu_events(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [e for e in document["traceEvents"] if e["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")]


def test_times_are_fractional_microseconds_after_a_base(run: Run, tmp_path: Path) -> None:
    document = captured(run, tmp_path)[0]
    assert document["baseTimeNanoseconds"] == BASE_TIME_NS
    assert any(event["ts"] != int(event["ts"]) for event in document["traceEvents"])
    trace = read_trace(tmp_path / "rank0.json.gz")
    mine = run.records[(run.records["rank"] == 0) & (run.records["code"] == Code.LAUNCH)]
    known = set((mine["start_ns"] + BASE_TIME_NS).tolist())
    starts = trace.ops.start_ns[trace.ops.kind == Kind.KERNEL]
    assert len(starts) > 100 and np.isin(starts, list(known)).sum() > 0.9 * len(starts)  # to the nanosecond


def test_steps_are_marked_and_only_traced_ones_are_there(run: Run, tmp_path: Path) -> None:
    for document in captured(run, tmp_path):
        steps = [e["name"] for e in document["traceEvents"] if e["name"].startswith("ProfilerStep#")]
        assert steps == [f"ProfilerStep#{n}" for n in (2, 3, 4, 5)]


def test_synchronisation_records_only_if_asked_for(run: Run, tmp_path: Path) -> None:
    captured(run, tmp_path / "without")
    captured(run, tmp_path / "with", sync_records=True)
    without = read_trace(tmp_path / "without" / "rank1.json.gz")
    recorded = read_trace(tmp_path / "with" / "rank1.json.gz")
    assert without.quality.sync_info != SyncInfo.RECORDED
    assert recorded.quality.sync_info == SyncInfo.RECORDED
    assert len(without.ops) == len(recorded.ops)


def test_the_kth_session_loses_k_head_kernels(run: Run, tmp_path: Path) -> None:
    whole = captured(run, tmp_path / "0")
    lossy = captured(run, tmp_path / "3", session=3)
    for one, other in zip(whole, lossy, strict=True):
        assert gpu_events(one)[3:] == gpu_events(other)
        calls = [[e for e in d["traceEvents"] if e["cat"] == "cuda_runtime"] for d in (one, other)]
        assert calls[0] == calls[1]


def test_hosts_have_their_own_clocks(run: Run, tmp_path: Path) -> None:
    one_host = captured(run, tmp_path / "one", ranks_per_host=4)
    two_hosts = captured(run, tmp_path / "two", ranks_per_host=2)
    shift = [
        b["traceEvents"][0]["ts"] - a["traceEvents"][0]["ts"]
        for a, b in zip(one_host, two_hosts, strict=True)
    ]
    assert shift[:2] == [0, 0] and shift[2] == pytest.approx(shift[3], abs=50) and abs(shift[2]) > 1


def test_communication_carries_its_metadata(run: Run, tmp_path: Path) -> None:
    documents = captured(run, tmp_path)
    kernels = [e for d in documents for e in gpu_events(d) if e["name"].startswith("nccl")]
    assert {e["args"]["Collective name"] for e in kernels} == {"sendrecv", "allreduce"}
    reduces = [e for e in gpu_events(documents[0]) if "AllReduce" in e["name"]]
    sequence = [e["args"]["Seq"] for e in reduces]
    assert sequence == list(range(sequence[0], sequence[0] + len(sequence)))
    annotations = {e["name"] for e in documents[1]["traceEvents"] if e["name"].startswith("nccl:")}
    assert annotations == {
        "nccl:send 1->2", "nccl:send 1->0", "nccl:recv 1<-0", "nccl:recv 1<-2", "nccl:all_reduce"
    }  # fmt: skip
    without = captured(run, tmp_path / "bare", nccl_metadata=False)
    assert all("Group size" not in e["args"] for d in without for e in gpu_events(d))


def test_a_peer_can_be_left_out(run: Run, tmp_path: Path) -> None:
    captured(run, tmp_path, ranks=(0, 2))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank0.json.gz", "rank2.json.gz"]


def test_nodes_of_a_graph_share_the_launch(tmp_path: Path) -> None:
    decode = play(workload("decode", 4), "A100", tracing=True)
    events = gpu_events(captured(decode, tmp_path)[0])
    launch = [e["args"]["correlation"] for e in events if "graph node id" in e["args"]]
    assert len(set(launch)) == 4 and len(launch) > 100


def test_blocked_time_and_calls_agree_with_the_truth(run: Run, tmp_path: Path) -> None:
    document = captured(run, tmp_path)[0]
    syncs = [e for e in document["traceEvents"] if e["name"] == "cudaStreamSynchronize"]
    truth = run.records[
        (run.records["rank"] == 0) & (run.records["on_gpu"] == 0) & (run.records["code"] == Code.SYNC_STREAM)
    ]
    durations = {round(float(d) / 1_000, 3) for d in truth["end_ns"] - truth["start_ns"]}
    assert len(syncs) == 4 and {e["dur"] for e in syncs} <= durations


def test_equal_runs_give_equal_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        captured(play(workload("experts", 3), "V100", 9, tracing=True), tmp_path / name)
    for path in sorted((tmp_path / "a").iterdir()):
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_an_untraced_run_gives_no_capture(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="without tracing"):
        write_captures(play(workload("decode", 2), "A100"), tmp_path)


def test_progress_marks_follow_the_steps(run: Run) -> None:
    datagrams = progress_datagrams(run, 1)
    assert [d["remaining"] for d in datagrams] == [6, 5, 4, 3, 2, 1, 0]
    assert all(set(d) == set(datagrams[0]) for d in datagrams)
    times = [d["boottime_ns"] for d in datagrams]
    assert times == sorted(times)
