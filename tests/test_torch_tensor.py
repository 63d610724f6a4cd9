"""Tensors at an address, as far as a torch without CUDA can show: bytes of the CPU stand in."""

import ctypes
import gc
import weakref

import pytest
import torch_help
from arena_help import BASE, FREE, MIB

torch = torch_help.any_torch()

from vmmcy import BumpArena  # noqa: E402
from vmmcy.sglang import BumpArenaStub, tensor_from_pointer  # noqa: E402
from vmmcy.torch import (  # noqa: E402
    BackedPool,
    GraphPoolBorrower,
    KvArena,
    allocator,
    free_runs,
)
from vmmcy.torch.tensor import tensor_at, view_of  # noqa: E402

CPU = torch.device("cpu")
ALIGNED = 1 << 40


class Owner:
    """Whatever has to outlive the views."""


@pytest.fixture
def memory():
    return ctypes.create_string_buffer(bytes(range(64)), 64)


def over(memory, sizes, dtype, owner=None):
    return view_of(ctypes.addressof(memory), len(memory), sizes, dtype, CPU, owner)


@pytest.mark.parametrize(
    "dtype",
    [torch.uint8, torch.bool, torch.bfloat16, torch.float8_e4m3fn, torch.float64, torch.complex64],
)
def test_any_dtype_lies_over_the_bytes_that_are_there(memory, dtype):
    tensor = over(memory, (2, 16 // dtype.itemsize), dtype)
    assert tensor.data_ptr() == ctypes.addressof(memory)
    assert (tensor.dtype, tuple(tensor.shape)) == (dtype, (2, 16 // dtype.itemsize))
    assert tensor.is_contiguous()
    assert tensor.view(torch.uint8).flatten().tolist() == list(range(32))


def test_the_storage_is_all_the_bytes_and_cannot_grow(memory):
    tensor = over(memory, (3,), torch.int32)
    assert tensor.untyped_storage().nbytes() == 64
    with pytest.raises(RuntimeError, match="not resizable"):
        tensor.resize_(17)


def test_the_owner_lives_until_the_last_view_is_gone(memory):
    owner = Owner()
    alive = weakref.ref(owner)
    tensor = over(memory, (4, 4), torch.float32, owner)
    del owner
    part = tensor[1:, ::2].t()
    del tensor
    gc.collect()
    assert alive() is not None
    del part
    assert alive() is None


def test_a_refused_tensor_keeps_no_owner(memory):
    owner = Owner()
    alive = weakref.ref(owner)
    with pytest.raises(ValueError, match="but there are 64$"):
        over(memory, (17,), torch.float32, owner)
    del owner
    assert alive() is None


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        ({"address": 0}, ValueError, "address must be at least 1"),
        ({"address": -8}, ValueError, "address must not be negative"),
        ({"address": 1.0}, TypeError, "address must be an integer"),
        ({"address": ALIGNED + 2}, ValueError, "is not a multiple of 4, the bytes of a"),
        ({"shape": (4, -1)}, ValueError, r"shape must not be negative, got \(4, -1\)"),
        ({"shape": (4, 0)}, ValueError, r"shape \(4, 0\) has no elements"),
        ({"shape": (4, 1.0)}, TypeError, "a dimension of shape must be an integer, not float 1.0"),
        ({"shape": 4}, TypeError, "shape must be an iterable of integers, not int 4"),
        ({"shape": (0, 10**5000)}, ValueError, "a dimension of shape <int of 16610 bits> does not"),
        ({"dtype": torch.quint8}, ValueError, "dtype torch.quint8 is quantized"),
        ({"shape": (1 << 62,)}, ValueError, "end past the address space"),
        ({"dtype": "float32"}, TypeError, "dtype must be a torch.dtype"),
        ({"device": "cpu"}, ValueError, "device must be a CUDA device, got 'cpu'"),
        ({"device": "meta"}, ValueError, "device must be a CUDA device, got 'meta'"),
        ({"device": "gpu"}, ValueError, "device must be a CUDA device, got 'gpu'"),
        ({"device": None}, TypeError, "device must be an integer, not NoneType None"),
        ({"device": -1}, ValueError, "device"),
    ],
)
def test_bad_arguments_are_named(wrong, error, text):
    good = {"address": ALIGNED, "shape": (4,), "dtype": torch.float32, "device": "cuda:0"}
    with pytest.raises(error, match=text):
        tensor_at(**{**good, **wrong})


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        ({"pointer": "1"}, TypeError, "pointer must be an integer"),
        ({"pointer": -1}, ValueError, "pointer must not be negative"),
        ({"pointer": 0}, ValueError, "pointer must be at least 1, got 0"),
        ({"pointer": ALIGNED + 1, "dtype": torch.int16}, ValueError, "is not a multiple of 2, the"),
        ({"dtype": torch.qint8}, ValueError, "dtype torch.qint8 is quantized"),
        ({"nbytes": 8.0}, TypeError, "nbytes must be an integer"),
        ({"shape": (3,), "dtype": torch.float32}, ValueError, "is 12 bytes, but there are 8"),
        ({"dtype": torch.float32}, ValueError, "is 32 bytes, but there are 8"),
        ({"dtype": int}, TypeError, "dtype must be a torch.dtype"),
        ({"device_id": True}, TypeError, "device_id must be an integer"),
    ],
)
def test_the_engines_tensor_names_bad_arguments_too(wrong, error, text):
    with pytest.raises(error, match=text):
        tensor_from_pointer(**{"pointer": ALIGNED, "nbytes": 8, "device_id": 0, **wrong})


