"""A stream behind everything that its device was given, without anybody waiting."""

import pytest
from conformance.steps import must
from cuda.bindings import driver
from reservation_help import primary_context
from stream_help import Held, capturing

from vmmcy._stream_order import order_behind_device
from vmmcy.errors import CudaDriverError

CALLS = ["cuCtxGetCurrent", "cuEventCreate", "cuCtxRecordEvent", "cuStreamWaitEvent"]


@pytest.fixture(autouse=True)
def context():
    with primary_context():
        yield


@pytest.fixture
def streams():
    streams = [Held() for _ in range(3)]
    yield streams
    for stream in streams:
        stream.close()


def is_idle(stream):
    (status,) = driver.cuStreamQuery(stream)
    return status == driver.CUresult.CUDA_SUCCESS


def test_the_stream_waits_for_all_others_and_they_for_none(streams):
    first, second, own = streams
    first.hold()
    second.hold()
    assert order_behind_device(own.handle, 0)
    assert not is_idle(own.stream)
    first.let()
    must(driver.cuStreamSynchronize(first.stream))
    assert not is_idle(own.stream)
    second.let()
    must(driver.cuStreamSynchronize(own.stream))
    assert is_idle(own.stream)


def test_what_is_given_later_is_not_waited_for(streams):
    later, _, own = streams
    assert order_behind_device(own.handle, 0)
    later.hold()
    must(driver.cuStreamSynchronize(own.stream))
    assert is_idle(own.stream)


def test_it_ends_a_capture_and_says_that_nothing_is_in_order(streams):
    held, captured, own = streams
    held.hold()
    with capturing(captured.stream) as capture:
        assert not order_behind_device(own.handle, 0)
    assert capture.status == driver.CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
    assert is_idle(own.stream)


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_fails_leaves_the_stream_as_it_was(streams, call, sim):
    held, _, own = streams
    held.hold()
    sim.fail(call)
    with pytest.raises(CudaDriverError, match=f"^{call}: "):
        order_behind_device(own.handle, 0)
    assert is_idle(own.stream)
    assert order_behind_device(own.handle, 0)
    assert not is_idle(own.stream)
