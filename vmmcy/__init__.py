"""The CUDA virtual-memory layer for LLM serving engines.

Three systems: `BumpArena` places tensors on memory that the engine owns,
`compute_graph_capture_bases` and `resolve_graph_inputs` say which allocations a
pointer spans, and `VmmReservation` owns address space and what backs it.
"""

from vmmcy import _loader

_loader.select_driver()

from vmmcy._ranges import Mapping  # noqa: E402
from vmmcy._version import __version__  # noqa: E402
from vmmcy.arena import BumpArena, coalesce_contiguous  # noqa: E402
from vmmcy.entry_points import EntryPoints  # noqa: E402
from vmmcy.errors import (  # noqa: E402
    CudaDriverError,
    CudaDriverNotFoundError,
    CudaOutOfMemoryError,
)
from vmmcy.graph_capture import (  # noqa: E402
    GraphCaptureBases,
    compute_graph_capture_bases,
    is_vmm_pointer,
    pointer_in_allocation,
    resolve_graph_inputs,
)
from vmmcy.properties import (  # noqa: E402
    align_down,
    align_up,
    get_allocation_granularity,
    get_device_granularity,
    make_device_allocation_prop,
    make_rw_access_desc,
)
from vmmcy.reservation import VmmReservation, check_map  # noqa: E402

__all__ = [
    "BumpArena",
    "CudaDriverError",
    "CudaDriverNotFoundError",
    "CudaOutOfMemoryError",
    "EntryPoints",
    "GraphCaptureBases",
    "Mapping",
    "VmmReservation",
    "__version__",
    "align_down",
    "align_up",
    "check_map",
    "coalesce_contiguous",
    "compute_graph_capture_bases",
    "get_allocation_granularity",
    "get_device_granularity",
    "is_vmm_pointer",
    "make_device_allocation_prop",
    "make_rw_access_desc",
    "pointer_in_allocation",
    "resolve_graph_inputs",
]
