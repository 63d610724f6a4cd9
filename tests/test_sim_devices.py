"""The simulated devices: access for each, contexts and what they own, many threads."""

import random
import threading

import pytest
from conformance.steps import POSIX, READ_WRITE, G, create, must, reserve, set_access, succeeded
from cuda.bindings import driver
from sim_helpers import Mapped, created, devices, primary_context, release

from vmmcy import sim as simulator

NO_ACCESS = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_NONE
INVALID_VALUE = driver.CUresult.CUDA_ERROR_INVALID_VALUE
INVALID_HANDLE = driver.CUresult.CUDA_ERROR_INVALID_HANDLE
NOT_FOUND = driver.CUresult.CUDA_ERROR_NOT_FOUND
DESTROYED = driver.CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED


@pytest.fixture(autouse=True)
def context(sim):
    """Device 0's primary context, current for the test."""
    with primary_context() as context:
        yield context


@pytest.fixture
def two_devices():
    """A second device, and its primary context."""
    with devices(2):
        yield must(driver.cuDevicePrimaryCtxRetain(1))
        must(driver.cuDevicePrimaryCtxRelease(1))


# --- Two devices -----------------------------------------------------------------------------


def test_a_range_query_answers_for_the_current_device(two_devices):
    handles = [must(create(G, device=device)) for device in (0, 1)]
    with Mapped(*handles) as mapped:
        release(handles)
        must(set_access(mapped.base, 2 * G, device=0))
        must(driver.cuMemGetAddressRange(mapped.base + G))
        must(driver.cuCtxPushCurrent(two_devices))
        assert driver.cuMemGetAddressRange(mapped.base + G)[0] == NOT_FOUND
        assert driver.cuMemsetD8(mapped.base + G, 1, G) == (INVALID_VALUE,)
        must(set_access(mapped.base, 2 * G, device=1))
        must(driver.cuMemsetD8(mapped.base, 1, 2 * G))
        must(set_access(mapped.base, 2 * G, NO_ACCESS, device=0))
        must(driver.cuMemGetAddressRange(mapped.base))
        must(driver.cuCtxPopCurrent())
        assert driver.cuMemGetAddressRange(mapped.base)[0] == NOT_FOUND


def test_granting_access_makes_no_context():
    with devices(3):
        handles = [must(create(G, device=2))]
        with Mapped(*handles) as mapped:
            release(handles)
            must(set_access(mapped.base, G, device=2))
            assert driver.cuDevicePrimaryCtxGetState(2)[2] == 0


def test_each_device_has_its_own_memory(two_devices):
    handle = must(create(4 * G, device=1))
    assert driver.cuMemGetInfo()[1] == 16 << 30
    must(driver.cuCtxPushCurrent(two_devices))
    assert driver.cuMemGetInfo()[1] == (16 << 30) - 4 * G
    must(driver.cuCtxPopCurrent())
    must(driver.cuMemRelease(handle))


# --- Other memory, contexts, streams ---------------------------------------------------------


def test_other_memory_is_freed_once_and_by_its_own_call():
    plain, host = must(driver.cuMemAlloc(100)), must(driver.cuMemHostAlloc(100, 0))
    pool = must(driver.cuMemAllocAsync(100, 0))
    assert driver.cuMemFreeHost(int(plain)) == (INVALID_VALUE,)
    assert driver.cuMemFree(int(host)) == (INVALID_VALUE,)
    assert driver.cuMemFree(int(plain) + 1) == (INVALID_VALUE,)
    must(driver.cuMemFree(plain))
    must(driver.cuMemFreeAsync(pool, 0))
    must(driver.cuMemFreeHost(host))
    assert driver.cuMemFree(plain) == (INVALID_VALUE,)


def test_pointer_attributes_tell_the_kinds_apart():
    def ask(address, name):
        attribute = getattr(driver.CUpointer_attribute, f"CU_POINTER_ATTRIBUTE_{name}")
        status, value = driver.cuPointerGetAttribute(attribute, address)
        return int(value) if succeeded((status,)) else status

    handles = created(handle_type=1)
    plain, host = must(driver.cuMemAlloc(100)), int(must(driver.cuMemHostAlloc(100, 0)))
    with Mapped(*handles) as mapped:
        release(handles)
        assert ask(mapped.base + 5, "ALLOWED_HANDLE_TYPES") == int(POSIX)
        assert ask(mapped.base + 5, "RANGE_SIZE") == G
        assert ask(mapped.base + 5, "RANGE_START_ADDR") == mapped.base
        assert [ask(address, "MEMORY_TYPE") for address in (int(plain), host)] == [2, 1]
        assert ask(int(plain) + 99, "DEVICE_ORDINAL") == 0
        assert ask(int(plain) + 100, "DEVICE_ORDINAL") == INVALID_VALUE
    assert ask(mapped.base, "MEMORY_TYPE") == INVALID_VALUE
    must(driver.cuMemFree(plain))
    must(driver.cuMemFreeHost(host))


