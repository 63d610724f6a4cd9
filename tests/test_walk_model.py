"""The walk against an independent one, over memory laid out at random."""

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from walk_memory import memory_of, plain_walk

from vmmcy.graph_capture import compute_graph_capture_bases, resolve_graph_inputs

MAPPED, HOLE, UNREADABLE = "mapped", "hole", "unreadable"
PIECES = st.tuples(st.sampled_from([MAPPED] * 5 + [HOLE, UNREADABLE]), st.integers(1, 5))
RESERVATIONS = st.lists(st.lists(PIECES, min_size=1, max_size=8), min_size=1, max_size=4)
ALLOCATIONS = st.lists(st.integers(1, 5000), max_size=6)


def lay_out(memory, reservations, allocations):
    """Build the memory; give the ranges that the driver should find, sorted."""
    unit = memory.granularity
    ranges = [(memory.allocate(size), size) for size in allocations]
    for pieces in reservations:
        address = memory.reserve(sum(size for _, size in pieces) * unit)
        for kind, size in pieces:
            if kind != HOLE:
                memory.map(address, size * unit, access=[0] if kind == MAPPED else [])
            if kind == MAPPED:
                ranges.append((address, size * unit))
            address += size * unit
    return sorted(ranges)


def unbroken_until(ranges, start):
    """End of the memory without a hole that begins with the range number `start`."""
    end = sum(ranges[start])
    for base, size in ranges[start + 1 :]:
        if base != end:
            break
        end += size
    return end


@st.composite
def inputs_within(draw, ranges):
    """Inputs that memory covers from the first byte to the last, with repeats."""
    inputs = []
    for _ in range(draw(st.integers(1, 25))):
        start = draw(st.integers(0, len(ranges) - 1))
        base, size = ranges[start]
        pointer = base + draw(st.sampled_from([0, size - 1]) | st.integers(0, size - 1))
        room = unbroken_until(ranges, start) - pointer
        nbytes = draw(st.sampled_from([1, room]) | st.integers(1, room))
        inputs.append((pointer, nbytes))
    return draw(st.permutations(inputs + inputs[: draw(st.integers(0, 3))]))


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(reservations=RESERVATIONS, allocations=ALLOCATIONS, data=st.data())
def test_any_layout_and_any_inputs(reservations, allocations, data):
    with memory_of() as memory:
        ranges = lay_out(memory, reservations, allocations)
        if not ranges:
            return
        pairs = data.draw(inputs_within(ranges))
        answer = compute_graph_capture_bases(pairs)
        assert answer == plain_walk(pairs)
        pointers, sizes = map(np.array, zip(*pairs, strict=True))
        assert resolve_graph_inputs(pointers, sizes).as_lists() == answer
        assert set(answer[0]) <= set(ranges)


def test_thousands_of_ranges_of_every_size_class(sim):
    """Prepared answers stand for memory, so that ranges can be of any size and place."""
    random = np.random.default_rng(11)
    with memory_of():
        ends = np.cumsum([int(2 ** random.uniform(0, 40)) for _ in range(5000)]).tolist()
        origin = 1 << 60
        bases = [origin, *(origin + end for end in ends[:-1])]
        sizes = np.diff([0, *ends]).tolist()
        known = []
        for number in random.permutation(len(bases)).tolist():
            address = bases[number] + int(random.integers(0, sizes[number]))
            sim.answer_range(address, bases[number], sizes[number])
            known.append((address, 1, number))
        again = [
            (bases[number] + int(random.integers(0, sizes[number])), 1, number)
            for number in random.integers(0, len(bases), 20_000).tolist()
        ]
        whole = (origin, ends[-1], 0)
        inputs = [*known, *again, whole]
        resolved = resolve_graph_inputs(*np.array([pair[:2] for pair in inputs]).T)
        # The last input covers all, and needs no further call: each range follows another.
        assert sim.calls()["cuMemGetAddressRange"] == len(bases)
        first_chunks = resolved.chunk_indices[resolved.chunk_indptr[:-1]]
        met = resolved.base_pointers[first_chunks].tolist()
        assert met == [bases[number] for *_, number in inputs]
        covering = resolved.chunk_indices[resolved.chunk_indptr[-2] :]
        assert resolved.base_pointers[covering].tolist() == bases
        assert resolved.base_sizes[covering].tolist() == sizes
