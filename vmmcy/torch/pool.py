"""Torch's memory pools over an arena: ordinary tensors on memory that the engine owns."""

from __future__ import annotations

import os
from typing import Any

import torch

from vmmcy._arguments import flag
from vmmcy._core_owner import NEVER_MADE, Uncopied, refuse_twice
from vmmcy.arena import BumpArena
from vmmcy.torch.allocator import pluggable_allocator

NATIVE_BACKEND = "native"
NO_CACHING_VARIABLE = "PYTORCH_NO_CUDA_MEMORY_CACHING"


class ArenaPool(Uncopied, torch.cuda.MemPool):
    """A torch memory pool whose segments lie in an arena, which it keeps alive.

    Made by `mem_pool`; for ``torch.cuda.use_mem_pool`` and, by its ``id``, for
    ``torch.cuda.graph(pool=)``.

    Parameters
    ----------
    arena : BumpArena
        Where the segments lie.
    allocator : torch._C._cuda_CUDAAllocator
        What serves them from there, as `pluggable_allocator` makes it.
    no_split : bool
        Whether each tensor gets a segment of its own.
    """

    INSTEAD = "make another with mem_pool"
    _arena: BumpArena = NEVER_MADE

    def __init__(self, arena: BumpArena, allocator: Any, no_split: bool) -> None:
        refuse_twice(self, self._arena)
        super().__init__(allocator, no_split=no_split)
        self._arena = arena
        # Torch has it by a bare pointer: it must outlive its use, also when the arena is closed.
        self._allocator = allocator

    @property
    def arena(self) -> BumpArena:
        """Where the segments lie."""
        return self._arena


def mem_pool(arena: BumpArena, *, no_split: bool = False) -> ArenaPool:
    """Return a torch memory pool over an arena.

    The arena can be closed when every segment is back: drop the tensors, the graphs and the
    pool, then call ``torch.cuda.empty_cache()``. A segment that comes back is free in the
    arena's books; `BumpArena.reclaim` hands its addresses out again.

    Let a pool die only where no thread allocates in one or captures: torch aborts the
    process otherwise.

    Parameters
    ----------
    arena : BumpArena
        On memory of torch's current device, which is where the pool is for. Backed memory: torch
        does not ask.
    no_split : bool, optional
        Give each tensor a segment of its own, of `segment_bytes`, never shared or split.

    Returns
    -------
    ArenaPool
        A ``torch.cuda.MemPool``.

    Raises
    ------
    TypeError
        `arena` is no `BumpArena`.
    ValueError
        The arena is on a device that torch does not see, or not on its current one.
    RuntimeError
        The arena is closed or a parent process's, torch has no CUDA, or it is set up so
        that it would not call a pool's allocator. Nothing has changed.

    Source: ``torch.cuda.MemPool``.
    """
    if not isinstance(arena, BumpArena):
        raise TypeError(f"arena must be a BumpArena, not {type(arena).__name__}")
    if arena.closed:
        raise RuntimeError("mem_pool: the arena is closed; make another")
    no_split = flag(no_split, "no_split")
    if torch.cuda.is_available():
        check_device(arena.device_id, torch.cuda.device_count(), torch.cuda.current_device())
        check_backend(torch.cuda.get_allocator_backend(), os.environ.get(NO_CACHING_VARIABLE))
    return ArenaPool(arena, pluggable_allocator(arena), no_split)


def check_device(arena_device: int | None, device_count: int, current: int) -> None:
    """Refuse an arena whose memory is not on the device that the pool will be for."""
    if arena_device is None or arena_device == current:
        return
    if arena_device >= device_count:
        raise ValueError(
            f"the arena's memory is on device {arena_device}, but torch sees {device_count}, "
            "counted from 0"
        )
    raise ValueError(
        f"the arena's memory is on device {arena_device}, but torch's current device is {current}: "
        f"make the pool inside torch.cuda.device({arena_device})"
    )


def check_backend(backend: str, no_caching: str | None) -> None:
    """Refuse a torch that would allocate past the pool."""
    if backend != NATIVE_BACKEND:
        raise RuntimeError(
            f"mem_pool: torch's allocator backend is {backend!r}, which calls no pool's allocator; "
            "unset backend: in PYTORCH_CUDA_ALLOC_CONF"
        )
    if no_caching not in (None, "0"):
        raise RuntimeError(
            f"mem_pool: {NO_CACHING_VARIABLE}={no_caching} has torch allocate past every pool; "
            "unset it before the process starts"
        )
