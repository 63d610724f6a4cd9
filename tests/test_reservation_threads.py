"""Many threads on one reservation: nothing is mapped twice, lost, or unmapped under a reader."""

import random
import threading

import pytest
from conformance.steps import G
from cuda.bindings import driver
from reservation_help import fill, holds, places, primary_context

from vmmcy.reservation import VmmReservation

THREADS = 4
ROUNDS = 40


def together(*actions):
    """Run the actions at the same time, each in a thread; return what each gave or raised."""
    barrier = threading.Barrier(len(actions))
    answers = [None] * len(actions)

    def run(index, action):
        barrier.wait()
        try:
            answers[index] = action()
        except Exception as error:
            answers[index] = error

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(actions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def test_map_against_map_at_one_place_has_one_winner():
    with VmmReservation(2 * G) as reservation:
        for _ in range(ROUNDS):
            answers = together(*[lambda: reservation.map(0, 2 * G)] * THREADS)
            assert answers.count(None) == 1
            for error in filter(None, answers):
                assert isinstance(error, ValueError)
                assert "is there already" in str(error)
            assert places(reservation) == [(0, 2)]
            reservation.unmap(0, 2 * G)


def test_commit_against_commit_backs_each_granule_once():
    with VmmReservation(8 * G) as reservation:
        for _ in range(ROUNDS):
            overlapping = [
                lambda k=k: reservation.commit(k * G, 5 * G, chunk_bytes=G) for k in range(THREADS)
            ]
            assert sum(together(*overlapping)) == 8 * G
            assert places(reservation) == [(k, 1) for k in range(8)]
            assert sum(together(*[lambda: reservation.decommit(0, 8 * G)] * THREADS)) == 8 * G


def test_map_against_close_ends_closed_and_empty():
    for _ in range(ROUNDS):
        reservation = VmmReservation(64 * G)

        def map_all(first, reservation=reservation):
            for granule in range(first, 64, 2):
                reservation.map(granule * G, G, retain_handle=granule % 3 == 0)

        answers = together(lambda: map_all(0), lambda: map_all(1), reservation.close)
        assert reservation.closed
        for error in filter(None, answers):
            assert str(error) == "VmmReservation.map after close"


def test_close_against_close_undoes_once(sim):
    for _ in range(ROUNDS):
        reservation = VmmReservation(4 * G)
        reservation.map(0, G, retain_handle=True)
        sim.reset()
        assert together(*[reservation.close] * THREADS) == [None] * THREADS
        assert sim.calls() == {"cuMemUnmap": 1, "cuMemRelease": 1, "cuMemAddressFree": 1}


def test_unmap_against_commit_ends_in_one_of_two_states():
    with VmmReservation(4 * G) as reservation:
        for _ in range(ROUNDS):
            reservation.commit(0, 4 * G, chunk_bytes=G)
            backed, unmapped = together(
                lambda: reservation.commit(0, 4 * G, chunk_bytes=G),
                lambda: reservation.unmap(0, 4 * G),
            )
            assert unmapped is None
            assert (backed, reservation.mapped_bytes) in [(0, 0), (4 * G, 4 * G)]


def test_r7_a_thread_without_a_context_maps_and_closes():
    reservation = VmmReservation(4 * G, device_id=0)

    def on_a_helper():
        reservation.map(0, G)
        reservation.commit(0, 4 * G)
        reservation.unmap(0, 4 * G)
        reservation.close()
        return int(driver.cuCtxGetCurrent()[1])

    assert together(on_a_helper) == [0]
    assert reservation.closed


@pytest.mark.parametrize("seed", range(3))
def test_a_storm_keeps_every_byte(seed):
    """Each thread has granules of its own, its own model of them, and writes to all."""
    share = 8
    with VmmReservation(THREADS * share * G) as reservation:
        storms = [
            lambda k=k: storm(reservation, k * share, share, random.Random(f"{seed} {k}"))
            for k in range(THREADS)
        ]
        answers = together(*storms, lambda: watch(reservation))
        assert [type(answer) for answer in answers] == [dict] * THREADS + [type(None)], answers
        expected = {granule: size for held in answers[:-1] for granule, (size, _) in held.items()}
        assert places(reservation) == sorted(expected.items())


def storm(reservation, first, share, chance):
    """Do random steps on granules [first, first + share); return the model at the end."""
    held = {}  # first granule: (granules, the byte that fills them)
    with primary_context():
        for step in range(60):
            granule = chance.randrange(share)
            size = chance.randint(1, share - granule)
            start = first + granule
            inside = [at for at in held if start <= at and at + held[at][0] <= start + size]
            if chance.random() < 0.5:
                for at, count in holes(held, start, size):
                    held[at] = (count, step)
                reservation.commit(start * G, size * G)
                for at, (count, value) in held.items():
                    if value == step:
                        fill(reservation.base + at * G, count * G, value)
            else:
                for at in inside:
                    count, value = held.pop(at)
                    assert holds(reservation.base + at * G, count * G, value)
                reservation.decommit(start * G, size * G)
        for at, (count, value) in held.items():
            assert holds(reservation.base + at * G, count * G, value)
    return held


def holes(held, start, size):
    """The stretches of [start, start + size) that `held` leaves open."""
    taken = {at + k for at, (count, _) in held.items() for k in range(count)}
    found = []
    for granule in range(start, start + size):
        if granule in taken:
            continue
        if found and sum(found[-1]) == granule:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((granule, 1))
    return found


def watch(reservation):
    """Read the record all the while: every snapshot is in order and without overlap."""
    for _ in range(200):
        end = 0
        for mapping in reservation.mappings:
            assert mapping.offset >= end
            end = mapping.offset + mapping.size_bytes
        assert 0 <= reservation.mapped_bytes <= reservation.size
