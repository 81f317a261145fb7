"""What happens on a terminal: progress while a command works, and text that cannot harm it."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress

# Work that is over sooner shows no progress.
QUIET_S = 1.0


def printable(text: str) -> str:
    """Text in one line without control characters, so that a name in a trace cannot steer a terminal."""
    return "".join(char if char.isprintable() else " " for char in text)


class StageProgress:
    """A progress bar on stderr, one step per stage; call it with what is being done.

    It appears only on a terminal, and only once the work has taken longer than ``QUIET_S``:
    importing rich costs more than a small trace does.
    """

    def __init__(self, stages: int) -> None:
        self._stages = stages
        self._begun = 0
        self._text = ""
        self._started_s = 0.0
        self._bar: Progress | None = None
        self._lock = threading.Lock()
        self._over = False
        self._timer: threading.Timer | None = None

    def __enter__(self) -> Self:
        self._started_s = time.monotonic()
        if sys.stderr.isatty():
            self._timer = threading.Timer(QUIET_S, self._show)
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            self._over = True
            if self._bar is not None:
                self._bar.stop()

    def __call__(self, text: str) -> None:
        """The next stage begins."""
        with self._lock:
            self._begun += 1
            self._text = printable(text)
            self._update()

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        with self._lock:
            if self._over:
                return
            columns = (
                BarColumn(bar_width=20),
                TimeElapsedColumn(),
                TextColumn("{task.description}", markup=False),
            )
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._bar.add_task("", total=self._stages)
            self._bar.tasks[0].start_time = self._started_s  # elapsed since the work began, not the bar
            self._update()
            self._bar.start()

    def _update(self) -> None:
        if self._bar is not None:
            task = self._bar.task_ids[0]
            self._bar.update(task, description=self._text, completed=max(self._begun - 1, 0))
