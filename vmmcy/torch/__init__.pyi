from vmmcy.torch.backed_pool import BackedPool
from vmmcy.torch.borrowing import GraphPoolBorrower
from vmmcy.torch.capture import anyone_captures, capture_scope
from vmmcy.torch.graph_pool import free_runs
from vmmcy.torch.inputs import graph_inputs
from vmmcy.torch.kv_arena import KvArena
from vmmcy.torch.pool import ArenaPool, mem_pool
from vmmcy.torch.segments import segment_bytes
from vmmcy.torch.tensor import tensor_at

__all__ = [
    "ArenaPool",
    "BackedPool",
    "GraphPoolBorrower",
    "KvArena",
    "anyone_captures",
    "capture_scope",
    "free_runs",
    "graph_inputs",
    "mem_pool",
    "segment_bytes",
    "tensor_at",
]
