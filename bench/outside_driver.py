"""What of a map and unmap is not spent inside the driver, as JSON.

The driver's own time for a GiB scatters by more than all that a caller adds, so a total cannot
tell what that is. Here the process has `timed_driver.c` preloaded, which adds up the time inside
the driver's calls; what is left of each turn is the caller's. Writes nanoseconds: of each work
the quartiles of both parts, for the calls from C, for two Python calls that check nothing, and
for vmmcy. Usage: bench/outside_driver.py FILE
"""

import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vmmcy import HandlePool, VmmReservation
from vmmcy.bench import _floor
from vmmcy.bench.facts import device_in_use, facts_of
from vmmcy.bench.measure import Timer, in_turn, timed

DEVICE = 0
ROUNDS = 1_500
MIB = 1 << 20
PRELOADED = "LD_PRELOAD"
SOURCE = Path(__file__).with_name("timed_driver.c")


def run_preloaded(folder: Path) -> int:
    """Compile what is preloaded, and run this file again with it."""
    library = folder / "timed_driver.so"
    wheels = (place for entry in sys.path for place in Path(entry).glob("nvidia/*/include"))
    includes = [f"-I{place}" for place in (*wheels, "/usr/local/cuda/include")]
    flags = ["-O2", "-Wall", "-Werror", "-shared", "-fPIC", *includes]
    subprocess.run(["cc", *flags, "-o", library, SOURCE, "-ldl"], check=True)
    environment = {**os.environ, PRELOADED: str(library)}
    return subprocess.run([sys.executable, *sys.argv], env=environment, check=False).returncode


class Parts:
    """A timer whose times are kept in two parts: inside the driver's calls, and outside."""

    def __init__(self, timer: Timer, inside_ns: Callable[[], int]) -> None:
        self.timer = timer
        self.inside_ns = inside_ns
        self.inside: list[int] = []
        self.outside: list[int] = []

    def __call__(self) -> int:
        """Time once, and keep both parts."""
        before = self.inside_ns()
        elapsed = self.timer()
        inside = self.inside_ns() - before
        self.inside.append(inside)
        self.outside.append(elapsed - inside)
        return elapsed

    def figures(self) -> dict[str, list[float]]:
        """Return the quartiles of both parts, in nanoseconds, without the first, a warm-up."""
        return {
            "outside": statistics.quantiles(self.outside[1:], n=4),
            "inside": statistics.quantiles(self.inside[1:], n=4),
        }


def map_unmap_sides(reservation: VmmReservation, size_bytes: int) -> dict[str, Timer]:
    """Return the timers of a map and unmap whose handle is not kept."""
    base = reservation.base

    def unchecked() -> None:
        handle = _floor.map_unchecked(base, size_bytes, DEVICE, False)
        _floor.unmap_unchecked(base, size_bytes, handle)

    def ours() -> None:
        reservation.map(0, size_bytes, retain_handle=False)
        reservation.unmap(0, size_bytes)

    return {
        "from C": lambda: _floor.time_map_unmap(base, size_bytes, DEVICE, 1),
        "two Python calls that check nothing": timed(unchecked),
        "vmmcy": timed(ours),
    }


def commit_decommit(reservation: VmmReservation, size_bytes: int) -> dict[str, Timer]:
    """Return the timer of a commit and decommit."""

    def ours() -> None:
        reservation.commit(0, size_bytes)
        reservation.decommit(0, size_bytes)

    return {"vmmcy": timed(ours)}


def main() -> int:
    """Measure every work, and write what it took."""
    if PRELOADED not in os.environ:
        with tempfile.TemporaryDirectory() as folder:
            return run_preloaded(Path(folder))
    # A map without a context in use makes the driver set up the device anew each time.
    with device_in_use(DEVICE):
        result = {**facts_of(DEVICE), **measured()}
    Path(sys.argv[1]).write_text(json.dumps(result, indent=1) + "\n")
    return 0


def measured() -> dict[str, Any]:
    """Return what every work took, by its name."""
    inside_ns = ctypes.CDLL(None).timed_driver_ns
    inside_ns.restype = ctypes.c_int64
    small, large = 2 * MIB, 1024 * MIB
    with HandlePool(DEVICE, chunk_bytes=small, capacity_bytes=small) as pool:
        pool.prefill(small)
        works = {
            "map-unmap-2MiB": (small, None, map_unmap_sides),
            "map-unmap-1GiB": (large, None, map_unmap_sides),
            "commit-1GiB": (large, None, commit_decommit),
            "pool-2MiB": (small, pool, commit_decommit),
        }
        result = {}
        for name, (size_bytes, source, sides_of) in works.items():
            with VmmReservation(size_bytes, device_id=DEVICE, pool=source) as reservation:
                sides = {
                    side: Parts(timer, inside_ns)
                    for side, timer in sides_of(reservation, size_bytes).items()
                }
                in_turn(ROUNDS, *sides.values())
            result[name] = {side: parts.figures() for side, parts in sides.items()}
    return result


if __name__ == "__main__":
    sys.exit(main())
