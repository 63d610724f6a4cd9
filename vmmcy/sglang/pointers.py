"""What lies at an address: its kind, its allocations, and a tensor over it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from vmmcy import graph_capture, properties
from vmmcy._arguments import device_ordinal, integer, positive, unsigned

if TYPE_CHECKING:
    from cuda.bindings.driver import CUdeviceptr, CUmemAccessDesc


def is_vmm_pointer(ptr: int | CUdeviceptr) -> bool:
    """Tell whether the memory at `ptr` was made by ``cuMemCreate``; see `vmmcy.is_vmm_pointer`."""
    return graph_capture.is_vmm_pointer(address_number(ptr))


def compute_graph_capture_bases(
    graph_inputs: Iterable[tuple[int, int]],
) -> tuple[list[tuple[int, int]], list[list[int]], list[int]]:
    """Resolve ``(pointer, nbytes)`` pairs; see `vmmcy.compute_graph_capture_bases`."""
    return graph_capture.compute_graph_capture_bases(graph_inputs)


def make_rw_access_desc(device_id: int) -> CUmemAccessDesc:
    """Return "this device may read and write"; see `vmmcy.make_rw_access_desc`."""
    return properties.make_rw_access_desc(device_ordinal(device_id))


def tensor_from_pointer(
    pointer: int | CUdeviceptr,
    nbytes: int,
    *,
    shape: Iterable[int] | None = None,
    dtype: Any = None,
    device_id: int,
) -> Any:
    """Return a tensor over memory that it does not own, backed already or later.

    Parameters
    ----------
    pointer : int or cuda.bindings.driver.CUdeviceptr
        Address of the first byte.
    nbytes : int
        Bytes of the tensor's storage.
    shape : iterable of int, optional
        Elements in each dimension, at most as many as there is storage for; by default
        one dimension of `nbytes` elements.
    dtype : torch.dtype, optional
        Of the elements; by default ``torch.uint8``.
    device_id : int
        The CUDA device of the memory.

    Returns
    -------
    torch.Tensor
        Contiguous, at the start of the storage.

    Raises
    ------
    TypeError, ValueError
        An argument is of the wrong type or out of range, the shape needs more than
        `nbytes`, or the pointer is 0 or not aligned for `dtype`. Nothing has changed.
    ModuleNotFoundError
        There is no torch.
    """
    pointer, nbytes = address_number(pointer), integer(nbytes, "nbytes")
    pointer, nbytes = unsigned(pointer, "pointer"), unsigned(nbytes, "nbytes")
    if nbytes:
        positive(pointer, "pointer")
    device_id = device_ordinal(device_id)
    from vmmcy.torch.tensor import bytes_at

    return bytes_at(pointer, nbytes, shape, dtype, device_id)


def address_number(address: int | CUdeviceptr) -> int:
    """Return an address of either kind as it is to be checked."""
    if type(address).__name__ == "CUdeviceptr":
        return int(address)
    return address
