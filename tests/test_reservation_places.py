"""Where a reservation lies and on which device: what its constructor takes and refuses."""

import numpy as np
import pytest
from conformance.steps import G, must, properties
from cuda.bindings import driver
from reservation_help import places, refused, run_python
from sim_helpers import python

from vmmcy.errors import CudaDriverError
from vmmcy.reservation import VmmReservation


def test_r10_a_requested_address_that_is_taken_is_told():
    with VmmReservation(4 * G) as first:
        with VmmReservation(4 * G, requested_address=first.base) as second:
            assert not second.address_honoured
            assert second.base != first.base
        with pytest.raises(RuntimeError, match=rf"^address {first.base} was required, and the dri"):
            VmmReservation(4 * G, requested_address=first.base, require_address=True)


def test_a_requested_address_that_is_free_is_honoured():
    with VmmReservation(4 * G) as reservation:
        base = reservation.base
    with VmmReservation(4 * G, requested_address=base, require_address=True) as again:
        assert again.base == base
        assert again.address_honoured


def test_a_required_address_that_cannot_be_given_back_is_noted(sim):
    with VmmReservation(4 * G) as first:
        sim.fail("cuMemAddressFree")
        with pytest.raises(RuntimeError, match="was required") as raised:
            VmmReservation(4 * G, requested_address=first.base, require_address=True)
        assert raised.value.__notes__[0].startswith("on the way back: cuMemAddressFree: ")
        del raised
        sim.reset()


@pytest.mark.parametrize("alignment", [0, G, 64 * G])
def test_the_base_is_aligned_as_asked(alignment):
    with VmmReservation(G, alignment=alignment) as reservation:
        assert reservation.base % (alignment or G) == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"size": 0}, "size must be at least 1, got 0"),
        ({"size": -G}, f"size must not be negative, got {-G}"),
        ({"size": 1 << 64}, f"size {1 << 64} does not fit in 64 bits"),
        (
            {"size": 6912},
            f"size 6912 is not a multiple of the granularity {G}; the next multiple is {G} (bytes)",
        ),
        ({"alignment": 3 * G}, f"alignment must be a power of two, got {3 * G}; try {4 * G}"),
        ({"alignment": -1}, "alignment must not be negative, got -1"),
        ({"requested_address": -1}, "requested_address must not be negative, got -1"),
        (
            {"requested_address": G + 512},
            f"requested_address {G + 512} is not a multiple of the granularity {G}; "
            f"the next multiple is {2 * G} (bytes)",
        ),
        ({"require_address": True}, "require_address needs a requested_address"),
        ({"access_devices": []}, "access_devices is empty: nobody could use the memory"),
        ({"access_devices": [0, 0]}, "access_devices names a device twice: [0, 0]"),
        (
            {"access_devices": [-1]},
            "access_devices[0] must be a device ordinal, 0 or greater, got -1",
        ),
        ({"device_id": -1}, "device_id must be a device ordinal, 0 or greater, got -1"),
    ],
)
def test_what_cannot_be_reserved_is_refused(arguments, text):
    with refused(text):
        VmmReservation(**{"size": G, **arguments})


@pytest.mark.parametrize(
    "arguments",
    [
        {"size": 1.0},
        {"size": True},
        {"size": "2097152"},
        {"size": np.float32(G)},
        {"alignment": 2.0},
        {"requested_address": None},
        {"device_id": "0"},
        {"device_id": 0.0},
        {"device_id": False},
        {"access_devices": ["0"]},
        {"access_devices": 0},
        {"prop": 1},
        {"prop": {"type": 1}},
        {"prop": driver.CUmemAccessDesc()},
    ],
)
def test_wrong_types_are_refused(arguments):
    with pytest.raises(TypeError):
        VmmReservation(**{"size": G, **arguments})


def test_more_address_space_than_there_is(sim):
    with pytest.raises(CudaDriverError, match="^cuMemAddressReserve: CUDA_ERROR_OUT_OF_MEMORY"):
        VmmReservation(1 << 47)


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="device_id 31 is not a visible device"):
        VmmReservation(G, device_id=31)
    with pytest.raises(ValueError, match="31 is not a visible device"):
        VmmReservation(G, access_devices=[0, 31])
    with pytest.raises(ValueError, match="31 is not a visible device"):
        VmmReservation(G, properties(device=31))


