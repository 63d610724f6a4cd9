import numpy as np
from numpy.typing import NDArray

from vmmcy._graph_inputs import GraphInputs

def resolve(
    inputs: GraphInputs,
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
