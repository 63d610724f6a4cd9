"""Counts, frees and the end of an arena, seen from Python."""

import numpy as np
import pytest
from arena_help import BASE, GIB, KIB, MIB, assert_whole_space_is_there, c_functions, fill, free_all

from vmmcy.arena import BumpArena


@pytest.fixture
def arena():
    with BumpArena([(BASE, MIB)]) as arena:
        yield arena
        free_all(arena)


# ---- A2: arenas are cheap, and slots are used again


def test_a_thousand_arenas_one_after_the_other():
    addresses = set()
    for _ in range(1000):
        with BumpArena([(BASE, GIB)]) as arena:
            addresses.add(arena.entry_points.malloc_address)
    assert len(addresses) <= 256


# ---- A9: memory comes back


@pytest.mark.parametrize("best_fit", [False, True])
def test_reclaim_gives_idle_extents_again(best_fit):
    extents = [(BASE, MIB), (BASE + 2 * MIB, MIB)]
    with BumpArena(extents, best_fit=best_fit) as arena:
        addresses = fill(arena, 256 * KIB)
        for address in addresses[:4]:
            arena.free(address, 256 * KIB)
        assert arena.freed_bytes == MIB
        assert arena.reclaim() == MIB
        arena.check_consistency()
        assert arena.reclaim() == 0
        assert fill(arena, 256 * KIB) == addresses[:4]
        assert arena.live_bytes == 2 * MIB
        assert_whole_space_is_there(arena)


def test_reclaim_leaves_extents_in_use_alone(arena):
    arena.allocate(512)
    kept = arena.allocate(512)
    arena.free(BASE, 512)
    assert arena.reclaim() == 0
    assert arena.allocate(512) == kept + 512


def test_foreign_frees_are_ignored_and_counted(arena):
    address = arena.allocate(512)
    foreign = [0, 1, BASE - 1, BASE + 512, BASE + MIB, 2**64 - 1]
    for other in foreign:
        arena.free(other, 512)
    assert (arena.live_bytes, arena.ignored_frees) == (512, len(foreign))
    arena.free(address, 512)
    arena.free(address, 512)  # nothing is live there any more
    assert (arena.live_bytes, arena.ignored_frees) == (0, len(foreign) + 1)


def test_counts_never_go_negative_whatever_size_is_freed(arena):
    first, second = arena.allocate(512), arena.allocate(512)
    arena.free(first, 2**64 - 1)
    assert (arena.live_bytes, arena.live_count, arena.freed_bytes) == (0, 1, 1024)
    arena.free(second, 512)
    assert (arena.live_bytes, arena.live_count, arena.freed_bytes) == (0, 0, 1024)
    assert_whole_space_is_there(arena)


def test_what_is_not_live_is_freed(arena):
    addresses = fill(arena, 1000)
    for address in addresses[::2]:
        arena.free(address, 0)  # too small a size: the rest comes with the last
    assert arena.live_bytes + arena.freed_bytes == len(addresses) * 1024
    for address in addresses[1::2]:
        arena.free(address, 0)
    assert (arena.live_bytes, arena.freed_bytes) == (0, len(addresses) * 1024)


def test_require_idle_refuses_while_anything_is_live(arena):
    address = arena.allocate(1000)
    with pytest.raises(RuntimeError, match="1024 bytes in 1 allocations are live"):
        arena.set_extents([], require_idle=True)
    assert arena.extents == [(BASE, MIB, 1024)]
    arena.free(address, 1000)
    arena.set_extents([(BASE, MIB)], require_idle=True)
    assert arena.extents == [(BASE, MIB, 0)]


def test_added_extents_keep_the_cursors(arena):
    arena.allocate(1000)
    arena.add_extents([(BASE - MIB, MIB)])
    assert arena.extents == [(BASE, MIB, 1024), (BASE - MIB, MIB, 0)]
    assert (arena.live_bytes, arena.capacity_bytes) == (1024, 2 * MIB)
    assert arena.allocate(MIB) == BASE - MIB
    arena.check_consistency()
    arena.free(BASE, 1000)
    arena.free(BASE - MIB, MIB)
    assert arena.freed_bytes == MIB + 1024


# ---- allocate and free from Python


@pytest.mark.parametrize("size_bytes", [1.0, True, "512", None])
def test_a_size_of_another_type_is_refused(arena, size_bytes):
    with pytest.raises(TypeError, match="^size_bytes must be an integer"):
        arena.allocate(size_bytes)
    with pytest.raises(TypeError, match="^size_bytes must be an integer"):
        arena.free(BASE, size_bytes)
    with pytest.raises(TypeError, match="^address must be an integer"):
        arena.free(size_bytes, 512)


