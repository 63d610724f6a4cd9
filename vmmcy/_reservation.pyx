"""The reservation's core: one address range, its record, and the lock around both.

Nothing here takes the GIL while it holds the lock, or waits for the lock with the GIL:
allocator callbacks use the `try_` methods without Python.
"""

from cuda.bindings cimport cydriver
from cuda.bindings.cydriver cimport CUmemAccessDesc, CUmemAllocationProp
from libc.stdint cimport uint64_t
from libc.string cimport memset
from libcpp.vector cimport vector

from vmmcy._driver cimport check, ensure_driver, fork_count
from vmmcy._handle_pool cimport PoolCore, new_owner
from vmmcy._mapping cimport (
    Mapping,
    Plan,
    Record,
    back,
    expect_handles,
    give_back,
    set_reserved,
    tear_down,
)
from vmmcy._outcome cimport (
    CLOSE_ONLY,
    CLOSED,
    FORKED,
    NOT_REFUSED,
    OPEN,
    Outcome,
    raise_outcome,
)
from vmmcy._words cimport is_word

from vmmcy._arguments import integer, positive, whole_granules
from vmmcy._ranges import granules, inside


cdef class ReservationCore:
    """One reserved address range and the record of its mappings.

    The `try_` methods are for callers without the GIL and tell what came of them in an
    `Outcome`; their namesakes for Python check their ranges and raise it.
    """

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
            check(
                cydriver.cuMemAddressReserve(
                    &self.space.base, size, alignment, requested_address, 0
                ),
                b"cuMemAddressReserve",
            )
        set_reserved(&self.space, self.record, True)
        self.base = self.space.base

    cdef void _take_from(self, PoolCore pool):
        """Let what `commit` backs come from a pool, and go back to it."""
        self.pool = pool
        self.space.pool = pool.books
        self.space.wiper = &pool.wiper if pool.scrub else NULL
        self.space.owner = new_owner()

    def __dealloc__(self):
        cdef Outcome outcome
        cdef int _attempt
        # In a forked child all this is the parent's, and a thread that no longer exists
        # may have left the record half changed.
        if self.record == NULL or self.made_under != fork_count():
            return
        # Nobody can close it again: what fails is tried once more here.
        for _attempt in range(2):
            if self.record.state.load() != CLOSED:
                with nogil:
                    tear_down(&self.space, self.record, True, &outcome)
        del self.record

    @property
    def closed(self) -> bool:
        return self.record.state.load() == CLOSED

    @property
    def close_only(self) -> bool:
        return self.record.state.load() == CLOSE_ONLY

    @property
    def inherited(self) -> bool:
        return self.made_under != fork_count()

    def check_open(self, str method):
        """Raise what `method` would on a reservation in this state."""
        cdef Outcome outcome
        if self.made_under == fork_count() and self.record.state.load() == OPEN:
            return
        with nogil:
            if self._enter(&outcome):
                self.record.mutex.unlock()
        self._raise(&outcome, method)

    cdef bint _is_plain(self, offset, size, Bytes* taken) except -1:
        """Take two plain ints that lie inside an open reservation.

        The quick yes of the usual case: what a no is about, the checks of `_ranges` find out.
        """
        return (
            is_word(offset, &taken.offset)
            and is_word(size, &taken.size)
            and taken.offset < self.size
            and 0 < taken.size <= self.size - taken.offset
            and self.made_under == fork_count()
            and self.record.state.load() == OPEN
        )

    cdef int _take_inside(self, offset, size, str method, Bytes* taken) except -1:
        """Check a caller's range up to what only the record knows."""
        if not self._is_plain(offset, size, taken):
            taken.offset, taken.size = inside(self, method, offset, size)
        return 0

    cdef int _take_granules(self, offset, size, str method, Bytes* taken) except -1:
        """As `_take_inside`, and refuse what is not whole granules."""
        if (
            not self._is_plain(offset, size, taken)
            or taken.offset % self.granularity
            or taken.size % self.granularity
        ):
            taken.offset, taken.size = granules(self, method, offset, size)
        return 0

    def check_map(self, offset, size):
        """Raise what `map` would before its first driver call."""
        cdef Outcome outcome
        cdef Bytes taken
        self._take_granules(offset, size, "map", &taken)
        with nogil:
            if self._enter(&outcome):
                outcome.refusal = self.record.vacant(taken.offset, taken.offset + taken.size)
                self.record.mutex.unlock()
        self._raise(&outcome, "map")

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
            raise MemoryError("VmmReservation.mappings")
        return [
            (mapping.offset, mapping.size_bytes, mapping.handle, mapping.held)
            for mapping in copy
        ]

    def mapped_bytes(self) -> int:
        cdef uint64_t size_bytes
        self._refuse_in_child("mapped_bytes")
        with nogil:
            self.record.mutex.lock()
            size_bytes = self.record.mapped_bytes()
            self.record.mutex.unlock()
        return size_bytes

    def map(self, offset, size, bint retain) -> int:
        cdef Outcome outcome
        cdef Bytes taken
        self._take_granules(offset, size, "map", &taken)
        with nogil:
            self.try_map(taken.offset, taken.size, retain, &outcome)
        self._raise(&outcome, "map")
        return outcome.value

    def map_existing(self, offset, size, handle):
        cdef Outcome outcome
        cdef Bytes taken
        cdef uint64_t number
        self._take_granules(offset, size, "map_existing", &taken)
        number = positive(handle, "handle")
        with nogil:
            self.try_map_existing(taken.offset, taken.size, number, &outcome)
        self._raise(&outcome, "map_existing")

    def commit(self, offset, size, chunk_bytes) -> int:
        cdef Outcome outcome
        cdef Bytes taken
        cdef uint64_t end, chunk = self.size
        number = None if chunk_bytes is None else integer(chunk_bytes, "chunk_bytes")
        self._take_inside(offset, size, "commit", &taken)
        if number is not None:
            chunk = positive(number, "chunk_bytes")
            whole_granules(number, self.granularity, "chunk_bytes")
            if self.pool is not None and chunk != self.pool.chunk_bytes:
                raise ValueError(
                    f"chunk_bytes {chunk} is not that of the reservation's HandlePool, "
                    f"{self.pool.chunk_bytes}"
                )
        end = taken.offset + taken.size
        end += (self.granularity - end % self.granularity) % self.granularity
        taken.offset -= taken.offset % self.granularity
        with nogil:
            self.try_commit(taken.offset, end - taken.offset, chunk, &outcome)
        self._raise(&outcome, "commit")
        return outcome.value

    def unmap(self, offset, size, bint release_handles):
        cdef Outcome outcome
        cdef Bytes taken
        self._take_granules(offset, size, "unmap", &taken)
        with nogil:
            self.try_unmap(taken.offset, taken.size, release_handles, &outcome)
        self._raise(&outcome, "unmap")

    def decommit(self, offset, size) -> int:
        cdef Outcome outcome
        cdef Bytes taken
        self._take_inside(offset, size, "decommit", &taken)
        with nogil:
            self.try_decommit(taken.offset, taken.size, &outcome)
        self._raise(&outcome, "decommit")
        return outcome.value

    def close(self, bint release_handles):
        cdef Outcome outcome
        with nogil:
            self.try_close(release_handles, &outcome)
        self._raise(&outcome, "close")

    cdef void try_map(
        self, uint64_t offset, uint64_t size_bytes, bint retain, Outcome* outcome
    ) noexcept nogil:
        """Back a vacant range with one new handle; `value` is the handle if retained."""
        cdef Plan* plan
        if not self._enter(outcome):
            return
        plan = self.record.fresh_plan()
        outcome.refusal = self.record.plan_one(offset, size_bytes, plan[0])
        if outcome.refusal.reason == NOT_REFUSED:
            back(&self.space, self.record, plan, retain, outcome)
            if retain and outcome.is_done():
                plan.pieces[0].lent = True
                outcome.value = plan.pieces[0].handle
        self.record.mutex.unlock()

    cdef void try_map_existing(
        self, uint64_t offset, uint64_t size_bytes, uint64_t handle, Outcome* outcome
    ) noexcept nogil:
        """Back a vacant range with the caller's handle, which stays the caller's."""
        cdef Plan* plan
        if not self._enter(outcome):
            return
        plan = self.record.fresh_plan()
        outcome.refusal = self.record.plan_one(offset, size_bytes, plan[0])
        if outcome.refusal.reason == NOT_REFUSED:
            plan.pieces[0].handle = handle
            back(&self.space, self.record, plan, False, outcome)
        self.record.mutex.unlock()

    cdef void try_commit(
        self, uint64_t offset, uint64_t size_bytes, uint64_t chunk_bytes, Outcome* outcome
    ) noexcept nogil:
        """Back every hole of a range; `value` is the bytes newly backed.

        With a pool its chunks take the place of `chunk_bytes`.
        """
        cdef Plan* plan
        cdef Mapping* piece
        if not self._enter(outcome):
            return
        plan = self.record.fresh_plan()
        if self.space.pool != NULL:
            chunk_bytes = self.space.pool.chunk_bytes
        outcome.refusal = self.record.plan_holes(offset, offset + size_bytes, chunk_bytes, plan[0])
        if outcome.refusal.reason == NOT_REFUSED:
            outcome.refusal = expect_handles(&self.space, self.record, plan)
        if outcome.refusal.reason == NOT_REFUSED:
            for piece in plan.pieces:
                outcome.value += piece.size_bytes
            back(&self.space, self.record, plan, False, outcome)
        self.record.mutex.unlock()

    cdef void try_unmap(
        self, uint64_t offset, uint64_t size_bytes, bint release_handles, Outcome* outcome
    ) noexcept nogil:
        """Take away the mappings that make up a range exactly."""
        cdef Plan* plan
        if not self._enter(outcome):
            return
        plan = self.record.fresh_plan()
        outcome.refusal = self.record.plan_exact(offset, offset + size_bytes, plan[0])
        if outcome.refusal.reason == NOT_REFUSED:
            give_back(&self.space, self.record, plan, release_handles, outcome)
        self.record.mutex.unlock()

    cdef void try_decommit(
        self, uint64_t offset, uint64_t size_bytes, Outcome* outcome
    ) noexcept nogil:
        """Take away the mappings wholly inside a range; `value` is their bytes."""
        cdef Plan* plan
        cdef Mapping* piece
        if not self._enter(outcome):
            return
        plan = self.record.fresh_plan()
        outcome.refusal = self.record.plan_inside(offset, offset + size_bytes, plan[0])
        if outcome.refusal.reason == NOT_REFUSED and not plan.pieces.empty():
            for piece in plan.pieces:
                outcome.value += piece.size_bytes
            give_back(&self.space, self.record, plan, True, outcome)
        self.record.mutex.unlock()

    cdef void try_close(self, bint release_handles, Outcome* outcome) noexcept nogil:
        """Undo all that is on record; what cannot be undone stays for the next close."""
        if self.made_under != fork_count():
            outcome.refusal.reason = FORKED
            return
        self.record.mutex.lock()
        if self.record.state.load() != CLOSED:
            tear_down(&self.space, self.record, release_handles, outcome)
        self.record.mutex.unlock()

    cdef bint _enter(self, Outcome* outcome) noexcept nogil:
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
