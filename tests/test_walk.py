"""The address-range walk: which allocations cover each input."""

import copy
import gc
import pickle
import re

import numpy as np
import pytest
from cuda.bindings import driver
from walk_memory import checked, memory_of, plain_walk

from vmmcy.graph_capture import (
    GraphCaptureBases,
    compute_graph_capture_bases,
    is_vmm_pointer,
    pointer_in_allocation,
    resolve_graph_inputs,
)


@pytest.fixture
def memory():
    with memory_of() as memory:
        yield memory


def test_an_input_over_several_mappings_gets_all_of_them_in_order(memory):
    # W1: 50 units over three mappings of 20.
    first, second, third = memory.chunks(20, 20, 20)
    unit = memory.granularity
    assert compute_graph_capture_bases([(first, 50 * unit)]) == (
        [(first, 20 * unit), (second, 20 * unit), (third, 20 * unit)],
        [[0, 1, 2]],
        [0],
    )


def test_there_is_no_cap_on_chunks(memory):
    bases = memory.chunks(*[1] * 95)
    unit = memory.granularity
    resolved = compute_graph_capture_bases([(bases[0] + 7, 95 * unit - 7)])
    assert resolved == ([(base, unit) for base in bases], [list(range(95))], [7])


def test_bases_stand_in_the_order_first_met(memory):
    low, middle, high = memory.chunks(1, 1, 2)
    unit = memory.granularity
    inputs = [(high + 5, 1), (low + unit - 1, 2), (high, 2 * unit), (low, 3 * unit)]
    assert compute_graph_capture_bases(inputs) == (
        [(high, 2 * unit), (low, unit), (middle, unit)],
        [[0], [1, 2], [0], [1, 2, 0]],
        [5, unit - 1, 0, 0],
    )


@pytest.mark.parametrize(("start", "nbytes"), [(0, 1), (-1, 1), (0, 0)])
def test_the_edges_of_a_chunk_belong_to_it(memory, start, nbytes):
    base, after = memory.chunks(1, 1)
    size = memory.granularity
    pointer = base + start % size
    bases, chunks, offsets = compute_graph_capture_bases([(pointer, nbytes or size)])
    assert (bases, chunks, offsets) == ([(base, size)], [[0]], [start % size])
    assert compute_graph_capture_bases([(base, size + 1)])[0] == [(base, size), (after, size)]


def test_memory_of_other_kinds_resolves_to_its_exact_range(memory):
    pointer = memory.allocate(3000)
    (mapped,) = memory.chunks(1)
    assert compute_graph_capture_bases([(pointer + 2999, 1), (mapped, 1)]) == (
        [(pointer, 3000), (mapped, memory.granularity)],
        [[0], [1]],
        [2999, 0],
    )


def test_one_driver_call_for_each_allocation(memory, sim):
    bases = memory.chunks(*[1] * 64)
    random = np.random.default_rng(4)
    pointers = random.choice(np.array(bases), 10_000) + random.integers(0, 4096, 10_000)
    end = bases[-1] + memory.granularity
    sizes = random.integers(1, 3 * memory.granularity, 10_000).clip(max=end - pointers)
    sim.reset()
    resolved = resolve_graph_inputs(pointers, sizes)
    calls = sim.calls()
    assert calls["cuMemGetAddressRange"] == len(resolved.base_pointers) == 64
    assert set(calls) == {"cuMemGetAddressRange", "cuCtxGetCurrent"}
    pairs = list(zip(pointers.tolist(), sizes.tolist(), strict=True))
    assert resolved.as_lists() == plain_walk(pairs)


def test_nothing_is_remembered_between_calls(memory):
    first, second = memory.chunks(1, 1)
    assert len(compute_graph_capture_bases([(first, 2 * memory.granularity)])[0]) == 2
    memory.unmap(first)
    memory.unmap(second)
    memory.map(first, 2 * memory.granularity)
    resolved = compute_graph_capture_bases([(second, 1)])
    assert resolved == ([(first, 2 * memory.granularity)], [[0]], [memory.granularity])


