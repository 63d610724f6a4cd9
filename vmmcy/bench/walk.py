"""Rows ``walk-*``: graph inputs in random order over adjacent mappings of 2 MiB."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from vmmcy import (
    GraphCaptureBases,
    VmmReservation,
    compute_graph_capture_bases,
    resolve_graph_inputs,
)
from vmmcy.bench import _floor, plain_python
from vmmcy.bench.measure import Check, Row, medians, timed
from vmmcy.bench.peak_memory import peak_bytes_of

INPUT_SIZES = (4 << 10, 64 << 10, 1 << 20, 4 << 20)
CHUNK_BYTES = 2 << 20
SEED = 20261130
# Inputs and mappings; a quick run takes the first two.
SCALES = (
    (1_000, 1),
    (1_000, 64),
    (100_000, 1),
    (100_000, 1_024),
    (1_000_000, 1_024),
    (1_000_000, 16_384),
    (10_000_000, 1),
    (10_000_000, 16_384),
)

PYTHON = "plain Python over cuda.bindings, one driver call a chunk"
PER_CHUNK = "one driver call a chunk, from C"
FLOOR = "one driver call from C for each distinct allocation"


class WalkCase:
    """Inputs over adjacent mappings, as arrays.

    Parameters
    ----------
    base : int
        Address of the first mapping.
    num_inputs, num_mappings : int
        How many of each.

    Attributes
    ----------
    pointers, sizes : ndarray of uint64, shape (num_inputs,)
        Address and size in bytes of each input.
    distinct_addresses : ndarray of uint64, shape (num_mappings,)
        An address in each mapping, in random order.
    """

    def __init__(self, base: int, num_inputs: int, num_mappings: int) -> None:
        random = np.random.default_rng(SEED)
        span = num_mappings * CHUNK_BYTES
        fitting = [size for size in INPUT_SIZES if size <= span]
        self.sizes = random.choice(np.array(fitting, np.uint64), num_inputs)
        starts = random.random(num_inputs) * (span - self.sizes.astype(np.float64))
        self.pointers = base + starts.astype(np.uint64) // 256 * 256
        offsets = random.permutation(num_mappings).astype(np.uint64) * CHUNK_BYTES
        self.distinct_addresses = base + offsets
        self.num_inputs = num_inputs
        self.num_mappings = num_mappings

    def pairs(self) -> list[tuple[int, int]]:
        """Return the inputs as ``(pointer, nbytes)`` pairs."""
        return list(zip(self.pointers.tolist(), self.sizes.tolist(), strict=True))

    def chunk_addresses(self, device_id: int) -> NDArray[np.uint64]:
        """Return an address in each chunk of each input, in the inputs' order."""
        found = resolve_graph_inputs(self.pointers, self.sizes, device_id=device_id)
        return found.base_pointers[found.chunk_indices]


@contextmanager
def mapped_case(num_inputs: int, num_mappings: int, device_id: int) -> Iterator[WalkCase]:
    """Map one handle `num_mappings` times side by side and scatter `num_inputs` inputs."""
    size = num_mappings * CHUNK_BYTES
    with VmmReservation(size, device_id=device_id) as reservation:
        handle = reservation.map(0, CHUNK_BYTES, retain_handle=True)
        for offset in range(CHUNK_BYTES, size, CHUNK_BYTES):
            reservation.map_existing(offset, CHUNK_BYTES, handle)
        yield WalkCase(reservation.base, num_inputs, num_mappings)