@pytest.mark.parametrize("size_bytes", [-1, 2**64])
def test_a_size_out_of_bounds_is_refused(arena, size_bytes):
    with pytest.raises(ValueError, match=f"^size_bytes .*{size_bytes}"):
        arena.allocate(size_bytes)
    with pytest.raises(ValueError, match=f"^address .*{size_bytes}"):
        arena.free(size_bytes, 512)
    assert arena.cursor_bytes == 0


def test_no_bytes_count_as_one(arena):
    assert (arena.allocate(0), arena.allocate(np.int64(1))) == (BASE, BASE + 512)
    arena.free(BASE, 0)
    assert arena.live_bytes == 512


def test_another_device_gets_an_error_that_names_both():
    with BumpArena([(BASE, MIB)], device_id=1) as arena:
        with pytest.raises(ValueError, match="on device 1, not on device 0$"):
            arena.allocate(512, device_id=0)
        assert arena.cursor_bytes == 0
        assert arena.allocate(512, device_id=1) == BASE
        assert arena.allocate(512) == BASE + 512
        free_all(arena)
    with BumpArena([(BASE, MIB)]) as arena:
        assert arena.allocate(512, device_id=7) == BASE
        free_all(arena)
        arena.free(BASE, 512)


# ---- close


def test_close_is_refused_while_anything_is_live():
    arena = BumpArena([(BASE, MIB)])
    address = arena.allocate(1000)
    with pytest.raises(
        RuntimeError, match="^BumpArena.close: 1024 bytes in 1 allocations are live"
    ):
        arena.close()
    assert not arena.closed
    arena.free(address, 1000)
    arena.close()
    arena.close()
    assert arena.closed


def test_close_waits_for_what_older_extents_handed_out():
    arena = BumpArena([(BASE, MIB)])
    address = arena.allocate(1000)
    arena.set_extents([])
    with pytest.raises(RuntimeError, match="1 from before the last set_extents are not freed"):
        arena.close()
    arena.free(address, 1000)
    arena.close()


def test_after_close_methods_are_refused_and_properties_readable():
    arena = BumpArena([(BASE, MIB)], align=1024, best_fit=True, device_id=3)
    _, free = c_functions(entry_points := arena.entry_points)
    arena.allocate(1)
    arena.free(arena.allocate(1), 1)
    arena.close(force=True)
    free(BASE, 1)
    assert arena.entry_points is entry_points
    calls = {
        "set_extents": lambda: arena.set_extents([]),
        "add_extents": lambda: arena.add_extents([]),
        "set_align": lambda: arena.set_align(512),
        "set_best_fit": lambda: arena.set_best_fit(False),
        "allocate": lambda: arena.allocate(1),
        "free": lambda: arena.free(BASE, 1),
        "reclaim": arena.reclaim,
        "check_consistency": arena.check_consistency,
        "__enter__": arena.__enter__,
    }
    for method, call in calls.items():
        with pytest.raises(RuntimeError, match=f"^BumpArena.{method} after close$"):
            call()
    assert (arena.cursor_bytes, arena.freed_bytes, arena.live_bytes) == (2048, 1024, 1024)
    assert (arena.capacity_bytes, arena.largest_free_bytes) == (MIB, MIB - 2048)
    assert (arena.live_count, arena.ignored_frees) == (1, 0)
    assert arena.extents == [(BASE, MIB, 2048)]
    assert (arena.align, arena.best_fit, arena.device_id) == (1024, True, 3)
    assert repr(arena) == "<BumpArena closed>"
    with pytest.raises(TypeError):  # types come before the state
        arena.allocate("1")
    arena.close()


def test_a_failing_block_closes_whatever_is_live():
    arena = BumpArena([(BASE, MIB)])
    _, free = c_functions(entry_points := arena.entry_points)
    with pytest.raises(TypeError), arena:
        arena.allocate("more than a mebibyte" if arena.allocate(1) else 1)
    assert arena.closed
    free(BASE, 1)
    assert entry_points is arena.entry_points


def test_an_arena_dropped_open_warns():
    with pytest.warns(ResourceWarning, match="BumpArena slot .* was dropped without close"):
        BumpArena([(BASE, MIB)])


def test_a_refused_arena_leaves_no_slot_behind():
    for _ in range(300):
        with pytest.raises(ValueError, match="overlap"):
            BumpArena([(BASE, MIB), (BASE, MIB)])
