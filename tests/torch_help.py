"""Which torch a test has: any, or one that really runs on a device."""

import pytest

from vmmcy import _loader


def any_torch():
    """The torch that is there, whatever it was built for, or a skip."""
    return pytest.importorskip("torch", reason="needs torch: pip install 'vmmcy[torch]'")


def cuda_torch():
    """A torch with a CUDA device, or a skip of the whole module."""
    if _loader.simulator_is_loaded():
        pytest.skip(
            "needs a real driver: torch does not start on the simulator", allow_module_level=True
        )
    torch = any_torch()
    if not torch.cuda.is_available():
        pytest.skip("needs torch with a CUDA device", allow_module_level=True)
    return torch
