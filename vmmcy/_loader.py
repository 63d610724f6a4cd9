"""Which ``libcuda`` this process uses: a real one, or the simulator.

``VMMCY_DRIVER`` decides at import: ``sim`` loads the simulator, ``cuda`` insists
on a real driver, ``auto`` (the default) takes a real one. Nothing here calls
``cuInit``: a fork before first use stays possible.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ctypes

LIBRARY = "libcuda.so.1"
SIMULATOR_MARKER = "vmmcy_sim_marker"
VARIABLE = "VMMCY_DRIVER"
CHOICES = ("auto", "cuda", "sim")
FALLBACK_NOTICE = "vmmcy: no CUDA device here, running on the simulated driver"

_PROBE = f"""
import ctypes
cuda = ctypes.CDLL({LIBRARY!r})
count = ctypes.c_int()
raise SystemExit(cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)) or count.value == 0)
"""


def choice() -> str:
    """Return what ``VMMCY_DRIVER`` asks for.

    Raises
    ------
    ValueError
        It asks for something unknown.
    """
    chosen = os.environ.get(VARIABLE) or "auto"
    if chosen not in CHOICES:
        raise ValueError(f"{VARIABLE} must be one of {', '.join(CHOICES)}, got {chosen!r}")
    return chosen


def select_driver() -> None:
    """Carry out ``VMMCY_DRIVER``; called by the first line of ``vmmcy``.

    Raises
    ------
    ValueError
        ``VMMCY_DRIVER`` asks for something unknown.
    RuntimeError
        It asks for the simulator where a real driver is loaded already, or for a
        real one where the simulator is.
    """
    chosen = choice()
    if chosen == "sim":
        _load_simulator()
    elif chosen == "cuda" and simulator_is_loaded():
        raise RuntimeError(f"{VARIABLE}=cuda, but this process has loaded the simulated driver")


def simulator_is_loaded() -> bool:
    """Tell whether the process's ``libcuda.so.1`` is the simulator."""
    library = loaded_library()
    return library is not None and hasattr(library, SIMULATOR_MARKER)


def loaded_library() -> ctypes.CDLL | None:
    """Return the process's ``libcuda.so.1`` if there is one, without loading any."""
    import ctypes

    try:
        return ctypes.CDLL(LIBRARY, mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    except OSError:
        return None


def fall_back_to_simulator() -> str | None:
    """Load the simulator where there is no CUDA device; for the benchmark and the tests.

    Returns
    -------
    str or None
        The one line to say when the simulator stands in by itself, else None.
    """
    if choice() != "auto" or simulator_is_loaded() or _real_driver_works():
        return None
    _load_simulator()
    return FALLBACK_NOTICE


def _load_simulator() -> None:
    if not simulator_is_loaded():
        from vmmcy import sim

        sim.load()


def _real_driver_works() -> bool:
    """Ask in another process, since a libcuda once loaded here could not be replaced."""
    import subprocess
    import sys

    answer = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, check=False)
    return answer.returncode == 0
