"""Segments that all threads of the long run share, paused and resumed while others come and go."""

import sys
import threading
from contextlib import nullcontext

from arena_help import FREE, MALLOC
from conformance.steps import G, must
from cuda.bindings import driver

from vmmcy import BackedSegments, CudaDriverError

MOST_KEPT = 4096


class Dormitory:
    """One `BackedSegments`, and who has what of it: first granule to its bytes' value."""

    def __init__(self, check_bytes):
        self.segments = BackedSegments(device_id=0)
        self._entry_points = self.segments.entry_points
        self.malloc = MALLOC(self._entry_points.malloc_address)
        self.free = FREE(self._entry_points.free_address)
        # Bytes can be looked at only where nobody pauses meanwhile.
        self.awake = threading.RLock() if check_bytes else nullcontext()
        self._lock = threading.Lock()
        self._owned = set()

    def claim(self, address, count):
        """Whether nobody else has any of these granules."""
        granules = set(range(address // G, address // G + count))
        with self._lock:
            free = not granules & self._owned
            self._owned |= granules
        return free

    def disclaim(self, address, count):
        with self._lock:
            self._owned -= set(range(address // G, address // G + count))

    def finish(self, sleepers, may_fail):
        """Compare what is there with what everybody has; give everything back."""
        if self.segments.paused:
            self.segments.resume()
        self.segments.synchronize()
        if may_fail:
            # What a fault left without a fence goes by the promise that a pause is, no sooner.
            self.segments.pause()
            self.segments.resume()
        wanted = {at: count * G for sleeper in sleepers for at, (count, _) in sleeper.mine.items()}
        differences = []
        if dict(self.segments.segments) != wanted:
            differences.append(f"segments: {self.segments.segments}, not {wanted}")
        if self.segments.backed_bytes != sum(wanted.values()):
            differences.append(f"segments: {self.segments.backed_bytes} bytes, not {wanted}")
        for address, size_bytes in wanted.items():
            self.free(address, size_bytes, 0, None)
        self.segments.synchronize()
        self.segments.close()
        return differences


class Sleeper:
    """One thread's segments: address to their granules, and the value of each word."""

    MOST = 6

    def __init__(self, dormitory, rng, worker):
        self.dormitory = dormitory
        self.mine = {}
        self._rng = rng
        self._held = worker.held
        self._let_go = worker.let_go
        self._content = worker.bytes
        self._differ = worker.differ

    def step(self):
        """Ask for a segment, free one, pause or resume all."""
        acts = (self._ask, self._ask, self._free, self._free, self._pause, self._resume)
        act = self._rng.choice(acts)
        # A pause waits for what others have freed: who waits for it lets nobody wait.
        if self._content or act not in (self._ask, self._free):
            self._let_go()
        with self.dormitory.awake:
            act()

    def _ask(self):
        if len(self.mine) == self.MOST:
            return
        count = self._rng.randint(1, 3)
        address = self.dormitory.malloc(count * G, 0, None)
        if not address:
            return
        if not self.dormitory.claim(address, count):
            self._differ(f"segment at {address} is somebody else's too")
        value = self._rng.getrandbits(32)
        self.mine[address] = (count, value)
        if self._content:
            self._content.put(address, count, value)
            must(driver.cuStreamSynchronize(1))

    def _free(self):
        if not self.mine:
            return
        address = self._rng.choice(list(self.mine))
        count, value = self.mine.pop(address)
        segments = self.dormitory.segments
        if self._content and not segments.paused and not self._content.holds(address, count, value):
            self._differ(f"wrong bytes in the segment at {address}")
        self.dormitory.disclaim(address, count)
        self.dormitory.free(address, count * G, 0, self._held.handle)

    def _pause(self):
        segments = self.dormitory.segments
        # What nobody compares is not worth the time of a copy.
        most = MOST_KEPT if self._content is None else sys.maxsize
        keep = [(address, min(size_bytes, most)) for address, size_bytes in segments.segments]
        self._try(lambda: segments.pause(keep), "paused already", "in no segment")

    def _resume(self):
        self._try(self.dormitory.segments.resume, "not paused")

    def _try(self, act, *refusals):
        """Others may have been first, and with them away nothing is lost."""
        try:
            act()
        except CudaDriverError:
            raise
        except (RuntimeError, ValueError) as error:
            if not any(refusal in str(error) for refusal in refusals):
                raise
