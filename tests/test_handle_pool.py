"""Pools of handles: what comes from one, what goes back, what it costs, and who may have it."""

import gc
import random
import threading

import pytest
from conformance.steps import G, must
from cuda.bindings import driver
from reservation_help import fill, holds, places, primary_context, refused, run_python
from stream_help import NON_BLOCKING, capturing

import vmmcy
from vmmcy import HandlePool, VmmReservation, live
from vmmcy.errors import CudaOutOfMemoryError

CHUNK = 2 * G


@pytest.fixture
def pool():
    with HandlePool(0, chunk_bytes=CHUNK, capacity_bytes=8 * CHUNK) as pool:
        yield pool


def reservation_of(pool, chunks=8):
    return VmmReservation(chunks * CHUNK, pool=pool)


def calls_of(sim, act, *arguments):
    sim.reset()
    act(*arguments)
    return sim.calls()


# ---- what it costs


def test_a_warm_pool_makes_a_commit_map_and_set_access_and_a_decommit_one_unmap(sim, pool):
    with reservation_of(pool) as reservation:
        pool.prefill(4 * CHUNK)
        assert calls_of(sim, reservation.commit, 0, 4 * CHUNK) == {
            "cuMemMap": 4,
            "cuMemSetAccess": 1,
        }
        assert pool.pooled_handles == 0
        assert calls_of(sim, reservation.decommit, 0, 4 * CHUNK) == {"cuMemUnmap": 1}
        assert (pool.pooled_handles, pool.pooled_bytes) == (4, 4 * CHUNK)


def test_a_cold_pool_makes_what_it_lacks_and_keeps_it(sim, pool):
    with reservation_of(pool) as reservation:
        pool.prefill(CHUNK)
        assert calls_of(sim, reservation.commit, 0, 3 * CHUNK) == {
            "cuMemCreate": 2,
            "cuMemMap": 3,
            "cuMemSetAccess": 1,
        }
        reservation.decommit(0, 3 * CHUNK)
        assert pool.pooled_handles == 3


def test_prefill_makes_what_is_missing(sim, pool):
    assert calls_of(sim, pool.prefill, 3 * CHUNK) == {"cuMemCreate": 3}
    assert pool.prefill(3 * CHUNK) == 0
    assert pool.prefill(3 * CHUNK + 1) == CHUNK
    assert pool.pooled_handles == 4
    assert pool.prefill(0) == 0


def test_trim_releases_down_to_what_may_stay(sim, pool):
    pool.prefill(5 * CHUNK)
    assert calls_of(sim, lambda: pool.trim(2 * CHUNK + G)) == {"cuMemRelease": 3}
    assert pool.pooled_handles == 2
    assert pool.trim(5 * CHUNK) == 0
    assert pool.trim() == 2 * CHUNK
    assert pool.pooled_handles == 0


def test_a_cycle_of_pool_and_reservation_is_undone_in_order(sim):
    pool = HandlePool(0, chunk_bytes=CHUNK, capacity_bytes=CHUNK)
    reservation = reservation_of(pool)
    reservation.commit(0, 2 * CHUNK)
    assert gc.get_referents(reservation._core) == []  # or the collector takes its pool first
    cycle = [reservation, pool]
    cycle.append(cycle)
    del reservation, pool, cycle
    with pytest.warns(ResourceWarning, match="dropped without close"):
        gc.collect()
    assert not any(sim.live().values())


# ---- what comes from it, and what goes back


def test_holes_are_cut_into_chunks_and_a_smaller_tail_is_made_as_usual(sim, pool):
    pool.prefill(8 * CHUNK)
    with VmmReservation(12 * G, pool=pool) as reservation:
        reservation.map(4 * G, G)
        assert calls_of(sim, reservation.commit, 0, 12 * G) == {
            "cuMemCreate": 1,
            "cuMemMap": 6,
            "cuMemSetAccess": 2,
            "cuMemRelease": 1,
        }
        assert places(reservation) == [(0, 2), (2, 2), (4, 1), (5, 2), (7, 2), (9, 2), (11, 1)]
        assert reservation.decommit(0, 12 * G) == 12 * G
    assert pool.pooled_handles == 8


