"""What the arena's tests share. Addresses are arithmetic: no memory is touched."""

import ctypes

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
BASE = 1 << 40

MALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)


def c_functions(entry_points):
    """The C malloc and free, called as torch does, with device 0 and the default stream."""
    malloc = MALLOC(entry_points.malloc_address)
    free = FREE(entry_points.free_address)
    return (
        lambda size_bytes, device=0: malloc(size_bytes, device, None),
        lambda address, size_bytes: free(address, size_bytes, 0, None),
    )


def fill(arena, size_bytes):
    """Allocate until nothing fits; return the addresses."""
    addresses = []
    while True:
        try:
            addresses.append(arena.allocate(size_bytes))
        except MemoryError:
            return addresses


MOST_LATE = 64  # frees still to come from extents of before, in any test that ends with free_all


def free_all(arena):
    """Free whatever is live: a free is counted for the extent that it lies in."""
    for extent in arena.extents:
        live, unchanged = arena.live_count, 0
        while live and unchanged <= MOST_LATE:
            arena.free(extent.base, 1)
            unchanged = unchanged + 1 if arena.live_count == live else 0
            live = arena.live_count
    assert (arena.live_count, arena.live_bytes) == (0, 0)


def assert_whole_space_is_there(arena):
    """Free all, then hand out every aligned byte again: nothing was lost on the way."""
    free_all(arena)
    arena.reclaim()
    arena.check_consistency()
    rooms = []
    for base, size_bytes, cursor in arena.extents:
        assert cursor == 0
        room = size_bytes - -base % arena.align
        rooms.append(max(room // arena.align, 0) * arena.align)
    freed = arena.freed_bytes
    for room in sorted(filter(None, rooms), reverse=True):
        arena.free(arena.allocate(room), room)
    assert arena.largest_free_bytes < arena.align
    assert arena.freed_bytes == freed + sum(rooms)
    assert arena.live_count == 0
    arena.check_consistency()
