"""Real torch pools over an arena on memory that is really mapped: needs a GPU."""

import pytest
from arena_help import MIB

from vmmcy import _loader

if _loader.simulator_is_loaded():
    pytest.skip(
        "needs a real driver: torch does not start on the simulator", allow_module_level=True
    )
torch = pytest.importorskip("torch", reason="needs torch")
if not torch.cuda.is_available():
    pytest.skip("needs torch with a CUDA device", allow_module_level=True)

from vmmcy import BumpArena, VmmReservation  # noqa: E402

SPACE_BYTES = 256 * MIB


@pytest.fixture
def reservation():
    with VmmReservation(SPACE_BYTES, device_id=0) as reservation:
        reservation.commit(0, SPACE_BYTES)
        yield reservation


@pytest.fixture
def arena(reservation):
    with BumpArena([(reservation.base, SPACE_BYTES)], device_id=0) as arena:
        yield arena


def make_pool(arena):
    """A pool over the arena; a test drops it itself, since fixtures outlive their use."""
    entry_points = arena.entry_points
    return torch.cuda.MemPool(
        torch._C._cuda_customAllocator(entry_points.malloc_address, entry_points.free_address)
    )


def give_back():
    """Have torch return every segment that no tensor uses."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def test_tensors_lie_where_the_arena_says(arena, reservation):
    pool = make_pool(arena)
    with torch.cuda.use_mem_pool(pool):
        tensors = [
            torch.full((MIB,), number, dtype=torch.uint8, device="cuda") for number in range(20)
        ]
    for number, tensor in enumerate(tensors):
        assert reservation.base <= tensor.data_ptr() < reservation.base + SPACE_BYTES
        assert (tensor == number).all().item()
    assert arena.live_bytes > 0
    del tensors, tensor, pool
    give_back()
    assert arena.live_bytes == 0


def test_out_of_memory_is_torchs_own_and_a_smaller_request_works(arena):
    pool = make_pool(arena)
    with torch.cuda.use_mem_pool(pool):
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(2 * SPACE_BYTES, dtype=torch.uint8, device="cuda")
        tensor = torch.ones(SPACE_BYTES // 2, dtype=torch.uint8, device="cuda")
    assert tensor.sum().item() == SPACE_BYTES // 2
    del tensor, pool
    give_back()
    assert arena.live_bytes == 0


def test_every_segment_comes_back_and_the_space_is_used_again(arena, reservation):
    for _ in range(3):
        pool = make_pool(arena)
        with torch.cuda.use_mem_pool(pool):
            tensor = torch.ones(200 * MIB, dtype=torch.uint8, device="cuda")
        assert tensor.data_ptr() == reservation.base
        del tensor, pool
        give_back()
        assert (arena.live_bytes, arena.ignored_frees) == (0, 0)
        assert arena.reclaim() == 200 * MIB


def test_a_pool_by_library_and_symbol(arena, reservation):
    entry_points = arena.entry_points
    allocator = torch.cuda.memory.CUDAPluggableAllocator(
        entry_points.library_path, entry_points.malloc_symbol, entry_points.free_symbol
    )
    pool = torch.cuda.MemPool(allocator.allocator())
    with torch.cuda.use_mem_pool(pool):
        tensor = torch.ones(MIB, dtype=torch.uint8, device="cuda")
    assert reservation.base <= tensor.data_ptr() < reservation.base + SPACE_BYTES
    del tensor, pool
    give_back()


def test_a_pool_outlives_its_arena(reservation):
    arena = BumpArena([(reservation.base, SPACE_BYTES)], device_id=0)
    pool = make_pool(arena)
    with torch.cuda.use_mem_pool(pool):
        kept = torch.ones(MIB, dtype=torch.uint8, device="cuda")
    arena.close(force=True)
    with torch.cuda.use_mem_pool(pool), pytest.raises(torch.OutOfMemoryError):
        torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    assert kept.sum().item() == MIB
    del kept, pool
    give_back()
    with BumpArena([(reservation.base, SPACE_BYTES)]) as other:
        assert other.allocate(SPACE_BYTES) == reservation.base
        other.free(reservation.base, SPACE_BYTES)
