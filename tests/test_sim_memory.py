"""The simulated memory: real bytes, reference counts, and what is exported."""

import ctypes
import mmap
import os
import random

import pytest
from conformance.steps import POSIX, READ, G, create, must, reserve, set_access, succeeded
from cuda.bindings import driver
from sim_helpers import Mapped, created, primary_context, release

from vmmcy import sim as simulator

MAP_FIXED_NOREPLACE = 0x100000
NO_ACCESS = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_NONE
INVALID_VALUE = driver.CUresult.CUDA_ERROR_INVALID_VALUE
NOT_FOUND = driver.CUresult.CUDA_ERROR_NOT_FOUND
OUT_OF_MEMORY = driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY


@pytest.fixture(autouse=True)
def context(sim):
    """Device 0's primary context, current for the test; all memory is back after it."""
    with primary_context() as context:
        free_before = driver.cuMemGetInfo()[1]
        yield context
        assert driver.cuMemGetInfo()[1] == free_before


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


def test_the_device_is_full_when_its_memory_is_handed_out():
    simulator.load(memory_bytes=5 * G)
    handles = [must(create(2 * G)) for _ in range(2)]
    assert create(2 * G)[0] == OUT_OF_MEMORY
    assert driver.cuMemAlloc(G + 1)[0] == OUT_OF_MEMORY
    must(driver.cuMemFree(must(driver.cuMemAlloc(G))))
    release(handles)
    whole = must(create(5 * G))
    assert create(G)[0] == OUT_OF_MEMORY
    must(driver.cuMemRelease(whole))
    simulator.load()


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


def test_a_map_never_replaces_memory_that_is_not_the_drivers():
    base, handle = int(must(reserve(G))), must(create(2 * G))
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED_NOREPLACE
    ours = libc.mmap(base + G, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    assert ours == base + G
    poke(ours, b"ours")
    assert driver.cuMemMap(base, 2 * G, 0, handle, 0) == (INVALID_VALUE,)
    assert peek(ours, 4) == b"ours"
    assert libc.munmap(ours, mmap.PAGESIZE) == 0
    must(driver.cuMemMap(base, 2 * G, 0, handle, 0))
    must(driver.cuMemUnmap(base, 2 * G))
    must(driver.cuMemRelease(handle))
    must(driver.cuMemAddressFree(base, G))


def test_the_address_behind_a_reservation_can_be_asked_for():
    one, other = (int(must(reserve(G))) for _ in range(2))
    behind = int(must(reserve(G, requested=one + G)))
    assert behind == one + G
    for address in (one, behind):
        must(driver.cuMemAddressFree(address, G))
    between = int(must(reserve(other - one)))  # would just fit in front of the other one
    behind = int(must(reserve(G, requested=between + other - one)))
    assert behind == between + other - one
    must(driver.cuMemAddressFree(between, other - one))
    for address in (other, behind):
        must(driver.cuMemAddressFree(address, G))


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


def own_files():
    """Descriptors that the simulator has opened in this process."""
    links = {fd: f"/proc/self/fd/{fd}" for fd in map(int, os.listdir("/proc/self/fd"))}
    return {
        fd
        for fd, link in links.items()
        if os.path.islink(link) and "vmmcy-sim" in os.readlink(link)
    }


def test_memory_that_is_freed_goes_back_to_the_machine():
    def used_blocks():
        return sum(os.fstat(fd).st_blocks for fd in own_files())

    before = used_blocks()
    handles = created()
    with Mapped(*handles) as mapped:
        release(handles)
        must(set_access(mapped.base, G))
        must(driver.cuMemsetD8(mapped.base, 1, G))
        assert used_blocks() == before + G // 512
    assert used_blocks() == before


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
        os.close(fd)


def test_exportable_memory_takes_a_descriptor_only_once_it_is_exported():
    handles = created(1500, handle_type=1)
    assert simulator.live()["fds"] == 0
    fds = [must(driver.cuMemExportToShareableHandle(handles[0], POSIX, 0)) for _ in range(2)]
    assert simulator.live()["fds"] == 1
    release(handles)
    assert simulator.live()["fds"] == 0
    for fd in fds:
        os.close(fd)


def test_no_descriptor_is_left_open_or_inherited():
    handles = created(3, handle_type=1)
    before = own_files()
    fds = [must(driver.cuMemExportToShareableHandle(handle, POSIX, 0)) for handle in handles]
    handles += [must(driver.cuMemImportFromShareableHandle(fd, POSIX)) for fd in fds]
    assert len(own_files() - before) == 9  # the exporter's, the importer's, and ours
    assert not any(map(os.get_inheritable, own_files()))
    for fd in fds:
        os.close(fd)
    release(handles)
    assert own_files() == before


def test_a_file_that_only_looks_like_memory_is_not_imported():
    page, magic_bytes = 4096, 24
    file = os.memfd_create("not ours")
    os.pwrite(file, bytes(magic_bytes) + page.to_bytes(8, "little"), page)
    os.ftruncate(file, 2 * page)
    answer = driver.cuMemImportFromShareableHandle(file, POSIX)
    assert answer[0] == driver.CUresult.CUDA_ERROR_UNKNOWN
    os.close(file)