def test_no_input_needs_no_driver(sim):
    empty = resolve_graph_inputs(np.empty(0, np.int64), np.empty(0, np.uint8), device_id=0)
    assert compute_graph_capture_bases([]) == ([], [], []) == empty.as_lists()
    assert compute_graph_capture_bases(iter(())) == ([], [], [])
    for none in ([], (), np.array([]), np.array([], object), range(0), np.array([], ">i2")):
        assert resolve_graph_inputs(none, none).as_lists() == ([], [], [])
    assert empty.chunk_indptr.tolist() == [0]
    assert sim.calls() == {}


def test_the_arrays_have_the_documented_types_and_are_the_callers(memory):
    base, _ = memory.chunks(1, 1)
    resolved = resolve_graph_inputs(np.array([base, base]), np.array([memory.granularity + 1, 1]))
    assert isinstance(resolved, GraphCaptureBases)
    for name, dtype, length in (
        ("base_pointers", np.uint64, 2),
        ("base_sizes", np.uint64, 2),
        ("chunk_indptr", np.int64, 3),
        ("chunk_indices", np.int64, 3),
        ("input_offsets", np.uint64, 2),
    ):
        array = getattr(resolved, name)
        assert (array.dtype, array.shape) == (dtype, (length,)), name
        assert array.flags.writeable
        assert array.flags.c_contiguous
    assert resolved.chunk_indptr.tolist() == [0, 2, 3]
    assert resolved.chunk_indices.tolist() == [0, 1, 0]


def test_chunk_indices_outlive_the_result(memory):
    bases = memory.chunks(1, 1)
    indices = resolve_graph_inputs(np.array(bases * 5000), np.ones(10_000, int)).chunk_indices
    gc.collect()
    assert indices.tolist() == [0, 1] * 5000


def test_the_result_can_be_copied_and_pickled_and_keeps_its_arrays(memory):
    base, _ = memory.chunks(1, 1)
    resolved = resolve_graph_inputs([base + 5], [memory.granularity])
    for twin in (copy.deepcopy(resolved), pickle.loads(pickle.dumps(resolved))):
        assert twin.as_lists() == resolved.as_lists()
        assert twin.chunk_indices is not resolved.chunk_indices
    for name in ("base_sizes", "something"):
        with pytest.raises(AttributeError):
            setattr(resolved, name, None)
    assert f"chunk_indptr={np.array([0, 2])!r}, chunk_indices={np.array([0, 1])!r}" in repr(
        resolved
    )


READ_ONLY = np.arange(1, 3)
READ_ONLY.setflags(write=False)


