"""The rules of borrowing that need no GPU: runs, seeds, turns, and who captures."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
from arena_help import BASE, GIB, MIB
from hypothesis import given
from hypothesis import strategies as st

import vmmcy.torch
from vmmcy import BumpArena
from vmmcy.torch import capture
from vmmcy.torch.pool_runs import (
    active_bytes,
    active_ranges,
    awaited_bytes,
    inactive_bytes,
    pool_id_of,
    runs_of,
    streams_of,
)
from vmmcy.torch.seeding import (
    LEAST_SEED_BYTES,
    largest_tensor_bytes,
    seeds_of,
    small_room,
    usable_bytes,
    usable_runs,
)
from vmmcy.torch.segments import SMALL_SEGMENT_BYTES
from vmmcy.torch.turns import CAPTURE, REPLAY, PoolTurns

FREE, LIVE = "inactive", "active_allocated"
PENDING = ("active_pending_free", "active_awaiting_free")


def segment(address, *blocks, device=0, stream=0):
    """A segment as torch's snapshot shows it, of blocks (size_bytes, state)."""
    return {
        "device": device,
        "address": address,
        "stream": stream,
        "blocks": [{"size": size_bytes, "state": state} for size_bytes, state in blocks],
    }


# ---- what is free


def test_neighbouring_inactive_blocks_are_one_run():
    snapshot = [segment(BASE, (512, FREE), (1024, FREE), (512, LIVE), (2048, FREE))]
    assert runs_of(snapshot, 0) == [(BASE + 2048, 2048), (BASE, 1536)]


def test_segments_that_touch_are_never_joined():
    snapshot = [segment(BASE, (4096, FREE)), segment(BASE + 4096, (4096, FREE))]
    assert runs_of(snapshot, 0) == [(BASE, 4096), (BASE + 4096, 4096)]


@pytest.mark.parametrize("state", [LIVE, *PENDING, "a state of a later torch"])
def test_whatever_is_not_inactive_is_in_no_run(state):
    snapshot = [segment(BASE, (512, state), (512, FREE), (1024, state), (512, FREE), (512, state))]
    assert runs_of(snapshot, 0) == [(BASE + 512, 512), (BASE + 2048, 512)]
    assert active_bytes(snapshot) == 2048


def test_runs_are_of_one_device_and_the_largest_first():
    snapshot = [
        segment(BASE, (512, FREE)),
        segment(2 * BASE, (GIB, FREE), device=1),
        segment(3 * BASE, (MIB, FREE)),
        segment(4 * BASE, (512, LIVE)),
        segment(5 * BASE),
    ]
    assert runs_of(snapshot, 0) == [(3 * BASE, MIB), (BASE, 512)]
    assert runs_of(snapshot, 1) == [(2 * BASE, GIB)]
    assert runs_of([], 0) == []


@pytest.mark.parametrize("state", [LIVE, *PENDING, "a state of a later torch"])
def test_what_is_in_use_is_in_ranges_that_end_with_their_segment(state):
    snapshot = [
        segment(BASE, (512, FREE), (1024, LIVE), (512, state), (512, FREE), (512, state)),
        segment(BASE + 3072, (512, LIVE)),  # touches the one before
        segment(2 * BASE, (MIB, LIVE), device=1),
        segment(3 * BASE),
    ]
    in_first = [(BASE + 512, 1536), (BASE + 2560, 512)]
    assert active_ranges(snapshot, 0) == [*in_first, (BASE + 3072, 512)]
    assert active_ranges(snapshot, 1) == [(2 * BASE, MIB)]


def test_what_was_freed_and_is_not_of_the_stream():
    snapshot = [
        segment(BASE, (512, FREE), (1024, LIVE), (2048, "active_pending_free"), stream=7),
        segment(2 * BASE, (4096, FREE), (8192, LIVE), (512, "active_pending_free")),
        segment(3 * BASE, (16_384, FREE), stream=8),
    ]
    assert awaited_bytes(snapshot) == 2048 + 512
    assert inactive_bytes(snapshot, but_of=7) == 4096 + 16_384
    assert inactive_bytes(snapshot, but_of=0) == 512 + 16_384
    assert (awaited_bytes([]), inactive_bytes([], but_of=0)) == (0, 0)


def test_the_streams_of_segments():
    assert streams_of([segment(BASE, stream=7), segment(BASE, stream=0)]) == {0, 7}


@given(st.lists(st.tuples(st.integers(1, 9), st.sampled_from([FREE, LIVE, *PENDING])), max_size=40))
def test_runs_are_the_inactive_bytes_and_no_others(blocks):
    found = runs_of([segment(BASE, *((512 * size, state) for size, state in blocks))], 0)
    taken = sorted(byte for base, size in found for byte in range(base, base + size, 512))
    inactive, address = [], BASE
    for size, state in blocks:
        if state == FREE:
            inactive.extend(range(address, address + 512 * size, 512))
        address += 512 * size
    assert taken == inactive
    ends = {base + size for base, size in found}
    assert not ends & {base for base, _ in found}