# ---- the allocator


def test_only_an_open_arena_makes_an_allocator():
    with pytest.raises(TypeError, match="^owner must be a BumpArena or BackedSegments, not int$"):
        allocator.pluggable_allocator(0)
    with BumpArena([(BASE, MIB)]) as arena:
        pass
    with pytest.raises(RuntimeError, match="^pluggable_allocator: the owner is closed"):
        allocator.pluggable_allocator(arena)


WITHOUT_CUDA = {
    "an allocator": lambda: BumpArenaStub().allocator,
    "a tensor": lambda: tensor_at(ALIGNED, (4,), torch.float32, 0),
    "an engine's tensor": lambda: tensor_from_pointer(ALIGNED, 8, device_id=0),
    "a borrower": lambda: GraphPoolBorrower(None),
    "runs": lambda: free_runs((1, 1)),
    "a pool": BackedPool,
    "a cache": lambda: KvArena([((4,), torch.float32)]),
}


@pytest.mark.skipif(torch.backends.cuda.is_built(), reason="needs a torch without CUDA")
@pytest.mark.parametrize("wanted", WITHOUT_CUDA)
def test_a_torch_without_cuda_is_told(wanted):
    with pytest.raises(RuntimeError, match=r"^torch .* was built without CUDA: install one"):
        WITHOUT_CUDA[wanted]()


def test_an_allocator_is_kept_until_its_arena_is_closed_and_all_is_freed():
    arena = BumpArena([(BASE, MIB)])
    address = arena.allocate(4096)
    lent = Owner()
    alive = weakref.ref(lent)
    allocator.lend(lent, arena, arena.entry_points)
    del lent
    others = []

    def lend_another():
        others.append(BumpArena())
        allocator.lend(Owner(), others[-1], others[-1].entry_points)

    lend_another()
    assert alive() is not None
    arena.close(force=True)
    lend_another()
    assert alive() is not None
    entry_points = allocator._lent[0].entry_points
    FREE(entry_points.free_address)(address, 4096, 0, None)
    lend_another()
    assert alive() is None
    for other in others:
        other.close()
    with BumpArena() as last:
        allocator.lend(Owner(), last, last.entry_points)
        assert len(allocator._lent) == 1
    last.close()
