"""Whose turn it is to use a graph pool: capture, replay or one borrower, and on which stream."""

from __future__ import annotations

from threading import get_ident

CAPTURE = "graph capture"
REPLAY = "graph replay"

_HOLDER = "holder"


class PoolTurns:
    """One user of a graph pool at a time, from any thread; nobody waits, the second is refused.

    Kernels of a replay and of a borrow touch the same memory, and nothing but the order of
    one stream keeps them apart. So the stream of the first borrow is that of all later
    borrows and replays.
    """

    __slots__ = ("_held", "_lent_on", "_replayed_on")

    def __init__(self) -> None:
        self._held: dict[str, tuple[str, int]] = {}
        self._lent_on: int | None = None
        self._replayed_on: int | None = None

    def take(self, user: str) -> None:
        """Begin a turn.

        Raises
        ------
        RuntimeError
            Somebody has one; the text says who. Nothing has changed.
        """
        # A tuple of its own and one dict operation: whoever is refused sees a whole name.
        turn = (user, get_ident())
        holder = self._held.setdefault(_HOLDER, turn)
        if holder is not turn:
            raise RuntimeError(_refusal(turn, holder))

    def give_back(self) -> None:
        """End the turn."""
        del self._held[_HOLDER]

    @property
    def holder(self) -> str | None:
        """Who has the turn, None for nobody."""
        held = self._held.get(_HOLDER)
        return None if held is None else held[0]

    def begin_replay(self, stream: int) -> None:
        """Begin a turn of a replay on a stream, a raw handle: on the way of every replay.

        Raises
        ------
        RuntimeError
            As `take`; the pool was lent on another stream. Nothing has changed.
        """
        turn = (REPLAY, get_ident())
        holder = self._held.setdefault(_HOLDER, turn)
        if holder is not turn:
            raise RuntimeError(_refusal(turn, holder))
        lent_on = self._lent_on
        if stream != lent_on and lent_on is not None:
            self.give_back()
            raise RuntimeError(_other_stream(REPLAY, stream, "was lent on", lent_on))
        self._replayed_on = stream

    def end_replay(self) -> None:
        """End the turn of this thread's replay.

        Raises
        ------
        RuntimeError
            It has none. Nothing has changed.
        """
        if self._held.get(_HOLDER) != (REPLAY, get_ident()):
            raise RuntimeError(f"{REPLAY}: this thread is in no replay scope that it could leave")
        self.give_back()

    def check_stream(self, stream: int, user: str) -> None:
        """Refuse to lend on a stream, a raw handle, that is not the one of the borrows or replays.

        Raises
        ------
        RuntimeError
            The pool was lent, or its graph last replayed, on another. Nothing has changed.
        """
        if self._lent_on is not None:
            if stream != self._lent_on:
                raise RuntimeError(_other_stream(user, stream, "was lent on", self._lent_on))
        elif self._replayed_on not in (None, stream):
            raise RuntimeError(_other_stream(user, stream, "was replayed on", self._replayed_on))

    def keep_to(self, stream: int) -> None:
        """Have all later borrows and replays on this stream, a raw handle."""
        self._lent_on = stream


def _refusal(turn: tuple[str, int], holder: tuple[str, int]) -> str:
    where = "this thread" if holder[1] == turn[1] else f"thread {holder[1]}"
    return f"graph pool is held by {holder[0]} of {where}: not free for {turn[0]}"


def _other_stream(user: str, stream: int, was: str, other: int | None) -> str:
    return (
        f"{user} on stream {stream}: the graph pool {was} stream {other}, and only the order of "
        "one stream keeps replays and borrows apart"
    )
