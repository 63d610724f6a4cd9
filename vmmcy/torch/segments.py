"""What torch's caching allocator asks an allocator for: whole segments. Without torch."""

from vmmcy._arguments import unsigned
from vmmcy.properties import align_up

# Of torch's c10/cuda/CUDACachingAllocator.cpp: what it rounds requests to, and the segments it
# takes for small ones, for middling ones, and from there on.
ROUND_BYTES = 512
SMALL_BYTES = 1 << 20
SMALL_SEGMENT_BYTES = 2 << 20
MIDDLING_BYTES = 10 << 20
MIDDLING_SEGMENT_BYTES = 20 << 20
SEGMENT_ROUND_BYTES = 2 << 20


def segment_bytes(nbytes: int) -> int:
    """Return what torch asks a pool's arena for when a tensor finds no room in the pool.

    For capacity planning: with ``no_split`` each tensor takes this, without it tensors share.

    Parameters
    ----------
    nbytes : int
        Bytes of the tensor.

    Returns
    -------
    int
        2 MiB for up to 1 MiB, 20 MiB for less than 10 MiB, else `nbytes` rounded up to 2 MiB; 0
        for 0, which torch never asks for. Torch rounds to 512 bytes first. So with torch's
        default settings; ``roundup_power2_divisions`` and its like ask for more.

    Raises
    ------
    TypeError
        `nbytes` is no integer.
    ValueError
        It is negative, or it or the answer does not fit in 64 bits.

    Source: ``c10/cuda/CUDACachingAllocator.cpp``.
    """
    nbytes = unsigned(nbytes, "nbytes")
    rounded = align_up(nbytes, ROUND_BYTES)
    if rounded == 0:
        return 0
    if rounded <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if rounded < MIDDLING_BYTES:
        return MIDDLING_SEGMENT_BYTES
    return align_up(rounded, SEGMENT_ROUND_BYTES)
