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


def commit_many(list ranges, chunk_bytes) -> int:
    """Back every hole of ``(core, offset, size)`` ranges; return the bytes newly backed."""
    cdef vector[Part] parts
    cdef vector[Span] spans
    cdef Outcome outcome
    cdef Span span
    cdef Bytes taken
    cdef ReservationCore core
    indices = collect_parts(ranges, &parts)
    for index, (core, offset, size) in enumerate(ranges):
        try:
            span.chunk_bytes = core._take_commit(offset, size, chunk_bytes, &taken)
        except (TypeError, ValueError, RuntimeError) as error:
            raise placed(error, index)
        add_span(&spans, &span, indices[core], &taken)
    with nogil:
        try_commit_many(&parts, &spans, &outcome)
    raise_outcome(&outcome, "commit_many", "reservation")
    return outcome.value


def decommit_many(list ranges) -> int:
    """Take away the mappings wholly inside any of the ranges; return their bytes."""
    cdef vector[Part] parts
    cdef vector[Span] spans
    cdef Outcome outcome
    cdef Span span
    cdef Bytes taken
    cdef ReservationCore core
    span.chunk_bytes = 0
    indices = collect_parts(ranges, &parts)
    for index, (core, offset, size) in enumerate(ranges):
        try:
            core._take_inside(offset, size, "decommit", &taken)
        except (TypeError, ValueError, RuntimeError) as error:
            raise placed(error, index)
        add_span(&spans, &span, indices[core], &taken)
    with nogil:
        try_decommit_many(&parts, &spans, &outcome)
    raise_outcome(&outcome, "decommit_many", "reservation")
    return outcome.value


cdef dict collect_parts(list ranges, vector[Part]* parts):
    """List each reservation once, in the order in which all lock; return the index of each."""
    cdef ReservationCore core
    cdef Part part
    cores = {<uintptr_t> (<ReservationCore> entry[0]).record: entry[0] for entry in ranges}
    indices = {}
    part.plan = NULL
    for address in sorted(cores):
        core = cores[address]
        part.space = &core.space
        part.record = core.record
        indices[core] = parts.size()
        parts.push_back(part)
    return indices


cdef int add_span(
    vector[Span]* spans, Span* span, size_t part, const Bytes* taken
) except -1:
    span.part = part
    span.offset = taken.offset
    span.end = taken.offset + taken.size
    spans.push_back(span[0])
    return 0


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
            part.record.state.store(CLOSE_ONLY)
    strike_off(part.space, part.record, part.plan)
