"""The C functions that torch calls, and the slots behind them."""

import ctypes
import dataclasses
import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest
from arena_help import (
    BASE,
    GIB,
    KIB,
    MIB,
    assert_whole_space_is_there,
    c_functions,
    free_all,
)

from vmmcy import _arena
from vmmcy.arena import BumpArena

MOST_ARENAS = 256


@pytest.fixture(autouse=True)
def no_slot_left_behind():
    """Every test gives back what it took: no slot stays open, held, or kept back."""
    gc.collect()
    before = _arena.slot_census()
    yield
    gc.collect()
    assert _arena.slot_census() == before


def test_entry_points_name_the_functions_in_two_ways():
    with BumpArena() as arena:
        entry_points = arena.entry_points
        assert entry_points is arena.entry_points
        library = ctypes.CDLL(entry_points.library_path)
        for symbol, address in (
            (entry_points.malloc_symbol, entry_points.malloc_address),
            (entry_points.free_symbol, entry_points.free_address),
        ):
            assert ctypes.cast(library[symbol], ctypes.c_void_p).value == address
        with pytest.raises(dataclasses.FrozenInstanceError):
            entry_points.malloc_address = 0
    assert Path(entry_points.library_path).is_file()


def test_every_slot_has_a_pair_of_its_own():
    pairs = [_arena.entry_point_addresses(slot) for slot in range(MOST_ARENAS + 1)]
    assert len({address for pair in pairs for address in pair}) == 2 * (MOST_ARENAS + 1)


@pytest.mark.parametrize("best_fit", [False, True])
def test_malloc_and_free_count_as_the_methods_do(best_fit):
    with BumpArena([(BASE, MIB), (BASE + GIB, 4096)], best_fit=best_fit) as arena:
        malloc, free = c_functions(arena.entry_points)
        first = BASE + GIB if best_fit else BASE
        assert [malloc(1000), malloc(0)] == [first, first + 1024]
        assert (arena.live_bytes, arena.cursor_bytes, arena.live_count) == (1536, 1536, 2)
        free(first, 1000)
        free(BASE - 1, 1000)
        free(None, 0)
        assert (arena.live_bytes, arena.freed_bytes, arena.ignored_frees) == (512, 1024, 2)
        assert_whole_space_is_there(arena)


# ---- A8: NULL, and the next request works


@pytest.mark.parametrize("size_bytes", [MIB + 1, 2**64 - 1, 2**64 - 511, 2**63])
@pytest.mark.parametrize("best_fit", [False, True])
def test_a_request_too_large_gets_null(size_bytes, best_fit):
    with BumpArena([(BASE, MIB)], best_fit=best_fit) as arena:
        malloc, _ = c_functions(arena.entry_points)
        assert malloc(size_bytes) is None
        assert arena.cursor_bytes == 0
        assert malloc(MIB) == BASE
        assert_whole_space_is_there(arena)


def test_a_request_for_another_device_gets_null():
    with BumpArena([(BASE, MIB)], device_id=1) as arena:
        malloc, _ = c_functions(arena.entry_points)
        assert [malloc(512, 0), malloc(512, -1), malloc(512, 2)] == [None] * 3
        assert malloc(512, 1) == BASE
        assert_whole_space_is_there(arena)
    with BumpArena([(BASE, MIB)]) as arena:
        malloc, _ = c_functions(arena.entry_points)
        assert [malloc(512, device) for device in (0, 1, 7)] == [BASE, BASE + 512, BASE + 1024]
        free_all(arena)


# ---- A10: old functions and new arenas


def test_old_functions_of_a_closed_arena_reach_no_other():
    arena = BumpArena([(BASE, MIB)])
    entry_points = arena.entry_points
    malloc, free = c_functions(entry_points)
    segments = [malloc(64 * KIB) for _ in range(4)]
    arena.close(force=True)
    for _ in range(300):
        with BumpArena([(BASE, MIB)]) as other:
            assert other.entry_points != entry_points
            address = other.allocate(512)
            assert malloc(512) is None
            free(address, 512)  # one of the old arena's segments, as far as it can tell
            assert (other.live_bytes, other.ignored_frees) == (512, 0)
            other.free(address, 512)
    for address in segments:
        free(address, 64 * KIB)


def test_a_slot_comes_back_when_its_last_segment_does():
    before = _arena.slot_census()
    arena = BumpArena([(BASE, MIB)])
    malloc, free = c_functions(arena.entry_points)
    segments = [malloc(4096), malloc(4096)]
    arena.close(force=True)
    del arena
    gc.collect()
    open_slots, shut, kept_back = before
    assert _arena.slot_census() == (open_slots, shut, kept_back + 1)
    free(segments[0], 4096)
    assert _arena.slot_census() == (open_slots, shut, kept_back + 1)
    free(segments[1], 4096)
    assert _arena.slot_census() == before


def test_what_older_extents_handed_out_keeps_the_slot_too():
    before = _arena.slot_census()
    arena = BumpArena([(BASE, MIB)])
    _, free = c_functions(arena.entry_points)
    old = arena.allocate(512)
    arena.set_extents([(BASE + GIB, MIB)])
    arena.close(force=True)
    assert _arena.slot_census()[2] == before[2] + 1
    free(old, 512)
    assert _arena.slot_census() == before


