# The record of a reservation's mappings, and the operations on it.
from cuda.bindings.cydriver cimport CUdeviceptr, CUmemAccessDesc, CUmemAllocationProp
from libc.stdint cimport uint64_t
from libcpp cimport bool as cbool
from libcpp.vector cimport vector

from vmmcy._fences cimport Fence
from vmmcy._handle_pool cimport PoolBooks
from vmmcy._outcome cimport AtomicState, Mutex, Outcome, Refusal
from vmmcy._wiping cimport Wiper


cdef extern from "departures.h" namespace "vmmcy" nogil:
    cdef cppclass Departure:
        Fence fence
        uint64_t mappings
        uint64_t waiters
        cbool after_earlier
        cbool passed
        Departure* next

    cdef cppclass Departures:
        Departure* first
        Departure* add() noexcept
        Departure* to_wait_for(cbool of_all) noexcept
        cbool are_due(uint64_t* start) noexcept
        cbool have_passed() noexcept
        cbool take_off_idle(Fence* fence) noexcept


cdef extern from "mapping_record.h" namespace "vmmcy" nogil:
    cdef cppclass Mapping:
        uint64_t offset
        uint64_t size_bytes
        uint64_t handle
        cbool mapped
        cbool held
        cbool lent
        cbool foreign
        cbool pooled
        cbool left_over
        uint64_t giver
        uint64_t end()

    ctypedef enum StepKind:
        CREATED
        MAPPED
        RELEASED
        RETAINED
        UNMAPPED

    cdef cppclass Step:
        StepKind kind
        Mapping* mapping

    cdef cppclass Plan:
        vector[Mapping*] pieces
        vector[Step] steps
        uint64_t start() noexcept
        uint64_t end() noexcept
        uint64_t staying_bytes() noexcept
        void note(StepKind kind, Mapping* piece) noexcept
        void put_in_order() noexcept
        cbool has_mapped() noexcept

    cdef cppclass Record:
        Record() except +
        Mutex mutex
        AtomicState state
        cbool address_is_reserved
        Departures departures
        Plan* fresh_plan() noexcept
        uint64_t count() noexcept
        Refusal admit() noexcept
        Refusal plan_one(uint64_t offset, uint64_t size_bytes, Plan& plan) noexcept
        Refusal plan_holes(
            uint64_t offset, uint64_t end, uint64_t chunk_bytes, Plan& plan
        ) noexcept
        Refusal plan_exact(uint64_t offset, uint64_t end, Plan& plan) noexcept
        Refusal plan_inside(uint64_t offset, uint64_t end, Plan& plan) noexcept
        uint64_t pooled_count() noexcept
        Refusal plan_due(uint64_t offset, Plan& plan) noexcept
        Refusal plan_left_over(Plan& plan) noexcept
        void forget_passed() noexcept
        void depart(const vector[Mapping*]& pieces, Departure* departure) noexcept
        uint64_t keep(uint64_t offset, uint64_t end) noexcept
        uint64_t leaving_bytes() noexcept
        const Mapping* first_late() noexcept
        uint64_t stretch_end(const Plan& plan, uint64_t first) noexcept
        Refusal vacant(uint64_t offset, uint64_t end) noexcept
        void forget_empty(const vector[Mapping*]& pieces) noexcept
        cbool snapshot(vector[Mapping]& mappings) noexcept
        uint64_t mapped_bytes() noexcept


# Where the mappings of a record lie, what they are made of, and who may use them.
cdef struct Space:
    CUdeviceptr base
    uint64_t size_bytes
    int device_id
    CUmemAllocationProp prop
    vector[CUmemAccessDesc] access
    PoolBooks* pool  # NULL for none
    const Wiper* wiper  # NULL where nothing is wiped
    uint64_t owner  # the reservation's number in the pool's books


# With the addresses of a space: they are on record, and on the ledger.
cdef void set_reserved(const Space* space, Record* record, bint reserved) noexcept nogil

# Each wants the record's lock held, and its plan from the record.
cdef Refusal expect_handles(const Space* space, Record* record, Plan* plan) noexcept nogil
cdef void back(
    const Space* space, Record* record, Plan* plan, bint retain, Outcome* outcome
) noexcept nogil
cdef void give_back(
    const Space* space, Record* record, Plan* plan, bint release_handles, Outcome* outcome
) noexcept nogil
cdef void mend(const Space* space, Record* record, Outcome* outcome) noexcept nogil
cdef void tear_down(
    const Space* space, Record* record, bint release_handles, Outcome* outcome
) noexcept nogil

# Its parts, for operations on several records.
cdef void set_mapped(const Space* space, Mapping* piece, bint mapped) noexcept nogil
cdef void set_held(const Space* space, Mapping* piece, bint held) noexcept nogil
cdef void undo(const Space* space, Record* record, Plan* plan, Outcome* outcome) noexcept nogil
cdef void strike_off(const Space* space, Record* record, Plan* plan) noexcept nogil
