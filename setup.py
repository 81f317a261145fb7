"""The C extension. Everything else about the package is in pyproject.toml."""

from pathlib import Path

from setuptools import Extension, setup

# Relative to this file: setuptools wants it so, and a build elsewhere still finds the sources.
NATIVE = Path("core/src/emo/native")

setup(
    ext_modules=[
        Extension(
            "emo._native",
            sources=sorted(str(path) for path in NATIVE.glob("*.c")),
            depends=sorted(str(path) for path in NATIVE.glob("*.h")),
            extra_compile_args=["-O3", "-std=c11", "-Wall", "-Wextra"],
        )
    ]
)
