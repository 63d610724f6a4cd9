"""How a time is taken: all sides in turn, in one run, and one figure of all repeats."""

import gc
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from random import Random
from time import perf_counter_ns
from typing import Any

Timer = Callable[[], int]
SEED = 20261130
# Of a quick run and of a whole one: how far the progress bar goes.
ROW_COUNT = {True: 31, False: 37}


@dataclass(frozen=True, slots=True)
class Check:
    """A limit on something other than the time of an item.

    Attributes
    ----------
    what : str
        What `value` is, with its unit.
    value, at_most : float
        What was measured, and its limit.
    """

    what: str
    value: float
    at_most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the result.

    Attributes
    ----------
    id : str
        Stable name of the work.
    item : str
        What one item is.
    ns_per_item : float
        What a caller of vmmcy pays, nanoseconds per item.
    baseline : str
        A peer's way to do the same.
    baseline_ns_per_item : float or None
        Its time in the same run; None where the peer cannot run here.
    floor : str
        The bare calls that no implementation can do without.
    floor_ns_per_item : float or None
        Their time from C in the same run; None where there are none.
    limit : str
        How the limit is computed.
    limit_ns_per_item : float or None
        The limit, from what was measured in the same run; None where its peer cannot run here.
    checks : tuple of Check
        Further limits of the row.
    curve : str or None
        The scaling curve that the row is a point of.
    at : int or None
        Where on it: a number of inputs, or of extents.
    note : str or None
        What else was measured in the same run, to read the figures by.
    """

    id: str
    item: str
    ns_per_item: float
    baseline: str
    baseline_ns_per_item: float | None
    floor: str
    floor_ns_per_item: float | None
    limit: str
    limit_ns_per_item: float | None
    checks: tuple[Check, ...] = ()
    curve: str | None = None
    at: int | None = None
    note: str | None = None

    @property
    def holds(self) -> bool | None:
        """Whether every limit is kept; None where one could not be computed here."""
        if self.limit_ns_per_item is None:
            return None
        kept = all(check.value <= check.at_most for check in self.checks)
        return kept and self.ns_per_item <= self.limit_ns_per_item

    def as_json(self) -> dict[str, Any]:
        """Return the row as JSON takes it."""
        return {**asdict(self), "holds": self.holds}


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
    """Run all `timers` in turn, `repeats` times; the median of each in nanoseconds."""
    return [statistics.median(times) for times in in_turn(repeats, *timers)]


def beside_floor(repeats: int, floor: Timer, *timers: Timer) -> list[float]:
    """Run all in turn, `repeats` times; what `beside_first` makes of the times."""
    return beside_first(in_turn(repeats, floor, *timers))


def beside_first(times: Sequence[Sequence[int]]) -> list[float]:
    """Return the median of the first series, and that plus the median difference for each other.

    A difference is one between two times of the same round. For work that scatters by more
    than what it is to be compared by, most of all where the scatter comes and goes in spells.
    """
    first, *others = times
    median = statistics.median(first)
    return [median, *(median + statistics.median(_differences(other, first)) for other in others)]


def notch(times: Sequence[int], first: Sequence[int]) -> float:
    """Return the half width of the notch around the median difference, in nanoseconds.

    Two medians whose notches do not overlap differ, at about 95 %. Source: McGill, Tukey and
    Larsen, "Variations of Box Plots", 1978.
    """
    quarter, _, three_quarters = statistics.quantiles(_differences(times, first), n=4)
    return 1.57 * (three_quarters - quarter) / math.sqrt(len(times))


def _differences(times: Sequence[int], first: Sequence[int]) -> list[int]:
    return [time - bare for time, bare in zip(times, first, strict=True)]


def in_turn(repeats: int, *timers: Timer) -> list[list[int]]:
    """Return the times of each timer after one warm-up.

    Each round has an order of its own, so that none always runs behind the same one and meets
    the state that it leaves behind.
    """
    for timer in timers:
        timer()
    gc.collect()
    times: list[list[int]] = [[] for _ in timers]
    turns = list(range(len(timers)))
    random = Random(SEED)
    for _ in range(repeats):
        random.shuffle(turns)
        for turn in turns:
            times[turn].append(timers[turn]())
    return times
