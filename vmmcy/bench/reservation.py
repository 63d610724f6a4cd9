"""Rows ``map-unmap-*`` and ``reserve-close``: what backing address space costs."""

from collections.abc import Iterator

from vmmcy import VmmReservation
from vmmcy.bench import _floor, plain_python
from vmmcy.bench.measure import Row, medians, timed

BASELINE = "plain Python over cuda.bindings"
FLOOR = "the same driver calls from C"
RESERVED_BYTES = 256 << 30


def rows(quick: bool, device_id: int) -> Iterator[Row]:
    """Measure the rows of this system."""
    repeats = 5 if quick else 21
    yield _map_unmap_row("map-unmap-2MiB", 2 << 20, 50, repeats, device_id)
    yield _map_unmap_row("map-unmap-1GiB", 1 << 30, 5, repeats, device_id)
    yield _reserve_close_row(100, repeats, device_id)


def _map_unmap_row(name: str, size_bytes: int, count: int, repeats: int, device_id: int) -> Row:
    prop = plain_python.allocation_prop(device_id)
    access = plain_python.access_desc(device_id)
    with VmmReservation(size_bytes, device_id=device_id) as reservation:
        base = reservation.base

        def ours() -> None:
            for _ in range(count):
                reservation.map(0, size_bytes)
                reservation.unmap(0, size_bytes)

        def theirs() -> None:
            for _ in range(count):
                plain_python.map_unmap(base, size_bytes, prop, access)

        peer, bare, mine = medians(
            repeats,
            timed(theirs),
            lambda: _floor.time_map_unmap(base, size_bytes, device_id, count),
            timed(ours),
        )
    return Row(name, mine / count, peer / count, bare / count, "map and unmap", BASELINE, FLOOR)


def _reserve_close_row(count: int, repeats: int, device_id: int) -> Row:
    def ours() -> None:
        for _ in range(count):
            VmmReservation(RESERVED_BYTES, device_id=device_id).close()

    def theirs() -> None:
        for _ in range(count):
            plain_python.reserve_free(RESERVED_BYTES)

    peer, bare, mine = medians(
        repeats,
        timed(theirs),
        lambda: _floor.time_reserve_free(RESERVED_BYTES, count),
        timed(ours),
    )
    return Row(
        "reserve-close",
        mine / count,
        peer / count,
        bare / count,
        "reservation of 256 GiB",
        BASELINE,
        FLOOR,
    )
