"""Memory that is given back when a stream is done: never before, and without waiting for it."""

import re
import threading

import pytest
from conformance.steps import G, must
from cuda.bindings import driver
from reservation_help import holds, places, primary_context, refused, run_python
from sim_helpers import devices
from stream_help import Held, capturing, held_stream

from vmmcy import HandlePool
from vmmcy.errors import CudaDriverError, CudaOutOfMemoryError
from vmmcy.reservation import VmmReservation, check_map

DECOMMIT_AFTER = {
    "cuStreamGetCtx": 1,
    "cuCtxPushCurrent": 1,
    "cuStreamIsCapturing": 1,
    "cuEventCreate": 1,
    "cuEventRecord": 1,
    "cuCtxPopCurrent": 1,
}
ASK = {"cuThreadExchangeStreamCaptureMode": 2, "cuEventQuery": 1}


@pytest.fixture(autouse=True)
def context():
    with primary_context():
        yield


@pytest.fixture
def held():
    with held_stream() as held:
        yield held


@pytest.fixture
def reservation():
    """Eight granules, the first four backed one by one."""
    with VmmReservation(8 * G, device_id=0) as reservation:
        reservation.commit(0, 4 * G, chunk_bytes=G)
        yield reservation


def fill(address, size_bytes, value):
    """Set every byte, without waiting for streams that are held."""
    must(driver.cuMemsetD8(address, value, size_bytes))


def idle_stream():
    held = Held()
    held.let()
    return held


def in_a_thread(act):
    """Begin `act` on another thread; call what comes back for its result."""
    results = []
    thread = threading.Thread(target=lambda: results.append(act()), daemon=True)
    thread.start()

    def result(patience_s=None):
        thread.join(patience_s)
        return results[0]

    return result


# --- Order -----------------------------------------------------------------------------------


def test_memory_stays_until_its_stream_is_done(reservation, held):
    fill(reservation.base, 2 * G, 7)
    assert reservation.decommit(0, 2 * G, stream=held.handle) == 2 * G
    assert (reservation.leaving_bytes, reservation.mapped_bytes) == (2 * G, 4 * G)
    reservation.commit(4 * G, G)
    assert holds(reservation.base, 2 * G, 7)
    held.let()
    must(driver.cuStreamSynchronize(held.stream))
    assert reservation.leaving_bytes == 2 * G  # found out by the next call
    reservation.commit(5 * G, G)
    assert (reservation.leaving_bytes, places(reservation)) == (0, [(2, 1), (3, 1), (4, 1), (5, 1)])


def test_nothing_is_given_back_or_waited_for_at_once(sim, reservation, held):
    sim.reset()
    reservation.decommit(0, 4 * G, stream=held.handle)
    assert sim.calls() == DECOMMIT_AFTER
    sim.reset()
    reservation.commit(2 * G, 4 * G)  # 2 come back, 2 are made as one
    assert sim.calls() == {
        **ASK,
        "cuMemCreate": 1,
        "cuMemMap": 1,
        "cuMemSetAccess": 1,
        "cuMemRelease": 1,
    }
    held.let()
    sim.reset()
    reservation.decommit(0, G)
    assert sim.calls() == {**ASK, "cuMemUnmap": 1, "cuEventDestroy": 1}
    assert places(reservation) == [(2, 1), (3, 1), (4, 2)]


SETTLING = {
    "map": lambda r: r.map(7 * G, G),
    "commit": lambda r: r.commit(7 * G, G),
    "unmap": lambda r: r.unmap(3 * G, G),
    "decommit": lambda r: r.decommit(7 * G, G),
    "decommit-after": lambda r: r.decommit(7 * G, G, stream=0),
    "synchronize": lambda r: r.synchronize(),
}