def test_what_is_above_the_capacity_is_released(sim):
    with (
        HandlePool(0, chunk_bytes=CHUNK, capacity_bytes=3 * CHUNK - 1) as pool,
        reservation_of(pool) as reservation,
    ):
        reservation.commit(0, 5 * CHUNK)
        assert calls_of(sim, reservation.decommit, 0, 5 * CHUNK) == {
            "cuMemUnmap": 1,
            "cuMemRelease": 3,
        }
        assert pool.pooled_handles == 2


@pytest.mark.parametrize("end", ["unmap", "close"])
def test_unmap_and_close_put_back_too(pool, end):
    reservation = reservation_of(pool)
    reservation.commit(0, 3 * CHUNK)
    if end == "unmap":
        reservation.unmap(0, 3 * CHUNK, release_handles=False)
    reservation.close(release_handles=False)
    assert pool.pooled_handles == 3


def test_a_handle_that_the_caller_was_given_never_goes_to_the_pool(pool):
    with reservation_of(pool) as reservation:
        assert reservation.map(0, CHUNK, retain_handle=True) is not None
        reservation.map(CHUNK, CHUNK)
        reservation.commit(0, 3 * CHUNK)
        assert [(m.handle is None, m.owned) for m in reservation.mappings] == [
            (False, True),
            (True, False),
            (True, False),
        ]
        reservation.decommit(0, 3 * CHUNK)
    assert pool.pooled_handles == 1


def test_the_pool_gives_device_and_properties_and_lives_as_long():
    prop = vmmcy.make_device_allocation_prop(0, handle_types=None)
    pool = HandlePool(prop=prop, chunk_bytes=CHUNK, capacity_bytes=CHUNK)
    reservation = VmmReservation(4 * CHUNK, prop, 0, pool=pool)
    assert reservation.pool is pool
    assert reservation.device_id == pool.device_id == 0
    reservation.commit(0, CHUNK)
    del pool
    gc.collect()
    reservation.decommit(0, CHUNK)
    assert reservation.pool.pooled_handles == 1
    reservation.pool.close()
    reservation.close()


def test_bytes_live_on_over_decommit_and_commit_without_scrub(pool):
    with primary_context(), reservation_of(pool) as reservation:
        reservation.commit(0, CHUNK)
        fill(reservation.base, CHUNK, 0x5A)
        reservation.decommit(0, CHUNK)
        reservation.commit(CHUNK, CHUNK)
        assert holds(reservation.base + CHUNK, CHUNK, 0x5A)


def test_memory_comes_back_in_the_order_in_which_it_was(pool):
    places = [k * CHUNK for k in range(4)]
    with reservation_of(pool) as reservation, primary_context():
        pool.prefill(4 * CHUNK)
        reservation.commit(0, 4 * CHUNK)
        for number, place in enumerate(places):
            fill(reservation.base + place, CHUNK, number)
        reservation.decommit(0, 4 * CHUNK)
        reservation.commit(0, 4 * CHUNK)
        for number, place in enumerate(places):
            assert holds(reservation.base + place, CHUNK, number)


def test_what_is_made_first_is_used_first(sim, pool):
    pool.prefill(4 * CHUNK)
    with reservation_of(pool) as reservation, primary_context():
        reservation.commit(0, 4 * CHUNK)
        handles = [
            int(must(driver.cuMemRetainAllocationHandle(reservation.base + k * CHUNK)))
            for k in range(4)
        ]
        for handle in handles:
            must(driver.cuMemRelease(handle))
    assert handles == sorted(handles)  # the simulator counts them up


# ---- the ledger


def test_the_ledger_tells_used_from_unused(pool):
    pool.prefill(2 * CHUNK)
    assert (live()["handles"], live()["pooled_handles"]) == (0, 2)
    with reservation_of(pool) as reservation:
        reservation.commit(0, 3 * CHUNK)
        assert (live(0)["handles"], live(0)["pooled_handles"]) == (3, 0)
        reservation.decommit(0, CHUNK)
        assert (live(0)["handles"], live(0)["pooled_handles"]) == (2, 1)
    assert (live()["handles"], live()["pooled_handles"]) == (0, 3)


