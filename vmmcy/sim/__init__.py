"""A CPU-only ``libcuda.so.1``: the compiled code of vmmcy runs where there is no GPU.

This room stands alone: of vmmcy it knows ``vmmcy._loader``, which alone knows it. `load` puts
the simulator in the place of the driver, for this process. For a tree of processes set
``LD_LIBRARY_PATH`` to the folder of `library_path` instead. A process that uses the simulator
cannot use a real driver, nor CUDA torch.

Memory is ordinary memory: a mapped and accessible address can be read and written by the
CPU, aliases of one allocation share their bytes, and an exported file descriptor carries
it to another process. Each process has devices of its own, so what one uses is not
missing in another; imported memory counts where it was created. Statuses and values
follow a recording of a real driver (``tests/h200_580.json``).
"""

import ctypes
import functools
import os
from pathlib import Path

from vmmcy import _loader

__all__ = [
    "answer_range",
    "calls",
    "fail",
    "is_loaded",
    "library_path",
    "live",
    "load",
    "reset",
]

MAX_DEVICES = 32
MAX_MEMORY_BYTES = 1 << 46
CUDA_ERROR_UNKNOWN = 999

# In the order of count_alive in sim_control.c; the first five are public.
_ALIVE = (
    "reservations",
    "handles",
    "mappings",
    "mapped_bytes",
    "fds",
    "other memory",
    "streams",
    "events",
    "created contexts",
    "graphs",
)
_PUBLIC = 5


def library_path() -> str:
    """Return the absolute path of the simulator's library.

    Returns
    -------
    str
        Where the build puts it, whether or not it has been built.
    """
    return str(Path(__file__).resolve().parent / _loader.LIBRARY)


def is_loaded() -> bool:
    """Tell whether this process's ``libcuda.so.1`` is the simulator.

    Returns
    -------
    bool
        False where a real driver is loaded, or none yet.
    """
    return _loader.simulator_is_loaded()


def load(devices: int = 1, memory_bytes: int = 16 << 30, granularity: int = 2 << 20) -> None:
    """Make the simulator this process's CUDA driver, or configure it anew.

    Never calls ``cuInit``. A second call takes effect at once: memory and granularity can
    change whenever nothing is alive, the number of devices only until ``cuInit``, since
    callers count them once and remember. Primary contexts keep their handles.

    Parameters
    ----------
    devices : int, optional
        Number of devices, 1 to 32.
    memory_bytes : int, optional
        Physical memory of each device, in bytes; at least one granularity. It is
        sparse: only what is written takes memory of the machine.
    granularity : int, optional
        Unit of sizes and addresses, in bytes: a power of two, at least a page.

    Raises
    ------
    TypeError
        An argument is no int. Nothing has changed.
    ValueError
        An argument is out of its range. Nothing has changed.
    RuntimeError
        A real ``libcuda.so.1`` is loaded already, or the library has not been built;
        another configuration is asked for while something is alive, or another number
        of devices after ``cuInit``. Nothing has changed.
    """
    _check("devices", devices, 1, MAX_DEVICES)
    _check("granularity", granularity, os.sysconf("SC_PAGE_SIZE"), 1 << 30)
    if granularity & (granularity - 1):
        raise ValueError(f"granularity must be a power of two, got {granularity}")
    _check("memory_bytes", memory_bytes, granularity, MAX_MEMORY_BYTES)
    if not is_loaded():
        _load_library()
    library = _library()
    current = (ctypes.c_uint64 * 4)()
    library.vmmcy_sim_configuration(current)
    *configuration, initialised = current
    if configuration == [devices, memory_bytes, granularity]:
        return
    if initialised and devices != configuration[0]:
        raise RuntimeError(
            f"the number of devices stays {configuration[0]} once the driver is in use: "
            f"call vmmcy.sim.load(devices={devices}) before the first driver call"
        )
    if not library.vmmcy_sim_configure(devices, memory_bytes, granularity):
        alive = ", ".join(f"{count} {name}" for name, count in _alive().items() if count)
        raise RuntimeError(
            f"the simulator cannot be configured anew while anything is alive: {alive}"
        )


def live() -> dict[str, int]:
    """Count what is alive in this process.

    Returns
    -------
    dict of str to int
        ``reservations``; ``handles``, the references to allocation handles that are yet
        to be released (one for each create, import and retain); ``mappings`` and
        ``mapped_bytes``; ``fds``, the allocations which the simulator holds a file
        descriptor of their own for, since they were exported or imported here and are
        not yet released and unmapped. Descriptors that an export gave out are the
        caller's, and are not counted.

    Raises
    ------
    RuntimeError
        The simulator is not loaded.
    """
    return dict(list(_alive().items())[:_PUBLIC])


def calls() -> dict[str, int]:
    """Count the driver calls since the last `reset`, those that failed too.

    Returns
    -------
    dict of str to int
        By name as in CUDA's documentation (``cuMemGetAddressRange``, without a version);
        a call that was not made is not in it. Looking up an entry point is no call.

    Raises
    ------
    RuntimeError
        The simulator is not loaded.
    """
    library = _library()
    counts = (ctypes.c_uint64 * len(_call_names()))()
    library.vmmcy_sim_calls(counts)
    return {name: count for name, count in zip(_call_names(), counts, strict=True) if count}


