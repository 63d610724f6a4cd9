"""The simulator's streams that can be held, events behind them, and captures that calls end."""

import threading

import pytest
from conformance.steps import G, must
from cuda.bindings import driver
from sim_helpers import primary_context
from stream_help import AT_LEAST, GLOBAL, Held, capturing, held_stream

from vmmcy import sim as simulator

MODE = driver.CUstreamCaptureMode
LOCAL, RELAXED = MODE.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, MODE.CU_STREAM_CAPTURE_MODE_RELAXED
STATUS = driver.CUresult
OK, NOT_READY = STATUS.CUDA_SUCCESS, STATUS.CUDA_ERROR_NOT_READY
UNSUPPORTED = STATUS.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
INVALIDATED = STATUS.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
IMPLICIT = STATUS.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
INVALID_VALUE = STATUS.CUDA_ERROR_INVALID_VALUE
ACTIVE = driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE


@pytest.fixture(autouse=True)
def context(sim):
    """Device 0's primary context, current for the test."""
    with primary_context() as context:
        yield context


@pytest.fixture(autouse=True)
def no_stream_left(context):
    yield
    alive = simulator._alive()
    assert [alive[kind] for kind in ("streams", "events", "graphs", "other memory")] == [0] * 4


@pytest.fixture
def held():
    with held_stream() as held:
        yield held


@pytest.fixture
def event():
    event = must(driver.cuEventCreate(0))
    yield event
    must(driver.cuEventDestroy(event))


@pytest.fixture
def stream():
    stream = must(driver.cuStreamCreate(1))
    yield stream
    must(driver.cuStreamDestroy(stream))


def on_a_thread(act, mode=None):
    """What `act` gives on another thread with the context current, in a capture mode."""
    context, answers = must(driver.cuCtxGetCurrent()), []

    def run():
        must(driver.cuCtxSetCurrent(context))
        if mode is not None:
            must(driver.cuThreadExchangeStreamCaptureMode(mode))
        answers.append(act())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return answers[0]


# --- Held streams ----------------------------------------------------------------------------


def test_an_event_passes_with_what_is_in_front_of_it(held, event):
    assert driver.cuEventQuery(event) == (OK,)  # never recorded
    must(driver.cuEventRecord(event, held.stream))
    assert driver.cuEventQuery(event) == (NOT_READY,)
    assert driver.cuStreamQuery(held.stream) == (NOT_READY,)
    held.let()
    assert driver.cuEventQuery(event) == (OK,)
    held.hold()  # what comes behind it does not matter
    assert driver.cuEventQuery(event) == (OK,)
    assert driver.cuStreamQuery(held.stream) == (NOT_READY,)


def test_an_event_recorded_again_forgets_the_first_time(held, event, stream):
    must(driver.cuEventRecord(event, held.stream))
    must(driver.cuEventRecord(event, stream))
    assert driver.cuEventQuery(event) == (OK,)


def test_a_stream_waits_for_an_event_of_another(held, event, stream):
    must(driver.cuEventRecord(event, held.stream))
    must(driver.cuStreamWaitEvent(stream, event, 0))
    assert driver.cuStreamQuery(stream) == (NOT_READY,)
    held.let()
    assert driver.cuStreamQuery(stream) == (OK,)


@pytest.mark.parametrize("kind", ["event", "stream", "context"])
def test_waiting_ends_when_the_stream_goes_on(held, event, kind):
    must(driver.cuEventRecord(event, held.stream))
    wait = {
        "event": lambda: driver.cuEventSynchronize(event),
        "stream": lambda: driver.cuStreamSynchronize(held.stream),
        "context": driver.cuCtxSynchronize,
    }[kind]
    done = []
    context = must(driver.cuCtxGetCurrent())
    begun = threading.Event()

    def waiting():
        must(driver.cuCtxSetCurrent(context))
        begun.set()
        done.append((wait(), held._word.value))

    thread = threading.Thread(target=waiting)
    thread.start()
    begun.wait()
    assert driver.cuEventQuery(event) == (NOT_READY,)  # the simulator serves others meanwhile
    held.let()
    thread.join()
    assert done == [((OK,), 1)]


def test_a_destroyed_stream_still_holds_its_events(event):
    held = Held()
    held.hold()
    must(driver.cuEventRecord(event, held.stream))
    must(driver.cuStreamDestroy(held.stream))
    assert driver.cuEventQuery(event) == (NOT_READY,)
    held.let()
    assert driver.cuEventQuery(event) == (OK,)
    must(driver.cuMemFreeHost(held._address))


def test_a_wait_is_checked(stream):
    assert driver.cuStreamWaitValue32(stream, 0, 1, AT_LEAST) == (INVALID_VALUE,)
    assert driver.cuStreamWaitValue32(stream, 4098, 1, AT_LEAST) == (INVALID_VALUE,)


def test_a_stream_tells_its_context(stream, context):
    assert int(must(driver.cuStreamGetCtx(stream))) == int(context)
    assert int(must(driver.cuStreamGetCtx(1))) == int(context)


# --- Captures --------------------------------------------------------------------------------