def rows(quick: bool, device_id: int) -> Iterator[Row]:
    """Measure the rows of this system."""
    repeats = 3 if quick else 15
    with mapped_case(10_000 if quick else 100_000, 1024, device_id) as case:
        yield _arrays_row(case, repeats, device_id)
        yield _lists_row("walk-lists", case, repeats, device_id)
    with mapped_case(1_000, 64, device_id) as case:
        yield _lists_row("walk-lists-1k", case, repeats * 10, device_id)
    for num_inputs, num_mappings in SCALES[:2] if quick else SCALES:
        with mapped_case(num_inputs, num_mappings, device_id) as case:
            yield _scale_row(case, max(3, min(101, 1_000_000 // num_inputs)), device_id)


def short(number: int) -> str:
    """Format a round number: 1k, 100k, 10M."""
    return f"{number // 1_000_000}M" if number >= 1_000_000 else f"{number // 1_000}k"


def _arrays_row(case: WalkCase, repeats: int, device_id: int) -> Row:
    pairs = case.pairs()
    chunks = case.chunk_addresses(device_id)
    python, per_chunk, bare, ours = medians(
        repeats,
        timed(lambda: plain_python.walk(pairs)),
        lambda: _floor.time_address_ranges(chunks, device_id),
        lambda: _floor.time_address_ranges(case.distinct_addresses, device_id),
        timed(lambda: resolve_graph_inputs(case.pointers, case.sizes, device_id=device_id)),
    )
    items = case.num_inputs
    own_work = bare + 250 * case.num_mappings + 12 * len(chunks)
    return Row(
        id="walk-arrays",
        item="input",
        ns_per_item=ours / items,
        baseline=PYTHON,
        baseline_ns_per_item=python / items,
        floor=FLOOR,
        floor_ns_per_item=bare / items,
        limit="least of: floor + 250 ns an allocation + 12 ns a chunk; baseline / 120; "
        f"({PER_CHUNK}) / 3",
        limit_ns_per_item=min(own_work, python / 120, per_chunk / 3) / items,
    )


def _lists_row(name: str, case: WalkCase, repeats: int, device_id: int) -> Row:
    pairs = case.pairs()
    python, bare, ours = medians(
        repeats,
        timed(lambda: plain_python.walk(pairs)),
        lambda: _floor.time_address_ranges(case.distinct_addresses, device_id),
        timed(lambda: compute_graph_capture_bases(pairs, device_id=device_id)),
    )
    items = case.num_inputs
    return Row(
        id=name,
        item="input",
        ns_per_item=ours / items,
        baseline=PYTHON,
        baseline_ns_per_item=python / items,
        floor=FLOOR,
        floor_ns_per_item=bare / items,
        limit="baseline / 15",
        limit_ns_per_item=python / 15 / items,
    )


def _scale_row(case: WalkCase, repeats: int, device_id: int) -> Row:
    def walk() -> GraphCaptureBases:
        return resolve_graph_inputs(case.pointers, case.sizes, device_id=device_id)

    peak_bytes, found = peak_bytes_of(walk)
    result_bytes = sum(
        array.nbytes
        for array in (
            found.base_pointers,
            found.base_sizes,
            found.chunk_indptr,
            found.chunk_indices,
            found.input_offsets,
        )
    )
    chunks = found.base_pointers[found.chunk_indices]
    per_chunk, bare, ours = medians(
        repeats,
        lambda: _floor.time_address_ranges(chunks, device_id),
        lambda: _floor.time_address_ranges(found.base_pointers, device_id),
        timed(walk),
    )
    items = case.num_inputs
    return Row(
        id=f"walk-scale-{short(items)}x{case.num_mappings}",
        item="input",
        ns_per_item=ours / items,
        baseline=PER_CHUNK,
        baseline_ns_per_item=per_chunk / items,
        floor=FLOOR,
        floor_ns_per_item=bare / items,
        limit="floor + 250 ns an allocation + 20 ns a chunk",
        limit_ns_per_item=(bare + 250 * len(found.base_pointers) + 20 * len(chunks)) / items,
        checks=(Check("peak memory, bytes a byte of the results", peak_bytes / result_bytes, 2.0),),
        curve=f"walk over {case.num_mappings:,} mapping{'s' * (case.num_mappings > 1)}",
        at=items,
    )
