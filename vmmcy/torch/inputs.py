"""Tensors as graph inputs: where each lies, and the bytes that it really spans."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray


def graph_inputs(
    tensors: Iterable[torch.Tensor],
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return addresses and sizes of tensors, as `vmmcy.resolve_graph_inputs` takes them.

    A tensor counts from the lowest to the highest byte that it can touch: a view is not its
    whole storage, and the gaps of one that is not contiguous belong to it.

    Parameters
    ----------
    tensors : iterable of torch.Tensor
        Dense CUDA tensors of one device, with at least one element each.

    Returns
    -------
    pointers, sizes : array of uint64, shape (num_tensors,)
        Address and bytes of each tensor, in the given order; new arrays, the caller's. The
        tensors must live for as long as the addresses are used.

    Raises
    ------
    TypeError
        `tensors` is a tensor itself or no iterable, or holds something else.
    ValueError
        A tensor is not on a CUDA device, not on that of the first, not dense, or empty. The
        text names the index.
    """
    if isinstance(tensors, torch.Tensor) or not isinstance(tensors, Iterable):
        raise TypeError(f"tensors must be an iterable of tensors, not {type(tensors).__name__}")
    pointers, sizes = [], []
    first = None
    for index, tensor in enumerate(tensors):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"graph input {index} must be a tensor, not {type(tensor).__name__}")
        device = tensor.get_device() if tensor.is_cuda else None
        if first is None:
            first = device
        if device is None or device != first:
            raise ValueError(_not_there(index, tensor, first))
        if tensor.layout is not torch.strided:
            raise ValueError(f"graph input {index} is not dense: its layout is {tensor.layout}")
        if tensor.is_contiguous():
            size = tensor.nbytes
        else:
            size = span_bytes(tensor.shape, tensor.stride(), tensor.itemsize)
        if size == 0:
            shape = tuple(tensor.shape)
            raise ValueError(f"graph input {index} has no elements: its shape is {shape}")
        pointers.append(tensor.data_ptr())
        sizes.append(size)
    return np.array(pointers, np.uint64), np.array(sizes, np.uint64)


def span_bytes(shape: Sequence[int], strides: Sequence[int], item_bytes: int) -> int:
    """Return the bytes from the first element, the lowest, to the end of the highest.

    Torch's strides are never negative; 0 is a dimension that is expanded.
    """
    reach = 0
    for size, stride in zip(shape, strides, strict=True):
        if size == 0:
            return 0
        reach += (size - 1) * stride
    return (reach + 1) * item_bytes


def _not_there(index: int, tensor: torch.Tensor, first: int | None) -> str:
    """Say why a tensor is on no device of use."""
    if not tensor.is_cuda:
        return f"graph input {index} must be on a CUDA device, but is on {tensor.device}"
    return f"graph input {index} is on {tensor.device}, but graph input 0 is on cuda:{first}"