# ---- another owner


def test_scrub_wipes_what_another_reservation_left(sim):
    with (
        primary_context(),
        HandlePool(0, chunk_bytes=CHUNK, capacity_bytes=8 * CHUNK, scrub=True) as pool,
        reservation_of(pool) as first,
        reservation_of(pool) as second,
    ):
        first.commit(0, 2 * CHUNK)
        fill(first.base, 2 * CHUNK, 0xA5)
        first.decommit(0, 2 * CHUNK)
        assert "cuMemsetD8Async" not in calls_of(sim, first.commit, 0, CHUNK)
        assert holds(first.base, CHUNK, 0xA5)
        first.decommit(0, CHUNK)
        assert calls_of(sim, second.commit, 0, 3 * CHUNK) == {
            "cuMemCreate": 1,
            "cuMemMap": 3,
            "cuMemSetAccess": 1,
            "cuCtxPushCurrent": 1,
            "cuThreadExchangeStreamCaptureMode": 2,
            "cuMemsetD8Async": 2,
            "cuStreamSynchronize": 1,
            "cuCtxPopCurrent": 1,
        }
        assert holds(second.base, 2 * CHUNK, 0)


def test_scrub_wipes_for_a_reservation_at_the_place_of_one_that_is_gone():
    with (
        primary_context(),
        HandlePool(0, chunk_bytes=CHUNK, capacity_bytes=CHUNK, scrub=True) as pool,
    ):
        for value in (1, 2, 3):
            with reservation_of(pool, 1) as reservation:
                reservation.commit(0, CHUNK)
                assert holds(reservation.base, CHUNK, 0)
                fill(reservation.base, CHUNK, value)


def test_wiping_leaves_a_capture_valid():
    with (
        primary_context(),
        HandlePool(0, chunk_bytes=CHUNK, capacity_bytes=CHUNK, scrub=True) as pool,
        reservation_of(pool) as first,
        reservation_of(pool) as second,
    ):
        first.commit(0, CHUNK)
        fill(first.base, CHUNK, 0xEE)
        first.decommit(0, CHUNK)
        stream = must(driver.cuStreamCreate(NON_BLOCKING))
        with capturing(stream) as capture:
            second.commit(0, CHUNK)
        assert capture.status == driver.CUresult.CUDA_SUCCESS
        assert holds(second.base, CHUNK, 0)
        must(driver.cuStreamDestroy(stream))


# ---- out of memory


@pytest.fixture
def small_device(sim):
    sim.load(memory_bytes=16 * G)
    yield
    sim.load()


@pytest.mark.usefixtures("small_device")
def test_memory_that_pools_keep_is_given_up_where_it_runs_out(sim, pool):
    with HandlePool(0, chunk_bytes=G, capacity_bytes=16 * G) as other:
        pool.prefill(4 * CHUNK)
        other.prefill(6 * G)
        with VmmReservation(32 * G) as reservation:
            assert calls_of(sim, reservation.map, 0, 8 * G) == {
                "cuMemCreate": 2,
                "cuMemRelease": 4 + 6 + 1,
                "cuMemMap": 1,
                "cuMemSetAccess": 1,
            }
            assert pool.pooled_handles == other.pooled_handles == 0
            sim.reset()
            with pytest.raises(CudaOutOfMemoryError):
                reservation.map(8 * G, 9 * G)
            assert sim.calls()["cuMemCreate"] == 1
            assert places(reservation) == [(0, 8)]


@pytest.mark.usefixtures("small_device")
def test_prefill_takes_from_other_pools_and_spares_its_own(pool):
    with HandlePool(0, chunk_bytes=G, capacity_bytes=16 * G) as other:
        other.prefill(8 * G)
        pool.prefill(2 * CHUNK)
        assert pool.prefill(8 * CHUNK) == 6 * CHUNK
        assert other.pooled_handles == 0
        assert other.prefill(16 * G) == 16 * G
        assert pool.pooled_handles == 0
        with VmmReservation(CHUNK, pool=other) as reservation:
            reservation.commit(0, CHUNK)
            with pytest.raises(CudaOutOfMemoryError):
                pool.prefill(8 * CHUNK)
        assert (pool.pooled_handles, other.pooled_handles) == (0, 2)


