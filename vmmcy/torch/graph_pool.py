"""What is free in one of torch's private pools, and keeping such a pool alive."""

from __future__ import annotations

from typing import Any

import torch.cuda

from vmmcy._arguments import device_ordinal
from vmmcy.torch.device import current_device, need_cuda
from vmmcy.torch.pool_runs import pool_id_of, runs_of

_C: Any = torch._C
_init: Any = torch.cuda.init

PoolId = tuple[int, int]


def free_runs(pool_id: Any, device_id: int | None = None) -> list[tuple[int, int]]:
    """Return the inactive runs of a private pool: what nothing of the pool uses now.

    Between two replays this is where a captured graph keeps its intermediate results: it
    may be used for something else until the next replay writes there.

    Parameters
    ----------
    pool_id : tuple of (int, int), torch.cuda.MemPool or torch.cuda.CUDAGraph
        The pool, as ``torch.cuda.graph_pool_handle()`` or ``graph.pool()`` names it.
    device_id : int, optional
        The device whose memory is looked at; torch's current one when None.

    Returns
    -------
    list of (int, int)
        Address and size in bytes of each run, largest first. Neighbouring blocks of a
        segment are one run; segments are not joined; blocks that are in use, or freed and
        waiting for another stream, are in no run.

    Raises
    ------
    TypeError
        `pool_id` is no pool; `device_id` is no integer.
    ValueError
        Torch has no such pool on the device, or has given it up. Nothing has changed.
    RuntimeError
        Somebody captures into the pool or allocates from it; or this torch has no CUDA. Asked
        then, torch may keep the pool's memory to the end of the process.

    Source: ``torch.cuda.memory_snapshot``.
    """
    pool = pool_id_of(pool_id)
    device = current_device() if device_id is None else device_ordinal(device_id)
    hold_pool(pool, device)
    try:
        return runs_of(snapshot_of(pool), device)
    finally:
        release_pool(pool, device)


def snapshot_of(pool: PoolId) -> list[dict[str, Any]]:
    """Return torch's list of a pool's segments; asks no driver."""
    snapshot: Any = torch.cuda.memory_snapshot
    segments: list[dict[str, Any]] = snapshot(pool, include_traces=False)
    return segments


def hold_pool(pool: PoolId, device: int) -> None:
    """Keep a pool's memory although its last graph dies, until `release_pool`.

    Raises
    ------
    RuntimeError
        This torch has no CUDA, or somebody allocates from the pool just now.
    ValueError
        There is no such pool, or nothing holds it any more.
    """
    need_cuda()
    _init()
    # An unknown pool would be made by what follows; this only looks.
    try:
        _C._cuda_checkPoolLiveAllocations(device, pool, set())
    except RuntimeError as error:
        raise ValueError(
            f"device {device} has no memory pool {pool}: nothing was captured into it, or torch "
            "has freed it"
        ) from error
    try:
        _C._cuda_beginAllocateCurrentThreadToPool(device, pool)
    except RuntimeError as error:
        # By now torch may have counted us, which only keeps the pool alive. A release without
        # a count would free it under its graphs.
        if "already recording" in str(error):
            raise RuntimeError(f"memory pool {pool} is being allocated from") from error
        raise ValueError(
            f"memory pool {pool} of device {device} was freed: its graphs are gone"
        ) from error
    _C._cuda_endAllocateToPool(device, pool)


def release_pool(pool: PoolId, device: int) -> None:
    """Undo one `hold_pool`."""
    _C._cuda_releasePool(device, pool)