@pytest.mark.parametrize("name", SETTLING)
def test_every_operation_first_gives_back_what_is_due(reservation, name):
    stream = idle_stream()
    reservation.decommit(0, 3 * G, stream=stream.handle)
    assert reservation.leaving_bytes == 3 * G
    SETTLING[name](reservation)
    assert reservation.leaving_bytes == 0
    assert all(first > 2 for first, _ in places(reservation))
    stream.close()


def test_a_stretch_is_unmapped_at_once_and_what_stays_between_is_not(sim, reservation, held):
    for offset in (0, G, 3 * G):
        reservation.decommit(offset, G, stream=held.handle)
    held.let()
    sim.reset()
    assert reservation.synchronize() == 3 * G
    assert sim.calls()["cuMemUnmap"] == 2
    assert places(reservation) == [(2, 1)]


def test_streams_go_their_own_ways(reservation, held):
    other = idle_stream()
    reservation.decommit(0, G, stream=held.handle)
    reservation.decommit(G, G, stream=other.handle)
    reservation.commit(7 * G, G)
    assert places(reservation) == [(0, 1), (2, 1), (3, 1), (7, 1)]
    other.close()


def test_a_range_that_leaves_again_goes_after_both_streams(reservation, held):
    other = idle_stream()
    assert reservation.decommit(0, 2 * G, stream=held.handle) == 2 * G
    assert reservation.decommit(0, 3 * G, stream=other.handle) == G
    reservation.commit(7 * G, G)
    assert places(reservation) == [(0, 1), (1, 1), (2, 1), (3, 1), (7, 1)]
    held.let()
    assert reservation.synchronize() == 3 * G
    assert places(reservation) == [(3, 1), (7, 1)]
    other.close()


def test_what_was_kept_and_leaves_again_goes_after_both_streams(reservation, held):
    reservation.decommit(0, G, stream=held.handle)
    assert reservation.commit(0, G) == G
    other = idle_stream()
    assert reservation.decommit(0, 2 * G, stream=other.handle) == 2 * G
    must(driver.cuStreamSynchronize(other.stream))
    reservation.commit(4 * G, G)
    assert (reservation.leaving_bytes, reservation.mapped_bytes) == (G, 4 * G)
    held.let()
    assert reservation.synchronize() == G
    other.close()


@pytest.mark.parametrize("first_done", [0, 1])
def test_what_was_kept_twice_goes_after_all_its_streams(reservation, held, first_done):
    other = idle_stream()
    with held_stream() as second:
        for stream in (held, second):
            reservation.decommit(0, G, stream=stream.handle)
            assert reservation.commit(0, G) == G
        reservation.decommit(0, G, stream=other.handle)
        for stream in (held, second) if first_done == 0 else (second, held):
            must(driver.cuStreamSynchronize(other.stream))
            reservation.commit(4 * G, G)
            assert reservation.leaving_bytes == G
            stream.let()
            must(driver.cuStreamSynchronize(stream.stream))
        assert reservation.synchronize() == G
    other.close()


def test_what_was_kept_waits_for_nothing_once_its_stream_is_done(reservation, held):
    other = idle_stream()
    reservation.decommit(0, G, stream=other.handle)
    reservation.decommit(3 * G, G, stream=held.handle)
    reservation.commit(0, G)
    must(driver.cuStreamSynchronize(other.stream))
    reservation.decommit(0, G, stream=other.handle)
    must(driver.cuStreamSynchronize(other.stream))
    reservation.commit(4 * G, G)
    assert (reservation.leaving_bytes, reservation.mapped_bytes) == (G, 4 * G)
    held.let()
    other.close()


def test_synchronize_does_not_wait_for_what_stays_and_close_does(reservation, held):
    reservation.decommit(0, G, stream=held.handle)
    reservation.commit(0, G)
    assert reservation.synchronize() == 0
    closed = in_a_thread(lambda: reservation.close() or True)
    held.let()
    assert closed()


