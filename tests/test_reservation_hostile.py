"""Callers who copy what owns something, make it twice, or pass what is no flag and no list."""

import copy
import pickle
import re

import pytest
from conformance.steps import G
from conformance.steps import must as driver_must
from cuda.bindings import driver
from reservation_help import release

from vmmcy.errors import CudaDriverError
from vmmcy.reservation import VmmReservation, check_map

NEVER_MADE = "^this object was never made: its constructor did not succeed$"


@pytest.fixture
def reservation():
    with VmmReservation(4 * G, device_id=0) as reservation:
        yield reservation


class Unsure:
    """A flag that does not know what it is."""

    def __bool__(self):
        raise ArithmeticError("neither")


def test_a_flag_that_raises_changes_nothing(reservation):
    reservation.map(0, G, retain_handle=True)
    before = reservation.mappings
    calls = [
        lambda: reservation.map(G, G, retain_handle=Unsure()),
        lambda: reservation.unmap(0, G, release_handles=Unsure()),
        lambda: reservation.close(release_handles=Unsure()),
        lambda: VmmReservation(G, requested_address=G, require_address=Unsure()),
    ]
    for call in calls:
        with pytest.raises(ArithmeticError, match="^neither$"):
            call()
    assert reservation.mappings == before
    assert not reservation.closed
    reservation.unmap(0, G)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_reservation_is_not_copied(reservation, duplicate):
    with pytest.raises(TypeError, match="^a VmmReservation cannot be copied or pickled: export"):
        duplicate(reservation)
    reservation.map(0, G)
    assert reservation.mapped_bytes == G


def test_a_reservation_is_not_made_again(reservation):
    base = reservation.base
    for again in (lambda: reservation.__init__(G), lambda: reservation.__init__(1)):
        with pytest.raises(RuntimeError, match=r"^VmmReservation.__init__ on one that was made"):
            again()
    assert (reservation.base, reservation.size) == (base, 4 * G)


def test_a_reservation_that_was_never_made_says_so():
    never = VmmReservation.__new__(VmmReservation)
    calls = [
        lambda: never.base,
        lambda: never.size,
        lambda: never.device_id,
        lambda: never.granularity,
        lambda: never.address_honoured,
        lambda: never.closed,
        lambda: never.mappings,
        lambda: never.mapped_bytes,
        lambda: never.map(0, G),
        lambda: never.unmap(0, G),
        lambda: never.commit(0, G),
        lambda: never.close(),
        lambda: check_map(never, 0, G),
        never.__enter__,
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match=NEVER_MADE):
            call()
    assert repr(never) == "<VmmReservation, never made>"


@pytest.mark.parametrize("number", [10**5000, -(10**5000)], ids=["above", "below"])
def test_a_range_too_long_to_print_is_named_by_its_bits(reservation, number):
    text = rf"^mapping \[<int of {number.bit_length()} bits>, <int of \d+ bits>\) is outside "
    for act in (reservation.map, reservation.unmap, reservation.commit, reservation.decommit):
        with pytest.raises(ValueError, match=text):
            act(number, G)


def test_a_closed_reservation_is_not_entered():
    reservation = VmmReservation(G)
    reservation.close()
    with pytest.raises(RuntimeError, match=r"^VmmReservation.__enter__ after close$"), reservation:
        pass


@pytest.mark.parametrize("other", [None, 0, "reservation", object()])
def test_only_reservations_are_checked(other):
    name = type(other).__name__
    with pytest.raises(TypeError, match=f"^reservation must be a VmmReservation, not {name}$"):
        check_map(other, 0, G)


@pytest.mark.parametrize("devices", [0, "0", b"\0", bytearray(b"\0"), None.__class__])
def test_devices_with_access_are_an_iterable_of_ordinals(devices):
    text = "access_devices must be an iterable of device ordinals, not "
    with pytest.raises(TypeError) as raised:
        VmmReservation(G, access_devices=devices)
    assert str(raised.value) == f"{text}{type(devices).__name__} {devices!r}"


@pytest.mark.parametrize("device", [0.0, True, "0", None])
def test_a_device_with_access_is_an_integer(device):
    with pytest.raises(TypeError, match=r"^access_devices\[1\] must be an integer"):
        VmmReservation(G, access_devices=[0, device])


