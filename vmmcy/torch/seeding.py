"""How lent runs are cut into segments before anything is borrowed, so that all of them serve.

Torch asks an allocator for whole segments: 2 MiB for requests of up to 1 MiB, 20 MiB for those
below 10 MiB, else the size itself in whole 2 MiB. Unprepared, a request of 5 MiB takes 20 MiB of a
large run for good, and finds no place in a run of 12 MiB. So each run of 10 MiB or more becomes one
cached segment, a seed: torch takes the smallest that is enough, splits it, and joins it again when
the pieces are freed. Requests of up to 1 MiB never come from a seed; what is left over for
them is cut from the smallest runs, and from the largest only what the others cannot spare.
"""

from __future__ import annotations

from collections.abc import Sequence

from vmmcy.torch.segments import MIDDLING_BYTES, ROUND_BYTES, SMALL_BYTES, SMALL_SEGMENT_BYTES

LEAST_SEED_BYTES = MIDDLING_BYTES
SMALL_ROOM_BYTES = 32 << 20
SMALL_SHARE = 16

Runs = Sequence[tuple[int, int]]


def usable_bytes(run: tuple[int, int]) -> int:
    """Return the whole small segments of a run in bytes, from its first aligned address on."""
    base, size_bytes = run
    room = size_bytes - -base % ROUND_BYTES
    return max(room, 0) // SMALL_SEGMENT_BYTES * SMALL_SEGMENT_BYTES


def usable_runs(runs: Runs) -> list[tuple[int, int]]:
    """Return the runs that hold a segment; torch asks for none below 2 MiB."""
    return [run for run in runs if usable_bytes(run)]


def seeds_of(runs: Runs) -> list[int]:
    """Return the sizes in bytes of the segments to make of the runs, largest first."""
    sizes = sorted(map(usable_bytes, runs))
    missing = small_room(sum(sizes))
    seeds = []
    for size_bytes in sizes:
        seed = size_bytes - missing if missing > 0 else size_bytes
        if seed < LEAST_SEED_BYTES:
            seed = 0
        missing -= size_bytes - seed
        if seed:
            seeds.append(seed)
    return seeds[::-1]


def small_room(total_bytes: int) -> int:
    """Return the bytes to leave for requests of up to 1 MiB, in whole segments of theirs."""
    share = total_bytes // SMALL_SHARE // SMALL_SEGMENT_BYTES * SMALL_SEGMENT_BYTES
    return min(max(share, SMALL_SEGMENT_BYTES), SMALL_ROOM_BYTES)


def largest_tensor_bytes(runs: Runs) -> int:
    """Return the bytes of the largest tensor that fits when nothing else is borrowed."""
    seeds = seeds_of(runs)
    if seeds:
        return seeds[0]
    return SMALL_BYTES if usable_runs(runs) else 0