def test_one_query_tells_of_all_that_leaves_after_a_stream(sim, reservation, held):
    reservation.commit(0, 8 * G, chunk_bytes=G)
    with held_stream() as other:
        for index in range(8):
            stream = (held, other)[index % 2].handle
            before = sim.calls().get("cuEventQuery", 0)
            reservation.decommit(index * G, G, stream=stream)
            assert sim.calls().get("cuEventQuery", 0) - before == min(index, 2)
        held.let()
        other.let()
        assert reservation.synchronize() == 8 * G


def test_what_waits_for_another_stream_holds_back_nothing_else(reservation, held):
    other = idle_stream()
    reservation.decommit(0, G, stream=held.handle)
    reservation.decommit(0, 2 * G, stream=other.handle)
    reservation.decommit(3 * G, G, stream=other.handle)
    reservation.commit(7 * G, G)
    assert places(reservation) == [(0, 1), (1, 1), (2, 1), (7, 1)]
    other.close()


def test_commit_takes_back_what_is_leaving(sim, reservation, held):
    fill(reservation.base, 2 * G, 7)
    reservation.decommit(0, 2 * G, stream=held.handle)
    sim.reset()
    assert reservation.commit(G - 1, 2) == 2 * G  # both mappings, whole
    assert sim.calls() == ASK
    assert (reservation.leaving_bytes, reservation.mapped_bytes) == (0, 4 * G)
    held.let()
    assert reservation.synchronize() == 0
    assert holds(reservation.base, 2 * G, 7)


def test_a_commit_that_fails_lets_leave_what_was_leaving(sim, reservation, held):
    reservation.decommit(0, 2 * G, stream=held.handle)
    sim.fail("cuMemCreate")
    with pytest.raises(CudaDriverError, match="^cuMemCreate: "):
        reservation.commit(0, 8 * G)
    assert reservation.leaving_bytes == 2 * G
    held.let()
    assert reservation.synchronize() == 2 * G


def test_what_is_leaving_can_be_taken_away_at_once(reservation, held):
    reservation.decommit(0, 3 * G, stream=held.handle)
    reservation.unmap(0, G)
    assert reservation.decommit(0, 4 * G) == G  # two of the three were counted before
    assert (reservation.leaving_bytes, places(reservation)) == (0, [])


def test_map_says_that_a_range_is_still_leaving(reservation, held):
    reservation.decommit(0, 2 * G, stream=held.handle)
    text = (
        f"mapping [0, {G}) is there until its stream is done; commit takes it back, "
        "unmap takes it away"
    )
    for call, act in (
        ("map", lambda: reservation.map(0, G)),
        ("map", lambda: check_map(reservation, 0, G)),
        ("map_existing", lambda: reservation.map_existing(0, G, 1)),
    ):
        with refused(f"VmmReservation.{call}: {text}"):
            act()
    held.let()
    reservation.map(0, G)


def test_a_range_without_mappings_leaves_nothing(sim, reservation):
    sim.reset()
    assert reservation.decommit(4 * G, 4 * G, stream=0) == 0
    assert reservation.decommit(1, G, stream=0) == 0
    assert sim.calls() == {}


def test_memory_that_is_due_is_there_for_the_next_commit(sim):
    with VmmReservation(32 << 30, device_id=0) as reservation, held_stream() as held:
        reservation.commit(0, 15 << 30)
        reservation.decommit(0, 16 << 30, stream=held.handle)
        with pytest.raises(CudaOutOfMemoryError):
            reservation.commit(16 << 30, 15 << 30)
        assert reservation.leaving_bytes == 15 << 30
        held.let()
        assert reservation.commit(16 << 30, 15 << 30) == 15 << 30


def test_a_pool_gets_its_chunks_when_the_stream_is_done():
    with (
        HandlePool(0, chunk_bytes=G, capacity_bytes=4 * G) as pool,
        VmmReservation(4 * G, pool=pool) as reservation,
        held_stream() as held,
    ):
        reservation.commit(0, 4 * G)
        reservation.decommit(0, 4 * G, stream=held.handle)
        assert pool.pooled_bytes == 0
        held.let()
        reservation.synchronize()
        assert pool.pooled_bytes == 4 * G


