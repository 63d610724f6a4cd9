"""Rounding, allocation properties, and what a device can really do."""

import re

import numpy as np
import pytest
from conformance.steps import FABRIC, POSIX, G, must, properties
from cuda.bindings import driver
from hypothesis import given
from hypothesis import strategies as st
from reservation_help import refused, run_python

from vmmcy import properties as rooms
from vmmcy.errors import CudaDriverError, CudaOutOfMemoryError
from vmmcy.properties import (
    align_down,
    align_up,
    get_allocation_granularity,
    get_device_granularity,
    make_device_allocation_prop,
    make_rw_access_desc,
)
from vmmcy.reservation import VmmReservation

BIG = (1 << 64) - 1


@pytest.fixture
def unknown_device(sim):
    """Nothing has been found out about any device yet."""
    found_out = (rooms._can_export, rooms.pack_exportable_prop)
    for cache in found_out:
        cache.cache_clear()
    yield sim
    for cache in found_out:
        cache.cache_clear()


@pytest.mark.parametrize(
    ("value", "alignment", "down", "up"),
    [
        (0, 1, 0, 0),
        (0, 512, 0, 0),
        (1, 512, 0, 512),
        (512, 512, 512, 512),
        (513, 512, 512, 1024),
        (10, 3, 9, 12),
        (BIG - 511, 512, BIG - 511, BIG - 511),
        (np.uint64(G + 1), np.int32(G), G, 2 * G),
    ],
)
def test_rounding(value, alignment, down, up):
    assert align_down(value, alignment) == down
    assert align_up(value, alignment) == up


@given(st.integers(0, 1 << 62), st.integers(1, 1 << 62))
def test_rounding_brackets_the_value(value, alignment):
    down, up = align_down(value, alignment), align_up(value, alignment)
    assert down % alignment == up % alignment == 0
    assert down <= value <= up
    assert up - down in (0, alignment)


def test_rounding_up_beyond_64_bits_is_refused():
    with refused(f"{BIG} aligned up to 512 does not fit in 64 bits"):
        align_up(BIG, 512)
    assert align_down(BIG, 512) == BIG - 511


@pytest.mark.parametrize("align", [align_up, align_down])
def test_rounding_refuses_what_is_no_size(align):
    for value, alignment in [(-1, 2), (1, 0), (1, -2), (1 << 64, 2), (1, 1 << 64)]:
        with pytest.raises(ValueError, match="value|alignment"):
            align(value, alignment)
    for value, alignment in [(1.0, 2), (1, 2.0), (True, 2), ("1", 2), (-1, 2.0)]:
        with pytest.raises(TypeError, match="must be an integer"):
            align(value, alignment)


def test_the_default_properties_are_exportable_device_memory():
    prop = make_device_allocation_prop(0)
    assert prop.type == driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    assert prop.location.type == driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    assert prop.location.id == 0
    assert prop.requestedHandleTypes == POSIX
    assert prop.allocFlags.gpuDirectRDMACapable == 0
    with VmmReservation(G, prop) as reservation:
        reservation.map(0, G)


@pytest.mark.parametrize(("handle_types", "bits"), [(None, 0), (0, 0), (1, 1), (POSIX, 1)])
def test_handle_types_are_as_asked(handle_types, bits):
    prop = make_device_allocation_prop(0, handle_types=handle_types, gpu_direct_rdma=True)
    assert int(prop.requestedHandleTypes) == bits
    assert prop.allocFlags.gpuDirectRDMACapable == 1
    must(driver.cuMemRelease(must(driver.cuMemCreate(G, prop, 0))))


def test_handle_types_are_checked():
    with refused("handle_types must be bits, None or 'auto', got 'fabric'"):
        make_device_allocation_prop(0, handle_types="fabric")
    with refused(f"handle_types {1 << 32} does not fit in 32 bits"):
        make_device_allocation_prop(0, handle_types=1 << 32)
    for wrong in (1.5, True, b"auto"):
        with pytest.raises(TypeError, match="handle_types must be an integer"):
            make_device_allocation_prop(0, handle_types=wrong)


@pytest.mark.parametrize(
    "arguments",
    [
        {"device_id": "0", "handle_types": "fabric"},
        {"device_id": 0.0, "handle_types": 1 << 32},
        {"device_id": -1, "handle_types": 1.5},
    ],
)
def test_types_come_before_values(arguments):
    with pytest.raises(TypeError):
        make_device_allocation_prop(**arguments)


def test_a_flag_that_raises_asks_no_driver(unknown_device):
    class Unsure:
        def __bool__(self):
            raise ArithmeticError("neither")

    with pytest.raises(ArithmeticError, match="^neither$"):
        make_device_allocation_prop(0, gpu_direct_rdma=Unsure())
    assert unknown_device.calls() == {}


