"""The reservation's core: the operations on its mappings.

Nothing here takes the GIL while it holds the lock, or waits for the lock with the GIL:
allocator callbacks use the `try_` methods without Python.
"""

from cuda.bindings.cydriver cimport CUstream
from libc.stdint cimport uint64_t, uintptr_t

from vmmcy._departing cimport leave_after, settle, wait_for_one
from vmmcy._driver cimport fork_count
from vmmcy._mapping cimport Mapping, Plan, back, expect_handles, give_back, mend
from vmmcy._outcome cimport CLOSE_ONLY, FORKED, NOT_REFUSED, OPEN, Outcome
from vmmcy._reserved_range cimport ReservedRange
from vmmcy._words cimport is_word

from vmmcy._arguments import flag, integer, positive, whole_granules
from vmmcy._ranges import granules, inside, stream_number


cdef class ReservationCore(ReservedRange):
    """A reserved range, and what is done to its mappings.

    The `try_` methods are for callers without the GIL and tell what came of them in an
    `Outcome`; their namesakes for Python check their ranges and raise it.
    """

    def check_open(self, str method):
        """Raise what `method` would on a reservation in this state."""
        cdef Outcome outcome
        if self.made_under == fork_count() and self.record.state.load() == OPEN:
            return
        with nogil:
            if self._admit(&outcome):
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

    cdef uint64_t _take_commit(self, offset, size, chunk_bytes, Bytes* taken) except 0:
        """As `_take_inside`, rounded outwards to granules; return the bytes of a chunk."""
        cdef uint64_t end, chunk = self.size if self.pool is None else self.pool.chunk_bytes
        number = None if chunk_bytes is None else integer(chunk_bytes, "chunk_bytes")
        self._take_inside(offset, size, "commit", taken)
        if number is not None:
            whole_granules(positive(number, "chunk_bytes"), self.granularity, "chunk_bytes")
            if self.pool is not None and number != chunk:
                raise ValueError(
                    f"chunk_bytes {number} is not that of the reservation's HandlePool, {chunk}"
                )
            chunk = number
        end = taken.offset + taken.size
        end += (self.granularity - end % self.granularity) % self.granularity
        taken.offset -= taken.offset % self.granularity
        taken.size = end - taken.offset
        return chunk

    def check_map(self, offset, size):
        """Raise what `map` would before its first driver call."""
        cdef Outcome outcome
        cdef Bytes taken
        self._take_granules(offset, size, "map", &taken)
        with nogil:
            if self._admit(&outcome):
                outcome.refusal = self.record.vacant(taken.offset, taken.offset + taken.size)
                self.record.mutex.unlock()
        self._raise(&outcome, "map")

    def map(self, offset, size, retain_handle) -> int:
        cdef Outcome outcome
        cdef Bytes taken
        cdef bint retain = flag(retain_handle, "retain_handle")
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
        cdef uint64_t chunk = self._take_commit(offset, size, chunk_bytes, &taken)
        with nogil:
            self.try_commit(taken.offset, taken.size, chunk, &outcome)
        self._raise(&outcome, "commit")
        return outcome.value

    def unmap(self, offset, size, release_handles):
        cdef Outcome outcome
        cdef Bytes taken
        cdef bint release = flag(release_handles, "release_handles")
        self._take_granules(offset, size, "unmap", &taken)
        with nogil:
            self.try_unmap(taken.offset, taken.size, release, &outcome)
        self._raise(&outcome, "unmap")

    def decommit(self, offset, size, stream) -> int:
        cdef Outcome outcome
        cdef Bytes taken
        cdef uint64_t number = 0 if stream is None else stream_number(stream)
        cdef bint at_once = stream is None
        self._take_inside(offset, size, "decommit", &taken)
        with nogil:
            if at_once:
                self.try_decommit(taken.offset, taken.size, &outcome)
            else:
                self.try_decommit_after(
                    taken.offset, taken.size, <CUstream> <uintptr_t> number, &outcome
                )
        self._raise(&outcome, "decommit")
        return outcome.value

    def synchronize(self) -> int:
        cdef Outcome outcome
        with nogil:
            self.try_settle(True, &outcome)
        self._raise(&outcome, "synchronize")
        return outcome.value

    def close(self, release_handles):
        cdef Outcome outcome
        cdef bint release = flag(release_handles, "release_handles")
        with nogil:
            self.try_close(release, &outcome)
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
            plan.pieces[0].foreign = True
            back(&self.space, self.record, plan, False, outcome)
        self.record.mutex.unlock()

    cdef void try_commit(
        self, uint64_t offset, uint64_t size_bytes, uint64_t chunk_bytes, Outcome* outcome
    ) noexcept nogil:
        """Back every hole of a range, and keep what is leaving; `value` is the bytes of both.

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
        if outcome.is_done():
            outcome.value += self.record.keep(offset, offset + size_bytes)
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
        """Take away the mappings wholly inside a range; `value` is the bytes not yet leaving."""
        cdef Plan* plan
        if not self._enter(outcome):
            return
        plan = self.record.fresh_plan()
        outcome.refusal = self.record.plan_inside(offset, offset + size_bytes, plan[0])
        if outcome.refusal.reason == NOT_REFUSED and not plan.pieces.empty():
            outcome.value = plan.staying_bytes()
            give_back(&self.space, self.record, plan, True, outcome)
        self.record.mutex.unlock()

    cdef void try_decommit_after(
        self, uint64_t offset, uint64_t size_bytes, CUstream stream, Outcome* outcome
    ) noexcept nogil:
        """As `try_decommit`, when the stream has done what it was given; waits for nothing."""
        cdef Plan* plan
        if not self._enter(outcome):
            return
        plan = self.record.fresh_plan()
        outcome.refusal = self.record.plan_inside(offset, offset + size_bytes, plan[0])
        if outcome.refusal.reason == NOT_REFUSED:
            leave_after(&self.space, self.record, plan, stream, outcome)
        self.record.mutex.unlock()

    cdef void try_settle(self, bint wait, Outcome* outcome) noexcept nogil:
        """Give back what is due, or wait for all that is leaving; `value` is the bytes."""
        if not self._admit(outcome):
            return
        settle(&self.space, self.record, outcome)
        while wait and outcome.is_done() and wait_for_one(self.record, False, outcome):
            settle(&self.space, self.record, outcome)
        self.record.mutex.unlock()

    cdef void try_mend(self, Outcome* outcome) noexcept nogil:
        """Where only close is left since a way back failed, go it to its end and be open again."""
        if self.record.state.load() != CLOSE_ONLY:
            return
        self.record.mutex.lock()
        mend(&self.space, self.record, outcome)
        self.record.mutex.unlock()

    cdef void try_close(self, bint release_handles, Outcome* outcome) noexcept nogil:
        """Undo all on record, after its streams; what cannot be undone stays for the next."""
        if self.made_under != fork_count():
            outcome.refusal.reason = FORKED
            return
        self.record.mutex.lock()
        self._undo(release_handles, outcome)
        self.record.mutex.unlock()