# --- Waiting ---------------------------------------------------------------------------------


def test_synchronize_waits_and_nobody_else_does(reservation, held):
    reservation.decommit(0, 2 * G, stream=held.handle)
    begun = threading.Event()

    def wait():
        begun.set()
        return reservation.synchronize()

    result = in_a_thread(wait)
    begun.wait()
    for _ in range(100):  # the lock and the GIL are free, whether it waits by now or not
        reservation.commit(4 * G, 2 * G)
        reservation.decommit(4 * G, 2 * G)
    assert reservation.leaving_bytes == 2 * G
    held.let()
    assert result() + reservation.synchronize() == 2 * G
    assert places(reservation) == [(2, 1), (3, 1)]


def test_two_may_wait_while_a_third_takes_the_range_back(reservation, held):
    reservation.decommit(0, 2 * G, stream=held.handle)
    first, second = in_a_thread(reservation.synchronize), in_a_thread(reservation.synchronize)
    assert reservation.commit(0, 2 * G) == 2 * G
    held.let()
    assert (first(), second()) == (0, 0)
    assert reservation.mapped_bytes == 4 * G


@pytest.mark.parametrize("end", ["close", "drop"])
@pytest.mark.filterwarnings("ignore:.*dropped without close:ResourceWarning")
def test_the_end_of_a_reservation_waits(sim, held, end):
    kept = [VmmReservation(4 * G, device_id=0)]
    kept[0].commit(0, 4 * G, chunk_bytes=G)
    kept[0].decommit(0, G, stream=held.handle)
    begun = threading.Event()

    def finish():
        begun.set()
        kept[0].close() if end == "close" else kept.clear()

    result = in_a_thread(finish)
    begun.wait()
    assert sim.live()["mappings"] == 4
    held.let()
    result()
    assert sim.live()["mappings"] == sim.live()["reservations"] == 0


def test_two_may_close(held):
    reservation = VmmReservation(4 * G, device_id=0)
    reservation.commit(0, G)
    reservation.decommit(0, G, stream=held.handle)
    results = [in_a_thread(reservation.close) for _ in range(4)]
    held.let()
    assert [result() for result in results] == [None] * 4
    assert reservation.closed


# --- Captures --------------------------------------------------------------------------------


def test_a_capture_elsewhere_stays_valid(reservation, held):
    stream = must(driver.cuStreamCreate(1))
    reservation.decommit(0, G, stream=held.handle)
    with capturing(stream) as capture:
        reservation.decommit(G, G, stream=held.handle)
        reservation.commit(4 * G, G)
        held.let()
        assert reservation.synchronize() == 2 * G
        in_a_thread(reservation.synchronize)()
    assert (capture.status, capture.nodes) == (0, 0)
    must(driver.cuStreamDestroy(stream))


def test_leaving_after_a_captured_stream_is_put_off(reservation):
    stream = must(driver.cuStreamCreate(1))
    with capturing(stream) as capture:
        assert reservation.decommit(0, 2 * G, stream=stream) == 2 * G
        assert (reservation.synchronize(), reservation.leaving_bytes) == (0, 2 * G)
        with pytest.raises(
            RuntimeError,
            match=re.escape(
                f"VmmReservation.close: mapping [0, {G}) leaves after a stream that is being "
                "captured; end the capture and call again"
            ),
        ):
            reservation.close()
        assert reservation.commit(0, G) == G
    assert (capture.status, capture.nodes) == (0, 0)
    assert (reservation.synchronize(), reservation.leaving_bytes) == (G, 0)
    must(driver.cuStreamDestroy(stream))


def test_what_was_put_off_goes_after_what_came_meanwhile(reservation):
    held = Held()
    with capturing(held.stream):
        reservation.decommit(0, G, stream=held.handle)
    held.hold()
    reservation.commit(7 * G, G)  # here its event is recorded
    assert reservation.leaving_bytes == G
    held.let()
    assert reservation.synchronize() == G
    held.close()