@pytest.mark.usefixtures("small_device")
def test_a_commit_that_runs_out_half_way_leaves_nothing_made(sim, pool):
    with VmmReservation(32 * G, pool=pool) as reservation:
        pool.prefill(2 * CHUNK)
        with pytest.raises(CudaOutOfMemoryError):
            reservation.commit(0, 10 * CHUNK)
        assert (reservation.mappings, pool.pooled_handles) == ((), 2)
        assert sim.live()["handles"] == 2
        assert reservation.commit(0, 8 * CHUNK) == 8 * CHUNK


# ---- refusals


def test_a_pool_in_use_is_not_closed(pool):
    with reservation_of(pool) as reservation:
        reservation.commit(0, 3 * CHUNK)
        reservation.decommit(0, CHUNK)
        with pytest.raises(
            RuntimeError, match=r"^HandlePool\.close: 2 of its handles are in use; "
        ):
            pool.close()
        assert (pool.closed, pool.pooled_handles) == (False, 1)
        reservation.commit(0, CHUNK)
    pool.close()
    assert pool.closed


def test_a_closed_pool_serves_nobody():
    pool = HandlePool(0, chunk_bytes=CHUNK, capacity_bytes=CHUNK)
    with reservation_of(pool) as reservation:
        pool.prefill(CHUNK)
        pool.close()
        pool.close()
        assert (pool.pooled_handles, repr(pool)) == (
            0,
            f"<HandlePool of chunks of {CHUNK} bytes, device 0, closed>",
        )
        with pytest.raises(RuntimeError, match=r"commit: the reservation's HandlePool is closed$"):
            reservation.commit(0, CHUNK)
        assert reservation.mappings == ()
        for act in (lambda: pool.prefill(0), pool.trim, pool.__enter__):
            with pytest.raises(RuntimeError, match=r"^HandlePool\.\w+ after close$"):
                act()
        reservation.map(0, CHUNK)
    with pytest.raises(RuntimeError, match="^VmmReservation: the pool is closed$"):
        reservation_of(pool)


def test_what_contradicts_the_pool_is_refused(pool):
    other = vmmcy.make_device_allocation_prop(0, handle_types=None)
    for arguments, error, text in (
        ({"device_id": 1}, ValueError, "^device_id is 1, but the pool's is 0$"),
        ({"prop": other}, ValueError, "^prop is not that of the pool"),
        ({"pool": 3}, TypeError, "^pool must be a HandlePool, not int$"),
    ):
        with pytest.raises(error, match=text):
            VmmReservation(CHUNK, **{"pool": pool, **arguments})
    with reservation_of(pool) as reservation:
        with refused(f"chunk_bytes {G} is not that of the reservation's HandlePool, {CHUNK}"):
            reservation.commit(0, CHUNK, chunk_bytes=G)
        assert reservation.commit(0, CHUNK, chunk_bytes=CHUNK) == CHUNK


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (
            {"chunk_bytes": G + 1},
            ValueError,
            "^chunk_bytes .* is not a multiple of the granularity",
        ),
        ({"chunk_bytes": 0}, ValueError, "^chunk_bytes must be at least 1, got 0$"),
        ({"chunk_bytes": 2.0 * G}, TypeError, "^chunk_bytes must be an integer"),
        ({"capacity_bytes": G}, ValueError, "^capacity_bytes .* holds no chunk of"),
        ({"capacity_bytes": -1}, ValueError, "^capacity_bytes must not be negative, got -1$"),
        ({"device_id": 99}, ValueError, "^device_id 99 is not a visible device"),
        ({"prop": 3}, TypeError, "^prop must be a"),
    ],
)
def test_a_bad_argument_is_refused(arguments, error, text):
    with pytest.raises(error, match=text):
        HandlePool(**{"device_id": 0, "chunk_bytes": CHUNK, "capacity_bytes": CHUNK, **arguments})
    gc.collect()


