"""The C extensions. Everything else about the package is in pyproject.toml."""

import os
from pathlib import Path

from setuptools import Extension, setup

# Relative to this file: setuptools wants it so, and a build elsewhere still finds the sources.
EXTENSIONS = {"emo._native": Path("core/src/emo/native"), "emo.sim._sim": Path("core/src/emo/sim/native")}

# The compiler sees these after CFLAGS, so a level here would override the builder's.
LEVEL = [] if os.environ.get("CFLAGS") else ["-O3"]


def extension(name: str, folder: Path) -> Extension:
    """All C files of a folder as one module."""
    return Extension(
        name,
        sources=sorted(str(path) for path in folder.glob("*.c")),
        depends=sorted(str(path) for path in folder.glob("*.h")),
        extra_compile_args=[*LEVEL, "-std=c11", "-Wall", "-Wextra"],
    )


setup(ext_modules=[extension(*item) for item in EXTENSIONS.items() if any(item[1].glob("module.c"))])
