"""Lendings: free runs of a graph pool as the memory of a torch pool of their own.

Torch frees a pool's segments when the pool object dies, and waits for events as it does: a
pool that dies while anyone captures on the device ends the process. So every lending is kept
here, and dropped only in a moment that is known to be safe.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch.cuda

from vmmcy._stream_order import order_behind_device
from vmmcy.arena import BumpArena
from vmmcy.torch.allocator import pluggable_allocator
from vmmcy.torch.capture import between_captures
from vmmcy.torch.graph_pool import PoolId, hold_pool, release_pool, snapshot_of
from vmmcy.torch.pool_runs import active_bytes, awaited_bytes, inactive_bytes, streams_of
from vmmcy.torch.seeding import seeds_of, usable_runs

_lock = threading.RLock()
_kept: list[Lending] = []
_open_borrows = 0


class Lending:
    """Free runs, the arena over them and the torch pool over that, from one layout to the next.

    Parameters
    ----------
    runs : sequence of (int, int)
        Address and size in bytes of each run.
    source : tuple of (int, int) or None
        The pool that the runs belong to, kept alive meanwhile; None for memory of others.
    device : int
        The device of the runs.
    stream : int
        The raw handle of the one stream that borrows, and then replays.
    """

    def __init__(
        self, runs: Sequence[tuple[int, int]], source: PoolId | None, device: int, stream: int
    ) -> None:
        self.runs = list(runs)
        self.device = device
        self._stream = stream
        self.retired = False
        self._awaited_bytes = 0
        self.source = source
        usable = usable_runs(runs)
        if source is not None:
            hold_pool(source, device)
        try:
            self._arena = BumpArena(
                usable, best_fit=True, max_extents=max(len(usable), 1), device_id=device
            )
            with torch.cuda.device(device):
                self._pool: Any = torch.cuda.MemPool(pluggable_allocator(self._arena))
        except BaseException:
            if source is not None:
                release_pool(source, device)
            raise
        with _lock:
            _kept.append(self)

    @contextmanager
    def open(self) -> Iterator[None]:
        """Send this thread's allocations to the runs."""
        global _open_borrows
        with _lock:
            _open_borrows += 1
        try:
            with torch.cuda.use_mem_pool(self._pool, self.device):
                yield
        finally:
            with _lock:
                _open_borrows -= 1

    def seed(self) -> None:
        """Have torch cache the runs as few large segments, of the stream that is current."""
        place = torch.device("cuda", self.device)
        with self.open():
            # All are alive until the last is there: torch would cut the second from the first.
            seeds = [
                torch.empty(size_bytes, dtype=torch.uint8, device=place)
                for size_bytes in seeds_of(self.runs)
            ]
            del seeds

    def segments(self) -> list[dict[str, Any]]:
        """Return torch's list of what it has got here so far; nothing once it is dropped."""
        return [] if self._pool is None else snapshot_of(self._pool.id)

    def strays(self) -> set[int]:
        """Return the other streams that memory was asked for on, as raw handles."""
        return streams_of(self.segments()) - {self._stream}

    @property
    def awaits(self) -> bool:
        """Whether another stream may still use what was freed, and none is behind it."""
        return self._awaited_bytes > 0

    def settle(self) -> int:
        """Put the stream behind others that use what was freed; return the bytes that are left.

        Those are held by tensors, or freed while somebody captures. Torch forgets, at the first
        request after a borrow, which other streams use what was freed in it: so the end of
        the borrow is the time to look. Of what was asked for on another stream it never knew.
        """
        segments = self.segments()
        freed = awaited_bytes(segments)
        held = active_bytes(segments) - freed
        self._awaited_bytes = max(
            freed + inactive_bytes(segments, but_of=self._stream), self._awaited_bytes
        )
        if self._awaited_bytes:
            with between_captures() as nobody_captures:
                if nobody_captures and order_behind_device(self._stream, self.device):
                    self._awaited_bytes = 0
        return held + self._awaited_bytes

    def is_over(self) -> bool:
        """Whether nobody uses the memory any more, tensors or kernels, as far as torch knows."""
        return self.retired and self.settle() == 0 and active_bytes(self.segments()) == 0

    def drop(self) -> None:
        """Have torch give back every segment, and let go of the pool they came from."""
        self._pool = None
        self._arena.close(force=True)
        if self.source is not None:
            release_pool(self.source, self.device)


def lendings_of(source: PoolId, device: int) -> list[Lending]:
    """Return those of a pool that are not dropped yet."""
    with _lock:
        return [kept for kept in _kept if (kept.source, kept.device) == (source, device)]


def drop_retired() -> None:
    """Drop the lendings that nobody uses, unless that could disturb somebody's capture."""
    with _lock, between_captures() as nobody_captures:
        # An open borrow is a capture to torch.
        if _open_borrows or not nobody_captures:
            return
        done = [lending for lending in _kept if lending.is_over()]
        _kept[:] = [lending for lending in _kept if lending not in done]
        for lending in done:
            lending.drop()
