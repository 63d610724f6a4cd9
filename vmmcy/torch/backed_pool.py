"""Torch pools whose physical memory comes and goes under addresses that stay."""

from __future__ import annotations

import os
import weakref
from collections import deque
from contextlib import suppress
from functools import partial
from typing import Any, Self

import torch

from vmmcy._arguments import device_ordinal, flag, shown
from vmmcy._core_owner import NEVER_MADE, ClosedBehind, Uncopied, refuse_twice
from vmmcy._ranges import core_of_pool
from vmmcy.backed_segments import BackedSegments
from vmmcy.handle_pool import HandlePool
from vmmcy.torch.allocator import pluggable_allocator
from vmmcy.torch.device import current_device, need_cuda
from vmmcy.torch.graph_pool import snapshot_of
from vmmcy.torch.idle import wait_for_device
from vmmcy.torch.pool import NO_CACHING_VARIABLE, check_backend
from vmmcy.torch.pool_runs import active_bytes, active_ranges

NOTHING, HOST = "nothing", "host"

_C: Any = torch._C

# Segments of pools that were dropped open: torch gives them back as the pool goes, after its
# Python part. Closed when the next pool is made.
_orphans: deque[BackedSegments] = deque()


def close_orphans() -> None:
    """Give back the memory of dropped pools, as far as torch has given back the segments.

    Waits for the device where work may still use what was freed. Each pool is one thread's to
    close, whoever else does this meanwhile.
    """
    for _ in range(len(_orphans)):
        try:
            segments = _orphans.popleft()
        except IndexError:
            return
        try:
            with suppress(RuntimeError):
                segments.close()
        finally:
            _orphan(segments)


