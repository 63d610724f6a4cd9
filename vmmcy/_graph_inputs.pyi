from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

class GraphInputs:
    def __init__(self, pointers: ArrayLike, sizes: ArrayLike) -> None: ...

def inputs_of_pairs(graph_inputs: Iterable[tuple[int, int]]) -> GraphInputs: ...
def as_lists(
    base_pointers: NDArray[np.uint64],
    base_sizes: NDArray[np.uint64],
    chunk_indptr: NDArray[np.int64],
    chunk_indices: NDArray[np.int64],
    input_offsets: NDArray[np.uint64],
) -> tuple[list[tuple[int, int]], list[list[int]], list[int]]: ...
