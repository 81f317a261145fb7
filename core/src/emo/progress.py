"""Step marks: a workload tells the agent on its node how far it is.

    from emo import progress
    progress.mark()                      # once per step
    progress.attach(optimizer)           # or: after every step of a torch optimizer

A mark is one datagram to the socket ``progress`` in the pod's socket directory (``/run/emo/k``, or
``EMO_SOCKET_DIR``). Nobody need listen: a lost mark does no harm, a mark never raises and never
waits. This file needs only the standard library and may be copied into a project.
"""

from __future__ import annotations

import json
import os
import socket
import time
from typing import Any

SCHEMA = "emo.progress/v1"
RETRY_S = 5.0  # without a listener, look for one this often
_DIRECTORY = "/run/emo/k"


class _Sender:
    """The socket, once somebody listens. Threads may share it: at worst a mark is lost."""

    def __init__(self) -> None:
        self.socket: socket.socket | None = None
        self.next_try = 0.0

    def connect(self) -> None:
        path = os.path.join(os.environ.get("EMO_SOCKET_DIR") or _DIRECTORY, "progress")
        candidate = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            candidate.setblocking(False)
            candidate.connect(path)
        except OSError:
            candidate.close()
            raise
        self.socket = candidate

    def forget(self) -> None:
        if self.socket is not None:
            self.socket.close()
        self.socket = None
        self.next_try = time.monotonic() + RETRY_S


_sender = _Sender()
_monotonic = time.monotonic


def mark(
    units: float = 1, remaining: float | None = None, phase: str | None = None, batch: int | None = None
) -> None:
    """Say that ``units`` of work were done: steps, tokens, requests.

    ``remaining``: how many are left, if known. ``phase``: what the work was (prefill, decode).
    ``batch``: its batch size.
    """
    try:
        if _sender.socket is None:
            if _monotonic() < _sender.next_try:
                return
            _sender.connect()
        _send(units, remaining, phase, batch)
    except BlockingIOError:
        pass  # the agent is behind: this mark is lost
    except OSError:
        _sender.forget()  # nobody listens (any more)
    except Exception:
        pass  # whatever it is, it must not hurt the workload


def _send(units: float, remaining: float | None, phase: str | None, batch: int | None) -> None:
    message = {
        "schema": SCHEMA,
        "pid": os.getpid(),
        "boottime_ns": time.clock_gettime_ns(time.CLOCK_BOOTTIME),
        "units": units,
        "remaining": remaining,
        "phase": phase,
        "batch": batch,
    }
    assert _sender.socket is not None
    _sender.socket.send(json.dumps(message).encode())


def attach(optimizer: Any, units: float = 1) -> Any:
    """Mark after every step of a ``torch.optim.Optimizer``. Returns the hook's handle (``remove()``)."""
    return optimizer.register_step_post_hook(lambda *_: mark(units))
