"""An arena as an allocator for torch's memory pools."""

from __future__ import annotations

import ctypes
import threading
import weakref
from typing import Any, NamedTuple

import torch.cuda.memory

from vmmcy.arena import BumpArena
from vmmcy.entry_points import EntryPoints


class _Lent(NamedTuple):
    """An allocator that torch may call, and how to tell when it no longer will."""

    allocator: Any
    entry_points: EntryPoints
    arena: weakref.ref[BumpArena]

    def is_over(self) -> bool:
        """Whether the arena is closed and nothing that it handed out is still to be freed."""
        arena = self.arena()
        if arena is not None and not arena.closed:
            return False
        hold = self.entry_points._hold
        if hold is None or not hold.is_ours:
            return False
        figures = hold.figures()
        return not (figures.live_count or figures.retired_count)


# A pool knows its allocator by a bare pointer: dropped before the pool has given its segments
# back, it would be called after its end. So it is kept until then, and at the
# interpreter's exit, where pools die in any order, for ever.
_lent: list[_Lent] = []
_lent_lock = threading.Lock()


def pluggable_allocator(arena: BumpArena) -> Any:
    """Return what ``torch.cuda.MemPool`` takes to put its segments into an arena.

    While the object lives, the arena's entry points serve no other arena. Keep it and
    the arena for as long as the pool: a pool over a closed arena gets nothing, and torch
    says that it is out of memory.

    Parameters
    ----------
    arena : BumpArena
        The arena, which stays the caller's to close.

    Returns
    -------
    torch._C._cuda_CUDAAllocator
        The allocator; made without a compiler.

    Raises
    ------
    TypeError
        `arena` is no `BumpArena`.
    RuntimeError
        The arena is closed or a parent process's, or this torch has no CUDA. Nothing
        has changed.

    Source: ``torch.cuda.memory.CUDAPluggableAllocator``.
    """
    if not isinstance(arena, BumpArena):
        raise TypeError(f"arena must be a BumpArena, not {type(arena).__name__}")
    if arena.closed:
        raise RuntimeError("pluggable_allocator: the arena is closed; make another")
    if not hasattr(torch._C, "_cuda_customAllocator"):
        raise RuntimeError(f"torch {torch.__version__} was built without CUDA: install one with it")
    entry_points = arena.entry_points
    make: Any = torch.cuda.memory.CUDAPluggableAllocator
    allocator = make(
        entry_points.library_path, entry_points.malloc_symbol, entry_points.free_symbol
    ).allocator()
    # Torch's class takes no attributes, but a finalizer holds on to its arguments.
    weakref.finalize(allocator, id, entry_points)
    lend(allocator, arena, entry_points)
    return allocator


def lend(allocator: Any, arena: BumpArena, entry_points: EntryPoints) -> None:
    """Keep an allocator until torch no longer calls it; let go of those that are over."""
    with _lent_lock:
        over = [lent for lent in _lent if lent.is_over()]
        _lent[:] = [lent for lent in _lent if lent not in over]
        _lent.append(_Lent(allocator, entry_points, weakref.ref(arena)))
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(allocator))
    for lent in over:
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(lent.allocator))
