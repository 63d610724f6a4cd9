"""KV caches with memory behind them after the capture, on a real device."""

import gc
import re
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
import torch_help
from sim_helpers import environment

torch = torch_help.cuda_torch()

from vmmcy import (  # noqa: E402
    CudaOutOfMemoryError,
    HandlePool,
    free_memory_bytes,
    get_device_granularity,
)
from vmmcy.torch import KvArena, capture_scope  # noqa: E402

G = get_device_granularity(0)
ROW = G // 4  # floats of a granule
ROWS = 16
SHAPE = (ROWS, ROW)
WHOLE = (ROWS * G,) * 2


def graph_of(work):
    """Capture `work`, which must not run before."""
    gc.collect()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


@pytest.fixture
def arena():
    with KvArena([(SHAPE, torch.float32)] * 2, 0, chunk_bytes=2 * G) as arena:
        yield arena


@pytest.fixture
def free():
    """How much memory is free, once torch and the driver have taken theirs."""
    torch.ones((ROWS, ROW), device="cuda").add_(1).sum().item()
    torch.cuda.synchronize()
    return lambda: free_memory_bytes(0)


def state(arena):
    return arena.spans, arena.backed_bytes, arena._spans.reservation.mappings


def test_tensors_have_their_upper_bound_and_no_memory(free):
    before = free()
    with KvArena([((1 << 20, 1 << 16), torch.bfloat16), ((5,), torch.float64)], 0) as arena:
        first, second = arena.tensors
        assert (tuple(first.shape), first.dtype) == ((1 << 20, 1 << 16), torch.bfloat16)
        assert second.data_ptr() == first.data_ptr() + first.nbytes
        assert str(first.device) == str(second.device) == "cuda:0"
        assert (arena.backed_bytes, arena.spans) == (0, (0, 0))
        assert free() == before
    assert free() == before


def test_the_device_is_torchs_current_one_unless_told():
    with KvArena([(SHAPE, torch.float32)]) as arena:
        assert arena.device_id == torch.cuda.current_device()


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="^device_id 99 is not a visible device"):
        KvArena([(SHAPE, torch.float32)], 99)


def test_memory_grows_by_what_was_committed_and_nothing_else(arena, free):
    keys, values = arena.tensors
    start = free()
    for spans, backed in (((1, 0), G), ((3 * G, G + 1), 5 * G), ((ROWS * G, 3 * G), 19 * G)):
        before, held = free(), arena.backed_bytes
        assert arena.ensure(spans) == backed - held
        assert (arena.backed_bytes, arena.spans) == (backed, spans)
        assert before - free() == backed - held
    keys.fill_(3.0)
    values[:3].fill_(4.0)
    assert keys.min().item() == keys.max().item() == 3.0
    assert values[:3].min().item() == values[:3].max().item() == 4.0
    assert start - free() == arena.backed_bytes
    won = arena.shrink((2 * G, 0))
    assert won == 17 * G
    assert start - free() == arena.backed_bytes == 2 * G
    assert keys[:2].min().item() == 3.0
    arena.close()
    assert free() == start


def test_a_graph_reads_and_writes_pages_that_were_not_backed_at_capture(arena):
    keys, values = arena.tensors
    addresses = keys.data_ptr(), values.data_ptr()
    place = torch.zeros(1, dtype=torch.int64, device="cuda")
    row = torch.zeros((1, ROW), device="cuda")
    seen = torch.zeros((1, ROW), device="cuda")
    spare = torch.zeros(SHAPE, device="cuda")

    def work(keys=keys, values=values):
        keys.index_copy_(0, place, row)
        values.index_copy_(0, place, keys.index_select(0, place) + 1)
        seen.copy_(values.index_select(0, place))

    work(spare, spare)  # loads the kernels
    graph = graph_of(work)
    assert arena.backed_bytes == 0

    def replay(number, value):
        place.fill_(number)
        row.fill_(value)
        graph.replay()
        torch.cuda.synchronize()
        assert (seen == value + 1).all().item(), (number, value)
        assert (keys[number] == value).all().item(), (number, value)

    arena.ensure((4 * G, 4 * G))
    for number in range(4):
        replay(number, 10.0 + number)
    assert arena.shrink((2 * G, 2 * G)) == 4 * G
    replay(1, 21.0)
    assert (keys[0] == 10.0).all().item()
    arena.ensure((6 * G, 6 * G))
    for number in range(2, 6):
        replay(number, 30.0 + number)
    assert (keys[0] == 10.0).all().item()
    assert (keys[1] == 21.0).all().item()
    arena.finalize(WHOLE)
    for number in range(ROWS):
        replay(number, 50.0 + number)
    assert (keys.data_ptr(), values.data_ptr()) == addresses
    assert tuple(t.data_ptr() for t in arena.tensors) == addresses


def test_after_finalize_nothing_but_close_changes_the_memory(arena):
    arena.finalize((2 * G, G))
    before = state(arena)
    for name in ("ensure", "finalize", "shrink"):
        with pytest.raises(RuntimeError, match=f"^KvArena.{name} after finalize: "):
            getattr(arena, name)((0, 0))
    assert state(arena) == before


def test_out_of_memory_backs_nothing_and_less_works(free):
    rows = free() // G + 64
    with KvArena([((4, ROW), torch.float32), ((rows, ROW), torch.float32)], 0) as arena:
        arena.ensure((G, G))
        before, left = state(arena), free()
        for act in (arena.ensure, arena.finalize):
            with pytest.raises(CudaOutOfMemoryError, match="^cuMemCreate: ") as raised:
                act((4 * G, rows * G))
            assert not hasattr(raised.value, "__notes__")
            assert state(arena) == before
            assert free() == left
        arena.finalize((4 * G, 2 * G))
        for tensor, number in zip(arena.tensors, (4, 2), strict=True):
            tensor[:number].fill_(1.0)
            assert tensor[:number].min().item() == 1.0


