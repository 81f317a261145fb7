# Types of the native module; see the C files for what each function does.

import numpy as np
from numpy.typing import NDArray

# physics_py.c: structures of gpu_physics.h as float64 in the order of their fields
def clock_on_grid_mhz(spec: bytes, wish_mhz: float, /) -> float: ...
def voltage(spec: bytes, clock_mhz: NDArray[np.float64], out: NDArray[np.float64], /) -> None: ...
def duration_ns(
    spec: bytes, kernel: bytes, clock_mhz: NDArray[np.float64], out_ns: NDArray[np.float64], /
) -> None: ...
def contention(
    spec: bytes, kernels: bytes, out_slowdown: NDArray[np.float64], clock_mhz: float, /
) -> None: ...
def activity(
    spec: bytes,
    kernels: bytes,
    slowdown: NDArray[np.float64],
    out_activity: NDArray[np.float64],
    clock_mhz: float,
    /,
) -> None: ...
def power_w(
    spec: bytes,
    activity: bytes,
    clock_mhz: NDArray[np.float64],
    out_w: NDArray[np.float64],
    temperature_c: float,
    /,
) -> None: ...
def capped_clock_mhz(
    spec: bytes, activity: bytes, wish_mhz: float, limit_w: float, temperature_c: float, /
) -> float: ...
def capped_clock_running_mhz(
    spec: bytes, kernels: bytes, wish_mhz: float, limit_w: float, temperature_c: float, /
) -> float: ...
def thermal_limit_w(spec: bytes, temperature_c: float, /) -> float: ...
def temperature_after_c(spec: bytes, temperature_c: float, power_w: float, dt_s: float, /) -> float: ...
def switch_latency_ms(
    switching: bytes, random: NDArray[np.float64], target_mhz: float, clock_max_mhz: float, /
) -> float: ...

# player_py.c: layouts in native/player.h; emo.sim.program and emo.sim.truth hold their dtypes
class Player: ...

def player_new(
    ops: NDArray[np.void],
    threads: NDArray[np.int32],
    kernels: bytes,
    groups: NDArray[np.int32],
    members: NDArray[np.int32],
    graphs: NDArray[np.int32],
    specs: bytes,
    switching: bytes,
    boards: NDArray[np.float64],
    arrivals_ns: NDArray[np.int64],
    options: NDArray[np.float64],
    /,
) -> Player: ...
def player_run(player: Player, until_ns: int, /) -> int: ...
def player_request_clock(player: Player, gpu: int, clock_mhz: float, settled: bool, /) -> None: ...
def player_limit_power(player: Player, gpu: int, limit_w: float, /) -> None: ...
def player_state(
    player: Player, gpu: int, /
) -> tuple[int, float, float, float, float, float, float, float, float]: ...
def player_results(player: Player, /) -> tuple[bytes, bytes, bytes, bytes]: ...
def player_progress(player: Player, /) -> tuple[int, int, int, int]: ...
