"""What the tests of the simulator share: processes, entry points, contexts and mappings."""

import ctypes
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from conformance.steps import G, create, must, reserve
from cuda.bindings import driver

from vmmcy import sim as simulator

VERSIONS = (2000, 3020, 4000, 6000, 7000, 10020, 11040, 12050, 13000)


def environment(**variables):
    """Variables of a process that finds vmmcy and the test helpers, and has no driver yet."""
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    places = (Path(simulator.library_path()).parents[2], Path(__file__).parent, *inherited)
    path = os.pathsep.join(map(str, filter(None, places)))
    return {**os.environ, "VMMCY_DRIVER": "auto", "PYTHONPATH": path, **variables}


def python(code, **variables):
    """Run `code` in a process of its own, where nothing has been loaded."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def look_up(name, version):
    """Status, address and query result of ``cuGetProcAddress`` in the loaded simulator."""
    address, found = ctypes.c_void_p(), ctypes.c_int(-1)
    status = ctypes.CDLL("libcuda.so.1").cuGetProcAddress_v2(
        name.encode(), ctypes.byref(address), version, ctypes.c_uint64(0), ctypes.byref(found)
    )
    return status, address.value, found.value


def entry_points():
    """Every function that the simulator gives out: (name, address)."""
    found = {
        look_up(name, version)[1]: name for name in simulator._call_names() for version in VERSIONS
    }
    return [(name, address) for address, name in found.items() if address is not None]


@contextmanager
def primary_context():
    """Device 0's primary context, current for the calling thread."""
    must(driver.cuInit(0))
    context = must(driver.cuDevicePrimaryCtxRetain(0))
    must(driver.cuCtxPushCurrent(context))
    simulator.reset()
    yield context
    must(driver.cuCtxPopCurrent())
    must(driver.cuDevicePrimaryCtxRelease(0))


@contextmanager
def devices(count):
    """That many devices for a while; `simulator.load` keeps their number once there is cuInit.

    The bare driver calls of these tests remember no number.
    """
    configure = simulator._library().vmmcy_sim_configure
    assert configure(count, 16 << 30, G)
    try:
        yield
    finally:
        assert configure(1, 16 << 30, G)


class Mapped:
    """Handles of G bytes, mapped one after the other from the start of a reservation."""

    def __init__(self, *handles):
        self.size = len(handles) * G
        self.base = int(must(reserve(self.size)))
        for index, handle in enumerate(handles):
            must(driver.cuMemMap(self.base + index * G, G, 0, handle, 0))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        must(driver.cuMemUnmap(self.base, self.size))
        must(driver.cuMemAddressFree(self.base, self.size))


def created(count=1, **wanted):
    """New handles of G bytes, as many as `count`."""
    return [must(create(G, **wanted)) for _ in range(count)]


def release(handles):
    for handle in handles:
        must(driver.cuMemRelease(handle))
