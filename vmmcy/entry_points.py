"""The C functions that others call for an arena's memory, as Python objects."""

from dataclasses import dataclass, field
from typing import Self

from vmmcy import _arena


@dataclass(frozen=True, slots=True, weakref_slot=True)
class EntryPoints:
    """The C functions that serve an arena, as addresses and as symbols of a library.

    ``void *malloc(size_t size_bytes, int device, void *stream)`` gives NULL when
    nothing fits; ``void free(void *address, size_t size_bytes, int device, void *stream)``
    ignores what is not the arena's. Neither needs the GIL, raises, or takes memory.

    Keep this object for as long as anything may call them: while it lives, they
    serve no other arena. After the arena is closed they hand out nothing.

    Parameters
    ----------
    malloc_address, free_address : int
        Addresses of the functions, as ``torch._C._cuda_customAllocator`` takes them.
    library_path : str
        The shared library that holds them.
    malloc_symbol, free_symbol : str
        Their names in it, as ``torch.cuda.memory.CUDAPluggableAllocator`` takes them.
    """

    malloc_address: int
    free_address: int
    library_path: str
    malloc_symbol: str
    free_symbol: str
    _hold: _arena.ArenaHold | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of_slot(cls, slot: int, hold: _arena.ArenaHold | None) -> Self:
        """Return the entry points of a slot, kept from other use by `hold`."""
        malloc_address, free_address = _arena.entry_point_addresses(slot)
        return cls(
            malloc_address,
            free_address,
            _arena.LIBRARY_PATH,
            f"vmmcy_malloc_{slot}",
            f"vmmcy_free_{slot}",
            hold,
        )
