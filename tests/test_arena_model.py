"""The arena against a plain model of DESIGN's rules, over random histories."""

import random
from dataclasses import dataclass, field

import pytest
from arena_help import assert_whole_space_is_there
from hypothesis import given, settings
from hypothesis import strategies as st

from vmmcy.arena import BumpArena

SLOT_BYTES = 1 << 16
BASES = range(1 << 20, (1 << 20) + 40 * SLOT_BYTES, SLOT_BYTES)


def align_up(value, align):
    return (value + align - 1) // align * align


@dataclass
class ModelExtent:
    base: int
    size: int
    cursor: int = 0
    live_count: int = 0
    live_bytes: int = 0

    def left(self, align):
        return self.base + self.size - align_up(self.base + self.cursor, align)


@dataclass
class RetiredRange:
    first: int
    end: int
    outstanding: int
    doubts: dict[int, int] = field(default_factory=dict)  # by the base of the extent


class Model:
    """What the rules say, in the plainest way: lists and scans."""

    def __init__(self, extents, align, best_fit):
        self.align, self.best_fit = align, best_fit
        self.extents = [ModelExtent(*pair) for pair in extents]
        self.retired = []  # of RetiredRange, none overlaps another
        self.freed = self.ignored = 0

    def allocate(self, size):
        size = align_up(max(size, 1), self.align)
        fitting = [extent for extent in self.extents if extent.left(self.align) >= size]
        if not fitting:
            return None
        extent = fitting[0]
        if self.best_fit:
            extent = min(fitting, key=lambda each: each.left(self.align))
        address = align_up(extent.base + extent.cursor, self.align)
        extent.cursor = address + size - extent.base
        extent.live_count += 1
        extent.live_bytes += size
        return address

    def free(self, address, size):
        extent = self.live_extent_at(address)
        old = next((old for old in self.retired if old.first <= address < old.end), None)
        if old and old.outstanding and not extent:
            self.take_certain(old)
            self.ignored += 1
        elif extent and old and old.doubts.get(extent.base, 0) < old.outstanding:
            old.doubts[extent.base] = old.doubts.get(extent.base, 0) + 1
            self.ignored += 1
        elif extent and old and old.outstanding:
            self.take_back(extent, 0)
        elif extent:
            self.take_back(extent, align_up(max(size, 1), self.align))
        else:
            self.ignored += 1
        if any(old.outstanding for old in self.retired) and self.out() == 0:
            self.settle_all()

    def live_extent_at(self, address):
        for extent in self.extents:
            if extent.base <= address < extent.base + extent.cursor and extent.live_count:
                return extent
        return None

    def take_back(self, extent, size):
        size = extent.live_bytes if extent.live_count == 1 else min(size, extent.live_bytes)
        extent.live_count -= 1
        extent.live_bytes -= size
        self.freed += size

    def take_certain(self, old):
        old.outstanding -= 1
        for extent in self.extents:
            if old.doubts.get(extent.base, 0) > old.outstanding:
                old.doubts[extent.base] -= 1
                self.ignored -= 1
                if extent.live_count:
                    self.take_back(extent, 0)

    def out(self):
        """All that is handed out and not freed: exact, if each was freed at most once."""
        late = sum(old.outstanding - sum(old.doubts.values()) for old in self.retired)
        return late + sum(extent.live_count for extent in self.extents)

    def settle_all(self):
        self.retired = []
        for extent in self.extents:
            self.ignored -= extent.live_count
            self.freed += extent.live_bytes
            extent.live_count = extent.live_bytes = 0

    def reclaim(self):
        won = 0
        for extent in self.extents:
            if not extent.live_count and extent.cursor:
                won += extent.cursor
                extent.cursor = 0
        return won

    def set_extents(self, extents):
        ranges = [
            RetiredRange(old.first, old.end, old.outstanding - sum(old.doubts.values()))
            for old in self.retired
            if old.outstanding
        ]
        ranges += [
            RetiredRange(each.base, each.base + each.cursor, each.live_count)
            for each in self.extents
            if each.live_count
        ]
        self.retired = []
        for each in sorted(ranges, key=lambda old: old.first):
            last = self.retired[-1] if self.retired else None
            if last and each.first < last.end:
                last.end = max(each.end, last.end)
                last.outstanding += each.outstanding
            else:
                self.retired.append(each)
        self.retired = [old for old in self.retired if old.outstanding > 0]
        self.extents = [ModelExtent(*pair) for pair in extents]
        self.freed = 0

    def assert_same(self, arena):
        assert arena.extents == [(each.base, each.size, each.cursor) for each in self.extents]
        assert arena.live_bytes == sum(each.live_bytes for each in self.extents)
        assert arena.live_count == sum(each.live_count for each in self.extents)
        assert arena.cursor_bytes == sum(each.cursor for each in self.extents)
        assert arena.capacity_bytes == sum(each.size for each in self.extents)
        assert arena.freed_bytes == self.freed
        assert arena.ignored_frees == self.ignored
        rooms = [max(each.left(self.align), 0) for each in self.extents]
        assert arena.largest_free_bytes == max(rooms, default=0)
        arena.check_consistency()


