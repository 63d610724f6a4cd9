from collections.abc import Callable, Iterable
from typing import Any

from vmmcy.reservation import VmmReservation

Range = tuple[VmmReservation, int, int]

def commit_many(
    ranges: Iterable[Range], checked: Callable[[int, Any], Range], chunk_bytes: int | None
) -> int:
    """Back every hole of all ranges, or none; return the bytes newly backed."""

def decommit_many(ranges: Iterable[Range], checked: Callable[[int, Any], Range]) -> int:
    """Take away the mappings wholly inside any range, or none; return their bytes."""
