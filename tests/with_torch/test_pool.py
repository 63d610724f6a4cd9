"""Torch's memory pools over an arena on memory that is really mapped."""

import copy
import gc
import os
import pickle
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch_help
from arena_help import MIB
from sim_helpers import environment

torch = torch_help.cuda_torch()

from vmmcy import BumpArena, VmmReservation  # noqa: E402
from vmmcy.torch import mem_pool, segment_bytes  # noqa: E402

SPACE_BYTES = 256 * MIB
SETTINGS = "PYTORCH_CUDA_ALLOC_CONF"
EXPANDABLE = "expandable_segments:True"


@pytest.fixture
def reservation():
    with VmmReservation(SPACE_BYTES, device_id=0) as reservation:
        reservation.commit(0, SPACE_BYTES)
        yield reservation
        torch.cuda.synchronize()


@pytest.fixture
def arena(reservation):
    with BumpArena([(reservation.base, SPACE_BYTES)], device_id=0) as arena:
        yield arena
        give_back()


def give_back():
    """Have torch return every segment that no tensor uses."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def filled(size_bytes, number=1):
    return torch.full((size_bytes,), number, dtype=torch.uint8, device="cuda")


def is_inside(tensor, reservation):
    end = tensor.data_ptr() + tensor.nbytes
    return reservation.base <= tensor.data_ptr() and end <= reservation.base + reservation.size


def test_tensors_lie_inside_and_keep_their_data(arena, reservation):
    pool = mem_pool(arena)
    assert pool.arena is arena
    with torch.cuda.use_mem_pool(pool):
        tensors = [filled(MIB // 2 << number % 4, number) for number in range(40)]
    outside = filled(MIB, 99)
    assert not is_inside(outside, reservation)
    for number, tensor in enumerate(tensors):
        assert is_inside(tensor, reservation), number
        assert (tensor == number).all().item(), number
    assert arena.live_bytes > 0
    del tensors, tensor, pool
    give_back()
    assert (arena.live_bytes, arena.live_count, arena.ignored_frees) == (0, 0, 0)


@pytest.mark.parametrize("nbytes", [1, MIB, MIB + 1, 10 * MIB - 512, 10 * MIB - 511, 21 * MIB + 1])
@pytest.mark.parametrize("no_split", [False, True])
def test_torch_asks_for_what_segment_bytes_says(arena, nbytes, no_split):
    pool = mem_pool(arena, no_split=no_split)
    with torch.cuda.use_mem_pool(pool):
        tensor = filled(nbytes)
    assert arena.live_bytes == segment_bytes(nbytes)
    assert arena.live_count == 1
    del tensor, pool


def test_without_splits_each_tensor_has_a_segment(arena, reservation):
    taken = []
    for no_split in (False, True):
        before = arena.live_count
        pool = mem_pool(arena, no_split=no_split)
        with torch.cuda.use_mem_pool(pool):
            tensors = [filled(3 * MIB) for _ in range(3)]
        taken.append(arena.live_count - before)
        del tensors, pool
    assert taken == [1, 3]


def test_out_of_memory_is_torchs_own_and_a_smaller_request_works(arena):
    pool = mem_pool(arena)
    with torch.cuda.use_mem_pool(pool):
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(2 * SPACE_BYTES, dtype=torch.uint8, device="cuda")
        tensor = filled(SPACE_BYTES // 2)
    assert tensor.sum().item() == SPACE_BYTES // 2
    del tensor, pool
    give_back()
    assert arena.live_bytes == 0


def test_every_segment_comes_back_and_the_space_is_used_again(arena, reservation):
    for round_number in range(3):
        pool = mem_pool(arena)
        with torch.cuda.use_mem_pool(pool):
            tensor = filled(200 * MIB)
        assert tensor.data_ptr() == reservation.base, round_number
        del tensor, pool
        give_back()
        assert (arena.live_bytes, arena.ignored_frees) == (0, 0), round_number
        assert arena.reclaim() == 200 * MIB, round_number


def test_emptying_the_cache_returns_the_segments_of_a_living_pool(arena):
    pool = mem_pool(arena)
    with torch.cuda.use_mem_pool(pool):
        kept, dropped = filled(30 * MIB), filled(40 * MIB)
    assert arena.live_bytes == 70 * MIB
    del dropped
    give_back()
    assert arena.live_bytes in (30 * MIB, 70 * MIB)  # some torches keep a living pool's segments
    assert kept.sum().item() == 30 * MIB
    del kept, pool
    give_back()
    assert arena.live_bytes == 0


def test_an_arena_whose_segments_are_out_is_not_closed(arena):
    pool = mem_pool(arena)
    with torch.cuda.use_mem_pool(pool):
        tensor = filled(30 * MIB)
    del pool
    give_back()
    with pytest.raises(RuntimeError, match=f"^BumpArena.close: {30 * MIB} bytes in 1 alloca"):
        arena.close()
    assert tensor.sum().item() == 30 * MIB
    del tensor
    give_back()
    arena.close()


def test_a_pool_is_made_once_and_never_copied(arena):
    pool = mem_pool(arena)
    for act in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="^an ArenaPool cannot be copied or pickled: make"):
            act(pool)
    with pytest.raises(RuntimeError, match=r"^ArenaPool.__init__ on one that was made"):
        pool.__init__(arena, pool._allocator, False)


def test_a_pool_keeps_its_arena(reservation):
    arena = BumpArena([(reservation.base, SPACE_BYTES)])
    alive = weakref.ref(arena)
    pool = mem_pool(arena)
    del arena
    gc.collect()
    with torch.cuda.use_mem_pool(pool):
        tensor = filled(MIB)
    assert is_inside(tensor, reservation)
    del tensor
    arena = pool.arena
    del pool
    give_back()
    assert arena.live_bytes == 0
    arena.close()
    del arena
    gc.collect()
    assert alive() is None


def test_a_pool_outlives_its_arena(reservation):
    arena = BumpArena([(reservation.base, SPACE_BYTES)], device_id=0)
    pool = mem_pool(arena)
    with torch.cuda.use_mem_pool(pool):
        kept = filled(MIB)
    arena.close(force=True)
    with torch.cuda.use_mem_pool(pool), pytest.raises(torch.OutOfMemoryError):
        torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    assert kept.sum().item() == MIB
    del kept, pool, arena
    give_back()
    with BumpArena([(reservation.base, SPACE_BYTES)]) as other:
        assert other.allocate(SPACE_BYTES) == reservation.base
        other.free(reservation.base, SPACE_BYTES)


def test_a_graph_that_is_captured_in_the_pool_replays(arena, reservation):
    pool = mem_pool(arena)
    source = torch.zeros(MIB, device="cuda")
    source.add(1).mul_(2)  # loads the kernels
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool.id):
        result = source.add(1).mul_(2)
    assert is_inside(result, reservation)
    for value in (3.0, 5.0):
        source.fill_(value)
        graph.replay()
        assert (result == 2 * (value + 1)).all().item()
    del result, graph, pool
    give_back()
    assert arena.live_bytes == 0


def test_a_side_stream_gets_a_segment_of_its_own(arena, reservation):
    pool = mem_pool(arena)
    with torch.cuda.use_mem_pool(pool):
        tensors = [filled(MIB)]
        with torch.cuda.stream(torch.cuda.Stream()):
            tensors.append(filled(MIB))
    torch.cuda.synchronize()
    assert arena.live_count == 2
    assert all(is_inside(tensor, reservation) for tensor in tensors)
    del tensors, pool


def test_eight_arenas_and_pools_at_once_from_eight_threads(reservation):
    share = SPACE_BYTES // 8
    bases = [reservation.base + number * share for number in range(8)]
    arenas = [BumpArena([(base, share)], device_id=0) for base in bases]

    def use(number):
        pool = mem_pool(arenas[number])
        with torch.cuda.use_mem_pool(pool):
            tensors = [filled(MIB, number * 16 + turn) for turn in range(8)]
        base = bases[number]
        inside = all(base <= tensor.data_ptr() < base + share for tensor in tensors)
        same = [(t == number * 16 + turn).all().item() for turn, t in enumerate(tensors)]
        # Given out: torch aborts where a pool dies while any thread allocates in one.
        return (inside, same), (tensors, pool)

    with ThreadPoolExecutor(8) as threads:
        for _ in range(4):
            used = list(threads.map(use, range(8)))
            assert [is_right for is_right, _ in used] == [(True, [True] * 8)] * 8
            del used
            give_back()
            assert [arena.live_bytes for arena in arenas] == [0] * 8
            for arena in arenas:
                arena.reclaim()
    for arena in arenas:
        arena.close()


def test_an_arena_of_another_device_is_refused(reservation):
    with BumpArena([(reservation.base, SPACE_BYTES)], device_id=99) as arena:
        with pytest.raises(ValueError, match="is on device 99, but torch sees"):
            mem_pool(arena)
        assert arena.live_count == 0


# ---- in processes of their own


def run(code, **variables):
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environment(VMMCY_DRIVER="cuda", **variables),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


REFUSED = """
import vmmcy
from vmmcy.torch import mem_pool
with vmmcy.BumpArena([(1 << 40, 1 << 30)]) as arena:
    try:
        mem_pool(arena)
    except RuntimeError as error:
        print(error)
