"""The walk's contexts and threads: each thread is left as found, also after a failed call."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from cuda.bindings import driver
from walk_memory import checked, memory_of, plain_walk

from vmmcy import _loader
from vmmcy.errors import CudaDriverError
from vmmcy.graph_capture import (
    compute_graph_capture_bases,
    is_vmm_pointer,
    resolve_graph_inputs,
)
from vmmcy.properties import free_memory_bytes


@pytest.fixture
def memory():
    with memory_of() as memory:
        yield memory


def current_context() -> int:
    return int(checked(driver.cuCtxGetCurrent()))


def in_a_fresh_thread(function):
    """Run `function` in a thread without a context; give what it returned or raised."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function).result()


@pytest.mark.parametrize("device_id", [None, 0])
def test_a_thread_without_a_context(memory, device_id):
    # W6
    (base,) = memory.chunks(1)

    def resolve():
        assert current_context() == 0
        answer = compute_graph_capture_bases([(base + 3, 1)], device_id=device_id)
        assert current_context() == 0
        with pytest.raises(CudaDriverError):
            compute_graph_capture_bases([(0, 1)], device_id=device_id)
        assert current_context() == 0
        assert is_vmm_pointer(base)
        return answer

    assert in_a_fresh_thread(resolve) == ([(base, memory.granularity)], [[0]], [3])


@pytest.mark.parametrize("device_id", [None, 0])
def test_the_threads_own_context_is_used(memory, sim, device_id):
    (base,) = memory.chunks(1)
    before = current_context()
    sim.reset()
    compute_graph_capture_bases([(base, 1)], device_id=device_id)
    assert "cuCtxPushCurrent" not in sim.calls()
    assert current_context() == before


def test_many_threads_at_once(memory):
    bases = memory.chunks(*[1] * 48)
    together = threading.Barrier(8, timeout=30)

    def resolve(seed):
        random = np.random.default_rng(seed)
        pointers = random.choice(np.array(bases), 3000)
        sizes = random.integers(1, memory.granularity, 3000)
        together.wait()
        for _ in range(5):
            answer = resolve_graph_inputs(pointers, sizes)
        assert current_context() == 0
        return list(zip(pointers.tolist(), sizes.tolist(), strict=True)), answer.as_lists()

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(resolve, range(8)))
    for pairs, answer in answers:
        assert answer == plain_walk(pairs)


def test_every_driver_call_may_fail(memory, sim):
    # The fault sweep: the k-th call of each kind, in a thread that needs a context.
    unit = memory.granularity
    first, *_, last = memory.chunks(1, 2, 1, 1)
    inputs = [(last, unit), (first + 9, 5 * unit - 9), (first, 1)]

    def resolve():
        return compute_graph_capture_bases(inputs, device_id=0, require_vmm=True)

    def fail(call, nth):
        sim.reset()
        sim.fail(call, nth)
        with pytest.raises(CudaDriverError) as raised:
            resolve()
        assert raised.value.call == call
        assert raised.value.name == "CUDA_ERROR_UNKNOWN"
        assert sim.live()["handles"] == 0
        assert current_context() == 0
        assert resolve() == expected
        return raised.value

    expected = in_a_fresh_thread(resolve)
    sim.reset()
    in_a_fresh_thread(resolve)
    calls = sim.calls()
    assert calls == {
        "cuCtxGetCurrent": 1,
        "cuCtxPushCurrent": 1,
        "cuMemGetAddressRange": 4,
        "cuMemRetainAllocationHandle": 4,
        "cuMemRelease": 4,
        "cuCtxPopCurrent": 1,
    }
    for call, count in calls.items():
        for nth in range(1, count + 1):
            error = in_a_fresh_thread(lambda call=call, nth=nth: fail(call, nth))
            # The first allocation is met by input 0, the others by input 1.
            where = f"graph capture input {min(nth - 1, 1)}: " if count == 4 else ""
            assert error.detail.startswith(where)
            assert bool(error.detail) == bool(where)