def test_what_is_put_off_twice_does_not_keep_synchronize_busy(sim, reservation):
    stream = idle_stream()
    with capturing(stream.stream):
        reservation.decommit(0, G, stream=stream.handle)
    sim.fail("cuEventCreate")
    reservation.decommit(G, G, stream=stream.handle)
    with capturing(stream.stream) as capture:
        ended = in_a_thread(reservation.synchronize)
        assert ended(30) == G
        assert reservation.leaving_bytes == G
    assert capture.status == driver.CUresult.CUDA_SUCCESS
    assert reservation.synchronize() == G
    stream.close()


def test_the_legacy_stream_is_put_off_while_a_blocking_one_is_captured(reservation):
    blocking = must(driver.cuStreamCreate(0))
    with capturing(blocking) as capture:
        reservation.decommit(0, G, stream=0)
        assert reservation.leaving_bytes == G
    assert capture.status == 0
    assert reservation.synchronize() == G
    must(driver.cuStreamDestroy(blocking))


def test_a_reservation_dropped_in_its_stream_s_capture_keeps_its_memory():
    done = run_python(
        "import warnings; warnings.simplefilter('ignore')\n"
        "from conformance.steps import G, must\n"
        "from cuda.bindings import driver\n"
        "from reservation_help import primary_context\n"
        "from stream_help import capturing\n"
        "import vmmcy\n"
        "with primary_context():\n"
        "    stream = must(driver.cuStreamCreate(1))\n"
        "    reservation = vmmcy.VmmReservation(4 * G, device_id=0)\n"
        "    reservation.commit(0, G)\n"
        "    with capturing(stream) as capture:\n"
        "        reservation.decommit(0, G, stream=stream)\n"
        "        base = reservation.base\n"
        "        del reservation\n"
        "    assert capture.status == 0\n"
        "    must(driver.cuMemsetD8(base, 1, G))\n"
        "    assert vmmcy.live()['committed_bytes'] == G\n"
    )
    assert (done.returncode, done.stderr) == (0, "")


# --- Streams of every kind -------------------------------------------------------------------


class OfTorch:
    def __init__(self, handle):
        self.cuda_stream = handle


class OfAnswer:
    def __init__(self, answer):
        self._answer = answer

    def __cuda_stream__(self):
        return self._answer


class OfProperty:
    def __init__(self, handle):
        self.__cuda_stream__ = (0, handle)


def of_protocol(handle):
    return OfAnswer((0, handle))


@pytest.mark.parametrize("kind", [int, driver.CUstream, OfTorch, of_protocol, OfProperty])
def test_a_stream_may_be_of_any_kind(reservation, held, kind):
    assert reservation.decommit(0, G, stream=kind(held.handle)) == G
    assert reservation.leaving_bytes == G
    held.let()
    assert reservation.synchronize() == G


@pytest.mark.parametrize("stream", [0, 1, 2])
def test_default_streams(reservation, stream):
    reservation.decommit(0, G, stream=stream)
    assert reservation.synchronize() == G


def test_a_thread_without_a_context_uses_that_of_the_device(reservation):
    assert in_a_thread(lambda: reservation.decommit(0, G, stream=0))() == G
    assert in_a_thread(reservation.synchronize)() == G


