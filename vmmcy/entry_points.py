"""The C functions that others call for memory of ours, as Python objects."""

from dataclasses import dataclass, field
from typing import Protocol, Self

from vmmcy import _arena


class Hold(Protocol):
    """What keeps a slot from other use while it lives."""

    @property
    def is_ours(self) -> bool:
        """False in a process that was forked since."""

    @property
    def outstanding(self) -> int:
        """How much may still be freed through the slot."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class EntryPoints:
    """The C functions of an arena or of backed segments, as addresses and as a library's symbols.

    ``void *malloc(size_t size_bytes, int device, void *stream)`` gives NULL when
    nothing fits; ``void free(void *address, size_t size_bytes, int device, void *stream)``
    ignores what is not of there. Neither needs the GIL or raises.

    Keep this object for as long as anything may call them: while it lives, they
    serve no other. After the close they hand out nothing.

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
    _hold: Hold | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of_slot(cls, slot: int, hold: Hold | None) -> Self:
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
