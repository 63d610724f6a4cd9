from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

class GraphInputs:
    def __init__(self, pointers: ArrayLike, sizes: ArrayLike) -> None: ...

def inputs_of_pairs(graph_inputs: Iterable[tuple[int, int]]) -> GraphInputs: ...

class GraphCaptureBases:
    def __init__(
        self,
        base_pointers: NDArray[np.uint64],
        base_sizes: NDArray[np.uint64],
        chunk_indptr: NDArray[np.int64],
        chunk_indices: NDArray[np.int64],
        input_offsets: NDArray[np.uint64],
    ) -> None: ...
    @property
    def base_pointers(self) -> NDArray[np.uint64]: ...
    @property
    def base_sizes(self) -> NDArray[np.uint64]: ...
    @property
    def chunk_indptr(self) -> NDArray[np.int64]: ...
    @property
    def chunk_indices(self) -> NDArray[np.int64]: ...
    @property
    def input_offsets(self) -> NDArray[np.uint64]: ...
    def as_lists(self) -> tuple[list[tuple[int, int]], list[list[int]], list[int]]: ...