UNSAFE = {
    "cuEventQuery": lambda event, stream: driver.cuEventQuery(event),
    "cuEventSynchronize": lambda event, stream: driver.cuEventSynchronize(event),
    "cuStreamQuery": lambda event, stream: driver.cuStreamQuery(stream),
    "cuStreamSynchronize": lambda event, stream: driver.cuStreamSynchronize(stream),
    "cuMemAlloc": lambda event, stream: freed(driver.cuMemAlloc(512), driver.cuMemFree),
    "cuMemHostAlloc": lambda event, stream: freed(
        driver.cuMemHostAlloc(512, 0), driver.cuMemFreeHost
    ),
}


def freed(answer, free):
    """The status alone, after giving back what the call gave."""
    status, address = answer
    if status == OK:
        must(free(address))
    return (status,)


def test_work_of_a_captured_stream_becomes_nodes(stream):
    memory = must(driver.cuMemAlloc(512))
    must(driver.cuMemsetD8(memory, 1, 512))
    with capturing(stream) as capture:
        must(driver.cuMemsetD8Async(memory, 2, 512, stream))
        must(driver.cuMemcpyDtoDAsync(memory, int(memory) + 256, 256, stream))
        assert must(driver.cuStreamIsCapturing(stream)) == ACTIVE
    assert (capture.status, capture.nodes) == (OK, 2)
    found = bytearray(512)
    must(driver.cuMemcpyDtoH(found, memory, 512))
    assert found == bytes([1]) * 512
    must(driver.cuMemFree(memory))


@pytest.mark.parametrize("name", UNSAFE)
def test_a_global_capture_is_ended_by_an_unsafe_call_of_any_thread(stream, event, name):
    with held_stream() as other:
        other.let()
        for caller in (on_a_thread, lambda act: act()):
            with capturing(stream) as capture:
                assert caller(lambda: UNSAFE[name](event, other.stream)) == (UNSUPPORTED,)
            assert capture.status == INVALIDATED


@pytest.mark.parametrize("name", UNSAFE)
def test_a_relaxed_thread_may_make_unsafe_calls(stream, event, name):
    got = []
    with held_stream() as other:
        other.let()
        with capturing(stream) as capture:
            got += on_a_thread(lambda: UNSAFE[name](event, other.stream), RELAXED)
        assert (capture.status, capture.nodes) == (OK, 0)
    assert got == [OK]


def test_a_local_capture_is_ended_by_its_own_thread_alone(stream, event):
    with capturing(stream, LOCAL) as capture:
        assert on_a_thread(lambda: driver.cuEventQuery(event)) == (OK,)
    assert capture.status == OK
    with capturing(stream, LOCAL) as capture:
        assert driver.cuEventQuery(event) == (UNSUPPORTED,)
    assert capture.status == INVALIDATED


def test_a_context_wait_ends_captures_of_every_mode(stream):
    for mode in (GLOBAL, LOCAL, RELAXED):
        with capturing(stream, mode) as capture:
            assert driver.cuCtxSynchronize() == (UNSUPPORTED,)
        assert capture.status == INVALIDATED


def test_an_event_recorded_in_a_capture_cannot_be_asked(stream, event):
    with capturing(stream) as capture:
        must(driver.cuEventRecord(event, stream))
    assert (capture.status, capture.nodes) == (OK, 0)
    assert driver.cuEventQuery(event) == (STATUS.CUDA_ERROR_CAPTURED_EVENT,)
    with capturing(stream) as capture:
        must(driver.cuEventRecord(event, stream))
        asked = on_a_thread(lambda: driver.cuEventQuery(event), RELAXED)
        assert asked == (STATUS.CUDA_ERROR_CAPTURED_EVENT,)
    assert capture.status == INVALIDATED


def test_the_legacy_stream_rests_while_a_blocking_one_is_captured(event):
    blocking = must(driver.cuStreamCreate(0))
    with capturing(blocking) as capture:
        assert driver.cuStreamIsCapturing(1)[0] == IMPLICIT
    assert capture.status == OK
    with capturing(blocking) as capture:
        assert driver.cuEventRecord(event, 1) == (IMPLICIT,)
    assert capture.status == INVALIDATED
    must(driver.cuStreamDestroy(blocking))


def test_virtual_calls_under_lock_leave_a_capture_alone(stream):
    with capturing(stream) as capture:
        base = must(driver.cuMemAddressReserve(G, 0, 0, 0))
        must(driver.cuMemAddressFree(base, G))
    assert capture.status == OK


def test_captures_are_checked(stream):
    assert driver.cuStreamBeginCapture(1, GLOBAL) == (UNSUPPORTED,)
    assert driver.cuStreamEndCapture(stream)[0] == INVALID_VALUE
    with capturing(stream):
        assert driver.cuStreamBeginCapture(stream, GLOBAL) == (INVALID_VALUE,)
        wrong = STATUS.CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD
        assert on_a_thread(lambda: driver.cuStreamEndCapture(stream))[0] == wrong
    assert driver.cuGraphDestroy(12345) == (INVALID_VALUE,)
