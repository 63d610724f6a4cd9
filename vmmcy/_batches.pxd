# Many ranges of many reservations at once, all or nothing.
from libc.stdint cimport uint64_t
from libcpp.vector cimport vector

from vmmcy._mapping cimport Plan, Record, Space
from vmmcy._outcome cimport Outcome


# What a batch does to one reservation.
cdef struct Part:
    const Space* space
    Record* record
    Plan* plan


# A range of a part, in bytes from its reservation's base.
cdef struct Span:
    size_t part
    uint64_t offset
    uint64_t end
    uint64_t chunk_bytes


# Parts are in the order of their records' addresses, each once; ranges are checked already, as
# for the `try_` methods. `value` is the bytes newly backed, or given back.
cdef void try_commit_many(
    vector[Part]* parts, vector[Span]* spans, Outcome* outcome
) noexcept nogil
cdef void try_decommit_many(
    vector[Part]* parts, vector[Span]* spans, Outcome* outcome
) noexcept nogil
