"""Callers who change what they pass, copy what owns something, or come in twice."""

import copy
import pickle
import signal
import threading

import numpy as np
import pytest
from arena_help import BASE, GIB, KIB, MIB, c_functions, free_all

from vmmcy import _arena
from vmmcy.arena import BumpArena, coalesce_contiguous
from vmmcy.entry_points import EntryPoints


@pytest.fixture
def arena():
    with BumpArena([(BASE, MIB)]) as arena:
        yield arena
        free_all(arena)


class Meddler(int):
    """An integer that runs a caller's code when it is asked for its value."""

    def __new__(cls, value, meddle):
        self = super().__new__(cls, value)
        self.meddle = meddle
        return self

    def __index__(self):
        self.meddle()
        return int.__add__(self, 0)


@pytest.mark.parametrize("change", ["grow", "shrink", "replace"])
def test_a_list_that_changes_while_it_is_read_is_read_as_it_was(change):
    def meddle():
        if change == "grow":
            extents.extend([(BASE + GIB, MIB)] * 10_000)
        elif change == "shrink":
            extents.clear()
        else:
            extents[:] = ["no extent"] * len(extents)

    extents = [(Meddler(BASE, meddle), MIB), (BASE + MIB, MIB)]
    with BumpArena(extents) as arena:
        assert arena.extents == [(BASE, MIB, 0), (BASE + MIB, MIB, 0)]
    extents = [(Meddler(BASE, meddle), MIB), (BASE + MIB, MIB)]
    assert coalesce_contiguous(extents) == [(BASE, 2 * MIB)]


class Unsure:
    """A flag that does not know what it is."""

    def __bool__(self):
        raise ArithmeticError("neither")


def test_a_flag_that_raises_changes_nothing(arena):
    calls = [
        lambda: arena.set_extents([], require_idle=Unsure()),
        lambda: arena.set_best_fit(Unsure()),
        lambda: arena.close(force=Unsure()),
        lambda: BumpArena(best_fit=Unsure()),
    ]
    for call in calls:
        with pytest.raises(ArithmeticError, match="^neither$"):
            call()
    assert arena.extents == [(BASE, MIB, 0)]
    assert not arena.closed
    arena.set_extents([(BASE, MIB)])


def test_a_flag_may_use_the_arena(arena):
    class Nested:
        def __bool__(self):
            arena.set_extents([(BASE + GIB, MIB)])
            return False

    arena.set_extents([(BASE, MIB)], require_idle=Nested())
    arena.set_best_fit(Nested())
    assert arena.extents == [(BASE + GIB, MIB, 0)]


