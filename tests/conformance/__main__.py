"""Replays the cases of ``h200_580.json`` on this process's driver, a JSON line for each.

Run as a program of its own, since the first rows precede ``cuInit``:
``VMMCY_DRIVER=sim python tests/conformance``. The cases stand in the recorded order,
with the steps between them that were done but not recorded.
"""

import ctypes
import json
import os
import threading

from cuda.bindings import driver
from one_reservation import Reservation
from steps import (
    FABRIC,
    MIB2,
    POSIX,
    G,
    create,
    must,
    properties,
    properties_row,
    range_row,
    reserve,
    reserve_row,
    row,
    set_access,
    succeeded,
)


def before_and_without_context():
    row(0, "get_range before cuInit", driver.cuMemGetAddressRange(MIB2))
    row(1, "reserve before cuInit", reserve(G))
    row(2, "device_count before cuInit", driver.cuDeviceGetCount())
    version = driver.cuDriverGetVersion()
    row(3, "driver version", version, value=version[1])
    must(driver.cuInit(0))
    row(4, "get_range no context", driver.cuMemGetAddressRange(MIB2))
    option = driver.CUmemAllocationGranularity_flags(0)
    row(
        5,
        "granularity no context",
        driver.cuMemGetAllocationGranularity(properties(), option),
    )
    _, address = row(6, "reserve no context", reserve(G))
    row(7, "address_free no context", driver.cuMemAddressFree(address, G))
    _, handle = row(8, "create no context", create(G))
    row(9, "release no context", driver.cuMemRelease(handle))


def attributes():
    names = (
        "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
        "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED",
        "HANDLE_TYPE_FABRIC_SUPPORTED",
        "GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED",
        "UNIFIED_ADDRESSING",
        "GENERIC_COMPRESSION_SUPPORTED",
        "MULTICAST_SUPPORTED",
        "HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
        "HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
    )
    for n, name in enumerate(names, start=10):
        name = f"CU_DEVICE_ATTRIBUTE_{name}"
        attribute = getattr(driver.CUdevice_attribute, name, None)
        if attribute is not None:  # cuda-bindings 12.9 does not know the last one
            answer = driver.cuDeviceGetAttribute(attribute, 0)
            row(n, f"attr {name}", answer, value=answer[1])
    n = 19
    for handle_type in (0, 1, 8):
        for flag in (0, 1):
            answer = driver.cuMemGetAllocationGranularity(
                properties(handle_type=handle_type), driver.CUmemAllocationGranularity_flags(flag)
            )
            row(n, f"granularity handle_type={handle_type} flag={flag}", answer, value=answer[1])
            n += 1


def reservations():
    cases = (
        (26, "size=0", 0, {}),
        (27, "size=1", 1, {}),
        (28, "size=4096", 4096, {}),
        (29, "size=64K", 64 << 10, {}),
        (30, "size=G", G, {}),
        (32, "size=G+1", G + 1, {}),
        (33, "size=G+4096", G + 4096, {}),
        (35, "align=4096", G, {"alignment": 4096}),
        (37, "align=G", G, {"alignment": G}),
        (39, "align=1GiB", G, {"alignment": 1 << 30}),
        (42, "flags=1", G, {"flags": 1}),
        *((n, f"size=2^{power}", 1 << power, {}) for n, power in _POWERS),
    )
    for n, case, size, wanted in cases:
        answer = reserve_row(n, f"reserve {case}", reserve(size, **wanted))
        if succeeded(answer):
            row(n + 1, f"  address_free {case}", driver.cuMemAddressFree(answer[1], size))


_POWERS = (
    *zip((43, 45, 47, 49, 51, 53), (36, 40, 42, 44, 45, 46), strict=True),
    *zip((55, 56, 57), (47, 48, 50), strict=True),
)


