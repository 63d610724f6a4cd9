"""Rows ``pause-resume-*`` and ``gil-elastic``: memory that comes and goes under its addresses."""

import ctypes
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle, islice

import numpy as np

from vmmcy import BackedSegments, free_memory_bytes
from vmmcy.bench import _floor
from vmmcy.bench.measure import Check, Row, beside_floor, medians, timed
from vmmcy.bench.process import COMPUTING_THREADS, KEPT_SPEED, Computing

MIB = 1 << 20
NO_PEER = "none"
DRIVER_CALLS = "the same driver calls from C"
COPY_SHARE = 0.85
# Sizes in MiB, in turn, and how many segments: about 32 GiB and 1 GiB; 8 GiB and 256 MiB.
MIXED = {False: ((2, 20, 62, 244), 400), True: ((2, 20, 62, 20), 40)}
LARGE = {False: ((20, 64, 172), 96), True: ((20, 64, 172), 3)}
FULL_SIZE_BYTES = 40 << 30
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
    with backed(sizes, count, device_id) as segments:
        places, total = arrays(segments.segments)

        def ours() -> None:
            segments.pause()
            segments.resume()

        bare, mine = beside_floor(
            repeats, lambda: _floor.time_pause_resume(*places, device_id), timed(ours)
        )
    return Row(
        id=f"pause-resume-{size_name(total)}",
        item=f"pause and resume of {count} segments, contents forgotten",
        ns_per_item=mine,
        baseline=NO_PEER,
        baseline_ns_per_item=None,
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
    with backed(*MIXED[True], device_id) as segments:
        places, total = arrays(segments.segments)

        def ours() -> None:
            segments.pause()
            segments.resume()

        def bare_calls() -> None:
            _floor.time_pause_resume(*places, device_id)

        with Computing(COMPUTING_THREADS) as others:
            beside, beside_calls = others.turns(rounds, ours, bare_calls)
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
    )


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
