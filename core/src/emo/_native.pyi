# Types of the native module; see the C files for what each function does.

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

class KinetoScanner: ...  # a capsule

def kineto_new(
    categories: Mapping[str, int],
    dtype_bytes: Mapping[str, int],
    max_record_bytes: int,
    max_metadata_bytes: int,
    /,
) -> KinetoScanner: ...
def kineto_feed(scanner: KinetoScanner, piece: bytes, /) -> bool: ...
def kineto_finish(
    scanner: KinetoScanner, /
) -> tuple[
    tuple[bytearray, ...],
    list[bytes],
    list[tuple[int, int, int, int]],
    list[tuple[bytes, bytes, int]],
    list[tuple[bytes, bytes]],
    list[int],
    bool,
    bool,
]: ...
def check_csr(
    row: NDArray[np.int64],
    src: NDArray[np.int32],
    owner: NDArray[np.int32],
    scale: NDArray[np.float64],
    /,
) -> None: ...
def replay(
    row: NDArray[np.int64],
    src: NDArray[np.int32],
    lag_ns: NDArray[np.int64],
    scaled_ns: NDArray[np.int64],
    owner: NDArray[np.int32],
    scale: NDArray[np.float64],
    release_ns: NDArray[np.int64],
    delay_ns: NDArray[np.int64],
    out_time_ns: NDArray[np.int64],
    out_edge: NDArray[np.int32],
    /,
) -> int: ...
def latest(
    row: NDArray[np.int64],
    src: NDArray[np.int32],
    lag_ns: NDArray[np.int64],
    scaled_ns: NDArray[np.int64],
    owner: NDArray[np.int32],
    scale: NDArray[np.float64],
    delay_ns: NDArray[np.int64],
    latest_ns: NDArray[np.int64],
    /,
) -> None: ...
def toposort(
    row: NDArray[np.int64],
    src: NDArray[np.int32],
    hint: NDArray[np.int32],
    out_order: NDArray[np.int32],
    /,
) -> int: ...
def trace_back(
    src: NDArray[np.int32], decided_by: NDArray[np.int32], point: int, out_points: NDArray[np.int32], /
) -> int: ...
def accumulate(
    src: NDArray[np.int32],
    decided_by: NDArray[np.int32],
    value: NDArray[np.int64],
    reset: NDArray[np.bool_],
    out: NDArray[np.int64],
    /,
) -> None: ...
def longest_increasing(values: NDArray[np.int64], out_keep: NDArray[np.uint8], /) -> int: ...
