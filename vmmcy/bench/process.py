"""Rows ``gil`` and ``import``: what vmmcy costs the Python around it."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from statistics import fmean
from typing import NamedTuple

from vmmcy import VmmReservation
from vmmcy.bench import _floor, plain_python
from vmmcy.bench.measure import SEED, Check, Row, medians

COMPUTING_THREADS = 2
CHUNK_BYTES = 2 << 20
KEPT_SPEED = 0.95
# A tenth of Python's own interval, for ten times as many hand-overs to compare.
SWITCH_SECONDS = 0.0005
MORE_ROUNDS = 10
IMPORT = """
import numpy, cuda.bindings.cydriver, time
started = time.perf_counter_ns()
import vmmcy
print(time.perf_counter_ns() - started)
"""


def rows(quick: bool, device_id: int) -> Iterator[Row]:
    """Measure the rows of this system."""
    yield _gil_row(5 if quick else 300, device_id)
    yield _import_row(3 if quick else 15)


class Beside(NamedTuple):
    """What work and Python threads beside it took.

    Attributes
    ----------
    times_ns : list of int
        The work, each time.
    count_ns : float
        One count of the threads.
    lost : float
        The share of their speed that the threads lose to it.
    """

    times_ns: list[int]
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

    def beside(self, work: Callable[[], object]) -> tuple[int, int]:
        """Do `work` beside the threads: its nanoseconds, and the threads' counts."""
        counted, started = sum(self._counts), time.perf_counter_ns()
        work()
        elapsed = time.perf_counter_ns() - started
        return elapsed, sum(self._counts) - counted

    def turns(self, rounds: int, *works: Callable[[], object]) -> list[Beside]:
        """Do each of `works` once a round, and nothing, in an order drawn anew.

        Losses are against the rounds' nothing.
        """
        order = [_rest, *works]
        turns: dict[Callable[[], object], list[tuple[int, int]]] = {work: [] for work in order}
        random = Random(SEED)
        for _ in range(rounds):
            random.shuffle(order)
            for work in order:
                turns[work].append(self.beside(work))
        alone = _count_ns(turns[_rest])
        return [
            Beside(
                [elapsed for elapsed, _ in turns[work]],
                _count_ns(turns[work]),
                1 - alone / _count_ns(turns[work]),
            )
            for work in works
        ]


def _count_ns(turns: Sequence[tuple[int, int]]) -> float:
    counted = sum(counts for _, counts in turns)
    return sum(elapsed for elapsed, _ in turns) / max(counted, 1)


def _rest() -> None:
    """Leave the threads alone for a while."""
    time.sleep(0.01)


@contextmanager
def _switch_interval(seconds: float) -> Iterator[None]:
    """Have threads that wait for the GIL ask for it after `seconds`."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


def _gil_row(rounds: int, device_id: int) -> Row:
    prop = plain_python.allocation_prop(device_id)
    access = plain_python.access_desc(device_id)
    with VmmReservation(CHUNK_BYTES, device_id=device_id) as reservation:
        base = reservation.base

        def ours() -> None:
            reservation.map(0, CHUNK_BYTES)
            reservation.unmap(0, CHUNK_BYTES)

        def theirs() -> None:
            plain_python.map_unmap(base, CHUNK_BYTES, prop, access)

        def bare_calls() -> None:
            _floor.map_unchecked(base, CHUNK_BYTES, device_id, False)
            _floor.unmap_unchecked(base, CHUNK_BYTES, 0)

        with Computing(COMPUTING_THREADS) as others:
            lost, bare_lost = (beside.lost for beside in others.turns(rounds, ours, bare_calls))
            with _switch_interval(SWITCH_SECONDS):
                turns = others.turns(MORE_ROUNDS * rounds, ours, theirs, bare_calls)
    ours_ns, python_ns, bare_ns = (middle(beside.times_ns) for beside in turns)
    return Row(
        id="gil",
        item=f"map and unmap beside {COMPUTING_THREADS} computing threads",
        ns_per_item=ours_ns,
        baseline="plain Python over cuda.bindings",
        baseline_ns_per_item=python_ns,
        floor="the same driver calls in two Python calls that check nothing",
        floor_ns_per_item=bare_ns,
        limit="1.1 x floor",
        limit_ns_per_item=1.1 * bare_ns,
        checks=(Check("speed that the threads lose", lost, 1 - KEPT_SPEED),),
        note=f"beside the floor's calls the threads lose {bare_lost:.1%}; the losses are with "
        f"Python's switch interval, the times with one of {SWITCH_SECONDS * 1e3} ms",
    )


def middle(times: Sequence[int]) -> float:
    """Return the mean of the middle half.

    For times that are a whole number of GIL hand-overs: their median jumps from one to the
    next, and their mean follows the few that take fifty.
    """
    quarter = len(times) // 4
    return fmean(sorted(times)[quarter : len(times) - quarter])


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
