"""What the tests of the reservation share: a context, bytes in device memory, processes."""

import re
import subprocess
import sys
from contextlib import contextmanager

import pytest
from conformance.steps import G, create, must
from cuda.bindings import driver
from sim_helpers import environment

from vmmcy import _loader

DRIVER = "sim" if _loader.simulator_is_loaded() else "cuda"


@contextmanager
def primary_context(device=0):
    """The device's primary context, current for this thread, which is left as it was."""
    must(driver.cuInit(0))
    context = must(driver.cuDevicePrimaryCtxRetain(device))
    must(driver.cuCtxPushCurrent(context))
    try:
        yield
    finally:
        must(driver.cuCtxPopCurrent())
        must(driver.cuDevicePrimaryCtxRelease(device))


def fill(address, size_bytes, value):
    """Set every byte; the caller has a context."""
    must(driver.cuMemsetD8(address, value, size_bytes))
    must(driver.cuCtxSynchronize())


def holds(address, size_bytes, value):
    """Whether every byte is `value`; the caller has a context."""
    found = bytearray(size_bytes)
    must(driver.cuMemcpyDtoH(found, address, size_bytes))
    return found == bytes([value]) * size_bytes


def foreign_handle(size_bytes=G, device=0):
    """A live handle that is the test's own."""
    return int(must(create(size_bytes, device=device)))


def release(handle):
    must(driver.cuMemRelease(handle))


def is_alive(handle):
    """Whether one more reference to a handle that was alive a moment ago can be used."""
    return driver.cuMemGetAllocationPropertiesFromHandle(handle)[0] == 0


def refused(text):
    """Expect a ``ValueError`` with exactly this text."""
    return pytest.raises(ValueError, match=f"^{re.escape(text)}$")


def places(reservation):
    """What is mapped: (first granule, granules) of each."""
    return [(m.offset // G, m.size_bytes // G) for m in reservation.mappings]


def run_python(code, *options):
    """Run `code` in a fresh process on the same driver."""
    return subprocess.run(
        [sys.executable, *options, "-c", code],
        env=environment(VMMCY_DRIVER=DRIVER),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