def test_entry_points_keep_their_slot():
    arena = BumpArena([(BASE, MIB)])
    entry_points = arena.entry_points
    arena.close()
    del arena
    for _ in range(2 * MOST_ARENAS):
        with BumpArena() as other:
            assert other.entry_points.malloc_address != entry_points.malloc_address


def test_after_close_the_entry_points_are_those_of_no_arena():
    arena = BumpArena([(BASE, MIB)])
    arena.close()
    malloc, free = c_functions(arena.entry_points)
    free(BASE, 512)
    assert malloc(512) is None
    assert arena.entry_points.malloc_symbol == f"vmmcy_malloc_{MOST_ARENAS}"


def test_an_arena_dropped_open_serves_nobody():
    arena = BumpArena([(BASE, MIB)])
    entry_points = arena.entry_points
    malloc, free = c_functions(entry_points)
    address = malloc(512)
    with pytest.warns(ResourceWarning, match="was dropped without close"):
        del arena
    assert malloc(512) is None
    free(address, 512)


# ---- how many


def test_the_257th_arena_is_refused_and_says_why():
    free_slots = MOST_ARENAS - sum(_arena.slot_census())
    arenas = [BumpArena([(BASE, MIB)]) for _ in range(free_slots)]
    assert len({arena.entry_points.malloc_address for arena in arenas}) == free_slots
    with pytest.raises(
        RuntimeError,
        match="^256 arenas and backed segments are the most at once: 256 are live, 0 are kept back",
    ):
        BumpArena()
    held = arenas[0].entry_points
    _, free = c_functions(arenas[1].entry_points)
    arenas[1].allocate(512)
    arenas.pop(0).close()
    arenas.pop(0).close(force=True)
    with pytest.raises(
        RuntimeError,
        match="254 are live, 1 are kept back because .* never freed, and 1 because their entry",
    ):
        BumpArena()
    free(BASE, 512)
    arenas.append(BumpArena())
    del held
    arenas.append(BumpArena())
    for arena in arenas:
        arena.close()


def test_the_slot_dropped_first_is_used_first():
    order = []
    for _ in range(2 * MOST_ARENAS):
        with BumpArena() as arena:
            order.append(arena.entry_points.malloc_address)
    assert len(set(order[:MOST_ARENAS])) == MOST_ARENAS
    assert order[:MOST_ARENAS] == order[MOST_ARENAS:]


# ---- A1: processes


def test_many_processes_at_once_build_and_write_nothing(tmp_path):
    code = (
        "import sys\n"
        "from vmmcy.arena import BumpArena\n"
        "sys.stdin.readline()\n"
        "arenas = [BumpArena([(1 << 40, 1 << 20)]) for _ in range(4)]\n"
        "assert len({arena.entry_points.malloc_address for arena in arenas}) == 4\n"
        "for arena in arenas:\n"
        "    arena.free(arena.allocate(1 << 20), 1 << 20)\n"
        "    arena.close()\n"
        "print('done')\n"
    )
    package = Path(_arena.__file__).parents[1]
    variables = os.environ | {
        "PATH": "",
        "PYTHONPATH": str(package),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(tmp_path),
        "TMPDIR": str(tmp_path),
    }
    workers = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", code],
            cwd=tmp_path,
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(8)
    ]
    for worker in workers:
        worker.stdin.write("go\n")
        worker.stdin.flush()
    assert [worker.communicate()[0] for worker in workers] == ["done\n"] * 8
    assert list(tmp_path.iterdir()) == []


FORKING = """
import ctypes, os, sys, threading
sys.path.insert(0, {tests!r})
from arena_help import BASE, MIB, c_functions
from vmmcy.arena import BumpArena

arena = BumpArena([(BASE, 1 << 50)])
malloc, free = c_functions(arena.entry_points)
kept = malloc(512)
done = threading.Event()

def hammer():
    while not done.is_set():
        free(malloc(512), 512)

threads = [threading.Thread(target=hammer) for _ in range(2)]
for thread in threads:
    thread.start()
for _ in range({forks}):
    child = os.fork()
    if child == 0:
        assert malloc(512) is None
        free(kept, 512)
        for call in (lambda: arena.allocate(1), lambda: arena.live_bytes, arena.close):
            try:
                call()
            except RuntimeError as error:
                assert "in a forked child" in str(error), error
            else:
                raise AssertionError("not refused")
        with BumpArena([(BASE, MIB)]) as mine:
            theirs, _ = c_functions(mine.entry_points)
            assert theirs(MIB) == BASE
            mine.free(BASE, MIB)
        del arena, call
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
done.set()
for thread in threads:
    thread.join()
arena.check_consistency()
assert (arena.live_bytes, arena.ignored_frees) == (512, 0)
free(kept, 512)
arena.close()
print("parent intact")
"""


def test_a_forked_child_is_refused_and_makes_its_own():
    code = FORKING.format(tests=str(Path(__file__).parent), forks=20)
    # Forking with threads running is what is tested here; newer Pythons warn of it.
    answer = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (answer.stdout, answer.stderr) == ("parent intact\n", "")


def test_an_exit_with_an_open_arena_warns_and_does_not_crash():
    code = (
        "from vmmcy.arena import BumpArena\n"
        "arena = BumpArena([(1 << 40, 1 << 20)])\n"
        "entry_points = arena.entry_points\n"
        "arena.allocate(512)\n"
    )
    answer = subprocess.run(
        [sys.executable, "-W", "always", "-c", code], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0
    assert "ResourceWarning: <BumpArena slot 0> was dropped without close" in (answer.stderr)
