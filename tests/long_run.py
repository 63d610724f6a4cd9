"""Random operations of many threads on shared reservations, against a model in plain Python.

``python tests/long_run.py --steps 1000000 --threads 16`` runs on the simulator, with driver
calls that fail at random; ``--gpu --steps 20000`` on a device, with every byte checked. The
process prints the steps, the differences from the model, and what the ledger holds at the end.

Each thread owns a region of every reservation, and knows what has to be in it: the mappings
that stay, and those that leave after its own stream, which it holds and lets go on by itself. On
a device it keeps the stream busy instead: the driver may queue others' work behind a stream that
waits for the host, and threads that hold theirs then wait for each other for ever.
One region of each reservation is everybody's: of that only the sum of the bytes is known.
"""

import argparse
import random
import sys
import threading
import time
from collections import Counter

import numpy
from conformance.steps import G, must
from cuda.bindings import driver
from long_run_sleep import Dormitory, Sleeper
from stream_help import Held

import vmmcy
from vmmcy import (
    CudaDriverError,
    HandlePool,
    VmmReservation,
    _loader,
    commit_many,
    decommit_many,
)

RESERVATIONS = 4
REGION = 16  # granules
BUSY_BYTES, BUSY_FILLS = 64 << 20, 64  # about 1.5 ms of an H200
PATIENCE_S = 30
FAILING = (
    "cuMemCreate",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemRelease",
    "cuStreamGetCtx",
    "cuStreamIsCapturing",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuThreadExchangeStreamCaptureMode",
    "cuMemcpyDtoHAsync",
    "cuMemcpyHtoDAsync",
)


class Faults:
    """Lets driver calls fail, one in a while: no operation meets two, so every way back succeeds.

    A fault waits for its call until all threads have begun another step, and after it nothing
    fails until they all have once more.
    """

    def __init__(self, sim, threads):
        self._sim = sim
        self._lock = threading.Lock()
        self._steps = [0] * threads
        self._at_last = [-1] * threads
        self._armed = False
        self.armed_for = Counter()

    def begin_step(self, thread, rng):
        """Count a step, and go on to the next fault, or the next time without, if it is due."""
        self._steps[thread] += 1
        if self._sim is None or not self._lock.acquire(blocking=False):
            return
        if all(now > then for now, then in zip(self._steps, self._at_last, strict=True)):
            self._sim.reset()
            self._armed = not self._armed
            if self._armed:
                call = rng.choice(FAILING)
                self.armed_for[call] += 1
                self._sim.fail(call, nth=rng.randint(1, 3))
            self._at_last = [-1 if step == sys.maxsize else step for step in self._steps]
        self._lock.release()

    def end(self, thread):
        """Say that a thread makes no more steps."""
        self._steps[thread] = sys.maxsize

    def stop(self):
        if self._sim is not None:
            self._sim.reset()


