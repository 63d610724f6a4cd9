# The gate between driver statuses and exceptions, and the binding of contexts.
from cuda.bindings.cydriver cimport CUcontext, CUresult


# A driver call that failed, kept until no native lock is held and it can be raised.
cdef struct DriverFault:
    CUresult status
    const char* call


# `bound` when enter_context pushed a context that leave_context has to pop.
cdef struct ContextBinding:
    bint bound


cdef unsigned long fork_count() noexcept nogil
cdef int ensure_driver() except -1 nogil
cdef int check(CUresult status, const char* call) except -1 nogil
cdef object make_driver_error(CUresult status, const char* call, str detail=*)
cdef enum:
    MOST_FAULTS = 9  # that an exception tells of: the first, and those of the way back


cdef object faults_error(const DriverFault* faults, size_t count)
cdef int raise_faults(const DriverFault* faults, size_t count) except -1
cdef bint driver_is_gone(CUresult status) noexcept nogil
cdef bint given_back(CUresult status) noexcept nogil
cdef int raise_retried(
    CUresult first, CUresult second, const char* call, str left
) except -1
cdef bint done(CUresult status, const char* call, DriverFault* fault) noexcept nogil
cdef CUcontext usual_context(int device_id, DriverFault* fault) noexcept nogil
cdef CUcontext primary_context(int device_id) except? NULL nogil
cdef int enter_context(int device_id, ContextBinding* binding) except -1 nogil
cdef int leave_context(ContextBinding* binding) except -1 nogil
cdef int leave_context_after(object error, ContextBinding* binding) except -1
cpdef int default_device() except -1
cpdef int visible_device(int device_id, str name=*) except -1
