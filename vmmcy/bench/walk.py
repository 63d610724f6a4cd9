"""Rows ``walk-*``: graph inputs in random order over the mappings of one reservation."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from vmmcy import VmmReservation, compute_graph_capture_bases, resolve_graph_inputs
from vmmcy.bench import _floor, plain_python
from vmmcy.bench.measure import Row, medians, timed

INPUT_SIZES = (4 << 10, 64 << 10, 1 << 20, 4 << 20)
CHUNK_BYTES = 2 << 20
SEED = 20261130

BASELINE = "plain Python over cuda.bindings, one driver call a chunk"
FLOOR = "one driver call from C for each distinct allocation"


class WalkCase:
    """Inputs over adjacent mappings of 2 MiB, as arrays and as lists.

    Parameters
    ----------
    base : int
        Address of the first mapping.
    num_inputs, num_mappings : int
        How many of each.
    """

    def __init__(self, base: int, num_inputs: int, num_mappings: int) -> None:
        random = np.random.default_rng(SEED)
        span = num_mappings * CHUNK_BYTES
        self.sizes = random.choice(np.array(INPUT_SIZES, np.uint64), num_inputs)
        starts = random.random(num_inputs) * (span - self.sizes.astype(np.float64))
        self.pointers = base + starts.astype(np.uint64) // 256 * 256
        self.pairs = list(zip(self.pointers.tolist(), self.sizes.tolist(), strict=True))
        offsets = random.permutation(num_mappings).astype(np.uint64) * CHUNK_BYTES
        self.addresses = base + offsets
        self.num_inputs = num_inputs


@contextmanager
def mapped_case(num_inputs: int, num_mappings: int, device_id: int) -> Iterator[WalkCase]:
    """Back `num_mappings` chunks and scatter `num_inputs` inputs over them."""
    size = num_mappings * CHUNK_BYTES
    with VmmReservation(size, device_id=device_id) as reservation:
        reservation.commit(0, size, chunk_bytes=CHUNK_BYTES)
        yield WalkCase(reservation.base, num_inputs, num_mappings)


def rows(quick: bool, device_id: int) -> Iterator[Row]:
    """Measure the rows of this system."""
    large = 10_000 if quick else 100_000
    repeats = 3 if quick else 9
    with mapped_case(large, 1024, device_id) as case:
        peer, bare, arrays, lists = medians(
            repeats,
            timed(lambda: plain_python.walk(case.pairs)),
            lambda: _floor.time_address_ranges(case.addresses, device_id),
            timed(lambda: resolve_graph_inputs(case.pointers, case.sizes, device_id=device_id)),
            timed(lambda: compute_graph_capture_bases(case.pairs, device_id=device_id)),
        )
        yield _row("walk-arrays", arrays, peer, bare, case)
        yield _row("walk-lists", lists, peer, bare, case)
    with mapped_case(1_000, 64, device_id) as case:
        peer, bare, lists = medians(
            repeats * 10,
            timed(lambda: plain_python.walk(case.pairs)),
            lambda: _floor.time_address_ranges(case.addresses, device_id),
            timed(lambda: compute_graph_capture_bases(case.pairs, device_id=device_id)),
        )
        yield _row("walk-lists-1k", lists, peer, bare, case)


def _row(name: str, ours: float, peer: float, bare: float, case: WalkCase) -> Row:
    items = case.num_inputs
    return Row(name, ours / items, peer / items, bare / items, "input", BASELINE, FLOOR)
