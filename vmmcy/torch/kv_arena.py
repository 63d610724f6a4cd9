"""KV caches at addresses that stay, with memory behind as much of them as is needed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import Any, Self

import torch

from vmmcy._arguments import device_ordinal, integer, iterable, shown, unsigned
from vmmcy._buffer_spans import BufferSpans
from vmmcy._core_owner import NEVER_MADE, ClosedBehind, Uncopied, refuse_twice
from vmmcy._ranges import core_of_pool
from vmmcy.handle_pool import HandlePool
from vmmcy.torch.device import current_device
from vmmcy.torch.idle import wait_for_device
from vmmcy.torch.tensor import item_size, shape_of, tensor_at


class KvArena(ClosedBehind, Uncopied):
    """Tensors at stable addresses, backed from their starts as far as the caller says.

    One reservation holds all buffers, each from a granule on; at first nothing is behind them.
    So a CUDA graph can be captured over the upper bound of a KV cache before anybody knows
    how much memory is left: whatever it does *not* touch need not be backed, and it
    replays over what is backed later, since no address changes.

    Memory is taken away (`shrink`, `close`) only after the device is idle; while anybody
    captures that is refused, since waiting would end the capture. A capture of another
    thread is known by its `capture_scope`. The tensors must not be used past their
    spans, nor after `close`.

    Safe to use from many threads. An arena that is dropped open stays until its last view is
    gone, and then goes with a ``ResourceWarning``.

    Parameters
    ----------
    buffers : iterable of (shape, dtype)
        The largest shape of each buffer, as a pair of integers and a ``torch.dtype``, with at
        least one element.
    device_id : int, optional
        The device; by default that of `pool`, else torch's current one.
    chunk_bytes : int, optional
        The largest mapping, a multiple of the granularity. A mapping can only be given back
        whole, so small ones let `shrink` win more; and each costs about 45 µs to make and
        30 µs to give back: a GiB takes 23 ms in chunks of 2 MiB, 1.0 ms in chunks of
        64 MiB, 0.2 ms as one, on one H200 host. The default, 64 MiB, is where a GiB is backed
        within the time of a decode step. It costs no memory: `ensure` backs whole granules, not
        whole chunks.
        With a pool it is the pool's.
    pool : HandlePool, optional
        Where whole chunks come from, and where `shrink` and `close` put them back; what is backed
        of a chunk that is not backed whole comes from elsewhere. It has to stay open.

    Raises
    ------
    TypeError
        An argument is of the wrong type; the text names the buffer.
    ValueError
        A shape is empty or negative, a dtype quantized, there are no buffers, `chunk_bytes` is no
        multiple of the granularity, or there is no such device.
    CudaDriverError
        The driver refused the addresses. Nothing is left reserved.

    Source: ``cuMemAddressReserve``, ``cuMemCreate``, ``cuMemMap``, ``cuMemSetAccess``.
    """

    INSTEAD = "make another"
    NOUN = "arena"
    _spans: BufferSpans = NEVER_MADE

    def __init__(
        self,
        buffers: Iterable[tuple[Iterable[int], torch.dtype]],
        device_id: int | None = None,
        *,
        chunk_bytes: int | None = None,
        pool: HandlePool | None = None,
    ) -> None:
        refuse_twice(self, self._spans)
        rows = _rows(buffers)
        if device_id is not None:
            device_id = device_ordinal(device_id)
        if chunk_bytes is not None:
            chunk_bytes = integer(chunk_bytes, "chunk_bytes")
        if device_id is None:
            device_id = current_device() if pool is None else core_of_pool(pool).device_id
        sizes_bytes = [math.prod(shape) * dtype.itemsize for shape, dtype in rows]
        spans = BufferSpans(
            sizes_bytes,
            device_id,
            chunk_bytes,
            partial(wait_for_device, device_id, "KvArena"),
            pool,
        )
        try:
            tensors = tuple(
                tensor_at(spans.address(index), shape, dtype, device_id, owner=spans)
                for index, (shape, dtype) in enumerate(rows)
            )
            refuse_twice(self, self._spans)
        except BaseException:
            spans.close()
            raise
        self._tensors: tuple[torch.Tensor, ...] = tensors
        self._spans = spans

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The buffers, of their largest shape; a view of one keeps the addresses reserved."""
        if self.closed:
            raise RuntimeError("KvArena.tensors after close")
        return self._tensors

    @property
    def spans(self) -> tuple[int, ...]:
        """The bytes from each buffer's start that are ensured."""
        return self._spans.spans

    @property
    def backed_bytes(self) -> int:
        """The device memory taken: the spans in whole granules, and what was not given back."""
        return self._spans.reservation.mapped_bytes

    @property
    def granularity(self) -> int:
        """The unit of memory, in bytes."""
        return self._spans.granularity

    @property
    def chunk_bytes(self) -> int:
        """The largest mapping, in bytes."""
        return self._spans.chunk_bytes

    @property
    def device_id(self) -> int:
        """The device of the memory."""
        return self._spans.reservation.device_id

    @property
    def closed(self) -> bool:
        """Whether all is given back."""
        return self._spans.reservation.closed

    def ensure(self, spans: Iterable[int]) -> int:
        """Back at least the first ``spans[i]`` bytes of each buffer: all of them or none.

        Never gives back: a span below the one there is changes nothing. Works while a graph is
        being captured, and invalidates no capture.

        Parameters
        ----------
        spans : iterable of int
            Bytes, one for each buffer.

        Returns
        -------
        int
            The bytes newly backed, 0 if all was. Their contents are not defined.

        Raises
        ------
        TypeError
            A span is no integer.
        ValueError
            There are more or fewer spans than buffers, or one is longer than its buffer.
        RuntimeError
            The arena is final, closed, or a parent process's.
        CudaDriverError
            The driver refused, as when there is no memory left (`CudaOutOfMemoryError`). What
            this call backed is given back, unless the error's notes say that the driver
            refused that too: then it counts in `backed_bytes`, and the next `ensure` uses it, or
            says that only `close` is left.

        Source: ``cuMemCreate``, ``cuMemMap``, ``cuMemSetAccess``, ``cuMemRelease``.
        """
        return self._spans.grow(spans, "ensure")

    def finalize(self, spans: Iterable[int]) -> int:
        """Do as `ensure`, for the last time: then nothing but `close` changes the memory.

        A call that raises is not the last.
        """
        return self._spans.grow(spans, "finalize", final=True)

    def shrink(self, spans: Iterable[int]) -> int:
        """Give back what is backed past the first ``spans[i]`` bytes of each buffer.

        Waits for the device first. Only whole mappings come back; what one of them holds before the
        span stays backed, with all of it. Never backs: a span above the one there is changes
        nothing.

        Parameters
        ----------
        spans : iterable of int
            Bytes, one for each buffer.

        Returns
        -------
        int
            The bytes won.

        Raises
        ------
        TypeError, ValueError
            As `ensure`.
        RuntimeError
            The arena is final, closed, or a parent process's; somebody captures.
        CudaDriverError
            The driver refused. Buffers before the one that failed are shrunk, the others are
            as they were: see `spans`.

        Source: ``cuMemUnmap``, after ``torch.cuda.synchronize``.
        """
        return self._spans.shrink(spans, "shrink")

    def close(self) -> None:
        """Wait for the device and give everything back. Closing twice is fine.

        Raises
        ------
        RuntimeError
            Somebody captures, or the arena is a parent process's.
        CudaDriverError
            The driver refused: as `VmmReservation.close`, and may be called again.
        """
        self._spans.close()
        self._tensors = ()

    def __enter__(self) -> Self:
        """Return the arena itself."""
        self._spans.check_open("__enter__")
        return self

    def __repr__(self) -> str:
        """Return size, place and state."""
        state = "closed" if self.closed else f"{self.backed_bytes} bytes backed"
        reservation = self._spans.reservation
        place = f"{len(self.spans)} buffers, {reservation.size} bytes at {reservation.base}"
        return f"<KvArena of {place}, device {self.device_id}, {state}>"


def _rows(buffers: Iterable[Any]) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Return the caller's buffers as shapes and dtypes; a refusal names the buffer."""
    rows = []
    for index, buffer in enumerate(iterable(buffers, "buffers", "(shape, dtype) pairs")):
        if not isinstance(buffer, tuple | list) or len(buffer) != 2:
            raise TypeError(f"buffer {index} must be a (shape, dtype) pair, not {shown(buffer)}")
        shape, dtype = buffer
        try:
            item_size(dtype)
            sizes = shape_of(shape)
        except (TypeError, ValueError) as error:
            error.add_note(f"in buffer {index}")
            raise
        unsigned(math.prod(sizes) * dtype.itemsize, f"buffer {index}: its size in bytes")
        if math.prod(sizes) == 0:
            raise ValueError(f"buffer {index} has no elements: its shape is {sizes}")
        rows.append((sizes, dtype))
    if not rows:
        raise ValueError("buffers is empty: there is nothing to reserve")
    return rows