def test_a_bad_amount_is_refused(pool):
    for act in (pool.prefill, pool.trim):
        with pytest.raises(TypeError, match="_bytes must be an integer"):
            act(1.0)
        with pytest.raises(ValueError, match="_bytes must not be negative, got -1$"):
            act(-1)
    with pytest.raises(ValueError, match="is more than the pool's capacity"):
        pool.prefill(8 * CHUNK + 1)
    assert pool.pooled_handles == 0


# ---- ends that nobody planned


def test_dropping_an_open_pool_warns_and_releases():
    pool = HandlePool(0, chunk_bytes=CHUNK, capacity_bytes=CHUNK, scrub=True)
    pool.prefill(CHUNK)
    with pytest.warns(ResourceWarning, match=r"^<HandlePool of chunks of .* 1 wait for use> was"):
        del pool


LOST = """
import gc, warnings
from vmmcy import HandlePool, VmmReservation, live, sim
pool = HandlePool(0, chunk_bytes={chunk}, capacity_bytes=8 * {chunk})
reservation = VmmReservation(4 * {chunk}, pool=pool)
reservation.commit(0, {chunk})
sim.fail("cuMemUnmap", times=2)
with warnings.catch_warnings(action="ignore"):
    del reservation
    gc.collect()
pool.prefill(4 * {chunk})
{end}
print(live()["pooled_handles"], live()["mappings"])
"""


@pytest.mark.parametrize("end", ["pool.close()", "del pool; gc.collect()"])
def test_what_a_dropped_reservation_has_lost_keeps_no_pool_from_closing(sim, end):
    seen = run_python(LOST.format(chunk=G, end=end))
    assert (seen.returncode, seen.stdout) == (0, "0 1\n"), seen.stderr


def test_a_pool_is_made_once_and_never_copied(pool):
    with pytest.raises(RuntimeError, match="made: make another$"):
        pool.__init__(0, chunk_bytes=CHUNK, capacity_bytes=CHUNK)
    with pytest.raises(TypeError, match="^a HandlePool cannot be copied"):
        pool.__reduce__()


def test_a_forked_child_is_refused_and_touches_nothing():
    ended = run_python(
        f"""
import os, sys, vmmcy
pool = vmmcy.HandlePool(0, chunk_bytes={G}, capacity_bytes={4 * G}, scrub=True)
reservation = vmmcy.VmmReservation({4 * G}, pool=pool)
reservation.commit(0, {G})
pool.prefill({G})
pid = os.fork()
if pid == 0:
    assert "parent process" in repr(pool) and not pool.closed
    for name in ("prefill", "trim", "close"):
        try:
            getattr(pool, name)(*([0] if name == "prefill" else []))
        except RuntimeError as error:
            assert str(error).startswith(f"HandlePool.{{name}}: the pool was made before"), error
        else:
            raise AssertionError(name)
    del reservation, pool
    sys.exit(any(vmmcy.live().values()))
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
reservation.close()
assert pool.pooled_handles == 2
pool.close()
""",
        "-W",
        "ignore::DeprecationWarning",
    )
    assert (ended.returncode, ended.stderr) == (0, "")


# ---- many threads


@pytest.fixture
def middling_device(sim):
    """Too little for all threads and what the pool may keep, enough for all threads."""
    sim.load(memory_bytes=56 * G)
    yield
    sim.load()


@pytest.mark.usefixtures("middling_device")
def test_threads_share_a_pool_lose_nothing_and_never_see_anothers_bytes(sim):
    with HandlePool(0, chunk_bytes=G, capacity_bytes=24 * G, scrub=True) as pool:
        errors = []

        def work(own):
            chance = random.Random(own)
            try:
                with primary_context(), VmmReservation(8 * G, pool=pool) as reservation:
                    for _ in range(30):
                        reservation.commit(0, 8 * G)
                        for granule in range(8):
                            start = reservation.base + granule * G
                            assert holds(start, 4096, own) or holds(start, 4096, 0)
                        fill(reservation.base, 8 * G, own)
                        reservation.decommit(chance.randrange(4) * G, chance.randint(1, 4) * G)
                        if chance.random() < 0.1:
                            pool.trim(4 * G)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(own,)) for own in range(1, 7)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert live()["handles"] == 0
        assert live()["pooled_handles"] == sim.live()["handles"] == pool.pooled_handles
