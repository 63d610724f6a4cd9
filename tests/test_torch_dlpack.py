"""Memory as a DLPack capsule: its owner lives as long as any view, whoever takes it."""

import ctypes
import gc
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest
from sim_helpers import environment

from vmmcy.torch import _dlpack

CPU = 1


class Owner:
    """Whatever has to outlive the views."""


class Taken:
    """What NumPy wants around a capsule."""

    def __init__(self, capsule):
        self.capsule = capsule

    def __dlpack__(self, **_):
        return self.capsule

    def __dlpack_device__(self):
        return CPU, 0


@pytest.fixture
def memory():
    return ctypes.create_string_buffer(b"abcdefgh", 8)


def lend(memory):
    """A capsule of the memory, and a weak reference to its owner, which nobody else has."""
    owner = Owner()
    capsule = _dlpack.capsule(ctypes.addressof(memory), len(memory), CPU, 0, owner)
    return capsule, weakref.ref(owner)


def test_the_bytes_are_those_at_the_address(memory):
    capsule, _ = lend(memory)
    view = np.from_dlpack(Taken(capsule))
    assert (view.dtype, view.shape, bytes(view)) == (np.uint8, (8,), b"abcdefgh")
    memory[0] = b"z"
    assert view[0] == ord("z")


def test_the_owner_lives_until_the_last_view_is_gone(memory):
    capsule, owner = lend(memory)
    view = np.from_dlpack(Taken(capsule))
    del capsule
    part = view[2:4].reshape(2, 1)
    del view
    gc.collect()
    assert owner() is not None
    del part
    assert owner() is None


def test_a_capsule_that_nobody_took_lets_go(memory):
    capsule, owner = lend(memory)
    assert owner() is not None
    del capsule
    assert owner() is None


def test_a_taken_capsule_lets_go_once(memory):
    capsule, owner = lend(memory)
    view = np.from_dlpack(Taken(capsule))
    del view
    assert owner() is None
    del capsule


def test_no_owner_is_needed(memory):
    before = sys.getrefcount(None)
    for _ in range(1000):
        _dlpack.capsule(ctypes.addressof(memory), 8, CPU, 0, None)
    assert abs(sys.getrefcount(None) - before) < 1000


class ManagedTensor(ctypes.Structure):
    """``DLManagedTensor`` as the specification lays it out."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


def managed_tensor(capsule):
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype = ctypes.POINTER(ManagedTensor)
    get_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
    return get_pointer(capsule, b"dltensor")


def test_any_device_can_be_named_and_no_address_is_looked_at():
    unmapped = (1 << 46) + 4096
    capsule = _dlpack.capsule(unmapped, 1 << 40, 2, 5, None)
    tensor = managed_tensor(capsule).contents
    assert (tensor.data, tensor.device_type, tensor.device_id) == (unmapped, 2, 5)
    assert (tensor.ndim, tensor.shape[0], tensor.strides[0]) == (1, 1 << 40, 1)
    assert (tensor.code, tensor.bits, tensor.lanes, tensor.byte_offset) == (1, 8, 1, 0)


def test_the_deleter_may_be_called_without_the_gil_on_any_thread(memory):
    capsules = [lend(memory) for _ in range(64)]
    rename = ctypes.pythonapi.PyCapsule_SetName
    rename.argtypes = (ctypes.py_object, ctypes.c_char_p)

    def take_and_delete(capsule):
        tensor = managed_tensor(capsule)
        rename(capsule, b"used_dltensor")
        # A foreign function is called without the GIL.
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(tensor.contents.deleter)(
            ctypes.cast(tensor, ctypes.c_void_p)
        )

    threads = [threading.Thread(target=take_and_delete, args=(c,)) for c, _ in capsules]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [owner() for _, owner in capsules] == [None] * 64


AT_EXIT = """
import ctypes, sys
import numpy as np
from test_torch_dlpack import Taken, lend

memory = ctypes.create_string_buffer(b"abcdefgh", 8)
capsule, owner = lend(memory)
view = np.from_dlpack(Taken(capsule))
sys.kept_to_the_end = view, lend(memory)[0]
"""


def test_views_that_outlive_the_interpreter_do_no_harm():
    seen = subprocess.run(
        [sys.executable, "-W", "error", "-c", AT_EXIT],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (seen.returncode, seen.stderr) == (0, "")
