"""Frees that come after their extents are gone, where others may have the addresses."""

import pytest
from arena_help import BASE, GIB, KIB, MIB, fill, free_all
from hypothesis import given, settings
from hypothesis import strategies as st

from vmmcy.arena import BumpArena


@pytest.fixture
def arena():
    with BumpArena([(BASE, MIB)]) as arena:
        yield arena
        free_all(arena)


def test_a_late_free_is_ignored_and_counted(arena):
    old = arena.allocate(1000)
    arena.set_extents([(BASE + GIB, MIB)])
    arena.free(old, 1000)
    arena.free(old, 1000)
    assert (arena.live_bytes, arena.freed_bytes, arena.ignored_frees) == (0, 0, 2)
    assert arena.allocate(512) == BASE + GIB
    assert arena.live_bytes == 512


def test_a_late_free_never_makes_new_memory_look_idle(arena):
    old = arena.allocate(1024)
    arena.set_extents([(BASE, MIB)])
    new = arena.allocate(1024)
    assert new == old
    arena.free(old, 1024)  # the old one's: what is there now is in use
    assert (arena.live_bytes, arena.ignored_frees) == (1024, 1)
    assert arena.reclaim() == 0
    arena.free(new, 1024)
    assert (arena.live_bytes, arena.ignored_frees) == (0, 1)
    assert arena.reclaim() == 1024


def test_late_frees_of_several_generations_add_up(arena):
    for _ in range(3):
        arena.set_extents([(BASE, MIB), (BASE + MIB, MIB)])
        assert fill(arena, 512 * KIB) == [BASE + 512 * KIB * number for number in range(4)]
    arena.set_extents([(BASE + 256 * KIB, MIB)])
    mine = arena.allocate(MIB)
    for late in range(6):
        arena.free(mine, MIB)
        assert (arena.live_bytes, arena.ignored_frees) == (MIB, late + 1)
        arena.check_consistency()
    arena.free(mine, MIB)
    assert arena.live_bytes == 0
    for late in range(6):
        arena.free(BASE + MIB, 512 * KIB)
        assert arena.ignored_frees == 7 + late


def test_frees_out_of_order_leave_nothing_live(arena):
    old = arena.allocate(512 * KIB)
    arena.allocate(512 * KIB)
    late = old + 512 * KIB
    arena.set_extents([(BASE, MIB)])
    arena.free(old, 512 * KIB)
    new = arena.allocate(1024)
    assert new == old
    arena.free(new, 1024)  # may be the old one's: 512 KiB further up is one
    assert (arena.live_count, arena.ignored_frees) == (1, 2)
    arena.free(late, 512 * KIB)  # above all that is handed out now, so the old one's for sure
    assert (arena.live_count, arena.live_bytes, arena.ignored_frees) == (0, 0, 2)
    arena.check_consistency()
    assert arena.reclaim() == 1024
    arena.set_extents([], require_idle=True)


def test_what_is_in_use_is_not_taken_for_its_neighbour(arena):
    arena.set_extents([(BASE, MIB)])
    late = arena.allocate(1024)
    arena.allocate(MIB - 1024)
    arena.free(BASE + MIB - 512, MIB - 1024)
    arena.set_extents([(BASE, 512), (BASE + 512, 512)])
    mine, others = arena.allocate(512), arena.allocate(512)
    arena.free(mine, 512)  # taken for the late one
    arena.free(late + 512, 1024)  # a late free may come with any address of its allocation
    arena.check_consistency()
    assert arena.reclaim() == 0, "one of the two is in use, and nobody can tell which"
    arena.free(others, 512)
    assert (arena.live_count, arena.live_bytes, arena.freed_bytes) == (0, 0, 1024)
    assert arena.reclaim() == 1024


def test_doubts_stay_with_their_extent_when_others_are_added(arena):
    old = arena.allocate(MIB)
    arena.set_extents([(BASE + 512 * KIB, 256 * KIB)])
    mine = arena.allocate(1024)
    arena.free(mine, 1024)
    arena.add_extents([(BASE, 256 * KIB), (BASE + 768 * KIB, 256 * KIB), (BASE - MIB, MIB)])
    arena.check_consistency()
    assert arena.live_count == 1
    arena.free(old, MIB)
    assert (arena.live_count, arena.ignored_frees) == (0, 1)
    arena.check_consistency()


