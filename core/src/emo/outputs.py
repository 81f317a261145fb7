"""Files that a command is to write, checked before the work starts (:mod:`emo.files` writes them)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from emo.errors import InputError


def check_outputs(outputs: Mapping[str, str | None], inputs: Sequence[str]) -> dict[str, Path]:
    """The output paths that were given, keyed by option; raises InputError for one that cannot be written.

    Called before the analysis: nobody should wait for a result that has nowhere to go, and
    nobody's trace should be replaced by a report on it.
    """
    paths = {option: Path(path) for option, path in outputs.items() if path is not None}
    taken = {Path(path).resolve(): f"the trace {path}" for path in inputs}
    for option, path in paths.items():
        target = path.resolve()
        if target in taken:
            raise InputError(f"{option} {path}: would overwrite {taken[target]}; expected a file of its own")
        if target.is_file() or not target.exists():
            taken[target] = f"the file of {option}"
        _check_writable(option, path, target)
    return paths


def _check_writable(option: str, path: Path, target: Path) -> None:
    folder = target.parent
    if not folder.is_dir():
        raise InputError(f"{option} {path}: no directory {folder}; expected an existing one; create it first")
    if target.is_dir():
        raise InputError(f"{option} {path}: is a directory; expected a file name; add one")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{option} {path}: no permission to write into {folder}; give another directory")
