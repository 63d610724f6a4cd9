# What stands behind the entry points of segments, and their book as the C room keeps it.
from cpython.ref cimport PyObject
from libc.stdint cimport uint64_t
from libcpp cimport bool as cbool
from libcpp.vector cimport vector

from vmmcy._arena cimport vmmcy_slot
from vmmcy._driver cimport MOST_FAULTS, DriverFault
from vmmcy._fences cimport Fence
from vmmcy._host_copy cimport Kept
from vmmcy._outcome cimport Mutex, Outcome, Refusal
from vmmcy._reservation cimport ReservationCore


cdef extern from "segment_book.h" namespace "vmmcy" nogil:
    ctypedef enum Use:
        OUT

    ctypedef enum Guard:
        UNGUARDED
        FENCED
        WAITED_FOR

    ctypedef enum Denial:
        NONE_DENIED
        OTHER_DEVICE
        NO_ADDRESSES
        WHILE_PAUSED
        DRIVER_REFUSED

    ctypedef enum Verdict:
        AGREED
        PAUSED_ALREADY
        NOT_PAUSED
        NOT_IN_USE
        MAY_BE_USED

    cdef struct SegmentFigures:
        uint64_t segment_count
        uint64_t segment_bytes
        uint64_t leaving_count
        uint64_t leaving_bytes
        uint64_t left_count
        uint64_t ignored_frees
        cbool late
        cbool paused

    cdef cppclass Range "vmmcy::AddressRanges::Range":
        uint64_t size_bytes
        Guard guard
        Fence fence
        uint64_t number

    cdef cppclass AddressRanges:
        cbool take(uint64_t size_bytes, uint64_t* offset) noexcept
        uint64_t size_of_out(uint64_t offset) noexcept
        cbool is_in_use(uint64_t offset, uint64_t size_bytes) noexcept
        Range* leave(uint64_t offset) noexcept
        cbool are_late() noexcept
        Range* next_leaving(uint64_t after, uint64_t* offset) noexcept
        void give(uint64_t offset) noexcept

    cdef cppclass AtomicCount "std::atomic<uint64_t>":
        uint64_t load() noexcept
        uint64_t fetch_add(uint64_t) noexcept
        uint64_t fetch_sub(uint64_t) noexcept

    cdef cppclass SegmentBook:
        SegmentBook(uint64_t size_bytes) except +
        Mutex mutex
        AddressRanges ranges
        AtomicCount outstanding
        vector[Kept] kept
        uint64_t ignored_frees
        Denial denial
        cbool paused
        SegmentFigures figures() noexcept
        cbool next(Use use, uint64_t after, uint64_t* offset, uint64_t* size_bytes) noexcept
        void forget_freed() noexcept


# What stands behind the entry points: it goes when the slot gets another state, and so outlives
# the core and any call that comes late.
cdef struct Backing:
    SegmentBook* book
    PyObject* reservation  # a reference of its own to a ReservationCore
    vmmcy_slot* slot
    uint64_t base
    uint64_t size_bytes
    uint64_t granularity
    uint64_t chunk_bytes
    int device_id
    Refusal refusal  # of the last request that was refused, by us
    DriverFault faults[MOST_FAULTS]  # or by the driver: the first of its faults
    size_t fault_count  # of all of them


cdef Backing* open_backing(ReservationCore reservation, uint64_t chunk_bytes) except NULL

# Each wants the book's lock held.
cdef uint64_t settle(Backing* backing, uint64_t waited_for) noexcept nogil
cdef void mend(Backing* backing, Outcome* outcome) noexcept nogil
cdef void back_all(Backing* backing, Outcome* outcome) noexcept nogil
cdef void unback_all(Backing* backing, Outcome* outcome) noexcept nogil

# Without a lock, and one call at a time.
cdef uint64_t wait_for_leaving(Backing* backing, bint promised) noexcept nogil
