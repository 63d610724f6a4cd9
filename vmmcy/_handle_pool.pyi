class PoolCore:
    """One pool of handles; errors are those of `vmmcy.handle_pool.HandlePool`."""

    packed_prop: bytes
    device_id: int
    chunk_bytes: int
    capacity_bytes: int
    scrub: bool

    def __init__(
        self, prop: bytes, device_id: int, chunk_bytes: int, capacity_bytes: int, scrub: bool
    ) -> None: ...
    @property
    def closed(self) -> bool:
        """Whether everything is released."""

    @property
    def close_only(self) -> bool:
        """Whether a failure left what only `close` can release."""

    @property
    def inherited(self) -> bool:
        """Whether it was made before this process was forked."""

    def check_open(self, method: str) -> None:
        """Raise what `method` would on a pool in this state."""

    def unused(self, method: str) -> int:
        """Count the handles that wait for use."""

    def prefill(self, count: int) -> int:
        """Make handles until `count` wait for use, or none; return how many were made."""

    def trim(self, kept: int) -> int:
        """Release unused handles beyond `kept`; return how many were released."""

    def close(self) -> None:
        """Release everything, unless handles are in use."""
