"""Segments of a reservation: paused, resumed, and what the host keeps of them meanwhile.

What their entry points do, `_backing` says. Nothing here takes the GIL while it holds the book's
lock: faults are collected and raised after the unlock.
"""

cimport cython
from cuda.bindings cimport cydriver
from libc.stdint cimport uint64_t
from libcpp.vector cimport vector

from vmmcy._arena cimport drop_slot, shut_slot, slot_is_ours, slot_outstanding
from vmmcy._backing cimport (
    AGREED,
    MAY_BE_USED,
    NONE_DENIED,
    NO_ADDRESSES,
    NOT_IN_USE,
    NOT_PAUSED,
    OTHER_DEVICE,
    OUT,
    PAUSED_ALREADY,
    WHILE_PAUSED,
    Denial,
    SegmentBook,
    SegmentFigures,
    Verdict,
    back_all,
    mend,
    open_backing,
    settle,
    unback_all,
    wait_for_leaving,
)
from vmmcy._driver cimport (
    MOST_FAULTS,
    ContextBinding,
    DriverFault,
    enter_context,
    leave_context,
    leave_context_after,
    faults_error,
)
from vmmcy._handle_pool cimport PoolBooks, begin_to_await, end_to_await
from vmmcy._host_copy cimport HostBuffer, Kept
from vmmcy._outcome cimport Outcome, Refusal, raise_outcome, refusal_error
from vmmcy._reservation cimport ReservationCore

LEFT_BEHIND = "what the way back left is given back first by whatever is called next"


