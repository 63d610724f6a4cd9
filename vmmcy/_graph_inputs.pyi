from typing import Any

import numpy as np
from numpy.typing import NDArray

def check(
    pointers: NDArray[np.uint64],
    sizes: NDArray[np.uint64],
    pointers_signed: bool,
    sizes_signed: bool,
) -> None: ...
def unpack(pairs: tuple[Any, ...]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]: ...
def as_lists(
    base_pointers: NDArray[np.uint64],
    base_sizes: NDArray[np.uint64],
    chunk_indptr: NDArray[np.int64],
    chunk_indices: NDArray[np.int64],
    input_offsets: NDArray[np.uint64],
) -> tuple[list[tuple[int, int]], list[list[int]], list[int]]: ...