def test_a_pool_is_named_by_its_id_a_pool_object_or_a_graph():
    graph = SimpleNamespace(pool=lambda: (3, 0))
    assert pool_id_of((3, 0)) == pool_id_of(graph) == pool_id_of(SimpleNamespace(id=(3, 0)))


@pytest.mark.parametrize("pool", [None, 3, "(3, 0)", (3,), (3, 0, 0), (3.0, 0), (True, 0), [3, 0]])
def test_what_is_no_pool_is_refused_by_name(pool):
    with pytest.raises(TypeError, match="^pool must be"):
        pool_id_of(pool)


@pytest.mark.parametrize("pool", [(-1, 5), (5, -1), (1 << 64, 0), (10**5000, 0)])
def test_what_cannot_be_a_pool_is_refused_by_value(pool):
    with pytest.raises(ValueError, match="^pool .*(must not be negative|does not fit)"):
        pool_id_of(pool)


def test_torchs_ordinary_memory_is_no_pool():
    with pytest.raises(ValueError, match="ordinary memory"):
        pool_id_of((0, 0))


# ---- how runs are cut


def runs_of_sizes(*sizes):
    return [(BASE + number * GIB, size_bytes) for number, size_bytes in enumerate(sizes)]


def test_small_requests_leave_the_largest_run_whole():
    assert seeds_of(runs_of_sizes(512 * MIB, 64 * MIB, 30 * MIB)) == [512 * MIB, 62 * MIB]


def test_runs_too_small_for_a_seed_are_the_room_of_small_requests():
    runs = runs_of_sizes(256 * MIB, 8 * MIB, 8 * MIB, 6 * MIB)
    assert small_room(278 * MIB) == 16 * MIB
    assert seeds_of(runs) == [256 * MIB]


@pytest.mark.parametrize(("small", "large", "seed"), [(4, 100, 98), (4, 600, 572), (6, 100, 100)])
def test_the_largest_run_gives_what_the_others_cannot_spare(small, large, seed):
    runs = runs_of_sizes(small * MIB, large * MIB)
    assert seeds_of(runs) == [seed * MIB]
    assert largest_tensor_bytes(runs) == seed * MIB


def test_a_single_run_gives_a_share_to_small_requests():
    assert seeds_of(runs_of_sizes(64 * MIB)) == [60 * MIB]
    assert largest_tensor_bytes(runs_of_sizes(64 * MIB)) == 60 * MIB


def test_runs_below_a_segment_serve_nothing():
    runs = runs_of_sizes(2 * MIB - 512, 512)
    assert (usable_runs(runs), seeds_of(runs), largest_tensor_bytes(runs)) == ([], [], 0)
    assert largest_tensor_bytes(runs_of_sizes(2 * MIB)) == MIB


def test_a_run_that_is_not_aligned_loses_its_first_bytes():
    assert usable_bytes((BASE + 1, 4 * MIB)) == 2 * MIB
    assert usable_bytes((BASE + 512, 4 * MIB)) == 4 * MIB
    assert usable_bytes((BASE + 1, 1)) == 0


