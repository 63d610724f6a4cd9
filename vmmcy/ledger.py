"""What the library holds in this process, counted."""

from vmmcy._arena import count_open_arenas
from vmmcy._arguments import device_ordinal
from vmmcy._ledger import held_of

_ALL_DEVICES = -1


def live(device_id: int | None = None) -> dict[str, int]:
    """Count what vmmcy holds in this process now: all zero where nothing leaks.

    Counted where a driver call succeeds, so also what a failure has left on record. What
    belongs to a parent process is not counted in a forked child.

    Parameters
    ----------
    device_id : int, optional
        Count what is that device's alone; by default everything. No driver call is made: of
        a device that there is not, nothing is held.

    Returns
    -------
    dict of str to int
        ``reservations`` and ``reserved_bytes``, of address space; ``mappings`` and
        ``committed_bytes``, of memory under it; ``handles``, the references to allocation
        handles that are vmmcy's to release, and ``pooled_handles``, those that a `HandlePool`
        keeps unused, which are not in ``handles``; ``arenas``, the open `BumpArena` objects,
        of a device those with that `device_id`; ``fds``, file descriptors. Each is read for
        itself: while others work they may be of different moments.

    Raises
    ------
    TypeError
        `device_id` is not an integer.
    ValueError
        It is negative or above 2**31 - 1.
    """
    device = _ALL_DEVICES if device_id is None else device_ordinal(device_id)
    return {**held_of(device), "arenas": count_open_arenas(device)}
