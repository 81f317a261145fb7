"""What all tests share: where the sample traces are, and how hard hypothesis tries."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

REPOSITORY = Path(__file__).resolve().parents[1]
SAMPLES = Path(os.environ.get("EMO_SAMPLES") or REPOSITORY.parent / "shared") / "traces"

settings.register_profile(
    "default",
    deadline=None,  # the machine decides how long an example takes, not the code
    max_examples=40,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("soak", settings.get_profile("default"), max_examples=2_000, derandomize=False)
settings.load_profile("default")


def sample_files() -> list[Path]:
    """All sample traces, in a stable order; empty when they are not on this machine."""
    suffixes = (".gz", ".json", ".sqlite")
    return sorted(path for path in SAMPLES.rglob("*") if path.suffix in suffixes) if SAMPLES.is_dir() else []


@pytest.fixture(scope="session")
def samples() -> Path:
    """The folder of sample traces."""
    if not SAMPLES.is_dir():
        pytest.skip(f"no sample traces at {SAMPLES}: set EMO_SAMPLES to the folder that holds traces/")
    return SAMPLES
