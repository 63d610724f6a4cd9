"""The ledger: how much of each kind the library holds now, for each device.

Rooms that own something count it where the driver call has succeeded, so that the counts are
true on every way back too. `ledger.py` says what each entry means.
"""


cdef void count_held(int device, LedgerEntry entry, int64_t amount) noexcept nogil:
    """Add `amount`, which may be negative, to what is held of `device`'s."""
    ledger_count(device, entry, amount)


cdef int64_t held(int device, LedgerEntry entry) noexcept:
    """What is held of a device's, or of all devices for -1."""
    cdef int64_t total = 0
    if device >= 0:
        return ledger_read(device, entry)
    for device in range(LEDGER_DEVICES):
        total += ledger_read(device, entry)
    return total


def held_of(int device) -> dict:
    return {
        "reservations": held(device, RESERVATIONS),
        "mappings": held(device, MAPPINGS),
        "handles": held(device, HANDLES),
        "pooled_handles": held(device, POOLED_HANDLES),
        "reserved_bytes": held(device, RESERVED_BYTES),
        "committed_bytes": held(device, COMMITTED_BYTES),
        "fds": held(device, FDS),
    }