# The collector would drop the members before `__dealloc__`, which needs them.
@cython.no_gc
@cython.final
cdef class SegmentsCore:
    """A reservation's segments, their slot, and what the host keeps of them over a pause.

    The owner sees to it that `pause`, `resume`, `release_host` and `close` are called one at
    a time; the entry points may be called at any time.
    """

    def __cinit__(self, ReservationCore reservation, chunk_bytes, str name):
        self.reservation = reservation
        self.name = name
        self.host = HostBuffer(reservation.device_id)
        self.backing = open_backing(
            reservation, reservation.size if chunk_bytes is None else chunk_bytes
        )

    def __dealloc__(self):
        cdef Outcome outcome, again
        cdef SegmentFigures figures
        # The parent's slots stay as they are in a forked child.
        if self.backing == NULL or not slot_is_ours(self.backing.slot):
            return
        # What is out or leaving may still be used: it keeps its memory until somebody knows.
        with nogil:
            self._await_pool(False)
            shut_slot(self.backing.slot, True)
            wait_for_leaving(self.backing, False)
            self.backing.book.mutex.lock()
            figures = self.backing.book.figures()
            self.backing.book.mutex.unlock()
            if figures.segment_count == 0 and not figures.late:
                self.reservation.try_close(True, &outcome)
                if not outcome.is_done():
                    self.reservation.try_close(True, &again)
            drop_slot(self.backing.slot)
        if self.reservation.closed:
            self.reservation.forget_pool()

    @property
    def slot(self):
        return self.backing.slot.number

    @property
    def is_ours(self):
        return slot_is_ours(self.backing.slot)

    @property
    def inherited(self):
        return not self.is_ours

    @property
    def closed(self):
        return self.reservation.closed

    @property
    def outstanding(self):
        cdef uint64_t count
        with nogil:
            count = slot_outstanding(self.backing.slot)
        return count

    def figures(self):
        """Return all counts, read at one moment."""
        cdef SegmentFigures figures
        with nogil:
            self.backing.book.mutex.lock()
            figures = self.backing.book.figures()
            self.backing.book.mutex.unlock()
        return figures

    def segments(self):
        """Return (address, size_bytes) of all that is out, in address order."""
        cdef uint64_t offset, size_bytes, place = 0
        cdef bint found = True
        segments = []
        while found:
            with nogil:
                self.backing.book.mutex.lock()
                found = self.backing.book.next(OUT, place, &offset, &size_bytes)
                self.backing.book.mutex.unlock()
            if found:
                segments.append((self.backing.base + offset, size_bytes))
                place = offset + size_bytes
        return segments

    def last_error(self):
        """Return why the last request got nothing, as an exception; None if it got memory."""
        cdef Denial denial
        cdef Refusal refusal
        cdef DriverFault[MOST_FAULTS] faults
        cdef size_t fault_count
        with nogil:
            self.backing.book.mutex.lock()
            denial = self.backing.book.denial
            refusal = self.backing.refusal
            faults = self.backing.faults
            fault_count = self.backing.fault_count
            self.backing.book.mutex.unlock()
        if self.is_shut:
            return RuntimeError(f"{self.name}: nothing is handed out after close")
        if denial == NONE_DENIED:
            return None
        if denial == OTHER_DEVICE:
            return ValueError(f"the segments are on device {self.backing.device_id} alone")
        if denial == WHILE_PAUSED:
            return RuntimeError("the segments are paused: resume them first")
        if denial == NO_ADDRESSES:
            return MemoryError(
                f"no free range of the {self.backing.size_bytes} reserved bytes is large enough: "
                "reserve more (reserve_bytes)"
            )
        if fault_count == 0:
            return refusal_error(&refusal, self.name, "reservation")
        error = faults_error(faults, fault_count)
        if self.reservation.close_only:
            error.add_note(LEFT_BEHIND)
        return error

    def pause(self, list ranges, uint64_t waited_for) -> bool:
        """Take all memory away; the host keeps the bytes of `ranges`, (address, size_bytes).

        The device has been waited for since so many segments had left; False, and nothing
        done, while work may use one that left later.
        """
        cdef ContextBinding binding
        cdef Outcome outcome
        cdef Verdict verdict
        cdef vector[Kept] kept
        cdef Kept part
        cdef uint64_t total = 0
        for address, size_bytes in ranges:
            part.offset = <uint64_t> address - self.backing.base
            part.size_bytes = size_bytes
            part.host_offset = total
            total += part.size_bytes
            kept.push_back(part)
        with nogil:
            self.backing.book.mutex.lock()
            verdict = self._check(&kept)
            self.backing.book.mutex.unlock()
        self._raise(verdict, &outcome, "pause")
        self.host.reserve(total)
        with nogil:
            enter_context(self.backing.device_id, &binding)
            verdict = self._pause(&kept, waited_for, &outcome)
        self._leave(verdict, &outcome, &binding, "pause")
        return verdict == AGREED

    cdef void _await_pool(self, bint awaits) noexcept nogil:
        """Keep the reservation's pool from being closed, if it has one, or do so no more."""
        cdef PoolBooks* pool = self.reservation.space.pool
        if pool == NULL or awaits == self.awaits:
            return
        if awaits:
            begin_to_await(pool)
        else:
            end_to_await(pool)
        self.awaits = awaits

    cdef Verdict _check(self, vector[Kept]* kept) noexcept nogil:
        """Whether `kept` can be kept, and nothing is paused yet; with the book's lock held."""
        cdef Kept part
        if self.backing.book.paused:
            return PAUSED_ALREADY
        for part in kept[0]:
            if not self.backing.book.ranges.is_in_use(part.offset, part.size_bytes):
                return NOT_IN_USE
        return AGREED

    cdef Verdict _pause(
        self, vector[Kept]* kept, uint64_t waited_for, Outcome* outcome
    ) noexcept nogil:
        cdef SegmentBook* book = self.backing.book
        cdef Verdict verdict
        book.mutex.lock()
        verdict = self._check(kept)
        settle(self.backing, waited_for)
        mend(self.backing, outcome)
        if verdict == AGREED and book.ranges.are_late():
            verdict = MAY_BE_USED
        if verdict == AGREED and outcome.is_done():
            self._take_all(kept, outcome)
        book.mutex.unlock()
        return verdict

    cdef void _take_all(self, vector[Kept]* kept, Outcome* outcome) noexcept nogil:
        """Copy what is to be kept, and unmap everything; with the book's lock held."""
        cdef DriverFault fault
        fault.status = cydriver.CUDA_SUCCESS
        if not kept.empty():
            self.host.copy(self.backing.base, kept, True, &fault)
        if fault.status != cydriver.CUDA_SUCCESS:
            outcome.collect(fault)
            return
        self._await_pool(True)
        unback_all(self.backing, outcome)
        if not outcome.is_done():
            self._await_pool(False)
            return
        self.backing.book.paused = True
        self.backing.book.kept.swap(kept[0])
        settle(self.backing, 0)

    def resume(self):
        """Back all that is still out, with what was kept of it; or stay paused."""
        cdef ContextBinding binding
        cdef Outcome outcome
        cdef Verdict verdict
        with nogil:
            enter_context(self.backing.device_id, &binding)
            verdict = self._resume(&outcome)
        self._leave(verdict, &outcome, &binding, "resume")

    cdef Verdict _resume(self, Outcome* outcome) noexcept nogil:
        cdef SegmentBook* book = self.backing.book
        cdef DriverFault fault
        fault.status = cydriver.CUDA_SUCCESS
        book.mutex.lock()
        if not book.paused:
            book.mutex.unlock()
            return NOT_PAUSED
        back_all(self.backing, outcome)
        book.forget_freed()
        if outcome.is_done() and not book.kept.empty():
            self.host.copy(self.backing.base, &book.kept, False, &fault)
            if fault.status != cydriver.CUDA_SUCCESS:
                outcome.collect(fault)
                unback_all(self.backing, outcome)
        if outcome.is_done():
            book.paused = False
            book.kept.clear()
            self._await_pool(False)
        book.mutex.unlock()
        return AGREED

    def synchronize(self, bint promised):
        """Wait for the work in front of each free, and give back what was freed; its bytes."""
        cdef uint64_t given
        with nogil:
            given = wait_for_leaving(self.backing, promised)
        return given

    def settle(self, uint64_t waited_for):
        """Give back what is known to have left; return its bytes."""
        cdef uint64_t given
        with nogil:
            self.backing.book.mutex.lock()
            given = settle(self.backing, waited_for)
            self.backing.book.mutex.unlock()
        return given

    @property
    def host_bytes(self):
        return self.host.size_bytes

    @property
    def kept_bytes(self):
        cdef uint64_t total = 0
        cdef Kept part
        with nogil:
            self.backing.book.mutex.lock()
            for part in self.backing.book.kept:
                total += part.size_bytes
            self.backing.book.mutex.unlock()
        return total

    def release_host(self):
        """Give the host's memory back; the owner sees to it that nothing is kept there."""
        self.host.release()

    def shut(self):
        """Hand out nothing any more; what is out can still be freed."""
        with nogil:
            shut_slot(self.backing.slot, True)
        self.is_shut = True

    def close(self):
        """Give everything back; False where a segment is out, or work may use one that left."""
        cdef bint free
        with nogil:
            # Once it is shut nothing is out, and so nothing is freed any more.
            free = shut_slot(self.backing.slot, False)
        self.is_shut |= free
        if free:
            with nogil:
                self.backing.book.mutex.lock()
                free = not self.backing.book.ranges.are_late()
                self.backing.book.mutex.unlock()
        if free:
            self.reservation.close(True)
            self._await_pool(False)
            self.reservation.forget_pool()
            self.host.release()
        return free

    cdef int _leave(
        self, Verdict verdict, const Outcome* outcome, ContextBinding* binding, str method
    ) except -1:
        """Leave the context, and raise what came of `method` unless it is done."""
        try:
            self._raise(verdict, outcome, method)
        except (RuntimeError, MemoryError, ValueError) as error:
            leave_context_after(error, binding)
            raise
        try:
            return leave_context(binding)
        except RuntimeError as error:
            if hasattr(error, "__notes__"):  # the context stays
                error.add_note(f"{method} is done all the same")
                raise
        return 0

    cdef int _raise(self, Verdict verdict, const Outcome* outcome, str method) except -1:
        if verdict == PAUSED_ALREADY:
            raise RuntimeError(f"{self.name}.{method}: paused already; resume first")
        if verdict == NOT_PAUSED:
            raise RuntimeError(f"{self.name}.{method}: not paused")
        if verdict == NOT_IN_USE:
            raise ValueError(
                f"{self.name}.{method}: a range to keep lies in no segment that is out"
            )
        return raise_outcome(outcome, f"{self.name}.{method}", "reservation")
