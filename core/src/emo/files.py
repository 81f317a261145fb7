"""Writing files so that a reader sees either the old content or all of the new."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from emo.errors import InputError


@contextmanager
def write_atomically(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A binary file that takes the place of ``path`` when the block ends without an error.

    The content goes to a temporary file in the same folder, which is renamed: a crash, a full
    disk or an exception leaves ``path`` as it was. What is not a regular file (``/dev/stdout``,
    a pipe) is written directly. Raises InputError if the place cannot be written.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file() and not target.is_dir():
        with _as_input_error(path), target.open("wb") as stream:
            yield stream
        return
    with _as_input_error(path):
        if target.is_dir():
            raise IsADirectoryError(None, "it is a folder")
        descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name[:100]}.", dir=target.parent)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            os.chmod(temporary, _mode_of(target))
            os.replace(temporary, target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


def _mode_of(target: Path) -> int:
    """Permissions of the file that is replaced, else those that ``open`` would give a new one."""
    if target.exists():
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


@contextmanager
def _as_input_error(path: str | os.PathLike[str]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(
            f"{os.fspath(path)}: cannot be written ({reason}); expected a file in a folder that exists; "
            "choose another place or make room"
        ) from None