def test_the_properties_are_copied():
    prop = properties()
    with VmmReservation(2 * G, prop) as reservation:
        prop.location.id = 77
        prop.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_INVALID
        del prop
        handle = reservation.map(0, G, retain_handle=True)
        made = must(driver.cuMemGetAllocationPropertiesFromHandle(handle))
        assert made.location.id == 0


def test_memory_can_be_exported_where_the_device_can():
    kind = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    with VmmReservation(G) as reservation:
        handle = reservation.map(0, G, retain_handle=True)
        made = must(driver.cuMemGetAllocationPropertiesFromHandle(handle))
        assert made.requestedHandleTypes == kind


def test_a_reservation_needs_no_cuda_bindings_driver():
    """Importing it takes longer than all that a reservation does."""
    ended = run_python(
        "import sys, vmmcy\nfrom vmmcy.reservation import VmmReservation\n"
        f"with VmmReservation({G}) as r: r.map(0, {G})\n"
        "assert 'cuda.bindings.driver' not in sys.modules"
    )
    assert (ended.returncode, ended.stderr) == (0, "")


TWO_DEVICES = f"""
from vmmcy import sim
sim.load(devices=2)
from conformance.steps import properties
from cuda.bindings import driver
from reservation_help import fill, holds, primary_context, refused
from vmmcy.reservation import VmmReservation
G = {G}
"""
ON_TWO_DEVICES = {
    "the device is that of the properties": """
with VmmReservation(G, properties(device=1)) as reservation:
    assert reservation.device_id == 1
with VmmReservation(G, properties(device=1), device_id=1) as reservation:
    assert reservation.device_id == 1
with refused("prop places memory on device 1, but device_id is 0"):
    VmmReservation(G, properties(device=1), device_id=0)
""",
    "else that of the thread's context": """
with primary_context(1), VmmReservation(G) as reservation:
    assert reservation.device_id == 1
""",
    "and two devices without a context are one too many": """
with refused(
    "device_id is needed: 2 devices are visible and this thread has no current context"
):
    VmmReservation(G)
""",
    "only devices with access can use the memory": """
with VmmReservation(2 * G, device_id=0, access_devices=[1]) as reservation:
    reservation.commit(0, 2 * G)
    with primary_context(1):
        fill(reservation.base, G, 0x21)
        assert holds(reservation.base, G, 0x21)
    with primary_context(0):
        status = driver.cuMemsetD8(reservation.base, 0, G)[0]
        assert status == driver.CUresult.CUDA_ERROR_INVALID_VALUE
""",
    "all devices with access share one call": """
with VmmReservation(2 * G, device_id=1, access_devices=(0, 1)) as reservation:
    sim.reset()
    reservation.map(0, G)
    assert sim.calls()["cuMemSetAccess"] == 1
    for device in (0, 1):
        with primary_context(device):
            fill(reservation.base, G, device + 1)
            assert holds(reservation.base, G, device + 1)
""",
    "the other device's context stays untouched": """
with VmmReservation(2 * G, device_id=1) as reservation:
    reservation.commit(0, 2 * G)
    assert driver.cuDevicePrimaryCtxGetState(0)[2] == driver.cuDevicePrimaryCtxGetState(1)[2] == 0
""",
}


@pytest.mark.parametrize("code", ON_TWO_DEVICES.values(), ids=ON_TWO_DEVICES)
def test_two_devices(code):
    """On the simulator wherever the suite runs, in a process that begins with two devices."""
    ended = python(TWO_DEVICES + code + "assert not any(sim.live().values())")
    assert (ended.returncode, ended.stderr) == (0, "")


def test_another_granularity_is_asked_for_not_assumed(sim):
    sim.load(granularity=1 << 16)
    try:
        with VmmReservation(3 << 16) as reservation:
            assert reservation.granularity == 1 << 16
            reservation.map(1 << 16, 1 << 16)
            assert reservation.mapped_bytes == 1 << 16
            with pytest.raises(ValueError, match="granularity 65536; the next multiple is 65536"):
                reservation.map(0, 4096)
    finally:
        sim.load()


def test_placing_leaves_other_reservations_alone():
    with VmmReservation(2 * G) as one, VmmReservation(2 * G) as other:
        one.map(0, G)
        other.map(G, G)
        one.close()
        assert places(other) == [(1, 1)]
