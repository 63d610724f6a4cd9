def capsule(
    address: int, size_bytes: int, device_type: int, device_index: int, owner: object
) -> object:
    """Return a DLPack capsule of bytes at `address`; it and its takers keep `owner`."""