def create_context():
    created = driver.cuCtxCreate(0, 0) if _CREATE_TAKES_TWO else driver.cuCtxCreate(None, 0, 0)
    return must(created)


_CREATE_TAKES_TWO = "ctxCreateParams" not in (driver.cuCtxCreate.__doc__ or "")


def test_a_context_takes_what_it_owns_with_it():
    context = create_context()
    plain, stream = must(driver.cuMemAlloc(100)), must(driver.cuStreamCreate(0))
    event = must(driver.cuEventCreate(0))
    handle = must(create(G))
    must(driver.cuCtxPushCurrent(context))
    must(driver.cuCtxDestroy(context))
    assert driver.cuMemGetInfo()[0] == DESTROYED  # it is on the stack a second time
    must(driver.cuCtxPopCurrent())
    assert driver.cuMemGetAddressRange(plain)[0] == NOT_FOUND
    assert driver.cuStreamQuery(stream) == (INVALID_HANDLE,)
    assert driver.cuEventQuery(event) == (INVALID_HANDLE,)
    must(driver.cuMemRelease(handle))


def test_a_primary_context_without_references_is_destroyed(two_devices):
    must(driver.cuCtxPushCurrent(two_devices))
    must(driver.cuDevicePrimaryCtxReset(1))
    assert driver.cuDevicePrimaryCtxRelease(1)[0] == driver.CUresult.CUDA_ERROR_INVALID_CONTEXT
    assert driver.cuMemGetInfo()[0] == DESTROYED
    assert int(must(driver.cuDevicePrimaryCtxRetain(1))) == int(two_devices)
    assert driver.cuMemGetInfo()[0] == driver.CUresult.CUDA_SUCCESS
    must(driver.cuCtxPopCurrent())


def test_an_event_is_recorded_on_streams_of_its_own_context(two_devices):
    event = must(driver.cuEventCreate(0))
    must(driver.cuCtxPushCurrent(two_devices))
    stream = must(driver.cuStreamCreate(0))
    assert driver.cuEventRecord(event, stream) == (INVALID_HANDLE,)
    assert driver.cuEventRecord(event, 0) == (INVALID_HANDLE,)
    must(driver.cuStreamWaitEvent(stream, event, 0))  # waiting across contexts is fine
    must(driver.cuCtxPopCurrent())
    must(driver.cuEventRecord(event, 0))
    must(driver.cuStreamDestroy(stream))
    must(driver.cuEventDestroy(event))


def test_streams_and_events_are_checked():
    stream, event = must(driver.cuStreamCreate(0)), must(driver.cuEventCreate(0))
    must(driver.cuEventRecord(event, stream))
    must(driver.cuStreamWaitEvent(0, event, 0))
    must(driver.cuEventQuery(event))
    must(driver.cuEventSynchronize(event))
    must(driver.cuStreamQuery(stream))
    must(driver.cuStreamDestroy(stream))
    must(driver.cuEventDestroy(event))
    assert driver.cuEventDestroy(event) == (INVALID_HANDLE,)
    assert driver.cuEventRecord(event, 0) == (INVALID_HANDLE,)
    assert driver.cuMemcpyAsync(0, 0, 0, stream) == (INVALID_HANDLE,)


def test_each_thread_has_its_own_stack_of_contexts():
    seen = []
    thread = threading.Thread(target=lambda: seen.append(driver.cuCtxGetCurrent()))
    thread.start()
    thread.join()
    assert int(seen[0][1]) == 0
    assert int(must(driver.cuCtxGetCurrent())) != 0


# --- Threads ---------------------------------------------------------------------------------


def test_threads_share_one_driver():
    base, threads, rounds = int(must(reserve(64 * G))), 8, 100
    (shared,) = created()
    failures = []

    def work(thread):
        rng = random.Random(thread)
        for _ in range(rounds):
            address = base + (thread + threads * rng.randrange(8)) * G
            answers = [
                driver.cuMemMap(address, G, 0, shared, 0),
                set_access(address, G, READ_WRITE),
                driver.cuMemRelease(must(driver.cuMemRetainAllocationHandle(address))),
                driver.cuMemUnmap(address, G),
            ]
            failures.extend(answer for answer in answers if not succeeded(answer))

    workers = [threading.Thread(target=work, args=(index,)) for index in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert failures == []
    assert simulator.calls()["cuMemMap"] == threads * rounds
    release([shared])
    must(driver.cuMemAddressFree(base, 64 * G))
