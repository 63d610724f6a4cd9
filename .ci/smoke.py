"""One round through the three systems, from wherever the package is installed."""

import vmmcy
from vmmcy import sim

GIB = 1 << 30

with vmmcy.VmmReservation(64 * GIB) as reservation:
    reservation.map(0, GIB)
    with vmmcy.BumpArena([(reservation.base, GIB)]) as arena:
        address = arena.allocate(3 << 20)
        bases, chunks, offsets = vmmcy.compute_graph_capture_bases(
            [(address, 3 << 20)], device_id=reservation.device_id
        )
        assert bases == [(reservation.base, GIB)], bases
        assert (chunks, offsets) == ([[0]], [0]), (chunks, offsets)
        arena.free(address, 3 << 20)
assert not any(sim.live().values()), sim.live()
print(f"vmmcy {vmmcy.__version__} works: {vmmcy.__file__}")
