"""Types of the extents as a caller gave them."""

from typing import Any, final

@final
class ExtentList:
    count: int
    fault: str | None
    def __init__(self, extents: Any) -> None: ...
    def check(self, limit: int, already: int = 0) -> None: ...
    def coalesce(self) -> list[tuple[int, int]]: ...
