"""Torch pools whose memory is taken away and brought back, on a real device."""

import copy
import gc
import pickle
import signal
import subprocess
import sys
import threading

import pytest
import torch_help
from arena_help import GIB, MIB
from sim_helpers import environment

torch = torch_help.cuda_torch()

from vmmcy import (  # noqa: E402
    CudaOutOfMemoryError,
    HandlePool,
    VmmReservation,
    free_memory_bytes,
)
from vmmcy.torch import BackedPool, capture_scope, segment_bytes  # noqa: E402

SLEEP_CYCLES = 250_000_000  # about 0.15 s


@pytest.fixture
def pool():
    """A pool that is closed behind the test, whose tensors are gone by then."""
    pool = BackedPool()
    yield pool
    gc.collect()
    if pool.paused:
        pool.resume()
    pool.close()
    assert (pool.closed, pool.segment_count, pool.backed_bytes) == (True, 0, 0)


def in_pool(pool, make):
    with torch.cuda.use_mem_pool(pool):
        return make()


def numbers(count, start=0):
    return torch.arange(start, start + count, dtype=torch.int32, device="cuda")


def test_a_segment_is_backed_when_torch_asks(pool):
    tensor = in_pool(pool, lambda: numbers(5 * MIB))
    assert (pool.segment_count, pool.backed_bytes) == (1, segment_bytes(tensor.nbytes))
    assert pool._segments.segments[0][0] == tensor.data_ptr()
    assert torch.equal(tensor.cpu(), torch.arange(5 * MIB, dtype=torch.int32))


def test_pause_frees_the_device_and_resume_keeps_addresses_and_contents(pool):
    tensors = in_pool(pool, lambda: [numbers(MIB << k, k) for k in range(7)])
    inactive = in_pool(pool, lambda: numbers(64 * MIB))
    del inactive
    addresses = [tensor.data_ptr() for tensor in tensors]
    backed = pool.backed_bytes
    torch.cuda.synchronize()
    for _ in range(3):
        free = free_memory_bytes(0)  # torch's own cache grows in the first round
        pool.pause(keep="host")
        assert pool.backed_bytes == 0
        assert free_memory_bytes(0) >= free + backed - 64 * MIB
        pool.resume()
        assert [tensor.data_ptr() for tensor in tensors] == addresses
        for k, tensor in enumerate(tensors):
            assert torch.equal(tensor, numbers(MIB << k, k))
    active = sum(tensor.nbytes for tensor in tensors)
    assert pool.host_bytes == active  # free blocks are not copied
    pool.release_host()
    assert pool.host_bytes == 0


def test_it_is_made_once_and_never_copied(pool):
    for act in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="^a BackedPool cannot be copied or pickled: make"):
            act(pool)
    with pytest.raises(RuntimeError, match=r"^BackedPool.__init__ on one that was made"):
        pool.__init__(0)


def test_nothing_is_kept_where_nothing_was_asked_for(pool):
    tensor = in_pool(pool, lambda: numbers(MIB))
    pool.pause()
    assert pool.host_bytes == 0
    pool.resume()
    tensor.fill_(3)
    assert (tensor == 3).all().item()


def test_pools_pause_one_by_one(pool):
    with BackedPool() as other:
        mine, theirs = in_pool(pool, lambda: numbers(MIB)), in_pool(other, lambda: numbers(MIB))
        other.pause()
        mine.add_(1)
        assert torch.equal(mine, numbers(MIB, 1))
        other.resume()
        theirs.fill_(1)
        torch.cuda.synchronize()
        del theirs


def test_a_graph_captured_before_a_pause_replays_after_the_resume(pool):
    weight, total = in_pool(pool, lambda: (numbers(8 * MIB), torch.zeros(8 * MIB, device="cuda")))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool.id):
        intermediate = weight.float() * 2  # of the pool too
        total += intermediate
    graph.replay()
    for _ in range(3):
        pool.pause(keep="host")
        pool.resume()
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(total, weight.float() * 8)
    with pytest.raises(RuntimeError, match=r"^BackedPool\.close: a graph was captured into"):
        pool.close()
    del graph, intermediate, weight, total


def test_a_paused_pool_takes_no_entry(pool):
    tensor = in_pool(pool, lambda: numbers(MIB))
    pool.pause()
    with pytest.raises(RuntimeError, match="the pool is paused: resume it first"):
        in_pool(pool, lambda: numbers(1))
    with pytest.raises(RuntimeError, match="the pool is paused: resume it first"):
        torch.cuda.graph(torch.cuda.CUDAGraph(), pool=pool.id)
    other = numbers(MIB)  # torch's own memory serves as ever
    assert torch.equal(other, numbers(MIB))
    pool.resume()
    in_pool(pool, lambda: tensor.add_(numbers(MIB)))


