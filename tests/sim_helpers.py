"""What the tests of the simulator share: processes of their own, and its entry points."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

from vmmcy import sim as simulator

VERSIONS = (2000, 3020, 4000, 6000, 7000, 10020, 11040, 12050, 13000)


def environment(**variables):
    """Variables of a process that finds vmmcy and the test helpers, and has no driver yet."""
    places = (Path(simulator.library_path()).parents[2], Path(__file__).parent)
    path = os.pathsep.join(map(str, places))
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
