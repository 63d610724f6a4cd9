from vmmcy._reservation import ReservationCore

def commit_many(ranges: list[tuple[ReservationCore, int, int]], chunk_bytes: int | None) -> int:
    """Back every hole of all ranges, or none; return the bytes newly backed."""

def decommit_many(ranges: list[tuple[ReservationCore, int, int]]) -> int:
    """Take away the mappings wholly inside any range, or none; return their bytes."""
