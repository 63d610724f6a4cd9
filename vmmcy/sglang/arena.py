"""The engine's bump arena, without a compiler at run time."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, ClassVar

from vmmcy._arguments import integer
from vmmcy._core_owner import NEVER_MADE, Uncopied, refuse_twice
from vmmcy.arena import BumpArena

_instances = itertools.count()


class _UnclosedArena(BumpArena):
    """An arena whose owner has no way to close it, and so is not warned about it."""

    def __del__(self) -> None:
        # A parent process's is not ours to close, and says so.
        with suppress(RuntimeError):
            self.close(force=True)


class BumpArenaStub(Uncopied):
    """Hands out addresses from extents of memory that the caller owns, for torch.

    Wrap `allocator` in a ``torch.cuda.MemPool`` and keep the stub for as long as the
    pool: when the stub is gone, the pool gets nothing more.

    Raises
    ------
    TypeError, ValueError
        `MAX_EXTENTS` is no integer from 1 to 65,536.
    RuntimeError
        256 arenas are live or kept back already. Nothing is left of this one.

    Attributes
    ----------
    MAX_EXTENTS : int
        The most extents at once, read when a stub is made.
    sfx : str
        Names this stub among those of all processes: for logs.
    """

    INSTEAD = "make another, over extents of its own"
    MAX_EXTENTS: ClassVar[int] = 64

    _arena: BumpArena = NEVER_MADE

    def __init__(self) -> None:
        refuse_twice(self, self._arena)
        arena = _UnclosedArena(max_extents=integer(self.MAX_EXTENTS, "MAX_EXTENTS"))
        refuse_twice(self, self._arena)
        self._arena = arena
        self.sfx = f"{os.getpid()}_{next(_instances)}"

    @functools.cached_property
    def allocator(self) -> Any:
        """What ``torch.cuda.MemPool`` takes; see `vmmcy.torch.allocator.pluggable_allocator`."""
        from vmmcy.torch.allocator import pluggable_allocator

        return pluggable_allocator(self._arena)

    def set_extents(self, extents: Iterable[tuple[int, int]]) -> None:
        """Register ``(base, nbytes)`` pairs in the order that first fit follows.

        They take the place of those there are, all cursors at their base.

        Raises
        ------
        TypeError, ValueError
            As `BumpArena.set_extents`; the stub is as it was.
        """
        self._arena.set_extents(extents)

    def set_align(self, nbytes: int) -> None:
        """Align what is handed out from now on to `nbytes`, a power of two.

        Raises
        ------
        TypeError, ValueError
            As `BumpArena.set_align`; the stub is as it was.
        """
        self._arena.set_align(nbytes)

    def set_best_fit(self, on: bool) -> None:
        """Choose best fit (True) or first fit (False) from now on."""
        self._arena.set_best_fit(on)

    @property
    def cursor_bytes(self) -> int:
        """Sum of the extents' cursors, in bytes."""
        return self._arena.cursor_bytes

    @property
    def freed_bytes(self) -> int:
        """Bytes freed since the last `set_extents`, rounded as they were handed out."""
        return self._arena.freed_bytes
