# What came of an operation without Python, and the exception that it becomes.
from cuda.bindings cimport cydriver
from cuda.bindings.cydriver cimport CUresult
from libc.stdint cimport uint64_t
from libcpp cimport bool as cbool
from libcpp.vector cimport vector

from vmmcy._driver cimport DriverFault, driver_is_gone


cdef extern from "outcome.h" namespace "vmmcy" nogil:
    ctypedef enum State:
        OPEN
        CLOSE_ONLY
        CLOSED

    ctypedef enum Reason:
        NOT_REFUSED
        FORKED
        AFTER_CLOSE
        LEFT_OVER
        OVERLAP
        STILL_LEAVING
        STILL_CAPTURED
        CUT
        HOLE
        NO_HOST_MEMORY
        POOL_CLOSED
        POOL_IN_USE
        POOL_AWAITED

    cdef cppclass Refusal:
        Reason reason
        uint64_t offset
        uint64_t end

    Refusal admitted_in(int state) noexcept

    cdef cppclass OutcomeOf "vmmcy::Outcome" [Fault]:
        Refusal refusal
        vector[Fault] faults
        uint64_t value
        cbool is_done() noexcept
        void collect(const Fault& fault) noexcept

    cdef cppclass Mutex "std::mutex":
        void lock() noexcept
        void unlock() noexcept

    cdef cppclass AtomicState "std::atomic<int>":
        int load() noexcept
        void store(int) noexcept


ctypedef OutcomeOf[DriverFault] Outcome


cdef inline bint done(CUresult status, const char* call, Outcome* outcome) noexcept nogil:
    """Whether a step of the way forward succeeded; its fault is collected if not."""
    cdef DriverFault fault
    if status == cydriver.CUDA_SUCCESS:
        return True
    fault.status = status
    fault.call = call
    outcome.collect(fault)
    return False


cdef inline bint undone(CUresult status, const char* call, Outcome* outcome) noexcept nogil:
    """Whether what a call gives back is gone: a driver that is gone took it along."""
    return driver_is_gone(status) or done(status, call, outcome)


cdef int raise_outcome(const Outcome* outcome, str name, str kind) except -1
cdef object refusal_error(const Refusal* refusal, str name, str kind)
