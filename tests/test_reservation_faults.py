"""Every driver call of every operation fails once, also on the way back.

`OPERATIONS` pins how many calls of each kind an operation makes; the sweeps then fail
each one of them.
"""

from dataclasses import dataclass, field
from typing import Any

import pytest
from conformance.steps import G
from conformance.steps import must as driver_must
from cuda.bindings import driver
from reservation_help import foreign_handle, is_alive, places, release
from test_reservation import CHANGING

from vmmcy.errors import CudaDriverError, CudaOutOfMemoryError
from vmmcy.reservation import VmmReservation

WAY_BACK = ("cuMemUnmap", "cuMemRelease", "cuMemRetainAllocationHandle")
UNKNOWN = "CUDA_ERROR_UNKNOWN (unknown error)"


@dataclass
class Scene:
    """A reservation of 12 granules, laid out for any of the operations."""

    reservation: VmmReservation
    existing: int
    retained: list[int] = field(default_factory=list)

    def close(self):
        self.reservation.close()
        release(self.existing)


def make_scene() -> Scene:
    """Granules 3 and 8 to 10 are mapped: plain, then retained, retained, existing."""
    scene = Scene(VmmReservation(12 * G, device_id=0), foreign_handle())
    reservation = scene.reservation
    reservation.map(3 * G, G)
    scene.retained = [reservation.map(k * G, G, retain_handle=True) for k in (8, 9)]
    reservation.map_existing(10 * G, G, scene.existing)
    return scene


@dataclass
class Operation:
    """What to do in a scene, and the driver calls that it makes."""

    act: Any
    calls: dict[str, int]


BACK_ONE = {"cuMemCreate": 1, "cuMemMap": 1, "cuMemSetAccess": 1}
OPERATIONS = {
    "map": Operation(lambda s: s.reservation.map(0, 2 * G), {**BACK_ONE, "cuMemRelease": 1}),
    "map-retained": Operation(lambda s: s.reservation.map(0, G, retain_handle=True), BACK_ONE),
    "map_existing": Operation(
        lambda s: s.reservation.map_existing(0, G, s.existing),
        {"cuMemMap": 1, "cuMemSetAccess": 1},
    ),
    "commit": Operation(
        lambda s: s.reservation.commit(0, 12 * G, chunk_bytes=2 * G),  # 2+1, 2+2, 1
        {"cuMemCreate": 5, "cuMemMap": 5, "cuMemSetAccess": 3, "cuMemRelease": 5},
    ),
    "commit-backed": Operation(lambda s: s.reservation.commit(8 * G, 3 * G), {}),
    "unmap": Operation(
        lambda s: s.reservation.unmap(8 * G, 3 * G), {"cuMemRelease": 2, "cuMemUnmap": 1}
    ),
    "unmap-plain": Operation(lambda s: s.reservation.unmap(3 * G, G), {"cuMemUnmap": 1}),
    "decommit": Operation(
        lambda s: s.reservation.decommit(0, 12 * G), {"cuMemRelease": 2, "cuMemUnmap": 1}
    ),
    "decommit-nothing": Operation(lambda s: s.reservation.decommit(0, 3 * G), {}),
}
CLOSE = {"cuMemUnmap": 1, "cuMemRelease": 2, "cuMemAddressFree": 1}
SINGLE = [
    pytest.param(operation, call, nth, id=f"{name}-{call}-{nth}")
    for name, operation in OPERATIONS.items()
    for call, count in operation.calls.items()
    for nth in range(1, count + 1)
]


def calls_of(sim, act, *arguments):
    sim.reset()
    act(*arguments)
    return sim.calls()


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_driver_calls_of_each_operation(sim, name):
    scene = make_scene()
    assert calls_of(sim, OPERATIONS[name].act, scene) == OPERATIONS[name].calls
    scene.close()


def test_the_driver_calls_of_reserve_and_close(sim):
    VmmReservation(G, device_id=0).close()
    made = []
    assert calls_of(sim, lambda: made.append(VmmReservation(12 * G, device_id=0))) == {
        "cuMemGetAllocationGranularity": 1,
        "cuMemAddressReserve": 1,
    }
    assert calls_of(sim, made[0].close) == {"cuMemAddressFree": 1}
    assert calls_of(sim, made[0].close) == {}
    scene = make_scene()
    assert calls_of(sim, scene.reservation.close) == CLOSE
    release(scene.existing)


