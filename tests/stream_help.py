"""Streams that go on when told, and captures: what the tests of stream order share."""

import ctypes
from contextlib import contextmanager

from conformance.steps import must
from cuda.bindings import driver

NON_BLOCKING = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
PORTABLE = driver.CU_MEMHOSTALLOC_PORTABLE
GLOBAL = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
AT_LEAST = driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ


class Held:
    """A stream, and a word of pinned memory that it waits for after `hold`."""

    def __init__(self):
        self.stream = must(driver.cuStreamCreate(NON_BLOCKING))
        self._address = must(driver.cuMemHostAlloc(64, PORTABLE))
        self._word = ctypes.c_uint32.from_address(int(self._address))
        self._awaited = 0

    @property
    def handle(self):
        return int(self.stream)

    def hold(self):
        """Keep what the stream is given from here on waiting, until `let`."""
        self._awaited += 1
        must(driver.cuStreamWaitValue32(self.stream, int(self._address), self._awaited, AT_LEAST))

    def let(self):
        self._word.value = self._awaited

    def close(self):
        self.let()
        must(driver.cuStreamSynchronize(self.stream))
        must(driver.cuStreamDestroy(self.stream))
        must(driver.cuMemFreeHost(self._address))


@contextmanager
def held_stream():
    """A held stream; the caller has a context."""
    held = Held()
    held.hold()
    try:
        yield held
    finally:
        held.close()


class Capture:
    """What came of one: its `status`, and the `nodes` of its graph."""

    status = nodes = None


@contextmanager
def capturing(stream, mode=GLOBAL):
    """Capture what the stream is given, and throw the graph away."""
    capture = Capture()
    must(driver.cuStreamBeginCapture(stream, mode))
    try:
        yield capture
    finally:
        capture.status, graph = driver.cuStreamEndCapture(stream)
        if capture.status == driver.CUresult.CUDA_SUCCESS:
            capture.nodes = driver.cuGraphGetNodes(graph)[-1]
            must(driver.cuGraphDestroy(graph))
