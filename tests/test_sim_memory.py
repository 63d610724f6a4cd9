"""The simulated memory: real bytes, reference counts, devices, contexts, many threads."""

import ctypes
import random
import threading

import pytest
from conformance.steps import (
    POSIX,
    READ,
    READ_WRITE,
    G,
    create,
    must,
    reserve,
    set_access,
    succeeded,
)
from cuda.bindings import driver

from vmmcy import sim as simulator

NO_ACCESS = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_NONE
INVALID_VALUE = driver.CUresult.CUDA_ERROR_INVALID_VALUE
INVALID_HANDLE = driver.CUresult.CUDA_ERROR_INVALID_HANDLE
NOT_FOUND = driver.CUresult.CUDA_ERROR_NOT_FOUND
OUT_OF_MEMORY = driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY
DESTROYED = driver.CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED


@pytest.fixture(autouse=True)
def context(sim):
    """Device 0's primary context, current for the test; all memory is back after it."""
    must(driver.cuInit(0))
    must(driver.cuCtxPushCurrent(must(driver.cuDevicePrimaryCtxRetain(0))))
    free_before = driver.cuMemGetInfo()[1]
    yield
    assert driver.cuMemGetInfo()[1] == free_before
    must(driver.cuCtxPopCurrent())
    must(driver.cuDevicePrimaryCtxRelease(0))


@pytest.fixture
def configured():
    """`simulator.load`, undone after the test."""
    yield simulator.load
    simulator.load()


@pytest.fixture
def two_devices(configured):
    """A second device, and its primary context."""
    configured(devices=2)
    yield must(driver.cuDevicePrimaryCtxRetain(1))
    must(driver.cuDevicePrimaryCtxRelease(1))


class Mapped:
    """Handles of G bytes, mapped one after the other from the start of a reservation."""

    def __init__(self, *handles):
        self.size = len(handles) * G
        self.base = int(must(reserve(self.size)))
        for index, handle in enumerate(handles):
            must(driver.cuMemMap(self.base + index * G, G, 0, handle, 0))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        must(driver.cuMemUnmap(self.base, self.size))
        must(driver.cuMemAddressFree(self.base, self.size))


def created(count=1, **wanted):
    """New handles of G bytes, as many as `count`."""
    return [must(create(G, **wanted)) for _ in range(count)]


def release(handles):
    for handle in handles:
        must(driver.cuMemRelease(handle))


def poke(address, data):
    ctypes.memmove(address, data, len(data))


def peek(address, size):
    return ctypes.string_at(address, size)


# --- Bytes -----------------------------------------------------------------------------------


def test_aliases_share_their_bytes_and_others_do_not():
    one, other = created(2)
    with Mapped(one, other, one) as mapped:
        release([one, other])
        must(set_access(mapped.base, 3 * G))
        poke(mapped.base + 17, b"shared")
        assert peek(mapped.base + 2 * G + 17, 6) == b"shared"
        assert peek(mapped.base + G + 17, 6) == bytes(6)


def test_memory_that_is_created_again_is_clean():
    for _ in range(3):
        handles = created()
        with Mapped(*handles) as mapped:
            release(handles)
            must(set_access(mapped.base, G))
            assert peek(mapped.base, 4) == bytes(4)
            poke(mapped.base, b"used")


def test_memset_and_copies_move_real_bytes():
    handles = created(2)
    with Mapped(*handles) as mapped:
        release(handles)
        must(set_access(mapped.base, 2 * G))
        must(driver.cuMemsetD32(mapped.base + G - 8, 0x01020304, 4))  # over both mappings
        assert peek(mapped.base + G - 8, 16) == bytes([4, 3, 2, 1] * 4)
        must(driver.cuMemcpyHtoD(mapped.base, b"abcd", 4))
        must(driver.cuMemcpyDtoDAsync(mapped.base + G, mapped.base, 4, 0))
        copy = bytearray(4)
        must(driver.cuMemcpyDtoH(copy, mapped.base + G, 4))
        assert copy == b"abcd"


def test_memory_that_may_only_be_read_cannot_be_set():
    handles = created()
    with Mapped(*handles) as mapped:
        release(handles)
        must(set_access(mapped.base, G, READ))
        assert driver.cuMemsetD8(mapped.base, 1, G) == (INVALID_VALUE,)
        must(driver.cuMemcpyDtoH(bytearray(4), mapped.base, 4))
        must(set_access(mapped.base, G, NO_ACCESS))
        assert driver.cuMemGetAddressRange(mapped.base)[0] == NOT_FOUND


# --- Physical memory and references ----------------------------------------------------------


def test_the_device_is_full_when_its_memory_is_handed_out(configured):
    configured(memory_bytes=5 * G)
    handles = [must(create(2 * G)) for _ in range(2)]
    assert create(2 * G)[0] == OUT_OF_MEMORY
    assert driver.cuMemAlloc(G + 1)[0] == OUT_OF_MEMORY
    must(driver.cuMemFree(must(driver.cuMemAlloc(G))))
    release(handles)
    whole = must(create(5 * G))
    assert create(G)[0] == OUT_OF_MEMORY
    must(driver.cuMemRelease(whole))