def test_a_signal_handler_may_change_an_arena_that_is_being_changed(arena):
    changed = []

    def handler(*_):
        arena.set_align(1024)
        arena.set_extents([(BASE, MIB)])
        arena.reclaim()
        changed.append(True)

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)
    try:
        while len(changed) < 20:
            arena.set_extents([(BASE, MIB)])
            arena.add_extents([(BASE + GIB, MIB)])
            arena.set_best_fit(len(changed) % 2 == 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    arena.check_consistency()


def test_all_who_close_at_once_have_closed():
    for _ in range(200):
        arena = BumpArena([(BASE, MIB)])
        arena.free(arena.allocate(1000), 1000)
        errors, together = [], threading.Barrier(4)

        def close(arena=arena, errors=errors, together=together):
            together.wait()
            try:
                arena.close()
                errors.append(None if arena.closed else "not closed")
            except RuntimeError as error:
                errors.append(error)

        threads = [threading.Thread(target=close) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == [None] * 4
        assert (arena.capacity_bytes, arena.freed_bytes) == (MIB, 1024)
        assert arena.extents == [(BASE, MIB, 1024)]


def test_figures_read_during_a_close_are_those_of_the_arena():
    times_read = 0
    for _ in range(200):
        arena = BumpArena([(BASE, MIB)])
        seen, reading = [], threading.Event()

        def read(arena=arena, seen=seen, reading=reading):
            reading.set()
            while not arena.closed:
                seen.append((arena.capacity_bytes, len(arena.extents)))

        reader = threading.Thread(target=read)
        reader.start()
        reading.wait()
        arena.close()
        reader.join()
        assert set(seen) <= {(MIB, 1)}
        times_read += len(seen)
    assert times_read > 0


def test_the_figures_of_a_forced_close_are_the_last_ones():
    arena = BumpArena([(BASE, MIB)])
    malloc, free = c_functions(entry_points := arena.entry_points)
    address = malloc(1000)
    arena.close(force=True)
    assert (arena.live_bytes, malloc(1000)) == (1024, None)
    free(address, 1000)
    assert entry_points is arena.entry_points


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_an_arena_is_not_copied(arena, duplicate):
    with pytest.raises(TypeError, match=r"^a BumpArena cannot be copied or pickled: make another"):
        duplicate(arena)
    assert arena.allocate(512) == BASE


def test_an_arena_is_made_once(arena):
    entry_points = arena.entry_points
    again = r"^BumpArena.__init__ on one that was made: make another$"
    with pytest.raises(RuntimeError, match=again):
        arena.__init__([(BASE + GIB, MIB)], max_extents=7, device_id=3)
    with pytest.raises(ValueError, match="align"):
        arena.__init__(align=3)
    closed = BumpArena([(BASE + GIB, MIB)])
    closed.close()
    with pytest.raises(RuntimeError, match=again):
        closed.__init__([(BASE + GIB, MIB)], max_extents=7, device_id=3)
    assert (closed.closed, closed.max_extents, closed.device_id) == (True, 4096, None)
    assert (arena.max_extents, arena.device_id) == (4096, None)
    assert arena.extents == [(BASE, MIB, 0)]
    assert arena.entry_points is entry_points


def test_an_arena_that_was_never_made_says_so():
    arena = BumpArena.__new__(BumpArena)
    assert repr(arena) == "<BumpArena, never made>"
    uses = [
        lambda: arena.closed,
        lambda: arena.extents,
        lambda: arena.capacity_bytes,
        lambda: arena.entry_points,
        lambda: arena.allocate(1),
        lambda: arena.close(),
    ]
    for use in uses:
        with pytest.raises(RuntimeError, match=r"^this object was never made: "):
            use()


@pytest.mark.parametrize("slot", [_arena.CLOSED_SLOT + 1, 1 << 20, 2**32 - 1])
def test_there_are_no_entry_points_past_the_last_slot(slot):
    with pytest.raises(IndexError, match=f"^slot {slot} is not from 0 to 256$"):
        EntryPoints.of_slot(slot, None)


@pytest.mark.parametrize("device_id", [1.0, True, "0"])
def test_a_device_of_another_type_is_refused(arena, device_id):
    with pytest.raises(TypeError, match="^device_id must be an integer"):
        arena.allocate(512, device_id=device_id)
    with pytest.raises(TypeError, match="^device_id must be an integer"):
        BumpArena(device_id=device_id)
    assert arena.cursor_bytes == 0


def test_a_device_out_of_bounds_is_refused(arena):
    with pytest.raises(ValueError, match="^device_id must be a device ordinal"):
        arena.allocate(512, device_id=-1)
    with BumpArena([(BASE, MIB)], device_id=1) as other:
        assert other.allocate(512, device_id=np.int64(1)) == BASE
        free_all(other)


class ArrayOfAnotherLibrary:
    """Has a dtype that is not NumPy's, and rows."""

    dtype = "torch.int64"

    def __iter__(self):
        return iter([(BASE, MIB)])


def test_arrays_of_other_libraries_are_read_row_by_row():
    with BumpArena(ArrayOfAnotherLibrary()) as arena:
        assert arena.extents == [(BASE, MIB, 0)]


def test_masked_extents_are_refused(arena):
    masked = np.ma.masked_array([(BASE, MIB)], mask=[(False, True)])
    for refuse in (arena.set_extents, arena.add_extents, BumpArena, coalesce_contiguous):
        with pytest.raises(TypeError, match="^extents must not be masked"):
            refuse(masked)
    assert arena.extents == [(BASE, MIB, 0)]


def test_the_limit_holds_for_all_who_add_at_once():
    """However many threads add, the arena never has more than it may have."""
    with BumpArena(max_extents=50) as arena:
        refused, together = [], threading.Barrier(4)

        def add(first):
            together.wait()
            for number in range(40):
                try:
                    arena.add_extents([(BASE + (first * 40 + number) * 64 * KIB, 64 * KIB)])
                except ValueError as error:
                    refused.append(str(error))

        threads = [threading.Thread(target=add, args=(first,)) for first in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(arena.extents) == 50
        assert refused == ["51 extents exceed BUMPARENA_MAX_EXTENTS (50)"] * 110
        arena.check_consistency()
