"""Which ``libcuda`` this process uses: a real one, or the simulator.

``VMMCY_DRIVER`` decides at import: ``sim`` loads the simulator, ``cuda`` insists
on a real driver, ``auto`` (the default) takes a real one. Nothing here calls
``cuInit``: a fork before first use stays possible.
"""

import os

VARIABLE = "VMMCY_DRIVER"
CHOICES = ("auto", "cuda", "sim")
FALLBACK_NOTICE = "vmmcy: no CUDA device here, running on the simulated driver"

_PROBE = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
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
    from vmmcy import sim

    return sim.is_loaded()


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
    from vmmcy import sim

    if not sim.is_loaded():
        sim.load()


def _real_driver_works() -> bool:
    """Ask in another process, since a libcuda once loaded here could not be replaced."""
    import subprocess
    import sys

    answer = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, check=False)
    return answer.returncode == 0
