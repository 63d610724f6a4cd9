"""One arena from many threads: nothing is handed out twice, nothing is lost."""

import itertools
import threading

import pytest
from arena_help import BASE, MIB, assert_whole_space_is_there, c_functions

from vmmcy.arena import BumpArena

THREADS = 8


def run_together(*works):
    """Run each of `works` in a thread of its own; raise what one of them raised."""
    start = threading.Barrier(len(works))
    errors = []

    def run(work):
        start.wait()
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        raise error


def assert_disjoint(pieces):
    pieces = sorted(pieces)
    for (address, size_bytes), (after, _) in itertools.pairwise(pieces):
        assert address + size_bytes <= after


@pytest.mark.parametrize("best_fit", [False, True])
def test_threads_never_get_the_same_address(best_fit):
    extents = [(BASE + 2 * MIB * number, MIB) for number in range(64)]
    with BumpArena(extents, best_fit=best_fit) as arena:
        malloc, free = c_functions(arena.entry_points)
        got = [[] for _ in range(THREADS)]

        def take(pieces, seed):
            size_bytes = 512 * seed
            while (address := malloc(size_bytes)) is not None:
                pieces.append((address, size_bytes))

        run_together(
            *(lambda number=number: take(got[number], number + 1) for number in range(THREADS))
        )
        pieces = [piece for mine in got for piece in mine]
        assert_disjoint(pieces)
        assert sum(size_bytes for _, size_bytes in pieces) == 64 * MIB == arena.live_bytes
        run_together(*(lambda mine=mine: [free(*piece) for piece in mine] for mine in got))
        assert (arena.live_bytes, arena.ignored_frees) == (0, 0)
        assert_whole_space_is_there(arena)


@pytest.mark.parametrize("best_fit", [False, True])
def test_reclaim_never_gives_away_what_is_live(best_fit):
    extents = [(BASE + MIB * number, 4096) for number in range(16)]
    with BumpArena(extents, best_fit=best_fit) as arena:
        malloc, free = c_functions(arena.entry_points)
        owners = {}
        done = threading.Event()

        def use(name):
            for _ in range(3000):
                address = malloc(1024)
                if address is None:
                    continue
                assert owners.setdefault(address, name) == name
                del owners[address]
                free(address, 1024)

        def reclaim():
            while not done.is_set():
                arena.reclaim()

        helper = threading.Thread(target=reclaim)
        helper.start()
        try:
            run_together(*(lambda name=name: use(name) for name in range(4)))
        finally:
            done.set()
            helper.join()
        assert (arena.live_bytes, arena.ignored_frees) == (0, 0)
        assert_whole_space_is_there(arena)


def test_extents_change_under_running_threads():
    generations = [
        [(BASE + MIB * (10 * generation + number), MIB) for number in range(8)]
        for generation in range(40)
    ]
    with BumpArena(generations[0]) as arena:
        malloc, free = c_functions(arena.entry_points)
        done = threading.Event()

        def use():
            while not done.is_set():
                address = malloc(4096)
                if address is not None:
                    free(address, 4096)

        def change():
            for number, extents in enumerate(generations[1:]):
                arena.set_extents(extents[:4])
                arena.add_extents(extents[4:])
                arena.set_best_fit(number % 2)
                arena.set_align(512 << number % 3)
                arena.check_consistency()
            done.set()

        run_together(use, use, use, change)
        arena.check_consistency()
        assert arena.live_count == 0
        assert_whole_space_is_there(arena)


def test_changes_from_many_threads_are_one_after_the_other():
    with BumpArena(max_extents=65_536) as arena:

        def add(name):
            for number in range(100):
                arena.add_extents([(BASE + MIB * (100 * name + number), MIB)])

        run_together(*(lambda name=name: add(name) for name in range(THREADS)))
        assert arena.capacity_bytes == 100 * THREADS * MIB
        assert_whole_space_is_there(arena)


def test_close_against_allocate():
    for _ in range(50):
        arena = BumpArena([(BASE, 1 << 40)])
        malloc, free = c_functions(arena.entry_points)
        taken = []

        def take(malloc=malloc, taken=taken):
            for _ in range(50):
                if (address := malloc(512)) is None:
                    return
                taken.append(address)

        run_together(take, lambda arena=arena: arena.close(force=True))
        assert malloc(512) is None
        assert taken == [BASE + 512 * number for number in range(len(taken))]
        for address in taken:
            free(address, 512)


def test_arenas_come_and_go_in_many_threads():
    def come_and_go():
        for _ in range(200):
            with BumpArena([(BASE, MIB)]) as arena:
                malloc, free = c_functions(arena.entry_points)
                assert malloc(MIB) == BASE
                assert malloc(1) is None
                free(BASE, MIB)

    run_together(*[come_and_go] * THREADS)