@pytest.mark.parametrize("status", ["CUDA_ERROR_UNKNOWN", "CUDA_ERROR_NOT_FOUND"])
@pytest.mark.parametrize(("operation", "call", "nth"), SINGLE)
def test_one_failing_call_changes_nothing(sim, operation, call, nth, status):
    scene = make_scene()
    before, live = scene.reservation.mappings, sim.live()
    sim.fail(call, nth=nth, status=status)
    with pytest.raises(CudaDriverError, match=f"^{call}: {status} ") as raised:
        operation.act(scene)
    assert (raised.value.call, raised.value.name) == (call, status)
    assert not hasattr(raised.value, "__notes__")
    assert sim.live() == live
    assert scene.reservation.mappings == before
    assert all(is_alive(handle) for handle in [*scene.retained, scene.existing])
    assert calls_of(sim, operation.act, scene) == operation.calls
    scene.close()


@pytest.mark.parametrize(("operation", "call", "nth"), SINGLE)
def test_a_failing_way_back_leaves_close_alone(sim, operation, call, nth):
    """With the call, each of the calls of its way back fails too, one at a time."""
    for also, count in way_back_of(sim, operation, call, nth).items():
        for which in range(1, count + 1):
            scene = make_scene()
            sim.reset()
            sim.fail(call, nth=nth)
            sim.fail(also, nth=operation_calls_before(operation, call, nth, also) + which)
            with pytest.raises(CudaDriverError, match=f"^{call}: ") as raised:
                operation.act(scene)
            assert raised.value.__notes__ == [f"on the way back: {also}: {UNKNOWN}"]
            accepts_close_alone(scene.reservation)
            sim.reset()
            scene.close()
            assert scene.reservation.closed
            assert not any(sim.live().values())


def way_back_of(sim, operation, call, nth):
    """The calls that undo what was done before `call` failed for the `nth` time."""
    scene = make_scene()
    sim.reset()
    sim.fail(call, nth=nth)
    with pytest.raises(CudaDriverError):
        operation.act(scene)
    made = sim.calls()
    scene.close()
    forward = {name: operation_calls_before(operation, call, nth, name) for name in WAY_BACK}
    return {name: made.get(name, 0) - forward[name] for name in WAY_BACK}


def operation_calls_before(operation, call, nth, name):
    """How many calls of `name` the way forward makes, up to and with the one that fails."""
    if name == call:
        return nth
    if "cuMemUnmap" in operation.calls and call == "cuMemUnmap":
        return operation.calls.get(name, 0)
    return 0


@pytest.mark.parametrize(("operation", "call", "nth"), SINGLE)
def test_a_way_back_that_fails_throughout_can_be_finished_by_close(sim, operation, call, nth):
    scene = make_scene()
    sim.fail(call, nth=nth)
    for name in WAY_BACK:
        sim.fail(name, nth=operation_calls_before(operation, call, nth, name) + 1, times=100)
    with pytest.raises(CudaDriverError, match=f"^{call}: ") as raised:
        operation.act(scene)
    if hasattr(raised.value, "__notes__"):
        accepts_close_alone(scene.reservation)
    sim.reset()
    scene.close()


def accepts_close_alone(reservation):
    assert not reservation.closed
    assert repr(reservation).endswith(" bytes mapped, only close is left>")
    for name, act in CHANGING.items():
        with pytest.raises(
            RuntimeError, match=rf"^VmmReservation\.{name}: an earlier failure left"
        ):
            act(reservation)


@pytest.mark.parametrize(
    ("call", "nth"), [(call, nth) for call, count in CLOSE.items() for nth in range(1, count + 1)]
)
def test_r3_a_close_that_fails_is_finished_by_the_next(sim, call, nth):
    scene = make_scene()
    sim.fail(call, nth=nth)
    with pytest.raises(CudaDriverError, match=f"^{call}: CUDA_ERROR_UNKNOWN "):
        scene.reservation.close()
    assert not scene.reservation.closed
    for name, act in CHANGING.items():
        with pytest.raises(RuntimeError, match=rf"^VmmReservation\.{name}: an earlier "):
            act(scene.reservation)
    sim.reset()
    scene.close()
    assert scene.reservation.closed
    assert not any(sim.live().values())


