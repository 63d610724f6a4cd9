"""The engine's names with a real torch: tensors at addresses, pools over a stub."""

import gc
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch_help
from sim_helpers import environment

torch = torch_help.cuda_torch()

from vmmcy.arena import BumpArena  # noqa: E402
from vmmcy.reservation import VmmReservation as Reservation  # noqa: E402
from vmmcy.sglang import (  # noqa: E402
    BumpArenaStub,
    VmmReservation,
    get_device_granularity,
    make_device_allocation_prop,
    tensor_from_pointer,
)
from vmmcy.torch.allocator import pluggable_allocator  # noqa: E402
from vmmcy.torch.tensor import tensor_at  # noqa: E402

MIB = 1 << 20
G = get_device_granularity(0)
SPACE_BYTES = 256 * MIB


@pytest.fixture
def reservation():
    reservation = VmmReservation(SPACE_BYTES, make_device_allocation_prop(0), 0)
    yield reservation
    torch.cuda.synchronize()
    reservation.close()


def give_back():
    """Have torch return every segment that no tensor uses."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


# ---- tensors at addresses


def test_a_tensor_may_lie_where_no_memory_is_yet(reservation):
    tensor = tensor_from_pointer(reservation.base, 4 * G, device_id=0)
    assert (tensor.dtype, tuple(tensor.shape)) == (torch.uint8, (4 * G,))
    assert (tensor.device, tensor.data_ptr()) == (torch.device("cuda:0"), reservation.base)
    reservation.map(0, G, retain_handle=False)
    tensor[:G] = 7
    assert (tensor[:G] == 7).all().item()
    reservation.map(G, 3 * G, retain_handle=False)
    tensor[G:] = 9
    assert tensor[G:].min().item() == 9


def test_a_captured_graph_reaches_memory_that_came_later(reservation):
    reservation.map(0, G, retain_handle=False)
    tensor = tensor_from_pointer(
        reservation.base, 2 * G, shape=(G // 2,), dtype=torch.float32, device_id=0
    )
    amount = torch.zeros((), device="cuda")
    back = tensor[G // 4 :]
    torch.zeros(4, device="cuda").fill_(1.0).add_(amount)  # loads the kernels
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        back.fill_(1.0)
        back.add_(amount)
    reservation.map(G, G, retain_handle=False)
    for expected in (3.0, 5.0):
        amount.fill_(expected - 1.0)
        graph.replay()
        torch.cuda.synchronize()
        assert (back == expected).all().item()
    assert back.data_ptr() == reservation.base + G


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool])
def test_any_dtype_and_shape(reservation, dtype):
    reservation.map(0, G, retain_handle=False)
    tensor = tensor_from_pointer(reservation.base, G, shape=(4, 8), dtype=dtype, device_id=0)
    source = torch.ones((4, 8), device="cuda").to(dtype)
    tensor.copy_(source)
    assert torch.equal(tensor.view(torch.uint8), source.view(torch.uint8))
    assert tensor.untyped_storage().nbytes() == G


def test_no_bytes_make_an_empty_tensor(reservation):
    assert tensor_from_pointer(reservation.base, 0, device_id=0).numel() == 0


def test_a_device_that_is_not_there_is_refused(reservation):
    with pytest.raises((RuntimeError, ValueError)):
        tensor_from_pointer(reservation.base, G, device_id=torch.cuda.device_count())


def test_a_reservation_lives_until_its_last_view_is_gone():
    reservation = Reservation(2 * G, device_id=0)
    alive = weakref.ref(reservation)
    reservation.map(0, 2 * G)
    tensor = tensor_at(reservation.base, (2, G // 4), torch.float32, "cuda", owner=reservation)
    del reservation
    view = tensor[1, ::3]
    del tensor
    gc.collect()
    assert alive() is not None
    view.fill_(2.0)
    assert (view == 2.0).all().item()
    torch.cuda.synchronize()
    alive().close()
    del view
    assert alive() is None


def test_views_may_be_dropped_by_any_thread():
    owners = [BumpArena() for _ in range(8)]
    alive = [weakref.ref(owner) for owner in owners]
    for owner in owners:
        owner.close()
    views = [[tensor_at(1 << 40, (4,), torch.float32, 0, owner=owner)] for owner in owners]
    del owners, owner
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(list.clear, views))
    gc.collect()
    assert [owner() for owner in alive] == [None] * 8


# ---- pools over a stub


def test_tensors_of_a_pool_lie_in_the_extents(reservation):
    reservation.map(0, SPACE_BYTES, retain_handle=False)
    stub = BumpArenaStub()
    stub.set_extents([(reservation.base, SPACE_BYTES)])
    assert stub.allocator is stub.allocator
    pool = torch.cuda.MemPool(stub.allocator)
    with torch.cuda.use_mem_pool(pool):
        tensors = [torch.full((3 * MIB,), n, dtype=torch.uint8, device="cuda") for n in range(9)]
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(2 * SPACE_BYTES, dtype=torch.uint8, device="cuda")
    for number, tensor in enumerate(tensors):
        assert reservation.base <= tensor.data_ptr() < reservation.base + SPACE_BYTES
        assert (tensor == number).all().item()
    assert stub.freed_bytes == 0
    del tensors, tensor, pool
    give_back()
    assert stub.freed_bytes == stub.cursor_bytes > 0


def test_no_split_hands_the_stubs_addresses_on(reservation):
    stub = BumpArenaStub()
    stub.set_extents([(reservation.base, SPACE_BYTES)])
    stub.set_align(G)
    pool = torch.cuda.MemPool(stub.allocator, no_split=True)
    with torch.cuda.use_mem_pool(pool):
        tensors = [torch.empty(3 * MIB, dtype=torch.uint8, device="cuda") for _ in range(3)]
    offsets = [tensor.data_ptr() - reservation.base for tensor in tensors]
    assert offsets == [0, 20 * MIB, 40 * MIB]
    del tensors, pool
    give_back()


def test_eight_stubs_and_pools_at_once_from_eight_threads(reservation):
    reservation.map(0, SPACE_BYTES, retain_handle=False)
    share = SPACE_BYTES // 8

    def fill(number):
        base = reservation.base + number * share
        stub = BumpArenaStub()
        stub.set_extents([(base, share)])
        pool = torch.cuda.MemPool(stub.allocator)
        with torch.cuda.use_mem_pool(pool):
            tensor = torch.full((MIB,), number, dtype=torch.uint8, device="cuda")
        inside = base <= tensor.data_ptr() < base + share
        # Given out: torch aborts where a pool dies while any thread allocates in one.
        return inside and bool((tensor == number).all().item()), (tensor, pool, stub)

    with ThreadPoolExecutor(8) as threads:
        filled = list(threads.map(fill, range(8)))
    assert [is_right for is_right, _ in filled] == [True] * 8
    del filled
    give_back()


def test_an_allocator_keeps_its_entry_points():
    arena = BumpArena([(1 << 40, MIB)])
    allocator = pluggable_allocator(arena)
    entry_points = weakref.ref(arena.entry_points)
    arena.close()
    del arena
    gc.collect()
    assert entry_points() is not None
    with BumpArena([(1 << 40, MIB)]) as other:
        pluggable_allocator(other)
    del allocator
    gc.collect()
    assert entry_points() is None


AT_EXIT = """
import sys, torch
from vmmcy.sglang import BumpArenaStub, VmmReservation, make_device_allocation_prop

reservation = VmmReservation(64 << 20, make_device_allocation_prop(0), 0)
reservation.map(0, 64 << 20, retain_handle=False)
stub = BumpArenaStub()
stub.set_extents([(reservation.base, 64 << 20)])
pool = torch.cuda.MemPool(stub.allocator)
with torch.cuda.use_mem_pool(pool):
    tensor = torch.ones(4096, device="cuda")
torch.cuda.synchronize()
kept = {order}
{dropped}
print("end")
"""


@pytest.mark.parametrize(
    ("order", "dropped"),
    [
        ("(reservation, stub, pool, tensor)", ""),
        ("(tensor, pool, stub, reservation)", ""),
        ("tensor", "del stub, pool"),
        ("pool", "del stub, tensor"),
        ("pool", "del tensor, stub; import gc; gc.collect(); torch.cuda.empty_cache()"),
    ],
)
def test_the_interpreter_exits_in_any_order(order, dropped):
    seen = subprocess.run(
        [sys.executable, "-c", AT_EXIT.format(order=order, dropped=dropped)],
        env=environment(VMMCY_DRIVER="cuda"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (seen.returncode, seen.stdout) == (0, "end\n"), seen.stderr
