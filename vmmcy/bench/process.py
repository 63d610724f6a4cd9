"""Rows ``gil`` and ``import``: what vmmcy costs the Python around it."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean

from vmmcy import VmmReservation
from vmmcy.bench import _floor, plain_python
from vmmcy.bench.computing import COMPUTING_THREADS, KEPT_SPEED, Computing
from vmmcy.bench.measure import Check, Row, medians

CHUNK_BYTES = 2 << 20
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
