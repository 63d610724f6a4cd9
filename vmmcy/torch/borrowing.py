"""Borrowing the free memory of a captured graph's pool between two replays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch.cuda

from vmmcy._arguments import iterable, positive, shown
from vmmcy._core_owner import NEVER_MADE, Uncopied
from vmmcy.arena import coalesce_contiguous
from vmmcy.torch import capture
from vmmcy.torch.device import check_visible, cuda_place, current_device, need_cuda
from vmmcy.torch.graph_pool import free_runs
from vmmcy.torch.lending import Lending, drop_retired
from vmmcy.torch.loans import PoolLoans, Runs, loans_of
from vmmcy.torch.pool_runs import pool_id_of
from vmmcy.torch.seeding import largest_tensor_bytes, usable_runs
from vmmcy.torch.segments import SMALL_SEGMENT_BYTES
from vmmcy.torch.turns import CAPTURE, REPLAY


class GraphPoolBorrower(Uncopied):
    """Lends the free runs of a graph pool to eager code, between one replay and the next.

    What a captured graph needs only while it runs is idle between its replays. `borrow` puts
    this thread's torch allocations there. The caller puts `capture_scope` around each capture
    into the pool and `replay_scope` around each replay of a graph of it: torch has no place
    to hook either. All borrowers of one pool share its turns, and what is lent of it. See
    ``docs/borrowing.md``.

    Parameters
    ----------
    pool : tuple of (int, int), torch.cuda.MemPool, torch.cuda.CUDAGraph or None
        The pool, as ``torch.cuda.graph_pool_handle()`` names it, captured into already or
        not; None where only `set_static_runs` will say what there is.
    device : int or torch.device or str, optional
        The CUDA device of the pool; torch's current one when None.

    Raises
    ------
    TypeError, ValueError
        `pool` is no pool, or `device` no CUDA device that torch sees.
    RuntimeError
        Torch has no CUDA, or finds no device.
    """

    INSTEAD = "make another of its pool"
    _loans: PoolLoans = NEVER_MADE
    _disabled_reason: str | None = None

    def __init__(self, pool: Any, device: Any = None) -> None:
        self._pool_id = None if pool is None else pool_id_of(pool)
        self._device = _device_of(device)
        self._loans = loans_of(self._pool_id, self._device)
        self._replay_scope = _ReplayScope(self)

    def __repr__(self) -> str:
        """Return whose pool it is and who holds it."""
        return (
            f"<GraphPoolBorrower of pool {self._pool_id} on device {self._device}, "
            f"held by {self._loans.turns.holder or 'nobody'}>"
        )

    # ---- what there is

    @property
    def largest_run(self) -> int:
        """Bytes of the largest free run, 0 while borrowing is disabled.

        Raises
        ------
        ValueError
            Torch has no such pool yet, or no longer.
        RuntimeError
            Somebody captures into the pool; see `free_runs`.
        """
        return max((size_bytes for _, size_bytes in self._current_runs()), default=0)

    def can_fit(self, nbytes: int) -> bool:
        """Tell whether a tensor of `nbytes` bytes finds room when nothing else is borrowed.

        Raises
        ------
        TypeError, ValueError, RuntimeError
            `nbytes` is no integer of at least 1; as `largest_run`.
        """
        return positive(nbytes, "nbytes") <= largest_tensor_bytes(self._current_runs())

    @property
    def disabled_reason(self) -> str | None:
        """Why borrowing is disabled, None where it is not."""
        return self._disabled_reason

    def set_static_runs(self, runs: Sequence[tuple[int, int]]) -> None:
        """Lend these runs instead of what torch says is free in the pool.

        For graph memory that somebody else manages, at addresses that stay.

        Parameters
        ----------
        runs : sequence of (int, int)
            Address and size in bytes of each run, in any order; mapped and accessible.

        Raises
        ------
        TypeError, ValueError
            As `BumpArena`, but for the number of runs. A note says that its extents are runs.
        RuntimeError
            Somebody has the pool, or borrowed memory is still in use. Nothing has changed.
        """
        largest_first = _largest_first(runs)
        with self._turn("set_static_runs"):
            self._end_lending("set_static_runs")
            self._loans.static_runs = largest_first

    def disable(self, reason: str) -> None:
        """Lend nothing from now on: `borrow` leaves allocations where they would go anyway.

        What is borrowed still stays so; replays go on checking for it.

        Raises
        ------
        TypeError
            `reason` is no string.
        RuntimeError
            Somebody has the pool. Nothing has changed.
        """
        if not isinstance(reason, str):
            raise TypeError(f"reason must be a str, not {type(reason).__name__} {shown(reason)}")
        with self._turn("disable"):
            self._disabled_reason = reason
            self._loans.retire()
        drop_retired()

    # ---- the turns

    @contextmanager
    def borrow(self, user: str) -> Iterator[None]:
        """Put this thread's torch allocations into the free runs, for a ``with`` block.

        A tensor from inside has to be gone before the next replay, which writes over it.
        What no run can hold is a ``torch.OutOfMemoryError``. Where a tensor with a
        ``record_stream`` was dropped inside, the current stream goes on after the block only
        when all that the device was given is done; the host does not wait.

        Parameters
        ----------
        user : str
            Who borrows, for the errors of others.

        Raises
        ------
        RuntimeError
            Somebody has the pool; the current stream is another than at the first borrow, or
            is being captured; memory was asked for on another stream; nothing is free; somebody
            captures, and freed memory may still be in use by another stream.
        ValueError
            Torch has no such pool yet, or no longer.
        """
        if self._disabled_reason is not None:
            yield
            return
        who = f"borrow by {user!r}"
        with self._turn(who):
            if capture.this_thread_captures():
                raise RuntimeError(f"{who} while the current stream is being captured")
            stream = _raw_stream(self._device)
            self._loans.turns.check_stream(stream, who)
            self._loans.check_settled(who)
            lending = self._lend(who, stream)
            self._loans.turns.keep_to(stream)
            with lending.open():
                try:
                    yield
                finally:
                    # On the list first: where settling fails, replays go on checking for it.
                    self._loans.owe(lending)
                    strays = lending.strays()
                    if strays:
                        self._loans.retire()
                    self._loans.still_owing()
            if strays:
                raise RuntimeError(
                    f"{who}: memory was asked for on stream {min(strays)}, but the pool is lent on "
                    f"stream {stream}, and only the order of one stream keeps replays off it"
                )

    @contextmanager
    def capture_scope(self) -> Iterator[None]:
        """Have the pool for a capture, for a ``with`` block around it.

        What was free before is no longer: the next borrow looks anew.

        Raises
        ------
        RuntimeError
            Somebody has the pool, or borrowed memory is still in use. Nothing has changed.
        """
        with self._turn(CAPTURE):
            self._end_lending(CAPTURE)
            drop_retired()
            with capture.capture_scope():
                yield

    def replay_scope(self) -> _ReplayScope:
        """Have the pool for a replay: a context manager to put around it, made once.

        Raises
        ------
        RuntimeError
            On entry: somebody has the pool; borrowed memory is still in use, with its bytes;
            the current stream is another than that of the borrows. Nothing has changed.
        """
        return self._replay_scope

    # ---- behind them

    @contextmanager
    def _turn(self, user: str) -> Iterator[None]:
        self._loans.turns.take(user)
        try:
            yield
        finally:
            self._loans.turns.give_back()

    def _current_runs(self) -> Runs:
        if self._disabled_reason is not None:
            return []
        if self._loans.static_runs is not None:
            return self._loans.static_runs
        lending = self._loans.lending
        return lending.runs if lending else free_runs(self._pool_id, self._device)

    def _lend(self, who: str, stream: int) -> Lending:
        """Return the lending of the layout there is, made and seeded where it is the first."""
        if self._loans.lending is None:
            # The old lending's memory may be in the new one's runs.
            self._loans.check_returned(who)
            drop_retired()
            runs = self._current_runs()
            if not usable_runs(runs):
                largest = max((size_bytes for _, size_bytes in runs), default=0)
                raise RuntimeError(
                    f"{who}: the largest free run is {largest} bytes, and torch asks for no less "
                    f"than {SMALL_SEGMENT_BYTES}"
                )
            source = None if self._loans.static_runs is not None else self._pool_id
            lending = Lending(runs, source, self._device, stream)
            try:
                lending.seed()
            except BaseException:
                lending.retired = True
                raise
            self._loans.lending = lending
        return self._loans.lending

    def _end_lending(self, who: str) -> None:
        self._loans.check_returned(who)
        self._loans.retire()


class _ReplayScope:
    """The scope around a replay. On the way of every replay, and so without a generator."""

    __slots__ = ("_device", "_loans", "_raw_stream", "_turns")

    def __init__(self, borrower: GraphPoolBorrower) -> None:
        self._device = borrower._device
        self._loans = borrower._loans
        self._turns = borrower._loans.turns
        self._raw_stream = _raw_stream

    def __enter__(self) -> None:
        self._turns.begin_replay(self._raw_stream(self._device))
        if self._loans.owing:
            try:
                self._loans.check_returned(REPLAY)
            except BaseException:
                self._turns.give_back()
                raise

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._turns.end_replay()


# The raw handle costs a fifth of what a stream object does.
_raw_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", lambda device: need_cuda())


def _largest_first(runs: Any) -> Runs:
    """Return the caller's runs as ints."""
    pairs = list(iterable(runs, "runs", "(address, size_bytes) pairs"))
    try:
        coalesce_contiguous(pairs)
    except (TypeError, ValueError) as error:
        error.add_note("an extent is one of the runs here")
        raise
    numbers = [(int(address), int(size_bytes)) for address, size_bytes in pairs]
    return sorted(numbers, key=lambda run: -run[1])


def _device_of(device: Any) -> int:
    """Return the ordinal of a CUDA device."""
    if device is None:
        return current_device()
    place = cuda_place(device)
    check_visible(place)
    return current_device() if place.index is None else int(place.index)