def test_fabric_is_the_drivers_to_refuse():
    prop = make_device_allocation_prop(0, handle_types=FABRIC)
    with VmmReservation(G, prop) as reservation:
        try:
            reservation.map(0, G)
        except CudaDriverError as error:
            assert error.name == "CUDA_ERROR_NOT_PERMITTED"  # noqa: PT017  (a device may have it)


def test_granularity():
    assert get_device_granularity() == get_device_granularity(0) == G
    assert get_allocation_granularity(properties()) == G
    for flag in (0, 1, *driver.CUmemAllocationGranularity_flags):
        assert get_allocation_granularity(properties(), flag) == G
    with refused("flag must be 0 (minimum) or 1 (recommended), got 2"):
        get_allocation_granularity(properties(), 2)
    for prop, flag in [(None, 1), (0, 1), (properties(), 1.0), (properties(), "1")]:
        with pytest.raises(TypeError):
            get_allocation_granularity(prop, flag)


def test_the_access_description_lets_one_device_read_and_write():
    description = make_rw_access_desc(0)
    assert description.location.type == driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    assert description.location.id == 0
    assert description.flags == driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE


@pytest.mark.parametrize(
    "make", [make_device_allocation_prop, make_rw_access_desc, get_device_granularity]
)
def test_the_device_is_checked(make):
    with pytest.raises(ValueError, match="device_id 31 is not a visible device"):
        make(31)
    with pytest.raises(ValueError, match="must be a device ordinal"):
        make(-1)
    for wrong in (0.0, "0", False):
        with pytest.raises(TypeError, match="device_id must be an integer"):
            make(wrong)


def test_what_a_device_can_is_found_out_once(unknown_device):
    for _ in range(3):
        make_device_allocation_prop(0)
    assert unknown_device.calls()["cuMemCreate"] == 1
    assert unknown_device.calls()["cuMemRelease"] == 1
    assert unknown_device.live()["handles"] == 0


@pytest.mark.parametrize("status", ["CUDA_ERROR_NOT_PERMITTED", "CUDA_ERROR_NOT_SUPPORTED"])
def test_s2_memory_that_cannot_be_exported_is_made_without(unknown_device, status):
    unknown_device.fail("cuMemCreate", status=status)
    assert int(make_device_allocation_prop(0).requestedHandleTypes) == 0
    with VmmReservation(G, device_id=0) as reservation:
        handle = reservation.map(0, G, retain_handle=True)
        assert driver.cuMemExportToShareableHandle(handle, POSIX, 0)[0] != 0


def test_s2_out_of_memory_is_not_taken_for_not_supported(unknown_device):
    unknown_device.fail("cuMemCreate", status="CUDA_ERROR_OUT_OF_MEMORY")
    with pytest.raises(CudaOutOfMemoryError, match="^cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY"):
        VmmReservation(G, device_id=0)
    assert int(make_device_allocation_prop(0).requestedHandleTypes) == 1


@pytest.mark.parametrize(
    "call",
    ["cuDeviceGetAttribute", "cuMemGetAllocationGranularity", "cuMemCreate", "cuMemRelease"],
)
def test_a_failure_while_finding_out_is_raised_and_not_kept(unknown_device, call):
    unknown_device.fail(call)
    with pytest.raises(CudaDriverError, match=f"^{call}: CUDA_ERROR_UNKNOWN"):
        make_device_allocation_prop(0)
    assert unknown_device.live()["handles"] == 0
    assert int(make_device_allocation_prop(0).requestedHandleTypes) == 1


def test_a_granule_that_stays_is_named(unknown_device):
    unknown_device.fail("cuMemRelease", times=2)
    with pytest.raises(CudaDriverError, match="^cuMemRelease: CUDA_ERROR_UNKNOWN") as raised:
        make_device_allocation_prop(0)
    (note,) = raised.value.__notes__
    left = re.fullmatch(rf"and once more: the {G} bytes of handle (\d+) stay allocated", note)
    unknown_device.reset()
    must(driver.cuMemRelease(int(left[1])))
    assert unknown_device.live()["handles"] == 0


def test_a_driver_that_is_gone_has_taken_the_granule(sim):
    # In a process of its own: the simulator goes on, and so keeps what it did not release.
    ended = run_python(
        "from vmmcy import sim\n"
        "from vmmcy.properties import make_device_allocation_prop\n"
        "sim.fail('cuMemRelease', status='CUDA_ERROR_DEINITIALIZED')\n"
        "assert int(make_device_allocation_prop(0).requestedHandleTypes) == 1\n"
        "assert sim.calls()['cuMemRelease'] == 1"
    )
    assert (ended.returncode, ended.stderr) == (0, "")
