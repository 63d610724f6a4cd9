"""Every driver call of every operation on a pool fails once, also on the way back."""

from dataclasses import dataclass
from typing import Any

import pytest
from arena_help import c_functions
from conformance.steps import G
from cuda.bindings import driver
from reservation_help import fill, holds, places, primary_context

from vmmcy import BackedSegments, HandlePool, VmmReservation, live
from vmmcy.errors import CudaDriverError

CHUNK = 2 * G
GLOBAL = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
WAY_BACK = ("cuMemUnmap", "cuMemRelease", "cuCtxPopCurrent", "cuThreadExchangeStreamCaptureMode")


@dataclass
class Scene:
    """A pool with two chunks of another owner's, and a reservation with a chunk of it mapped."""

    pool: HandlePool
    reservation: VmmReservation

    def state(self):
        return self.reservation.mappings, self.pool.pooled_handles

    def close(self):
        self.reservation.close()
        self.pool.close()


def make_scene(scrub=True, capacity=4) -> Scene:
    pool = HandlePool(0, chunk_bytes=CHUNK, capacity_bytes=capacity * CHUNK, scrub=scrub)
    with VmmReservation(2 * CHUNK, pool=pool) as other:
        other.commit(0, 2 * CHUNK)
    reservation = VmmReservation(12 * G, pool=pool)
    reservation.commit(0, CHUNK)
    pool.prefill(2 * CHUNK)
    with VmmReservation(2 * CHUNK, pool=pool) as other:
        other.commit(0, 2 * CHUNK)
    return Scene(pool, reservation)


@dataclass
class Operation:
    """What to do in a scene, and the driver calls that it makes."""

    act: Any
    calls: dict[str, int]
    scrub: bool = True


WIPED = {
    "cuCtxPushCurrent": 1,
    "cuThreadExchangeStreamCaptureMode": 2,
    "cuMemsetD8Async": 2,
    "cuStreamSynchronize": 1,
    "cuCtxPopCurrent": 1,
}
COMMITTED = {"cuMemCreate": 3, "cuMemMap": 5, "cuMemSetAccess": 2, "cuMemRelease": 1}


def commit(scene):
    """Granule 4 is in the way: two chunks of the pool, two made, and a tail."""
    scene.reservation.commit(0, 12 * G)


OPERATIONS = {
    "commit": Operation(commit, {**COMMITTED, **WIPED}),
    "commit-unscrubbed": Operation(commit, COMMITTED, scrub=False),
    "decommit": Operation(lambda s: s.reservation.decommit(0, 12 * G), {"cuMemUnmap": 1}),
    "unmap": Operation(lambda s: s.reservation.unmap(0, CHUNK), {"cuMemUnmap": 1}),
    "prefill": Operation(lambda s: s.pool.prefill(4 * CHUNK), {"cuMemCreate": 2}),
}
SINGLE = [
    pytest.param(operation, call, nth, id=f"{name}-{call}-{nth}")
    for name, operation in OPERATIONS.items()
    for call, count in operation.calls.items()
    for nth in range(1, count + 1)
]


def scene_for(operation):
    scene = make_scene(operation.scrub)
    if "cuMemMap" in operation.calls:
        scene.reservation.map(4 * G, G)
    return scene


def calls_of(sim, act, *arguments):
    sim.reset()
    act(*arguments)
    return sim.calls()


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_driver_calls_of_each_operation(sim, name):
    scene = scene_for(OPERATIONS[name])
    assert calls_of(sim, OPERATIONS[name].act, scene) == OPERATIONS[name].calls
    scene.close()


@pytest.mark.parametrize(("operation", "call", "nth"), SINGLE)
def test_one_failing_call_changes_nothing(sim, operation, call, nth):
    scene = scene_for(operation)
    before, alive, counts = scene.state(), sim.live(), live()
    sim.reset()
    sim.fail(call, nth=nth)
    with pytest.raises(CudaDriverError, match=f"^{call}: CUDA_ERROR_UNKNOWN ") as raised:
        operation.act(scene)
    assert not hasattr(raised.value, "__notes__")
    assert (scene.state(), sim.live(), live()) == (before, alive, counts)
    assert calls_of(sim, operation.act, scene) == operation.calls
    scene.close()


