"""Rows ``malloc-*``, ``free``, ``set-extents-*`` and ``arena-create``.

What torch pays at our entry points, and an engine around them. Arithmetic needs addresses,
not memory: nothing here touches what it is handed.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from vmmcy import BumpArena
from vmmcy.bench import _floor
from vmmcy.bench.measure import Row, medians, timed
from vmmcy.bench.torch_stub import torch_stub_ns

BASE = 1 << 40
ALIGN = 512
THREADS = 8
SEED = 20261130
ADD = "an add, same function pointer, no lock"
PEERS = {
    "mutex-add": "a mutex and an add, same function pointer",
    "mutex-scan": "a mutex and a linear scan, same function pointer",
    "mutex-scan-best": "a mutex and a linear scan for the best fit, same function pointer",
}

Words = NDArray[np.uint64]


def rows(quick: bool, device_id: int) -> Iterator[Row]:
    """Measure the rows of this system."""
    count = 20_000 if quick else 200_000
    repeats = 3 if quick else 15
    with second_thread_alive():
        yield _last_row("malloc-1", 1, "mutex-add", count, repeats, 0.8)
        yield _last_row("malloc-64-last", 64, "mutex-scan", count, repeats, 0.8)
        yield _last_row("malloc-4096-last", 4096, "mutex-scan", count // 100, repeats, None)
        yield _last_row("malloc-16384-last", 16_384, "mutex-scan", count // 200, repeats, None)
        for num_extents in (64, 4096, 65_536):
            yield _best_row(num_extents, 50, count // 4, repeats)
        yield _free_row(4_096, 25, repeats)
    yield from _thread_rows(count, repeats)
    yield _set_extents_row(65_536, repeats)
    yield _create_row(1_000, repeats, None if quick else torch_stub_ns())


@contextmanager
def second_thread_alive() -> Iterator[None]:
    """Keep a thread waiting, since some locks are cheaper in a process that has only one."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def equal_extents(count: int, size_bytes: int) -> Words:
    """Return `count` extents side by side; uint64, shape (count, 2), base and size in bytes."""
    sizes = np.full(count, size_bytes, np.uint64)
    return np.stack([BASE + np.arange(count, dtype=np.uint64) * sizes, sizes], axis=1)


def spread_extents(count: int) -> Words:
    """Return `count` extents of sizes from 1 to `count` units in random order, as above."""
    sizes = (np.random.default_rng(SEED).permutation(count).astype(np.uint64) + 1) * ALIGN
    ends = np.cumsum(sizes, dtype=np.uint64)
    return np.stack([BASE + ends - sizes, sizes], axis=1)


def give_peers(extents: Words) -> None:
    """Let the peers start over on `extents`."""
    _floor.set_peer_extents(extents[:, 0].copy(), extents[:, 1].copy())


def _last_row(
    name: str, num_extents: int, peer: str, count: int, repeats: int, of_peer: float | None
) -> Row:
    sizes = np.full(count, ALIGN, np.uint64)
    extents = equal_extents(num_extents, count * ALIGN)
    fill = extents[:-1, 1].copy()
    peer_address, add_address = _floor.PEERS[peer], _floor.PEERS["bare-add"]
    with BumpArena(extents, max_extents=num_extents) as arena:
        address = arena.entry_points.malloc_address

        def theirs() -> int:
            give_peers(extents)
            _floor.time_mallocs(peer_address, fill)
            return _floor.time_mallocs(peer_address, sizes)

        def add() -> int:
            give_peers(extents)
            return _floor.time_mallocs(add_address, sizes)

        def ours() -> int:
            arena.set_extents(extents)
            _floor.time_mallocs(address, fill)
            return _floor.time_mallocs(address, sizes)

        peer_ns, add_ns, our_ns = medians(repeats, theirs, add, ours)
        arena.close(force=True)
    return Row(
        id=name,
        item="C malloc",
        ns_per_item=our_ns / count,
        baseline=PEERS[peer],
        baseline_ns_per_item=peer_ns / count,
        floor=ADD,
        floor_ns_per_item=add_ns / count,
        limit="50 ns" if of_peer is None else f"{of_peer} x baseline",
        limit_ns_per_item=50.0 if of_peer is None else of_peer * peer_ns / count,
        curve="first fit, the last has room",
        at=num_extents,
    )


def _best_row(num_extents: int, peer_count: int, count: int, repeats: int) -> Row:
    extents = spread_extents(num_extents)
    random = np.random.default_rng(SEED + 1)
    sizes = random.permutation(extents[:, 1])[:count]
    peer_address, add_address = _floor.PEERS["mutex-scan-best"], _floor.PEERS["bare-add"]
    with BumpArena(extents, best_fit=True, max_extents=num_extents) as arena:
        address = arena.entry_points.malloc_address

        def theirs() -> int:
            give_peers(extents)
            return _floor.time_mallocs(peer_address, sizes[:peer_count])

        def add() -> int:
            give_peers(equal_extents(1, int(sizes.sum())))
            return _floor.time_mallocs(add_address, sizes)

        def ours() -> int:
            arena.set_extents(extents)
            return _floor.time_mallocs(address, sizes)

        peer_ns, add_ns, our_ns = medians(repeats, theirs, add, ours)
        arena.close(force=True)
    return Row(
        id=f"malloc-{num_extents}-best",
        item="C malloc",
        ns_per_item=our_ns / len(sizes),
        baseline=PEERS["mutex-scan-best"],
        baseline_ns_per_item=peer_ns / peer_count,
        floor=ADD,
        floor_ns_per_item=add_ns / len(sizes),
        limit="250 ns",
        limit_ns_per_item=250.0,
        curve="best fit, sizes over all rooms",
        at=num_extents,
    )


