"""Memory for the tests of the walk, laid out by bare driver calls, and an independent walk."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from cuda.bindings import driver

Status = driver.CUresult


def checked(answer):
    """Return the value of a ``cuda.bindings`` call, which must succeed."""
    status, *values = answer
    assert status == Status.CUDA_SUCCESS, status
    return values[0] if values else None


class Memory:
    """Reservations, mappings and plain allocations of the current context; closed in order."""

    def __init__(self, device: int = 0) -> None:
        self.device = device
        self.prop = driver.CUmemAllocationProp()
        self.prop.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        self.prop.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        self.prop.location.id = device
        flag = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
        self.granularity = checked(driver.cuMemGetAllocationGranularity(self.prop, flag))
        self.reservations: list[tuple[int, int]] = []
        self.mappings: list[tuple[int, int]] = []
        self.allocations: list[int] = []

    def reserve(self, size: int) -> int:
        base = int(checked(driver.cuMemAddressReserve(size, 0, 0, 0)))
        self.reservations.append((base, size))
        return base

    def map(self, address: int, size: int, access: Iterable[int] | None = None) -> None:
        """Back a place with an allocation of its own, accessible to `access` (own device)."""
        handle = checked(driver.cuMemCreate(size, self.prop, 0))
        checked(driver.cuMemMap(address, size, 0, handle, 0))
        checked(driver.cuMemRelease(handle))
        self.mappings.append((address, size))
        for device in [self.device] if access is None else access:
            self.grant(address, size, device)

    def grant(self, address: int, size: int, device: int) -> None:
        desc = driver.CUmemAccessDesc()
        desc.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        desc.location.id = device
        desc.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        checked(driver.cuMemSetAccess(address, size, [desc], 1))

    def chunks(self, *sizes: int) -> list[int]:
        """Map adjacent chunks of these sizes, in units of the granularity; give their bases."""
        base = self.reserve(sum(sizes) * self.granularity)
        bases = []
        for size in sizes:
            self.map(base, size * self.granularity)
            bases.append(base)
            base += size * self.granularity
        return bases

    def allocate(self, size: int) -> int:
        address = int(checked(driver.cuMemAlloc(size)))
        self.allocations.append(address)
        return address

    def unmap(self, address: int) -> None:
        (mapping,) = (mapping for mapping in self.mappings if mapping[0] == address)
        self.mappings.remove(mapping)
        checked(driver.cuMemUnmap(*mapping))

    def close(self) -> None:
        for address in self.allocations:
            checked(driver.cuMemFree(address))
        for mapping in self.mappings:
            checked(driver.cuMemUnmap(*mapping))
        for reservation in self.reservations:
            checked(driver.cuMemAddressFree(*reservation))


@contextmanager
def memory_of(device: int = 0) -> Iterator[Memory]:
    """Make the device's primary context current, and give memory of it."""
    checked(driver.cuInit(0))
    checked(driver.cuCtxPushCurrent(checked(driver.cuDevicePrimaryCtxRetain(device))))
    memory = Memory(device)
    try:
        yield memory
    finally:
        memory.close()
        checked(driver.cuCtxPopCurrent())
        checked(driver.cuDevicePrimaryCtxRelease(device))


def plain_walk(pairs):
    """The expected answer: one query a chunk, known ranges looked up by their base alone."""
    numbers: dict[tuple[int, int], int] = {}
    chunks, offsets = [], []
    for pointer, nbytes in pairs:
        address, covered = pointer, []
        while address < pointer + nbytes:
            status, base, size = driver.cuMemGetAddressRange(address)
            assert status == Status.CUDA_SUCCESS
            covered.append((int(base), size))
            address = int(base) + size
        chunks.append([numbers.setdefault(known, len(numbers)) for known in covered])
        offsets.append(pointer - covered[0][0])
    return list(numbers), chunks, offsets
