"""The address-range walk: which allocations cover each input. One core over raw arrays.

Known to ``graph_capture`` alone, which validates types and documents. The core runs without
the GIL, asks the driver once for each distinct allocation, and forgets all it knows when the
call ends: memory may be remapped between calls.
"""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cuda.bindings cimport cydriver
from cuda.bindings.cydriver cimport CUdevice, CUdeviceptr, CUresult
from libc.stdint cimport UINT64_MAX, int64_t, uint64_t
from libc.stdlib cimport free, realloc

from vmmcy._driver cimport (
    ContextBinding,
    DriverFault,
    ensure_driver,
    enter_context,
    given_back,
    leave_context,
    leave_context_after,
    make_driver_error,
    visible_device,
)
from vmmcy._graph_inputs cimport GraphCaptureBases, GraphInputs, words_of_new

import numpy as np


cdef extern from "known_ranges.h" namespace "vmmcy" nogil:
    const int64_t NOT_KNOWN
    const size_t FEW

    cdef struct Range:
        uint64_t base
        uint64_t last
        int64_t next

    cdef struct Inputs:
        const uint64_t* pointers
        const uint64_t* sizes
        int64_t* indptr
        uint64_t* offsets

    cdef cppclass KnownRanges:
        size_t size()
        const Range& get(int64_t number)
        int64_t find(uint64_t address)
        size_t cover(
            const Inputs& inputs, size_t index, size_t end, int64_t* indices, size_t* count
        )
        int64_t insert(uint64_t base, uint64_t last) except +

cdef enum:
    ANY_DEVICE = -1

cdef object SIGNED = np.dtype(np.int64)
cdef object UNSIGNED = np.dtype(np.uint64)

# The chunk indices: the one result whose length is not known beforehand.
cdef struct Indices:
    int64_t* data
    size_t count
    size_t capacity

# What came of looking for an allocation handle, which takes a reference and gives it back.
cdef struct Retaining:
    DriverFault fault
    bint stays

cdef str STAYS = "and once more: a reference to the allocation stays, and with it the memory"

cdef struct Walk:
    Inputs inputs
    size_t num_inputs
    int device_id
    bint require_vmm
    KnownRanges* known
    Indices* chunk_indices


@cython.final
cdef class IndexOwner:
    """Keeps the chunk indices alive for the NumPy array that shows them."""

    cdef Indices indices

    def __dealloc__(self):
        free(self.indices.data)

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(
            view, self, self.indices.data, self.indices.count * sizeof(int64_t), False, flags
        )


# --- The core ---------------------------------------------------------------------------------

