"""What the walk refuses: holes, memory without access, bad input, wrong answers."""

import itertools
import re

import numpy as np
import pytest
from walk_memory import memory_of

from vmmcy.errors import CudaDriverError
from vmmcy.graph_capture import compute_graph_capture_bases, resolve_graph_inputs

NOT_FOUND = "cuMemGetAddressRange: CUDA_ERROR_NOT_FOUND (named symbol not found)"


@pytest.fixture
def memory():
    with memory_of() as memory:
        yield memory


def refusal(inputs, **options):
    with pytest.raises(CudaDriverError) as raised:
        compute_graph_capture_bases(inputs, **options)
    return raised.value


# --- W2, W3: the driver finds nothing there --------------------------------------------------


def test_the_last_byte_past_the_end(memory):
    # W2: the second input's last byte has no memory behind it.
    first, second = memory.chunks(1, 1)
    end = second + memory.granularity
    error = refusal([(first, 1), (second + 100, memory.granularity - 99)])
    assert str(error) == (
        f"{NOT_FOUND}; graph capture input 1: {memory.granularity - 99} bytes "
        f"at {second + 100}, at address {end}"
    )
    assert (error.call, error.name, error.code) == (
        "cuMemGetAddressRange",
        "CUDA_ERROR_NOT_FOUND",
        500,
    )
    assert error.__notes__ == [
        "device 0 was asked, which finds only memory that it may access: "
        "pass device_id to ask another"
    ]


def test_a_hole_in_the_middle(memory):
    unit = memory.granularity
    base = memory.reserve(3 * unit)
    memory.map(base, unit)
    memory.map(base + 2 * unit, unit)
    error = refusal([(base + 2 * unit, 1), (base, unit), (base + 5, 3 * unit - 5)])
    assert str(error) == (
        f"{NOT_FOUND}; graph capture input 2: {3 * unit - 5} bytes "
        f"at {base + 5}, at address {base + unit}"
    )


@pytest.mark.parametrize("address", [0, 1, 2**63, 2**64 - 1])
def test_addresses_of_nothing(memory, address):
    text = f"{NOT_FOUND}; graph capture input 0: 1 bytes at {address}, at address {address}"
    assert str(refusal([(address, 1)])) == text


def test_pageable_host_memory(memory):
    address = np.zeros(64, np.uint8).ctypes.data
    assert refusal([(address, 64)]).detail.endswith(f"at address {address}")


def test_mapped_without_access(memory):
    base = memory.reserve(2 * memory.granularity)
    memory.map(base, memory.granularity)
    memory.map(base + memory.granularity, memory.granularity, access=[])
    error = refusal([(base, memory.granularity), (base, memory.granularity + 1)])
    assert error.detail == (
        f"graph capture input 1: {memory.granularity + 1} bytes at {base}, "
        f"at address {base + memory.granularity}"
    )
    memory.grant(base + memory.granularity, memory.granularity, 0)
    assert len(compute_graph_capture_bases([(base, memory.granularity + 1)])[0]) == 2


def test_freed_memory(memory):
    first, second = memory.chunks(1, 1)
    memory.unmap(second)
    assert str(refusal([(first, 1), (second, 1)])).endswith(f"at address {second}")


# --- W5: input that cannot be right -----------------------------------------------------------

SIZE = "Invalid graph capture input size: {}"
PAIRS = [
    ([(4096, 0)], RuntimeError, SIZE.format(0)),
    ([(0, 0)], RuntimeError, SIZE.format(0)),  # an empty tensor
    ([(4096, 1), (4096, -7)], RuntimeError, SIZE.format(-7)),
    ([(4096, -(2**80))], RuntimeError, SIZE.format(-(2**80))),
    ([(4096, -(10**5000))], RuntimeError, SIZE.format("<int of 16610 bits>")),
    (
        [(10**5000, 1)],
        ValueError,
        "graph capture input 0: pointer <int of 16610 bits> does not fit in 64 bits",
    ),
    ([(4096, np.int8(-7))], RuntimeError, SIZE.format(-7)),
    ([(-1, 1)], ValueError, "graph capture input 0: pointer must not be negative, got -1"),
    (
        [(4096, 1), (2**64, 1)],
        ValueError,
        "graph capture input 1: pointer 18446744073709551616 does not fit in 64 bits",
    ),
    (
        [(4096, 2**64)],
        ValueError,
        "graph capture input 0: nbytes 18446744073709551616 does not fit in 64 bits",
    ),
    (
        [(4096, 1), (2**64 - 4, 5)],
        ValueError,
        "graph capture input 1: 5 bytes at 18446744073709551612 end past the last 64-bit address",
    ),
    (
        [(4096.0, 1)],
        TypeError,
        "graph capture input 0: pointer must be an integer, not float 4096.0",
    ),
    ([(4096, 1.0)], TypeError, "graph capture input 0: nbytes must be an integer, not float 1.0"),
    ([(True, 1)], TypeError, "graph capture input 0: pointer must be an integer, not bool True"),
    ([(4096, True)], TypeError, "graph capture input 0: nbytes must be an integer, not bool True"),
    ([(4096, "1")], TypeError, "graph capture input 0: nbytes must be an integer, not str '1'"),
    (
        [(4096, None)],
        TypeError,
        "graph capture input 0: nbytes must be an integer, not NoneType None",
    ),
    # Types come first, wherever they are.
    (
        [(-1, 0), (4096, 1.0)],
        TypeError,
        "graph capture input 1: nbytes must be an integer, not float 1.0",
    ),
    ([4096], TypeError, "graph capture input 0 must be a (pointer, nbytes) pair, not 4096"),
    (
        [(4096, -1), (1, 2, 3)],
        TypeError,
        "graph capture input 1 must be a (pointer, nbytes) pair, not (1, 2, 3)",
    ),
    ([()], TypeError, "graph capture input 0 must be a (pointer, nbytes) pair, not ()"),
    (
        [range(10**9)],
        TypeError,
        "graph capture input 0 must be a (pointer, nbytes) pair, not range(0, 1000000000)",
    ),
    ("ab", TypeError, "graph_inputs must be an iterable of (pointer, nbytes) pairs, not str 'ab'"),
    (["ab"], TypeError, "graph capture input 0 must be a (pointer, nbytes) pair, not 'ab'"),
    (7, TypeError, "graph_inputs must be an iterable of (pointer, nbytes) pairs, not int 7"),
]