def test_a_pool_that_is_being_allocated_from_is_not_paused(pool):
    inside, leave = threading.Event(), threading.Event()

    def enter():
        with torch.cuda.use_mem_pool(pool):
            inside.set()
            leave.wait()

    with torch.cuda.use_mem_pool(pool), pytest.raises(RuntimeError, match="is being allocated"):
        pool.pause()
    thread = threading.Thread(target=enter)
    thread.start()
    inside.wait()
    try:
        with pytest.raises(RuntimeError, match=r"^BackedPool\.pause: the pool is being allocated"):
            pool.pause()
    finally:
        leave.set()
        thread.join()
    assert pool.use_count() == 1
    pool.pause()


def test_while_anyone_captures_nothing_is_paused_and_the_capture_is_whole(pool):
    tensor = in_pool(pool, lambda: numbers(MIB))
    graph, seen = torch.cuda.CUDAGraph(), []

    def pause():
        try:
            pool.pause(keep="host")
        except RuntimeError as error:
            seen.append(str(error))

    with capture_scope(), torch.cuda.graph(graph):
        tensor.add_(1)
        pause()
        thread = threading.Thread(target=pause)
        thread.start()
        thread.join()
    assert len(seen) == 2
    assert all("a graph is being captured" in text for text in seen)
    graph.replay()
    assert torch.equal(tensor, numbers(MIB, 1))


def test_tensors_that_die_while_paused_are_forgotten():
    pool = BackedPool(no_split=True)
    kept, dying = in_pool(pool, lambda: (numbers(8 * MIB, 1), numbers(8 * MIB, 2)))
    pool.pause(keep="host")
    del dying
    torch.cuda.empty_cache()
    pool.resume()
    assert torch.equal(kept, numbers(8 * MIB, 1))
    del kept
    pool.pause()
    pool.close()
    assert pool.closed


def test_a_pool_dies_while_paused():
    pool = BackedPool()
    tensor = in_pool(pool, lambda: numbers(MIB))
    pool.pause()
    segments = pool._segments
    del tensor, pool
    gc.collect()
    assert (segments.segment_count, segments.leaving_bytes) == (0, 0)
    segments.close()


def test_what_torch_frees_is_given_back_behind_the_kernels():
    result, stream = torch.zeros(8 * MIB, dtype=torch.int32, device="cuda"), torch.cuda.Stream()
    pool = BackedPool(no_split=True)
    with torch.cuda.stream(stream):
        tensor = in_pool(pool, lambda: numbers(8 * MIB))
        torch.cuda._sleep(SLEEP_CYCLES)
        result.copy_(tensor)
    segments = pool._segments
    del tensor, pool
    gc.collect()
    assert segments.segment_count == 0
    segments.synchronize()
    assert segments.backed_bytes == 0
    segments.close()
    torch.cuda.synchronize()
    assert torch.equal(result, numbers(8 * MIB))


def test_a_pool_dropped_open_gives_its_memory_back_when_the_next_is_made():
    pool = BackedPool()
    tensor = in_pool(pool, lambda: numbers(MIB))
    segments = pool._segments
    del pool
    gc.collect()
    assert torch.equal(tensor, numbers(MIB))
    BackedPool().close()
    assert not segments.closed  # the tensor is alive
    del tensor
    torch.cuda.empty_cache()
    assert segments.segment_count == 0
    BackedPool().close()
    assert segments.closed


def test_a_pool_and_its_tensors_die_in_a_cycle():
    for _ in range(3):
        pool = BackedPool()
        tensor = in_pool(pool, lambda: numbers(MIB))
        cycle = [pool, tensor, pool._segments, pool._segments.entry_points]
        cycle.append(cycle)
        del pool, tensor, cycle
        gc.collect()
        torch.cuda.empty_cache()  # for a tensor that outlived its pool
    BackedPool().close()


def test_over_a_pool_of_handles_a_trim_frees_what_a_pause_took():
    with HandlePool(0, chunk_bytes=2 * MIB, capacity_bytes=GIB) as handles:
        with BackedPool(pool=handles) as pool:
            tensor = in_pool(pool, lambda: numbers(64 * MIB))
            pool.pause(keep="host")
            assert handles.pooled_bytes == tensor.nbytes
            free = free_memory_bytes(0)
            handles.trim()
            assert free_memory_bytes(0) >= free + tensor.nbytes - 64 * MIB
            pool.resume()
            assert torch.equal(tensor, numbers(64 * MIB))
            del tensor
        assert handles.pooled_bytes == 256 * MIB


def test_out_of_memory_in_resume_passes(pool):
    tensor = in_pool(pool, lambda: torch.full((2 * GIB,), 7, dtype=torch.uint8, device="cuda"))
    pool.pause(keep="host")
    torch.cuda.empty_cache()
    room = (free_memory_bytes(0) - GIB) // (64 * MIB) * (64 * MIB)
    with VmmReservation(room, device_id=0) as reservation:
        reservation.commit(0, room)
        for _ in range(2):
            with pytest.raises(CudaOutOfMemoryError):
                pool.resume()
            assert pool.paused
    pool.resume()
    assert (tensor == 7).all().item()


def test_a_pool_without_room_says_why():
    with BackedPool(reserve_bytes=32 * MIB) as small:
        with pytest.raises(torch.OutOfMemoryError):
            in_pool(small, lambda: numbers(64 * MIB))
        assert "no free range of the" in str(small.last_error)


