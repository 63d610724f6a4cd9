"""sglang's own names for virtual memory, served by vmmcy: an engine switches by one import.

The names, signatures and texts are those of ``sglang.srt.utils.cuda_vmm_utils`` at commit
0132848349; ``docs/sglang.md`` lists where these are stricter. What needs torch loads it
when it is called.
"""

from vmmcy.properties import align_down, align_up, get_allocation_granularity
from vmmcy.sglang.arena import BumpArenaStub
from vmmcy.sglang.handle_types import (
    allocation_handle_type_name,
    get_device_allocation_handle_type,
    get_device_granularity,
    make_device_allocation_prop,
)
from vmmcy.sglang.pointers import (
    compute_graph_capture_bases,
    is_vmm_pointer,
    make_rw_access_desc,
    tensor_from_pointer,
)
from vmmcy.sglang.reservation import VmmReservation
from vmmcy.sglang.status import check_drv

__all__ = [
    "BumpArenaStub",
    "VmmReservation",
    "align_down",
    "align_up",
    "allocation_handle_type_name",
    "check_drv",
    "compute_graph_capture_bases",
    "get_allocation_granularity",
    "get_device_allocation_handle_type",
    "get_device_granularity",
    "is_vmm_pointer",
    "make_device_allocation_prop",
    "make_rw_access_desc",
    "tensor_from_pointer",
]