def test_a_context_that_cannot_be_left_is_said_to_stay(memory, sim):
    (base,) = memory.chunks(1)

    def resolve():
        sim.fail("cuCtxPopCurrent", times=2)
        with pytest.raises(CudaDriverError, match="^cuCtxPopCurrent: ") as raised:
            compute_graph_capture_bases([(base, 1)], device_id=0)
        assert raised.value.__notes__ == [
            "and once more: the context stays current for this thread"
        ]
        assert current_context() != 0

    in_a_fresh_thread(resolve)


def test_a_driver_that_is_gone_has_left_its_context(memory, sim):
    (base,) = memory.chunks(1)
    sim.fail("cuCtxPopCurrent", status="CUDA_ERROR_DEINITIALIZED")
    found = in_a_fresh_thread(lambda: compute_graph_capture_bases([(base, 1)], device_id=0))
    assert found[1] == [[0]]


def test_the_first_error_is_raised_and_the_way_back_noted(memory, sim):
    (base,) = memory.chunks(1)

    def resolve():
        sim.fail("cuMemGetAddressRange")
        sim.fail("cuCtxPopCurrent")
        compute_graph_capture_bases([(base, 1)], device_id=0)

    with pytest.raises(CudaDriverError) as raised:
        in_a_fresh_thread(resolve)
    assert raised.value.call == "cuMemGetAddressRange"
    assert raised.value.__notes__ == [
        "on the way back: cuCtxPopCurrent: CUDA_ERROR_UNKNOWN (unknown error)"
    ]


@pytest.mark.parametrize("call", ["cuMemRetainAllocationHandle", "cuMemRelease"])
def test_is_vmm_pointer_raises_what_is_no_answer(memory, sim, call):
    (base,) = memory.chunks(1)
    sim.fail(call, status="CUDA_ERROR_INVALID_CONTEXT")
    with pytest.raises(CudaDriverError) as raised:
        is_vmm_pointer(base)
    assert (raised.value.call, raised.value.code) == (call, 201)
    assert sim.live()["handles"] == 0
    assert is_vmm_pointer(base)


def test_a_reference_that_cannot_be_given_back_is_said_to_stay(memory, sim):
    (base,) = memory.chunks(1)
    for look in (
        lambda: is_vmm_pointer(base),
        lambda: compute_graph_capture_bases([(base, 1)], device_id=0, require_vmm=True),
    ):
        sim.fail("cuMemRelease", times=2)
        with pytest.raises(CudaDriverError, match="^cuMemRelease: ") as raised:
            look()
        assert raised.value.__notes__ == [
            "and once more: a reference to the allocation stays, and with it the memory"
        ]
        sim.reset()
        # What stayed goes with this one: the second release is the one that was owed.
        handle = checked(driver.cuMemRetainAllocationHandle(base))
        checked(driver.cuMemRelease(handle))
        checked(driver.cuMemRelease(handle))


def test_a_driver_that_is_gone_has_taken_its_references_along(memory, sim):
    (base,) = memory.chunks(1)
    sim.fail("cuMemRelease", status="CUDA_ERROR_DEINITIALIZED")
    assert is_vmm_pointer(base)
    handle = checked(driver.cuMemRetainAllocationHandle(base))
    checked(driver.cuMemRelease(handle))
    checked(driver.cuMemRelease(handle))


def test_behind_another_error_a_context_that_stays_is_said_too(memory, sim):
    (base,) = memory.chunks(1)
    for call, act in (
        ("cuMemGetAddressRange", lambda: compute_graph_capture_bases([(base, 1)], device_id=0)),
        ("cuMemGetInfo", lambda: free_memory_bytes(0)),
    ):
        sim.fail(call)
        sim.fail("cuCtxPopCurrent", times=2)
        with pytest.raises(CudaDriverError, match=f"^{call}: ") as raised:
            in_a_fresh_thread(act)
        assert raised.value.__notes__ == [
            "on the way back: cuCtxPopCurrent: CUDA_ERROR_UNKNOWN (unknown error)",
            "and once more: the context stays current for this thread",
        ]
        sim.reset()


