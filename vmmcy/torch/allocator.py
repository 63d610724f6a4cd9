"""Arenas and backed segments as allocators for torch's memory pools."""

from __future__ import annotations

import ctypes
import threading
import weakref
from typing import Any, NamedTuple

import torch.cuda.memory

from vmmcy.arena import BumpArena
from vmmcy.backed_segments import BackedSegments
from vmmcy.entry_points import EntryPoints
from vmmcy.torch.device import need_cuda

Owner = BumpArena | BackedSegments


class _Lent(NamedTuple):
    """An allocator that torch may call, and how to tell when it no longer will."""

    allocator: Any
    entry_points: EntryPoints
    owner: weakref.ref[Owner]

    def is_over(self) -> bool:
        """Whether the owner is closed and nothing that it handed out is still to be freed."""
        owner = self.owner()
        if owner is not None and not owner.closed:
            return False
        hold = self.entry_points._hold
        return hold is not None and hold.is_ours and hold.outstanding == 0


# A pool knows its allocator by a bare pointer: dropped before the pool has given its segments
# back, it would be called after its end. So it is kept until then, and at the
# interpreter's exit, where pools die in any order, for ever.
_lent: list[_Lent] = []
_lent_lock = threading.Lock()


def pluggable_allocator(owner: Owner) -> Any:
    """Return what ``torch.cuda.MemPool`` takes to put its segments into an arena or the like.

    While the object lives, the owner's entry points serve nobody else. Keep it and the
    owner for as long as the pool: a pool over a closed arena gets nothing, and torch
    says that it is out of memory.

    Parameters
    ----------
    owner : BumpArena or BackedSegments
        Whose segments they will be; it stays the caller's to close.

    Returns
    -------
    torch._C._cuda_CUDAAllocator
        The allocator; made without a compiler.

    Raises
    ------
    TypeError
        `owner` is neither.
    RuntimeError
        The owner is closed or a parent process's, or this torch has no CUDA. Nothing
        has changed.

    Source: ``torch.cuda.memory.CUDAPluggableAllocator``.
    """
    if not isinstance(owner, BumpArena | BackedSegments):
        raise TypeError(f"owner must be a BumpArena or BackedSegments, not {type(owner).__name__}")
    if owner.closed:
        raise RuntimeError("pluggable_allocator: the owner is closed; make another")
    need_cuda()
    entry_points = owner.entry_points
    make: Any = torch.cuda.memory.CUDAPluggableAllocator
    allocator = make(
        entry_points.library_path, entry_points.malloc_symbol, entry_points.free_symbol
    ).allocator()
    # Torch's class takes no attributes, but a finalizer holds on to its arguments.
    weakref.finalize(allocator, id, entry_points)
    lend(allocator, owner, entry_points)
    return allocator


def lend(allocator: Any, owner: Owner, entry_points: EntryPoints) -> None:
    """Keep an allocator until torch no longer calls it; let go of those that are over."""
    with _lent_lock:
        over = [lent for lent in _lent if lent.is_over()]
        _lent[:] = [lent for lent in _lent if lent not in over]
        _lent.append(_Lent(allocator, entry_points, weakref.ref(owner)))
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(allocator))
    for lent in over:
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(lent.allocator))
