"""The peers' way: the same work in plain Python over ``cuda.bindings``, as engines write it."""

from typing import Any

from cuda.bindings import driver


def checked(answer: tuple[Any, ...]) -> Any:
    """Return the value of a ``cuda.bindings`` call, or raise its status."""
    status, *values = answer
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"driver call failed: {status}")
    return values[0] if len(values) == 1 else values


def walk(
    graph_inputs: list[tuple[int, int]],
) -> tuple[list[tuple[int, int]], list[list[int]], list[int]]:
    """Resolve inputs to allocations with one driver call a chunk."""
    numbers: dict[int, int] = {}
    bases: list[tuple[int, int]] = []
    chunks_of_inputs: list[list[int]] = []
    offsets: list[int] = []
    for pointer, nbytes in graph_inputs:
        address, end = pointer, pointer + nbytes
        chunks: list[int] = []
        while address < end:
            base, size = map(int, checked(driver.cuMemGetAddressRange(address)))
            number = numbers.get(base)
            if number is None:
                number = numbers[base] = len(bases)
                bases.append((base, size))
            chunks.append(number)
            address = base + size
        chunks_of_inputs.append(chunks)
        offsets.append(pointer - bases[chunks[0]][0])
    return bases, chunks_of_inputs, offsets


def allocation_prop(device_id: int) -> driver.CUmemAllocationProp:
    """Return the properties of device memory that can be exported as a POSIX fd."""
    prop = driver.CUmemAllocationProp()
    prop.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    prop.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    prop.location.id = device_id
    prop.requestedHandleTypes = (
        driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    )
    return prop


def access_desc(device_id: int) -> driver.CUmemAccessDesc:
    """Return read and write access for `device_id`."""
    desc = driver.CUmemAccessDesc()
    desc.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    desc.location.id = device_id
    desc.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    return desc


def map_unmap(
    base: int,
    size_bytes: int,
    prop: driver.CUmemAllocationProp,
    access: driver.CUmemAccessDesc,
) -> None:
    """Back `size_bytes` at `base` and give it back."""
    back(base, size_bytes, prop, access)
    unback(base, size_bytes)


def back(
    base: int,
    size_bytes: int,
    prop: driver.CUmemAllocationProp,
    access: driver.CUmemAccessDesc,
) -> None:
    """Back `size_bytes` at `base` with one handle."""
    handle = checked(driver.cuMemCreate(size_bytes, prop, 0))
    (status,) = driver.cuMemMap(base, size_bytes, 0, handle, 0)
    checked((status, None))
    (status,) = driver.cuMemSetAccess(base, size_bytes, [access], 1)
    checked((status, None))
    (status,) = driver.cuMemRelease(handle)
    checked((status, None))


def unback(base: int, size_bytes: int) -> None:
    """Give what backs `size_bytes` at `base` back."""
    (status,) = driver.cuMemUnmap(base, size_bytes)
    checked((status, None))


def allocate_free(
    size_bytes: int, prop: driver.CUmemAllocationProp, access: driver.CUmemAccessDesc
) -> None:
    """Reserve address space, back all of it, and give both back."""
    base = checked(driver.cuMemAddressReserve(size_bytes, 0, 0, 0))
    map_unmap(base, size_bytes, prop, access)
    (status,) = driver.cuMemAddressFree(base, size_bytes)
    checked((status, None))


def reserve_free(size_bytes: int) -> None:
    """Reserve address space and free it."""
    base = checked(driver.cuMemAddressReserve(size_bytes, 0, 0, 0))
    (status,) = driver.cuMemAddressFree(base, size_bytes)
    checked((status, None))
