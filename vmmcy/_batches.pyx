"""Many ranges of many reservations at once: locked in one order, planned, then all or nothing.

What the operation and its way back need of host memory is there before the first driver call.
Where more than one unmap is needed, the ones that have succeeded must be undone when another
fails: so each piece's memory is held by a reference before the first, and those go last.
"""

from cuda.bindings cimport cydriver
from cuda.bindings.cydriver cimport CUmemGenericAllocationHandle, CUresult
from libc.stdint cimport uint64_t, uintptr_t
from libcpp.vector cimport vector

from vmmcy._calls_under_lock cimport mem_release, mem_retain, mem_unmap
from vmmcy._departing cimport settle
from vmmcy._mapping cimport (
    RETAINED,
    UNMAPPED,
    Mapping,
    back,
    expect_handles,
    give_back,
    set_held,
    set_mapped,
    strike_off,
    undo,
)
from vmmcy._outcome cimport CLOSE_ONLY, NOT_REFUSED, OPEN, Outcome, raise_outcome, undone
from vmmcy._reservation cimport Bytes, ReservationCore


def commit_many(ranges, checked, chunk_bytes) -> int:
    """Back every hole of the ranges; return the bytes newly backed."""
    cdef vector[Part] parts
    cdef vector[Span] spans
    cdef Outcome outcome
    cores = take_ranges(ranges, checked, True, chunk_bytes, &spans)
    list_parts(cores, &parts, &spans)
    with nogil:
        try_commit_many(&parts, &spans, &outcome)
    raise_outcome(&outcome, "commit_many", "reservation")
    return outcome.value


def decommit_many(ranges, checked) -> int:
    """Take away the mappings wholly inside any of the ranges; return their bytes."""
    cdef vector[Part] parts
    cdef vector[Span] spans
    cdef Outcome outcome
    cores = take_ranges(ranges, checked, False, None, &spans)
    list_parts(cores, &parts, &spans)
    with nogil:
        try_decommit_many(&parts, &spans, &outcome)
    raise_outcome(&outcome, "decommit_many", "reservation")
    return outcome.value


cdef dict take_ranges(ranges, checked, bint is_commit, chunk_bytes, vector[Span]* spans):
    """List the ranges; return each core with its number, in the order of their first ranges.

    An entry is looked at by `checked` unless it is a tuple about the same reservation as the
    one before it.
    """
    cdef dict cores = {}
    cdef object reservation = None
    cdef ReservationCore core = None
    cdef bint is_known
    cdef Span span
    cdef Bytes taken
    span.part = 0
    span.chunk_bytes = 0
    for index, entry in enumerate(ranges):
        is_known = is_about(entry, reservation)
        if not is_known:
            entry = checked(index, entry)
        try:
            if not is_known:
                reservation = entry[0]
                core = core_of(reservation)
                span.part = cores.setdefault(core, len(cores))
            if is_commit:
                span.chunk_bytes = core._take_commit(entry[1], entry[2], chunk_bytes, &taken)
            else:
                core._take_inside(entry[1], entry[2], "decommit", &taken)
        except (TypeError, ValueError, RuntimeError) as error:
            raise placed(error, index)
        span.offset = taken.offset
        span.end = taken.offset + taken.size
        spans.push_back(span)
    return cores


cdef ReservationCore core_of(reservation):
    """The core of a reservation; of one that was never made, what raises when it is asked."""
    reservation._core.inherited
    return reservation._core


cdef bint is_about(entry, reservation) except -1:
    """Whether a range is known to be one, and its reservation too; None is not."""
    if reservation is None or type(entry) is not tuple:
        return False
    return len(<tuple> entry) == 3 and (<tuple> entry)[0] is reservation


cdef int list_parts(dict cores, vector[Part]* parts, vector[Span]* spans) except -1:
    """List each core once, in the order in which all lock, and have the spans say so."""
    cdef vector[size_t] places
    cdef ReservationCore core
    cdef Part part
    cdef size_t index
    part.plan = NULL
    places.resize(len(cores))
    for core in sorted(cores, key=lock_order):
        part.space = &core.space
        part.record = core.record
        index = cores[core]
        places[index] = parts.size()
        parts.push_back(part)
    for index in range(spans.size()):
        spans[0][index].part = places[spans[0][index].part]
    return 0


def lock_order(ReservationCore core):
    return <uintptr_t> core.record


cdef object placed(object error, index):
    """Say which of the ranges an error is about."""
    error.add_note(f"range {index} of the batch")
    return error


# ---- without the GIL


cdef void try_commit_many(
    vector[Part]* parts, vector[Span]* spans, Outcome* outcome
) noexcept nogil:
    """Back every hole of all ranges and keep what is leaving there, or nothing of it."""
    cdef Part part
    cdef Span span
    cdef Mapping* piece
    lock(parts)
    if plan(parts, spans, True, outcome) and expect_all(parts, outcome):
        for part in parts[0]:
            for piece in part.plan.pieces:
                outcome.value += piece.size_bytes
        for part in parts[0]:
            if outcome.is_done():
                back(part.space, part.record, part.plan, False, outcome)
    if outcome.is_done():
        for span in spans[0]:
            part = parts[0][span.part]
            outcome.value += part.record.keep(span.offset, span.end)
    else:
        unback(parts, outcome)
    unlock(parts)


cdef void try_decommit_many(
    vector[Part]* parts, vector[Span]* spans, Outcome* outcome
) noexcept nogil:
    """Take away the mappings wholly inside any range, or none."""
    cdef Part part
    lock(parts)
    if plan(parts, spans, False, outcome):
        for part in parts[0]:
            outcome.value += part.plan.staying_bytes()
        if stretches(parts) > 1:
            give_back_all(parts, outcome)
        else:
            for part in parts[0]:
                if not part.plan.pieces.empty():
                    give_back(part.space, part.record, part.plan, True, outcome)
    unlock(parts)


