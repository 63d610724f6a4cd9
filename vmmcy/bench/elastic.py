"""Rows ``pause-resume-*`` and ``gil-elastic``: memory that comes and goes under its addresses."""

import ctypes
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle, islice

import numpy as np

from vmmcy import (
    BackedSegments,
    HandlePool,
    VmmReservation,
    commit_many,
    decommit_many,
    free_memory_bytes,
)
from vmmcy.bench import _floor, plain_python
from vmmcy.bench.computing import COMPUTING_THREADS, KEPT_SPEED, Computing
from vmmcy.bench.measure import Check, Row, beside_floor, medians, timed

MIB = 1 << 20
NO_PEER = "none"
DRIVER_CALLS = "the same driver calls from C"
COPY_SHARE = 0.85
# Sizes in MiB, in turn, and how many segments: about 32 GiB and 1 GiB; 8 GiB and 256 MiB.
MIXED = {False: ((2, 20, 62, 244), 400), True: ((2, 20, 62, 20), 40)}
LARGE = {False: ((20, 64, 172), 96), True: ((20, 64, 172), 3)}
FULL_SIZE_BYTES = 40 << 30
# Of the work that threads compute beside.
MANY = 512
KEPT_BYTES = 256 * MIB
MALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)

Segments = list[tuple[int, int]]


def rows(quick: bool, device_id: int) -> Iterator[Row]:
    """Measure the rows of this system; what does not fit the device is measured smaller."""
    small = quick or free_memory_bytes(device_id) < FULL_SIZE_BYTES
    yield _pause_resume_row(*MIXED[small], 3 if quick else 61, device_id)
    yield _host_row(*LARGE[small], 2 if quick else 7, device_id)
    yield _gil_row(10 if quick else 200, device_id)


@contextmanager
def backed(sizes: Sequence[int], count: int, device_id: int) -> Iterator[BackedSegments]:
    """Segments of these sizes in MiB, in turn."""
    segments = BackedSegments(device_id=device_id)
    entry_points = segments.entry_points
    malloc, free = MALLOC(entry_points.malloc_address), FREE(entry_points.free_address)
    try:
        for size in islice(cycle(sizes), count):
            if not malloc(size * MIB, device_id, None):
                raise segments.last_error or MemoryError
        yield segments
    finally:
        for address, size_bytes in segments.segments:
            free(address, size_bytes, device_id, None)
        segments.close()


def _pause_resume_row(sizes: Sequence[int], count: int, repeats: int, device_id: int) -> Row:
    prop = plain_python.allocation_prop(device_id)
    access = plain_python.access_desc(device_id)
    with backed(sizes, count, device_id) as segments:
        places, total = arrays(segments.segments)
        pairs = segments.segments

        def ours() -> None:
            segments.pause()
            segments.resume()

        def theirs() -> None:
            for place in pairs:
                plain_python.unback(*place)
            for place in pairs:
                plain_python.back(*place, prop, access)

        bare, python, mine = beside_floor(
            repeats,
            lambda: _floor.time_pause_resume(*places, device_id),
            timed(theirs),
            timed(ours),
        )
    return Row(
        id=f"pause-resume-{size_name(total)}",
        item=f"pause and resume of {count} segments, contents forgotten",
        ns_per_item=mine,
        baseline="plain Python over cuda.bindings, segment by segment",
        baseline_ns_per_item=python,
        floor=DRIVER_CALLS,
        floor_ns_per_item=bare,
        limit="1.03 x floor",
        limit_ns_per_item=1.03 * bare,
    )


def _host_row(sizes: Sequence[int], count: int, repeats: int, device_id: int) -> Row:
    with backed(sizes, count, device_id) as segments:
        keep = segments.segments
        total = sum(size_bytes for _, size_bytes in keep)
        segments.pause(keep)  # pins the host memory
        segments.resume()
        pauses: list[int] = []
        resumes: list[int] = []
        pause, resume = timed(lambda: segments.pause(keep)), timed(segments.resume)

        def ours() -> int:
            pauses.append(pause())
            resumes.append(resume())
            return pauses[-1] + resumes[-1]

        probe = keep[max(range(len(keep)), key=lambda k: keep[k][1])]
        to_host, to_device, mine = medians(
            repeats,
            lambda: _floor.time_pinned_copy(*probe, True, device_id),
            lambda: _floor.time_pinned_copy(*probe, False, device_id),
            ours,
        )
    to_host, to_device = to_host * total / probe[1], to_device * total / probe[1]
    return Row(
        id=f"pause-resume-host-{size_name(total)}",
        item=f"pause and resume of {count} segments, contents kept on the host",
        ns_per_item=mine,
        baseline=NO_PEER,
        baseline_ns_per_item=None,
        floor="as many bytes to pinned memory and back, at the rate of one large copy",
        floor_ns_per_item=to_host + to_device,
        limit=f"floor / {COPY_SHARE}, and so each way",
        limit_ns_per_item=(to_host + to_device) / COPY_SHARE,
        checks=(
            Check("pause / copy to pinned memory", median(pauses) / to_host, 1 / COPY_SHARE),
            Check("resume / copy back", median(resumes) / to_device, 1 / COPY_SHARE),
        ),
    )


