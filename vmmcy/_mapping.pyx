"""Create, map, set access, and the way back: the driver calls of a reservation.

One operation is one plan: pieces of the record, driver calls in order, and a table of the
steps that are done. A step that fails has the table undone backwards; what cannot be
undone stays on record, and then the reservation accepts `close` alone. The caller
holds the record's lock across all this, so no Python may run inside: faults are
collected, for the caller to raise when the lock is free.

Sources: the CUDA driver API's chapter "Virtual Memory Management"; what a real driver
answers was measured on an H200.
"""

from cuda.bindings cimport cydriver
from cuda.bindings.cydriver cimport (
    CUdeviceptr,
    CUmemAccessDesc,
    CUmemAllocationProp,
    CUmemGenericAllocationHandle,
    CUresult,
)
from libc.stdint cimport int64_t, uint64_t

from vmmcy._driver cimport DriverFault, driver_is_gone
from vmmcy._ledger cimport (
    COMMITTED_BYTES,
    HANDLES,
    MAPPINGS,
    RESERVATIONS,
    RESERVED_BYTES,
    count_held,
)

# cydriver's functions may take the GIL on status 500, to see whether the function was
# missing. None of these is missing from a driver that cuda-bindings 12.9 accepts, and
# under a native lock the GIL must never be taken: so they are called without that look.
ctypedef CUresult (*create_function)(
    CUmemGenericAllocationHandle*, size_t, const CUmemAllocationProp*, unsigned long long
) noexcept nogil
ctypedef CUresult (*map_function)(
    CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long
) noexcept nogil
ctypedef CUresult (*set_access_function)(
    CUdeviceptr, size_t, const CUmemAccessDesc*, size_t
) noexcept nogil
ctypedef CUresult (*range_function)(CUdeviceptr, size_t) noexcept nogil
ctypedef CUresult (*release_function)(CUmemGenericAllocationHandle) noexcept nogil
ctypedef CUresult (*retain_function)(CUmemGenericAllocationHandle*, void*) noexcept nogil

cdef:
    create_function mem_create = <create_function> cydriver.cuMemCreate
    map_function mem_map = <map_function> cydriver.cuMemMap
    set_access_function mem_set_access = <set_access_function> cydriver.cuMemSetAccess
    range_function mem_unmap = <range_function> cydriver.cuMemUnmap
    range_function mem_address_free = <range_function> cydriver.cuMemAddressFree
    release_function mem_release = <release_function> cydriver.cuMemRelease
    retain_function mem_retain = <retain_function> cydriver.cuMemRetainAllocationHandle


cdef bint done(CUresult status, const char* call, Outcome* outcome) noexcept nogil:
    """Whether a step of the way forward succeeded; its fault is collected if not."""
    cdef DriverFault fault
    if status == cydriver.CUDA_SUCCESS:
        return True
    fault.status = status
    fault.call = call
    outcome.collect(fault)
    return False


cdef bint undone(CUresult status, const char* call, Outcome* outcome) noexcept nogil:
    """Whether what a call gives back is gone: a driver that is gone took it along."""
    return driver_is_gone(status) or done(status, call, outcome)


cdef void set_reserved(const Space* space, Record* record, bint reserved) noexcept nogil:
    """Note a change: the space has its addresses from now on, or has them no more."""
    cdef int sign = 1 if reserved else -1
    record.address_is_reserved = reserved
    count_held(space.device_id, RESERVATIONS, sign)
    count_held(space.device_id, RESERVED_BYTES, sign * <int64_t> space.size_bytes)


cdef void set_mapped(const Space* space, Mapping* piece, bint mapped) noexcept nogil:
    """Note a change: the piece is mapped from now on, or no more."""
    cdef int sign = 1 if mapped else -1
    piece.mapped = mapped
    count_held(space.device_id, MAPPINGS, sign)
    count_held(space.device_id, COMMITTED_BYTES, sign * <int64_t> piece.size_bytes)


cdef void set_held(const Space* space, Mapping* piece, bint held) noexcept nogil:
    """Note a change: a reference is the reservation's to release from now on, or no more."""
    piece.held = held
    count_held(space.device_id, HANDLES, 1 if held else -1)


cdef void back(
    const Space* space, Record* record, Plan* plan, bint retain, Outcome* outcome
) noexcept nogil:
    """Back all pieces of a plan, or none."""
    if (
        place(space, plan, outcome)
        and set_access(space, plan, outcome)
        and (retain or drop_references(space, plan, outcome))
    ):
        return
    undo(space, record, plan, outcome)
    record.forget_empty(plan.pieces)


cdef bint place(const Space* space, Plan* plan, Outcome* outcome) noexcept nogil:
    """Create what has no handle yet, and map each piece at its place."""
    cdef Mapping* piece
    cdef CUmemGenericAllocationHandle handle = 0
    for piece in plan.pieces:
        if piece.handle == 0:
            if not done(
                mem_create(&handle, piece.size_bytes, &space.prop, 0), b"cuMemCreate", outcome
            ):
                return False
            piece.handle = handle
            set_held(space, piece, True)
            plan.note(CREATED, piece)
        if not done(
            mem_map(space.base + piece.offset, piece.size_bytes, 0, piece.handle, 0),
            b"cuMemMap",
            outcome,
        ):
            return False
        set_mapped(space, piece, True)
        plan.note(MAPPED, piece)
    return True


