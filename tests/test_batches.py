"""Many ranges of many reservations at once: what they do, what they cost, and all or nothing."""

import random
import threading

import pytest
from conformance.steps import G
from reservation_help import fill, foreign_handle, holds, places, primary_context, release
from stream_help import held_stream

from vmmcy import HandlePool, VmmReservation, commit_many, decommit_many, live
from vmmcy.errors import CudaDriverError

RELAXED = {"cuThreadExchangeStreamCaptureMode"}  # around asking
WAY_BACK = ("cuMemRelease", "cuMemMap", "cuMemSetAccess")  # of a decommit


@pytest.fixture
def pair():
    with (
        VmmReservation(16 * G, device_id=0) as first,
        VmmReservation(16 * G, device_id=0) as second,
    ):
        yield first, second


def calls_of(sim, act, *arguments, **options):
    sim.reset()
    act(*arguments, **options)
    return sim.calls()


# ---- what they do, and what it costs


def test_512_chunks_of_a_warm_pool_cost_512_maps_and_one_set_access(sim):
    with (
        HandlePool(0, chunk_bytes=G, capacity_bytes=512 * G) as pool,
        VmmReservation(512 * G, pool=pool) as reservation,
    ):
        pool.prefill(512 * G)
        ranges = [(reservation, k * G, G) for k in range(512)]
        random.Random(1).shuffle(ranges)
        assert calls_of(sim, commit_many, ranges) == {"cuMemMap": 512, "cuMemSetAccess": 1}
        assert calls_of(sim, decommit_many, ranges) == {"cuMemUnmap": 1}
        assert pool.pooled_handles == 512


def test_holes_are_backed_once_however_ranges_overlap(sim, pair):
    first, second = pair
    first.map(4 * G, G)
    ranges = [
        (second, 0, 2 * G),
        (first, 3 * G + 5, 4 * G - 10),  # outwards: granules 3 to 6
        (first, 0, 2 * G),
        (first, G, 4 * G),
        (second, 2 * G, G),
    ]
    assert commit_many(ranges) == 9 * G
    assert places(first) == [(0, 2), (2, 1), (3, 1), (4, 1), (5, 2)]
    assert places(second) == [(0, 2), (2, 1)]
    assert calls_of(sim, commit_many, ranges) == {}
    assert commit_many(iter(ranges), chunk_bytes=G) == 0


def test_access_is_set_once_for_each_stretch(sim, pair):
    first, second = pair
    ranges = [(first, 6 * G, G), (second, 0, G), (first, 0, 2 * G), (first, 2 * G, G)]
    assert calls_of(sim, commit_many, ranges, chunk_bytes=G) == {
        "cuMemCreate": 5,
        "cuMemMap": 5,
        "cuMemSetAccess": 3,
        "cuMemRelease": 5,
    }


def test_one_stretch_is_given_back_in_the_order_of_decommit(sim, pair):
    first, second = pair
    first.map(0, G, retain_handle=True)
    first.map(5 * G, G)
    ranges = [(first, 4 * G, 3 * G), (second, 0, 16 * G), (first, 0, 2 * G)]
    assert calls_of(sim, decommit_many, ranges) == {"cuMemRelease": 1, "cuMemUnmap": 1}
    assert (first.mappings, second.mappings) == ((), ())


def test_what_lies_between_stays_and_makes_two_unmaps(sim, pair):
    first, _ = pair
    with primary_context():
        first.commit(0, 9 * G, chunk_bytes=3 * G)
        fill(first.base + 3 * G, 3 * G, 0x42)
        assert decommit_many([(first, 5 * G, 5 * G), (first, 0, 4 * G), (first, G, 4 * G)]) == 6 * G
        assert places(first) == [(3, 3)]
        assert holds(first.base + 3 * G, 3 * G, 0x42)
    first.commit(0, 3 * G)
    first.commit(6 * G, 3 * G)
    assert calls_of(sim, decommit_many, [(first, 0, 3 * G), (first, 6 * G, 3 * G)]) == {
        "cuMemRetainAllocationHandle": 2,
        "cuMemUnmap": 2,
        "cuMemRelease": 2,
    }


def test_nothing_to_do_is_nothing_done(sim, pair):
    first, second = pair
    for act in (commit_many, decommit_many):
        assert act([]) == 0
    assert calls_of(sim, decommit_many, [(first, 0, G), (second, 0, G)]) == {}


def test_pools_and_callers_handles_go_where_they_belong(pair):
    first, _ = pair
    existing = foreign_handle()
    with (
        HandlePool(0, chunk_bytes=G, capacity_bytes=8 * G) as pool,
        VmmReservation(8 * G, pool=pool) as pooled,
    ):
        first.map_existing(0, G, existing)
        retained = first.map(4 * G, G, retain_handle=True)
        assert retained is not None
        assert commit_many([(pooled, 0, 2 * G), (pooled, 4 * G, G)]) == 3 * G
        assert live()["handles"] == 4
        assert decommit_many([(first, 0, 8 * G), (pooled, 0, 8 * G)]) == 5 * G
        assert (live()["handles"], pool.pooled_handles) == (0, 3)
    release(existing)


