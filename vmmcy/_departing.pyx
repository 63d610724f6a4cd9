"""Mappings that leave when a stream has done what it was given, and are given back then.

A departure is some mappings and the fence that they leave after. It is asked, never waited for,
whenever somebody uses the reservation: what is due is given back then. Only who waits for all
waits, and gives up the record's lock meanwhile, so that nobody else does. What leaves a second
time waits for all departures before it, rather than for those that it was in.
"""

from cuda.bindings cimport cydriver
from cuda.bindings.cydriver cimport CUstream
from libc.stdint cimport uint64_t

from vmmcy._driver cimport DriverFault
from vmmcy._fences cimport (
    PASSED,
    Fence,
    LateStreams,
    fence_drop,
    fence_passed,
    fence_record,
    fence_wait,
)
from vmmcy._mapping cimport Departure, Mapping, Plan, Record, Space, give_back
from vmmcy._outcome cimport NO_HOST_MEMORY, NOT_REFUSED, STILL_CAPTURED, Outcome


cdef void leave_after(
    const Space* space, Record* record, Plan* plan, CUstream stream, Outcome* outcome
) noexcept nogil:
    """Let the pieces of a plan leave after a stream; `value` is the bytes not leaving before."""
    cdef Departure* departure
    cdef DriverFault fault
    if plan.pieces.empty():
        return
    departure = record.departures.add()
    if departure == NULL:
        outcome.refusal.reason = NO_HOST_MEMORY
        return
    fault.status = cydriver.CUDA_SUCCESS
    if fence_record(space.device_id, stream, &departure.fence, &fault):
        outcome.value = plan.staying_bytes()
        record.depart(plan.pieces, departure)
        return
    outcome.collect(fault)
    drop_idle(record)


cdef void settle(const Space* space, Record* record, Outcome* outcome) noexcept nogil:
    """Give back what is due, as far as the driver lets; `value` grows by the bytes."""
    cdef Plan* plan
    cdef uint64_t size_bytes, place, start
    if record.departures.first == NULL:
        return
    drop_idle(record)
    look(record, outcome)
    record.forget_passed()
    if not record.departures.are_due(&place):
        drop_idle(record)
        return
    while record.departures.are_due(&start):
        plan = record.fresh_plan()
        outcome.refusal = record.plan_due(place, plan[0])
        if outcome.refusal.reason != NOT_REFUSED or plan.pieces.empty():
            break
        size_bytes = plan.end() - plan.start()
        place = plan.end()
        if not went(space, record, plan, outcome):
            break
        outcome.value += size_bytes
    drop_idle(record)


cdef bint went(
    const Space* space, Record* record, Plan* plan, Outcome* outcome
) noexcept nogil:
    cdef size_t before = outcome.faults.size()
    give_back(space, record, plan, True, outcome)
    return outcome.faults.size() == before


cdef void look(Record* record, Outcome* outcome) noexcept nogil:
    """Find out which fences have passed."""
    cdef Departure* departure = record.departures.first
    cdef LateStreams late
    cdef uint64_t number = 0
    cdef bint all_passed = True
    cdef DriverFault fault
    while departure != NULL:
        if not departure.passed and not late.hold(departure.fence, number):
            fault.status = cydriver.CUDA_SUCCESS
            if fence_passed(&departure.fence, &fault) == PASSED:
                departure.passed = all_passed or not departure.after_earlier
            else:
                late.add(departure.fence, number)
            if fault.status != cydriver.CUDA_SUCCESS:
                outcome.collect(fault)
        all_passed = all_passed and departure.passed
        departure = departure.next
        number += 1


cdef bint wait_for_one(Record* record, bint of_all, Outcome* outcome) noexcept nogil:
    """Wait for a departure, without the lock meanwhile; false where there is none, or a fault.

    Those that nothing leaves after any more count where it is to be one `of_all`.
    """
    cdef Departure* departure = record.departures.to_wait_for(of_all)
    cdef DriverFault fault
    cdef bint passed
    if departure == NULL:
        return False
    fault.status = cydriver.CUDA_SUCCESS
    departure.waiters += 1
    record.mutex.unlock()
    passed = fence_wait(&departure.fence, &fault) == PASSED
    record.mutex.lock()
    departure.waiters -= 1
    if passed:
        departure.passed = True
    elif fault.status != cydriver.CUDA_SUCCESS:
        outcome.collect(fault)
    return passed


cdef bint wait_for_all(Record* record, Outcome* outcome) noexcept nogil:
    """Wait until nothing is leaving after what has not passed; false where something is, and why.

    For what stays again it waits too, as far as that can be waited for.
    """
    cdef const Mapping* late
    while True:
        drop_idle(record)
        look(record, outcome)
        if not outcome.is_done():
            return False
        if record.departures.have_passed():
            return True
        if not wait_for_one(record, True, outcome):
            break
    late = record.first_late()
    if outcome.is_done():
        if late == NULL:
            return True
        outcome.refusal.reason = STILL_CAPTURED
        outcome.refusal.offset = late.offset
        outcome.refusal.end = late.end()
    return False


cdef void drop_idle(Record* record) noexcept nogil:
    """Drop the fences that nothing leaves after any more."""
    cdef Fence fence
    while record.departures.take_off_idle(&fence):
        fence_drop(&fence)
