"""Torch's CUDA devices: that there are any, which one is meant, and which is current."""

from __future__ import annotations

from typing import Any

import torch

from vmmcy._arguments import device_ordinal


def need_cuda() -> None:
    """Refuse a torch that was built without CUDA, or that finds no device.

    Raises
    ------
    RuntimeError
        It is one of those.
    """
    if torch.cuda.is_initialized():
        return
    if not torch.backends.cuda.is_built():
        raise RuntimeError(f"torch {torch.__version__} was built without CUDA: install one with it")
    if not torch.cuda.is_available():
        raise RuntimeError(f"torch {torch.__version__} finds no CUDA device")


def current_device() -> int:
    """Return torch's current device, or raise as `need_cuda`."""
    need_cuda()
    device: int = torch.cuda.current_device()
    return device


def cuda_place(device: Any) -> torch.device:
    """Return a CUDA device of any form as torch's; without an index it is the current one.

    Raises
    ------
    TypeError, ValueError
        It is none. Whether torch sees it is another question: `check_visible`.
    """
    if not isinstance(device, str | torch.device):
        return torch.device("cuda", device_ordinal(device, "device"))
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device must be a CUDA device, got {device!r}") from error
    if place.type != "cuda":
        raise ValueError(f"device must be a CUDA device, got {str(place)!r}")
    return place


def check_visible(place: torch.device) -> None:
    """Refuse a CUDA device that torch does not see.

    Raises
    ------
    ValueError
        There are fewer.
    RuntimeError
        As `need_cuda`.
    """
    need_cuda()
    if place.index is not None and place.index >= torch.cuda.device_count():
        raise ValueError(
            f"device {place.index} is not a visible device: there are {torch.cuda.device_count()}, "
            "counted from 0"
        )
