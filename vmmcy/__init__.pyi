from vmmcy import arena as arena
from vmmcy import backed_bytes as backed_bytes
from vmmcy import backed_segments as backed_segments
from vmmcy import batches as batches
from vmmcy import bench as bench
from vmmcy import entry_points as entry_points
from vmmcy import errors as errors
from vmmcy import graph_capture as graph_capture
from vmmcy import handle_pool as handle_pool
from vmmcy import ledger as ledger
from vmmcy import properties as properties
from vmmcy import reservation as reservation
from vmmcy import sglang as sglang
from vmmcy import sim as sim
from vmmcy import torch as torch
from vmmcy._ranges import Mapping
from vmmcy._version import __version__
from vmmcy.arena import BumpArena, coalesce_contiguous
from vmmcy.backed_bytes import BackedBytes
from vmmcy.backed_segments import BackedSegments
from vmmcy.batches import commit_many, decommit_many
from vmmcy.entry_points import EntryPoints
from vmmcy.errors import (
    CudaDriverError,
    CudaDriverNotFoundError,
    CudaOutOfMemoryError,
)
from vmmcy.graph_capture import (
    GraphCaptureBases,
    compute_graph_capture_bases,
    is_vmm_pointer,
    pointer_in_allocation,
    resolve_graph_inputs,
)
from vmmcy.handle_pool import HandlePool
from vmmcy.ledger import live
from vmmcy.properties import (
    align_down,
    align_up,
    free_memory_bytes,
    get_allocation_granularity,
    get_device_granularity,
    make_device_allocation_prop,
    make_rw_access_desc,
)
from vmmcy.reservation import VmmReservation, check_map

__all__ = [
    "BackedBytes",
    "BackedSegments",
    "BumpArena",
    "CudaDriverError",
    "CudaDriverNotFoundError",
    "CudaOutOfMemoryError",
    "EntryPoints",
    "GraphCaptureBases",
    "HandlePool",
    "Mapping",
    "VmmReservation",
    "__version__",
    "align_down",
    "align_up",
    "check_map",
    "coalesce_contiguous",
    "commit_many",
    "compute_graph_capture_bases",
    "decommit_many",
    "free_memory_bytes",
    "get_allocation_granularity",
    "get_device_granularity",
    "is_vmm_pointer",
    "live",
    "make_device_allocation_prop",
    "make_rw_access_desc",
    "pointer_in_allocation",
    "resolve_graph_inputs",
]
