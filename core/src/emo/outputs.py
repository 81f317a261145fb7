"""Files that a command writes: checked before the work starts, replaced whole when it is done."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from emo.errors import EmoError, InputError


def check_outputs(outputs: Mapping[str, str | None], inputs: Sequence[str]) -> dict[str, Path]:
    """The output paths that were given, keyed by option; raises InputError for one that cannot be written.

    Called before the analysis: nobody should wait for a result that has nowhere to go.
    """
    paths = {option: Path(path) for option, path in outputs.items() if path is not None}
    taken = {Path(path).resolve(): f"the trace {path}" for path in inputs}
    for option, path in paths.items():
        target = path.resolve()
        if target in taken:
            raise InputError(f"{option} {path}: would overwrite {taken[target]}; expected a file of its own")
        taken[target] = f"the file of {option}"
        _check_writable(option, path, target)
    return paths


def _check_writable(option: str, path: Path, target: Path) -> None:
    folder = target.parent
    if not folder.is_dir():
        raise InputError(f"{option} {path}: {folder} is not a directory; expected an existing one; create it first")
    if target.exists() and not target.is_file():
        raise InputError(f"{option} {path}: exists and is not a regular file; expected a file name; give another")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{option} {path}: no permission to write into {folder}; give another directory")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to; what was written there takes the place of ``path`` if all went well.

    Raises EmoError if the file system refuses. Nothing half-written is ever seen under ``path``,
    and nothing is left behind on failure.
    """
    target = path.resolve()
    try:
        # In the same directory, so that the rename stays on one file system; under the same
        # name, since writers go by the ending; a directory, so that the file gets the user's umask.
        folder = Path(tempfile.mkdtemp(prefix=".emo-", dir=target.parent))
    except OSError as error:
        raise _cannot_write(path, error) from error
    try:
        temporary = folder / target.name
        yield temporary
        os.replace(temporary, target)
    except OSError as error:
        raise _cannot_write(path, error) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _cannot_write(path: Path, error: OSError) -> EmoError:
    return EmoError(f"{path}: cannot be written ({error.strerror or error}); check the space and permissions there")
