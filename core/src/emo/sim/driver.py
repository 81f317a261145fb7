"""The simulated NVIDIA driver, from Python: build it, make GPUs, drive them.

The driver itself is C (``agent/native``): a ``libnvidia-ml.so.1`` that the unmodified ``nvidia-ml-py``
loads. Its state is one file, shared by every process that uses it; a ``SimulatedDriver`` is a hold on
that file. It is no client of the driver, needs no privileges and keeps no GPU in use.

    with SimulatedDriver.create(path, ["H100", "H100"]) as driver:
        driver.control("gpu0.compute=0.9", "gpu0.memory=0.4")
        subprocess.run([sys.executable, "script.py"], env=driver.environment())
        print(driver.state().gpus[0].power_w)
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

import msgspec

from emo.errors import EmoError, InputError
from emo.sim.physics import Activity, KernelSpec

REPOSITORY = Path(__file__).resolve().parents[4]
SOURCES = REPOSITORY / "agent" / "native"
BUILDS = REPOSITORY / "build" / "simgpu"

BRANCHES = (450, 470, 535, 580)
NEWEST = BRANCHES[-1]

# What child processes find the driver by.
STATE_VARIABLE = "EMO_SIMGPU_STATE"
TRACE_VARIABLE = "EMO_SIMGPU_TRACE"
UID_VARIABLE = "EMO_SIMGPU_UID"
LIBRARY_VARIABLE = "EMO_SIMGPU_LIBRARY"

_ERROR_BYTES = 256
_NEVER_NS = 2**63 - 1
REST = Activity(loaded=False)


@dataclass(frozen=True, slots=True)
class GpuState:
    """What one GPU is and does at a moment: the truth, which no sensor shows.

    A lock of (0, 0) is none. ``pending_mhz`` is the clock that lands at ``pending_ns``, 0 when no
    change is under way. ``counter_j`` and ``sensor_power_w`` are what NVML tells: with the gain of
    the board, since the driver was loaded.
    """

    index: int
    model: str
    uuid: str
    clock_mhz: float
    granted_mhz: float
    pending_mhz: float
    pending_ns: int
    clock_changes: int
    power_w: float
    energy_j: float
    temperature_c: float
    sensor_power_w: float
    counter_j: float
    gain: float
    reasons: int
    lock_mhz: tuple[int, int]
    memory_lock_mhz: tuple[int, int]
    power_limit_w: float
    compute: float
    memory: float
    link: float
    busy: float
    loaded: bool
    persistence: bool
    mig: bool
    lost: bool
    virtualization: int
    processes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DriverState:
    """The driver and its GPUs at one moment of simulated time."""

    now_ns: int
    frozen: bool
    driver: int
    driver_loaded: bool
    clients: int
    seed: int
    gpus: tuple[GpuState, ...]


def build(branch: int = NEWEST, sanitize: str = "") -> Path:
    """The library of a driver branch, built if its sources are newer; ``sanitize`` as ``-fsanitize``.

    ``EMO_SIMGPU_LIBRARY`` names a folder of finished builds (one folder per branch) where there is
    no compiler. Raises EmoError when it cannot be built.
    """
    if branch not in BRANCHES:
        raise InputError(f"driver {branch}: there are {', '.join(map(str, BRANCHES))}")
    finished = os.environ.get(LIBRARY_VARIABLE)
    if finished:
        library = Path(finished) / str(branch) / "libnvidia-ml.so.1"
        if not library.is_file():
            raise InputError(
                f"{library}: no such file; {LIBRARY_VARIABLE} is a folder of one build per branch"
            )
        return library
    if not (SOURCES / "Makefile").is_file():
        raise EmoError(
            f"{SOURCES}: no sources of the simulated driver; set {LIBRARY_VARIABLE} to a build of it"
        )
    return _make(branch, sanitize)


def _make(branch: int, sanitize: str) -> Path:
    folder = BUILDS / "-".join([str(branch), *filter(None, sanitize.split(","))])
    folder.mkdir(parents=True, exist_ok=True)
    command = ["make", "-s", "-C", str(SOURCES), f"BRANCH={branch}", f"SANITIZE={sanitize}", f"OUT={folder}"]
    # Several processes may want it at once.
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            raise EmoError(
                "make not found; the simulated driver is built with make and a C compiler"
            ) from None
    if done.returncode:
        raise EmoError(f"the simulated driver did not build: {done.stderr.strip()[-2000:]}")
    return folder / "libnvidia-ml.so.1"


@cache
def _library(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    text, buffer, size = ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t
    handle, number = ctypes.c_void_p, ctypes.c_int
    signatures = {
        "simgpu_create": (number, [text, text, ctypes.c_uint64, ctypes.c_uint, number, buffer, size]),
        "simgpu_open": (handle, [text, buffer, size]),
        "simgpu_close": (None, [handle]),
        "simgpu_control": (number, [handle, text, buffer, size]),
        "simgpu_load": (number, [handle, number, text, text, number, ctypes.c_double, buffer, size]),
        "simgpu_clock": (number, [handle, number, *(ctypes.c_void_p,) * 3]),
        "simgpu_describe": (size, [handle, buffer, size]),
        "simgpu_branch": (number, [handle]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


class SimulatedDriver:
    """A hold on a state file. For one thread at a time; close it, or use it in a ``with``."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open the state that is there; raises InputError when it cannot be used."""
        self.path = Path(path).absolute()
        # Any build can read the state; which driver it stands for is in there.
        library = _library(build())
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        self._handle: int | None = library.simgpu_open(os.fsencode(self.path), error, _ERROR_BYTES)
        if not self._handle:
            raise InputError(f"no simulated GPUs: {error.value.decode()}")
        self._library = library
        self.branch: int = library.simgpu_branch(self._handle)

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        models: Sequence[str],
        *,
        seed: int = 0,
        branch: int = NEWEST,
        frozen: bool = False,
    ) -> Self:
        """New GPUs of these models at simulated time 0, as boards that the seed draws.

        When ``frozen``, time moves only when told to (``clock=SECONDS``).
        """
        build(branch)  # known, and there when it is needed
        library = _library(build())
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        target = Path(path).absolute()
        names = ",".join(models).encode()
        if library.simgpu_create(os.fsencode(target), names, seed, branch, frozen, error, _ERROR_BYTES):
            raise InputError(f"the simulated GPUs were not made: {error.value.decode()}")
        return cls(target)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file; what is in it stays."""
        if self._handle:
            self._library.simgpu_close(self._handle)
            self._handle = None

    def control(self, *lines: str) -> None:
        """Apply lines ``KEY=VALUE`` at one moment, all or none; raises InputError."""
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        if self._library.simgpu_control(self._open(), "\n".join(lines).encode(), error, _ERROR_BYTES):
            raise InputError(error.value.decode())

    def load(
        self, gpu: int, *, activity: Activity = REST, kernels: Sequence[KernelSpec] = (), busy: float = 1.0
    ) -> None:
        """What runs on a GPU from now on; quick enough for a player in real time.

        Args:
            gpu: its index.
            activity: what is busy, whatever the clock, when no kernels are given.
            kernels: up to 8 that run side by side; their activity follows the clock.
            busy: share of the time in which a kernel runs, which is what the utilisation says.
        """
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        packed = b"".join(kernel.packed() for kernel in kernels)
        if self._library.simgpu_load(
            *(self._open(), gpu, activity.packed(), packed, len(kernels), busy, error, _ERROR_BYTES)
        ):
            raise InputError(error.value.decode())

    def clock(self, gpu: int) -> tuple[int, float, int | None]:
        """Simulated time (ns), delivered clock (MHz), and when it next changes, if a change is under way."""
        now, clock, change = ctypes.c_int64(), ctypes.c_double(), ctypes.c_int64()
        places = [ctypes.byref(place) for place in (now, clock, change)]
        if self._library.simgpu_clock(self._open(), gpu, *places):
            raise InputError(f"there is no GPU {gpu}")
        return now.value, clock.value, None if change.value == _NEVER_NS else change.value

    def state(self) -> DriverState:
        """The truth at this moment."""
        size = 65536
        buffer = ctypes.create_string_buffer(size)
        length = self._library.simgpu_describe(self._open(), buffer, size)
        return msgspec.json.decode(buffer.raw[:length], type=DriverState)

    def environment(
        self,
        base: Mapping[str, str] | None = None,
        *,
        trace: str | os.PathLike[str] | None = None,
        uid: int | None = None,
        sanitize: str = "",
    ) -> dict[str, str]:
        """Variables with which a child process finds this driver instead of a real one.

        Args:
            base: what to add them to; the own environment by default.
            trace: file to which every NVML call is appended as a line of JSON.
            uid: the user that the driver is to take the child for; by default the one it is.
            sanitize: use a build with this sanitizer.
        """
        variables = dict(os.environ if base is None else base)
        folder = str(build(self.branch, sanitize).parent)
        others = variables.get("LD_LIBRARY_PATH")
        variables["LD_LIBRARY_PATH"] = f"{folder}:{others}" if others else folder
        variables[STATE_VARIABLE] = str(self.path)
        if trace is not None:
            variables[TRACE_VARIABLE] = str(Path(trace).absolute())
        if uid is not None:
            variables[UID_VARIABLE] = str(uid)
        return variables

    def _open(self) -> int:
        if not self._handle:
            raise EmoError("this simulated driver was closed")
        return self._handle