def test_what_is_leaving_is_kept_or_taken_at_once(sim, pair):
    first, second = pair
    with primary_context(), held_stream() as held:
        for reservation in pair:
            reservation.commit(0, 4 * G, chunk_bytes=2 * G)
            reservation.decommit(0, 4 * G, stream=held.handle)
        assert calls_of(sim, commit_many, [(first, 0, 2 * G)]).keys() <= {"cuEventQuery", *RELAXED}
        assert (first.leaving_bytes, second.leaving_bytes) == (2 * G, 4 * G)
        assert commit_many([(first, G, 5 * G)]) == 4 * G
        held.let()
        assert decommit_many([(first, 0, 2 * G), (second, 0, G)]) == 2 * G
        assert places(second) == []
        assert places(first) == [(2, 2), (4, 2)]


# ---- all or nothing


class Scene:
    """Two reservations, one over a pool with two handles unused; mappings of every kind."""

    def __init__(self):
        self.existing = foreign_handle()
        self.pool = HandlePool(0, chunk_bytes=G, capacity_bytes=16 * G)
        self.plain = VmmReservation(16 * G, device_id=0)
        self.pooled = VmmReservation(16 * G, pool=self.pool)
        self.plain.map(0, 2 * G)
        self.plain.map(2 * G, G, retain_handle=True)
        self.plain.map(3 * G, G)
        self.plain.map_existing(4 * G, G, self.existing)
        self.pooled.commit(0, 2 * G)
        self.pooled.map(2 * G, G)
        self.pooled.commit(3 * G, G)
        self.pool.prefill(2 * G)

    def ranges(self):
        """Both reservations in turn, around what is to stay at granules 3 and 2."""
        return [
            (self.pooled, 3 * G, 4 * G),
            (self.plain, 4 * G, 3 * G),
            (self.pooled, 0, 2 * G),
            (self.plain, 0, 3 * G),
        ]

    def fill(self):
        for reservation in (self.plain, self.pooled):
            for mapping in reservation.mappings:
                value = 1 + mapping.offset // G
                fill(reservation.base + mapping.offset, mapping.size_bytes, value)

    def is_filled(self):
        return all(
            holds(reservation.base + m.offset, m.size_bytes, 1 + m.offset // G)
            for reservation in (self.plain, self.pooled)
            for m in reservation.mappings
        )

    def state(self):
        return self.plain.mappings, self.pooled.mappings, self.pool.pooled_handles

    def close(self):
        self.plain.close()
        self.pooled.close()
        self.pool.close()
        release(self.existing)


def commit(scene):
    """Of the pool two handles and one made; of the other two made."""
    return commit_many(
        [(scene.pooled, 4 * G, 3 * G), (scene.plain, 8 * G, G), (scene.plain, 10 * G, 2 * G)]
    )


def decommit(scene):
    return decommit_many(scene.ranges())


OPERATIONS = {
    commit: {"cuMemCreate": 3, "cuMemMap": 5, "cuMemSetAccess": 3, "cuMemRelease": 2},
    decommit: {"cuMemRetainAllocationHandle": 2, "cuMemUnmap": 4, "cuMemRelease": 3},
}
SINGLE = [
    pytest.param(act, call, nth, id=f"{act.__name__}-{call}-{nth}")
    for act, calls in OPERATIONS.items()
    for call, count in calls.items()
    for nth in range(1, count + 1)
    if (act, call) != (decommit, "cuMemRelease")
]


@pytest.mark.parametrize("act", OPERATIONS)
def test_the_driver_calls_of_each(sim, act):
    scene = Scene()
    assert calls_of(sim, act, scene) == OPERATIONS[act]
    scene.close()


@pytest.mark.parametrize(("act", "call", "nth"), SINGLE)
def test_one_failing_call_changes_nothing_and_loses_no_byte(sim, act, call, nth):
    with primary_context():
        scene = Scene()
        scene.fill()
        before, alive, counts = scene.state(), sim.live(), live()
        sim.reset()
        sim.fail(call, nth=nth)
        with pytest.raises(CudaDriverError, match=f"^{call}: CUDA_ERROR_UNKNOWN ") as raised:
            act(scene)
        assert not hasattr(raised.value, "__notes__")
        assert (scene.state(), sim.live(), live()) == (before, alive, counts)
        assert scene.is_filled()
        assert calls_of(sim, act, scene) == OPERATIONS[act]
        scene.close()


FAILING_BACK = [
    pytest.param(*case.values, also, id=f"{case.id}-{also}")
    for case in SINGLE
    for also in (("cuMemUnmap",) if case.values[0] is commit else WAY_BACK)
]


@pytest.mark.parametrize(("act", "call", "nth", "also"), FAILING_BACK)
def test_a_failing_way_back_leaves_all_on_record(sim, act, call, nth, also):
    scene = Scene()
    sim.reset()
    sim.fail(call, nth=nth)
    sim.fail(also, nth=nth + 1 if also == call else 1, times=100)
    with pytest.raises(CudaDriverError, match=f"^{call}: "):
        act(scene)
    alive, counts = sim.live(), live()
    assert counts["mappings"] == alive["mappings"]
    assert counts["handles"] + counts["pooled_handles"] == alive["handles"] - 1  # the test's own
    sim.reset()
    scene.close()
    assert scene.plain.closed
    assert scene.pooled.closed
    assert scene.pool.closed


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_release_behind_the_last_unmap_is_tried_twice_and_then_stays_on_record(sim, nth):
    scene = Scene()
    sim.fail("cuMemRelease", nth=nth)
    assert decommit(scene) == 7 * G
    sim.reset()
    scene.close()
    scene = Scene()
    sim.fail("cuMemRelease", nth=nth, times=2)
    with pytest.raises(CudaDriverError, match="^cuMemRelease: "):
        decommit(scene)
    assert live()["handles"] == sim.live()["handles"] - live()["pooled_handles"] - 1
    assert scene.plain.mapped_bytes == scene.pooled.mapped_bytes == G
    with pytest.raises(RuntimeError, match=r"^VmmReservation\.decommit: an earlier failure left"):
        decommit(scene)
    sim.reset()
    scene.close()


# ---- refusals


@pytest.mark.parametrize(("wrong", "error"), [("x", TypeError), (0, ValueError), (-1, ValueError)])
def test_a_bad_chunk_is_refused_also_where_there_are_no_ranges(wrong, error):
    with pytest.raises(error, match="^chunk_bytes must "):
        commit_many([], chunk_bytes=wrong)


def test_a_chunk_size_is_asked_for_once():
    class Fickle:
        answers = iter([G, 4 * G])

        def __index__(self):
            return next(self.answers)

    with VmmReservation(4 * G, device_id=0) as reservation:
        commit_many([(reservation, 0, 2 * G), (reservation, 2 * G, 2 * G)], chunk_bytes=Fickle())
        assert [mapping.size_bytes for mapping in reservation.mappings] == [G] * 4


@pytest.mark.parametrize("act", [commit_many, decommit_many])
def test_bad_ranges_are_refused_before_anything_is_done(sim, pair, act):
    first, second = pair
    first.commit(0, G)
    good = (first, 0, 2 * G)
    for bad, error, text in (
        (
            3,
            TypeError,
            r"^ranges must be an iterable of \(reservation, offset, size\) ranges, not int 3$",
        ),
        ([good, (first, 0)], TypeError, r"^range 1 must be \(reservation, offset, size\), not"),
        ([good, 7], TypeError, "^range 1 must be .*, not 7$"),
        ([(None, 0, G)], TypeError, "^range 0 must begin with a VmmReservation, not NoneType$"),
        ([good, (VmmReservation.__new__(VmmReservation), 0, G)], RuntimeError, "was never made"),
        ([good, (second, 0.0, G)], TypeError, "^offset must be an integer"),
        ([good, [first, 0, 2.0 * G]], TypeError, "^size must be an integer"),
        ([good, (second, 15 * G, 2 * G)], ValueError, "is outside reservation"),
        ([good, (second, -1, G)], ValueError, "is outside reservation"),
    ):
        sim.reset()
        with pytest.raises(error, match=text) as raised:
            act(bad)
        if not text.startswith("^range"):
            assert raised.value.__notes__ == ["range 1 of the batch"]
        assert sim.calls() == {}
    second.close()
    with pytest.raises(RuntimeError, match=r"^VmmReservation\.\w+ after close"):
        act([good, (second, 0, G)])
    assert places(first) == [(0, 1)]


def test_a_pool_that_is_closed_or_cut_otherwise_refuses_the_whole(sim, pair):
    first, _ = pair
    pool = HandlePool(0, chunk_bytes=2 * G, capacity_bytes=8 * G)
    with VmmReservation(8 * G, pool=pool) as pooled:
        with pytest.raises(ValueError, match="^chunk_bytes .* is not that of the"):
            commit_many([(first, 0, G), (pooled, 0, 4 * G)], chunk_bytes=G)
        pool.close()
        with pytest.raises(RuntimeError, match="^commit_many: the reservation's HandlePool is clo"):
            commit_many([(first, 0, G), (pooled, 0, 4 * G)])
        assert (first.mappings, pooled.mappings) == ((), ())


# ---- many threads


def test_opposite_orders_do_not_lock_each_other_out(pair):
    first, second = pair
    there = [(first, 0, 8 * G), (second, 0, 8 * G)]
    errors = []

    def work(ranges):
        try:
            for _ in range(150):
                commit_many(ranges, chunk_bytes=2 * G)
                decommit_many(ranges)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(there[::step],)) for step in (1, -1, 1, -1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    decommit_many(there)
    assert (first.mappings, second.mappings) == ((), ())