@given(st.lists(st.integers(1, 200 * MIB // 512).map(lambda n: 512 * n), max_size=60))
def test_every_seed_finds_its_run_and_small_requests_their_room(sizes):
    runs = usable_runs(runs_of_sizes(*sizes))
    total = sum(map(usable_bytes, runs))
    with BumpArena(runs, best_fit=True) as arena:
        seeds = [(arena.allocate(size_bytes), size_bytes) for size_bytes in seeds_of(runs)]
        assert all(size_bytes >= LEAST_SEED_BYTES for _, size_bytes in seeds)
        smalls = []
        while arena.largest_free_bytes >= SMALL_SEGMENT_BYTES:
            smalls.append((arena.allocate(SMALL_SEGMENT_BYTES), SMALL_SEGMENT_BYTES))
        assert sum(size_bytes for _, size_bytes in seeds + smalls) == total
        if runs:
            assert len(smalls) * SMALL_SEGMENT_BYTES >= small_room(total)
        for address, size_bytes in seeds + smalls:
            arena.free(address, size_bytes)


# ---- turns


def test_the_second_is_refused_and_told_who_holds_the_pool():
    turns = PoolTurns()
    turns.take("borrow by 'sampler'")
    with pytest.raises(
        RuntimeError,
        match="^graph pool is held by borrow by 'sampler' of this thread: not free for graph repl",
    ):
        turns.take(REPLAY)
    assert turns.holder == "borrow by 'sampler'"
    turns.give_back()
    assert turns.holder is None
    turns.begin_replay(0)
    with pytest.raises(RuntimeError, match="held by graph replay"):
        turns.begin_replay(0)
    turns.give_back()


def test_only_who_replays_leaves_the_replay():
    turns = PoolTurns()
    with pytest.raises(RuntimeError, match="^graph replay: this thread is in no replay scope"):
        turns.end_replay()
    turns.take(CAPTURE)
    with pytest.raises(RuntimeError, match="^graph replay: this thread is in no replay scope"):
        turns.end_replay()
    assert turns.holder == CAPTURE
    turns.give_back()
    turns.begin_replay(0)
    with ThreadPoolExecutor(1) as threads:
        assert isinstance(threads.submit(turns.end_replay).exception(), RuntimeError)
    assert turns.holder == REPLAY
    turns.end_replay()
    assert turns.holder is None


def test_another_thread_is_refused_and_told_which_thread():
    turns = PoolTurns()
    turns.take(CAPTURE)
    with ThreadPoolExecutor(1) as threads:
        refused = threads.submit(turns.take, REPLAY).exception()
    assert f"graph capture of thread {threading.get_ident()}" in str(refused)
    turns.give_back()


def test_of_many_threads_one_has_the_turn():
    turns, inside, rounds = PoolTurns(), [], 2000
    overlaps, refusals, start = [], [], threading.Barrier(8)

    def use(number):
        start.wait()
        for _ in range(rounds):
            try:
                turns.take(f"thread {number}")
            except RuntimeError as error:
                refusals.append(str(error))
                continue
            inside.append(number)
            overlaps.extend(inside[1:])
            inside.remove(number)
            turns.give_back()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(use, range(8)))
    assert (overlaps, turns.holder) == ([], None)
    assert all("held by thread " in refusal for refusal in refusals)


def replay_on(turns, stream):
    turns.begin_replay(stream)
    turns.give_back()


def test_the_stream_of_the_first_borrow_is_that_of_all():
    turns = PoolTurns()
    turns.check_stream(5, "borrow by 'a'")
    turns.keep_to(5)
    turns.check_stream(5, "borrow by 'b'")
    replay_on(turns, 5)
    with pytest.raises(RuntimeError, match="^borrow by 'c' on stream 6: .* was lent on stream 5"):
        turns.check_stream(6, "borrow by 'c'")
    with pytest.raises(RuntimeError, match="^graph replay on stream 0: .* was lent on stream 5"):
        turns.begin_replay(0)
    assert turns.holder is None
    replay_on(turns, 5)


def test_replays_may_change_streams_until_the_first_borrow_follows_the_last():
    turns = PoolTurns()
    replay_on(turns, 1)
    replay_on(turns, 2)
    with pytest.raises(RuntimeError, match="was replayed on stream 2"):
        turns.check_stream(1, "borrow by 'a'")
    turns.check_stream(2, "borrow by 'a'")


# ---- who captures


def test_a_scope_of_any_thread_counts_until_the_last_is_closed():
    assert not capture.anyone_captures()
    with ThreadPoolExecutor(1) as threads, ExitStack() as outer:
        outer.enter_context(capture.capture_scope())
        inner = ExitStack()
        threads.submit(inner.enter_context, capture.capture_scope()).result()
        outer.close()
        assert capture.anyone_captures()
        threads.submit(inner.close).result()
    assert not capture.anyone_captures()


def test_a_capture_begins_after_what_must_not_meet_one():
    begun = []

    def begin():
        with capture.capture_scope():
            begun.append(True)

    with ThreadPoolExecutor(1) as threads:
        with capture.between_captures() as nobody_captures:
            assert nobody_captures
            capturing = threads.submit(begin)
            with pytest.raises(TimeoutError):
                capturing.result(timeout=0.1)
            assert not begun
        capturing.result()
    assert begun
    with capture.capture_scope(), capture.between_captures() as nobody_captures:
        assert not nobody_captures


def test_who_holds_captures_off_may_do_so_once_more():
    with capture.between_captures() as outer, capture.between_captures() as inner:
        assert (outer, inner) == (True, True)


def test_a_capture_that_fails_is_over():
    with pytest.raises(ZeroDivisionError), capture.capture_scope():
        raise ZeroDivisionError
    assert not capture.anyone_captures()


def test_the_names_are_there_before_torch_is():
    listed = set(dir(vmmcy.torch))
    assert {"GraphPoolBorrower", "anyone_captures", "capture_scope", "free_runs"} <= listed
    assert vmmcy.torch.anyone_captures is capture.anyone_captures
    with pytest.raises(AttributeError, match="has no attribute 'anyone_capture'"):
        vmmcy.torch.anyone_capture  # noqa: B018


def test_the_rules_load_no_torch():
    code = """
import sys
from vmmcy.torch import capture, pool_runs, seeding, turns
print(capture.anyone_captures(), "torch" in sys.modules)
"""
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert seen.stdout.split() == ["False", "False"]