class Region:
    """What has to be in one thread's part of one reservation: first granule to granules."""

    def __init__(self, reservation, first):
        self.reservation = reservation
        self.first = first
        self.staying = {}
        self.leaving = {}  # after the thread's stream, which is held
        self.going = {}  # after it has gone on: there until somebody has looked
        self.values = {}  # of each granule, where bytes are checked

    def inside(self, mappings, start, count):
        """Those that lie wholly in a range."""
        end = start + count
        return {at: n for at, n in mappings.items() if start <= at and at + n <= end}

    def came(self, made, kept):
        """Note what a commit made, and what it kept of what was leaving."""
        self.staying.update(made | kept)
        for at in kept:
            del self.leaving[at]

    def went(self, staying, leaving):
        """Note what was given back at once."""
        for at in staying:
            del self.staying[at]
        for at in leaving:
            del self.leaving[at]

    def touching(self, mappings, start, count):
        end = start + count
        return {at: n for at, n in mappings.items() if at < end and start < at + n}

    def holes(self, start, count, chunk):
        """What a commit has to make: runs of granules that are free, cut into chunks."""
        taken = {
            granule
            for mappings in (self.staying, self.leaving)
            for at, n in mappings.items()
            for granule in range(at, at + n)
        }
        made, last = {}, None
        for granule in range(start, start + count):
            if granule in taken:
                last = None
            elif last is None or made[last] == chunk:
                last, made[granule] = granule, 1
            else:
                made[last] += 1
        return made

    def seen(self):
        """What is mapped there."""
        found = {m.offset // G: m.size_bytes // G for m in self.reservation.mappings}
        return self.touching(found, self.first, REGION)

    def differs(self):
        """Say how what is there differs from what has to be, None where it does not."""
        known = {**self.staying, **self.leaving}
        seen = self.seen()
        lost = {at: n for at, n in known.items() if seen.get(at) != n}
        unknown = {at: n for at, n in seen.items() if at not in known and self.going.get(at) != n}
        return f"lost {lost}, unknown {unknown}" if lost or unknown else None

    def settle(self):
        """Have what is going given back: by some call, again where that met a fault."""
        deadline = time.monotonic() + PATIENCE_S
        while self.going:
            assert time.monotonic() < deadline, f"never given back: {self.going}"
            self.reservation.decommit(self.first * G, 1)
            seen = self.seen()
            self.going = {at: n for at, n in self.going.items() if seen.get(at) == n}


class Bytes:
    """Fills granules with a pattern, and checks it."""

    def __init__(self):
        self._host = must(driver.cuMemHostAlloc(G, 0))
        address = int(self._host)
        memory = (numpy.ctypeslib.ctypes.c_uint32 * (G // 4)).from_address(address)
        self._words = numpy.ctypeslib.as_array(memory)
        self._busy = must(driver.cuMemAlloc(BUSY_BYTES))

    def keep_busy(self, stream):
        """Give the stream work for a while."""
        for _ in range(BUSY_FILLS):
            must(driver.cuMemsetD32Async(self._busy, 0, BUSY_BYTES // 4, stream))

    def put(self, address, count, value):
        """Fill granules; does not wait."""
        must(driver.cuMemsetD32(address, value, count * G // 4))

    def holds(self, address, count, value):
        """Whether granules are filled so."""
        for place in range(address, address + count * G, G):
            must(driver.cuMemcpyDtoH(int(self._host), place, G))
            if not (self._words == value).all():
                return False
        return True

    def fill(self, region, made, rng):
        for at, count in made.items():
            for granule in range(at, at + count):
                region.values[granule] = rng.getrandbits(32)
                self.put(region.reservation.base + granule * G, 1, region.values[granule])
        must(driver.cuStreamSynchronize(1))

    def touch(self, region, mappings, stream):
        """Give the stream work on memory that is to leave after it."""
        for at, count in mappings.items():
            for granule in range(at, at + count):
                address = region.reservation.base + granule * G
                value = region.values[granule]
                must(driver.cuMemsetD32Async(address, value, G // 4, stream))

    def wrong(self, region, mappings):
        """Granules whose bytes are not what they were filled with."""
        found = []
        for at, count in mappings.items():
            for granule in range(at, at + count):
                address = region.reservation.base + granule * G
                if not self.holds(address, 1, region.values[granule]):
                    found.append(granule)
        return found

    def close(self):
        must(driver.cuMemFreeHost(self._host))
        must(driver.cuMemFree(self._busy))


class Worker:
    """One thread's steps."""

    def __init__(self, number, scene, seed):
        self.number = number
        self.scene = scene
        self.rng = random.Random(seed * 1000 + number)
        self.regions = [Region(r, number * REGION) for r in scene.reservations]
        self.bytes = None
        self.done = Counter()

    def run(self, steps):
        """Make the steps; a difference is noted, anything else ends the thread."""
        must(driver.cuCtxSetCurrent(self.scene.context))
        self.held, self.is_held = Held(), False
        self.bytes = Bytes() if self.scene.check_bytes else None
        self.sleeper = Sleeper(self.scene.dormitory, self.rng, self)
        acts, weights = zip(*STEPS, strict=True)
        try:
            for _ in range(steps):
                self.scene.faults.begin_step(self.number, self.rng)
                act = self.rng.choices(acts, weights)[0]
                region = self.rng.choice(self.regions)
                try:
                    act(self, region)
                    self.done[act.__name__] += 1
                except CudaDriverError as error:
                    self.done["faults"] += 1
                    if not self.scene.may_fail:
                        self.differ(f"{act.__name__}: {error}")
        except Exception as error:
            self.differ(f"{type(error).__name__}: {error}")
        finally:
            self.scene.faults.end(self.number)
            self.let_go()
            self.held.close()
            if self.bytes:
                self.bytes.close()

    def differ(self, text):
        self.scene.differences.append(f"thread {self.number}: {text}")

    def expect(self, act, wanted, found):
        if wanted != found:
            self.differ(f"{act}: {found}, not {wanted}")

    def span(self, region):
        start = self.rng.randrange(REGION)
        return region.first + start, self.rng.randint(1, REGION - start)

    def check_bytes(self, region, mappings):
        if self.bytes and (wrong := self.bytes.wrong(region, mappings)):
            self.differ(f"wrong bytes in granules {wrong}")

    def await_writes(self, region):
        """Before memory goes at once: have the stream done with what it was given there."""
        if self.bytes:
            self.let_go()
            region.settle()

    # --- Steps on a region of its own

    def commit(self, region):
        start, count = self.span(region)
        chunk = 1 if region.reservation.pool else self.rng.choice((1, 2, 5, REGION))
        region.settle()
        made = region.holes(start, count, chunk)
        kept = region.touching(region.leaving, start, count)
        won = region.reservation.commit(
            start * G, count * G, chunk_bytes=None if chunk == REGION else chunk * G
        )
        self.expect("commit", sum(made.values()) + sum(kept.values()), won // G)
        region.came(made, kept)
        if self.bytes:
            self.bytes.fill(region, made, self.rng)

    def decommit(self, region):
        start, count = self.span(region)
        self.await_writes(region)
        leaving = region.inside(region.leaving, start, count)
        staying = region.inside(region.staying, start, count)
        self.check_bytes(region, staying)
        won = region.reservation.decommit(start * G, count * G)
        self.expect("decommit", sum(staying.values()), won // G)
        region.went(staying, leaving)

    def decommit_after(self, region):
        start, count = self.span(region)
        region.settle()  # else what a fault kept would leave once more, behind a hold
        staying = region.inside(region.staying, start, count)
        self.check_bytes(region, staying)
        if self.bytes:
            self.bytes.touch(region, staying, self.held.stream)
        won = region.reservation.decommit(start * G, count * G, stream=self.held.handle)
        self.expect("decommit(stream)", sum(staying.values()), won // G)
        for at in staying:
            del region.staying[at]
        (region.leaving if self.is_held else region.going).update(staying)

    def spans(self):
        """A span in each of two regions."""
        return [(region, *self.span(region)) for region in self.rng.sample(self.regions, 2)]

    def commit_many(self, _region):
        spans = self.spans()
        changes = []
        for region, start, count in spans:
            region.settle()
            chunk = 1 if region.reservation.pool else REGION
            made = region.holes(start, count, chunk)
            changes.append((region, made, region.touching(region.leaving, start, count)))
        won = commit_many([(region.reservation, s * G, n * G) for region, s, n in spans])
        wanted = sum(sum({**made, **kept}.values()) for _, made, kept in changes)
        self.expect("commit_many", wanted, won // G)
        for region, made, kept in changes:
            region.came(made, kept)
            if self.bytes:
                self.bytes.fill(region, made, self.rng)

    def decommit_many(self, _region):
        spans = self.spans()
        changes = []
        for region, start, count in spans:
            self.await_writes(region)
            staying = region.inside(region.staying, start, count)
            self.check_bytes(region, staying)
            changes.append((region, staying, region.inside(region.leaving, start, count)))
        won = decommit_many([(region.reservation, s * G, n * G) for region, s, n in spans])
        wanted = sum(sum(staying.values()) for _, staying, _ in changes)
        self.expect("decommit_many", wanted, won // G)
        for region, staying, leaving in changes:
            region.went(staying, leaving)

    def map(self, region):
        start, count = self.span(region)
        region.settle()
        there = region.touching({**region.staying, **region.leaving}, start, count)
        try:
            region.reservation.map(start * G, count * G)
        except ValueError:
            self.expect("map", True, bool(there))
            return
        self.expect("map", {}, there)
        region.staying[start] = count
        if self.bytes:
            self.bytes.fill(region, {start: count}, self.rng)

    def unmap(self, region):
        if not region.staying:
            return
        self.await_writes(region)
        start = self.rng.choice(list(region.staying))
        count = region.staying[start]
        self.check_bytes(region, {start: count})
        region.reservation.unmap(start * G, count * G)
        del region.staying[start]

    def look(self, region):
        if difference := region.differs():
            self.differ(difference)

    # --- Steps on streams, pools, and what is everybody's

    def hold(self, _region):
        if self.bytes:
            self.bytes.keep_busy(self.held.stream)
        elif not self.is_held:
            self.held.hold()
            self.is_held = True

    def let_go(self, _region=None):
        self.held.let()
        must(driver.cuStreamSynchronize(self.held.stream))
        self.is_held = False
        for region in self.regions:
            region.going.update(region.leaving)
            region.leaving.clear()

    def synchronize(self, region):
        self.let_go()  # who waits for others lets nobody wait
        region.reservation.synchronize()
        region.settle()

    def use_pool(self, region):
        pool = region.reservation.pool
        if pool is None:
            return
        if self.rng.random() < 0.5:
            pool.prefill(self.rng.randrange(8) * G)
        else:
            pool.trim(self.rng.randrange(8) * G)
        # What the driver did not take back stays in the pool, full or not.
        kept = pool.pooled_bytes
        if kept > pool.capacity_bytes + self.scene.faults.armed_for["cuMemRelease"] * G:
            self.differ(f"{pool!r} keeps {kept} bytes")

    def sleep(self, _region):
        self.sleeper.step()

    def contend(self, region):
        reservation = region.reservation
        start, count = self.span(region)
        offset = (self.scene.threads * REGION + start - region.first) * G
        kind = self.rng.randrange(3)
        if kind == 0:
            won = reservation.commit(offset, count * G, chunk_bytes=G)
        elif kind == 1:
            won = -reservation.decommit(offset, count * G)
        else:
            won = -reservation.decommit(offset, count * G, stream=self.held.handle)
        with self.scene.lock:
            self.scene.shared[reservation] += won


STEPS = (
    (Worker.commit, 10),
    (Worker.decommit, 4),
    (Worker.decommit_after, 8),
    (Worker.commit_many, 2),
    (Worker.decommit_many, 2),
    (Worker.map, 3),
    (Worker.unmap, 2),
    (Worker.look, 2),
    (Worker.hold, 2),
    (Worker.let_go, 2),
    (Worker.synchronize, 1),
    (Worker.use_pool, 1),
    (Worker.contend, 3),
    (Worker.sleep, 6),
)


class Scene:
    """The reservations that all threads share; half of them have one pool."""

    def __init__(self, threads, sim, check_bytes):
        must(driver.cuInit(0))
        self.context = must(driver.cuDevicePrimaryCtxRetain(0))
        self.threads = threads
        self.may_fail = sim is not None
        self.check_bytes = check_bytes
        self.faults = Faults(sim, threads)
        self.lock = threading.Lock()
        self.differences = []
        self.pool = HandlePool(0, chunk_bytes=G, capacity_bytes=64 * G)
        self.reservations = [
            VmmReservation(
                (threads + 1) * REGION * G,
                device_id=0,
                **({"pool": self.pool} if number % 2 else {}),
            )
            for number in range(RESERVATIONS)
        ]
        self.shared = Counter()
        self.dormitory = Dormitory(check_bytes)

    def finish(self, workers):
        """Compare everything, and give it all back."""
        must(driver.cuCtxSetCurrent(self.context))
        for number, reservation in enumerate(self.reservations):
            reservation.synchronize()
            for worker in workers:
                region = worker.regions[number]
                region.going.clear()
                worker.look(region)
            shared = Region(reservation, self.threads * REGION)
            there = sum(shared.seen().values()) * G
            if there != self.shared[reservation]:
                self.differences.append(f"shared: {there} bytes, not {self.shared[reservation]}")
            reservation.close()
        self.pool.close()
        self.differences += self.dormitory.finish(
            [worker.sleeper for worker in workers], self.may_fail
        )
        must(driver.cuCtxSetCurrent(driver.CUcontext(0)))
        must(driver.cuDevicePrimaryCtxRelease(0))


def run(steps, threads, seed, *, faults=False, check_bytes=False):
    """Make `steps` steps in all; give what was done, and the differences from the model."""
    sim = None
    if faults:
        from vmmcy import sim
    scene = Scene(threads, sim, check_bytes)
    workers = [Worker(number, scene, seed) for number in range(threads)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)  # so that steps of all threads mix
    running = [threading.Thread(target=w.run, args=(steps // threads,)) for w in workers]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    sys.setswitchinterval(interval)
    scene.faults.stop()
    scene.finish(workers)
    return sum((worker.done for worker in workers), Counter()), scene.differences


def main():
    """Run as asked on the command line; fail where anything differs or is left."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--gpu", action="store_true", help="on a device, with bytes checked")
    options = parser.parse_args()
    if not options.gpu:
        _loader.fall_back_to_simulator()
    simulated = _loader.simulator_is_loaded()
    if options.gpu and simulated:
        parser.error("--gpu needs a real driver: VMMCY_DRIVER says otherwise")
    done, differences = run(
        options.steps, options.threads, options.seed, faults=simulated, check_bytes=options.gpu
    )
    left = {kind: count for kind, count in vmmcy.live().items() if count}
    print(f"steps: {sum(done.values())} on {options.threads} threads: {dict(done)}")
    print(f"differences: {len(differences)}")
    print("\n".join(differences[:20]), end="\n" if differences else "")
    print(f"ledger at the end: {left or 'zero'}")
    return bool(differences or left)


if __name__ == "__main__":
    sys.exit(main())
