"""How much memory a piece of work takes at its peak, from what the kernel counts."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Result = TypeVar("Result")
PROCESS = Path("/proc/self")


def peak_bytes_of(work: Callable[[], Result]) -> tuple[int, Result]:
    """Run `work`; the bytes by which resident memory rose at most meanwhile, and the result.

    Source: ``/proc/pid/clear_refs`` (5 resets the peak) and ``VmHWM``, proc(5).
    """
    (PROCESS / "clear_refs").write_text("5")
    before = _status_bytes("VmRSS")
    result = work()
    return max(_status_bytes("VmHWM") - before, 0), result


def _status_bytes(field: str) -> int:
    for line in (PROCESS / "status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) << 10
    raise LookupError(f"{PROCESS / 'status'} has no {field}")
