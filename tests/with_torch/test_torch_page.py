"""The examples of the pages do what they say, and an array interface is taken as it is."""

import re
from pathlib import Path

import pytest
import torch_help

torch = torch_help.cuda_torch()

import vmmcy  # noqa: E402

DOCS = Path(__file__).parents[2] / "docs"
BLOCKS = [
    (f"{page.name}, block {number}", block)
    for page in (DOCS / "torch.md", DOCS / "sleep.md", DOCS / "sglang.md")
    if page.is_file()
    for number, block in enumerate(
        re.findall(r"^```python\n(import \w+\n.*?)^```", page.read_text(), re.M | re.S)
    )
]
G = vmmcy.get_device_granularity(0)


@pytest.mark.skipif(not BLOCKS, reason="needs a checkout: docs are not installed")
@pytest.mark.parametrize(("name", "block"), BLOCKS, ids=[name for name, _ in BLOCKS])
def test_an_example_runs(name, block):
    if "import cupy" in block:
        pytest.importorskip("cupy")
    exec(compile(block, name, "exec"), {})


def test_torch_takes_a_backed_range_and_keeps_the_reservation():
    reservation = vmmcy.VmmReservation(2 * G, device_id=0)
    reservation.map(0, G)
    tensor = torch.as_tensor(reservation.backed(0, G), device="cuda")
    assert (tensor.data_ptr(), tensor.nbytes) == (reservation.base, G)
    base = reservation.base
    del reservation
    view = tensor[1::2]
    del tensor
    view.fill_(7)
    assert (view == 7).all().item()
    assert view.data_ptr() == base + 1
    torch.cuda.synchronize()
    with pytest.warns(ResourceWarning, match="was dropped without close"):
        del view
