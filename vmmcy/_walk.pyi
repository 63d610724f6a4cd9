import numpy as np
from numpy.typing import NDArray

def resolve(
    pointers: NDArray[np.uint64],
    sizes: NDArray[np.uint64],
    device_id: int,
    require_vmm: bool,
) -> tuple[
    NDArray[np.uint64],
    NDArray[np.uint64],
    NDArray[np.int64],
    NDArray[np.int64],
    NDArray[np.uint64],
]: ...
def is_vmm_pointer(address: int) -> bool: ...