def test_memory_stays_until_it_is_released_and_unmapped():
    _, before, _ = driver.cuMemGetInfo()
    (handle,) = created()
    with Mapped(handle) as mapped:
        must(driver.cuMemRelease(handle))
        assert driver.cuMemRelease(handle) == (INVALID_VALUE,)
        assert driver.cuMemMap(mapped.base, G, 0, handle, 0) == (INVALID_VALUE,)
        again = must(driver.cuMemRetainAllocationHandle(mapped.base + 9))
        assert int(again) == int(handle)
    assert driver.cuMemGetInfo()[1] == before - G
    must(driver.cuMemRelease(again))
    assert driver.cuMemGetInfo()[1] == before


@pytest.mark.parametrize("made_up", [0, 1, 0xDEAD, 1 << 40, (1 << 64) - 1])
def test_made_up_handles_are_refused(made_up):
    base = int(must(reserve(G)))
    assert driver.cuMemRelease(made_up) == (INVALID_VALUE,)
    assert driver.cuMemMap(base, G, 0, made_up, 0) == (INVALID_VALUE,)
    assert driver.cuMemGetAllocationPropertiesFromHandle(made_up)[0] == INVALID_VALUE
    must(driver.cuMemAddressFree(base, G))


def test_a_failed_map_past_the_end_leaves_the_reservation_whole():
    first = int(must(reserve(2 * G)))
    handle = must(create(2 * G))
    must(driver.cuMemMap(first, 2 * G, 0, handle, 0))
    # The last granule of a second reservation, whose end is the start of the first.
    before = must(reserve(G, requested=first - G))
    assert int(before) == first - G
    assert driver.cuMemMap(before, 2 * G, 0, handle, 0) == (INVALID_VALUE,)
    must(set_access(first, 2 * G))
    poke(first, b"still there")
    must(driver.cuMemUnmap(first, 2 * G))
    must(driver.cuMemRelease(handle))
    must(driver.cuMemAddressFree(before, G))
    must(driver.cuMemAddressFree(first, 2 * G))


def test_any_order_of_maps_and_unmaps_agrees_with_a_list():
    slots, rng = 64, random.Random(7)
    handles = created(slots)
    base = int(must(reserve(slots * G)))
    model = [None] * slots
    for _ in range(600):
        start = rng.randrange(slots)
        if rng.random() < 0.7:
            answer = driver.cuMemMap(base + start * G, G, 0, handles[start], 0)
            assert succeeded(answer) == (model[start] is None)
            model[start] = model[start] or "mapped"
        elif rng.random() < 0.5:
            end = rng.randint(start + 1, slots)
            answer = set_access(base + start * G, (end - start) * G)
            assert succeeded(answer) == any(model[start:end])
            model[start:end] = [slot and "accessible" for slot in model[start:end]]
        else:
            end = rng.randint(start + 1, slots)
            must(driver.cuMemUnmap(base + start * G, (end - start) * G))
            model[start:end] = [None] * (end - start)
        probe = rng.randrange(slots * G)
        status, found, size = driver.cuMemGetAddressRange(base + probe)
        assert (status == driver.CUresult.CUDA_SUCCESS) == (model[probe // G] == "accessible")
        if model[probe // G] == "accessible":
            assert (int(found), size) == (base + probe // G * G, G)
        assert simulator.live()["mappings"] == sum(slot is not None for slot in model)
    must(driver.cuMemUnmap(base, slots * G))
    release(handles)
    must(driver.cuMemAddressFree(base, slots * G))


# --- Export ----------------------------------------------------------------------------------


def test_export_keeps_what_was_written_and_what_is_shared():
    (handle,) = created(handle_type=1)
    with Mapped(handle, handle) as mapped:
        must(set_access(mapped.base, G))
        poke(mapped.base + G // 2, b"before")
        fd = must(driver.cuMemExportToShareableHandle(handle, POSIX, 0))
        imported = must(driver.cuMemImportFromShareableHandle(fd, POSIX))
        must(set_access(mapped.base, 2 * G))
        poke(mapped.base, b"after")
        with Mapped(imported) as other:
            must(set_access(other.base, G))
            assert peek(other.base + G // 2, 6) == b"before"
            assert peek(other.base, 5) == peek(mapped.base + G, 5) == b"after"
        release([handle, imported])
        ctypes.CDLL(None).close(fd)


def test_exportable_memory_takes_a_descriptor_only_once_it_is_exported():
    handles = created(1500, handle_type=1)
    assert simulator.live()["fds"] == 0
    fds = [must(driver.cuMemExportToShareableHandle(handles[0], POSIX, 0)) for _ in range(2)]
    assert simulator.live()["fds"] == 1
    release(handles)
    assert simulator.live()["fds"] == 0
    for fd in fds:
        ctypes.CDLL(None).close(fd)


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


def test_granting_access_makes_no_context(configured):
    configured(devices=3)
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
