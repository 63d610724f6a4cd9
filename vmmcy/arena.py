"""Bump arenas: addresses in memory that the caller owns, handed out to torch and others."""

import warnings
from collections.abc import Iterable
from typing import ClassVar, Self

from vmmcy import _arena, _arguments
from vmmcy._core_owner import NEVER_MADE, Uncopied, refuse_twice
from vmmcy._extents import ExtentList
from vmmcy._limits import HIGHEST_LIMIT, MAX_EXTENTS
from vmmcy.arena_view import ArenaView, describe_live, refuse_in_child

_ANY_DEVICE = -1

Extents = Iterable[tuple[int, int]]


def coalesce_contiguous(extents: Extents) -> list[tuple[int, int]]:
    """Sort extents by address and join those that touch.

    Only for memory that may be used across the seam: an arena never joins extents
    by itself, since each may be a mapping of its own.

    Parameters
    ----------
    extents : iterable of (int, int), or (n, 2) array of integers
        Pairs of base address and size in bytes.

    Returns
    -------
    list of (int, int)
        The same memory in as few extents as possible, ascending.

    Raises
    ------
    TypeError
        Not pairs of integers.
    ValueError
        An extent is empty or does not fit in 64 bits, or two overlap.
    """
    return ExtentList(extents).coalesce()


