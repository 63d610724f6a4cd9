"""What torch's memory snapshots say about a pool: arithmetic over them, without torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from vmmcy._arguments import shown, unsigned

INACTIVE = "inactive"
AWAITING = "active_pending_free"

Snapshot = Iterable[dict[str, Any]]


def runs_of(snapshot: Snapshot, device_id: int) -> list[tuple[int, int]]:
    """Return the inactive runs of a device's segments, largest first, as (address, size_bytes).

    Neighbouring inactive blocks of a segment are one run. Two segments are never joined: each
    may be a mapping of its own. A block that is in use or waits for an event ends a run.
    """
    runs = [
        run
        for segment in snapshot
        if segment["device"] == device_id
        for run in _runs_of_segment(segment)
    ]
    return sorted(runs, key=lambda run: (-run[1], run[0]))


def active_bytes(snapshot: Snapshot) -> int:
    """Return the bytes of all blocks that are in use, or freed and waiting for an event."""
    return sum(size for _, state, size in _blocks_of(snapshot) if state != INACTIVE)


def awaited_bytes(snapshot: Snapshot) -> int:
    """Return the bytes of all blocks that are freed and may be in use by another stream."""
    return sum(size for _, state, size in _blocks_of(snapshot) if state == AWAITING)


def inactive_bytes(snapshot: Snapshot, *, but_of: int) -> int:
    """Return the bytes of all free blocks, but for those of one stream, a raw handle."""
    return sum(
        size
        for stream, state, size in _blocks_of(snapshot)
        if state == INACTIVE and stream != but_of
    )


def active_ranges(snapshot: Snapshot, device_id: int) -> list[tuple[int, int]]:
    """Return what is in use of a device's segments, or waits for an event: (address, size_bytes).

    Neighbouring blocks of a segment are one range; two segments are never joined.
    """
    ranges: list[tuple[int, int]] = []
    for segment in snapshot:
        address, end = segment["address"], 0
        for block in segment["blocks"] if segment["device"] == device_id else ():
            if block["state"] != INACTIVE:
                start = ranges.pop()[0] if address == end else address
                end = address + block["size"]
                ranges.append((start, end - start))
            address += block["size"]
    return ranges


def streams_of(snapshot: Snapshot) -> set[int]:
    """Return the streams that the segments belong to, as raw handles."""
    return {segment["stream"] for segment in snapshot}


def pool_id_of(pool: Any) -> tuple[int, int]:
    """Return the id of a pool: itself, or that of a ``MemPool`` or of a captured graph.

    Raises
    ------
    TypeError
        `pool` is none of these.
    ValueError
        It is the id of torch's ordinary memory, (0, 0), or of two numbers that are no words.
    """
    found = pool
    if not isinstance(pool, tuple):
        found = pool.pool() if callable(getattr(pool, "pool", None)) else getattr(pool, "id", None)
    if not isinstance(found, tuple) or len(found) != 2:
        raise TypeError(
            "pool must be the id of a memory pool (two integers), a MemPool or a CUDAGraph, "
            f"not {type(pool).__name__} {shown(pool)}"
        )
    first, second = unsigned(found[0], "pool"), unsigned(found[1], "pool")
    if (first, second) == (0, 0):
        raise ValueError("pool (0, 0) is torch's ordinary memory, not a pool of its own")
    return first, second


def _blocks_of(snapshot: Snapshot) -> Iterator[tuple[int, str, int]]:
    """Yield the stream, the state and the size in bytes of each block."""
    for segment in snapshot:
        for block in segment["blocks"]:
            yield segment["stream"], block["state"], block["size"]


def _runs_of_segment(segment: dict[str, Any]) -> Iterator[tuple[int, int]]:
    address = start = segment["address"]
    for block in segment["blocks"]:
        if block["state"] != INACTIVE:
            if address > start:
                yield start, address - start
            start = address + block["size"]
        address += block["size"]
    if address > start:
        yield start, address - start