"""


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({SETTINGS: "backend:cudaMallocAsync"}, "allocator backend is 'cudaMallocAsync'"),
        ({"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, "PYTORCH_NO_CUDA_MEMORY_CACHING=1 has torch"),
    ],
)
def test_a_torch_that_goes_past_the_pool_is_told(variables, text):
    seen = run(REFUSED, **variables)
    assert seen.stdout.startswith("mem_pool: "), seen.stderr
    assert text in seen.stdout


AT_EXIT = """
import gc, torch, vmmcy
from vmmcy.torch import mem_pool

reservation = vmmcy.VmmReservation(64 << 20, device_id=0)
reservation.commit(0, 64 << 20)
arena = vmmcy.BumpArena([(reservation.base, 64 << 20)])
pool = mem_pool(arena)
with torch.cuda.use_mem_pool(pool):
    tensor = torch.ones(4096, device="cuda")
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, pool=pool.id):
    result = tensor + 1
kept = {kept}
{dropped}
print("end")
"""
ORDERS = {
    "all": ("[reservation, arena, pool, tensor, graph, result]", ""),
    "all-reversed": ("[result, graph, tensor, pool, arena, reservation]", ""),
    "tensor": ("tensor", "del pool, arena, reservation, graph, result"),
    "pool": ("pool", "del tensor, arena, reservation, graph, result"),
    "graph": ("graph", "del pool, tensor, arena, reservation, result"),
    "collected": ("pool", "del tensor, graph, result; gc.collect(); torch.cuda.empty_cache()"),
    "cycle": ("[pool, tensor]", "kept.append(kept); del pool, tensor, arena, graph, result"),
}


@pytest.mark.parametrize("order", ORDERS)
def test_the_interpreter_exits_in_any_order(order):
    kept, dropped = ORDERS[order]
    seen = run(AT_EXIT.format(kept=kept, dropped=dropped))
    assert (seen.returncode, seen.stdout) == (0, "end\n"), seen.stderr


@pytest.mark.skipif(EXPANDABLE in os.environ.get(SETTINGS, ""), reason="this is that run")
def test_all_of_this_with_expandable_segments():
    deprecated = f"ignore:{SETTINGS} is deprecated"
    options = ("-q", "-p", "no:cacheprovider", "-W", deprecated, "-k", "not exits and not told")
    seen = subprocess.run(
        [sys.executable, "-m", "pytest", *options, __file__],
        env=environment(VMMCY_DRIVER="cuda", **{SETTINGS: EXPANDABLE}),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert seen.returncode == 0, seen.stdout[-4000:] + seen.stderr[-2000:]
    assert " passed" in seen.stdout