@pytest.mark.parametrize(("inputs", "error", "text"), PAIRS)
def test_pairs_are_checked_before_any_driver_call(sim, inputs, error, text):
    with pytest.raises(error) as raised:
        compute_graph_capture_bases(inputs)
    assert str(raised.value) == text
    assert type(raised.value) is error
    assert sim.calls() == {}


MAXIMUM = 2**64 - 1
ARRAYS = [
    (np.array([0]), np.array([0]), RuntimeError, SIZE.format(0)),
    (np.array([4096]), np.array([0]), RuntimeError, SIZE.format(0)),
    (np.array([4096]), np.array([0], np.uint8), RuntimeError, SIZE.format(0)),
    (np.array([4096] * 2), np.array([1, -7], np.int16), RuntimeError, SIZE.format(-7)),
    (np.array([4096]), np.array([-(2**63)]), RuntimeError, SIZE.format(-(2**63))),
    (np.array([-1]), np.array([1]), ValueError, "pointer must not be negative, got -1"),
    (np.array([MAXIMUM], np.uint64), np.array([2]), ValueError, "end past the last 64-bit address"),
    (np.array([1]), np.array([MAXIMUM - 1, 0], np.uint64)[1:], RuntimeError, SIZE.format(0)),
    (np.array([2**64], object), np.array([1]), ValueError, "does not fit in 64 bits"),
    (np.array([1.0]), np.array([1]), TypeError, "pointers must be integers, not an array of fl"),
    (np.array([1]), np.array([1.0], "f4"), TypeError, "sizes must be integers, not an array of "),
    (np.array([1]), np.array([True]), TypeError, "sizes must be integers, not an array of bool"),
    (np.array(["1"]), np.array([1]), TypeError, "pointers must be integers, not an array of <U1"),
    (np.array([1.5], object), np.array([1]), TypeError, "pointer must be an integer, not float"),
    ([True], [1], TypeError, "graph capture input 0: pointer must be an integer, not bool True"),
    ([1], [0], RuntimeError, SIZE.format(0)),
    (np.array([1, 2]), np.array([1]), ValueError, "not shapes (2,) and (1,)"),
    (np.array([[1]]), np.array([[1]]), ValueError, "not shapes (1, 1) and (1, 1)"),
    (np.array(1), np.array(1), ValueError, "not shapes () and ()"),
    (4096, 1, TypeError, "pointers must be an array of integers, not int 4096"),
    (None, [1], TypeError, "pointers must be an array of integers, not NoneType None"),
    ([1], None, TypeError, "sizes must be an array of integers, not NoneType None"),
    (iter([1]), [1], TypeError, "pointers must be an array of integers, not list_iterator <list_i"),
    ([1], {1}, TypeError, "sizes must be an array of integers, not set {1}"),
    ("1", [1], TypeError, "pointers must be an array of integers, not str '1'"),
    (np.array([], "U1"), np.array([]), TypeError, "pointers must be integers, not an array of <U1"),
    (np.array([], bool), np.array([]), TypeError, "pointers must be integers, not an array of bo"),
    (np.empty((0, 2)), np.empty((0, 2)), ValueError, "not shapes (0, 2) and (0, 2)"),
    (np.ma.array([1], mask=[1]), [1], TypeError, "pointers must not be masked"),
    ([1], np.ma.array([1]), TypeError, "sizes must not be masked"),
]


@pytest.mark.parametrize(("pointers", "sizes", "error", "text"), ARRAYS, ids=itertools.count())
def test_arrays_are_checked_before_any_driver_call(sim, pointers, sizes, error, text):
    with pytest.raises(error, match=re.escape(text)) as raised:
        resolve_graph_inputs(pointers, sizes)
    assert type(raised.value) is error
    assert sim.calls() == {}


