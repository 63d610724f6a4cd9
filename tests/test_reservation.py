"""The reservation's contract: what each method does, and what it says instead."""

import os

import numpy as np
import pytest
from conformance.steps import G, must
from cuda.bindings import driver
from reservation_help import (
    fill,
    foreign_handle,
    holds,
    is_alive,
    places,
    primary_context,
    refused,
    release,
)

from vmmcy import Mapping
from vmmcy.errors import CudaOutOfMemoryError
from vmmcy.properties import get_device_granularity
from vmmcy.reservation import VmmReservation, check_map

CHANGING = {
    "map": lambda r: r.map(0, G),
    "map_existing": lambda r: r.map_existing(0, G, 1),
    "unmap": lambda r: r.unmap(0, G),
    "commit": lambda r: r.commit(0, G),
    "decommit": lambda r: r.decommit(0, G),
}


@pytest.fixture
def reservation():
    with VmmReservation(8 * G, device_id=0) as made:
        yield made


def test_a_new_reservation_has_addresses_and_no_memory(reservation):
    assert reservation.size == 8 * G
    assert reservation.base % G == 0
    assert reservation.device_id == 0
    assert reservation.granularity == get_device_granularity(0) == G
    assert reservation.mappings == ()
    assert reservation.mapped_bytes == 0
    assert reservation.address_honoured
    assert not reservation.closed


def test_map_backs_a_range_that_keeps_its_bytes(reservation):
    assert reservation.map(2 * G, 3 * G) is None
    assert reservation.mappings == (Mapping(2 * G, 3 * G, None, False),)
    assert reservation.mapped_bytes == 3 * G
    with primary_context():
        fill(reservation.base + 2 * G, 3 * G, 0x5A)
        assert holds(reservation.base + 2 * G, 3 * G, 0x5A)


def test_a_retained_handle_can_be_exported_and_is_released_by_unmap(reservation):
    handle = reservation.map(0, G, retain_handle=True)
    assert reservation.mappings == (Mapping(0, G, handle, True),)
    kind = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    fd = must(driver.cuMemExportToShareableHandle(handle, kind, 0))
    os.close(fd)
    reservation.unmap(0, G)


@pytest.mark.parametrize("wrap", [int, driver.CUmemGenericAllocationHandle, np.uint64])
def test_map_existing_never_releases_the_callers_handle(reservation, wrap):
    handle = foreign_handle()
    reservation.map_existing(0, G, wrap(handle))
    assert reservation.mappings == (Mapping(0, G, handle, False),)
    reservation.unmap(0, G)
    reservation.map_existing(G, G, wrap(handle))
    assert reservation.decommit(0, 8 * G) == G
    assert is_alive(handle)
    release(handle)


def test_two_places_of_one_handle_share_their_bytes(reservation):
    handle = foreign_handle()
    reservation.map_existing(0, G, handle)
    reservation.map_existing(5 * G, G, handle)
    with primary_context():
        fill(reservation.base, G, 0x11)
        assert holds(reservation.base + 5 * G, G, 0x11)
    release(handle)


def test_commit_backs_what_is_not_backed_and_rounds_outwards(reservation):
    reservation.map(3 * G, G)
    assert reservation.commit(G + 1, 3 * G) == 3 * G
    assert places(reservation) == [(1, 2), (3, 1), (4, 1)]
    assert reservation.commit(G, 4 * G) == 0


def test_commit_in_chunks_starts_at_each_hole(reservation):
    reservation.map(3 * G, G)
    assert reservation.commit(0, 8 * G, chunk_bytes=2 * G) == 7 * G
    assert places(reservation) == [(0, 2), (2, 1), (3, 1), (4, 2), (6, 2)]


def test_commit_leaves_the_bytes_that_were_there(reservation):
    reservation.commit(2 * G, G)
    with primary_context():
        fill(reservation.base + 2 * G, G, 0x77)
        reservation.commit(0, 8 * G)
        assert holds(reservation.base + 2 * G, G, 0x77)


def test_decommit_gives_back_what_lies_wholly_inside(reservation):
    reservation.commit(0, 8 * G, chunk_bytes=2 * G)
    assert reservation.decommit(1, 7 * G) == 4 * G
    assert places(reservation) == [(0, 2), (6, 2)]
    assert reservation.decommit(1, 7 * G) == 0
    assert reservation.decommit(G, 1) == 0


def test_decommit_steps_over_holes(reservation):
    for granule in (1, 3, 6):
        reservation.map(granule * G, G)
    assert reservation.decommit(0, 6 * G) == 2 * G
    assert places(reservation) == [(6, 1)]


