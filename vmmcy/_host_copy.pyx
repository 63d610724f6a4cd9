"""Pinned host memory that keeps bytes of device memory, and the copies there and back.

Pinning costs far more than a copy, 0.38 s a GiB on an H200: so the memory is got once and
kept for the next time, and grows by what is missing. The copies run on a stream of their own,
are waited for once, and need no GIL; what they do would invalidate a capture of this thread, so
its capture mode is relaxed meanwhile.

Sources: ``cuMemHostAlloc``, ``cuMemcpyDtoHAsync``, ``cuMemcpyHtoDAsync``,
``cuThreadExchangeStreamCaptureMode``.
"""

from cuda.bindings cimport cydriver
from cuda.bindings.cydriver cimport CUresult, CUstreamCaptureMode
from libc.stdint cimport uint64_t
from libcpp.vector cimport vector

from vmmcy._calls_under_lock cimport (
    copy_to_device,
    copy_to_host,
    host_alloc,
    host_free,
    stream_create,
    stream_destroy,
    stream_synchronize,
)
from vmmcy._driver cimport (
    ContextBinding,
    DriverFault,
    done,
    ensure_driver,
    enter_context,
    fork_count,
    given_back,
    leave_context,
    leave_context_after,
    raise_faults,
)
from vmmcy._handle_pool cimport may_help
from vmmcy._relaxed_capture cimport relax_captures, restore_captures


cdef class HostBuffer:
    """Slabs of pinned memory, used as if they were one; the owner sees to one use at a time."""

    def __cinit__(self, int device_id):
        ensure_driver()
        self.device_id = device_id
        self.made_under = fork_count()

    def __dealloc__(self):
        cdef DriverFault fault
        cdef ContextBinding binding
        fault.status = cydriver.CUDA_SUCCESS
        if self.made_under != fork_count() or (self.slabs.empty() and self.stream == NULL):
            return
        # Nobody is told of a failure here; most likely the driver is gone, and all with it.
        try:
            with nogil:
                enter_context(self.device_id, &binding)
                self._give_up(&fault)
                leave_context(&binding)
        except RuntimeError:
            pass

    def reserve(self, uint64_t size_bytes):
        """Have at least so many bytes; nothing has changed where that fails."""
        if size_bytes > self.size_bytes:
            self._in_context(size_bytes - self.size_bytes)

    def release(self):
        """Give all of it back; what the driver does not take stays, for another try."""
        if self.size_bytes:
            self._in_context(0)

    def _in_context(self, uint64_t missing_bytes):
        """Grow by the bytes that are missing, or give all up where none are."""
        cdef DriverFault fault
        cdef ContextBinding binding
        fault.status = cydriver.CUDA_SUCCESS
        self.slabs.reserve(self.slabs.size() + 1)
        with nogil:
            enter_context(self.device_id, &binding)
            if missing_bytes:
                self._grow(missing_bytes, &fault)
            else:
                self._give_up(&fault)
        try:
            raise_faults(&fault, fault.status != cydriver.CUDA_SUCCESS)
        except RuntimeError as error:
            leave_context_after(error, &binding)
            raise
        leave_context(&binding)

    cdef void _grow(self, uint64_t missing_bytes, DriverFault* fault) noexcept nogil:
        cdef CUstreamCaptureMode mode
        cdef Slab slab
        slab.base = NULL
        slab.size_bytes = missing_bytes
        if not relax_captures(&mode, fault):
            return
        if self.stream == NULL and not done(
            stream_create(&self.stream), b"cuStreamCreate", fault
        ):
            self.stream = NULL
        elif done(self._pin(&slab), b"cuMemHostAlloc", fault):
            self.slabs.push_back(slab)
            self.size_bytes += missing_bytes
        restore_captures(mode, fault)

    cdef CUresult _pin(self, Slab* slab) noexcept nogil:
        """Get a slab's memory, if need be of what the device's pools keep."""
        cdef CUresult status = host_alloc(<void**> &slab.base, slab.size_bytes)
        if may_help(status, self.device_id, NULL):
            status = host_alloc(<void**> &slab.base, slab.size_bytes)
        return status

    cdef void _give_up(self, DriverFault* fault) noexcept nogil:
        cdef CUstreamCaptureMode mode
        cdef CUresult status
        if not relax_captures(&mode, fault):
            return
        while not self.slabs.empty():
            status = host_free(self.slabs.back().base)
            if not given_back(status):
                done(status, b"cuMemFreeHost", fault)
                break
            self.size_bytes -= self.slabs.back().size_bytes
            self.slabs.pop_back()
        if self.slabs.empty() and self.stream != NULL:
            status = stream_destroy(self.stream)
            if given_back(status):
                self.stream = NULL
            else:
                done(status, b"cuStreamDestroy", fault)
        restore_captures(mode, fault)

    cdef void copy(
        self, uint64_t base, const vector[Kept]* kept, bint to_host, DriverFault* fault
    ) noexcept nogil:
        cdef CUstreamCaptureMode mode
        cdef size_t index
        if not relax_captures(&mode, fault):
            return
        for index in range(kept.size()):
            self._enqueue(base, &kept[0][index], to_host, fault)
            if fault.status != cydriver.CUDA_SUCCESS:
                break
        # Also after a failure: nothing may be under way when the caller goes on.
        done(stream_synchronize(self.stream), b"cuStreamSynchronize", fault)
        restore_captures(mode, fault)

    cdef void _enqueue(
        self, uint64_t base, const Kept* part, bint to_host, DriverFault* fault
    ) noexcept nogil:
        """Copy one part, in as many pieces as there are slabs under it."""
        cdef size_t index
        cdef uint64_t start = part.host_offset, address = base + part.offset
        cdef uint64_t left = part.size_bytes, size_bytes
        for index in range(self.slabs.size()):
            if left == 0:
                return
            if start >= self.slabs[index].size_bytes:
                start -= self.slabs[index].size_bytes
                continue
            size_bytes = min(left, self.slabs[index].size_bytes - start)
            if to_host:
                if not done(
                    copy_to_host(
                        self.slabs[index].base + start, address, size_bytes, self.stream
                    ),
                    b"cuMemcpyDtoHAsync",
                    fault,
                ):
                    return
            elif not done(
                copy_to_device(address, self.slabs[index].base + start, size_bytes, self.stream),
                b"cuMemcpyHtoDAsync",
                fault,
            ):
                return
            address += size_bytes
            left -= size_bytes
            start = 0
