"""A decode loop over a `KvArena` and captured graphs gives the tokens of plain torch."""

import pytest
import torch_help

torch = torch_help.cuda_torch()

from decode import HEAD_DIM, HEADS, LAYERS, TOKEN_BYTES, make_decoder, step  # noqa: E402

from vmmcy import free_memory_bytes, get_device_granularity  # noqa: E402
from vmmcy.torch import KvArena  # noqa: E402

MOST_TOKENS = 1 << 16  # 2 GiB for each cache, which is never backed
BOUNDS = (64, 128, 192)  # a graph for each: one granule more of every cache
CACHES = 2 * LAYERS


@pytest.fixture
def decoder():
    with torch.no_grad():
        yield make_decoder()


def plain_tokens(decoder):
    """Decode with caches that are ordinary tensors, each step launched by itself."""
    shape = (BOUNDS[-1], HEADS, HEAD_DIM)
    caches = [torch.zeros(shape, device="cuda") for _ in range(CACHES)]
    decoder.start()
    tokens = []
    for bound in BOUNDS:
        while decoder.place.item() < bound:
            step(decoder, caches, bound)
            tokens.append(decoder.token.item())
    return tokens


def test_the_tokens_are_those_of_plain_torch_and_memory_grows_by_the_cache_alone(decoder):
    expected = plain_tokens(decoder)  # and every kernel is loaded
    assert len(set(expected)) > 10, expected
    shape = (MOST_TOKENS, HEADS, HEAD_DIM)
    with KvArena([(shape, torch.float32)] * CACHES, 0) as arena:
        graphs = {}
        for bound in BOUNDS:
            graphs[bound] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graphs[bound]):
                step(decoder, arena.tensors, bound)
        assert arena.backed_bytes == 0
        decoder.start()
        torch.cuda.synchronize()
        tokens, start = [], None
        for bound in BOUNDS:
            before = free_memory_bytes(0)
            won = arena.ensure([bound * TOKEN_BYTES] * CACHES)
            assert won == CACHES * get_device_granularity(0), bound
            assert before - free_memory_bytes(0) == won, bound
            while len(tokens) < bound:
                graphs[bound].replay()
                tokens.append(decoder.token.item())
                if start is None:  # the first replay may have the driver load what the graph needs
                    start = free_memory_bytes(0) + arena.backed_bytes
        assert tokens == expected
        assert start - free_memory_bytes(0) == arena.backed_bytes
        del graphs