def _free_row(num_extents: int, of_each: int, repeats: int) -> Row:
    count = num_extents * of_each
    extents = equal_extents(num_extents, of_each * ALIGN)
    offsets = np.random.default_rng(SEED).permutation(count).astype(np.uint64) * ALIGN
    pointers = BASE + offsets
    with BumpArena(extents) as arena:
        points = arena.entry_points

        def ours() -> int:
            arena.set_extents(extents)
            _floor.time_mallocs(points.malloc_address, np.full(count, ALIGN, np.uint64))
            return _floor.time_frees(points.free_address, pointers, ALIGN)

        def theirs(peer: str) -> int:
            return _floor.time_frees(_floor.PEERS[peer], pointers, ALIGN)

        give_peers(extents)
        bare_ns, scan_ns, our_ns = medians(
            repeats, lambda: theirs("bare-free"), lambda: theirs("mutex-scan-free"), ours
        )
        if arena.live_bytes:
            raise RuntimeError(f"{arena.live_bytes} bytes are live after all was freed")
    return Row(
        id="free",
        item=f"C free among {num_extents} extents",
        ns_per_item=our_ns / count,
        baseline="a mutex and a linear scan for the extent, same function pointer",
        baseline_ns_per_item=scan_ns / count,
        floor=ADD,
        floor_ns_per_item=bare_ns / count,
        limit="50 ns",
        limit_ns_per_item=50.0,
    )


def _thread_rows(count: int, repeats: int) -> Iterator[Row]:
    extents = equal_extents(1, 4 * THREADS * count * ALIGN)
    arenas = [BumpArena(extents) for _ in range(THREADS)]
    addresses = np.array([arena.entry_points.malloc_address for arena in arenas], np.uint64)
    shared_mutex = np.full(THREADS, _floor.PEERS["mutex-add"], np.uint64)
    private_mutexes = np.array(_floor.PRIVATE, np.uint64)

    def together(functions: Words) -> int:
        give_peers(extents)
        for arena in arenas:
            arena.set_extents(extents)
        return _floor.time_threads(functions, ALIGN, count)

    one_mutex, one_arena, own_mutex, own_arena = (
        ns / (THREADS * count)
        for ns in medians(
            repeats,
            lambda: together(shared_mutex),
            lambda: together(np.full(THREADS, addresses[0])),
            lambda: together(private_mutexes),
            lambda: together(addresses),
        )
    )
    for arena in arenas:
        arena.close(force=True)
    yield Row(
        id="malloc-8-threads",
        item="C malloc, 8 threads at one arena",
        ns_per_item=one_arena,
        baseline="8 threads at one mutex and an add",
        baseline_ns_per_item=one_mutex,
        floor="none",
        floor_ns_per_item=None,
        limit="1.1 x baseline",
        limit_ns_per_item=1.1 * one_mutex,
    )
    yield Row(
        id="malloc-8-arenas",
        item="C malloc, 8 threads at an arena each",
        ns_per_item=own_arena,
        baseline="8 threads at a private mutex and an add each",
        baseline_ns_per_item=own_mutex,
        floor="none",
        floor_ns_per_item=None,
        limit="baseline / 0.9",
        limit_ns_per_item=own_mutex / 0.9,
    )


def _set_extents_row(num_extents: int, repeats: int) -> Row:
    extents = equal_extents(num_extents, 2 << 20)
    with BumpArena(max_extents=num_extents) as arena:
        copied_ns, our_ns = medians(
            repeats, timed(lambda: give_peers(extents)), timed(lambda: arena.set_extents(extents))
        )
    return Row(
        id=f"set-extents-{num_extents}",
        item="extent",
        ns_per_item=our_ns / num_extents,
        baseline="none",
        baseline_ns_per_item=None,
        floor="a copy of the arrays in C, which looks at nothing",
        floor_ns_per_item=copied_ns / num_extents,
        limit="200 ns",
        limit_ns_per_item=200.0,
    )


def _create_row(count: int, repeats: int, stub_ns: float | None) -> Row:
    def create_and_close() -> None:
        for _ in range(count):
            BumpArena([(BASE, 1 << 30)]).close()

    (ours,) = medians(repeats, timed(create_and_close))
    return Row(
        id="arena-create",
        item="arena of one extent, created and closed",
        ns_per_item=ours / count,
        baseline="a stub compiled at run time through torch",
        baseline_ns_per_item=stub_ns,
        floor="none",
        floor_ns_per_item=None,
        limit="5 us, and baseline / 10,000",
        limit_ns_per_item=None if stub_ns is None else min(5_000.0, stub_ns / 10_000),
    )
