"""Which driver a process gets, and that importing is free of side effects."""

import os
import subprocess
import sys

import pytest

from vmmcy import _loader


def python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a process of its own with `variables` in its environment."""
    kept = {name: value for name, value in os.environ.items() if name != _loader.VARIABLE}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**kept, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("chosen", ["auto", "cuda"])
def test_import_brings_neither_torch_nor_simulator_nor_slow_bindings(chosen):
    seen = python(
        "import sys, vmmcy\n"
        "slow = ('torch', 'vmmcy.sim', 'vmmcy.sharing', 'vmmcy.torch', 'cuda.bindings.driver')\n"
        "print([name for name in slow if name in sys.modules])",
        VMMCY_DRIVER=chosen,
    )
    assert seen.stdout.strip() == "[]", seen.stderr


def test_import_and_arena_never_initialise_the_driver():
    seen = python(
        "import vmmcy\n"
        "with vmmcy.BumpArena([(1 << 40, 1 << 20)]) as arena:\n"
        "    arena.free(arena.allocate(512), 512)\n"
        "from vmmcy import sim\n"
        "print(sim.calls())",
        VMMCY_DRIVER="sim",
    )
    assert seen.stdout.strip() == "{}", seen.stderr


def test_simulator_is_chosen_at_import():
    seen = python("import vmmcy.sim; print(vmmcy.sim.is_loaded())", VMMCY_DRIVER="sim")
    assert seen.stdout.strip() == "True", seen.stderr


def test_unknown_choice_is_refused_by_name():
    seen = python("import vmmcy", VMMCY_DRIVER="gpu")
    assert "ValueError: VMMCY_DRIVER must be one of auto, cuda, sim, got 'gpu'" in seen.stderr


def test_cuda_is_insisted_on_where_the_simulator_is_loaded():
    seen = python(
        "import os\n"
        "import vmmcy.sim; vmmcy.sim.load()\n"
        "os.environ['VMMCY_DRIVER'] = 'cuda'\n"
        "vmmcy._loader.select_driver()"
    )
    assert "RuntimeError: VMMCY_DRIVER=cuda, but this process has loaded" in seen.stderr


@pytest.mark.parametrize("chosen", ["auto", "cuda"])
def test_without_a_driver_the_first_use_says_how_to_get_one(chosen):
    if _loader._real_driver_works():
        pytest.skip("needs a machine without a CUDA driver")
    seen = python("import vmmcy; vmmcy.VmmReservation(2 << 20)", VMMCY_DRIVER=chosen)
    assert "vmmcy.errors.CudaDriverNotFoundError: no CUDA driver on this machine" in seen.stderr
    assert "VMMCY_DRIVER=sim" in seen.stderr


def test_fork_before_first_use_is_legitimate():
    seen = python(
        "import os, vmmcy\n"
        "child = os.fork()\n"
        "reservation = vmmcy.VmmReservation(64 << 20)\n"
        "reservation.map(0, 2 << 20)\n"
        "reservation.close()\n"
        "if child: print(os.waitpid(child, 0)[1])",
        VMMCY_DRIVER="sim",
    )
    assert seen.stdout.strip() == "0", seen.stderr


def test_fork_after_first_use_is_refused_clearly_in_the_child():
    seen = python(
        "import os, sys, vmmcy\n"
        "vmmcy.VmmReservation(64 << 20).close()\n"
        "child = os.fork()\n"
        "if child: sys.exit(os.waitpid(child, 0)[1] >> 8)\n"
        "try: vmmcy.VmmReservation(64 << 20)\n"
        "except RuntimeError as error: print(error, flush=True)",
        VMMCY_DRIVER="sim",
    )
    assert seen.returncode == 0, seen.stderr
    assert "does not survive a fork" in seen.stdout
    assert "'spawn'" in seen.stdout