def fail(call: str, nth: int = 1, times: int = 1, status: int | str = CUDA_ERROR_UNKNOWN) -> None:
    """Make driver calls fail, without effect. Several requests may stand at once.

    Parameters
    ----------
    call : str
        Name as in CUDA's documentation, without a version.
    nth : int, optional
        Which of the next calls of that name fails first; 1 is the very next.
    times : int, optional
        How many calls in a row fail from there on.
    status : int or str, optional
        What they answer: a value, or a name such as ``"CUDA_ERROR_OUT_OF_MEMORY"``.

    Raises
    ------
    TypeError
        An argument has the wrong type. Nothing has changed.
    ValueError
        No such call or status, or a number out of its range. Nothing has changed.
    RuntimeError
        The simulator is not loaded.
    """
    if not isinstance(call, str):
        raise TypeError(f"call must be a str, not {type(call).__name__}")
    if not isinstance(status, str):
        _check("status", status, 1, (1 << 31) - 1)
    _check("nth", nth, 1, 1 << 62)
    _check("times", times, 1, 1 << 62)
    library = _library()
    if call not in _call_names():
        raise ValueError(f"call must be one that the simulator serves, got {call[:80]!r}")
    if isinstance(status, str):
        status = _status_of(status)
    if not library.vmmcy_sim_fail(_call_names().index(call), nth, times, status):
        raise MemoryError


def answer_range(address: int, base: int, size: int) -> None:
    """Prepare what the next range query for an address answers, right or wrong.

    Several answers for one address are given in the order in which they were prepared.

    Parameters
    ----------
    address, base : int
        The address asked for and the base to answer, 0 to 2**64 - 1.
    size : int
        The size to answer, in bytes, 0 to 2**64 - 1.

    Raises
    ------
    TypeError
        An argument is no int. Nothing has changed.
    ValueError
        An argument does not fit in 64 bits. Nothing has changed.
    RuntimeError
        The simulator is not loaded.
    """
    for name, value in (("address", address), ("base", base), ("size", size)):
        _check(name, value, 0, (1 << 64) - 1)
    if not _library().vmmcy_sim_answer_range(address, base, size):
        raise MemoryError


def reset() -> None:
    """Forget what `fail` and `answer_range` asked for, and count calls from 0 again.

    Raises
    ------
    RuntimeError
        The simulator is not loaded.
    """
    _library().vmmcy_sim_reset()


def _check(name: str, value: object, lowest: int, highest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if not lowest <= value <= highest:
        # CPython refuses to print thousands of digits, in words of its own.
        bits = value.bit_length()
        got = value if bits <= 64 else f"one of {bits} bits"
        raise ValueError(f"{name} must be from {lowest} to {highest}, got {got}")


def _status_of(name: str) -> int:
    # C would stop reading at a NUL.
    known = name.isascii() and "\0" not in name
    status: int = _library().vmmcy_sim_status(name.encode()) if known else 0
    if status <= 0:
        raise ValueError(f"status must name an error of the driver, got {name[:80]!r}")
    return status


def _alive() -> dict[str, int]:
    counts = (ctypes.c_uint64 * len(_ALIVE))()
    _library().vmmcy_sim_live(counts)
    return dict(zip(_ALIVE, counts, strict=True))


@functools.cache
def _call_names() -> tuple[str, ...]:
    names = iter(map(_library().vmmcy_sim_call_name, range(1 << 16)))
    return tuple(name.decode() for name in iter(names.__next__, None))


def _load_library() -> None:
    # Two libraries of one SONAME: the second would be silently ignored.
    if _loader.loaded_library() is not None:
        raise RuntimeError(
            f"a real {_loader.LIBRARY} is loaded in this process already: load the simulator "
            "before the first driver call, in a process of its own"
        )
    if not Path(library_path()).exists():
        raise RuntimeError(
            f"the simulator has not been built: there is no {library_path()}; "
            f"run 'pip install -e .' or 'python setup.py build_ext --inplace'"
        )
    ctypes.CDLL(library_path(), mode=os.RTLD_NOW | os.RTLD_GLOBAL)


@functools.cache
def _bound_library() -> ctypes.CDLL:
    library = ctypes.CDLL(_loader.LIBRARY, mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    counts = ctypes.POINTER(ctypes.c_uint64)
    u64, i32, flag = ctypes.c_uint64, ctypes.c_int, ctypes.c_bool
    for name, answer, *arguments in (
        ("vmmcy_sim_configuration", None, counts),
        ("vmmcy_sim_configure", flag, i32, u64, u64),
        ("vmmcy_sim_live", None, counts),
        ("vmmcy_sim_calls", None, counts),
        ("vmmcy_sim_call_name", ctypes.c_char_p, i32),
        ("vmmcy_sim_status", i32, ctypes.c_char_p),
        ("vmmcy_sim_fail", flag, i32, u64, u64, i32),
        ("vmmcy_sim_answer_range", flag, u64, u64, u64),
        ("vmmcy_sim_reset", None),
    ):
        function = getattr(library, name)
        function.restype = answer
        function.argtypes = arguments
    return library


def _library() -> ctypes.CDLL:
    if not is_loaded():
        raise RuntimeError(
            "the simulated driver is not loaded in this process: call vmmcy.sim.load(), or set "
            "VMMCY_DRIVER=sim before importing vmmcy"
        )
    return _bound_library()
