"""The C extension. Everything else about the package is in pyproject.toml."""

import os
from pathlib import Path

from setuptools import Extension, setup

# Relative to this file: setuptools wants it so, and a build elsewhere still finds the sources.
NATIVE = Path("core/src/emo/native")

# The compiler sees these after CFLAGS, so a level here would override the builder's.
LEVEL = [] if os.environ.get("CFLAGS") else ["-O3"]

setup(
    ext_modules=[
        Extension(
            "emo._native",
            sources=sorted(str(path) for path in NATIVE.glob("*.c")),
            depends=sorted(str(path) for path in NATIVE.glob("*.h")),
            extra_compile_args=[*LEVEL, "-std=c11", "-Wall", "-Wextra"],
        )
    ]
)