cdef void lock(vector[Part]* parts) noexcept nogil:
    """Lock all in order, and give back what is due, as every operation does."""
    cdef Outcome unheard
    cdef Part* part
    cdef size_t index
    for index in range(parts.size()):
        part = &parts[0][index]
        part.record.mutex.lock()
        if part.record.state.load() == OPEN:
            settle(part.space, part.record, &unheard)
        part.plan = part.record.fresh_plan()


cdef void unlock(vector[Part]* parts) noexcept nogil:
    cdef Part part
    for part in parts[0]:
        part.record.mutex.unlock()


cdef bint are_open(vector[Part]* parts, Outcome* outcome) noexcept nogil:
    cdef Part part
    for part in parts[0]:
        outcome.refusal = part.record.admit()
        if outcome.refusal.reason != NOT_REFUSED:
            return False
    return True


cdef bint plan(
    vector[Part]* parts, vector[Span]* spans, bint is_commit, Outcome* outcome
) noexcept nogil:
    """Plan the holes of all ranges, for a commit, or the mappings wholly inside them."""
    cdef Part part
    cdef Span span
    if not are_open(parts, outcome):
        return False
    for span in spans[0]:
        part = parts[0][span.part]
        if is_commit:
            outcome.refusal = part.record.plan_holes(
                span.offset, span.end, span.chunk_bytes, part.plan[0]
            )
        else:
            outcome.refusal = part.record.plan_inside(span.offset, span.end, part.plan[0])
        if outcome.refusal.reason != NOT_REFUSED:
            return False
    for part in parts[0]:
        part.plan.put_in_order()
    return True


cdef bint expect_all(vector[Part]* parts, Outcome* outcome) noexcept nogil:
    """Have the pools make room for what is to come back to them."""
    cdef Part part
    for part in parts[0]:
        outcome.refusal = expect_handles(part.space, part.record, part.plan)
        if outcome.refusal.reason != NOT_REFUSED:
            return False
    return True


cdef void unback(vector[Part]* parts, Outcome* outcome) noexcept nogil:
    """Undo what has been backed, the last first, and strike the plans off."""
    cdef size_t index = parts.size()
    cdef Part part
    while index > 0:
        index -= 1
        part = parts[0][index]
        undo(part.space, part.record, part.plan, outcome)
        strike_off(part.space, part.record, part.plan)
        part.plan.pieces.clear()


cdef uint64_t stretches(vector[Part]* parts) noexcept nogil:
    """How many unmaps it takes."""
    cdef Part part
    cdef uint64_t index, count = 0
    for part in parts[0]:
        index = 0
        while index < part.plan.pieces.size():
            index = part.record.stretch_end(part.plan[0], index)
            count += 1
    return count


cdef void give_back_all(vector[Part]* parts, Outcome* outcome) noexcept nogil:
    """Unmap all pieces of all plans, or none."""
    cdef size_t index = parts.size()
    cdef Part part
    for part in parts[0]:
        if outcome.is_done() and not hold(&part, outcome):
            break
    for part in parts[0]:
        if not outcome.is_done() or not unmap(&part, outcome):
            break
    if outcome.is_done():
        for part in parts[0]:
            let_go(&part, outcome)
        return
    while index > 0:
        index -= 1
        part = parts[0][index]
        undo(part.space, part.record, part.plan, outcome)


cdef bint hold(const Part* part, Outcome* outcome) noexcept nogil:
    """Take a reference of each piece that has none."""
    cdef Mapping* piece
    cdef CUmemGenericAllocationHandle handle = 0
    cdef CUresult status
    for piece in part.plan.pieces:
        if piece.held:
            continue
        status = mem_retain(&handle, part.space.base + piece.offset)
        if status == cydriver.CUDA_SUCCESS:
            piece.handle = handle
            set_held(part.space, piece, True)
            part.plan.note(RETAINED, piece)
        elif not undone(status, b"cuMemRetainAllocationHandle", outcome):
            return False
    return True


cdef bint unmap(const Part* part, Outcome* outcome) noexcept nogil:
    """Unmap a part's pieces, one call for each stretch."""
    cdef Plan* plan = part.plan
    cdef uint64_t start, end, first = 0, behind
    while first < plan.pieces.size():
        behind = part.record.stretch_end(plan[0], first)
        start = plan.pieces[first].offset
        end = plan.pieces[behind - 1].end()
        if not undone(mem_unmap(part.space.base + start, end - start), b"cuMemUnmap", outcome):
            return False
        while first < behind:
            set_mapped(part.space, plan.pieces[first], False)
            plan.note(UNMAPPED, plan.pieces[first])
            first += 1
    return True


cdef void let_go(const Part* part, Outcome* outcome) noexcept nogil:
    """Release what is unmapped now, and give the pool what is its.

    There is no way back any more: what fails is tried once more, and then stays on record.
    """
    cdef Mapping* piece
    cdef Outcome first
    for piece in part.plan.pieces:
        if not piece.held or piece.pooled:
            continue
        if undone(mem_release(piece.handle), b"cuMemRelease", &first) or undone(
            mem_release(piece.handle), b"cuMemRelease", outcome
        ):
            set_held(part.space, piece, False)
        else:
            piece.left_over = True
            part.record.state.store(CLOSE_ONLY)
    strike_off(part.space, part.record, part.plan)