@pytest.mark.parametrize(
    ("device_id", "error"),
    [(-1, ValueError), (1.0, TypeError), (True, TypeError), ("0", TypeError), (2**31, ValueError)],
)
@pytest.mark.parametrize("inputs", [[], [(4096, 1)]])
def test_device_ids_are_checked(sim, device_id, error, inputs):
    with pytest.raises(error, match="^device_id must be"):
        compute_graph_capture_bases(inputs, device_id=device_id)
    assert sim.calls() == {}


def test_types_come_before_values_whichever_argument_has_them(sim):
    with pytest.raises(TypeError, match="^graph capture input 0: nbytes must be an integer"):
        compute_graph_capture_bases([(4096, 1.0)], device_id=-1)
    with pytest.raises(TypeError, match="^device_id must be an integer"):
        compute_graph_capture_bases([(4096, 0)], device_id="0")
    with pytest.raises(TypeError, match="^sizes must be integers"):
        resolve_graph_inputs(np.array([-1]), np.array([0.0]), device_id=-1)


def test_a_device_that_is_not_there(memory):
    with pytest.raises(ValueError, match="^device_id 999 is not a visible device"):
        compute_graph_capture_bases([(4096, 1)], device_id=999)


def test_an_error_of_the_iterable_comes_through():
    def broken():
        yield 4096, 1
        raise error

    for error in (KeyError("mine"), TypeError("mine")):
        with pytest.raises(type(error), match="mine"):
            compute_graph_capture_bases(broken())


# --- W5: answers that cannot be right ---------------------------------------------------------


@pytest.mark.parametrize(
    ("base_offset", "size"),
    [
        (0, 0),
        (0, 1),
        (1000, 0),
        (1001, 2**20),
        (0, 1000),
        (-4096, 4096),
        (1000, 2**64 - 1),
    ],
    ids=["empty", "before", "empty there", "behind", "ends there", "far before", "wraps"],
)
@pytest.mark.parametrize("require_vmm", [False, True])
def test_an_answer_that_does_not_hold_the_address(memory, sim, base_offset, size, require_vmm):
    (chunk,) = memory.chunks(1)
    address, base = chunk + 1000, chunk + base_offset
    sim.answer_range(address, base, size)
    with pytest.raises(RuntimeError) as raised:
        compute_graph_capture_bases([(chunk + 1000, 8)], require_vmm=require_vmm)
    assert str(raised.value) == (
        f"graph capture input at {address} is outside VMM allocation [base={base}, size={size}]"
    )
    assert raised.value.__notes__ == [
        f"graph capture input 0: 8 bytes at {address}, at address {address}"
    ]
    assert compute_graph_capture_bases([(address, 8)])[2] == [1000]


def test_the_last_byte_of_all_is_an_allocation_like_any_other(memory, sim):
    last = 2**64 - 1
    sim.answer_range(last, last, 1)
    assert compute_graph_capture_bases([(last, 1)]) == ([(last, 1)], [[0]], [0])


@pytest.mark.parametrize("size", [0, 2**64 - 1])
def test_the_outside_error_names_the_input_not_the_address_asked(memory, sim, size):
    first, second = memory.chunks(1, 1)
    sim.answer_range(second, second, size)
    with pytest.raises(RuntimeError) as raised:
        compute_graph_capture_bases([(first, 1), (first + 9, 2 * memory.granularity - 9)])
    assert str(raised.value) == (
        f"graph capture input at {first + 9} is outside VMM allocation [base={second}, size={size}]"
    )


def test_a_range_may_end_with_the_address_space(memory, sim):
    address = 2**64 - 16
    sim.answer_range(address, 2**64 - 4096, 4096)
    bases, chunks, offsets = compute_graph_capture_bases([(address, 16), (2**64 - 1, 1)])
    assert (bases, chunks, offsets) == ([(2**64 - 4096, 4096)], [[0], [0]], [4080, 4095])


@pytest.mark.parametrize(
    ("begin", "end", "overlapped"),
    [(0, 6, 0), (2, 6, 4), (-2, 8, 0), (1, 4, 0), (3, 5, 4)],
    ids=["met base, other size", "over the next", "around both", "out of one", "into the next"],
)
def test_an_answer_that_contradicts_an_earlier_one(memory, sim, begin, end, overlapped):
    # As when another thread remaps: the same indices must not stand for two truths.
    first, second, third = memory.chunks(1, 1, 1)
    half = memory.granularity // 2
    address = second + half
    base, size = first + begin * half, (end - begin) * half
    sim.answer_range(address, base, size)
    with pytest.raises(RuntimeError) as raised:
        compute_graph_capture_bases([(third, 1), (first, 1), (address, 4)])
    assert str(raised.value) == (
        f"graph capture input 2: 4 bytes at {address}, at address {address}, lies in "
        f"[base={base}, size={size}], which overlaps [base={first + overlapped * half}, "
        f"size={memory.granularity}] that the driver answered before: "
        "the memory was remapped during the walk"
    )
