"""Every error that EMO raises on purpose.

One tree, so that a caller can catch as widely as it likes:

    EmoError                 exit 1   our own failure, or a limit that we hit
    +-- InputError           exit 2   what the user gave cannot be used
    |   +-- TraceError       exit 2   a trace file cannot be used
    +-- InfeasibleError      exit 3   no plan meets the target
    +-- QualityGateError     exit 4   the trace is too incomplete to conclude from

Every message says what was found, where, what was expected, and what to do.
"""

from __future__ import annotations

from os import PathLike, fspath


class EmoError(Exception):
    """Base of every error that EMO raises on purpose. ``exit_code`` is stable."""

    exit_code = 1


class InputError(EmoError):
    """Something that the user gave (an option, a file, a selector) cannot be used."""

    exit_code = 2


class TraceError(InputError):
    """A trace file cannot be used.

    Renders as ``FILE: what was found; what was expected; what to do``.
    """

    def __init__(self, path: str | PathLike[str], found: str, *, expected: str, hint: str) -> None:
        self.path = fspath(path)
        self.found = found
        self.expected = expected
        self.hint = hint
        super().__init__(f"{self.path}: {found}; {expected}; {hint}")


class InfeasibleError(EmoError):
    """No choice of clocks meets the latency target."""

    exit_code = 3


class QualityGateError(EmoError):
    """The trace was read, but it is too incomplete to draw a conclusion from."""

    exit_code = 4
