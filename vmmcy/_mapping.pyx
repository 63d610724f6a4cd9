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
    CUmemGenericAllocationHandle,
    CUresult,
    CUstreamCaptureMode,
)
from libc.stdint cimport int64_t, uint64_t

from vmmcy._calls_under_lock cimport (
    mem_address_free,
    mem_map,
    mem_release,
    mem_retain,
    mem_set_access,
    mem_unmap,
)
from vmmcy._handle_pool cimport Pooled, create_handle, expect, expect_one_less, may_help, put_back
from vmmcy._ledger cimport (
    COMMITTED_BYTES,
    HANDLES,
    MAPPINGS,
    POOLED_HANDLES,
    RESERVATIONS,
    RESERVED_BYTES,
    count_held,
)
from vmmcy._outcome cimport (
    CLOSE_ONLY,
    CLOSED,
    NOT_REFUSED,
    OPEN,
    Outcome,
    Refusal,
    done,
    undone,
)
from vmmcy._wiping cimport begin_wiping, end_wiping, wipe


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


cdef Refusal expect_handles(const Space* space, Record* record, Plan* plan) noexcept nogil:
    """Have the pool make room for the new pieces that are to come back to it."""
    cdef Refusal refusal
    cdef Mapping* piece
    cdef uint64_t count = 0
    if space.pool == NULL:
        return refusal
    for piece in plan.pieces:
        count += piece.size_bytes == space.pool.chunk_bytes
    refusal = expect(space.pool, count)
    if refusal.reason != NOT_REFUSED:
        record.forget_empty(plan.pieces)
        plan.pieces.clear()
        return refusal
    for piece in plan.pieces:
        piece.pooled = piece.size_bytes == space.pool.chunk_bytes
    return refusal


cdef void back(
    const Space* space, Record* record, Plan* plan, bint retain, Outcome* outcome
) noexcept nogil:
    """Back all pieces of a plan, or none."""
    cdef Mapping* piece
    if (
        place(space, plan, outcome)
        and set_access(space, plan, outcome)
        and wipe_of_others(space, plan, outcome)
        and (retain or drop_references(space, plan, outcome))
    ):
        for piece in plan.pieces:
            piece.giver = space.owner
        return
    undo(space, record, plan, outcome)
    strike_off(space, record, plan)


cdef bint place(const Space* space, Plan* plan, Outcome* outcome) noexcept nogil:
    """Give each piece a handle where it has none yet, and map it at its place."""
    cdef Mapping* piece
    if space.pool != NULL:
        draw(space, plan)
    for piece in plan.pieces:
        if piece.handle == 0 and not create(space, plan, piece, outcome):
            return False
        if not map_one(space, piece, outcome):
            return False
        plan.note(MAPPED, piece)
    return True


cdef bint map_one(const Space* space, Mapping* piece, Outcome* outcome) noexcept nogil:
    cdef CUdeviceptr address = space.base + piece.offset
    cdef CUresult status = mem_map(address, piece.size_bytes, piece.handle)
    if may_help(status, space.device_id, NULL):
        status = mem_map(address, piece.size_bytes, piece.handle)
    if not done(status, b"cuMemMap", outcome):
        return False
    set_mapped(space, piece, True)
    return True


cdef void draw(const Space* space, Plan* plan) noexcept nogil:
    """Give what the pool keeps to the pieces that are for it, as far as it goes."""
    cdef Mapping* piece
    cdef Pooled drawn
    cdef int count = 0
    space.pool.mutex.lock()
    for piece in plan.pieces:
        if piece.pooled and not space.pool.unused.empty():
            drawn = space.pool.draw()
            piece.giver = drawn.giver
            piece.handle = drawn.handle
            set_held(space, piece, True)
            count += 1
    space.pool.mutex.unlock()
    count_held(space.device_id, POOLED_HANDLES, -count)


cdef bint create(
    const Space* space, Plan* plan, Mapping* piece, Outcome* outcome
) noexcept nogil:
    """Give a piece a new handle."""
    cdef CUmemGenericAllocationHandle handle = 0
    if not done(
        create_handle(&handle, piece.size_bytes, &space.prop, space.device_id, NULL),
        b"cuMemCreate",
        outcome,
    ):
        return False
    piece.handle = handle
    plan.note(CREATED, piece)
    set_held(space, piece, True)
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
        if not allow(space, start, end, outcome):
            return False
    return True


cdef bint allow(
    const Space* space, uint64_t start, uint64_t end, Outcome* outcome
) noexcept nogil:
    cdef CUdeviceptr address = space.base + start
    cdef size_t count = space.access.size()
    cdef CUresult status = mem_set_access(address, end - start, space.access.data(), count)
    if may_help(status, space.device_id, NULL):
        status = mem_set_access(address, end - start, space.access.data(), count)
    return done(status, b"cuMemSetAccess", outcome)


