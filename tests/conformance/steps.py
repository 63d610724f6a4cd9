"""What the cases are made of: rows, checked steps between them, short forms of calls.

G is the granularity. Each call gives the tuple that ``cuda.bindings`` gives.
"""

import json

from cuda.bindings import driver

import vmmcy  # noqa: F401  (its first line chooses the driver)

G = 2 << 20
MIB2 = 2 << 20
POSIX = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
FABRIC = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_FABRIC
DEVICE = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
PINNED = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
READ = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READ
READ_WRITE = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE


def row(n, case, answer, **values):
    """Print a case; `answer` is what a call of ``cuda.bindings`` gave."""
    print(json.dumps({"n": n, "case": case, "status": answer[0].name, **values}), flush=True)
    return answer


def must(answer):
    """Do a step between the cases; give what the call gave."""
    if answer[0] != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"a step between the cases failed: {answer[0].name}")
    return answer[1] if len(answer) == 2 else None


def succeeded(answer):
    return answer[0] == driver.CUresult.CUDA_SUCCESS


def properties(*, device=0, location=DEVICE, handle_type=0, kind=PINNED, rdma=0):
    prop = driver.CUmemAllocationProp()
    prop.type = kind
    prop.location.type = location
    prop.location.id = device
    prop.requestedHandleTypes = driver.CUmemAllocationHandleType(handle_type)
    prop.allocFlags.gpuDirectRDMACapable = rdma
    return prop


def create(size, **wanted):
    flags = wanted.pop("flags", 0)
    return driver.cuMemCreate(size, properties(**wanted), flags)


def set_access(address, size, flags=READ_WRITE, device=0, count=1):
    desc = driver.CUmemAccessDesc()
    desc.location.type = DEVICE
    desc.location.id = device
    desc.flags = flags
    return driver.cuMemSetAccess(address, size, [desc] * count, count)


def get_access(address):
    location = driver.CUmemLocation()
    location.type = DEVICE
    location.id = 0
    return driver.cuMemGetAccess(location, address)


def reserve(size, alignment=0, requested=0, flags=0):
    return driver.cuMemAddressReserve(size, alignment, requested, flags)


def reserve_row(n, case, answer):
    found = {"mod_2m": int(answer[1]) % MIB2} if succeeded(answer) else {}
    return row(n, case, answer, **found)


def range_row(n, case, address, base=None, sizes=False):
    """`base` makes the answer relative; `sizes` records the size alone."""
    answer = driver.cuMemGetAddressRange(address)
    found = {}
    if succeeded(answer) and base is not None:
        found = {
            "base_off": int(answer[1]) - base,
            "size": answer[2],
            "ptr_off": address - base,
        }
    elif succeeded(answer) and sizes:
        found = {"size": answer[2]}
    row(n, case, answer, **found)


def properties_row(n, case, handle):
    answer = driver.cuMemGetAllocationPropertiesFromHandle(handle)
    found = {}
    if succeeded(answer):
        found = {"loc": answer[1].location.id, "ht": int(answer[1].requestedHandleTypes)}
    row(n, case, answer, **found)
