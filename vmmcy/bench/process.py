"""Rows ``gil`` and ``import``: what vmmcy costs the Python around it."""

import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from vmmcy import VmmReservation
from vmmcy.bench import _floor, plain_python
from vmmcy.bench.measure import Check, Row, medians

COMPUTING_THREADS = 2
CHUNK_BYTES = 2 << 20
KEPT_SPEED = 0.95
IMPORT = """
import numpy, cuda.bindings.cydriver, time
started = time.perf_counter_ns()
import vmmcy
print(time.perf_counter_ns() - started)
"""


def rows(quick: bool, device_id: int) -> Iterator[Row]:
    """Measure the rows of this system."""
    yield _gil_row(10 if quick else 50, 3 if quick else 15, device_id)
    yield _import_row(3 if quick else 15)


class Beside(NamedTuple):
    """What work and Python threads beside it took.

    Attributes
    ----------
    work_ns : float
        The work, each time.
    count_ns : float
        One count of the threads.
    lost : float
        The share of their speed that the threads lose to it.
    """

    work_ns: float
    count_ns: float
    lost: float


class Computing:
    """Python threads that count as fast as they can while the context lasts."""

    def __init__(self, num_threads: int) -> None:
        self._counts = [0] * num_threads
        self._stopped = False
        self._threads = [
            threading.Thread(target=self._count, args=(number,)) for number in range(num_threads)
        ]

    def _count(self, number: int) -> None:
        while not self._stopped:
            self._counts[number] += 1

    def __enter__(self) -> "Computing":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped = True
        for thread in self._threads:
            thread.join()

    def beside(self, work: Callable[[], object], times: int) -> tuple[float, float]:
        """Do `work` beside the threads: its ns each time, and the threads' counts a ns."""
        counted, started = sum(self._counts), time.perf_counter_ns()
        for _ in range(times):
            work()
        elapsed = time.perf_counter_ns() - started
        return elapsed / times, max(sum(self._counts) - counted, 1) / elapsed

    def turns(self, repeats: int, times: int, *works: Callable[[], object]) -> list[Beside]:
        """Do each of `works` in turn, and nothing.

        Returns
        -------
        list of Beside
            The mean time of the work, since it is a whole number of GIL hand-overs each time;
            else medians, losses against the same turn.
        """
        turns = [
            ([self.beside(work, times) for work in works], self.beside(_rest, 1)[1])
            for _ in range(repeats)
        ]
        return [
            Beside(
                statistics.fmean(of_works[k][0] for of_works, _ in turns),
                statistics.median(1 / of_works[k][1] for of_works, _ in turns),
                statistics.median(1 - of_works[k][1] / alone for of_works, alone in turns),
            )
            for k in range(len(works))
        ]


def _gil_row(rounds: int, repeats: int, device_id: int) -> Row:
    prop = plain_python.allocation_prop(device_id)
    access = plain_python.access_desc(device_id)
    with VmmReservation(CHUNK_BYTES, device_id=device_id) as reservation:
        base = reservation.base
        bare = _floor.time_map_unmap(base, CHUNK_BYTES, device_id, 100) // 100

        def ours() -> None:
            reservation.map(0, CHUNK_BYTES)
            reservation.unmap(0, CHUNK_BYTES)

        def theirs() -> None:
            plain_python.map_unmap(base, CHUNK_BYTES, prop, access)

        def bare_calls() -> None:
            _floor.time_map_unmap(base, CHUNK_BYTES, device_id, 1)

        def two_hand_overs() -> None:
            _floor.spin_without_gil(bare // 2)
            _floor.spin_without_gil(bare // 2)

        with Computing(COMPUTING_THREADS) as others:
            mine, python, hand_overs, calls = others.turns(
                repeats, rounds, ours, theirs, two_hand_overs, bare_calls
            )
    return Row(
        id="gil",
        item=f"map and unmap beside {COMPUTING_THREADS} computing threads",
        ns_per_item=mine.work_ns,
        baseline="plain Python over cuda.bindings",
        baseline_ns_per_item=python.work_ns,
        floor="two calls that give up the GIL for as long as the driver calls take",
        floor_ns_per_item=hand_overs.work_ns,
        limit="1.1 x floor",
        limit_ns_per_item=1.1 * hand_overs.work_ns,
        checks=(Check("speed that the threads lose", mine.lost, 1 - KEPT_SPEED),),
        note=f"beside the same driver calls from C the threads lose {calls.lost:.1%}",
    )


def _rest() -> None:
    """Leave the threads alone for a while."""
    time.sleep(0.5)


def _import_row(repeats: int) -> Row:
    def fresh_import() -> int:
        answer = subprocess.run(
            [sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True
        )
        return int(answer.stdout)

    (ours,) = medians(repeats, fresh_import)
    return Row(
        id="import",
        item="import vmmcy, beyond numpy and cydriver",
        ns_per_item=ours,
        baseline="none",
        baseline_ns_per_item=None,
        floor="none",
        floor_ns_per_item=None,
        limit="5 ms",
        limit_ns_per_item=5e6,
    )