def test_unmap_takes_one_mapping_or_many(reservation):
    reservation.commit(0, 8 * G, chunk_bytes=G)
    reservation.unmap(0, G)
    reservation.unmap(2 * G, 5 * G)
    assert places(reservation) == [(1, 1), (7, 1)]


def test_unmap_can_hand_the_handle_over(reservation):
    handle = reservation.map(0, G, retain_handle=True)
    reservation.unmap(0, G, release_handles=False)
    assert is_alive(handle)
    release(handle)


def test_close_can_hand_the_handles_over():
    reservation = VmmReservation(4 * G)
    handles = [reservation.map(k * G, G, retain_handle=True) for k in range(3)]
    reservation.close(release_handles=False)
    for handle in handles:
        assert is_alive(handle)
        release(handle)


def test_check_map_says_what_map_would_without_a_driver_call(sim):
    with VmmReservation(4 * G) as reservation:
        reservation.map(G, G)
        sim.reset()
        for offset, size in [(0, G), (2 * G, 2 * G)]:
            check_map(reservation, offset, size)
        wrong = [(0, 2 * G), (3 * G, 2 * G), (1, G), (0, 1), (0, 0), (-G, G), (0.0, G), (True, G)]
        for offset, size in wrong:
            with pytest.raises((TypeError, ValueError)) as by_map:
                reservation.map(offset, size)
            with pytest.raises(by_map.type) as by_check:
                check_map(reservation, offset, size)
            assert str(by_check.value) == str(by_map.value)
        assert sim.calls() == {}
    with pytest.raises(RuntimeError, match=r"^VmmReservation\.map after close$"):
        check_map(reservation, 0, G)


@pytest.mark.parametrize("name", CHANGING)
@pytest.mark.parametrize(
    ("offset", "size"),
    [(7, 2), (8, 1), (0, 9), (0, 0), (4, 0), (0, -1), (-1, 1), (-1, 0), (1 << 70, 1), (0, 1 << 70)],
)
def test_outside_is_refused_before_any_driver_call(sim, name, offset, size):
    with VmmReservation(8 * G) as reservation:
        extra = (1,) if name == "map_existing" else ()
        sim.reset()
        with refused(
            f"mapping [{offset * G}, {(offset + size) * G}) is outside reservation [0, {8 * G})"
        ):
            getattr(reservation, name)(offset * G, size * G, *extra)
        assert sim.calls() == {}


def test_r1_existing_past_the_end_is_refused(sim, reservation):
    handle = foreign_handle(2 * G)
    sim.reset()
    with pytest.raises(ValueError, match=r"^mapping \[14680064, 18874368\) is outside res"):
        reservation.map_existing(7 * G, 2 * G, handle)
    assert sim.calls() == {}
    release(handle)


@pytest.mark.parametrize("name", CHANGING)
@pytest.mark.parametrize("value", [1.0, True, "4096", None, np.float64(G), np.True_, b"1", [G]])
@pytest.mark.parametrize("position", [0, 1])
def test_types_come_first(name, value, position):
    reservation = VmmReservation(8 * G)
    reservation.close()
    arguments = [0, G, *((1,) if name == "map_existing" else ())]
    arguments[position] = value
    with pytest.raises(TypeError, match="must be an integer"):
        getattr(reservation, name)(*arguments)


def test_numpy_integers_are_integers(reservation):
    reservation.map(np.int64(G), np.uint32(G))
    assert places(reservation) == [(1, 1)]


@pytest.mark.parametrize("name", ["map", "unmap", "map_existing"])
@pytest.mark.parametrize(
    ("offset", "size", "named", "value", "following"),
    [(3, 6912, "offset", 3, G), (0, 6912, "size", 6912, G), (G, G + 1, "size", G + 1, 2 * G)],
)
def test_r5_counts_for_bytes_are_refused(reservation, name, offset, size, named, value, following):
    extra = (1,) if name == "map_existing" else ()
    with refused(
        f"{named} {value} is not a multiple of the granularity {G}; "
        f"the next multiple is {following} (bytes)"
    ):
        getattr(reservation, name)(offset, size, *extra)


@pytest.mark.parametrize("chunk_bytes", [0, -G, G + 1, 1])
def test_a_chunk_is_whole_granules(reservation, chunk_bytes):
    with pytest.raises(ValueError, match="chunk_bytes"):
        reservation.commit(0, G, chunk_bytes=chunk_bytes)
    assert reservation.mappings == ()


