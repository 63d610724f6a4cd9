"""What stands behind the entry points of segments: a book, a reservation, and no Python.

`malloc` takes an address range from the book, then commits it. Both the book's lock and the
reservation's, which is taken after it, are held across driver calls; the slot's, which is for
a few instructions, is given up meanwhile. Nothing takes the GIL while it holds one of them: `free`
may be called by whoever has the GIL, and then waits with it.
"""

from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from cuda.bindings cimport cydriver
from cuda.bindings.cydriver cimport CUstream
from libc.stdint cimport uint64_t, uintptr_t

from vmmcy._arena cimport (
    claim_slot,
    no_slot_error,
    step_into_slot,
    step_out_of_slot,
    vmmcy_room,
)
from vmmcy._driver cimport DriverFault, fork_count
from vmmcy._fences cimport (
    PASSED,
    Fence,
    LateStreams,
    fence_drop,
    fence_passed,
    fence_record,
    fence_wait,
)
from vmmcy._outcome cimport CLOSE_ONLY, Outcome
from vmmcy._reservation cimport ReservationCore

cdef vmmcy_room room
room.malloc_fn = segment_malloc
room.free_fn = segment_free
room.outstanding_fn = segments_outstanding
room.destroy_fn = end_backing


cdef Backing* open_backing(ReservationCore reservation, uint64_t chunk_bytes) except NULL:
    """Give a reservation a book and a slot."""
    cdef Backing* backing = <Backing*> PyMem_RawMalloc(sizeof(Backing))
    if backing == NULL:
        raise MemoryError
    try:
        backing.book = new SegmentBook(reservation.size)
    except BaseException:
        PyMem_RawFree(backing)
        raise
    Py_INCREF(reservation)
    backing.reservation = <PyObject*> reservation
    backing.base = reservation.base
    backing.size_bytes = reservation.size
    backing.granularity = reservation.granularity
    backing.chunk_bytes = chunk_bytes
    backing.device_id = reservation.device_id
    backing.fault_count = 0
    with nogil:
        # Nobody has the entry points yet, so that none is called before the slot is known.
        backing.slot = claim_slot(&room, backing)
    if backing.slot == NULL:
        end_backing(backing)
        raise no_slot_error()
    return backing


# ---- what the entry points do


cdef void* segment_malloc(void* state, size_t size_bytes, int device, void* stream) noexcept nogil:
    cdef Backing* backing = <Backing*> state
    cdef uint64_t address
    step_out_of_slot(backing.slot)
    backing.book.mutex.lock()
    address = hand_out(backing, size_bytes, device)
    backing.book.mutex.unlock()
    step_into_slot(backing.slot)
    return <void*> address


cdef void segment_free(void* state, void* address, size_t size_bytes, void* stream) noexcept nogil:
    cdef Backing* backing = <Backing*> state
    step_out_of_slot(backing.slot)
    backing.book.mutex.lock()
    take_back(backing, <uintptr_t> address, <CUstream> stream)
    backing.book.mutex.unlock()
    step_into_slot(backing.slot)


cdef uint64_t segments_outstanding(const void* state) noexcept nogil:
    return (<const Backing*> state).book.outstanding.load()


cdef void end_backing(void* state) noexcept nogil:
    cdef Backing* backing = <Backing*> state
    # It is whoever made another that is here: what is late now is kept for ever, as is all that
    # is a parent process's.
    if (<ReservationCore> backing.reservation).made_under != fork_count():
        return
    backing.book.mutex.lock()
    settle(backing, 0)
    backing.book.mutex.unlock()
    if not backing.book.figures().late:
        with gil:
            Py_DECREF(<object> backing.reservation)
    del backing.book
    PyMem_RawFree(backing)


# ---- with the book's lock held


cdef uint64_t hand_out(Backing* backing, uint64_t size_bytes, int device) noexcept nogil:
    """The address of a new, backed segment, or 0: then the book knows why."""
    cdef SegmentBook* book = backing.book
    cdef uint64_t offset
    settle(backing, 0)
    book.denial = NONE_DENIED
    if device != backing.device_id:
        book.denial = OTHER_DEVICE
    elif book.paused:
        book.denial = WHILE_PAUSED
    elif not whole_size(backing, &size_bytes) or not book.ranges.take(size_bytes, &offset):
        book.denial = NO_ADDRESSES
    if book.denial != NONE_DENIED or not back_one(backing, offset, size_bytes):
        return 0
    book.outstanding.fetch_add(1)
    return backing.base + offset


cdef bint back_one(Backing* backing, uint64_t offset, uint64_t size_bytes) noexcept nogil:
    """Back a range that was taken, or let it go; false, and the book knows why.

    Where something of it stays, since the way back failed too, its addresses stay with it.
    """
    cdef Outcome outcome
    cdef bint is_clean = True
    mend(backing, &outcome)
    if outcome.is_done():
        (<ReservationCore> backing.reservation).try_commit(
            offset, size_bytes, backing.chunk_bytes, &outcome
        )
        is_clean = (<ReservationCore> backing.reservation).record.state.load() != CLOSE_ONLY
    if outcome.is_done():
        return True
    note_refusal(backing, &outcome)
    if is_clean:
        backing.book.ranges.give(offset)
    else:
        backing.book.ranges.leave(offset).guard = WAITED_FOR
    return False


cdef void mend(Backing* backing, Outcome* outcome) noexcept nogil:
    """Undo what an operation and its way back have left, if there is such."""
    (<ReservationCore> backing.reservation).try_mend(outcome)


