"""The rooms that import torch: nothing outside this folder does.

They come with ``pip install vmmcy[torch]``. Importing this package alone loads none of
them, nor torch.
"""

import importlib
from typing import Any

# Where each public name lives: its room is loaded when the name is first used.
_ROOMS = {
    "ArenaPool": "pool",
    "GraphPoolBorrower": "borrowing",
    "KvArena": "kv_arena",
    "anyone_captures": "capture",
    "capture_scope": "capture",
    "free_runs": "graph_pool",
    "graph_inputs": "inputs",
    "mem_pool": "pool",
    "segment_bytes": "pool",
    "tensor_at": "tensor",
}

__all__ = list(_ROOMS)


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_ROOMS[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_ROOMS})
