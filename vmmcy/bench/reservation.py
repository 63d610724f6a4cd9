"""Rows ``map-unmap-*`` and ``reserve-close``: what backing address space costs."""

from collections.abc import Iterator

from vmmcy import VmmReservation
from vmmcy.bench import _floor, cuda_core, plain_python
from vmmcy.bench.measure import Row, beside_first, in_turn, medians, notch, timed

PYTHON = "plain Python over cuda.bindings"
CUDA_CORE = "cuda.core, a buffer of its virtual memory"
FLOOR = "the same driver calls from C"
RESERVED_BYTES = 256 << 30


def rows(quick: bool, device_id: int) -> Iterator[Row]:
    """Measure the rows of this system."""
    repeats = 50 if quick else 1_500
    for name, size_bytes in (("2MiB", 2 << 20), ("1GiB", 1 << 30)):
        for retain in (False, True):
            suffix = "-retain" if retain else ""
            yield _map_unmap_row(
                f"map-unmap-{name}{suffix}", size_bytes, repeats, device_id, retain
            )
    yield _allocate_row(2 << 20, repeats, device_id)
    yield _reserve_close_row(100, 5 if quick else 101, device_id)


def _map_unmap_row(name: str, size_bytes: int, repeats: int, device_id: int, retain: bool) -> Row:
    prop = plain_python.allocation_prop(device_id)
    access = plain_python.access_desc(device_id)
    with VmmReservation(size_bytes, device_id=device_id) as reservation:
        base = reservation.base

        def ours() -> None:
            reservation.map(0, size_bytes, retain_handle=retain)
            reservation.unmap(0, size_bytes)

        def unchecked() -> None:
            handle = _floor.map_unchecked(base, size_bytes, device_id, retain)
            _floor.unmap_unchecked(base, size_bytes, handle)

        times = in_turn(
            repeats,
            lambda: _floor.time_map_unmap(base, size_bytes, device_id, 1),
            timed(lambda: plain_python.map_unmap(base, size_bytes, prop, access)),
            timed(unchecked),
            timed(ours),
        )
    bare, python, two_calls, mine = beside_first(times)
    return Row(
        id=name,
        item="map and unmap",
        ns_per_item=mine,
        baseline=PYTHON,
        baseline_ns_per_item=python,
        floor=FLOOR,
        floor_ns_per_item=bare,
        limit="floor + 3 us",
        limit_ns_per_item=bare + 3_000,
        note=f"two Python calls that check nothing add {two_calls - bare:,.0f} ns to the floor, "
        f"ours {mine - bare:,.0f}, each +- {notch(times[-1], times[0]):,.0f}",
    )


def _allocate_row(size_bytes: int, repeats: int, device_id: int) -> Row:
    prop = plain_python.allocation_prop(device_id)
    access = plain_python.access_desc(device_id)
    core_allocate = cuda_core.allocator(device_id)

    def ours() -> None:
        with VmmReservation(size_bytes, device_id=device_id) as reservation:
            reservation.map(0, size_bytes)

    timers = [
        lambda: _floor.time_allocate(size_bytes, device_id),
        timed(ours),
        timed(lambda: plain_python.allocate_free(size_bytes, prop, access)),
    ]
    if core_allocate is not None:
        timers.append(timed(lambda: core_allocate(size_bytes)))
    bare, mine, python, *core = beside_first(in_turn(repeats, *timers))
    peers = {PYTHON: python} | dict.fromkeys([CUDA_CORE] if core else [], *core)
    fastest = min(peers, key=lambda name: peers[name])
    return Row(
        id="allocate-2MiB",
        item="2 MiB of addresses reserved, backed, and all given back",
        ns_per_item=mine,
        baseline=fastest,
        baseline_ns_per_item=peers[fastest],
        floor=FLOOR,
        floor_ns_per_item=bare,
        limit="baseline",
        limit_ns_per_item=peers[fastest],
        note=", ".join(f"{name}: {time_ns:,.0f} ns" for name, time_ns in peers.items()),
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
