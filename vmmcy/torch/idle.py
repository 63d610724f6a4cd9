"""Waiting until a device is idle, where that disturbs nobody."""

from __future__ import annotations

import torch.cuda

from vmmcy.torch.capture import between_captures


def wait_for_device(device_id: int, name: str) -> None:
    """Wait until no kernel uses the device's memory, unless that would end a capture.

    Parameters
    ----------
    device_id : int
        The device.
    name : str
        Who wants to wait, for the refusal.

    Raises
    ------
    RuntimeError
        Somebody captures.
    """
    with between_captures() as nobody_captures:
        if nobody_captures:
            torch.cuda.synchronize(device_id)
            return
    raise RuntimeError(
        f"{name}: a graph is being captured, and waiting for kernels would end the capture; "
        "give memory back before or after it"
    )