@pytest.mark.parametrize(("operation", "call", "nth"), SINGLE)
def test_a_way_back_that_fails_throughout_leaves_all_on_record(sim, operation, call, nth):
    scene = scene_for(operation)
    sim.reset()
    sim.fail(call, nth=nth)
    for name in WAY_BACK:
        before = operation.calls.get(name, 0) if name in WIPED else 0
        sim.fail(name, nth=1 + (nth if name == call else before), times=100)
    with pytest.raises(CudaDriverError, match=f"^{call}: "):
        operation.act(scene)
    alive, counts = sim.live(), live()
    assert counts["mappings"] == alive["mappings"]
    assert counts["handles"] + counts["pooled_handles"] == alive["handles"]
    sim.reset()
    leave_the_thread_as_it_was()
    scene.close()
    assert scene.reservation.closed
    assert scene.pool.closed


def leave_the_thread_as_it_was():
    if int(driver.cuCtxGetCurrent()[1]) != 0:
        driver.cuCtxPopCurrent()
    driver.cuThreadExchangeStreamCaptureMode(GLOBAL)


@pytest.mark.parametrize("status", ["CUDA_ERROR_UNKNOWN", "CUDA_ERROR_NOT_FOUND"])
def test_a_wipe_that_fails_leaves_the_bytes_to_be_wiped_by_the_next(sim, status):
    with primary_context():
        pool = HandlePool(0, chunk_bytes=CHUNK, capacity_bytes=CHUNK, scrub=True)
        with (
            VmmReservation(CHUNK, pool=pool) as first,
            VmmReservation(CHUNK, pool=pool) as second,
        ):
            first.commit(0, CHUNK)
            fill(first.base, CHUNK, 0x77)
            first.decommit(0, CHUNK)
            for call in ("cuMemsetD8Async", "cuStreamSynchronize"):
                sim.fail(call, status=status)
                with pytest.raises(CudaDriverError, match=f"^{call}: {status}"):
                    second.commit(0, CHUNK)
                assert pool.pooled_handles == 1
            second.commit(0, CHUNK)
            assert holds(second.base, CHUNK, 0)
        pool.close()


@pytest.mark.parametrize("nth", [1, 2])
def test_wiping_leaves_the_context_and_the_capture_mode_also_where_they_stick(sim, nth):
    scene = make_scene()
    for call in ("cuCtxPopCurrent", "cuThreadExchangeStreamCaptureMode"):
        sim.fail(call, nth=nth if call != "cuCtxPopCurrent" else 1)
        with pytest.raises(CudaDriverError, match=f"^{call}: "):
            scene.reservation.commit(0, 12 * G)
        sim.reset()
        assert int(driver.cuCtxGetCurrent()[1]) == 0
        assert driver.cuThreadExchangeStreamCaptureMode(GLOBAL)[1] == GLOBAL
    scene.close()


def test_a_release_that_fails_keeps_the_handle_in_the_pool(sim):
    scene = make_scene(capacity=2)
    sim.fail("cuMemRelease")
    assert scene.reservation.decommit(0, 12 * G) == CHUNK  # the third where two may wait
    assert scene.pool.pooled_handles == live()["pooled_handles"] == sim.live()["handles"] == 3
    assert scene.pool.trim(2 * CHUNK) == CHUNK
    sim.fail("cuMemRelease", nth=2)
    with pytest.raises(CudaDriverError, match="^cuMemRelease: "):
        scene.pool.trim()
    assert scene.pool.pooled_handles == live()["pooled_handles"] == sim.live()["handles"] == 1
    scene.close()


def test_a_prefill_whose_releases_fail_keeps_what_it_made(sim):
    scene = make_scene()
    sim.fail("cuMemCreate", nth=2)
    sim.fail("cuMemRelease")
    with pytest.raises(CudaDriverError, match="^cuMemCreate: ") as raised:
        scene.pool.prefill(4 * CHUNK)
    assert [note[:31] for note in raised.value.__notes__] == [
        "on the way back: cuMemRelease: C"[:31]
    ]
    assert scene.pool.pooled_handles == live()["pooled_handles"] == 3
    scene.close()


