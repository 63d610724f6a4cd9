"""The engine's reservation: labels, handles of ``cuda.bindings``, a close that never raises."""

import contextlib
import copy
import gc
import logging
import pickle

import pytest
from conformance.steps import G, must
from cuda.bindings import driver
from reservation_help import (
    fill,
    foreign_handle,
    holds,
    is_alive,
    primary_context,
    refused,
    release,
    run_python,
)

from vmmcy import live
from vmmcy.errors import CudaDriverError
from vmmcy.sglang import VmmReservation, make_device_allocation_prop

UNKNOWN = "CUDA_ERROR_UNKNOWN (unknown error)"


def reserve(granules=4, **options):
    return VmmReservation(
        granules * G, make_device_allocation_prop(0, handle_types=None), 0, **options
    )


@pytest.fixture
def reservation():
    reservation = reserve()
    yield reservation
    reservation.close()


def after_close(method):
    return pytest.raises(RuntimeError, match=f"^VmmReservation.{method} after close$")


def test_memory_that_is_mapped_can_be_used(reservation):
    assert reservation.size == 4 * G
    assert reservation.map(G, 2 * G, retain_handle=False) is None
    with primary_context():
        fill(reservation.base + G, 2 * G, 7)
        assert holds(reservation.base + G, 2 * G, 7)


def test_a_retained_handle_is_one_of_cuda_bindings(reservation):
    handle = reservation.map(0, G, retain_handle=True)
    assert isinstance(handle, driver.CUmemGenericAllocationHandle)
    reservation.map_existing(G, G, handle)
    reservation.map_existing(2 * G, G, int(handle))
    with primary_context():
        fill(reservation.base, G, 9)
        assert holds(reservation.base + 2 * G, G, 9)


def test_close_releases_retained_handles():
    reservation = reserve()
    handle = reservation.map(0, G, retain_handle=True)
    keep = must(driver.cuMemRetainAllocationHandle(reservation.base))
    reservation.close()
    assert is_alive(keep)
    release(keep)
    del handle


def test_a_page_outlives_the_reservation_that_made_it(reservation):
    maker = reserve(1)
    handle = maker.map(0, G, retain_handle=True)
    maker.close(release_handles=False)
    maker.close()
    reservation.map_existing(0, G, int(handle))
    release(handle)


@pytest.mark.parametrize("requested", [int, driver.CUdeviceptr])
def test_a_requested_address_may_be_of_either_kind(requested):
    first = reserve()
    base = first.base
    first.close()
    again = reserve(alignment=G, requested_address=requested(base))
    assert again.base == base
    again.close()


@pytest.mark.parametrize(("offset", "size"), [(-G, G), (0, 0), (0, -G), (3 * G, 2 * G), (4 * G, G)])
def test_what_lies_outside_is_refused_also_for_an_existing_handle(reservation, offset, size):
    handle = foreign_handle()
    text = f"mapping [{offset}, {offset + size}) is outside reservation [0, {4 * G})"
    with refused(text):
        reservation.map(offset, size, retain_handle=False)
    with refused(text):
        reservation.map_existing(offset, size, handle)
    release(handle)


def test_retain_handle_has_no_default(reservation):
    with pytest.raises(TypeError, match="retain_handle"):
        reservation.map(0, G)


def test_nothing_is_mapped_after_close():
    reservation = reserve()
    reservation.close()
    with after_close("map"):
        reservation.map(0, G, retain_handle=False)
    with after_close("map_existing"):
        reservation.map_existing(0, G, 1)
    reservation.close()
    assert reservation.size == 4 * G


@pytest.mark.parametrize("prop", [None, 0, "prop"])
def test_properties_are_needed(prop):
    with pytest.raises(TypeError, match="^prop must be a cuda.bindings.driver.CUmemAllocationProp"):
        VmmReservation(G, prop, 0)


def test_the_device_is_checked():
    prop = make_device_allocation_prop(0, handle_types=None)
    with pytest.raises(ValueError, match="^device_id 31 is not a visible device"):
        VmmReservation(G, prop, 31)
    with pytest.raises(TypeError, match="^device_id must be an integer"):
        VmmReservation(G, prop, None)


TWO_DEVICES = f"""
from vmmcy import sim
sim.load(devices=2)
from cuda.bindings import driver
from vmmcy.sglang import VmmReservation, make_device_allocation_prop

def access(address, device):
    location = driver.CUmemLocation()
    location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    location.id = device
    return int(driver.cuMemGetAccess(location, address)[1])

prop = make_device_allocation_prop(1, handle_types=None)
reservation = VmmReservation({G}, prop, 0)
handle = reservation.map(0, {G}, retain_handle=True)
made = driver.cuMemGetAllocationPropertiesFromHandle(handle)[1]
print(made.location.id, access(reservation.base, 0), access(reservation.base, 1))
reservation.close()
"""


def test_memory_is_where_the_properties_say_and_access_is_the_devices(sim):
    # A reservation's `device_id` is who may use the memory, as in the engine.
    seen = run_python(TWO_DEVICES, "-W", "error")
    assert (seen.stdout, seen.stderr) == ("1 3 0\n", "")


# ---- what the driver refuses