def test_doubts_are_settled_when_their_extents_retire_too(arena):
    arena.allocate(MIB)
    arena.set_extents([(BASE, MIB)])
    mine = arena.allocate(1024)
    arena.free(mine, 1024)
    arena.set_extents([(BASE, MIB)])  # one of two is still out
    newest = arena.allocate(MIB)
    arena.free(newest, MIB)
    assert arena.live_count == 1
    arena.free(BASE, MIB)
    assert (arena.live_count, arena.live_bytes) == (0, 0)
    arena.close()


def test_a_free_of_unknown_size_takes_no_bytes_that_are_in_use(arena):
    arena.free(arena.allocate(512), 512)
    late = arena.allocate(1024)
    arena.set_extents([(BASE, MIB)])
    mine, kept = arena.allocate(512), arena.allocate(512)
    assert kept == late
    arena.free(mine, 512)
    arena.free(late, 1024)  # one of the two was the old one's, but which?
    assert (arena.live_count, arena.live_bytes) == (1, 1024)
    arena.free(kept, 512)
    assert (arena.live_count, arena.live_bytes, arena.freed_bytes) == (0, 0, 1024)


class Truth:
    """Knows of each allocation what it is: what is freed is freed once, and by its own address."""

    def __init__(self, arena):
        self.arena = arena
        self.now, self.before = {}, []

    def allocate(self, size):
        try:
            address = self.arena.allocate(size)
        except MemoryError:
            return
        assert not any(
            address < other + other_size and other < address + size
            for other, other_size in self.now.items()
        ), "handed out while in use"
        self.now[address] = size

    def free(self, number):
        everything = [*self.before, *self.now.items()]
        if everything:
            address, size = everything[number % len(everything)]
            if number % len(everything) < len(self.before):
                self.before.remove((address, size))
            else:
                del self.now[address]
            self.arena.free(address, size)

    def set_extents(self, extents):
        self.arena.set_extents(extents)
        self.before += self.now.items()
        self.now = {}

    def assert_nothing_in_use_looks_idle(self):
        self.arena.check_consistency()
        assert self.arena.live_count >= len(self.now)
        assert self.arena.live_bytes >= sum(self.now.values())


PLACES = st.lists(st.integers(0, 7), max_size=4, unique=True).map(
    lambda places: [(BASE + place * 4096, 4096 if place % 3 else 2048) for place in places]
)


@settings(max_examples=1000, deadline=None)
@given(
    history=st.lists(
        st.one_of(
            st.tuples(st.just("allocate"), st.sampled_from([512, 1024, 2048])),
            st.tuples(st.just("free"), st.integers(0, 10**6)),
            st.tuples(st.just("set_extents"), PLACES),
            st.tuples(st.just("add_extents"), PLACES),
            st.tuples(st.just("reclaim"), st.none()),
        ),
        max_size=60,
    )
)
def test_correct_frees_in_any_order_leave_nothing_live(history):
    arena = BumpArena([(BASE, 4096)])
    truth = Truth(arena)
    try:
        live_through(history, arena, truth)
        assert (arena.live_count, arena.live_bytes) == (0, 0)
        arena.close()
    finally:
        arena.close(force=True)


def live_through(history, arena, truth):
    """Do what the history says, then free whatever is left."""
    for name, value in history:
        if name in ("allocate", "free", "set_extents"):
            getattr(truth, name)(value)
        elif name == "reclaim":
            arena.reclaim()
        else:
            taken = {extent.base for extent in arena.extents}
            arena.add_extents([extent for extent in value if extent[0] not in taken])
        truth.assert_nothing_in_use_looks_idle()
    while truth.before or truth.now:
        truth.free(len(truth.before) // 2)
        truth.assert_nothing_in_use_looks_idle()
