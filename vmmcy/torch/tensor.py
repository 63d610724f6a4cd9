"""Tensors at addresses that somebody else owns, whether or not memory is behind them yet."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.utils.dlpack

from vmmcy._arguments import integer, iterable, positive, shown, within_64_bits
from vmmcy.torch import _dlpack
from vmmcy.torch.device import check_visible, cuda_place

DLPACK_DEVICES = {"cpu": 1, "cuda": 2}
LIMIT_BYTES = 1 << 63

# Their tensors are more than their bytes. Torch is to drop them.
QUANTIZED = {
    getattr(torch, name, None) for name in ("qint8", "quint8", "qint32", "quint4x2", "quint2x4")
}


def tensor_at(
    address: int,
    shape: Iterable[int],
    dtype: torch.dtype,
    device: torch.device | str | int,
    *,
    owner: object = None,
) -> torch.Tensor:
    """Return a contiguous tensor over memory that it does not own.

    The memory may be backed later: nothing asks the driver about it, and nothing
    touches it. A graph may be captured over the tensor before; backed it must be when a kernel
    runs.

    Parameters
    ----------
    address : int
        Address of the first element, a multiple of the element's size.
    shape : iterable of int
        Elements in each dimension, at least one in all.
    dtype : torch.dtype
        Of the elements, any that torch has but the quantized ones.
    device : torch.device or str or int
        The CUDA device of the memory; without an index torch's current one.
    owner : object, optional
        Kept alive until the last view of the tensor is gone: a reservation, say.

    Returns
    -------
    torch.Tensor
        Of `shape` and `dtype` at `address`; its storage is those bytes and cannot grow.

    Raises
    ------
    TypeError
        An argument is of the wrong type.
    ValueError
        The device is no CUDA device, or not one that torch sees; the shape is negative, empty or
        too large; `dtype` is quantized; the address is 0 or not aligned. Nothing has changed.
    RuntimeError
        Torch has no CUDA, or finds no device.

    Source: the DLPack specification.
    """
    address = integer(address, "address")
    sizes = shape_of(shape)
    item_bytes = item_size(dtype)
    place = cuda_place(device)
    address = positive(address, "address")
    size_bytes = math.prod(sizes) * item_bytes
    if size_bytes == 0:
        raise ValueError(f"shape {shown(sizes)} has no elements: such a tensor lies at no address")
    check_alignment(address, dtype)
    return view_of(address, size_bytes, sizes, dtype, place, owner)


def bytes_at(
    address: int,
    size_bytes: int,
    shape: Iterable[int] | None,
    dtype: torch.dtype | None,
    device_id: int,
) -> torch.Tensor:
    """Return a tensor at the start of a storage of `size_bytes`; by default all of it, as bytes."""
    dtype = torch.uint8 if dtype is None else dtype
    sizes = (size_bytes,) if shape is None else shape_of(shape)
    item_size(dtype)
    check_alignment(address, dtype)
    return view_of(address, size_bytes, sizes, dtype, torch.device("cuda", device_id), None)


def view_of(
    address: int,
    size_bytes: int,
    sizes: tuple[int, ...],
    dtype: torch.dtype,
    place: torch.device,
    owner: object,
) -> torch.Tensor:
    """Return a tensor at the start of a storage of `size_bytes`, which must hold it.

    The bytes come through DLPack, which knows fewer dtypes than torch does, and get
    their dtype and shape afterwards.
    """
    wanted = math.prod(sizes) * dtype.itemsize
    if wanted > size_bytes:
        raise ValueError(
            f"shape {shown(sizes)} of {dtype} is {shown(wanted)} bytes, but there are {size_bytes}"
        )
    if address + size_bytes > LIMIT_BYTES:
        raise ValueError(f"{size_bytes} bytes at {address} end past the address space")
    if place.type == "cuda":
        check_visible(place)
    view: Any = torch.empty(0, dtype=dtype, device=place)
    row = _dlpack.capsule(
        address, size_bytes, DLPACK_DEVICES[place.type], max(view.get_device(), 0), owner
    )
    taken: torch.Tensor = torch.utils.dlpack.from_dlpack(row)
    view.set_(taken.untyped_storage(), 0, sizes)
    tensor: torch.Tensor = view
    return tensor


def shape_of(shape: Iterable[int]) -> tuple[int, ...]:
    """Return `shape` as a tuple of ints, none of them negative."""
    name = "a dimension of shape"
    sizes = tuple(integer(size, name) for size in iterable(shape, "shape", "integers"))
    for size in sizes:
        within_64_bits(size, name)
    if any(size < 0 for size in sizes):
        raise ValueError(f"shape must not be negative, got {shown(sizes)}")
    return sizes


def check_alignment(address: int, dtype: torch.dtype) -> None:
    """Refuse an address that no element of this dtype can lie at."""
    if address % dtype.itemsize:
        raise ValueError(
            f"address {address} is not a multiple of {dtype.itemsize}, the bytes of a {dtype}"
        )


def item_size(dtype: torch.dtype) -> int:
    """Return the bytes of an element."""
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype must be a torch.dtype, not {type(dtype).__name__} {shown(dtype)}")
    if dtype in QUANTIZED:
        raise ValueError(f"dtype {dtype} is quantized, and its scales lie elsewhere: use integers")
    size_bytes: int = dtype.itemsize
    return size_bytes