# --- Processes of their own: what is in use elsewhere must not show through ---------------------


def run(code: str, driver_choice: str) -> str:
    """Run a script in a new interpreter; it must say nothing but what it prints."""
    environment = {
        **os.environ,
        "VMMCY_DRIVER": driver_choice,
        "PYTHONPATH": os.pathsep.join(map(str, (Path(__file__).parent, *filter(None, sys.path)))),
    }
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr
    return ran.stdout


NO_DEVICE_IN_USE = """
from walk_memory import Memory, checked, driver
from vmmcy.errors import CudaDriverError
from vmmcy.graph_capture import compute_graph_capture_bases
checked(driver.cuInit(0))
memory = Memory()
base, = memory.chunks(1)
try:
    compute_graph_capture_bases([(base, 1)])
except CudaDriverError as error:
    assert error.name == "CUDA_ERROR_INVALID_CONTEXT", error
    assert error.detail.startswith("graph capture input 0: 1 bytes at "), error
    print(error.__notes__)
assert driver.cuDevicePrimaryCtxGetState(0)[2] == 0, "made a context unasked"
assert compute_graph_capture_bases([(base, 1)], device_id=0)[1] == [[0]]
assert int(checked(driver.cuCtxGetCurrent())) == 0
memory.close()
"""


def test_no_device_named_and_none_in_use():
    choice = "sim" if _loader.simulator_is_loaded() else "cuda"
    assert run(NO_DEVICE_IN_USE, choice) == (
        "['this thread has no current context and no device is in use: use one first, or pass "
        "device_id']\n"
    )


TWO_DEVICES = """
from vmmcy import sim
sim.load(devices=2)
from walk_memory import checked, driver, memory_of
from vmmcy.errors import CudaDriverError
from vmmcy.graph_capture import compute_graph_capture_bases

def active(device):
    return driver.cuDevicePrimaryCtxGetState(device)[2]

def refused(**options):
    try:
        compute_graph_capture_bases([(base, 2 * unit)], **options)
    except (CudaDriverError, ValueError) as error:
        return error

def without_context(function, **options):
    own = checked(driver.cuCtxPopCurrent())
    answer = function(**options)
    assert int(checked(driver.cuCtxGetCurrent())) == 0
    checked(driver.cuCtxPushCurrent(own))
    return answer

with memory_of(1) as memory:
    unit = memory.granularity
    base, second = memory.chunks(1, 1)
    resolve = lambda **options: compute_graph_capture_bases([(base, 2 * unit)], **options)
    answer = ([(base, unit), (second, unit)], [[0, 1]], [0])

    # Only device 1 is in use: device 0 stays untouched.
    assert resolve() == resolve(device_id=1) == answer
    assert without_context(resolve) == answer
    assert without_context(resolve, device_id=1) == answer
    assert active(0) == 0

    # Device 0 may not access the memory: the error says that it was asked.
    error = refused(device_id=0)
    assert error.detail.endswith(f"at address {base}")
    assert error.__notes__[0].startswith("device 0 was asked"), error.__notes__
    assert int(checked(driver.cuCtxGetDevice())) == 1
    assert active(0) == 1

    # Both are in use: without a context there is no telling which is meant.
    error = without_context(refused)
    assert str(error).startswith("device_id is needed: "), error
    assert without_context(resolve, device_id=1) == answer

    # With access for both, either is right.
    memory.grant(base, unit, 0)
    error = refused(device_id=0)
    assert error.detail.endswith(f"at address {second}")
    memory.grant(second, unit, 0)
    assert resolve(device_id=0) == without_context(resolve, device_id=0) == answer
    assert str(refused(device_id=2)).startswith("device_id 2 is not a visible device")
print("done")
"""


def test_two_devices():
    if not _loader.simulator_is_loaded():
        pytest.skip("needs two simulated devices")
    assert run(TWO_DEVICES, "auto") == "done\n"
