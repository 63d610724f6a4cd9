# The process's one ledger. Others count through `count_held`, never through the header: a copy
# of it would be a ledger of its own.
from libc.stdint cimport int64_t


cdef extern from "ledger.h" nogil:
    const int LEDGER_DEVICES

    ctypedef enum LedgerEntry "enum ledger_entry":
        RESERVATIONS "LEDGER_RESERVATIONS"
        MAPPINGS "LEDGER_MAPPINGS"
        HANDLES "LEDGER_HANDLES"
        POOLED_HANDLES "LEDGER_POOLED_HANDLES"
        RESERVED_BYTES "LEDGER_RESERVED_BYTES"
        COMMITTED_BYTES "LEDGER_COMMITTED_BYTES"
        FDS "LEDGER_FDS"

    void ledger_count(int device, LedgerEntry entry, int64_t amount) noexcept
    int64_t ledger_read(int device, LedgerEntry entry) noexcept


cdef void count_held(int device, LedgerEntry entry, int64_t amount) noexcept nogil