def test_overlap_names_the_mapping_that_is_there(reservation):
    reservation.map(2 * G, 2 * G)
    for offset, size in [(2, 2), (0, 3), (3, 1), (3, 4), (0, 8), (2, 1)]:
        with refused(f"VmmReservation.map: mapping [{2 * G}, {4 * G}) is there already"):
            reservation.map(offset * G, size * G)
    reservation.map(0, 2 * G)
    reservation.map(4 * G, 4 * G)


def test_unmap_names_the_mapping_that_is_cut_or_the_hole(reservation):
    reservation.map(G, 2 * G)
    reservation.map(4 * G, G)
    cut = f"the range cuts mapping [{G}, {3 * G}), give it whole"
    for offset, size, text in [
        (1, 1, cut),
        (2, 1, cut),
        (2, 3, cut),
        (0, 3, f"nothing is mapped at [0, {G})"),
        (1, 4, f"nothing is mapped at [{3 * G}, {4 * G})"),
        (4, 3, f"nothing is mapped at [{5 * G}, {7 * G})"),
        (6, 1, f"nothing is mapped at [{6 * G}, {7 * G})"),
    ]:
        with refused(f"VmmReservation.unmap: {text}"):
            reservation.unmap(offset * G, size * G)
    assert places(reservation) == [(1, 2), (4, 1)]


def test_r4_a_second_unmap_is_an_error_a_second_close_is_not():
    reservation = VmmReservation(4 * G)
    reservation.map(0, G)
    reservation.unmap(0, G)
    with pytest.raises(ValueError, match="nothing is mapped"):
        reservation.unmap(0, G)
    reservation.close()
    reservation.close()
    assert reservation.closed


@pytest.mark.parametrize("name", CHANGING)
def test_after_close_methods_refuse_and_properties_answer(name):
    reservation = VmmReservation(4 * G)
    base = reservation.base
    reservation.close()
    with pytest.raises(RuntimeError) as refused:
        CHANGING[name](reservation)
    assert str(refused.value) == f"VmmReservation.{name} after close"
    assert (reservation.base, reservation.size, reservation.device_id) == (base, 4 * G, 0)
    assert (reservation.mappings, reservation.mapped_bytes) == ((), 0)
    assert reservation.granularity == G
    assert "closed" in repr(reservation)


def test_a_handle_of_zero_is_refused(reservation):
    with pytest.raises(ValueError, match="handle must be at least 1"):
        reservation.map_existing(0, G, 0)
    for handle in (None, 1.0, "7", True):
        with pytest.raises(TypeError, match="handle must be an integer"):
            reservation.map_existing(0, G, handle)


@pytest.mark.parametrize("retain", [False, True])
def test_r6_close_gives_all_the_memory_back(retain):
    size = 64 << 20
    with primary_context():
        warm = VmmReservation(size)
        warm.map(0, size)
        warm.close()
        free_before = must_free()
        reservation = VmmReservation(64 * size)
        for index in range(64):
            reservation.map(index * size, size, retain_handle=retain)
        assert must_free() <= free_before - 64 * size
        reservation.close()
        assert must_free() == free_before


def must_free():
    status, free, _total = driver.cuMemGetInfo()
    assert status == driver.CUresult.CUDA_SUCCESS
    return free


def test_out_of_memory_half_way_leaves_nothing():
    with primary_context():
        _status, _free, total = driver.cuMemGetInfo()
        free_before = must_free()
        chunk = 1 << 30
        with VmmReservation((total // chunk + 2) * chunk) as reservation:
            reservation.map(0, G)
            with pytest.raises(CudaOutOfMemoryError, match="^cuMemCreate: CUDA_ERROR_OUT_OF_M"):
                reservation.commit(0, reservation.size, chunk_bytes=chunk)
            assert places(reservation) == [(0, 1)]
            with pytest.raises(MemoryError):
                reservation.map(G, reservation.size - G)
            assert reservation.commit(0, 2 * G) == G
        assert must_free() == free_before


def test_a_body_that_raises_is_heard_before_the_closing(sim):
    reservation = VmmReservation(G)
    sim.fail("cuMemAddressFree")
    with pytest.raises(KeyError, match="the body's own") as raised, reservation:
        raise KeyError("the body's own")
    assert "could not be closed: cuMemAddressFree" in raised.value.__notes__[0]
    reservation.close()


def test_a_closing_that_fails_is_raised(sim):
    reservation = VmmReservation(G)
    sim.fail("cuMemAddressFree")
    with pytest.raises(RuntimeError, match="^cuMemAddressFree: "), reservation:
        pass
    assert not reservation.closed
    reservation.close()
