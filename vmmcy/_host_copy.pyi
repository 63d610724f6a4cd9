"""Types of the pinned host buffer; what each operation means, ``_host_copy.pyx`` says."""

class HostBuffer:
    device_id: int
    size_bytes: int

    def __init__(self, device_id: int) -> None: ...
    def reserve(self, size_bytes: int) -> None:
        """Have at least so many bytes."""

    def release(self) -> None:
        """Give all of it back."""
