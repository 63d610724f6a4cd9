"""Handle pools: physical memory kept for use again, given up where memory runs out.

A pool's handles that are out, in a reservation's record, are that reservation's to give back;
it says so beforehand, and for each there is room. Nothing here takes the GIL while it holds
a lock, or waits for one with the GIL.
"""

from cuda.bindings cimport cydriver
from cuda.bindings.cydriver cimport CUmemAllocationProp, CUmemGenericAllocationHandle, CUresult
from libc.stdint cimport uint64_t

from vmmcy._calls_under_lock cimport mem_create, mem_release
from vmmcy._driver cimport ensure_driver, fork_count, given_back
from vmmcy._ledger cimport HANDLES, POOLED_HANDLES, count_held
from vmmcy._outcome cimport (
    CLOSE_ONLY,
    CLOSED,
    FORKED,
    NO_HOST_MEMORY,
    NOT_REFUSED,
    POOL_AWAITED,
    POOL_IN_USE,
    Outcome,
    Refusal,
    admitted_in,
    done,
    raise_outcome,
    undone,
)
from vmmcy._wiping cimport close_wiper, open_wiper


cdef extern from * nogil:
    uint64_t count_up "__sync_add_and_fetch"(uint64_t* place, uint64_t amount)

cdef PoolRegistry registry
cdef uint64_t _owners = 0


cdef uint64_t new_owner() noexcept nogil:
    """A number that no other reservation has, and not 0."""
    return count_up(&_owners, 1)


cdef CUresult create_handle(
    CUmemGenericAllocationHandle* handle,
    size_t size_bytes,
    const CUmemAllocationProp* prop,
    int device_id,
    const PoolBooks* spared,
) noexcept nogil:
    """Make physical memory, if need be of what the device's pools keep."""
    cdef CUresult status = mem_create(handle, size_bytes, prop)
    if may_help(status, device_id, spared):
        status = mem_create(handle, size_bytes, prop)
    return status


cdef bint may_help(CUresult status, int device_id, const PoolBooks* spared) noexcept nogil:
    """Whether to try once more: memory had run out, and pools of the device gave some up."""
    return status == cydriver.CUDA_ERROR_OUT_OF_MEMORY and empty_pools(device_id, spared) > 0


cdef uint64_t empty_pools(int device_id, const PoolBooks* spared) noexcept nogil:
    """Release what pools of a device keep unused; the number of handles released."""
    cdef Outcome ignored
    cdef uint64_t released = 0
    cdef PoolBooks* pool
    registry.mutex.lock()
    pool = registry.first
    while pool != NULL:
        if pool.device_id == device_id and pool != spared:
            pool.mutex.lock()
            released += shrink(pool, 0, &ignored)
            pool.mutex.unlock()
        pool = pool.next
    registry.mutex.unlock()
    return released


cdef uint64_t shrink(PoolBooks* pool, uint64_t kept, Outcome* outcome) noexcept nogil:
    """With the pool's lock: release unused handles beyond `kept`; the number released.

    One that the driver does not take stays in the books.
    """
    cdef uint64_t released = 0
    cdef uint64_t index = pool.unused.size()
    while index > kept:
        index -= 1
        if undone(mem_release(pool.unused[index].handle), b"cuMemRelease", outcome):
            pool.strike_off(index)
            released += 1
    count_held(pool.device_id, POOLED_HANDLES, -<int> released)
    return released


cdef Refusal expect(PoolBooks* pool, uint64_t count) noexcept nogil:
    """Make room for handles that will come back, unless the pool is closed."""
    cdef Refusal refusal
    pool.mutex.lock()
    refusal = pool.expect(count)
    pool.mutex.unlock()
    return refusal


cdef void expect_one_less(PoolBooks* pool) noexcept nogil:
    """One that was expected is no more, or never was."""
    write_off(pool, 1)


cdef void write_off(PoolBooks* pool, uint64_t count) noexcept nogil:
    """Handles that were expected will not come back."""
    pool.mutex.lock()
    pool.out -= count
    pool.mutex.unlock()


cdef void begin_to_await(PoolBooks* pool) noexcept nogil:
    pool.mutex.lock()
    pool.awaiting += 1
    pool.mutex.unlock()


cdef void end_to_await(PoolBooks* pool) noexcept nogil:
    pool.mutex.lock()
    pool.awaiting -= 1
    pool.mutex.unlock()


cdef void put_back(PoolBooks* pool, uint64_t handle, uint64_t giver) noexcept nogil:
    """Keep a handle that was expected; release it where the pool has enough.

    Where the driver does not take it, it is kept in any case, for the next trim or close.
    """
    cdef bint kept
    pool.mutex.lock()
    kept = pool.has_room()
    if kept:
        pool.keep(handle, giver)
    pool.mutex.unlock()
    if not kept:
        if given_back(mem_release(handle)):
            expect_one_less(pool)
            return
        pool.mutex.lock()
        pool.keep(handle, giver)
        pool.mutex.unlock()
    count_held(pool.device_id, POOLED_HANDLES, 1)


