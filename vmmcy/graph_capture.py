"""Which allocations cover each CUDA-graph input: what peers must register and share.

A pointer inside virtual memory says nothing about the mappings behind it: a tensor may lie over
many of them, and each has to be exported by itself. These functions walk from an input's first
byte to its last and name every allocation on the way.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from vmmcy import _walk
from vmmcy._arguments import device_ordinal, flag, integer, unsigned
from vmmcy._graph_inputs import GraphCaptureBases, GraphInputs, inputs_of_pairs

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = [
    "GraphCaptureBases",
    "compute_graph_capture_bases",
    "is_vmm_pointer",
    "pointer_in_allocation",
    "resolve_graph_inputs",
]

ANY_DEVICE = -1


def compute_graph_capture_bases(
    graph_inputs: Iterable[tuple[int, int]],
    *,
    device_id: int | None = None,
    require_vmm: bool = False,
) -> tuple[list[tuple[int, int]], list[list[int]], list[int]]:
    """Resolve ``(device_ptr, nbytes)`` pairs to the allocations that cover them.

    Parameters
    ----------
    graph_inputs : iterable of (int, int)
        Address and size in bytes of each input; Python or NumPy integers.
    device_id : int, optional
        See `resolve_graph_inputs`.
    require_vmm : bool, default False
        See `resolve_graph_inputs`.

    Returns
    -------
    bases_info : list of (int, int)
        Address and size in bytes of each distinct allocation, in the order first met.
    input_chunk_indices : list of list of int
        For each input the indices into `bases_info` that cover it, in address order.
    input_offsets : list of int
        Bytes from the base of an input's first allocation to the input.

    Raises
    ------
    TypeError
        An input is no pair, or its address or size is no integer.
    ValueError, RuntimeError, CudaDriverError
        As `resolve_graph_inputs`. Nothing has changed.

    Source: ``cuMemGetAddressRange``, once for each distinct allocation.
    """
    if device_id is not None:
        device_id = integer(device_id, "device_id")
    inputs = inputs_of_pairs(graph_inputs)
    return _resolve(inputs, device_id, require_vmm).as_lists()


def resolve_graph_inputs(
    pointers: ArrayLike,
    sizes: ArrayLike,
    *,
    device_id: int | None = None,
    require_vmm: bool = False,
) -> GraphCaptureBases:
    """Resolve arrays of addresses and sizes to the allocations that cover them.

    The driver is asked once for each distinct allocation, however many inputs lie in it and in
    whatever order they come; what is learned about ranges is forgotten when the call ends. The
    GIL is released meanwhile. Without inputs no driver call is made.

    Parameters
    ----------
    pointers : array of any integer dtype, shape (num_inputs,)
        Address of each input. Contiguous 64-bit arrays are read in place, others are copied; a
        list or tuple of integers will do. Without inputs ``np.array([])`` is taken as it is,
        although NumPy makes it one of floats.
    sizes : array of any integer dtype, shape (num_inputs,)
        Size of each input in bytes.
    device_id : int, optional
        The device that is asked: it finds only memory that it may access. The thread's own
        context is used if it is of that device, else the device's primary context for the time
        of the call. None stands for the thread's context, else the one device in use.
    require_vmm : bool, default False
        Refuse memory that was not made by ``cuMemCreate`` and so cannot be exported.

    Returns
    -------
    GraphCaptureBases
        Five arrays that belong to the caller.

    Raises
    ------
    TypeError
        `pointers` or `sizes` hold floats, bools or anything else that is no integer, are masked,
        or are no array at all.
    ValueError
        An array has not one dimension or the two differ in length; an address is negative, or an
        input ends past the 64-bit address space; `device_id` is needed or is no visible device.
    RuntimeError
        A size is zero or negative; the driver answered with a range that does not hold the
        address, or that contradicts an earlier answer, as when memory is remapped meanwhile;
        memory is foreign and `require_vmm` is set.
    CudaDriverError
        The driver refused, as it does for memory without access and for a hole in an input. The
        text names the input and the address that failed. Nothing has changed in any case.

    Source: ``cuMemGetAddressRange``; for `require_vmm` ``cuMemRetainAllocationHandle``.
    """
    if device_id is not None:
        device_id = integer(device_id, "device_id")
    return _resolve(GraphInputs(pointers, sizes), device_id, require_vmm)


def pointer_in_allocation(ptr: int, base: int, size: int) -> bool:
    """Tell whether address `ptr` lies in the `size` bytes from address `base` on.

    Raises
    ------
    TypeError
        An argument is no integer.
    ValueError
        One is not from 0 to 2**64 - 1, whether or not the answer depends on it.
    """
    ptr, base, size = integer(ptr, "ptr"), integer(base, "base"), integer(size, "size")
    ptr, base, size = unsigned(ptr, "ptr"), unsigned(base, "base"), unsigned(size, "size")
    return base <= ptr < base + size


def is_vmm_pointer(ptr: int) -> bool:
    """Tell whether the memory at address `ptr` was made by ``cuMemCreate`` and is mapped.

    Needs no context, and looks at no access rights.

    Raises
    ------
    TypeError, ValueError
        `ptr` is no integer from 0 to 2**64 - 1.
    CudaDriverError
        The driver refused for another reason than that the memory is none of its making.
        Nothing has changed.

    Source: ``cuMemRetainAllocationHandle``.
    """
    return _walk.is_vmm_pointer(unsigned(ptr, "ptr"))


def _resolve(inputs: GraphInputs, device_id: int | None, require_vmm: bool) -> GraphCaptureBases:
    required = flag(require_vmm, "require_vmm")
    device = ANY_DEVICE if device_id is None else device_ordinal(device_id)
    return _walk.resolve(inputs, device, required)