@pytest.mark.parametrize(
    ("stream", "error", "text"),
    [
        (True, TypeError, "stream must be an integer, not bool True"),
        (1.0, TypeError, "stream must be an integer, not float 1.0"),
        ("0", TypeError, "stream must be an integer, not str '0'"),
        (OfTorch(None), TypeError, "stream must be an integer, not NoneType None"),
        (OfAnswer(5), TypeError, r"stream: __cuda_stream__\(\) must give \(0, handle\), not int 5"),
        (OfAnswer(()), TypeError, r"must give \(0, handle\), not tuple \(\)"),
        (OfAnswer((1, 0)), TypeError, r"must give \(0, handle\), not tuple \(1, 0\)"),
        (OfAnswer((0, "a")), TypeError, "stream must be an integer, not str 'a'"),
        (-1, ValueError, "stream must not be negative, got -1"),
        (1 << 64, ValueError, "stream 18446744073709551616 does not fit in 64 bits"),
    ],
)
def test_what_is_no_stream_is_refused_before_any_call(sim, reservation, stream, error, text):
    sim.reset()
    with pytest.raises(error, match=text):
        reservation.decommit(0, G, stream=stream)
    assert sim.calls() == {}


def test_a_stream_of_another_device(sim):
    with devices(2), VmmReservation(4 * G, device_id=0) as reservation, primary_context(1):
        reservation.commit(0, G)
        stream = must(driver.cuStreamCreate(1))
        assert in_a_thread(lambda: reservation.decommit(0, G, stream=stream))() == G
        assert in_a_thread(reservation.synchronize)() == G
        must(driver.cuStreamDestroy(stream))


def test_a_closed_reservation_refuses():
    reservation = VmmReservation(4 * G, device_id=0)
    reservation.close()
    assert reservation.leaving_bytes == 0
    for act in (lambda: reservation.decommit(0, G, stream=0), reservation.synchronize):
        with pytest.raises(RuntimeError, match=r"VmmReservation\.\w+ after close"):
            act()


# --- Faults ----------------------------------------------------------------------------------


def events_alive(sim):
    return sim._alive()["events"]


@pytest.mark.parametrize("status", ["CUDA_ERROR_UNKNOWN", "CUDA_ERROR_NOT_FOUND"])
@pytest.mark.parametrize("call", [call for call in DECOMMIT_AFTER if call != "cuCtxPopCurrent"])
def test_a_fence_that_is_not_recorded_changes_nothing(sim, reservation, held, call, status):
    before = reservation.mappings
    sim.fail(call, status=status)
    with pytest.raises(CudaDriverError, match=f"^{call}: {status} "):
        reservation.decommit(0, 4 * G, stream=held.handle)
    assert (reservation.mappings, reservation.leaving_bytes) == (before, 0)
    assert (events_alive(sim), int(must(driver.cuCtxGetDevice()))) == (0, 0)
    assert reservation.decommit(0, 4 * G, stream=held.handle) == 4 * G


@pytest.mark.parametrize(
    ("call", "nth"),
    [
        ("cuThreadExchangeStreamCaptureMode", 1),
        ("cuEventQuery", 1),
        ("cuEventSynchronize", 1),
        ("cuMemUnmap", 1),
        ("cuMemUnmap", 2),
        ("cuMemRelease", 1),
    ],
)
def test_what_cannot_be_asked_or_given_back_stays_on_record(sim, call, nth):
    with VmmReservation(8 * G, device_id=0) as reservation, held_stream() as held:
        reservation.map(0, G, retain_handle=True)
        reservation.commit(2 * G, 2 * G)
        reservation.decommit(0, 2 * G, stream=held.handle)
        reservation.decommit(2 * G, 2 * G, stream=held.handle)
        result = None
        if call == "cuEventSynchronize":
            sim.fail(call, nth=nth)
        else:
            held.let()
            sim.fail(call, nth=nth)
        with pytest.raises(CudaDriverError, match=f"^{call}: "):
            result = reservation.synchronize()
        assert result is None
        given = 1 if (call, nth) == ("cuMemUnmap", 2) else 0
        assert reservation.leaving_bytes == (3 - given) * G
        assert len(reservation.mappings) == 2 - given
        held.let()
        assert reservation.synchronize() == (3 - given) * G
        assert events_alive(sim) == 0