class BackedPool(ClosedBehind, Uncopied, torch.cuda.MemPool):
    """A torch memory pool with memory of its own, which can be taken away and brought back.

    Each segment is committed when torch asks for it. `pause` takes the physical memory of all of
    them away, for whoever else needs it; `resume` brings it back **at the same addresses**, so
    that tensors and captured graphs are good again. Several pools can be paused one by one.

    For ``torch.cuda.use_mem_pool`` and, by its `id`, for ``torch.cuda.graph(pool=)``. While the
    pool is paused neither may be entered, which `id` refuses, and no kernel may touch its tensors.

    Close it when its tensors and graphs are gone. The memory of a pool that is dropped open is
    given back when the next one is made, which may wait for the device then. Let it die only
    where no thread allocates in a pool or captures: torch aborts the process otherwise.

    Parameters
    ----------
    device_id : int, optional
        The device; by default that of `pool`, else torch's current one.
    reserve_bytes : int, optional
        Addresses to reserve: the most that its segments may span at once; 1 TiB by default, since
        they cost nothing.
    chunk_bytes : int, optional
        The largest mapping within a segment; see `BackedSegments`.
    pool : HandlePool, optional
        Where the memory comes from and goes back to, in whole chunks: then `pause` frees the
        device's memory only as far as that is full, and the rest with ``pool.trim()``.
    no_split : bool, optional
        Give each tensor a segment of its own, never shared or split.

    Raises
    ------
    TypeError, ValueError
        An argument is of the wrong type or out of range.
    RuntimeError
        Torch has no CUDA, or is set up so that it would not call a pool's allocator.
    CudaDriverError
        The driver refused the addresses. Nothing is left.

    Source: ``torch.cuda.MemPool``; ``cuMemCreate``, ``cuMemMap``, ``cuMemUnmap``.
    """

    INSTEAD = "make another"
    NOUN = "pool"
    _segments: BackedSegments = NEVER_MADE

    def __new__(cls, *_: object, **__: object) -> Self:
        """Refuse a torch without CUDA, whose `MemPool` stands for none."""
        need_cuda()
        made: Self = super().__new__(cls)
        return made

    def __init__(
        self,
        device_id: int | None = None,
        *,
        reserve_bytes: int | None = None,
        chunk_bytes: int | None = None,
        pool: HandlePool | None = None,
        no_split: bool = False,
    ) -> None:
        refuse_twice(self, self._segments)
        if device_id is not None:
            device_id = device_ordinal(device_id)
        no_split = flag(no_split, "no_split")
        if torch.cuda.is_available():
            check_backend(torch.cuda.get_allocator_backend(), os.environ.get(NO_CACHING_VARIABLE))
        close_orphans()
        device = device_id
        if device is None:
            device = current_device() if pool is None else core_of_pool(pool).device_id
        segments = BackedSegments(
            reserve_bytes,
            device_id=device,
            chunk_bytes=chunk_bytes,
            pool=pool,
            quiesce=partial(wait_for_device, device, "BackedPool"),
            name="BackedPool",
        )
        try:
            allocator = pluggable_allocator(segments)
            with torch.cuda.device(device):
                super().__init__(allocator, no_split=no_split)
        except BaseException:
            segments.close()
            raise
        self._segments = segments
        weakref.finalize(self, _orphan, segments).atexit = False
        # Torch has it by a bare pointer: it must outlive its use.
        self._allocator = allocator

    @property
    def id(self) -> tuple[int, int]:
        """What names the pool to torch; refused while nothing may be allocated from it."""
        if self.closed or self.paused:
            state = "closed" if self.closed else "paused: resume it first"
            raise RuntimeError(f"BackedPool: nothing can be allocated, the pool is {state}")
        return self._id

    @property
    def _id(self) -> tuple[int, int]:
        name: tuple[int, int] = super().id
        return name

    @property
    def device_id(self) -> int:
        """The device of the memory."""
        return self._segments.device_id

    @property
    def paused(self) -> bool:
        """Whether the physical memory is taken away."""
        return self._segments.paused

    @property
    def closed(self) -> bool:
        """Whether everything is given back."""
        return self._segments.closed

    @property
    def segment_count(self) -> int:
        """The segments that torch has."""
        return self._segments.segment_count

    @property
    def backed_bytes(self) -> int:
        """The device memory that the pool takes."""
        return self._segments.backed_bytes

    @property
    def host_bytes(self) -> int:
        """The pinned host memory that is held for contents, used or not."""
        return self._segments.host_bytes

    @property
    def last_error(self) -> Exception | None:
        """Why torch's last request got nothing, which it calls out of memory; None if it did."""
        return self._segments.last_error

    def pause(self, keep: str = NOTHING) -> None:
        """Wait for the device and take all physical memory of the pool away, all or nothing.

        Whoever has tensors of the pool must not use them until `resume`, and nobody may be
        allocating from it meanwhile.

        Parameters
        ----------
        keep : {"nothing", "host"}, optional
            "host" copies what torch's tensors hold to pinned host memory, and `resume` copies it
            back; free blocks are not copied. That memory is got the first time, about 0.4 s a GiB,
            and kept for the next: see `release_host`. With "nothing" contents come back undefined.

        Raises
        ------
        TypeError, ValueError
            `keep` is neither.
        RuntimeError
            The pool is paused, closed, a parent process's, or being allocated from; or somebody
            captures a graph.
        CudaDriverError
            The driver refused. Nothing has changed.

        Source: ``cuMemUnmap``, after ``torch.cuda.synchronize``; ``cuMemcpyDtoHAsync``.
        """
        if keep not in (NOTHING, HOST):
            raise ValueError(f"keep must be {NOTHING!r} or {HOST!r}, not {shown(keep)}")
        if not (self.closed or self.paused):
            wait_for_device(self.device_id, "BackedPool")
            self._refuse_entered("pause")
        ranges: list[tuple[int, int]] = []
        if keep == HOST:
            ranges = active_ranges(snapshot_of(self._id), self.device_id)
        self._segments.pause(ranges)

    def resume(self) -> None:
        """Bring all physical memory back at the same addresses, all or nothing.

        Raises
        ------
        RuntimeError
            The pool is not paused, closed, or a parent process's.
        CudaDriverError
            The driver refused, as when there is no memory left (`CudaOutOfMemoryError`). The pool
            stays paused, what the host keeps stays there, and it can be tried again.

        Source: ``cuMemCreate``, ``cuMemMap``, ``cuMemSetAccess``; ``cuMemcpyHtoDAsync``.
        """
        self._segments.resume()

    def synchronize(self) -> int:
        """Wait for the streams of the segments that torch has freed, and give their memory back.

        Returns
        -------
        int
            The bytes given back.

        Raises
        ------
        RuntimeError
            The pool is closed, or a parent process's; or a freed segment's stream is captured.
        """
        return self._segments.synchronize()

    def release_host(self) -> None:
        """Give the pinned host memory back.

        Raises
        ------
        RuntimeError
            It keeps contents of the paused pool.
        CudaDriverError
            The driver refused; what it did not take is still in `host_bytes`.
        """
        self._segments.release_host()

    def close(self) -> None:
        """Have torch give back its segments, and give everything back; closing twice is fine.

        Raises
        ------
        RuntimeError
            A tensor or a graph of the pool lives, somebody allocates from it or captures, or it
            is a parent process's. Nothing has changed.
        CudaDriverError
            The driver refused. What could be undone is, and `close` may be called again.
        """
        if self.segment_count:
            self._have_segments_freed()
        self._segments.close()

    def _have_segments_freed(self) -> None:
        """Have torch do what it does when a pool dies, then count the pool again."""
        device, pool = self.device_id, self._id
        if self.use_count() > 1:
            raise RuntimeError(
                "BackedPool.close: a graph was captured into the pool, or somebody allocates from "
                "it; drop the graph and leave the pool first"
            )
        wait_for_device(device, "BackedPool")
        torch.cuda.empty_cache()  # what was freed on other streams counts as in use until here
        used = active_bytes(snapshot_of(pool))
        if used:
            raise RuntimeError(f"BackedPool.close: {used} bytes are in use; drop the tensors first")
        _C._cuda_releasePool(device, pool)
        torch.cuda.empty_cache()
        _C._cuda_beginAllocateCurrentThreadToPool(device, pool)
        _C._cuda_endAllocateToPool(device, pool)

    def _refuse_entered(self, method: str) -> None:
        """Refuse while any thread allocates from the pool."""
        device, pool = self.device_id, self._id
        before = self.use_count()
        try:
            _C._cuda_beginAllocateCurrentThreadToPool(device, pool)
        except RuntimeError as error:
            # Torch may have counted us before it refused.
            if self.use_count() > before:
                _C._cuda_releasePool(device, pool)
            raise RuntimeError(f"BackedPool.{method}: the pool is being allocated from") from error
        _C._cuda_endAllocateToPool(device, pool)
        _C._cuda_releasePool(device, pool)

    def __enter__(self) -> Self:
        """Return the pool itself."""
        return self

    def __repr__(self) -> str:
        """Return size and state."""
        state = "closed" if self.closed else "paused" if self.paused else "backed"
        return (
            f"<BackedPool of {self.segment_count} segments, {self.backed_bytes} bytes, "
            f"device {self.device_id}, {state}>"
        )


def _orphan(segments: BackedSegments) -> None:
    """Keep the segments of a pool that is dropped open."""
    if not segments.closed:
        _orphans.append(segments)
