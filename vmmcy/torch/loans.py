"""What is lent of a pool, and whose turn it is: one record, however many borrowers there are."""

from __future__ import annotations

import threading
import weakref

from vmmcy.torch.graph_pool import PoolId
from vmmcy.torch.lending import Lending, lendings_of
from vmmcy.torch.turns import PoolTurns

Runs = list[tuple[int, int]]

# Reentrant: a collection may finalize a record while its thread makes another.
_lock = threading.RLock()
_known: weakref.WeakValueDictionary[tuple[PoolId, int], PoolLoans] = weakref.WeakValueDictionary()


class PoolLoans:
    """The lendings of one pool on one device, the one in force and those not yet returned.

    Parameters
    ----------
    pool : tuple of (int, int) or None
        The pool, None for memory of others.
    device : int
        The device of the memory.
    """

    def __init__(self, pool: PoolId | None, device: int) -> None:
        self.turns = PoolTurns()
        self.static_runs: Runs | None = [] if pool is None else None
        self.lending: Lending | None = None
        # What borrowers that are gone have left.
        self.owing: list[Lending] = [] if pool is None else lendings_of(pool, device)

    def owe(self, lending: Lending) -> None:
        """Have replays check for a lending from now on."""
        if lending not in self.owing:
            self.owing.append(lending)

    def still_owing(self) -> int:
        """Return the bytes that are not returned, and forget the lendings that are."""
        owed = [(lending, lending.settle()) for lending in self.owing]
        self.owing = [lending for lending, size_bytes in owed if size_bytes]
        return sum(size_bytes for _, size_bytes in owed)

    def check_returned(self, who: str) -> None:
        """Refuse while tensors of a borrow are alive, or another stream may use what was freed."""
        size_bytes = self.still_owing()
        if size_bytes:
            raise RuntimeError(
                f"{who}: {size_bytes} bytes of borrowed graph-pool memory are still in use; drop "
                "the tensors before the next replay or capture"
            )

    def check_settled(self, who: str) -> None:
        """Refuse to lend again what was freed while another stream used it, and may use still."""
        self.still_owing()
        if any(lending.awaits for lending in self.owing):
            raise RuntimeError(
                f"{who}: another stream may still use what an earlier borrow freed, and no stream "
                "can be put behind it while a graph is being captured; borrow after that"
            )

    def retire(self) -> None:
        """Lend no more from the layout there is."""
        if self.lending is not None:
            self.lending.retired = True
            self.lending = None

    def __del__(self) -> None:
        """Leave the lending to be dropped when that is safe."""
        if getattr(self, "lending", None) is not None:
            self.retire()


def loans_of(pool: PoolId | None, device: int) -> PoolLoans:
    """Return the record of a pool on a device; memory of others has one of its own each time."""
    if pool is None:
        return PoolLoans(None, device)
    with _lock:
        loans = _known.get((pool, device))
        if loans is None:
            loans = _known[pool, device] = PoolLoans(pool, device)
        return loans
