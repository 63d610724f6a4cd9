"""Rows ``commit-*`` and ``pool-2MiB``: ranges backed, from a pool of handles and many at once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vmmcy import HandlePool, VmmReservation, commit_many
from vmmcy.bench import _floor, plain_python
from vmmcy.bench.measure import Check, Row, Timer, beside_floor, timed

MIB = 1 << 20
PYTHON = "plain Python over cuda.bindings, without a pool"
DRIVER_CALLS = "the same driver calls from C"
KEPT = f"{DRIVER_CALLS}, on handles that are kept"
POOLED_SHARE = 0.7
MANY = 512


def rows(quick: bool, device_id: int) -> Iterator[Row]:
    """Measure the rows of this system."""
    yield _commit_row(1 << 30, 20 if quick else 300, device_id)
    yield _pool_row(2 * MIB, 50 if quick else 1_500, device_id)
    yield _commit_many_row(2 * MIB, 3 if quick else 31, device_id)


@contextmanager
def kept_handles(count: int, size_bytes: int, device_id: int) -> Iterator[NDArray[np.uint64]]:
    """As many handles for a floor that keeps them from round to round, as a pool does."""
    handles = np.zeros(count, np.uint64)
    _floor.create_handles(handles, size_bytes, device_id)
    try:
        yield handles
    finally:
        _floor.release_handles(handles)


def _and_back(work: Callable[[], Any], back: Callable[[], Any]) -> Timer:
    """Time `work`; what undoes it runs outside the clock."""

    def timer() -> int:
        started = perf_counter_ns()
        work()
        elapsed = perf_counter_ns() - started
        back()
        return elapsed

    return timer


def _commit_row(size_bytes: int, repeats: int, device_id: int) -> Row:
    prop = plain_python.allocation_prop(device_id)
    access = plain_python.access_desc(device_id)
    with VmmReservation(size_bytes, device_id=device_id) as reservation:
        base = reservation.base
        bare, python, mine = beside_floor(
            repeats,
            lambda: _floor.time_commit(base, size_bytes, device_id),
            _and_back(
                lambda: plain_python.back(base, size_bytes, prop, access),
                lambda: plain_python.unback(base, size_bytes),
            ),
            _and_back(
                lambda: reservation.commit(0, size_bytes),
                lambda: reservation.decommit(0, size_bytes),
            ),
        )
    return Row(
        id="commit-1GiB",
        item="commit of 1 GiB in one mapping",
        ns_per_item=mine,
        baseline=PYTHON,
        baseline_ns_per_item=python,
        floor=DRIVER_CALLS,
        floor_ns_per_item=bare,
        limit="1.05 x floor",
        limit_ns_per_item=1.05 * bare,
    )


def _pool_row(size_bytes: int, repeats: int, device_id: int) -> Row:
    prop = plain_python.allocation_prop(device_id)
    access = plain_python.access_desc(device_id)
    with (
        HandlePool(device_id, chunk_bytes=size_bytes, capacity_bytes=size_bytes) as pool,
        VmmReservation(size_bytes, pool=pool) as reservation,
        kept_handles(1, size_bytes, device_id) as handles,
    ):
        base = reservation.base
        pool.prefill(size_bytes)

        def ours() -> None:
            reservation.commit(0, size_bytes)
            reservation.decommit(0, size_bytes)

        bare, whole, python, mine = beside_floor(
            repeats,
            lambda: _floor.time_kept(base, handles, size_bytes, device_id, True),
            lambda: _floor.time_map_unmap(base, size_bytes, device_id, 1),
            timed(lambda: plain_python.map_unmap(base, size_bytes, prop, access)),
            timed(ours),
        )
    return Row(
        id="pool-2MiB",
        item="commit and decommit through a warm pool",
        ns_per_item=mine,
        baseline=PYTHON,
        baseline_ns_per_item=python,
        floor=KEPT,
        floor_ns_per_item=bare,
        limit="floor + 3 us",
        limit_ns_per_item=bare + 3_000,
        checks=(
            Check(
                "share of the driver calls with create and release",
                mine / whole,
                POOLED_SHARE,
            ),
        ),
    )


def _commit_many_row(size_bytes: int, repeats: int, device_id: int) -> Row:
    total = MANY * size_bytes
    prop = plain_python.allocation_prop(device_id)
    access = plain_python.access_desc(device_id)
    with (
        HandlePool(device_id, chunk_bytes=size_bytes, capacity_bytes=total) as pool,
        VmmReservation(total, pool=pool) as reservation,
        kept_handles(MANY, size_bytes, device_id) as handles,
    ):
        pool.prefill(total)
        ranges = [(reservation, index * size_bytes, size_bytes) for index in range(MANY)]
        base = reservation.base

        def one_by_one() -> None:
            for _, offset, _ in ranges:
                plain_python.back(base + offset, size_bytes, prop, access)

        bare, python, mine = beside_floor(
            repeats,
            lambda: _floor.time_kept(base, handles, size_bytes, device_id, False),
            _and_back(one_by_one, lambda: plain_python.unback(base, total)),
            _and_back(lambda: commit_many(ranges), lambda: reservation.decommit(0, total)),
        )
    return Row(
        id="commit-many-512",
        item="commit of 512 ranges of 2 MiB from a warm pool",
        ns_per_item=mine,
        baseline=f"{PYTHON}, one by one",
        baseline_ns_per_item=python,
        floor=KEPT,
        floor_ns_per_item=bare,
        limit="1.03 x floor",
        limit_ns_per_item=1.03 * bare,
    )