cdef bint whole_size(const Backing* backing, uint64_t* size_bytes) noexcept nogil:
    """Round up to granules, 0 counting as 1; false for more than there are addresses."""
    cdef uint64_t granules
    if size_bytes[0] > backing.size_bytes:
        return False
    granules = (max(size_bytes[0], <uint64_t> 1) - 1) // backing.granularity + 1
    size_bytes[0] = granules * backing.granularity
    return True


cdef void note_refusal(Backing* backing, const Outcome* outcome) noexcept nogil:
    cdef size_t index
    backing.book.denial = DRIVER_REFUSED
    backing.refusal = outcome.refusal
    backing.fault_count = outcome.faults.size()
    for index in range(min(backing.fault_count, <size_t> MOST_FAULTS)):
        backing.faults[index] = outcome.faults[index]


cdef void take_back(Backing* backing, uint64_t address, CUstream stream) noexcept nogil:
    cdef SegmentBook* book = backing.book
    cdef DriverFault fault
    cdef Range* leaving
    cdef uint64_t offset = address - backing.base
    if address < backing.base or book.ranges.size_of_out(offset) == 0:
        book.ignored_frees += 1
        return
    book.outstanding.fetch_sub(1)
    leaving = book.ranges.leave(offset)
    fault.status = cydriver.CUDA_SUCCESS
    if book.paused:
        leaving.guard = WAITED_FOR
    elif fence_record(backing.device_id, stream, &leaving.fence, &fault):
        leaving.guard = FENCED
    settle(backing, 0)


cdef uint64_t settle(Backing* backing, uint64_t waited_for) noexcept nogil:
    """Give back the memory of what has left, as far as it is known to be; the bytes given.

    The device has been waited for since so many had left.
    """
    cdef uint64_t offset = 0, given = 0, place = 0
    cdef LateStreams late
    cdef Outcome unheard
    cdef Range* leaving
    mend(backing, &unheard)
    leaving = backing.book.ranges.next_leaving(place, &offset)
    while leaving != NULL:
        place = offset + leaving.size_bytes
        if leaving.number <= waited_for:
            wait_is_over(leaving)
        if has_left(leaving, &late):
            given += give_back_one(backing, offset, leaving.size_bytes)
        leaving = backing.book.ranges.next_leaving(place, &offset)
    return given


cdef bint has_left(Range* leaving, LateStreams* late) noexcept nogil:
    """Whether no work can use the range any more; asks its fence, unless its stream is late."""
    cdef DriverFault fault
    fault.status = cydriver.CUDA_SUCCESS
    if leaving.guard == FENCED and not late.hold(leaving.fence, leaving.number):
        if fence_passed(&leaving.fence, &fault) == PASSED:
            wait_is_over(leaving)
        else:
            late.add(leaving.fence, leaving.number)
    return leaving.guard == WAITED_FOR


cdef void wait_is_over(Range* leaving) noexcept nogil:
    if leaving.guard == FENCED:
        fence_drop(&leaving.fence)
    leaving.guard = WAITED_FOR


cdef uint64_t give_back_one(
    Backing* backing, uint64_t offset, uint64_t size_bytes
) noexcept nogil:
    """Give a range and its memory back; 0, and it stays, where the driver refuses."""
    cdef Outcome outcome
    (<ReservationCore> backing.reservation).try_decommit(offset, size_bytes, &outcome)
    if not outcome.is_done():
        return 0
    backing.book.ranges.give(offset)
    return size_bytes


cdef uint64_t wait_for_leaving(Backing* backing, bint promised) noexcept nogil:
    """Wait for the fences of all that is leaving, one by one, and give it back.

    Each is taken off its range for that, since nobody shall wait with the lock. What has none,
    since the driver refused it, may be used no more where that is `promised`: its stream may be
    gone by now, and is not asked.
    """
    cdef uint64_t offset = 0, given = 0, place = 0
    cdef DriverFault fault
    cdef Range* leaving
    cdef Fence fence
    cdef bint passed
    cdef Outcome unheard
    backing.book.mutex.lock()
    mend(backing, &unheard)
    leaving = backing.book.ranges.next_leaving(place, &offset)
    while leaving != NULL:
        place = offset + leaving.size_bytes
        if leaving.guard == UNGUARDED and promised:
            wait_is_over(leaving)
        if leaving.guard == FENCED:
            fence = leaving.fence
            leaving.guard = UNGUARDED
            backing.book.mutex.unlock()
            fault.status = cydriver.CUDA_SUCCESS
            passed = fence_wait(&fence, &fault) == PASSED
            backing.book.mutex.lock()
            leaving.fence = fence
            leaving.guard = FENCED
            if passed:
                wait_is_over(leaving)
        if leaving.guard == WAITED_FOR:
            given += give_back_one(backing, offset, leaving.size_bytes)
        leaving = backing.book.ranges.next_leaving(place, &offset)
    backing.book.mutex.unlock()
    return given


cdef void back_all(Backing* backing, Outcome* outcome) noexcept nogil:
    """Back all that is out, or nothing."""
    cdef uint64_t offset, size_bytes, place = 0
    mend(backing, outcome)
    if not outcome.is_done():
        return
    while backing.book.next(OUT, place, &offset, &size_bytes):
        (<ReservationCore> backing.reservation).try_commit(
            offset, size_bytes, backing.chunk_bytes, outcome
        )
        if not outcome.is_done():
            unback_all(backing, outcome)
            return
        place = offset + size_bytes


cdef void unback_all(Backing* backing, Outcome* outcome) noexcept nogil:
    """Take all memory away in one unmap, or none; faults go behind those there are."""
    cdef Outcome own
    cdef DriverFault fault
    mend(backing, &own)
    if own.is_done():
        (<ReservationCore> backing.reservation).try_decommit(0, backing.size_bytes, &own)
    if outcome.is_done():
        outcome.refusal = own.refusal
    for fault in own.faults:
        outcome.collect(fault)
