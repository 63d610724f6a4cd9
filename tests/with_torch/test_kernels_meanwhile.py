"""No kernel loses memory that is given back, paused or freed while it reads; a short run."""

import pytest
import torch_help

torch_help.cuda_torch()

import kernels_meanwhile  # noqa: E402

TURNS, STREAMS, SECONDS = 16, 4, 0.1


@pytest.mark.parametrize("way", kernels_meanwhile.WAYS)
def test_a_kernel_reads_what_has_to_be_there_to_its_end(way):
    findings = kernels_meanwhile.found(way, TURNS, STREAMS, SECONDS)
    findings.pop("running")
    assert findings == {"turns": TURNS, "wrong": 0, "unfinished": 0}
