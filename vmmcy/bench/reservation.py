"""Rows ``map-unmap-*`` and ``reserve-close``: what backing address space costs."""

from collections.abc import Iterator

from vmmcy import VmmReservation
from vmmcy.bench import _floor, plain_python
from vmmcy.bench.measure import Row, medians, timed

PYTHON = "plain Python over cuda.bindings"
FLOOR = "the same driver calls from C"
RESERVED_BYTES = 256 << 30


def rows(quick: bool, device_id: int) -> Iterator[Row]:
    """Measure the rows of this system."""
    # Many: the driver itself needs 0.4 ms for a GiB, or 7 ms, as it comes.
    repeats = 5 if quick else 301
    for name, size_bytes, count in (("2MiB", 2 << 20, 10), ("1GiB", 1 << 30, 1)):
        for retain in (False, True):
            suffix = "-retain" if retain else ""
            yield _map_unmap_row(
                f"map-unmap-{name}{suffix}", size_bytes, count, repeats, device_id, retain
            )
    yield _reserve_close_row(100, repeats, device_id)


def _map_unmap_row(
    name: str, size_bytes: int, count: int, repeats: int, device_id: int, retain: bool
) -> Row:
    prop = plain_python.allocation_prop(device_id)
    access = plain_python.access_desc(device_id)
    with VmmReservation(size_bytes, device_id=device_id) as reservation:
        base = reservation.base

        def ours() -> None:
            for _ in range(count):
                reservation.map(0, size_bytes, retain_handle=retain)
                reservation.unmap(0, size_bytes)

        def theirs() -> None:
            for _ in range(count):
                plain_python.map_unmap(base, size_bytes, prop, access)

        python, bare, mine = medians(
            repeats,
            timed(theirs),
            lambda: _floor.time_map_unmap(base, size_bytes, device_id, count),
            timed(ours),
        )
    return Row(
        id=name,
        item="map and unmap",
        ns_per_item=mine / count,
        baseline=PYTHON,
        baseline_ns_per_item=python / count,
        floor=FLOOR,
        floor_ns_per_item=bare / count,
        limit="floor + 3 us",
        limit_ns_per_item=bare / count + 3_000,
    )


def _reserve_close_row(count: int, repeats: int, device_id: int) -> Row:
    def ours() -> None:
        for _ in range(count):
            VmmReservation(RESERVED_BYTES, device_id=device_id).close()

    def theirs() -> None:
        for _ in range(count):
            plain_python.reserve_free(RESERVED_BYTES)

    python, bare, mine = medians(
        repeats,
        timed(theirs),
        lambda: _floor.time_reserve_free(RESERVED_BYTES, count),
        timed(ours),
    )
    return Row(
        id="reserve-close",
        item="reservation of 256 GiB",
        ns_per_item=mine / count,
        baseline=PYTHON,
        baseline_ns_per_item=python / count,
        floor=FLOOR,
        floor_ns_per_item=bare / count,
        limit="1.6 x floor",
        limit_ns_per_item=1.6 * bare / count,
    )