class BumpArena(ArenaView, Uncopied):
    """Hands out addresses from extents of memory that the caller owns.

    Each extent has a cursor that only moves up: an allocation costs an addition, and
    memory comes back when a whole extent is idle (`reclaim`) or the extents are
    registered anew (`set_extents`). Safe to use from many threads.

    Frees are counted, not checked against what was handed out: a free that comes
    twice is taken for that of another allocation in the same extent, and with it
    the extent may look idle while it is not. Bytes are counted rounded up to the
    alignment, and every byte handed out since the last `set_extents` is either in
    `live_bytes` or in `freed_bytes`.

    Parameters
    ----------
    extents : iterable of (int, int), or (n, 2) array of integers
        Pairs of base address and size in bytes, registered as by `set_extents`.
    align : int, optional
        Alignment in bytes of every address and size, a power of two.
    best_fit : bool, optional
        Take the extent with the fewest bytes left that are enough, the earlier of
        equals; otherwise the first in the given order that has enough.
    max_extents : int, optional
        The most extents at once, 1 to 65,536; `MAX_EXTENTS` when None.
    device_id : int, optional
        The device that the memory is on: a request for another gets nothing. None
        serves any.

    Raises
    ------
    TypeError, ValueError
        As `set_extents`; `align`, `max_extents` or `device_id` is out of bounds.
    RuntimeError
        256 arenas are live or kept back already. Nothing is left of this one.

    Attributes
    ----------
    MAX_EXTENTS : int
        The limit where none is given: the environment's ``BUMPARENA_MAX_EXTENTS`` at
        import, else 4096.
    """

    INSTEAD = "make another, over extents of its own"
    MAX_EXTENTS: ClassVar[int] = MAX_EXTENTS

    def __init__(
        self,
        extents: Extents = (),
        *,
        align: int = 512,
        best_fit: bool = False,
        max_extents: int | None = None,
        device_id: int | None = None,
    ) -> None:
        pairs = ExtentList(extents)
        limit = self.MAX_EXTENTS if max_extents is None else max_extents
        if not type(align) is type(limit) is int:
            align = _arguments.integer(align, "align")
            limit = _arguments.integer(limit, "max_extents")
        if device_id is not None:
            device_id = _arguments.device_ordinal(device_id)
        if not 1 <= limit <= HIGHEST_LIMIT:
            raise ValueError(
                f"max_extents must be from 1 to {HIGHEST_LIMIT}, got {_arguments.shown(limit)}"
            )
        align = _arguments.power_of_two(align, "align")
        best_fit = _arguments.flag(best_fit, "best_fit")
        pairs.check(limit)
        device = _ANY_DEVICE if device_id is None else device_id
        hold = _arena.ArenaHold(pairs, limit, align, best_fit, device)
        # Behind what the caller's integers and other threads may do, this among it.
        refuse_twice(self, self._hold)
        self._hold = hold
        self._max_extents = limit
        self._device_id = device_id

    # ---- the extents

    def set_extents(self, extents: Extents, *, require_idle: bool = False) -> None:
        """Register extents in place of those there are, all cursors at their base.

        What the old extents handed out stays the caller's to care for: a free of it
        that comes later is ignored and counted in `ignored_frees`. Where an old extent
        and a new one share addresses, a free may be either's: it is taken for the old
        one's until that is known to be wrong. So what is free may look live for a
        while, never the reverse, and when all is freed nothing is live.

        Parameters
        ----------
        extents : iterable of (int, int), or (n, 2) array of integers
            Pairs of base address and size in bytes, in the order that first fit follows.
        require_idle : bool, optional
            Refuse while anything of the extents there are is live.

        Raises
        ------
        TypeError
            Not pairs of integers.
        ValueError
            More extents than the limit; one is empty or does not fit in 64 bits; two
            overlap.
        RuntimeError
            The arena is closed, or something is live and `require_idle` is set.

            After any of them the arena is as it was.
        """
        pairs = ExtentList(extents)
        require_idle = _arguments.flag(require_idle, "require_idle")
        hold = self._open("set_extents")
        if not hold.set_extents(pairs, require_idle):
            live = describe_live(hold.figures(), with_retired=False)
            raise RuntimeError(
                f"BumpArena.set_extents: {live}; free that first, or call without require_idle"
            )

    def add_extents(self, extents: Extents) -> None:
        """Register more extents, after those there are, which keep their cursors.

        Parameters
        ----------
        extents : iterable of (int, int), or (n, 2) array of integers
            Pairs of base address and size in bytes.

        Raises
        ------
        TypeError, ValueError, RuntimeError
            As `set_extents`; the arena is as it was.
        """
        pairs = ExtentList(extents)
        self._open("add_extents").add_extents(pairs)

    def reclaim(self) -> int:
        """Start extents with nothing live again at their base.

        The caller promises that no stream still uses what was freed there.

        Returns
        -------
        int
            The bytes won: the sum of the cursors that went back to 0.

        Raises
        ------
        RuntimeError
            The arena is closed.
        """
        return self._open("reclaim").reclaim()

    # ---- the policy

    def set_align(self, align: int) -> None:
        """Align what is handed out from now on.

        Parameters
        ----------
        align : int
            Alignment in bytes, a power of two.

        Raises
        ------
        TypeError, ValueError, RuntimeError
            Not an integer; not a power of two up to 2**63; the arena is closed. It is
            as it was.
        """
        align = _arguments.integer(align, "align")
        hold = self._open("set_align")
        hold.set_align(_arguments.power_of_two(align, "align"))

    def set_best_fit(self, best_fit: bool) -> None:
        """Choose best fit (True) or first fit (False) from now on.

        Parameters
        ----------
        best_fit : bool
            Whether the tightest extent is taken, or the first.

        Raises
        ------
        RuntimeError
            The arena is closed.
        """
        best_fit = _arguments.flag(best_fit, "best_fit")
        self._open("set_best_fit").set_best_fit(best_fit)

    # ---- handing out and taking back

    def allocate(self, size_bytes: int, *, device_id: int | None = None) -> int:
        """Hand out memory.

        Parameters
        ----------
        size_bytes : int
            Bytes wanted; rounded up to a multiple of the alignment, 0 counts as 1.
        device_id : int, optional
            The device that the memory has to be on.

        Returns
        -------
        int
            Address of the memory, a multiple of the alignment.

        Raises
        ------
        TypeError, ValueError
            `size_bytes` is not an integer, negative, or over 64 bits; `device_id` is no
            device ordinal, or another than that of the arena's memory.
        MemoryError
            No extent has the room.
        RuntimeError
            The arena is closed.

            After any of them nothing is handed out, and no cursor has moved.
        """
        size_bytes = _arguments.integer(size_bytes, "size_bytes")
        if device_id is not None:
            device_id = _arguments.integer(device_id, "device_id")
        hold = self._open("allocate")
        size_bytes = _arguments.unsigned(size_bytes, "size_bytes")
        if device_id is not None:
            self._check_device(_arguments.device_ordinal(device_id))
        address = hold.allocate(size_bytes)
        if address == 0:
            raise self._nothing_fits(size_bytes)
        return address

    def free(self, address: int, size_bytes: int) -> None:
        """Take memory back: count it, so that its extent can become idle.

        An address that no extent has handed out is ignored and counted in
        `ignored_frees`, as is one from before the last `set_extents`.

        Parameters
        ----------
        address : int
            What `allocate` gave.
        size_bytes : int
            What it was asked for.

        Raises
        ------
        TypeError, ValueError, RuntimeError
            Not integers; negative, or over 64 bits; the arena is closed.
        """
        address = _arguments.integer(address, "address")
        size_bytes = _arguments.integer(size_bytes, "size_bytes")
        hold = self._open("free")
        hold.free(
            _arguments.unsigned(address, "address"), _arguments.unsigned(size_bytes, "size_bytes")
        )

    # ---- the end

    def close(self, *, force: bool = False) -> None:
        """Hand out nothing any more; closing twice is fine.

        The properties stay readable, with the values that they had.

        Parameters
        ----------
        force : bool, optional
            Close although something is live: frees of it are still taken, and only
            when all of it is back do other arenas get the entry points.

        Raises
        ------
        RuntimeError
            Something is live and `force` is not set: the arena is as it was.
        """
        force = _arguments.flag(force, "force")
        hold = self._hold
        if hold is None:
            return
        refuse_in_child(hold, "close")
        last = hold.shut(force)
        if last is None:
            live = describe_live(hold.figures(), with_retired=True)
            raise RuntimeError(f"BumpArena.close: {live}; free that first, or close(force=True)")
        # Another thread that closes too may have got here first: then these came too late.
        if self._hold is hold:
            self._last_figures, self._last_extents = last
            self._hold = None
        hold.forget_extents()

    def __enter__(self) -> Self:
        """Return the arena itself."""
        self._open("__enter__")
        return self

    def __exit__(self, *error: object) -> None:
        """Close; where an exception is on its way already, whatever is live."""
        self.close(force=error[0] is not None)

    def __del__(self) -> None:
        """Warn when dropped open; the entry points serve nobody until all is freed."""
        hold = self._hold
        if hold is not None and hold is not NEVER_MADE and hold.is_ours:
            hold.shut(True)
            message = f"{self!r} was dropped without close"
            warnings.warn(message, ResourceWarning, stacklevel=2, source=self)

    def check_consistency(self) -> None:
        """Recompute every sum and index of an open arena: for tests, linear in its extents.

        Raises
        ------
        RuntimeError
            Something does not add up: a defect of vmmcy; or the arena is closed.
        """
        fault = self._open("check_consistency").fault()
        if fault is not None:
            raise RuntimeError(f"{self!r} is inconsistent: {fault}")

    # ---- shared by the above

    def _check_device(self, device_id: int) -> None:
        if self._device_id not in (None, device_id):
            raise ValueError(
                f"the arena's memory is on device {self._device_id}, not on device {device_id}"
            )

    def _nothing_fits(self, size_bytes: int) -> Exception:
        figures = self._open("allocate").figures()
        rounded = -(-max(size_bytes, 1) // figures.align) * figures.align
        return MemoryError(
            f"no extent has room for {size_bytes} bytes ({rounded} when rounded up to the "
            f"alignment of {figures.align}): the largest free run of {figures.extent_count} "
            f"extents is {figures.largest_free_bytes} bytes"
        )
