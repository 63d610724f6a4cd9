"""One reserved address range, the record of its mappings, and the lock around it.

What is made here is undone here, in order: when it is closed, or dropped.
"""

cimport cython
from cuda.bindings cimport cydriver
from cuda.bindings.cydriver cimport CUmemAccessDesc, CUmemAllocationProp, CUresult
from libc.stdint cimport uint64_t
from libc.string cimport memset
from libcpp.vector cimport vector

from vmmcy._calls_under_lock cimport mem_address_reserve
from vmmcy._departing cimport drop_idle, settle, wait_for_all
from vmmcy._driver cimport check, ensure_driver, fork_count
from vmmcy._handle_pool cimport PoolCore, may_help, new_owner, write_off
from vmmcy._mapping cimport Mapping, Record, set_reserved, tear_down
from vmmcy._outcome cimport CLOSE_ONLY, CLOSED, FORKED, NOT_REFUSED, Outcome, raise_outcome

from vmmcy._arguments import whole_granules


# The collector would drop the pool before `__dealloc__`, which gives back to it.
@cython.no_gc
cdef class ReservedRange:
    """One reserved address range and the record of its mappings."""

    def __cinit__(
        self,
        bytes prop,
        int device_id,
        tuple access_devices,
        uint64_t size,
        uint64_t alignment,
        uint64_t requested_address,
        PoolCore pool=None,
    ):
        cdef CUmemAccessDesc description
        ensure_driver()
        # First of all: with the addresses there must be room to keep a record of them.
        self.record = new Record()
        self.made_under = fork_count()
        self.device_id = device_id
        self.size = size
        self.requested_address = requested_address
        self.space.size_bytes = size
        self.space.device_id = device_id
        if pool is not None:
            self._take_from(pool)
        self.space.prop = (<const CUmemAllocationProp*> <const char*> prop)[0]
        memset(&description, 0, sizeof(description))
        description.location.type = cydriver.CU_MEM_LOCATION_TYPE_DEVICE
        description.flags = cydriver.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        for device in access_devices:
            description.location.id = device
            self.space.access.push_back(description)
        with nogil:
            check(
                cydriver.cuMemGetAllocationGranularity(
                    &self.granularity,
                    &self.space.prop,
                    cydriver.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED,
                ),
                b"cuMemGetAllocationGranularity",
            )
            if size % self.granularity or requested_address % self.granularity:
                with gil:
                    whole_granules(size, self.granularity, "size")
                    whole_granules(requested_address, self.granularity, "requested_address")
            self._reserve(alignment)
        set_reserved(&self.space, self.record, True)
        self.base = self.space.base

    cdef int _reserve(self, uint64_t alignment) except -1 nogil:
        cdef CUresult status = mem_address_reserve(
            &self.space.base, self.size, alignment, self.requested_address
        )
        if may_help(status, self.device_id, NULL):
            status = mem_address_reserve(
                &self.space.base, self.size, alignment, self.requested_address
            )
        return check(status, b"cuMemAddressReserve")

    cdef void _take_from(self, PoolCore pool):
        """Let what `commit` backs come from a pool, and go back to it."""
        self.pool = pool
        self.space.pool = pool.books
        self.space.wiper = &pool.wiper if pool.scrub else NULL
        self.space.owner = new_owner()

    cdef void forget_pool(self):
        """Of a closed range, which takes nothing from a pool any more: the pool may go."""
        self.space.pool = NULL
        self.space.wiper = NULL
        self.pool = None

    def __dealloc__(self):
        # In a forked child all this is the parent's, and a thread that no longer exists
        # may have left the record half changed.
        if self.record == NULL or self.made_under != fork_count():
            return
        # Nobody can close it again: what fails is tried once more here, and then is lost.
        if not self.closed:
            with nogil:
                if not self._end() and not self._end() and self.space.pool != NULL:
                    write_off(self.space.pool, self.record.pooled_count())
        del self.record

    cdef bint _end(self) noexcept nogil:
        cdef Outcome outcome
        self.record.mutex.lock()
        self._undo(True, &outcome)
        self.record.mutex.unlock()
        return self.record.state.load() == CLOSED

    cdef void _undo(self, bint release_handles, Outcome* outcome) noexcept nogil:
        """Undo all on record, with its lock; what a stream may still use stays."""
        if self.record.state.load() == CLOSED:
            return
        if wait_for_all(self.record, outcome):
            # Another thread may have closed it while this one waited.
            if self.record.state.load() != CLOSED:
                tear_down(&self.space, self.record, release_handles, outcome)
            drop_idle(self.record)
        elif not outcome.faults.empty():
            self.record.state.store(CLOSE_ONLY)

    @property
    def closed(self) -> bool:
        return self.record.state.load() == CLOSED

    @property
    def close_only(self) -> bool:
        return self.record.state.load() == CLOSE_ONLY

    @property
    def inherited(self) -> bool:
        return self.made_under != fork_count()

    def mappings(self) -> list:
        """Return ``(offset, size_bytes, handle or 0, owned)`` of each, in address order."""
        cdef vector[Mapping] copy
        cdef bint copied
        cdef Mapping mapping
        self._refuse_in_child("mappings")
        with nogil:
            self.record.mutex.lock()
            copied = self.record.snapshot(copy)
            self.record.mutex.unlock()
        if not copied:
            raise MemoryError("VmmReservation.mappings: no host memory")
        return [
            (mapping.offset, mapping.size_bytes, mapping.handle, mapping.held)
            for mapping in copy
        ]

    def leaving_bytes(self) -> int:
        cdef uint64_t size_bytes
        self._refuse_in_child("leaving_bytes")
        with nogil:
            self.record.mutex.lock()
            size_bytes = self.record.leaving_bytes()
            self.record.mutex.unlock()
        return size_bytes

    def mapped_bytes(self) -> int:
        cdef uint64_t size_bytes
        self._refuse_in_child("mapped_bytes")
        with nogil:
            self.record.mutex.lock()
            size_bytes = self.record.mapped_bytes()
            self.record.mutex.unlock()
        return size_bytes

    cdef bint _enter(self, Outcome* outcome) noexcept nogil:
        """Take the lock of an open reservation, and give back what is due, or tell why not.

        What the driver does not take back then stays, for `synchronize` and `close` to tell.
        """
        cdef Outcome unheard
        if not self._admit(outcome):
            return False
        if self.record.departures.first != NULL:
            settle(&self.space, self.record, &unheard)
            outcome.refusal = self.record.admit()
        if outcome.refusal.reason == NOT_REFUSED:
            return True
        self.record.mutex.unlock()
        return False

    cdef bint _admit(self, Outcome* outcome) noexcept nogil:
        """Take the lock of an open reservation, or tell why not."""
        if self.made_under != fork_count():
            outcome.refusal.reason = FORKED
            return False
        self.record.mutex.lock()
        outcome.refusal = self.record.admit()
        if outcome.refusal.reason == NOT_REFUSED:
            return True
        self.record.mutex.unlock()
        return False

    def _refuse_in_child(self, str method):
        cdef Outcome outcome
        if self.made_under != fork_count():
            outcome.refusal.reason = FORKED
            self._raise(&outcome, method)

    cdef int _raise(self, const Outcome* outcome, str method) except -1:
        """Raise what came of `method` unless it is done."""
        if outcome.is_done():
            return 0
        return raise_outcome(outcome, f"VmmReservation.{method}", "reservation")