def test_a_refused_reservation_says_local(sim):
    sim.fail("cuMemAddressReserve", status="CUDA_ERROR_OUT_OF_MEMORY")
    with pytest.raises(MemoryError) as caught:
        reserve()
    assert str(caught.value) == (
        "cuMemAddressReserve(local): CUDA_ERROR_OUT_OF_MEMORY (out of memory)"
    )


@pytest.mark.parametrize("call", ["cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemRelease"])
def test_map_says_local_and_leaves_nothing(reservation, sim, call):
    sim.fail(call)
    with pytest.raises(CudaDriverError) as caught:
        reservation.map(0, G, retain_handle=False)
    assert str(caught.value) == f"{call}(local): {UNKNOWN}"
    assert (sim.live()["handles"], sim.live()["mappings"]) == (0, 0)
    reservation.map(0, G, retain_handle=False)


def test_one_that_is_dropped_after_a_refusal_is_undone_at_once(sim):
    prop = make_device_allocation_prop(0, handle_types=None)
    reservation = VmmReservation(2 * G, prop, 0)
    reservation.map(0, G, retain_handle=False)
    gc.disable()
    try:
        sim.fail("cuMemCreate")
        with contextlib.suppress(CudaDriverError):
            reservation.map(G, G, retain_handle=False)
        with pytest.warns(ResourceWarning, match="was dropped without close"):
            del reservation
        assert set(live().values()) == {0}
    finally:
        gc.enable()


def test_one_is_made_once():
    prop = make_device_allocation_prop(0, handle_types=None)
    reservation = VmmReservation(2 * G, prop, 0)
    base = reservation.base
    with pytest.raises(RuntimeError, match=r"^VmmReservation.__init__ on one that was made: make"):
        reservation.__init__(2 * G, prop, 0)
    assert reservation.base == base
    reservation.close()


@pytest.mark.parametrize("call", ["cuMemMap", "cuMemSetAccess"])
def test_map_existing_says_existing_and_leaves_nothing(reservation, sim, call):
    handle = foreign_handle()
    sim.fail(call)
    with pytest.raises(CudaDriverError) as caught:
        reservation.map_existing(0, G, handle)
    assert str(caught.value) == f"{call}(existing): {UNKNOWN}"
    assert sim.live()["mappings"] == 0
    release(handle)


def test_a_way_back_that_fails_is_told_in_notes(reservation, sim):
    sim.fail("cuMemSetAccess")
    sim.fail("cuMemUnmap")
    with pytest.raises(CudaDriverError) as caught:
        reservation.map(0, G, retain_handle=False)
    assert caught.value.__notes__ == [f"on the way back: cuMemUnmap: {UNKNOWN}"]
    with pytest.raises(RuntimeError, match="only close can undo"):
        reservation.map(G, G, retain_handle=False)


@pytest.mark.parametrize("call", ["cuMemUnmap", "cuMemRelease", "cuMemAddressFree"])
def test_close_logs_what_the_driver_refuses_and_can_be_called_again(sim, caplog, call):
    reservation = reserve()
    reservation.map(0, G, retain_handle=True)
    sim.fail(call)
    reservation.close()
    assert caplog.record_tuples == [
        ("vmmcy.sglang.reservation", logging.WARNING, f"{call}(local) -> {UNKNOWN}")
    ]
    with after_close("map"):
        reservation.map(0, G, retain_handle=False)
    reservation.close()
    assert len(caplog.records) == 1
    assert not any(sim.live().values())


def test_close_logs_every_refusal(sim, caplog):
    reservation = reserve()
    reservation.map(0, G, retain_handle=True)
    reservation.map(G, G, retain_handle=True)
    sim.fail("cuMemRelease", times=2)
    reservation.close()
    note = f"on the way back: cuMemRelease: {UNKNOWN}"
    assert caplog.messages == [f"cuMemRelease(local) -> {UNKNOWN}; {note}"]
    reservation.close()


def test_close_in_a_forked_child_logs_and_leaves_the_parents_alone():
    code = (
        "import logging, os\n"
        "from vmmcy.sglang import VmmReservation, make_device_allocation_prop\n"
        "logging.basicConfig(format='%(message)s')\n"
        "prop = make_device_allocation_prop(0, handle_types=None)\n"
        f"reservation = VmmReservation({G}, prop, 0)\n"
        "child = os.fork()\n"
        "reservation.close()\n"
        "if child == 0: os._exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
    )
    seen = run_python(code, "-W", "error")
    assert seen.returncode == 0
    (line,) = seen.stderr.splitlines()
    assert line.startswith(
        "VmmReservation was not closed: VmmReservation.close: the reservation was made before"
    )


def test_one_that_was_never_made_says_so(caplog):
    made = VmmReservation.__new__(VmmReservation)
    acts = {
        "base": lambda: made.base,
        "size": lambda: made.size,
        "map": lambda: made.map(0, G, retain_handle=False),
        "map_existing": lambda: made.map_existing(0, G, 1),
    }
    for act in acts.values():
        with pytest.raises(RuntimeError, match="^this object was never made"):
            act()
    made.close()
    (record,) = caplog.records
    assert record.message.startswith("VmmReservation was not closed: this object was never made")


def test_it_is_one_with_what_it_gives_back(reservation):
    for act in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be copied or pickled: export its handles"):
            act(reservation)
