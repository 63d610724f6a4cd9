"""Torch's tensors as graph inputs, against a walk by hand."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch_help
from sim_helpers import environment

torch = torch_help.cuda_torch()

from vmmcy import VmmReservation, resolve_graph_inputs  # noqa: E402
from vmmcy.torch import graph_inputs, tensor_at  # noqa: E402

MIB = 1 << 20
TENSOR = torch.zeros((6, 8), device="cuda")


@pytest.mark.parametrize(
    ("view", "start", "size"),
    [
        (lambda t: t, 0, 192),
        (lambda t: t[1], 32, 32),
        (lambda t: t[:, 1], 4, 164),
        (lambda t: t.t()[2:5, 1:], 40, 140),
        (lambda t: t[1:2, :3].expand(7, 3), 32, 12),
        (lambda t: t[3, 4], 112, 4),
    ],
)
def test_a_view_is_the_bytes_that_it_spans(view, start, size):
    (pointer,), (span,) = graph_inputs([view(TENSOR)])
    assert (pointer - np.uint64(TENSOR.data_ptr()), span) == (start, size)


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        (lambda: 3, TypeError, "must be a tensor, not int"),
        (lambda: torch.zeros(3), ValueError, "must be on a CUDA device, but is on cpu"),
        (lambda: torch.zeros(3, device="meta"), ValueError, "but is on meta"),
        (lambda: torch.zeros((3, 0), device="cuda"), ValueError, r"no elements: .* \(3, 0\)"),
        (lambda: TENSOR[:, 2:2], ValueError, r"no elements: its shape is \(6, 0\)"),
        (lambda: TENSOR.to_sparse(), ValueError, "is not dense: its layout is torch.sparse_coo"),
    ],
)
def test_what_is_no_input_is_named_by_its_index(wrong, error, text):
    with pytest.raises(error, match=f"^graph input 1 .*{text}"):
        graph_inputs([TENSOR, wrong()])


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_inputs_on_two_devices_are_refused():
    with pytest.raises(ValueError, match="^graph input 1 is on cuda:1, but graph input 0 is on"):
        graph_inputs([TENSOR, torch.zeros(3, device="cuda:1")])


def test_an_input_over_two_mappings_resolves_to_both():
    with VmmReservation(8 * MIB, device_id=0) as reservation:
        reservation.commit(0, 8 * MIB, chunk_bytes=4 * MIB)
        tensor = tensor_at(reservation.base + 3 * MIB, (2 * MIB,), torch.uint8, 0)
        found = resolve_graph_inputs(*graph_inputs([tensor, tensor[:MIB]]), device_id=0)
        bases = [(reservation.base, 4 * MIB), (reservation.base + 4 * MIB, 4 * MIB)]
        assert found.as_lists() == (bases, [[0, 1], [0]], [3 * MIB, 3 * MIB])


EXPANDABLE = """
import json, torch
from cuda.bindings import driver
import vmmcy
from vmmcy.torch import graph_inputs

def by_hand(tensor):
    at, end, ranges = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes, []
    while at < end:
        status, base, size = driver.cuMemGetAddressRange(at)
        assert int(status) == 0, status
        ranges.append((int(base), int(size)))
        at = int(base) + int(size)
    return ranges

MIB = 1 << 20
inputs = [torch.zeros(size * MIB, dtype=torch.uint8, device="cuda") for size in (50, 1, 90, 3)]
graph = torch.cuda.CUDAGraph()
inputs[0].add(1)
torch.cuda.synchronize()
with torch.cuda.graph(graph):
    result = inputs[0].add(1)
bases, chunks, offsets = vmmcy.resolve_graph_inputs(
    *graph_inputs([*inputs, result, inputs[2][MIB:]]), require_vmm=True
).as_lists()
tensors = [*inputs, result, inputs[2][MIB:]]
print(json.dumps({
    "ours": [[bases[index] for index in indices] for indices in chunks],
    "by hand": [by_hand(tensor) for tensor in tensors],
    "offsets": offsets,
    "offsets by hand": [t.data_ptr() - by_hand(t)[0][0] for t in tensors],
}))
"""


def test_inputs_with_expandable_segments_resolve_to_all_their_chunks():
    seen = subprocess.run(
        [sys.executable, "-c", EXPANDABLE],
        env=environment(VMMCY_DRIVER="cuda", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert seen.returncode == 0, seen.stderr
    found = json.loads(seen.stdout)
    assert found["ours"] == found["by hand"]
    assert found["offsets"] == found["offsets by hand"]
    assert [len(ranges) > 1 for ranges in found["ours"]][:3] == [True, False, True], found["ours"]