def test_close_goes_on_past_a_failure_and_hangs_later_ones_on_it(sim):
    scene = make_scene()
    sim.fail("cuMemRelease", nth=1)
    sim.fail("cuMemAddressFree")
    with pytest.raises(CudaDriverError, match="^cuMemRelease: ") as raised:
        scene.reservation.close()
    assert raised.value.__notes__ == [f"on the way back: cuMemAddressFree: {UNKNOWN}"]
    assert sim.live()["mappings"] == 0
    assert sim.live()["handles"] == 2  # the one that failed, and the test's own
    assert calls_of(sim, scene.reservation.close) == {"cuMemRelease": 1, "cuMemAddressFree": 1}
    release(scene.existing)


def test_a_failed_close_still_hands_the_handles_over(sim):
    scene = make_scene()
    sim.fail("cuMemAddressFree")
    with pytest.raises(CudaDriverError):
        scene.reservation.close(release_handles=False)
    scene.reservation.close()
    for handle in [*scene.retained, scene.existing]:
        release(handle)


@pytest.mark.parametrize("call", ["cuMemGetAllocationGranularity", "cuMemAddressReserve"])
def test_a_reservation_that_cannot_be_made_leaves_nothing(sim, call):
    VmmReservation(G, device_id=0).close()
    sim.reset()
    sim.fail(call, status="CUDA_ERROR_OUT_OF_MEMORY")
    with pytest.raises(CudaOutOfMemoryError, match=f"^{call}: CUDA_ERROR_OUT_OF_MEMORY"):
        VmmReservation(G, device_id=0)
    assert "cuMemAddressFree" not in sim.calls()
    assert not any(sim.live().values())
    VmmReservation(G, device_id=0).close()


def test_r3_unmap_fails_once_and_map_works_there_ever_after(sim):
    with VmmReservation(4 * G) as reservation:
        reservation.map(0, G)
        sim.fail("cuMemUnmap")
        with pytest.raises(CudaDriverError, match="^cuMemUnmap"):
            reservation.unmap(0, G)
        assert places(reservation) == [(0, 1)]
        reservation.unmap(0, G)
        reservation.map(0, G)


@pytest.mark.parametrize(
    "status",
    [
        "CUDA_ERROR_DEINITIALIZED",
        "CUDA_ERROR_NOT_INITIALIZED",
        "CUDA_ERROR_CONTEXT_IS_DESTROYED",
    ],
)
def test_a_driver_that_is_gone_counts_as_undone(sim, status):
    reservation = VmmReservation(4 * G)
    handle = reservation.map(0, G, retain_handle=True)
    for call in CLOSE:
        sim.fail(call, status=status)
    reservation.close()
    assert reservation.closed
    driver_must(driver.cuMemUnmap(reservation.base, G))
    release(handle)
    driver_must(driver.cuMemAddressFree(reservation.base, 4 * G))


@pytest.mark.parametrize(
    ("call", "nth"), [(call, nth) for call, count in CLOSE.items() for nth in range(1, count + 1)]
)
def test_dropping_tries_once_more_what_fails(sim, call, nth):
    scene = make_scene()
    existing = scene.existing
    sim.fail(call, nth=nth)
    with pytest.warns(ResourceWarning, match="was dropped without close"):
        del scene
    release(existing)
    assert not any(sim.live().values())


def test_dropping_tears_down_also_what_an_earlier_failure_left(sim):
    reservation = VmmReservation(4 * G)
    sim.fail("cuMemSetAccess")
    sim.fail("cuMemUnmap")
    with pytest.raises(CudaDriverError):
        reservation.map(0, G)
    with pytest.warns(ResourceWarning, match="was dropped without close"):
        del reservation
    assert not any(sim.live().values())


def test_many_faults_of_a_way_back_are_counted(sim):
    with VmmReservation(32 * G, device_id=0) as reservation:
        sim.fail("cuMemSetAccess")
        sim.fail("cuMemUnmap", times=30)
        with pytest.raises(CudaDriverError, match="^cuMemSetAccess: ") as raised:
            reservation.commit(0, 30 * G, chunk_bytes=G)
        *first, last = raised.value.__notes__
        assert [note.split(": ")[1] for note in first] == ["cuMemUnmap"] * 8
        assert last == "on the way back: 22 faults more"
