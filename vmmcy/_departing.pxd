# Mappings of a reservation that leave when a stream has done what it was given.
from cuda.bindings.cydriver cimport CUstream

from vmmcy._mapping cimport Plan, Record, Space
from vmmcy._outcome cimport Outcome

# Each wants the record's lock held.
cdef void leave_after(
    const Space* space, Record* record, Plan* plan, CUstream stream, Outcome* outcome
) noexcept nogil
cdef void settle(const Space* space, Record* record, Outcome* outcome) noexcept nogil

# Gives the lock up while it waits.
cdef bint wait_for_one(Record* record, bint of_all, Outcome* outcome) noexcept nogil
cdef bint wait_for_all(Record* record, Outcome* outcome) noexcept nogil
cdef void drop_idle(Record* record) noexcept nogil