cdef int walk_inputs(Walk* walk) except -1 nogil:
    """Cover each input with ranges, in address order."""
    cdef Indices* indices = walk.chunk_indices
    cdef size_t end, index = 0
    while index < walk.num_inputs:
        make_room(indices, FEW)
        end = min(walk.num_inputs, index + (indices.capacity - indices.count) // FEW)
        index = walk.known.cover(walk.inputs, index, end, indices.data, &indices.count)
        if index < end:
            cover_asking(walk, index)
            index += 1
    return 0


cdef int cover_asking(Walk* walk, size_t index) except -1 nogil:
    """Cover one input, asking for what is not known; every step moves on by a whole range."""
    cdef uint64_t address = walk.inputs.pointers[index]
    cdef uint64_t last = address + (walk.inputs.sizes[index] - 1)
    cdef int64_t following, number = walk.known.find(address)
    cdef Range covering
    if number == NOT_KNOWN:
        number = ask_driver(walk, index, address)
    covering = walk.known.get(number)
    walk.inputs.offsets[index] = address - covering.base
    append(walk.chunk_indices, number)
    while covering.last < last:
        following = covering.next
        if following == number:
            following = ask_driver(walk, index, covering.last + 1)
        number = following
        covering = walk.known.get(number)
        append(walk.chunk_indices, number)
    walk.inputs.indptr[index + 1] = <int64_t> walk.chunk_indices.count
    return 0


cdef int64_t ask_driver(Walk* walk, size_t index, uint64_t address) except -1 nogil:
    """Number of the range at `address`, which no known range holds. The one query a range."""
    cdef CUdeviceptr base = 0
    cdef size_t size = 0
    cdef DriverFault fault
    cdef Retaining retaining
    cdef int64_t overlapped
    fault.call = b"cuMemGetAddressRange"
    fault.status = cydriver.cuMemGetAddressRange(&base, &size, <CUdeviceptr> address)
    if fault.status != cydriver.CUDA_SUCCESS:
        refuse_status(walk, index, address, fault, False)
    # Also false for a size of 0; a range that wraps would make the walk go back.
    if not (base <= address and address - base < size and size - 1 <= UINT64_MAX - base):
        refuse_outside(walk, index, address, base, size)
    if walk.require_vmm and not has_allocation_handle(base, &retaining):
        if retaining.fault.status == cydriver.CUDA_SUCCESS:
            refuse_foreign(walk, index, address, base, size)
        refuse_status(walk, index, address, retaining.fault, retaining.stays)
    overlapped = walk.known.insert(base, base + (size - 1))
    if overlapped != NOT_KNOWN:
        refuse_contradiction(walk, index, address, base, size, overlapped)
    return <int64_t> walk.known.size() - 1


cdef bint has_allocation_handle(uint64_t address, Retaining* retaining) except -1 nogil:
    """Whether cuMemCreate made the memory. Fills `retaining` and says no if a call fails."""
    cdef cydriver.CUmemGenericAllocationHandle handle = 0
    cdef CUresult status = cydriver.cuMemRetainAllocationHandle(&handle, <void*> address)
    retaining.fault.status = cydriver.CUDA_SUCCESS
    retaining.stays = False
    if status == cydriver.CUDA_ERROR_INVALID_VALUE:
        return False
    if status != cydriver.CUDA_SUCCESS:
        retaining.fault.call = b"cuMemRetainAllocationHandle"
        retaining.fault.status = status
        return False
    status = cydriver.cuMemRelease(handle)
    if given_back(status):
        return True
    # Once more: the reference is ours alone, nobody could ever give it back later.
    retaining.stays = not given_back(cydriver.cuMemRelease(handle))
    retaining.fault.call = b"cuMemRelease"
    retaining.fault.status = status
    return False


cdef inline int append(Indices* indices, int64_t number) except -1 nogil:
    make_room(indices, 1)
    indices.data[indices.count] = number
    indices.count += 1
    return 0


cdef inline int make_room(Indices* indices, size_t more) except -1 nogil:
    if indices.capacity - indices.count < more:
        resize(indices, indices.capacity + indices.capacity // 2 + more)
    return 0


cdef int resize(Indices* indices, size_t capacity) except -1 nogil:
    cdef void* data = realloc(indices.data, capacity * sizeof(int64_t))
    if data == NULL:
        with gil:
            raise MemoryError
    indices.data = <int64_t*> data
    indices.capacity = capacity
    return 0


# --- What the walk refuses --------------------------------------------------------------------

cdef str where(Walk* walk, size_t index, uint64_t address):
    return (
        f"graph capture input {index}: {walk.inputs.sizes[index]} bytes "
        f"at {walk.inputs.pointers[index]}, at address {address}"
    )


cdef int refuse_status(
    Walk* walk, size_t index, uint64_t address, DriverFault fault, bint stays
) except -1 with gil:
    cdef CUdevice asked = 0
    error = make_driver_error(fault.status, fault.call, where(walk, index, address))
    if stays:
        error.add_note(STAYS)
    if fault.status == cydriver.CUDA_ERROR_INVALID_CONTEXT and walk.device_id == ANY_DEVICE:
        error.add_note(
            "this thread has no current context and no device is in use: use one first, or pass "
            "device_id"
        )
    elif (
        fault.status == cydriver.CUDA_ERROR_NOT_FOUND
        and cydriver.cuCtxGetDevice(&asked) == cydriver.CUDA_SUCCESS
    ):
        error.add_note(
            f"device {asked} was asked, which finds only memory that it may access: "
            "pass device_id to ask another"
        )
    raise error


cdef int refuse_outside(
    Walk* walk, size_t index, uint64_t address, uint64_t base, uint64_t size
) except -1 with gil:
    error = RuntimeError(
        f"graph capture input at {walk.inputs.pointers[index]} is outside VMM allocation "
        f"[base={base}, size={size}]"
    )
    error.add_note(where(walk, index, address))
    raise error


cdef int refuse_foreign(
    Walk* walk, size_t index, uint64_t address, uint64_t base, uint64_t size
) except -1 with gil:
    raise RuntimeError(
        f"{where(walk, index, address)}, lies in [base={base}, size={size}], which was not made "
        "by cuMemCreate and cannot be exported: allocate it from a VMM pool"
    )


cdef int refuse_contradiction(
    Walk* walk, size_t index, uint64_t address, uint64_t base, uint64_t size, int64_t overlapped
) except -1 with gil:
    cdef const Range* known = &walk.known.get(overlapped)
    raise RuntimeError(
        f"{where(walk, index, address)}, lies in [base={base}, size={size}], which overlaps "
        f"[base={known.base}, size={known.last - known.base + 1}] that the driver answered "
        "before: the memory was remapped during the walk"
    )


# --- Arrays in, arrays out --------------------------------------------------------------------

def resolve(GraphInputs inputs not None, int device_id, bint require_vmm):
    """Return the ``GraphCaptureBases`` of the inputs; `device_id` -1 stands for None."""
    cdef KnownRanges known
    cdef Walk walk
    cdef IndexOwner owner = IndexOwner.__new__(IndexOwner)
    cdef GraphCaptureBases found = GraphCaptureBases.__new__(GraphCaptureBases)
    cdef Py_ssize_t count = inputs.sizes.count
    found.chunk_indptr = np.empty(count + 1, SIGNED)
    found.input_offsets = np.empty(count, UNSIGNED)
    walk.inputs.pointers = inputs.pointers.data
    walk.inputs.sizes = inputs.sizes.data
    walk.num_inputs = count
    walk.device_id = device_id
    walk.require_vmm = require_vmm
    walk.known = &known
    walk.chunk_indices = &owner.indices
    walk.inputs.indptr = <int64_t*> words_of_new(found.chunk_indptr)
    walk.inputs.offsets = words_of_new(found.input_offsets)
    walk.inputs.indptr[0] = 0
    if count == 0:
        found.chunk_indices = np.empty(0, SIGNED)
    else:
        if device_id != ANY_DEVICE:
            visible_device(device_id)
        walk_in_context(&walk)
        found.chunk_indices = np.frombuffer(owner, SIGNED)
    name_bases(found, &known)
    return found


cdef int walk_in_context(Walk* walk) except -1:
    cdef ContextBinding binding
    binding.bound = False
    try:
        with nogil:
            # A guess that often does; pages that are not reached cost nothing, and go back.
            resize(walk.chunk_indices, 2 * walk.num_inputs)
            ensure_driver()
            enter_context(walk.device_id, &binding)
            walk_inputs(walk)
            leave_context(&binding)
            resize(walk.chunk_indices, walk.chunk_indices.count)
    except BaseException as error:
        leave_context_after(error, &binding)
        raise
    return 0


cdef int name_bases(GraphCaptureBases found, KnownRanges* known) except -1:
    cdef Py_ssize_t number, count = <Py_ssize_t> known.size()
    cdef const Range* met
    cdef uint64_t* pointers
    cdef uint64_t* sizes
    found.base_pointers = np.empty(count, UNSIGNED)
    found.base_sizes = np.empty(count, UNSIGNED)
    pointers = words_of_new(found.base_pointers)
    sizes = words_of_new(found.base_sizes)
    for number in range(count):
        met = &known.get(number)
        pointers[number] = met.base
        sizes[number] = met.last - met.base + 1
    return 0


def is_vmm_pointer(uint64_t address):
    """Whether the memory at `address` was made by cuMemCreate."""
    cdef Retaining retaining
    cdef bint answer
    with nogil:
        ensure_driver()
        answer = has_allocation_handle(address, &retaining)
    if retaining.fault.status != cydriver.CUDA_SUCCESS:
        error = make_driver_error(retaining.fault.status, retaining.fault.call)
        if retaining.stays:
            error.add_note(STAYS)
        raise error
    return answer