def test_a_fault_of_what_is_due_does_not_disturb_other_work(sim, reservation):
    stream = idle_stream()
    reservation.decommit(0, G, stream=stream.handle)
    sim.fail("cuEventQuery")
    assert reservation.commit(7 * G, G) == G
    sim.fail("cuMemUnmap")
    assert reservation.commit(6 * G, G) == G
    assert reservation.leaving_bytes == G
    assert reservation.commit(5 * G, G) == G
    assert reservation.leaving_bytes == 0
    stream.close()


@pytest.mark.parametrize("call", ["cuCtxPopCurrent", "cuThreadExchangeStreamCaptureMode"])
def test_what_leaves_a_thread_as_it_was_is_tried_twice(sim, reservation, held, call):
    held.let()
    nth = 2 if call == "cuThreadExchangeStreamCaptureMode" else 1
    sim.fail(call, nth=nth)
    reservation.decommit(0, G, stream=held.handle)
    assert reservation.synchronize() == G
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
    assert must(driver.cuThreadExchangeStreamCaptureMode(mode)) == mode
    must(driver.cuCtxGetDevice())
    sim.fail(call, nth=nth, times=2)
    if call == "cuCtxPopCurrent":
        with pytest.raises(CudaDriverError, match=f"^{call}: "):
            reservation.decommit(G, G, stream=held.handle)
        must(driver.cuCtxPopCurrent())
        assert reservation.leaving_bytes == 0
    else:
        reservation.decommit(G, G, stream=held.handle)
        with pytest.raises(CudaDriverError, match=f"^{call}: "):
            reservation.synchronize()
        must(driver.cuThreadExchangeStreamCaptureMode(mode))
        assert reservation.leaving_bytes == G


def test_close_keeps_what_it_cannot_ask_about(sim, held):
    reservation = VmmReservation(4 * G, device_id=0)
    reservation.commit(0, 2 * G)
    reservation.decommit(0, 2 * G, stream=held.handle)
    sim.fail("cuEventSynchronize")
    with pytest.raises(CudaDriverError, match="^cuEventSynchronize: "):
        reservation.close()
    assert (reservation.closed, reservation.mapped_bytes) == (False, 2 * G)
    with pytest.raises(RuntimeError, match="only close can undo"):
        reservation.commit(0, G)
    held.let()
    reservation.close()
    assert events_alive(sim) == 0


def test_a_dropped_reservation_asks_twice(sim):
    done = run_python(
        "import warnings; warnings.simplefilter('ignore')\n"
        "from conformance.steps import G\n"
        "from vmmcy import VmmReservation, live, sim\n"
        "for times, left in ((1, 0), (2, G)):\n"
        "    reservation = VmmReservation(4 * G, device_id=0)\n"
        "    reservation.commit(0, G)\n"
        "    reservation.decommit(0, G, stream=0)\n"
        "    sim.fail('cuEventQuery', times=times)\n"
        "    del reservation\n"
        "    assert sim.live()['mapped_bytes'] == live()['committed_bytes'] == left\n"
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_driver_that_is_gone_has_done_everything(sim, reservation, held):
    reservation.decommit(0, G, stream=held.handle)
    sim.fail("cuEventQuery", status="CUDA_ERROR_CONTEXT_IS_DESTROYED")
    assert reservation.synchronize() == G


def test_a_child_process_is_refused():
    done = run_python(
        "import os\n"
        "from conformance.steps import G\n"
        "import vmmcy\n"
        "reservation = vmmcy.VmmReservation(4 * G, device_id=0)\n"
        "reservation.commit(0, G)\n"
        "reservation.decommit(0, G, stream=0)\n"
        "if os.fork() == 0:\n"
        "    for act in (reservation.synchronize, lambda: reservation.leaving_bytes):\n"
        "        try:\n"
        "            act()\n"
        "        except RuntimeError as error:\n"
        "            assert 'before this process was forked' in str(error)\n"
        "        else:\n"
        "            os._exit(1)\n"
        "    os._exit(0)\n"
        "assert os.wait()[1] == 0\n"
        "reservation.close()\n"
    )
    assert (done.returncode, done.stderr) == (0, "")