@pytest.mark.parametrize(
    "sizes",
    [
        *(np.array([1, 2], dtype) for dtype in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8")),
        *(np.array([1, 2], dtype) for dtype in (">i4", ">u8", ">i8")),
        np.array([1, 9, 2, 9])[::2],
        np.array([2, 1])[::-1],
        np.frombuffer(b"x" + np.array([1, 2]).tobytes(), "<i8", offset=1),
        np.array([[1, 9], [2, 9]])[:, 0],
        np.array([1, 2], object),
        np.array([1, 2], np.longlong),
        np.array([1, 2]).view(type("Subclass", (np.ndarray,), {})),
        range(1, 3),
        memoryview(np.array([1, 2])),
        READ_ONLY,
        [1, 2],
        (np.int8(1), 2),
    ],
    ids=repr,
)
def test_every_integer_array_is_taken(memory, sizes):
    base, after = memory.chunks(1, 1)
    pointers = np.array([base, after - 1], np.uint64)
    resolved = resolve_graph_inputs(pointers, sizes)
    assert resolved.as_lists()[1:] == ([[0], [0, 1]], [0, memory.granularity - 1])


@pytest.mark.parametrize("dtype", ["i8", "u8", ">i8", ">u8", object])
def test_pointers_of_every_64_bit_dtype_are_taken(memory, dtype):
    base, after = memory.chunks(1, 1)
    resolved = resolve_graph_inputs(np.array([after, base], dtype), [1, 1])
    assert resolved.base_pointers.tolist() == [after, base]


@pytest.mark.parametrize(
    "form",
    [
        list,
        tuple,
        iter,
        lambda pairs: [list(pair) for pair in pairs],
        lambda pairs: [tuple(map(np.uint64, pair)) for pair in pairs],
        lambda pairs: np.array(pairs),
        lambda pairs: dict(pairs).items(),
        lambda pairs: (pair for pair in pairs),
    ],
)
def test_every_iterable_of_pairs_is_taken(memory, form):
    base, after = memory.chunks(1, 1)
    pairs = [(base, 1), (after - 1, 2)]
    expected = ([(base, memory.granularity), (after, memory.granularity)], [[0], [0, 1]])
    assert compute_graph_capture_bases(form(pairs))[:2] == expected


def test_lists_hold_plain_ints_and_lists_of_their_own(memory):
    (base,) = memory.chunks(1)
    bases, chunks, offsets = compute_graph_capture_bases([(base, 1), (base + 300, 1)])
    assert {type(number) for number in (*bases[0], *chunks[0], *offsets)} == {int}
    chunks[0].append(7)
    assert chunks == [[0, 7], [0]]


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_is_left_as_it_was(memory, enabled):
    (base,) = memory.chunks(1)
    resolved = resolve_graph_inputs([base], [1])
    runs = []
    gc.callbacks.append(lambda phase, _: runs.append(phase))
    try:
        (gc.enable if enabled else gc.disable)()
        compute_graph_capture_bases([(base, 1)] * 50_000)
        assert gc.isenabled() == enabled
        resolved.chunk_indices[0] = 1
        with pytest.raises(ValueError, match="no index of a base"):
            resolved.as_lists()
        assert gc.isenabled() == enabled
    finally:
        gc.callbacks.pop()
        gc.enable()
    # Each run is a start and a stop; 50,000 lists would make 70.
    assert len(runs) <= 8


@pytest.mark.parametrize(
    ("field", "values", "text"),
    [
        ("chunk_indices", [-1, 0], "chunk_indices[0] is no index of a base"),
        ("chunk_indices", [0, 1], "chunk_indices[1] is no index of a base"),
        ("chunk_indptr", [0, 3, 2], "chunk_indptr is inconsistent at input 0"),
        ("chunk_indptr", [0, 1, -(2**63)], "chunk_indptr is inconsistent at input 1"),
        ("chunk_indptr", [1, 0, 2], "chunk_indptr is inconsistent at input 0"),
        ("chunk_indptr", [0], "chunk_indptr has 1 items for 2 inputs"),
        ("chunk_indptr", [], "chunk_indptr has 0 items for 2 inputs"),
        ("base_sizes", [], "base_sizes has 0 items for 1 base_pointers"),
        ("base_sizes", [1, 2], "base_sizes has 2 items for 1 base_pointers"),
    ],
)
def test_arrays_that_no_longer_fit_each_other_are_refused(field, values, text):
    arrays = {
        "base_pointers": np.array([4096], np.uint64),
        "base_sizes": np.array([4096], np.uint64),
        "chunk_indptr": np.array([0, 1, 2], np.int64),
        "chunk_indices": np.array([0, 0], np.int64),
        "input_offsets": np.array([1, 2], np.uint64),
    }
    assert GraphCaptureBases(**arrays).as_lists() == ([(4096, 4096)], [[0], [0]], [1, 2])
    arrays[field] = np.array(values, arrays[field].dtype)
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        GraphCaptureBases(**arrays).as_lists()


@pytest.mark.parametrize(
    "sizes",
    [[1], None, np.array([1]), np.array([1.0]), np.array([[1]], "u8"), np.array([1], ">u8")],
    ids=repr,
)
def test_arrays_of_another_kind_are_refused_by_name(sizes):
    none, start = np.empty(0, np.int64), np.zeros(1, np.int64)
    bases = GraphCaptureBases(np.array([1], np.uint64), sizes, start, none, none.view(np.uint64))
    with pytest.raises(TypeError, match="^base_sizes must be a contiguous array of uint64, not "):
        bases.as_lists()


def test_require_vmm_asks_once_for_each_allocation(memory, sim):
    bases = memory.chunks(1, 1)
    sim.reset()
    pairs = [(bases[0], 2 * memory.granularity)] * 10
    assert compute_graph_capture_bases(pairs, require_vmm=True)[1] == [[0, 1]] * 10
    calls = sim.calls()
    asked = ("cuMemGetAddressRange", "cuMemRetainAllocationHandle", "cuMemRelease")
    assert [calls[call] for call in asked] == [2, 2, 2]
    assert sim.live()["handles"] == 0


def test_require_vmm_refuses_other_memory(memory):
    pointer = memory.allocate(3000)
    (mapped,) = memory.chunks(1)
    inputs = [(mapped, 4), (pointer + 8, 5)]
    with pytest.raises(RuntimeError) as raised:
        compute_graph_capture_bases(inputs, require_vmm=True)
    assert str(raised.value) == (
        f"graph capture input 1: 5 bytes at {pointer + 8}, at address {pointer + 8}, lies in "
        f"[base={pointer}, size=3000], which was not made by cuMemCreate and cannot be exported: "
        "allocate it from a VMM pool"
    )
    assert compute_graph_capture_bases(inputs)[1] == [[0], [1]]


def test_is_vmm_pointer(memory):
    base = memory.reserve(2 * memory.granularity)
    memory.map(base, memory.granularity, access=[])
    assert is_vmm_pointer(base) is True
    assert is_vmm_pointer(np.uint64(base + 5)) is True
    assert is_vmm_pointer(base + memory.granularity) is False
    assert is_vmm_pointer(memory.allocate(64)) is False
    assert is_vmm_pointer(0) is False


def test_pool_and_host_memory_have_ranges_but_no_handle(memory):
    pooled = int(checked(driver.cuMemAllocAsync(1 << 20, 0)))
    host = int(checked(driver.cuMemHostAlloc(8192, 0)))
    try:
        resolved = compute_graph_capture_bases([(pooled + 9, 1), (host + 8191, 1)])
        assert resolved == ([(pooled, 1 << 20), (host, 8192)], [[0], [1]], [9, 8191])
        assert not is_vmm_pointer(pooled)
        assert not is_vmm_pointer(host)
    finally:
        checked(driver.cuMemFreeAsync(pooled, 0))
        checked(driver.cuMemFreeHost(host))


@pytest.mark.parametrize(
    ("ptr", "inside"),
    [(99, False), (100, True), (149, True), (150, False), (0, False), (2**64 - 1, False)],
)
def test_pointer_in_allocation(ptr, inside):
    assert pointer_in_allocation(ptr, 100, 50) is inside
    assert pointer_in_allocation(np.uint64(ptr), np.int32(100), 0) is False


def test_pointer_in_allocation_at_the_end_of_the_address_space():
    assert pointer_in_allocation(2**64 - 1, 2**64 - 1, 2**64 - 1)
    assert not pointer_in_allocation(0, 2**64 - 1, 2**64 - 1)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((5, 10, -1), ValueError, "size must not be negative, got -1"),
        ((-1, -2, -3), ValueError, "ptr must not be negative, got -1"),
        ((-1, 2**64, "3"), TypeError, "size must be an integer, not str '3'"),
        ((2**64, 1.0, 3), TypeError, "base must be an integer, not float 1.0"),
        ((5, 10, 2**64), ValueError, "size 18446744073709551616 does not fit in 64 bits"),
    ],
)
def test_pointer_in_allocation_checks_all_of_its_arguments_types_first(arguments, error, text):
    with pytest.raises(error, match=f"^{text}$"):
        pointer_in_allocation(*arguments)


@pytest.mark.parametrize("call", [is_vmm_pointer, lambda ptr: pointer_in_allocation(ptr, 0, 1)])
@pytest.mark.parametrize(
    ("ptr", "error"),
    [(1.0, TypeError), (True, TypeError), ("1", TypeError), (-1, ValueError), (2**64, ValueError)],
)
def test_pointers_are_checked(call, ptr, error):
    with pytest.raises(error, match="^ptr "):
        call(ptr)
