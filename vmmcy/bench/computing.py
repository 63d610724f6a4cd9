"""Python threads that compute while something else is at work, and what they lose to it."""

import threading
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from vmmcy.bench.measure import SEED

COMPUTING_THREADS = 2
KEPT_SPEED = 0.95


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
