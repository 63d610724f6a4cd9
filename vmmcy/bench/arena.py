"""Rows ``malloc-*`` and ``arena-create``: what torch pays at our entry points."""

import importlib.util
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vmmcy import BumpArena
from vmmcy.bench import _floor
from vmmcy.bench.measure import Row, medians, timed

# Arithmetic needs addresses, not memory: extents from here on are never touched.
BASE = 1 << 40
REQUEST_BYTES = 512
TORCH_STUB = Path(__file__).parents[2] / "bench" / "torch_stub.py"


def rows(quick: bool, device_id: int) -> Iterator[Row]:
    """Measure the rows of this system."""
    count = 100_000 if quick else 1_000_000
    repeats = 3 if quick else 9
    with second_thread_alive():
        yield _malloc_row("malloc-1", 1, "mutex-add", count, repeats)
        yield _malloc_row("malloc-64-last", 64, "mutex-scan", count, repeats)
        yield _malloc_row("malloc-4096-last", 4096, "mutex-scan", count // 100, repeats)
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


def _malloc_row(name: str, num_extents: int, peer: str, count: int, repeats: int) -> Row:
    rounds = 2 * (repeats + 1)  # two peers share their extents, and each warms up once
    room = count * REQUEST_BYTES * rounds
    extents = [(BASE + number * room, room) for number in range(num_extents)]
    _floor.set_peer_extents(BASE, room, num_extents)
    with BumpArena(extents) as arena:
        for _, size_bytes in extents[:-1]:
            arena.allocate(size_bytes)
        address = arena.entry_points.malloc_address
        theirs, bare, ours = medians(
            repeats,
            lambda: _floor.time_mallocs(_floor.PEERS[peer], REQUEST_BYTES, count),
            lambda: _floor.time_mallocs(_floor.PEERS["bare-add"], REQUEST_BYTES, count),
            lambda: _floor.time_mallocs(address, REQUEST_BYTES, count),
        )
        arena.close(force=True)
    baseline = {"mutex-add": "a mutex and an add", "mutex-scan": "a mutex and a linear scan"}[peer]
    return Row(
        name,
        ours / count,
        theirs / count,
        bare / count,
        "C malloc",
        f"{baseline}, same function pointer",
        "an add, same function pointer, no lock",
    )


def _create_row(count: int, repeats: int, stub_ns: float | None) -> Row:
    def create_and_close() -> None:
        for _ in range(count):
            BumpArena([(BASE, 1 << 30)]).close()

    (ours,) = medians(repeats, timed(create_and_close))
    return Row(
        "arena-create",
        ours / count,
        stub_ns,
        None,
        "arena",
        "a stub compiled at run time through torch",
        "none",
    )


def torch_stub_ns() -> float | None:
    """Nanoseconds to compile and load one stub through torch, None where torch is not here."""
    if importlib.util.find_spec("torch") is None or not TORCH_STUB.is_file():
        return None
    answer = subprocess.run(
        [sys.executable, str(TORCH_STUB)], capture_output=True, text=True, check=False
    )
    return float(json.loads(answer.stdout)["median_ns"]) if answer.returncode == 0 else None