def test_close_is_refused_while_a_tensor_lives():
    pool = BackedPool()
    tensor = in_pool(pool, lambda: numbers(MIB))
    with pytest.raises(RuntimeError, match=r"^BackedPool\.close: \d+ bytes are in use"):
        pool.close()
    assert torch.equal(tensor, numbers(MIB))
    in_pool(pool, lambda: numbers(MIB))
    del tensor
    pool.close()
    pool.close()
    with pytest.raises(RuntimeError, match="the pool is closed"):
        in_pool(pool, lambda: numbers(1))


def test_no_kernel_loses_its_memory_to_a_pause(pool):
    """Kernels on several streams run over the pool when it is paused: pause waits for them."""
    streams = [torch.cuda.Stream() for _ in range(4)]
    tensors = in_pool(pool, lambda: [torch.zeros(MIB, device="cuda") for _ in streams])
    torch.cuda.synchronize()
    for turn in range(1, 21):
        for stream, tensor in zip(streams, tensors, strict=True):
            with torch.cuda.stream(stream):
                torch.cuda._sleep(SLEEP_CYCLES)
                tensor.add_(1)
        pool.pause(keep="host")
        pool.resume()
        assert all((tensor == turn).all().item() for tensor in tensors)


def test_no_kernel_loses_its_memory_to_a_free():
    """The pool dies while a kernel of it is queued behind a sleeping one."""
    result = torch.zeros(MIB, device="cuda")
    stream = torch.cuda.Stream()
    for turn in range(20):
        pool = BackedPool()
        with torch.cuda.stream(stream):
            tensor = in_pool(pool, lambda turn=turn: torch.full((MIB,), turn, device="cuda"))
            torch.cuda._sleep(SLEEP_CYCLES)
            result.copy_(tensor)
        segments = pool._segments
        del tensor, pool
        gc.collect()
        segments.close()
        torch.cuda.synchronize()
        assert (result == turn).all().item()


KILLED = """
import os, sys, threading, torch
from vmmcy.torch import BackedPool
pool = BackedPool()
with torch.cuda.use_mem_pool(pool):
    tensors = [torch.ones(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(8)]
pool.pause(keep="host")  # pins the host memory
pool.resume()
while True:
    print("pausing", flush=True)
    pool.pause(keep="host")
    print("paused", flush=True)
    pool.resume()
"""


def test_a_process_killed_in_a_pause_gives_everything_back():
    torch.cuda.synchronize()
    before = free_memory_bytes(0)
    for _ in range(3):
        child = subprocess.Popen(
            [sys.executable, "-c", KILLED],
            env=environment(VMMCY_DRIVER="cuda"),
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout.readline() == "pausing\n"
        child.send_signal(signal.SIGKILL)
        assert child.communicate()[0] == ""  # it was killed before the pause was done
        assert child.returncode == -signal.SIGKILL
    assert free_memory_bytes(0) >= before - 64 * MIB
    with BackedPool() as pool:
        tensor = in_pool(pool, lambda: torch.ones(4 * GIB, dtype=torch.uint8, device="cuda"))
        pool.pause(keep="host")
        pool.resume()
        assert (tensor == 1).all().item()
        del tensor


AT_EXIT = """
import gc, torch
from vmmcy.torch import BackedPool
pool = BackedPool()
with torch.cuda.use_mem_pool(pool):
    tensor = torch.ones(4096, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, pool=pool.id):
    result = tensor + 1
{paused}
kept = {kept}
{dropped}
print("end")
"""
ORDERS = {
    "all": ("[pool, tensor, graph, result]", ""),
    "all-reversed": ("[result, graph, tensor, pool]", ""),
    "tensor": ("tensor", "del pool, graph, result"),
    "pool": ("pool", "del tensor, graph, result"),
    "graph": ("graph", "del pool, tensor, result"),
    "cycle": ("[pool, tensor]", "kept.append(kept); del pool, tensor, graph, result"),
}


@pytest.mark.parametrize("paused", ["", "pool.pause(keep='host')"])
@pytest.mark.parametrize("order", ORDERS)
def test_the_interpreter_exits_in_any_order(order, paused):
    kept, dropped = ORDERS[order]
    seen = subprocess.run(
        [sys.executable, "-c", AT_EXIT.format(kept=kept, dropped=dropped, paused=paused)],
        env=environment(VMMCY_DRIVER="cuda"),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (seen.returncode, seen.stdout) == (0, "end\n"), seen.stderr


@pytest.mark.parametrize(
    ("keep", "error"), [("disk", ValueError), (None, ValueError), (True, ValueError)]
)
def test_what_to_keep_is_checked(pool, keep, error):
    with pytest.raises(error, match="^keep must be 'nothing' or 'host', not "):
        pool.pause(keep=keep)
    assert not pool.paused


def test_twice_is_refused(pool):
    with pytest.raises(RuntimeError, match=r"^BackedPool\.resume: not paused$"):
        pool.resume()
    pool.pause()
    with pytest.raises(RuntimeError, match=r"^BackedPool\.pause: paused already; resume first$"):
        pool.pause()
