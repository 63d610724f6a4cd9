"""The rooms that import torch: nothing outside this folder does.

They come with ``pip install vmmcy[torch]``. Importing this package alone loads none of
them, nor torch.
"""

from vmmcy._lazy_names import lazy_names

# Where each public name lives: its room is loaded when the name is first used.
_ROOMS = {
    "ArenaPool": "pool",
    "BackedPool": "backed_pool",
    "GraphPoolBorrower": "borrowing",
    "KvArena": "kv_arena",
    "anyone_captures": "capture",
    "capture_scope": "capture",
    "free_runs": "graph_pool",
    "graph_inputs": "inputs",
    "mem_pool": "pool",
    "segment_bytes": "segments",
    "tensor_at": "tensor",
}

__all__ = list(_ROOMS)

__getattr__, __dir__ = lazy_names(__name__, _ROOMS)
