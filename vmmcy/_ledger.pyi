def held_of(device: int) -> dict[str, int]:
    """Return what is held of a device's, or of all devices for -1; `arenas` is not in it."""
