# Handle pools: for `handle_pool.py`, and without the GIL for whoever makes memory.
from cuda.bindings.cydriver cimport CUmemAllocationProp, CUmemGenericAllocationHandle, CUresult
from libc.stdint cimport uint64_t
from libcpp cimport bool as cbool
from libcpp.vector cimport vector

from vmmcy._outcome cimport AtomicState, Mutex, Outcome, Refusal
from vmmcy._wiping cimport Wiper


cdef extern from "handle_pool.h" namespace "vmmcy" nogil:
    cdef cppclass Pooled:
        uint64_t handle
        uint64_t giver

    cdef cppclass PoolBooks:
        PoolBooks(int device_id, uint64_t chunk_bytes, uint64_t capacity_bytes) except +
        const int device_id
        const uint64_t chunk_bytes
        AtomicState state
        Mutex mutex
        PoolBooks* next
        vector[Pooled] unused
        uint64_t out
        uint64_t awaiting
        uint64_t unused_bytes() noexcept
        cbool has_room() noexcept
        Refusal expect(uint64_t count) noexcept
        void keep(uint64_t handle, uint64_t giver) noexcept
        Pooled draw() noexcept
        void strike_off(uint64_t index) noexcept

    cdef cppclass PoolRegistry:
        Mutex mutex
        PoolBooks* first
        void add(PoolBooks* pool) noexcept
        void remove(PoolBooks* pool) noexcept

    cdef cppclass NewHandles:
        vector[CUmemGenericAllocationHandle] handles
        cbool make_room(uint64_t count) noexcept
        void add(CUmemGenericAllocationHandle handle) noexcept


# Where a call found no memory left the device's pools are emptied, all but `spared`; true if that
# gave anything: then it is to be tried once more. No pool's lock may be held.
cdef bint may_help(CUresult status, int device_id, const PoolBooks* spared) noexcept nogil

# `cuMemCreate`, tried so.
cdef CUresult create_handle(
    CUmemGenericAllocationHandle* handle,
    size_t size_bytes,
    const CUmemAllocationProp* prop,
    int device_id,
    const PoolBooks* spared,
) noexcept nogil

# A reservation's number: whose bytes are in a handle that it gives back.
cdef uint64_t new_owner() noexcept nogil

# A reservation says how many handles will come back before it draws or creates them.
cdef Refusal expect(PoolBooks* pool, uint64_t count) noexcept nogil
cdef void put_back(PoolBooks* pool, uint64_t handle, uint64_t giver) noexcept nogil
cdef void expect_one_less(PoolBooks* pool) noexcept nogil
cdef void write_off(PoolBooks* pool, uint64_t count) noexcept nogil

# Who gives all back for a while keeps the pool from being closed meanwhile.
cdef void begin_to_await(PoolBooks* pool) noexcept nogil
cdef void end_to_await(PoolBooks* pool) noexcept nogil


cdef class PoolCore:
    cdef PoolBooks* books
    cdef Wiper wiper
    cdef CUmemAllocationProp prop
    cdef unsigned long made_under
    cdef readonly bytes packed_prop
    cdef readonly int device_id
    cdef readonly uint64_t chunk_bytes
    cdef readonly uint64_t capacity_bytes
    cdef readonly bint scrub

    cdef void try_prefill(self, uint64_t count, Outcome* outcome) noexcept nogil
    cdef void try_trim(self, uint64_t kept, Outcome* outcome) noexcept nogil
    cdef void try_close(self, Outcome* outcome) noexcept nogil
    cdef bint _enter(self, Outcome* outcome) noexcept nogil
    cdef uint64_t _create(self, uint64_t count, Outcome* outcome) noexcept nogil