def _gil_row(rounds: int, device_id: int) -> Row:
    with backed(*MIXED[True], device_id) as segments, other_works(segments, device_id) as works:
        places, total = arrays(segments.segments)

        def ours() -> None:
            segments.pause()
            segments.resume()

        def bare_calls() -> None:
            _floor.time_pause_resume(*places, device_id)

        with Computing(COMPUTING_THREADS) as others:
            beside, beside_calls, *rest = others.turns(rounds, ours, bare_calls, *works.values())
    losses = {name: other.lost for name, other in zip(works, rest, strict=True)}
    return Row(
        id="gil-elastic",
        item=f"count of a Python thread beside pause and resume of {size_name(total)}",
        ns_per_item=beside.count_ns,
        baseline=NO_PEER,
        baseline_ns_per_item=None,
        floor=f"beside {DRIVER_CALLS}",
        floor_ns_per_item=beside_calls.count_ns,
        limit=f"a count with the {COMPUTING_THREADS} threads alone / {KEPT_SPEED}",
        limit_ns_per_item=beside.count_ns * (1 - beside.lost) / KEPT_SPEED,
        checks=tuple(
            Check(f"speed that the threads lose beside {name}", lost, 1 - KEPT_SPEED)
            for name, lost in losses.items()
        ),
        note=f"beside the floor's calls the threads lose {beside_calls.lost:.1%}",
    )


@contextmanager
def other_works(
    segments: BackedSegments, device_id: int
) -> Iterator[dict[str, Callable[[], object]]]:
    """Make what else threads compute beside, by name; `segments` are paused and resumed."""
    chunk, size_bytes = 2 * MIB, MANY * 2 * MIB
    kept: Segments = []
    for address, segment_bytes in segments.segments:
        if sum(size for _, size in kept) < KEPT_BYTES:
            kept.append((address, segment_bytes))
    with (
        VmmReservation(size_bytes, device_id=device_id) as plain,
        HandlePool(device_id, chunk_bytes=chunk, capacity_bytes=size_bytes) as pool,
        VmmReservation(size_bytes, pool=pool) as pooled,
    ):
        pool.prefill(size_bytes)
        ranges = [(pooled, index * chunk, chunk) for index in range(MANY)]

        def keep_on_host() -> None:
            segments.pause(kept)
            segments.resume()

        keep_on_host()  # pins the host memory
        yield {
            "commit and decommit of 1 GiB": lambda: (
                plain.commit(0, size_bytes),
                plain.decommit(0, size_bytes),
            ),
            "commit and decommit of 2 MiB from a pool": lambda: (
                pooled.commit(0, chunk),
                pooled.decommit(0, chunk),
            ),
            f"commit_many and decommit_many of {MANY} of these": lambda: (
                commit_many(ranges),
                decommit_many(ranges),
            ),
            "pause and resume with contents kept on the host": keep_on_host,
        }


def arrays(segments: Segments) -> tuple[tuple[np.ndarray, np.ndarray], int]:
    """Return addresses and sizes for the floor's loop, and the sum of the sizes."""
    addresses, sizes = (np.array(column, np.uint64) for column in zip(*segments, strict=True))
    return (addresses, sizes), int(sizes.sum())


def median(times: Sequence[int]) -> float:
    """Return the median without the warm-up."""
    return statistics.median(times[1:])


def size_name(size_bytes: int) -> str:
    """Return a size in whole GiB, or MiB below that."""
    return f"{size_bytes >> 30}GiB" if size_bytes >= 1 << 30 else f"{size_bytes >> 20}MiB"
