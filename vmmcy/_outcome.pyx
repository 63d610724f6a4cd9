"""From what came of an operation to the exception: raised when no lock is held any more."""

from vmmcy._driver cimport raise_faults


cdef int raise_outcome(const Outcome* outcome, str name, str kind) except -1:
    """Raise what came of the method `name` of a `kind` of object unless it is done."""
    if outcome.refusal.reason == NOT_REFUSED:
        if outcome.faults.empty():
            return 0
        return raise_faults(outcome.faults.data(), outcome.faults.size())
    raise refusal_error(&outcome.refusal, name, kind)


cdef object refusal_error(const Refusal* refusal, str name, str kind):
    """Return the exception for a refusal."""
    cdef Reason reason = refusal.reason
    start, end = refusal.offset, refusal.end
    if reason == NO_HOST_MEMORY:
        return MemoryError(f"{name}: no host memory")
    if reason == AFTER_CLOSE:
        return RuntimeError(f"{name} after close")
    if reason == FORKED:
        return RuntimeError(
            f"{name}: the {kind} was made before this process was forked, and CUDA "
            f"does not survive a fork: start workers with 'spawn' and make it there"
        )
    if reason == LEFT_OVER:
        return RuntimeError(
            f"{name}: an earlier failure left what only close can undo; call that, "
            "again if it raises"
        )
    if reason == POOL_CLOSED:
        return RuntimeError(f"{name}: the reservation's HandlePool is closed")
    if reason == POOL_IN_USE:
        return RuntimeError(
            f"{name}: {start} of its handles are in use; decommit those ranges or close "
            "the reservations first"
        )
    if reason == POOL_AWAITED:
        return RuntimeError(
            f"{name}: {start} BackedSegments or BackedPool objects are paused, and resume from "
            "it; resume or close them first"
        )
    if reason == OVERLAP:
        return ValueError(f"{name}: mapping [{start}, {end}) is there already")
    if reason == STILL_LEAVING:
        return ValueError(
            f"{name}: mapping [{start}, {end}) is there until its stream is done; "
            "commit takes it back, unmap takes it away"
        )
    if reason == STILL_CAPTURED:
        return RuntimeError(
            f"{name}: mapping [{start}, {end}) leaves after a stream that is being captured; "
            "end the capture and call again"
        )
    if reason == CUT:
        return ValueError(f"{name}: the range cuts mapping [{start}, {end}), give it whole")
    return ValueError(f"{name}: nothing is mapped at [{start}, {end})")
