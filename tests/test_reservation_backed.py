"""A backed range as an array for those who know no torch."""

import ctypes
import gc
import weakref

import pytest
from conformance.steps import G

from vmmcy import BackedBytes, VmmReservation


@pytest.fixture
def reservation():
    with VmmReservation(8 * G, device_id=0) as reservation:
        reservation.map(G, G)
        reservation.map(2 * G, 2 * G)
        yield reservation


def test_the_interface_names_the_bytes(reservation):
    given = reservation.backed(G + 3, 3 * G - 7)
    assert isinstance(given, BackedBytes)
    assert given.__cuda_array_interface__ == {
        "version": 3,
        "shape": (3 * G - 7,),
        "typestr": "|u1",
        "data": (reservation.base + G + 3, False),
        "strides": None,
    }
    assert repr(given).startswith(f"<BackedBytes [{G + 3}, {4 * G - 4}) of <VmmReservation")


def test_the_bytes_are_those_of_the_memory(sim, reservation):
    address, _ = reservation.backed(G, G).__cuda_array_interface__["data"]
    ctypes.memset(address, 7, G)
    assert ctypes.string_at(reservation.base + G, G) == b"\7" * G


@pytest.mark.parametrize(
    ("offset", "size", "hole"),
    [(0, G, 0), (G - 1, 2, G - 1), (G, 3 * G + 1, 4 * G), (5 * G, 1, 5 * G), (0, 8 * G, 0)],
)
def test_a_hole_is_refused(reservation, offset, size, hole):
    with pytest.raises(ValueError, match=f"^VmmReservation.backed: nothing is mapped at {hole}, "):
        reservation.backed(offset, size)


@pytest.mark.parametrize(
    ("offset", "size", "error"),
    [(0, 0, ValueError), (-1, 1, ValueError), (8 * G, 1, ValueError), (1.0, 1, TypeError)],
)
def test_a_range_is_checked_as_everywhere(reservation, offset, size, error):
    with pytest.raises(error):
        reservation.backed(offset, size)


def test_the_bytes_are_those_of_a_reservation():
    with pytest.raises(TypeError, match="^reservation must be a VmmReservation, not int$"):
        BackedBytes(3, 0, 1)


def test_what_is_taken_away_later_is_refused_when_it_is_taken_up(reservation):
    given = reservation.backed(G, 3 * G)
    reservation.unmap(2 * G, 2 * G)
    with pytest.raises(ValueError, match="nothing is mapped"):
        given.__cuda_array_interface__  # noqa: B018
    reservation.close()
    for late in (lambda: given.__cuda_array_interface__, lambda: reservation.backed(G, G)):
        with pytest.raises(RuntimeError, match="^VmmReservation.backed after close$"):
            late()


def test_the_bytes_keep_the_reservation():
    reservation = VmmReservation(G, device_id=0)
    alive = weakref.ref(reservation)
    reservation.map(0, G)
    given = reservation.backed(0, G)
    del reservation
    gc.collect()
    assert given.reservation is alive()
    given.reservation.close()
    del given
    assert alive() is None
