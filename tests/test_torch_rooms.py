"""The torch rooms as far as a torch without CUDA can show: refusals, arithmetic, names."""

import ast
import copy
import itertools
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch_help
from arena_help import BASE, FREE, MALLOC, MIB

torch = torch_help.any_torch()

import vmmcy.torch  # noqa: E402
from vmmcy import BackedSegments, BumpArena  # noqa: E402
from vmmcy.torch import (  # noqa: E402
    GraphPoolBorrower,
    KvArena,
    backed_pool,
    graph_inputs,
    mem_pool,
    segment_bytes,
)
from vmmcy.torch.inputs import span_bytes  # noqa: E402
from vmmcy.torch.pool import check_backend, check_device  # noqa: E402

STUB = Path(vmmcy.torch.__file__).with_name("__init__.pyi")

# ---- names


@pytest.mark.parametrize("name", vmmcy.torch.__all__)
def test_a_public_name_loads_and_is_listed(name):
    assert getattr(vmmcy.torch, name) is not None
    assert name in dir(vmmcy.torch)


def test_the_types_name_the_same_rooms():
    stubbed = {
        alias.name: node.module.removeprefix("vmmcy.torch.")
        for node in ast.parse(STUB.read_text()).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert stubbed == vmmcy.torch._ROOMS


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="^module 'vmmcy.torch' has no attribute 'KvArea'$"):
        vmmcy.torch.KvArea  # noqa: B018


def test_the_package_alone_loads_no_torch():
    code = "import sys, vmmcy.torch; print('torch' in sys.modules, 'KvArena' in dir(vmmcy.torch))"
    environment = {**os.environ, "VMMCY_DRIVER": "auto"}
    seen = subprocess.run([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE)
    assert seen.stdout.split() == [b"False", b"True"]


@pytest.mark.parametrize("owner", [KvArena, GraphPoolBorrower])
def test_what_owns_memory_is_never_copied(owner):
    for act in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be copied or pickled: make another"):
            act(owner.__new__(owner))


# ---- pools


@pytest.mark.parametrize(
    ("nbytes", "expected"),
    [
        (0, 0),
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB - 511, 10 * MIB),  # rounded to 512 bytes first
        (10 * MIB, 10 * MIB),
        (10 * MIB + 1, 12 * MIB),
        (50 * MIB, 50 * MIB),
        (np.int64(51 * MIB), 52 * MIB),
    ],
)
def test_what_torch_will_ask_for(nbytes, expected):
    assert segment_bytes(nbytes) == expected


@pytest.mark.parametrize(("nbytes", "error"), [(-1, ValueError), (1.0, TypeError)])
def test_bytes_are_bytes(nbytes, error):
    with pytest.raises(error, match="^nbytes must "):
        segment_bytes(nbytes)


def test_an_answer_past_64_bits_is_refused():
    with pytest.raises(ValueError, match=f"^{2**64 - 1} aligned up to 512 does not fit"):
        segment_bytes(2**64 - 1)


def test_a_pool_is_made_over_an_open_arena():
    with pytest.raises(TypeError, match="^arena must be a BumpArena, not list$"):
        mem_pool([(BASE, MIB)])
    with BumpArena([(BASE, MIB)]) as arena:
        pass
    with pytest.raises(RuntimeError, match="^mem_pool: the arena is closed"):
        mem_pool(arena)


@pytest.mark.skipif(hasattr(torch._C, "_cuda_customAllocator"), reason="needs a torch without CUDA")
def test_a_torch_without_cuda_is_told():
    with BumpArena([(BASE, MIB)]) as arena, pytest.raises(RuntimeError, match="without CUDA"):
        mem_pool(arena)


@pytest.mark.parametrize("fits", [(None, 1, 0), (0, 1, 0), (1, 2, 1)])
def test_an_arena_on_the_current_device_is_fine(fits):
    check_device(*fits)


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ((3, 2, 0), "is on device 3, but torch sees 2, counted from 0$"),
        ((1, 2, 0), r"is on device 1, but torch's current .* 0: .* inside torch.cuda.device\(1\)$"),
    ],
)
def test_an_arena_of_another_device_is_refused(where, text):
    with pytest.raises(ValueError, match=text):
        check_device(*where)


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        (("cudaMallocAsync", None), "allocator backend is 'cudaMallocAsync'"),
        (("pluggable", None), "allocator backend is 'pluggable'"),
        (("native", "1"), "PYTORCH_NO_CUDA_MEMORY_CACHING=1 has torch allocate past"),
    ],
)
def test_a_setting_that_goes_past_the_pool_is_told(setting, text):
    with pytest.raises(RuntimeError, match=text):
        check_backend(*setting)


@pytest.mark.parametrize("no_caching", [None, "0"])
def test_the_usual_settings_are_fine(no_caching):
    check_backend("native", no_caching)


# ---- graph inputs