@pytest.mark.parametrize(
    ("call", "nth"), [("cuMemRelease", 1), ("cuMemRelease", 2), ("cuStreamDestroy", 1)]
)
def test_a_close_that_fails_is_finished_by_the_next(sim, call, nth):
    scene = make_scene()
    scene.reservation.close()
    sim.reset()
    sim.fail(call, nth=nth)
    with pytest.raises(CudaDriverError, match=f"^{call}: "):
        scene.pool.close()
    assert not scene.pool.closed
    assert repr(scene.pool).endswith(", only close is left>")
    for act in (lambda: scene.pool.prefill(0), scene.pool.trim):
        with pytest.raises(RuntimeError, match="an earlier failure left what only close"):
            act()
    with pytest.raises(RuntimeError, match="^VmmReservation: the pool is closed$"):
        VmmReservation(CHUNK, pool=scene.pool)
    scene.pool.close()
    assert scene.pool.closed


@pytest.mark.parametrize("call", ["cuMemRelease", "cuStreamDestroy"])
def test_dropping_tries_once_more_what_fails(sim, call):
    scene = make_scene()
    scene.reservation.close()
    sim.fail(call)
    with pytest.warns(ResourceWarning, match="was dropped without close"):
        del scene


@pytest.mark.parametrize(
    "call",
    ["cuCtxPushCurrent", "cuStreamCreate", "cuCtxPopCurrent", "cuMemGetAllocationGranularity"],
)
def test_a_pool_that_cannot_be_made_leaves_nothing(sim, call):
    make_scene().close()
    sim.reset()
    sim.fail(call)
    with pytest.raises(CudaDriverError, match=f"^{call}: "):
        HandlePool(0, chunk_bytes=CHUNK, capacity_bytes=CHUNK, scrub=True)


def pinned(scene):
    with BackedSegments(4 * G, device_id=0) as segments:
        malloc, free = c_functions(segments.entry_points)
        address = malloc(G)
        try:
            segments.pause([(address, G)])
        finally:
            free(address, G)


GETTING_MEMORY = {
    "cuMemCreate": lambda scene: scene.reservation.map(4 * G, G),
    "cuMemMap": lambda scene: scene.reservation.map(4 * G, G),
    "cuMemSetAccess": lambda scene: scene.reservation.map(4 * G, G),
    "cuMemAddressReserve": lambda scene: VmmReservation(G).close(),
    "cuMemHostAlloc": pinned,
}


@pytest.mark.parametrize(("call", "act"), GETTING_MEMORY.items(), ids=GETTING_MEMORY)
def test_pools_give_up_what_they_keep_where_a_call_finds_no_memory(sim, call, act):
    scene = make_scene()
    sim.reset()
    assert scene.pool.pooled_handles == 2
    sim.fail(call, status="CUDA_ERROR_OUT_OF_MEMORY")
    act(scene)
    assert scene.pool.pooled_handles == 0
    assert sim.calls()[call] == 2
    scene.close()


@pytest.mark.parametrize(("call", "act"), GETTING_MEMORY.items(), ids=GETTING_MEMORY)
def test_what_is_no_lack_of_memory_leaves_the_pools_alone(sim, call, act):
    scene = make_scene()
    sim.fail(call, status="CUDA_ERROR_NOT_PERMITTED")
    with pytest.raises(CudaDriverError, match=f"^{call}: CUDA_ERROR_NOT_PERMITTED"):
        act(scene)
    assert scene.pool.pooled_handles == 2
    scene.close()


@pytest.mark.parametrize(("releases", "creates"), [(0, 2), (2, 1)])
def test_out_of_memory_tries_again_only_where_something_was_released(sim, releases, creates):
    """Two chunks wait; either both releases succeed, or none does."""
    scene = make_scene()
    sim.reset()
    sim.fail("cuMemCreate", status="CUDA_ERROR_OUT_OF_MEMORY")
    if releases:
        sim.fail("cuMemRelease", times=releases)
        with pytest.raises(CudaDriverError, match="^cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY"):
            scene.reservation.map(4 * G, G)
        assert (places(scene.reservation), scene.pool.pooled_handles) == ([(0, 2)], 2)
    else:
        scene.reservation.map(4 * G, G)
        assert (places(scene.reservation), scene.pool.pooled_handles) == ([(0, 2), (4, 1)], 0)
    assert sim.calls()["cuMemCreate"] == creates
    sim.reset()
    scene.close()
