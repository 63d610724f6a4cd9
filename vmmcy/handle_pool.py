"""Handle pools: physical memory that is kept for use again instead of being given back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vmmcy._arguments import flag, integer, positive, unsigned, whole_granules
from vmmcy._core_owner import NEVER_MADE, CoreOwner, refuse_twice
from vmmcy._handle_pool import PoolCore
from vmmcy._properties import granularity_of
from vmmcy.properties import GRANULARITY_RECOMMENDED, choose_prop, pack_user_prop

if TYPE_CHECKING:
    from cuda.bindings.driver import CUmemAllocationProp


class HandlePool(CoreOwner):
    """Physical memory in chunks of one size, for reservations made with ``pool=``.

    Their `commit` takes whole chunks from here, so that it costs mapping and setting access;
    their `decommit`, `unmap` and `close` put them back, at the cost of unmapping. A chunk that
    the pool has not got is made. Nobody else sees these handles.

    Where a call of vmmcy finds no memory left, in ``cuMemCreate``, ``cuMemMap``,
    ``cuMemSetAccess``, ``cuMemAddressReserve`` or ``cuMemHostAlloc``, the device's pools give up
    what they keep unused, and the driver is asked once more.

    Safe to use from many threads at once; reservations keep their pool alive. Dropping it open
    releases everything with a ``ResourceWarning``. One made before a fork is refused in the
    child.

    Parameters
    ----------
    device_id : int, optional
        The device; by default that of `prop`, else of the thread's context, else the
        only visible one.
    chunk_bytes : int
        Bytes of each chunk, a multiple of the granularity.
    capacity_bytes : int
        The most bytes that are kept unused, 0 or a chunk at least; what comes back beyond is
        released.
    prop : cuda.bindings.driver.CUmemAllocationProp, optional
        The properties of the memory, as for `VmmReservation`.
    scrub : bool
        Wipe a chunk before another reservation gets it than the one that gave it back. The
        commit then waits for the wiping, on a stream of the pool's own.

    Raises
    ------
    TypeError
        An argument is of the wrong type.
    ValueError
        An argument is out of range, or two of them contradict each other.
    CudaDriverError
        The driver refused. Nothing is left.

    Source: ``cuMemGetAllocationGranularity``; with `scrub` also ``cuStreamCreate``.
    """

    INSTEAD = "make another"
    NOUN = "pool"
    _core: PoolCore

    def __init__(
        self,
        device_id: int | None = None,
        *,
        chunk_bytes: int,
        capacity_bytes: int,
        prop: CUmemAllocationProp | None = None,
        scrub: bool = False,
    ) -> None:
        refuse_twice(self, self._core)
        if device_id is not None:
            device_id = integer(device_id, "device_id")
        chunk_bytes = integer(chunk_bytes, "chunk_bytes")
        capacity_bytes = integer(capacity_bytes, "capacity_bytes")
        packed = None if prop is None else pack_user_prop(prop)
        scrub = flag(scrub, "scrub")
        positive(chunk_bytes, "chunk_bytes")
        unsigned(capacity_bytes, "capacity_bytes")
        packed, device_id = choose_prop(packed, device_id)
        granularity = granularity_of(packed, GRANULARITY_RECOMMENDED)
        whole_granules(chunk_bytes, granularity, "chunk_bytes")
        if 0 < capacity_bytes < chunk_bytes:
            raise ValueError(
                f"capacity_bytes {capacity_bytes} holds no chunk of {chunk_bytes}: give that at "
                "least, or 0 to keep nothing"
            )
        core = PoolCore(packed, device_id, chunk_bytes, capacity_bytes, scrub)
        refuse_twice(self, self._core)
        self._core = core

    @property
    def device_id(self) -> int:
        """The device of the memory."""
        return self._core.device_id

    @property
    def chunk_bytes(self) -> int:
        """The bytes of each chunk."""
        return self._core.chunk_bytes

    @property
    def capacity_bytes(self) -> int:
        """The most bytes that are kept unused."""
        return self._core.capacity_bytes

    @property
    def pooled_handles(self) -> int:
        """The chunks that wait for use."""
        return self._core.unused("pooled_handles")

    @property
    def pooled_bytes(self) -> int:
        """The bytes that wait for use: at most the capacity, unless a release has failed."""
        return self._core.unused("pooled_bytes") * self._core.chunk_bytes

    @property
    def closed(self) -> bool:
        """Whether everything is released."""
        return self._core.closed

    def prefill(self, size_bytes: int) -> int:
        """Make chunks until at least `size_bytes` wait for use, all or none.

        Parameters
        ----------
        size_bytes : int
            In bytes, rounded up to whole chunks; at most the capacity.

        Returns
        -------
        int
            The bytes made, 0 if that much was there.

        Raises
        ------
        TypeError
            `size_bytes` is not an integer.
        ValueError
            It is negative, or more than the capacity.
        RuntimeError
            The pool is closed, or a parent process's.
        CudaDriverError
            The driver refused. Nothing of this call is left, unless the error's notes say that
            a release failed too: such chunks wait for use as well.

        Source: ``cuMemCreate``.
        """
        size_bytes = integer(size_bytes, "size_bytes")
        self._core.check_open("prefill")
        unsigned(size_bytes, "size_bytes")
        count = -(-size_bytes // self.chunk_bytes)
        if count * self.chunk_bytes > self.capacity_bytes:
            raise ValueError(
                f"size_bytes {size_bytes} in whole chunks of {self.chunk_bytes} is more than "
                f"the pool's capacity, {self.capacity_bytes}"
            )
        return self._core.prefill(count) * self.chunk_bytes

    def trim(self, keep_bytes: int = 0) -> int:
        """Release what waits for use, down to at most `keep_bytes`.

        Parameters
        ----------
        keep_bytes : int
            The bytes that may stay, rounded down to whole chunks.

        Returns
        -------
        int
            The bytes released.

        Raises
        ------
        TypeError
            `keep_bytes` is not an integer.
        ValueError
            It is negative.
        RuntimeError
            The pool is closed, or a parent process's.
        CudaDriverError
            The driver refused. What it took is released, the rest still waits for use, and for
            the next `trim` or `close`.

        Source: ``cuMemRelease``.
        """
        keep_bytes = integer(keep_bytes, "keep_bytes")
        self._core.check_open("trim")
        unsigned(keep_bytes, "keep_bytes")
        return self._core.trim(keep_bytes // self.chunk_bytes) * self.chunk_bytes

    def close(self) -> None:
        """Release everything. Closing twice is fine.

        Raises
        ------
        RuntimeError
            Reservations use chunks of it, or paused segments will: the pool is as it was. Or it
            is a parent process's.
        CudaDriverError
            The driver refused. What could be released is, the rest stays in the pool and
            `closed` false: only `close` is left, and may be called again.

        Source: ``cuMemRelease``; with `scrub` also ``cuStreamDestroy``.
        """
        self._core.close()

    def __enter__(self) -> HandlePool:
        """Return the pool itself."""
        self._core.check_open("__enter__")
        return self

    def __repr__(self) -> str:
        """Return chunks, device and state."""
        core = self._core
        if core is NEVER_MADE:
            return "<HandlePool, never made>"
        chunks = f"chunks of {core.chunk_bytes} bytes, device {core.device_id}"
        if core.inherited:
            return f"<HandlePool of {chunks}, a parent process's>"
        if core.closed:
            return f"<HandlePool of {chunks}, closed>"
        left = ", only close is left" if core.close_only else ""
        return f"<HandlePool of {chunks}, {core.unused('__repr__')} wait for use{left}>"