cdef bint wipe_of_others(const Space* space, Plan* plan, Outcome* outcome) noexcept nogil:
    """Wipe what other reservations left in pooled handles."""
    cdef Mapping* piece
    cdef CUstreamCaptureMode mode
    cdef bint wiped = True
    if space.wiper == NULL or not has_of_others(space, plan):
        return True
    if not begin_wiping(space.wiper, &mode, outcome):
        return False
    for piece in plan.pieces:
        if wiped and is_of_others(space, piece):
            wiped = wipe(space.wiper, space.base + piece.offset, piece.size_bytes, outcome)
    return end_wiping(space.wiper, &mode, outcome) and wiped


cdef bint has_of_others(const Space* space, Plan* plan) noexcept nogil:
    cdef Mapping* piece
    for piece in plan.pieces:
        if is_of_others(space, piece):
            return True
    return False


cdef bint is_of_others(const Space* space, const Mapping* piece) noexcept nogil:
    return piece.pooled and piece.giver != 0 and piece.giver != space.owner


cdef bint drop_references(const Space* space, Plan* plan, Outcome* outcome) noexcept nogil:
    """Release what was created and is not the pool's: the mapping keeps the memory."""
    cdef Mapping* piece
    for piece in plan.pieces:
        if piece.held and not piece.pooled:
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
    mapped address they can be had back. One unmap then is the point of no return. The pool's
    handles go back behind it.
    """
    cdef Mapping* piece
    for piece in plan.pieces:
        if release_handles and piece.held and not piece.pooled:
            if not undone(mem_release(piece.handle), b"cuMemRelease", outcome):
                undo(space, record, plan, outcome)
                return
            set_held(space, piece, False)
            plan.note(RELEASED, piece)
    if not unmap_span(space, plan, outcome):
        undo(space, record, plan, outcome)
        return
    for piece in plan.pieces:
        if piece.held and not piece.pooled:
            set_held(space, piece, False)
    strike_off(space, record, plan)


cdef void strike_off(const Space* space, Record* record, Plan* plan) noexcept nogil:
    """Give the pool what is not mapped any more, and strike off what is empty.

    The pool gives first what it got last: so the last piece goes first, and the next commit
    has the memory in the order in which it was.
    """
    cdef Mapping* piece
    cdef size_t index = plan.pieces.size()
    while index > 0:
        index -= 1
        piece = plan.pieces[index]
        if not piece.pooled or piece.mapped:
            continue
        if piece.held:
            set_held(space, piece, False)
            put_back(space.pool, piece.handle, piece.giver)
        else:
            expect_one_less(space.pool)
    record.forget_empty(plan.pieces)
    plan.pieces.clear()


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
            plan.steps.back().mapping.left_over = True
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
        status = mem_retain(&handle, address)
        piece.handle = 0
        if status == cydriver.CUDA_SUCCESS:
            set_held(space, piece, True)
            piece.handle = handle
        return undone(status, b"cuMemRetainAllocationHandle", outcome)
    if step.kind == UNMAPPED:
        return map_again(space, piece, outcome)
    if step.kind == RETAINED and not piece.mapped:
        return True  # nothing else holds its memory
    if piece.held and undone(mem_release(handle), b"cuMemRelease", outcome):
        set_held(space, piece, False)
        if not piece.foreign:
            piece.handle = 0
    return not piece.held or piece.pooled


cdef bint map_again(const Space* space, Mapping* piece, Outcome* outcome) noexcept nogil:
    """Undo an unmap: a reference has kept the memory, and with it the contents."""
    return map_one(space, piece, outcome) and allow(
        space, piece.offset, piece.end(), outcome
    )


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
        if piece.held and not piece.pooled and (
            (piece.lent and not release_handles)
            or undone(mem_release(piece.handle), b"cuMemRelease", outcome)
        ):
            set_held(space, piece, False)
    strike_off(space, record, plan)
    if record.address_is_reserved and undone(
        mem_address_free(space.base, space.size_bytes), b"cuMemAddressFree", outcome
    ):
        set_reserved(space, record, False)
    if record.count() == 0 and not record.address_is_reserved:
        record.state.store(CLOSED)


cdef void mend(const Space* space, Record* record, Outcome* outcome) noexcept nogil:
    """Undo what ways back that failed have left; the record is open again if all of it went."""
    cdef Plan* plan = record.fresh_plan()
    cdef Mapping* piece
    outcome.refusal = record.plan_left_over(plan[0])
    if outcome.refusal.reason != NOT_REFUSED:
        return
    for piece in plan.pieces:
        take_away(space, piece, outcome)
    strike_off(space, record, plan)
    if outcome.is_done():
        record.state.store(OPEN)


cdef void take_away(const Space* space, Mapping* piece, Outcome* outcome) noexcept nogil:
    if piece.mapped:
        if not undone(
            mem_unmap(space.base + piece.offset, piece.size_bytes), b"cuMemUnmap", outcome
        ):
            return
        set_mapped(space, piece, False)
    if piece.held and not piece.pooled and undone(
        mem_release(piece.handle), b"cuMemRelease", outcome
    ):
        set_held(space, piece, False)
