"""How a time is taken: both sides in turn, in one run, and the median of the repeats."""

import gc
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from time import perf_counter_ns
from typing import Any

Timer = Callable[[], int]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the result.

    Attributes
    ----------
    id : str
        Stable name of the work.
    ns_per_item : float
        What a caller of vmmcy pays, nanoseconds per item.
    baseline_ns_per_item : float or None
        A peer's way, measured in the same run; None where the peer cannot run here.
    floor_ns_per_item : float or None
        The bare calls from C that no implementation can do without.
    item, baseline, floor : str
        What one item, the baseline and the floor are, in words.
    """

    id: str
    ns_per_item: float
    baseline_ns_per_item: float | None
    floor_ns_per_item: float | None
    item: str
    baseline: str
    floor: str

    def as_json(self) -> dict[str, Any]:
        """Return the row as JSON takes it."""
        return asdict(self)


def timed(work: Callable[[], Any]) -> Timer:
    """Return a timer of `work` in nanoseconds; its result is dropped outside the clock."""

    def timer() -> int:
        started = perf_counter_ns()
        result = work()
        elapsed = perf_counter_ns() - started
        del result
        return elapsed

    return timer


def medians(repeats: int, *timers: Timer) -> list[float]:
    """Run all `timers` in turn, `repeats` times after one warm-up; medians in nanoseconds."""
    for timer in timers:
        timer()
    gc.collect()
    rounds = [[timer() for timer in timers] for _ in range(repeats)]
    return [statistics.median(times) for times in zip(*rounds, strict=True)]