def test_a_span_that_does_not_fit_is_refused_before_anything_is_backed(arena, free):
    before, left = state(arena), free()
    for spans in ((G, WHOLE[1] + 1), (G,), (G, -1)):
        with pytest.raises(ValueError, match="spans"):
            arena.ensure(spans)
    assert (state(arena), free()) == (before, left)


# ---- kernels and captures


LONG = 400_000_000  # clock ticks, some 200 ms


@pytest.mark.parametrize("act", ["shrink", "close"])
def test_memory_is_taken_away_only_when_the_kernels_are_done(arena, act):
    arena.ensure((4 * G, 0))
    arena.tensors[0][3].fill_(0.0)  # loads the kernels, which waits for the device
    torch.cuda._sleep(1)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(LONG)
        arena.tensors[0][3].fill_(1.0)
    assert not stream.query()
    arena.close() if act == "close" else arena.shrink((0, 0))
    assert stream.query()
    assert arena._spans.reservation.mapped_bytes == 0
    torch.cuda.synchronize()


def test_while_this_thread_captures_memory_comes_and_does_not_go(arena):
    keys, _ = arena.tensors
    refused = re.escape("KvArena: a graph is being captured, and waiting")
    arena.ensure((2 * G, 0))
    keys[0].fill_(0.0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        keys[3].fill_(5.0)
        for act in (lambda: arena.shrink((0, 0)), arena.close):
            with pytest.raises(RuntimeError, match=f"^{refused}"):
                act()
        assert arena.spans == (2 * G, 0)
        assert arena.ensure((4 * G, G)) == 3 * G
        assert free_memory_bytes(0) > 0
    graph.replay()
    assert (keys[3] == 5.0).all().item()
    assert arena.shrink((0, 0)) == 5 * G


def test_a_capture_of_another_thread_is_known_by_its_scope(arena):
    arena.ensure((2 * G, 0))
    with ThreadPoolExecutor(1) as thread, ExitStack() as stack:
        thread.submit(stack.enter_context, capture_scope()).result()
        with pytest.raises(RuntimeError, match="^KvArena: a graph is being captured"):
            arena.shrink((0, 0))
    assert arena.shrink((0, 0)) == 2 * G


def test_an_error_of_the_block_goes_before_that_of_the_closing():
    graph = torch.cuda.CUDAGraph()
    arena = KvArena([(SHAPE, torch.float32)], 0)
    arena.ensure((G,))
    with torch.cuda.graph(graph):
        torch.zeros(1, device="cuda")
        with pytest.raises(KeyError) as raised, arena:
            raise KeyError("block")
    assert raised.value.__notes__[0].startswith("and then the arena could not be closed: KvArena")
    assert not arena.closed
    arena.close()


# ---- the end


def test_a_view_keeps_the_addresses_and_the_memory():
    arena = KvArena([(SHAPE, torch.float32)], 0)
    arena.ensure((2 * G,))
    alive = weakref.ref(arena._spans.reservation)
    view = arena.tensors[0][1, ::3]
    del arena
    gc.collect()
    view.fill_(2.0)
    assert (view == 2.0).all().item()
    assert alive().mapped_bytes == 2 * G
    with pytest.warns(ResourceWarning, match="was dropped without close"):
        del view
    assert alive() is None


def test_after_close_nothing_is_left(free):
    before = free()
    arena = KvArena([(SHAPE, torch.float32)] * 2, 0)
    arena.ensure(WHOLE)
    arena.close()
    arena.close()
    assert arena.closed
    assert free() == before
    for act in (lambda: arena.tensors, lambda: arena.ensure((0, 0)), lambda: arena.shrink((0, 0))):
        with pytest.raises(RuntimeError, match="after close$"):
            act()


AT_EXIT = """
import torch
from vmmcy.torch import KvArena

arena = KvArena([((8, 1 << 19), torch.float32)] * 2, 0)
arena.ensure((4 << 21, 1 << 21))
keys, values = arena.tensors
keys[0].fill_(1.0)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    keys[1].fill_(2.0)
graph.replay()
torch.cuda._sleep(100_000_000)
kept = {kept}
del {dropped}
print("end")
"""


@pytest.mark.parametrize(
    ("kept", "dropped"),
    [
        ("[arena, keys, graph]", "values"),
        ("[graph, keys, arena]", "values"),
        ("keys[3]", "arena, keys, values"),
        ("graph", "arena, keys, values"),
        ("arena", "keys, values, graph"),
    ],
)
def test_the_interpreter_exits_in_any_order(kept, dropped):
    seen = subprocess.run(
        [sys.executable, "-c", AT_EXIT.format(kept=kept, dropped=dropped)],
        env=environment(VMMCY_DRIVER="cuda"),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (seen.returncode, seen.stdout) == (0, "end\n"), seen.stderr


def test_whole_chunks_come_from_a_pool_of_handles_and_go_back():
    with HandlePool(0, chunk_bytes=G, capacity_bytes=4 * G) as handles:
        handles.prefill(4 * G)
        with KvArena([((2 * G,), torch.uint8)] * 2, pool=handles) as arena:
            assert (arena.chunk_bytes, arena.device_id) == (G, 0)
            arena.ensure([2 * G] * 2)
            assert handles.pooled_bytes == 0
            assert (arena.tensors[1].fill_(3) == 3).all().item()
            arena.shrink([0, 0])
            assert handles.pooled_bytes == 4 * G
