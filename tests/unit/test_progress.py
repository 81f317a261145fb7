"""Step marks: they arrive, they cost nothing, and they never hurt."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from emo import progress

FIELDS = {"schema", "pid", "boottime_ns", "units", "remaining", "phase", "batch"}


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("EMO_SOCKET_DIR", str(tmp_path))
    monkeypatch.setattr(progress, "_sender", progress._Sender())
    yield
    progress._sender.forget()


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(tmp_path / "progress"))
        server.settimeout(2)
        yield server
    (tmp_path / "progress").unlink(missing_ok=True)


def received(server: socket.socket) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(server.recv(65_536))
    return message


def test_a_mark_arrives(listener: socket.socket) -> None:
    before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    progress.mark(units=32, remaining=100, phase="decode", batch=8)
    message = received(listener)
    assert set(message) == FIELDS
    assert message["schema"] == progress.SCHEMA
    assert (message["units"], message["remaining"], message["phase"], message["batch"]) == (
        32,
        100,
        "decode",
        8,
    )
    assert before <= message["boottime_ns"] <= time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def test_only_units_are_needed(listener: socket.socket) -> None:
    progress.mark()
    message = received(listener)
    assert message["units"] == 1 and message["remaining"] is message["phase"] is message["batch"] is None


def test_nobody_listens() -> None:
    for _ in range(3):
        progress.mark()
    assert progress._sender.socket is None


def test_a_listener_that_comes_later_is_found(
    monkeypatch: pytest.MonkeyPatch, listener: socket.socket, tmp_path: Path
) -> None:
    (tmp_path / "progress").rename(tmp_path / "elsewhere")
    progress.mark()
    (tmp_path / "elsewhere").rename(tmp_path / "progress")
    progress.mark()  # too early to try again
    monkeypatch.setattr(progress._sender, "next_try", 0.0)
    progress.mark(units=7)
    assert received(listener)["units"] == 7


def test_a_listener_that_went_away_is_found_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for units in (1, 2):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
            server.bind(str(tmp_path / "progress"))
            server.settimeout(2)
            progress.mark(units=units)
            assert received(server)["units"] == units
        (tmp_path / "progress").unlink()
        progress.mark()  # to nobody
        monkeypatch.setattr(progress._sender, "next_try", 0.0)


def test_a_listener_that_does_not_read_blocks_nobody(listener: socket.socket) -> None:
    began = time.monotonic()
    for _ in range(2_000):
        progress.mark()
    assert time.monotonic() - began < 2
    assert received(listener)["units"] == 1  # the first ones are there


@pytest.mark.parametrize("nonsense", [object(), float("nan"), b"bytes", {1: 2}])
def test_nonsense_raises_nothing(listener: socket.socket, nonsense: Any) -> None:
    progress.mark(units=nonsense, phase=nonsense)
    progress.mark(units=3)
    messages = [received(listener)]
    while messages[-1]["units"] != 3:
        messages.append(received(listener))
    assert len(messages) <= 2


def test_a_mark_without_a_listener_takes_no_time() -> None:
    progress.mark()  # looks for a listener
    best = min(_seconds(1_000) for _ in range(20)) / 1_000
    assert best <= 2e-6


def _seconds(calls: int) -> float:
    began = time.perf_counter()
    for _ in range(calls):
        progress.mark()
    return time.perf_counter() - began


def test_every_optimizer_step_is_a_mark(listener: socket.socket) -> None:
    class Optimizer:
        """What attach needs of ``torch.optim.Optimizer``."""

        hook: Callable[..., None]

        def register_step_post_hook(self, hook: Callable[..., None]) -> str:
            self.hook = hook
            return "handle"

    optimizer = Optimizer()
    assert progress.attach(optimizer, units=16) == "handle"
    optimizer.hook(optimizer, (), {})
    assert received(listener)["units"] == 16


def test_it_can_be_copied_into_a_project() -> None:
    source = Path(progress.__file__).read_text()
    assert len(source.splitlines()) <= 100
    imported = {
        line.split()[1].split(".")[0] for line in source.splitlines() if line.startswith(("import ", "from "))
    }
    assert imported <= sys.stdlib_module_names
