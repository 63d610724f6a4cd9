"""What can be read of a bump arena, open or closed."""

import weakref
from collections.abc import Sequence
from typing import NamedTuple

from vmmcy import _arena
from vmmcy._core_owner import NEVER_MADE, never_made
from vmmcy._limits import MAX_EXTENTS
from vmmcy.entry_points import EntryPoints


class Extent(NamedTuple):
    """One extent of an arena.

    Parameters
    ----------
    base : int
        Its first address.
    size_bytes : int
        Its size in bytes.
    cursor : int
        Offset in bytes from `base` of what is not handed out yet.
    """

    base: int
    size_bytes: int
    cursor: int


def describe_live(figures: _arena.Figures, *, with_retired: bool) -> str:
    """Say what is live, for the errors that refuse because of it."""
    text = f"{figures.live_bytes} bytes in {figures.live_count} allocations are live"
    if with_retired and figures.retired_count:
        text += f", {figures.retired_count} from before the last set_extents are not freed"
    return text


class ArenaView:
    """The readable half of `BumpArena`.

    In a forked child all that needs the arena's lock is refused: a thread of the
    parent may have held it.
    """

    _hold: _arena.ArenaHold | None = NEVER_MADE
    _entry_points: weakref.ref[EntryPoints] | None = None
    _last_figures = _arena.Figures()
    _last_extents: Sequence[tuple[int, int, int]] = ()
    _max_extents = MAX_EXTENTS
    _device_id: int | None = None

    def __repr__(self) -> str:
        """Return the arena's state in one line."""
        if self._hold is NEVER_MADE:
            return "<BumpArena, never made>"
        if self._hold is None:
            return "<BumpArena closed>"
        whose = "" if self._hold.is_ours else ", a parent process's"
        return f"<BumpArena slot {self._hold.slot}{whose}>"

    @property
    def entry_points(self) -> EntryPoints:
        """The C functions that serve the arena; after close, those that serve nothing."""
        made = None if self._entry_points is None else self._entry_points()
        if made is None:
            hold = self._hold
            if hold is not None:
                refuse_in_child(hold, "entry_points")
            made = EntryPoints.of_slot(hold.slot if hold else _arena.CLOSED_SLOT, hold)
            self._entry_points = weakref.ref(made)
        return made

    @property
    def extents(self) -> list[Extent]:
        """The extents in the given order, each with its cursor."""
        return [Extent(*extent) for extent in self._read_extents()]

    @property
    def cursor_bytes(self) -> int:
        """Sum of the extents' cursors, in bytes: what reclaim could win at the most."""
        return self._figures("cursor_bytes").cursor_bytes

    @property
    def freed_bytes(self) -> int:
        """Bytes freed since the last `set_extents`, rounded as they were handed out."""
        return self._figures("freed_bytes").freed_bytes

    @property
    def live_bytes(self) -> int:
        """Bytes handed out by the extents there are, and not freed."""
        return self._figures("live_bytes").live_bytes

    @property
    def live_count(self) -> int:
        """Allocations handed out by the extents there are, and not freed."""
        return self._figures("live_count").live_count

    @property
    def ignored_frees(self) -> int:
        """Frees that were ignored since the arena was made: foreign ones, and late ones."""
        return self._figures("ignored_frees").ignored_frees

    @property
    def capacity_bytes(self) -> int:
        """Sum of the extents' sizes, in bytes."""
        return self._figures("capacity_bytes").capacity_bytes

    @property
    def largest_free_bytes(self) -> int:
        """Most bytes left in any extent after its aligned cursor."""
        return self._figures("largest_free_bytes").largest_free_bytes

    @property
    def align(self) -> int:
        """Alignment in bytes."""
        return self._figures("align").align

    @property
    def best_fit(self) -> bool:
        """Whether the tightest extent is taken, and not the first."""
        return self._figures("best_fit").best_fit

    @property
    def max_extents(self) -> int:
        """The most extents at once."""
        return self._max_extents

    @property
    def device_id(self) -> int | None:
        """The device served, None for any."""
        return self._device_id

    @property
    def closed(self) -> bool:
        """Whether the arena is closed."""
        if self._hold is NEVER_MADE:
            raise never_made()
        return self._hold is None

    def _open(self, method: str) -> _arena.ArenaHold:
        hold = self._hold
        if hold is None:
            raise RuntimeError(f"BumpArena.{method} after close")
        refuse_in_child(hold, method)
        return hold

    # What is read while another thread closes the arena may be gone already: then the last
    # values, which are kept before anything goes, are the right ones.

    def _figures(self, name: str) -> _arena.Figures:
        hold = self._hold
        if hold is not None:
            refuse_in_child(hold, name)
            figures = hold.figures()
            if self._hold is hold:
                return figures
        return self._last_figures

    def _read_extents(self) -> Sequence[tuple[int, int, int]]:
        hold = self._hold
        if hold is not None:
            refuse_in_child(hold, "extents")
            extents = hold.extents()
            if self._hold is hold:
                return extents
        return self._last_extents


def refuse_in_child(hold: _arena.ArenaHold, method: str) -> None:
    """Refuse where the arena is a parent process's: its lock may be held for ever."""
    if not hold.is_ours:
        raise RuntimeError(
            f"BumpArena.{method} in a forked child: the arena is the parent's; "
            "make one in the child, or start it with 'spawn'"
        )