VIEWS = {
    "whole": lambda t: t,
    "row": lambda t: t[1],
    "column": lambda t: t[:, 1],
    "steps": lambda t: t[::2, ::3],
    "transposed": lambda t: t.t(),
    "part of a transposed": lambda t: t.t()[2:5, 1:],
    "one": lambda t: t[3, 4],
    "expanded": lambda t: t[1:2, :3].expand(7, 3),
    "windows": lambda t: t.unfold(1, 3, 2),
    "overlapping": lambda t: t.as_strided((3, 3), (1, 1), 5),
    "empty": lambda t: t[:, 2:2],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float64])
def test_a_view_spans_the_bytes_that_it_can_touch(view, dtype):
    tensor = view(torch.zeros((6, 8), dtype=dtype))
    touched = [
        tensor[place].data_ptr() - tensor.data_ptr() + byte
        for place in itertools.product(*map(range, tensor.shape))
        for byte in range(tensor.itemsize)
    ]
    assert min(touched, default=0) == 0
    expected = max(touched, default=-1) + 1
    assert span_bytes(tensor.shape, tensor.stride(), tensor.itemsize) == expected
    if tensor.is_contiguous():
        assert tensor.nbytes == expected


def test_no_inputs_are_two_empty_arrays():
    for array in graph_inputs([]):
        assert (array.dtype, array.shape) == (np.uint64, (0,))


@pytest.mark.parametrize(
    ("tensors", "error", "text"),
    [
        (torch.zeros(3), TypeError, "tensors must be an iterable of tensors, not Tensor"),
        (3, TypeError, "tensors must be an iterable of tensors, not int"),
        ([3], TypeError, "graph input 0 must be a tensor, not int"),
        ([torch.zeros(3)], ValueError, "graph input 0 must be on a CUDA device, but is on cpu"),
        (
            iter([torch.zeros(3, device="meta")]),
            ValueError,
            "graph input 0 must be on a CUDA device, but is on meta",
        ),
    ],
)
def test_an_input_that_is_none_is_named(tensors, error, text):
    with pytest.raises(error, match=f"^{text}$"):
        graph_inputs(tensors)


# ---- KV arenas


@pytest.mark.parametrize(
    ("buffers", "error", "text"),
    [
        (3, TypeError, "buffers must be an iterable of"),
        ([], ValueError, "buffers is empty"),
        ([((3,), torch.int8), ((3, 0), torch.int8)], ValueError, "buffer 1 has no elements"),
        (
            [((1 << 62, 1 << 62), torch.int8)],
            ValueError,
            r"buffer 0: its size in bytes \d+ does not",
        ),
        ([torch.zeros(2)], TypeError, r"buffer 0 must be a \(shape, dtype\) pair"),
    ],
)
def test_buffers_are_pairs(buffers, error, text):
    with pytest.raises(error, match=f"^{text}"):
        KvArena(buffers, 0)


@pytest.mark.parametrize(
    ("buffer", "error", "text"),
    [
        ((3, 4), TypeError, "dtype must be a torch.dtype"),
        (((3, 4), "float32"), TypeError, "dtype must be a torch.dtype"),
        ((3, torch.int8), TypeError, "shape must be an iterable of integers, not int 3"),
        (((3,), torch.qint32), ValueError, "dtype torch.qint32 is quantized"),
        (((3, -1), torch.int8), ValueError, "shape must not be negative"),
    ],
)
def test_a_wrong_buffer_is_named(buffer, error, text):
    with pytest.raises(error, match=f"^{text}") as raised:
        KvArena([((3,), torch.int8), buffer], 0)
    assert raised.value.__notes__[-1] == "in buffer 1"


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        ({"device_id": "cuda:0"}, TypeError, "device_id must be an integer"),
        ({"device_id": -1}, ValueError, "device_id must be a device ordinal"),
        ({"device_id": 99}, ValueError, "device_id 99 is not a visible device"),
        ({"chunk_bytes": 1.5}, TypeError, "chunk_bytes must be an integer"),
        ({"chunk_bytes": 4096}, ValueError, "chunk_bytes 4096 is not a multiple of the gran"),
    ],
)
def test_other_arguments_are_named_too(wrong, error, text):
    with pytest.raises(error, match=f"^{text}"):
        KvArena([((3,), torch.int8)], **{"device_id": 0, **wrong})


# ---- pools that were dropped open


def test_dropped_segments_are_closed_by_whoever_comes_and_kept_while_they_are_out():
    dropped = [BackedSegments(device_id=0) for _ in range(40)]
    entry_points = dropped[0].entry_points
    address = MALLOC(entry_points.malloc_address)(MIB, 0, None)
    for segments in dropped:
        backed_pool._orphan(segments)
    with ThreadPoolExecutor(8) as threads:
        for closing in [threads.submit(backed_pool.close_orphans) for _ in range(8)]:
            closing.result()
    assert [segments.closed for segments in dropped] == [False, *[True] * 39]
    FREE(entry_points.free_address)(address, MIB, 0, None)
    backed_pool.close_orphans()
    assert dropped[0].closed
    assert not backed_pool._orphans
