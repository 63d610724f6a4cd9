"""The CUDA virtual-memory layer for LLM serving engines.

Three systems: `BumpArena` places tensors on memory that the engine owns,
`compute_graph_capture_bases` and `resolve_graph_inputs` say which allocations a
pointer spans, and `VmmReservation` owns address space and what backs it.
"""

from vmmcy import _loader

_loader.select_driver()

from vmmcy import _limits  # noqa: E402, F401 - a bad limit is refused at import
from vmmcy._lazy_names import lazy_names  # noqa: E402
from vmmcy._version import __version__  # noqa: E402

# Where each public name lives: its room is loaded when the name is first used, so that an
# import costs what is used of it. `__init__.pyi` says the same to type checkers.
_ROOMS = {
    "BackedBytes": "backed_bytes",
    "BackedSegments": "backed_segments",
    "BumpArena": "arena",
    "CudaDriverError": "errors",
    "CudaDriverNotFoundError": "errors",
    "CudaOutOfMemoryError": "errors",
    "EntryPoints": "entry_points",
    "GraphCaptureBases": "graph_capture",
    "HandlePool": "handle_pool",
    "Mapping": "_ranges",
    "VmmReservation": "reservation",
    "align_down": "properties",
    "align_up": "properties",
    "check_map": "reservation",
    "coalesce_contiguous": "arena",
    "commit_many": "batches",
    "compute_graph_capture_bases": "graph_capture",
    "decommit_many": "batches",
    "free_memory_bytes": "properties",
    "get_allocation_granularity": "properties",
    "get_device_granularity": "properties",
    "is_vmm_pointer": "graph_capture",
    "live": "ledger",
    "make_device_allocation_prop": "properties",
    "make_rw_access_desc": "properties",
    "pointer_in_allocation": "graph_capture",
    "resolve_graph_inputs": "graph_capture",
}

# Modules of the package that can be named after `import vmmcy` alone, whatever was used before.
_MODULES = {
    "bench",
    "sglang",
    "sim",
    "torch",
    *(room for room in _ROOMS.values() if not room.startswith("_")),
}

__all__ = ["__version__", *_ROOMS]

__getattr__, __dir__ = lazy_names(__name__, _ROOMS, _MODULES)