cdef bint set_access(const Space* space, Plan* plan, Outcome* outcome) noexcept nogil:
    """Grant access in one call for each stretch of touching pieces."""
    cdef size_t index = 0
    cdef uint64_t start, end
    while index < plan.pieces.size():
        start = plan.pieces[index].offset
        end = start
        while index < plan.pieces.size() and plan.pieces[index].offset == end:
            end = plan.pieces[index].end()
            index += 1
        if not done(
            mem_set_access(
                space.base + start, end - start, space.access.data(), space.access.size()
            ),
            b"cuMemSetAccess",
            outcome,
        ):
            return False
    return True


cdef bint drop_references(const Space* space, Plan* plan, Outcome* outcome) noexcept nogil:
    """Release what was created: the mapping keeps the memory."""
    cdef Mapping* piece
    for piece in plan.pieces:
        if piece.held:
            if not done(mem_release(piece.handle), b"cuMemRelease", outcome):
                return False
            set_held(space, piece, False)
            piece.handle = 0
    return True


cdef void give_back(
    const Space* space, Record* record, Plan* plan, bint release_handles, Outcome* outcome
) noexcept nogil:
    """Unmap all pieces of a plan, or none.

    The references go first: a mapping keeps its memory without them, and from the
    mapped address they can be had back. One unmap then is the point of no return.
    """
    cdef Mapping* piece
    for piece in plan.pieces:
        if release_handles and piece.held:
            if not undone(mem_release(piece.handle), b"cuMemRelease", outcome):
                undo(space, record, plan, outcome)
                return
            set_held(space, piece, False)
            plan.note(RELEASED, piece)
    if not unmap_span(space, plan, outcome):
        undo(space, record, plan, outcome)
        return
    for piece in plan.pieces:
        if piece.held:
            set_held(space, piece, False)
    record.forget_empty(plan.pieces)


cdef bint unmap_span(const Space* space, Plan* plan, Outcome* outcome) noexcept nogil:
    """Unmap from the first piece to the last in one call; holes do not matter."""
    cdef Mapping* piece
    cdef uint64_t start = plan.pieces.front().offset
    if not undone(
        mem_unmap(space.base + start, plan.pieces.back().end() - start),
        b"cuMemUnmap",
        outcome,
    ):
        return False
    for piece in plan.pieces:
        if piece.mapped:
            set_mapped(space, piece, False)
    return True


cdef void undo(
    const Space* space, Record* record, Plan* plan, Outcome* outcome
) noexcept nogil:
    """Undo the done steps backwards; where one stays, only `close` is left."""
    while not plan.steps.empty():
        if not undo_step(space, &plan.steps.back(), outcome):
            record.state.store(CLOSE_ONLY)
        plan.steps.pop_back()


cdef bint undo_step(const Space* space, const Step* step, Outcome* outcome) noexcept nogil:
    cdef Mapping* piece = step.mapping
    cdef CUmemGenericAllocationHandle handle = piece.handle
    cdef CUdeviceptr address = space.base + piece.offset
    cdef CUresult status
    if step.kind == MAPPED:
        if undone(mem_unmap(address, piece.size_bytes), b"cuMemUnmap", outcome):
            set_mapped(space, piece, False)
        return not piece.mapped
    if step.kind == RELEASED:
        status = mem_retain(&handle, <void*> address)
        piece.handle = 0
        if status == cydriver.CUDA_SUCCESS:
            set_held(space, piece, True)
            piece.handle = handle
        return undone(status, b"cuMemRetainAllocationHandle", outcome)
    if piece.held and undone(mem_release(handle), b"cuMemRelease", outcome):
        set_held(space, piece, False)
        piece.handle = 0
    return not piece.held


cdef void tear_down(
    const Space* space, Record* record, bint release_handles, Outcome* outcome
) noexcept nogil:
    """Undo everything on record, in order, as far as it goes."""
    cdef Plan* plan = record.fresh_plan()
    cdef Mapping* piece
    outcome.refusal = record.plan_inside(0, space.size_bytes, plan[0])
    if outcome.refusal.reason != NOT_REFUSED:
        return
    record.state.store(CLOSE_ONLY)
    if plan.has_mapped() and not unmap_span(space, plan, outcome):
        return
    for piece in plan.pieces:
        if piece.held and (
            (piece.lent and not release_handles)
            or undone(mem_release(piece.handle), b"cuMemRelease", outcome)
        ):
            set_held(space, piece, False)
    record.forget_empty(plan.pieces)
    if record.address_is_reserved and undone(
        mem_address_free(space.base, space.size_bytes), b"cuMemAddressFree", outcome
    ):
        set_reserved(space, record, False)
    if record.count() == 0 and not record.address_is_reserved:
        record.state.store(CLOSED)