sizes = st.one_of(st.integers(0, 3000), st.integers(0, 2 * SLOT_BYTES))
aligns = st.sampled_from([1, 2, 64, 512, 4096, 1 << 15])
extent_lists = st.lists(
    st.tuples(
        st.sampled_from(BASES),
        st.one_of(st.just(0), st.integers(0, 2000)),
        st.one_of(st.just(4096), st.integers(1, SLOT_BYTES - 2000)),
    ),
    max_size=24,
    unique_by=lambda extent: extent[0],
).map(lambda found: [(base + shift, size) for base, shift, size in found])

steps = st.lists(
    st.one_of(
        st.tuples(st.just("allocate"), sizes),
        st.tuples(st.just("allocate"), sizes),
        st.tuples(st.just("free"), st.integers(0, 10**6)),
        st.tuples(st.just("foreign"), st.integers(0, BASES[-1] + SLOT_BYTES)),
        st.tuples(st.just("reclaim"), st.none()),
        st.tuples(st.just("set_extents"), extent_lists),
        st.tuples(st.just("add_extents"), extent_lists),
        st.tuples(st.just("policy"), st.booleans()),
        st.tuples(st.just("align"), aligns),
    ),
    max_size=60,
)


def step_both(name, value, arena, model, pieces):
    """Do the same to both, and compare what they answer."""
    if name == "allocate":
        expected = model.allocate(value)
        if expected is None:
            with pytest.raises(MemoryError):
                arena.allocate(value)
        else:
            assert arena.allocate(value) == expected
            pieces.append((expected, value))
    elif name == "free" and pieces:
        address, size = pieces.pop(value % len(pieces))
        arena.free(address, size)
        model.free(address, size)
    elif name == "foreign":
        arena.free(value, 700)
        model.free(value, 700)
    elif name == "reclaim":
        assert arena.reclaim() == model.reclaim()
    elif name == "set_extents":
        arena.set_extents(value)
        model.set_extents(value)
    elif name == "add_extents":
        taken = {each.base // SLOT_BYTES for each in model.extents}
        more = [pair for pair in value if pair[0] // SLOT_BYTES not in taken]
        arena.add_extents(more)
        model.extents += [ModelExtent(*pair) for pair in more]
    elif name == "policy":
        arena.set_best_fit(value)
        model.best_fit = value
    elif name == "align":
        arena.set_align(value)
        model.align = value


def give_everything_back(arena, model):
    """Free as many allocations as the model says there are."""
    ranges = [(old.first, old.outstanding) for old in model.retired]
    ranges += [(extent.base, extent.live_count) for extent in model.extents]
    for address, count in ranges:
        for _ in range(count):
            arena.free(address, 1)
            model.free(address, 1)


@settings(max_examples=300, deadline=None)
@given(extents=extent_lists, align=aligns, best_fit=st.booleans(), history=steps)
def test_any_history_goes_as_the_model_says(extents, align, best_fit, history):
    arena = BumpArena(extents, align=align, best_fit=best_fit)
    model = Model(extents, align, best_fit)
    pieces = []
    try:
        for name, value in history:
            step_both(name, value, arena, model, pieces)
            model.assert_same(arena)
        give_everything_back(arena, model)
        model.assert_same(arena)
        assert_whole_space_is_there(arena)
    finally:
        arena.close(force=True)


@pytest.mark.parametrize("best_fit", [False, True])
@pytest.mark.parametrize("same_size", [False, True])
def test_thousands_of_extents_go_as_the_model_says(best_fit, same_size):
    """Deep trees, with rooms that are all equal and rooms that are all over."""
    rng = random.Random(best_fit * 2 + same_size)
    extents = [
        (BASES[0] + SLOT_BYTES * number, 8192 if same_size else rng.randrange(1, SLOT_BYTES))
        for number in range(3000)
    ]
    rng.shuffle(extents)
    with BumpArena(extents, best_fit=best_fit) as arena:
        model, pieces = Model(extents, 512, best_fit), []
        for number in range(1200):
            kind = rng.choices(["allocate", "free", "reclaim"], [90, 9, 1])[0]
            value = rng.randrange(1, 1 << rng.randrange(1, 17))
            step_both(kind, value, arena, model, pieces)
            if number % 100 == 0:
                model.assert_same(arena)
        model.assert_same(arena)
        give_everything_back(arena, model)
        assert_whole_space_is_there(arena)