def requested_addresses():
    size = 4 * G
    _, probe = reserve_row(58, "reserve probe", reserve(size))
    must(driver.cuMemAddressFree(probe, size))
    _, address = reserve_row(
        59, "reserve requested same addr after free", reserve(size, requested=int(probe))
    )
    other = must(reserve(size, requested=int(address)))
    freed = driver.cuMemAddressFree(other, size)
    row(61, "  address_free requested addr already reserved", freed)
    reserve_row(63, "reserve requested addr host-ish 0x10000", reserve(size, requested=0x10000))
    row(64, "address_free wrong size (half)", driver.cuMemAddressFree(address, size // 2))
    row(66, "address_free right after wrong tries", driver.cuMemAddressFree(address, size))
    row(67, "address_free twice", driver.cuMemAddressFree(address, size))
    row(68, "address_free null", driver.cuMemAddressFree(0, size))


def creation():
    host = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST
    host_numa = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST_NUMA
    invalid = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_INVALID
    cases = (
        (69, "size=0", 0, {}),
        (70, "size=1", 1, {}),
        (71, "size=G", G, {}),
        (73, "size=G+1", G + 1, {}),
        (74, "size=3G", 3 * G, {}),
        (76, "size=G/2", G // 2, {}),
        (77, "size=1TiB", 1 << 40, {}),
        (78, "size=2^60", 1 << 60, {}),
        (79, "device=99", G, {"device": 99}),
        (81, "flags=1", G, {"flags": 1}),
        (82, "handle_type=1", G, {"handle_type": 1}),
        (84, "handle_type=2", G, {"handle_type": 2}),
        (86, "handle_type=8", G, {"handle_type": 8}),
        (87, "rdma=1", G, {"rdma": 1}),
        (89, "posix+rdma", G, {"handle_type": 1, "rdma": 1}),
        (91, "type=INVALID", G, {"kind": invalid}),
        (92, "location HOST", G, {"location": host}),
        (94, "location HOST_NUMA 0", G, {"location": host_numa}),
    )
    for n, case, size, wanted in cases:
        answer = create(size, **wanted)
        if n != 92:  # not recorded, but its release is
            row(n, f"create {case}", answer)
        if succeeded(answer):
            row(n + 1, f"  release {case}", driver.cuMemRelease(answer[1]))
    _, handle = row(96, "create for double release", create(G))
    row(97, "release 1", driver.cuMemRelease(handle))
    row(98, "release 2 (double)", driver.cuMemRelease(handle))
    row(99, "release handle=0", driver.cuMemRelease(0))


def adjacent_reservations():
    first = int(must(reserve(2 * G)))
    answer = reserve(2 * G, requested=first + 2 * G)
    second = int(answer[1])
    row(203, "reserve adjacent requested", answer, honoured=second == first + 2 * G)
    handle = must(create(2 * G))
    across = driver.cuMemMap(first + G, 2 * G, 0, handle, 0)
    row(204, "map across two adjacent reservations", across)
    must(driver.cuMemUnmap(first + G, 2 * G))
    must(driver.cuMemRelease(handle))
    must(driver.cuMemAddressFree(first, 2 * G))
    must(driver.cuMemAddressFree(second, 2 * G))


def other_memory():
    address = int(must(driver.cuMemAlloc(3000)))
    range_row(206, "range cuMemAlloc 3000 start", address, sizes=True)
    range_row(207, "range cuMemAlloc 3000 +2999", address + 2999, sizes=True)
    row(209, "retain cuMemAlloc", driver.cuMemRetainAllocationHandle(address))
    row(210, "unmap cuMemAlloc", driver.cuMemUnmap(address, G))
    must(driver.cuMemFree(address))
    range_row(211, "range cuMemAlloc freed", address)
    address = int(must(driver.cuMemAllocAsync(1 << 20, 0)))
    range_row(212, "range cuMemAllocAsync 1MiB", address, sizes=True)
    must(driver.cuStreamSynchronize(0))
    range_row(213, "range cuMemAllocAsync 1MiB after sync", address, sizes=True)
    row(214, "retain cuMemAllocAsync", driver.cuMemRetainAllocationHandle(address))
    must(driver.cuMemFreeAsync(address, 0))
    must(driver.cuStreamSynchronize(0))
    host = must(driver.cuMemHostAlloc(8192, 0))
    range_row(215, "range cuMemHostAlloc", int(host), sizes=True)
    must(driver.cuMemFreeHost(host))
    for n, case, address in (
        (216, "null", 0),
        (217, "1", 1),
        (218, "2^63", 1 << 63),
        (219, "2^64-1", (1 << 64) - 1),
    ):
        range_row(n, f"range {case}", address)


def sharing():
    handle = must(create(2 * G, handle_type=1))
    _, fd = row(220, "export posix", driver.cuMemExportToShareableHandle(handle, POSIX, 0))
    fabric = driver.cuMemExportToShareableHandle(handle, FABRIC, 0)
    row(223, "export fabric, not requested", fabric)
    answer = driver.cuMemImportFromShareableHandle(fd, POSIX)
    imported = answer[1]
    row(224, "import own fd", answer, same_handle=int(imported) == int(handle))
    base = int(must(reserve(2 * G)))
    row(225, "map imported", driver.cuMemMap(base, 2 * G, 0, imported, 0))
    row(226, "access imported", set_access(base, 2 * G))
    range_row(227, "range imported", base + 9, base)
    _, retained = row(228, "retain imported", driver.cuMemRetainAllocationHandle(base))
    must(driver.cuMemRelease(retained))
    properties_row(229, "properties imported", imported)
    row(230, "release imported", driver.cuMemRelease(imported))
    must(driver.cuMemUnmap(base, 2 * G))
    must(driver.cuMemRelease(handle))
    must(driver.cuMemAddressFree(base, 2 * G))
    os.close(fd)
    row(232, "import closed fd", driver.cuMemImportFromShareableHandle(fd, POSIX))
    null = os.open("/dev/null", os.O_RDWR)
    row(233, "import /dev/null fd", driver.cuMemImportFromShareableHandle(null, POSIX))
    os.close(null)
    row(234, "import fd=9999 (not open)", driver.cuMemImportFromShareableHandle(9999, POSIX))


def device_memory():
    gib = 1 << 30
    _, free_before, _ = driver.cuMemGetInfo()
    answer = create(gib)
    _, free_after, _ = driver.cuMemGetInfo()
    row(235, "create 1GiB takes physical", answer, value=free_before - free_after)
    must(driver.cuMemRelease(answer[1]))
    _, free, _ = driver.cuMemGetInfo()
    row(237, "create free+1GiB", create(free // G * G + gib))


def thread_without_context():
    base, handle = int(must(reserve(2 * G))), must(create(2 * G))

    def case(n, name, answer):
        return row(n, f"thread without context: {name}", answer)

    def work():
        case(238, "map", driver.cuMemMap(base, 2 * G, 0, handle, 0))
        case(239, "set_access", set_access(base, 2 * G))
        case(240, "range", driver.cuMemGetAddressRange(base))
        _, retained = case(241, "retain", driver.cuMemRetainAllocationHandle(base))
        must(driver.cuMemRelease(retained))
        case(242, "memset", driver.cuMemsetD8(base, 3, G))
        case(243, "unmap", driver.cuMemUnmap(base, 2 * G))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    must(driver.cuMemRelease(handle))
    must(driver.cuMemAddressFree(base, 2 * G))


def forked_child():
    child = os.fork()
    if child == 0:
        os._exit(int(reserve(G)[0]) % 251)
    _, state = os.waitpid(child, 0)
    success = (driver.CUresult.CUDA_SUCCESS,)  # of the fork
    exit_status = os.waitstatus_to_exitcode(state)
    row(244, "fork child: reserve", success, exit_status_mod_251=exit_status)


def without_access():
    base, handle = int(must(reserve(2 * G))), must(create(2 * G))
    must(driver.cuMemMap(base, 2 * G, 0, handle, 0))
    row(254, "memset mapped without access", driver.cuMemsetD8(base, 4, G))
    row(255, "  sync after", driver.cuCtxSynchronize())
    copy = (ctypes.c_char * 8)()
    row(256, "DtoH mapped without access", driver.cuMemcpyDtoH(copy, base, 8))
    must(driver.cuMemUnmap(base, 2 * G))
    must(driver.cuMemRelease(handle))
    must(driver.cuMemAddressFree(base, 2 * G))


def error_strings():
    for code in (1, 2, 3, 201, 101, 200, 400, 801, 700):
        status = driver.CUresult(code)
        name, text = must(driver.cuGetErrorName(status)), must(driver.cuGetErrorString(status))
        print(
            json.dumps({"case": f"error {code}", "status": name.decode(), "string": text.decode()}),
            flush=True,
        )


def main():
    before_and_without_context()
    attributes()
    must(driver.cuCtxSetCurrent(must(driver.cuDevicePrimaryCtxRetain(0))))
    reservations()
    requested_addresses()
    creation()
    Reservation().replay()
    adjacent_reservations()
    other_memory()
    sharing()
    device_memory()
    thread_without_context()
    forked_child()
    without_access()
    error_strings()
    must(driver.cuDevicePrimaryCtxRelease(0))


if __name__ == "__main__":
    main()