cdef class PoolCore:
    """One pool. The `try_` methods tell in an `Outcome`; their namesakes raise it."""

    def __cinit__(
        self,
        bytes prop,
        int device_id,
        uint64_t chunk_bytes,
        uint64_t capacity_bytes,
        bint scrub,
    ):
        ensure_driver()
        self.made_under = fork_count()
        self.packed_prop = prop
        self.prop = (<const CUmemAllocationProp*> <const char*> prop)[0]
        self.device_id = device_id
        self.chunk_bytes = chunk_bytes
        self.capacity_bytes = capacity_bytes
        self.scrub = scrub
        self.books = new PoolBooks(device_id, chunk_bytes, capacity_bytes)
        if scrub:
            open_wiper(&self.wiper, device_id)
        with nogil:
            registry.add(self.books)

    def __dealloc__(self):
        cdef Outcome outcome
        cdef int _attempt
        if self.books == NULL or self.made_under != fork_count():
            return
        # No reservation has anything of it, since each keeps its pool. What fails is tried
        # once more: nobody can close it again.
        with nogil:
            for _attempt in range(2):
                self.try_close(&outcome)
            registry.remove(self.books)
        del self.books

    @property
    def closed(self) -> bool:
        return self.books.state.load() == CLOSED

    @property
    def close_only(self) -> bool:
        return self.books.state.load() == CLOSE_ONLY

    @property
    def inherited(self) -> bool:
        return self.made_under != fork_count()

    def check_open(self, str method):
        """Raise what `method` would on a pool in this state."""
        cdef Outcome outcome
        with nogil:
            if self._enter(&outcome):
                self.books.mutex.unlock()
        raise_outcome(&outcome, f"HandlePool.{method}", "pool")

    def unused(self, str method) -> int:
        """Count the handles that wait for use."""
        cdef uint64_t count
        cdef Outcome outcome
        if self.made_under != fork_count():
            outcome.refusal.reason = FORKED
            raise_outcome(&outcome, f"HandlePool.{method}", "pool")
        with nogil:
            self.books.mutex.lock()
            count = self.books.unused.size()
            self.books.mutex.unlock()
        return count

    def prefill(self, uint64_t count) -> int:
        """Make handles until `count` wait for use; return how many were made."""
        cdef Outcome outcome
        with nogil:
            self.try_prefill(count, &outcome)
        raise_outcome(&outcome, "HandlePool.prefill", "pool")
        return outcome.value

    def trim(self, uint64_t kept) -> int:
        """Release unused handles beyond `kept`; return how many were released."""
        cdef Outcome outcome
        with nogil:
            self.try_trim(kept, &outcome)
        raise_outcome(&outcome, "HandlePool.trim", "pool")
        return outcome.value

    def close(self):
        cdef Outcome outcome
        with nogil:
            self.try_close(&outcome)
        raise_outcome(&outcome, "HandlePool.close", "pool")

    cdef void try_prefill(self, uint64_t count, Outcome* outcome) noexcept nogil:
        """Make handles until `count` wait for use, or none; `value` is how many."""
        cdef uint64_t missing = 0
        if not self._enter(outcome):
            return
        if count > self.books.unused.size():
            missing = count - self.books.unused.size()
            outcome.refusal = self.books.expect(missing)
        self.books.mutex.unlock()
        if outcome.refusal.reason == NOT_REFUSED:
            outcome.value = self._create(missing, outcome)

    cdef uint64_t _create(self, uint64_t count, Outcome* outcome) noexcept nogil:
        """Make `count` handles that were expected, or none."""
        cdef NewHandles made
        cdef CUmemGenericAllocationHandle handle = 0
        cdef uint64_t index
        if not made.make_room(count):
            outcome.refusal.reason = NO_HOST_MEMORY
        while outcome.is_done() and made.handles.size() < count:
            if done(
                create_handle(&handle, self.chunk_bytes, &self.prop, self.device_id, self.books),
                b"cuMemCreate",
                outcome,
            ):
                made.add(handle)
                count_held(self.device_id, HANDLES, 1)
        index = count
        while index > 0:  # so that the first is drawn first
            index -= 1
            if index >= made.handles.size():
                expect_one_less(self.books)
                continue
            handle = made.handles[index]
            if outcome.is_done() or not undone(mem_release(handle), b"cuMemRelease", outcome):
                put_back(self.books, handle, 0)
            else:
                expect_one_less(self.books)
            count_held(self.device_id, HANDLES, -1)
        return count if outcome.is_done() else 0

    cdef void try_trim(self, uint64_t kept, Outcome* outcome) noexcept nogil:
        """Release unused handles beyond `kept`; `value` is how many."""
        if not self._enter(outcome):
            return
        outcome.value = shrink(self.books, kept, outcome)
        self.books.mutex.unlock()

    cdef void try_close(self, Outcome* outcome) noexcept nogil:
        """Release all, unless handles are out; what cannot be released stays for the next close."""
        if self.made_under != fork_count():
            outcome.refusal.reason = FORKED
            return
        self.books.mutex.lock()
        if self.books.out > 0:
            outcome.refusal.reason = POOL_IN_USE
            outcome.refusal.offset = self.books.out
        elif self.books.awaiting > 0:
            outcome.refusal.reason = POOL_AWAITED
            outcome.refusal.offset = self.books.awaiting
        elif self.books.state.load() != CLOSED:
            self.books.state.store(CLOSE_ONLY)
            shrink(self.books, 0, outcome)
            if close_wiper(&self.wiper, outcome) and self.books.unused.empty():
                self.books.state.store(CLOSED)
        self.books.mutex.unlock()

    cdef bint _enter(self, Outcome* outcome) noexcept nogil:
        """Take the lock of an open pool, or tell why not."""
        if self.made_under != fork_count():
            outcome.refusal.reason = FORKED
            return False
        self.books.mutex.lock()
        outcome.refusal = admitted_in(self.books.state.load())
        if outcome.refusal.reason == NOT_REFUSED:
            return True
        self.books.mutex.unlock()
        return False