@pytest.mark.parametrize(
    ("devices", "text"),
    [
        ([], "access_devices is empty: nobody could use the memory"),
        ([0, 0], "access_devices names a device twice: [0, 0]"),
        ([-1], "access_devices[0] must be a device ordinal, 0 or greater, got -1"),
        ([2**31], "access_devices[0] must be a device ordinal, 0 or greater, got 2147483648"),
        ([99], "access_devices[0] 99 is not a visible device: there are "),
    ],
)
def test_a_device_with_access_is_there_once(devices, text):
    with pytest.raises(ValueError, match=f"^{re.escape(text)}"):
        VmmReservation(G, device_id=0, access_devices=iter(devices))


def test_an_iterable_that_raises_reserves_nothing(sim):
    def devices():
        yield 0
        raise ArithmeticError("no more")

    with pytest.raises(ArithmeticError, match="^no more$"):
        VmmReservation(G, access_devices=devices())
    assert sim.calls() == {}


@pytest.mark.parametrize(
    "arguments",
    [
        {"size": 0, "prop": "no prop"},
        {"size": -1, "device_id": "0"},
        {"size": G, "alignment": 3, "device_id": 0.0},
        {"size": 2**64, "access_devices": ["0"]},
        {"size": G, "requested_address": -1, "access_devices": 3},
    ],
)
def test_types_come_before_values(arguments):
    with pytest.raises(TypeError):
        VmmReservation(**arguments)


def occupied_address():
    """A range that is taken, so that a reservation cannot have its address."""
    return int(driver_must(driver.cuMemAddressReserve(G, 0, 0, 0)))


@pytest.mark.parametrize(("failures", "notes"), [(0, 0), (1, 1), (2, 3)])
def test_addresses_that_came_instead_are_given_back(sim, failures, notes):
    driver_must(driver.cuInit(0))
    taken = occupied_address()
    sim.reset()
    if failures:
        sim.fail("cuMemAddressFree", times=failures)
    with pytest.raises(RuntimeError, match=f"^address {taken} was required") as raised:
        VmmReservation(G, requested_address=taken, require_address=True)
    said = getattr(raised.value, "__notes__", [])
    assert len(said) == notes
    if failures == 2:
        assert re.fullmatch(rf"the {G} bytes of addresses at \d+ may stay reserved", said[-1])
    sim.reset()
    raised = None
    driver_must(driver.cuMemAddressFree(taken, G))
    assert sim.live()["reservations"] == 0


def test_what_is_left_over_says_which_handles_are_alive(sim, reservation):
    """Create, map, then access fails, and so does the unmap: the mapping stays, its handle goes."""
    sim.fail("cuMemSetAccess")
    sim.fail("cuMemUnmap")
    with pytest.raises(CudaDriverError, match="^cuMemSetAccess"):
        reservation.map(0, G, retain_handle=True)
    assert [(m.handle, m.owned) for m in reservation.mappings] == [(None, False)]
    text = (
        r"^VmmReservation.map: an earlier failure left what only close can undo; call that, "
        r"again if it raises$"
    )
    with pytest.raises(RuntimeError, match=text):
        reservation.map(G, G)


@pytest.mark.parametrize("status", ["CUDA_ERROR_DEINITIALIZED", "CUDA_ERROR_UNKNOWN"])
def test_a_reference_that_did_not_come_back_is_not_held(sim, status):
    reservation = VmmReservation(4 * G)
    handle = reservation.map(0, G, retain_handle=True)
    sim.fail("cuMemUnmap")
    sim.fail("cuMemRetainAllocationHandle", status=status)
    with pytest.raises(CudaDriverError, match="^cuMemUnmap"):
        reservation.unmap(0, G)
    assert handle
    assert [(m.handle, m.owned) for m in reservation.mappings] == [(None, False)]
    sim.reset()
    reservation.close()
    assert sim.calls() == {"cuMemUnmap": 1, "cuMemAddressFree": 1}


def test_a_handle_that_its_user_released_is_handed_over_to_close(sim):
    # On the simulator alone: a real driver may crash the process on a dead handle.
    reservation = VmmReservation(4 * G)
    release(reservation.map(0, G, retain_handle=True))
    with pytest.raises(CudaDriverError, match="^cuMemRelease: CUDA_ERROR_INVALID_VALUE"):
        reservation.close()
    assert not reservation.closed
    reservation.close(release_handles=False)
    assert reservation.closed
