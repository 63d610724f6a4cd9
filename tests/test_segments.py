"""Segments through the C functions that torch calls: backed when asked for, paused, resumed."""

import gc
import threading
import warnings
from contextlib import contextmanager
from pathlib import Path
from random import Random

import numpy as np
import pytest
from arena_help import FREE, KIB, MIB, c_functions
from conformance.steps import G, must
from cuda.bindings import driver
from reservation_help import fill, holds, primary_context, run_python
from stream_help import GLOBAL, capturing, held_stream

from vmmcy import (
    BackedSegments,
    BumpArena,
    CudaDriverError,
    CudaOutOfMemoryError,
    HandlePool,
    _arena,
)

RESERVED = 64 * G
PER_THREAD = 2
IN_NO_SEGMENT = "^BackedSegments.pause: a range to keep lies in no segment that is out$"
TESTS = str(Path(__file__).parent)


@pytest.fixture(autouse=True)
def no_slot_left_behind():
    gc.collect()
    before = _arena.slot_census()
    yield
    gc.collect()
    assert _arena.slot_census() == before


class Pool:
    """Segments, their C functions, and where each segment lies."""

    def __init__(self, reserve_bytes=RESERVED, **options):
        self.segments = BackedSegments(reserve_bytes, device_id=0, **options)
        entry_points = self.segments.entry_points
        self.malloc, _ = c_functions(entry_points)
        self._free = FREE(entry_points.free_address)

    def free(self, address, size_bytes, stream=None):
        self._free(address, size_bytes, 0, stream)

    def end(self):
        """Free whatever is out, and close."""
        for address, size_bytes in self.segments.segments:
            self.free(address, size_bytes)
        self.segments.close()


@contextmanager
def pool(*arguments, **options):
    made = Pool(*arguments, **options)
    yield made
    made.end()


def filled(made, sizes_bytes):
    """Segments of these sizes, each full of a byte of its own, from 1 up."""
    addresses = [made.malloc(size_bytes) for size_bytes in sizes_bytes]
    for value, (address, size_bytes) in enumerate(zip(addresses, sizes_bytes, strict=True), 1):
        fill(address, size_bytes, value)
    return addresses


# ---- malloc and free


def test_a_segment_is_backed_when_it_is_asked_for():
    with primary_context(), pool() as made:
        address = made.malloc(G + 1)
        assert made.segments.segments == [(address, 2 * G)]
        assert (made.segments.segment_count, made.segments.backed_bytes) == (1, 2 * G)
        fill(address, 2 * G, 5)
        assert holds(address, 2 * G, 5)


def test_a_segment_is_one_mapping_or_as_many_as_chunks(sim):
    for chunk_bytes, mappings in ((None, 1), (2 * G, 3)):
        with pool(chunk_bytes=chunk_bytes) as made:
            sim.reset()
            assert made.malloc(5 * G)
            assert sim.live()["mappings"] == mappings
            assert sim.calls() == {
                "cuMemCreate": mappings,
                "cuMemMap": mappings,
                "cuMemSetAccess": 1,
                "cuMemRelease": mappings,
            }


@pytest.mark.parametrize(
    ("size_bytes", "device", "error", "text"),
    [
        (RESERVED + 1, 0, MemoryError, "no free range of the .* reserved bytes is large enough"),
        (2**64 - 1, 0, MemoryError, "no free range"),
        (G, 1, ValueError, "on device 0 alone"),
        (G, -1, ValueError, "on device 0 alone"),
    ],
)
def test_what_cannot_be_served_gets_null_and_a_reason(size_bytes, device, error, text):
    with pool() as made:
        assert made.malloc(size_bytes, device) is None
        assert (made.segments.segment_count, made.segments.backed_bytes) == (0, 0)
        with pytest.raises(error, match=text):
            raise made.segments.last_error
        assert made.malloc(RESERVED) == made.segments.base
        assert made.segments.last_error is None


@pytest.mark.parametrize("status", ["CUDA_ERROR_OUT_OF_MEMORY", "CUDA_ERROR_NOT_FOUND"])
@pytest.mark.parametrize("nth", [1, 3])
@pytest.mark.parametrize("call", ["cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemRelease"])
def test_a_failing_call_gets_null_and_leaves_nothing(sim, call, nth, status):
    nth = 1 if call == "cuMemSetAccess" else nth
    with pool(chunk_bytes=G) as made:
        kept = made.malloc(G)
        before = sim.live()
        sim.fail(call, nth=nth, status=status)
        assert made.malloc(4 * G) is None
        assert sim.live() == before
        assert made.segments.segments == [(kept, G)]
        error = made.segments.last_error
        assert (type(error), error.call, error.name) == (
            CudaOutOfMemoryError if "MEMORY" in status else CudaDriverError,
            call,
            status,
        )
        assert made.malloc(RESERVED - G) == kept + G


# One call of a malloc of two chunks, and one of its way back.
WAYS_BACK_THAT_FAIL = {
    "map": (("cuMemMap", 2), ("cuMemUnmap", 1)),
    "map-release": (("cuMemMap", 2), ("cuMemRelease", 2)),
    "access": (("cuMemSetAccess", 1), ("cuMemUnmap", 2)),
    "access-release": (("cuMemSetAccess", 1), ("cuMemRelease", 1)),
    "release": (("cuMemRelease", 1), ("cuMemUnmap", 1)),
}


@contextmanager
def left_behind(sim, forward, back):
    """Segments of which one is out, and what a malloc and its way back left beside it."""
    made = Pool(chunk_bytes=G)
    kept = made.malloc(2 * G)
    sim.fail(forward[0], nth=forward[1])
    sim.fail(back[0], nth=back[1])
    assert made.malloc(2 * G) is None
    yield made, kept
    assert not any(sim.live().values())


@pytest.mark.parametrize(("forward", "back"), WAYS_BACK_THAT_FAIL.values(), ids=WAYS_BACK_THAT_FAIL)
@pytest.mark.parametrize("act", ["malloc", "free", "synchronize", "pause", "close"])
def test_what_a_way_back_left_goes_with_the_next_call(sim, act, forward, back):
    with left_behind(sim, forward, back) as (made, kept):
        error = made.segments.last_error
        assert error.call == forward[0]
        assert f"on the way back: {back[0]}" in error.__notes__[0]
        assert error.__notes__[-1].endswith("is given back first by whatever is called next")
        assert repr(made.segments).endswith("4194304 bytes, a failure left something>")
        if act == "malloc":
            assert made.malloc(RESERVED - 2 * G) == kept + 2 * G
            assert made.segments.last_error is None
        elif act == "free":
            made.free(kept, 2 * G)
            made.segments.synchronize()
            assert sim.live()["handles"] == sim.live()["mappings"] == 0
        elif act == "synchronize":
            assert made.segments.synchronize() == 2 * G
        elif act == "pause":
            made.segments.pause()
            assert made.segments.backed_bytes == 0
            made.segments.resume()
        assert made.segments.leaving_bytes == (2 * G if act == "close" else 0)
        made.end()


@pytest.mark.parametrize("act", ["malloc", "pause"])
def test_what_a_way_back_left_is_tried_again_until_it_goes(sim, act):
    with left_behind(sim, ("cuMemSetAccess", 1), ("cuMemUnmap", 1)) as (made, kept):
        for _ in range(3):
            sim.fail("cuMemUnmap", times=3 if act == "pause" else 2)
            if act == "pause":
                with pytest.raises(CudaDriverError, match=r"^cuMemUnmap"):
                    made.segments.pause()
            else:
                assert made.malloc(G) is None
                assert made.segments.last_error.call == "cuMemUnmap"
            assert made.segments.segments == [(kept, 2 * G)]
            assert not made.segments.paused
        assert made.segments.leaving_bytes == 2 * G
        made.end()


@pytest.mark.parametrize("times", [1, 2, 3, 4])
def test_dropped_open_what_a_way_back_left_is_tried_again(sim, times):
    made = Pool()
    sim.fail("cuMemSetAccess")
    sim.fail("cuMemUnmap", times=1 + times)
    assert made.malloc(G) is None
    with pytest.warns(ResourceWarning, match="dropped without close"):
        del made
    assert not any(sim.live().values())


def test_what_a_way_back_left_of_a_pool_goes_back_to_it(sim):
    with HandlePool(0, chunk_bytes=G, capacity_bytes=8 * G) as chunks:
        made = Pool(pool=chunks)
        kept, freed = made.malloc(2 * G), made.malloc(G)
        made.free(freed, G)
        sim.fail("cuMemCreate")  # of the second chunk, behind the one that the pool has
        sim.fail("cuMemUnmap")
        assert made.malloc(2 * G) is None
        assert chunks.pooled_bytes == 0
        assert made.segments.synchronize() == 2 * G
        assert chunks.pooled_bytes == G
        assert made.malloc(G) == kept + 2 * G
        made.end()


def test_freed_memory_goes_when_its_stream_is_done():
    with primary_context(), pool(3 * G) as made, held_stream() as held:
        behind, other, third = (made.malloc(G) for _ in range(3))
        made.free(behind, G, held.handle)
        assert (made.segments.segment_count, made.segments.leaving_bytes) == (2, G)
        assert made.segments.backed_bytes == 3 * G
        assert made.malloc(G) is None  # these addresses are not free yet
        made.free(other, G)  # of a stream that is done: it waits for no other
        assert (made.segments.leaving_bytes, made.malloc(G)) == (G, other)
        held.let()
        made.free(third, G)  # whoever calls next sees to what is done
        assert (made.segments.leaving_bytes, made.segments.backed_bytes) == (0, G)
        assert [made.malloc(G), made.malloc(G)] == [behind, third]


def test_synchronize_waits_for_the_streams_of_the_frees():
    waits = []
    with primary_context(), held_stream() as held:
        with pool(quiesce=lambda: waits.append(True)) as made:
            addresses = [made.malloc(G) for _ in range(3)]
            for address in addresses[:2]:
                made.free(address, G, held.handle)
            letting = threading.Timer(0.05, held.let)
            letting.start()
            assert made.segments.synchronize() == 2 * G
            letting.join()
            assert made.segments.synchronize() == 0
        assert waits == []


def test_a_free_on_a_stream_that_is_captured_is_put_off_and_leaves_the_capture_whole(sim):
    with primary_context(), pool() as made, held_stream() as held:
        held.let()
        address = made.malloc(G)
        with capturing(held.stream) as capture:
            made.free(address, G, held.handle)
            assert made.segments.leaving_bytes == G
            assert made.malloc(G) != address
        assert capture.status == 0
        assert made.malloc(G) == address


def test_a_free_whose_fence_the_driver_refuses_waits_for_the_whole_device(sim):
    waits = []
    with pool(quiesce=lambda: waits.append(True)) as made:
        sim.fail("cuEventRecord")
        made.free(made.malloc(G), G)
        assert made.malloc(G)
        assert made.segments.leaving_bytes == G
        assert (made.segments.synchronize(), waits) == (G, [True])


@pytest.mark.parametrize("end", ["pause", "close"])
def test_a_free_without_a_fence_is_the_callers_promise_at_the_end(sim, end):
    """Its stream may be gone by then, so that nobody can ask it."""
    made = Pool()
    sim.fail("cuEventRecord")
    made.free(made.malloc(G), G)
    assert (made.segments.synchronize(), made.segments.backed_bytes) == (0, G)
    getattr(made.segments, end)()
    assert made.segments.backed_bytes == 0
    made.segments.close()


def test_what_is_freed_while_somebody_waits_for_the_device_is_not_waited_for():
    """Neither synchronize nor close takes it: kernels may have been given to it since."""
    calls = []

    def quiesce():
        calls.append((made.segments.leaving_bytes, made.segments.backed_bytes))
        if len(calls) == 1:
            made.free(second, G, held.handle)

    with primary_context(), held_stream() as held, pool(quiesce=quiesce) as made:
        held.let()
        first, second = made.malloc(G), made.malloc(G)
        with capturing(held.stream):
            made.free(first, G, held.handle)
            assert made.segments.synchronize() == G
            assert (made.segments.leaving_bytes, made.segments.backed_bytes) == (G, G)
            made.segments.close()
    assert calls == [(G, 2 * G), (G, G)]


def test_a_pause_waits_again_for_what_is_freed_while_it_waits():
    calls = []

    def quiesce():
        calls.append(made.segments.leaving_bytes)
        if len(calls) == 1:
            made.free(address, G, held.handle)

    with primary_context(), held_stream() as held, pool(quiesce=quiesce) as made:
        held.let()
        address = made.malloc(G)
        with capturing(held.stream):
            made.segments.pause()
        assert (made.segments.paused, calls) == (True, [0, G])


def test_what_cannot_be_waited_for_stays_and_is_named():
    with primary_context(), pool() as made, held_stream() as held:
        held.let()
        address = made.malloc(G)
        with capturing(held.stream):
            made.free(address, G, held.handle)
            assert made.segments.synchronize() == 0
            for act in (made.segments.pause, made.segments.close):
                with pytest.raises(RuntimeError, match=f": {G} freed bytes may still be in use: "):
                    act()
            assert made.malloc(G) not in (None, address)
            assert not made.segments.paused
        assert made.segments.synchronize() == G


def test_one_query_tells_of_all_that_was_freed_behind_a_stream(sim):
    with primary_context(), pool() as made, held_stream() as held:
        addresses = [made.malloc(G) for _ in range(8)]
        for address in addresses:
            before = sim.calls().get("cuEventQuery", 0)
            made.free(address, G, held.handle)
            assert sim.calls()["cuEventQuery"] == before + 1
        held.let()
        assert made.segments.synchronize() == 8 * G


def test_who_waits_for_the_segments_may_call_them():
    with pool(quiesce=lambda: made.segments.synchronize()) as made:
        address = made.malloc(G)
        made.segments.pause()
        made.segments.resume()
        assert made.segments.segments == [(address, G)]


def test_pause_takes_along_what_is_leaving():
    with primary_context(), held_stream() as held, pool(quiesce=held.let) as made:
        first, second = made.malloc(G), made.malloc(G)
        made.free(first, G, held.handle)
        made.segments.pause()
        assert (made.segments.leaving_bytes, made.segments.backed_bytes) == (0, 0)
        made.segments.resume()
        assert made.segments.segments == [(second, G)]
        assert made.malloc(G) == first


def test_memory_that_the_driver_does_not_take_back_is_given_back_later(sim):
    with pool() as made:
        address = made.malloc(G)
        sim.fail("cuMemUnmap")
        made.free(address, G)
        assert made.segments.leaving_bytes == made.segments.backed_bytes == G
        assert made.segments.synchronize() == G


def test_frees_of_others_are_ignored_and_counted():
    with pool() as made:
        address = made.malloc(2 * G)
        for wrong in (None, address - 1, address + G, address + 2 * G, 2**64 - 1):
            made.free(wrong, G)
        made.free(address, 2 * G)
        made.free(address, 2 * G)
        assert (made.segments.ignored_frees, made.segments.backed_bytes) == (6, 0)


def best_fit(taken, size):
    """Independent of the code: where in 64 granules the tightest hole is, the lowest of equals."""
    ends = [0, *(start + length for start, length in sorted(taken.items()))]
    starts = [*sorted(taken), 64]
    holes = [(b - a, a) for a, b in zip(ends, starts, strict=True) if b - a >= size]
    return min(holes)[1] if holes else None


@pytest.mark.parametrize("seed", range(3))
def test_addresses_are_best_fit_and_all_come_back(seed):
    random, taken = Random(seed), {}
    with pool() as made:
        base = made.segments.base
        for _ in range(400):
            if taken and random.random() < 0.48:
                start = random.choice(sorted(taken))
                made.free(base + start * G, taken.pop(start) * G)
                made.segments.synchronize()
            else:
                size = random.randint(1, 12)
                expected = best_fit(taken, size)
                got = made.malloc(size * G)
                assert got == (None if expected is None else base + expected * G)
                if got is not None:
                    taken[expected] = size
        for start in taken:
            made.free(base + start * G, 0)
        made.segments.synchronize()
        assert made.malloc(RESERVED) == base


# ---- pause and resume


def test_pause_and_resume_make_as_few_calls_as_can_be(sim):
    with pool() as made:
        addresses = [made.malloc(size * G) for size in (1, 3, 2)]
        made.free(addresses[1], 3 * G)
        before = made.segments.segments
        sim.reset()
        made.segments.pause()
        assert sim.calls() == {"cuMemUnmap": 1, "cuCtxGetCurrent": 1, **CONTEXT}
        assert made.segments.paused
        assert (made.segments.backed_bytes, made.segments.leaving_bytes) == (0, 0)
        assert made.segments.segments == before
        sim.reset()
        made.segments.resume()
        calls = sim.calls()
        assert {name: calls[name] for name in BACKING} == dict.fromkeys(BACKING, 2)
        assert not made.segments.paused
        assert made.segments.backed_bytes == 3 * G


CONTEXT = {"cuCtxPushCurrent": 1, "cuCtxPopCurrent": 1}
BACKING = ("cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemRelease")


def test_nothing_is_paused_and_resumed_too():
    with pool() as made:
        made.segments.pause()
        made.segments.resume()
        assert made.malloc(G)


def test_while_paused_nothing_is_handed_out():
    with pool() as made:
        made.segments.pause()
        assert made.malloc(G) is None
        assert str(made.segments.last_error) == "the segments are paused: resume them first"
        made.segments.resume()
        assert made.malloc(G)


def test_twice_is_refused_and_changes_nothing(sim):
    with pool() as made:
        with pytest.raises(RuntimeError, match=r"^BackedSegments\.resume: not paused$"):
            made.segments.resume()
        made.malloc(G)
        made.segments.pause()
        sim.reset()
        with pytest.raises(RuntimeError, match=r"^BackedSegments\.pause: paused already; resume"):
            made.segments.pause()
        assert sim.calls() == {}
        made.segments.resume()


def test_what_is_freed_while_paused_does_not_come_back(sim):
    with pool(3 * G) as made:
        first, second, third = (made.malloc(G) for _ in range(3))
        made.segments.pause([(second, G), (third, G)])
        sim.reset()
        made.free(second, G)
        assert sim.calls() == {}
        assert made.segments.leaving_bytes == 0
        made.segments.resume()
        assert made.segments.segments == [(first, G), (third, G)]
        assert made.malloc(G) == second


def test_contents_are_kept_where_they_are_asked_for():
    with primary_context(), pool() as made:
        first, second, third = filled(made, [G, 3 * G, 2 * G])
        keep = [(first + 7, 1000), (second, 3 * G), (third + G, 512)]
        made.segments.pause(keep)
        assert made.segments.host_bytes == 1000 + 3 * G + 512
        made.segments.resume()
        assert holds(first + 7, 1000, 1)
        assert holds(second, 3 * G, 2)
        assert holds(third + G, 512, 3)


def test_host_memory_is_got_once_and_grows_by_what_is_missing(sim):
    with primary_context(), pool() as made:
        addresses = filled(made, [G, G, G])
        for count, slabs in ((1, 1), (3, 1), (2, 0), (3, 0)):
            sim.reset()
            made.segments.pause([(address, G) for address in addresses[:count]])
            assert sim.calls().get("cuMemHostAlloc", 0) == slabs
            made.segments.resume()
            assert all(holds(address, G, 1 + k) for k, address in enumerate(addresses[:count]))
            for value, address in enumerate(addresses, 1):
                fill(address, G, value)
        assert made.segments.host_bytes == 3 * G
        # One range over two slabs.
        whole = filled(made, [3 * G])[0]
        made.segments.pause([(whole + KIB, 3 * G - KIB)])
        made.segments.resume()
        assert holds(whole + KIB, 3 * G - KIB, 1)
        made.segments.release_host()
        assert made.segments.host_bytes == 0


def test_host_memory_that_keeps_contents_is_not_released():
    with pool() as made:
        address = made.malloc(G)
        made.segments.pause([(address, G)])
        with pytest.raises(RuntimeError, match=f"the host keeps {G} bytes of paused segments"):
            made.segments.release_host()
        made.segments.resume()
        made.segments.release_host()
        made.segments.release_host()


@pytest.mark.parametrize(
    ("keep", "error", "text"),
    [
        (3, TypeError, "^keep must be an iterable of"),
        ([3], TypeError, r"^keep\[0\] must be an \(address, size_bytes\) pair, not 3"),
        ([{8, 9}], TypeError, r"^keep\[0\] must be an \(address, size_bytes\) pair, not \{"),
        ([(0.5, 1)], TypeError, r"^the address of keep\[0\] must be an integer"),
        ([(1, 0)], ValueError, r"^the size of keep\[0\] must be at least 1"),
        ([(1, 1)], ValueError, "lies in no segment"),
        ([(2**64 - 1, 1)], ValueError, "lies in no segment"),
        ([(2**64 - 1, 2)], ValueError, r"^the last byte of keep\[0\], 1844.* does not fit in 64"),
        ([(1, 2**64 - 1), (2, 2**64 - 2)], ValueError, "lies in no segment"),
        ([(0, 1)], ValueError, r"^the address of keep\[0\] must be at least 1, got 0"),
    ],
)
def test_what_to_keep_is_checked_before_anything_happens(keep, error, text):
    with pool() as made:
        made.malloc(G)
        with pytest.raises(error, match=text):
            made.segments.pause(keep)
        assert not made.segments.paused
        assert made.segments.backed_bytes == G


def test_what_is_kept_twice_is_kept_once():
    with primary_context(), pool() as made:
        (first,) = filled(made, [4 * G])
        keep = [(first + G, G), (first, 2 * G), (first, G), (first + G, 2 * G), (first + 3 * G, 1)]
        made.segments.pause(keep)
        assert made.segments.host_bytes == 3 * G + 1
        made.segments.resume()
        assert holds(first, 3 * G + 1, 1)


def test_a_range_to_keep_lies_in_one_segment():
    with pool() as made:
        first, second = made.malloc(G), made.malloc(G)
        for wrong in ((first, G + 1), (second + 1, G), (second + G, 1)):
            with pytest.raises(ValueError, match=IN_NO_SEGMENT):
                made.segments.pause([(first, G), wrong])
        made.free(second, G)
        with pytest.raises(ValueError, match=IN_NO_SEGMENT):
            made.segments.pause([(second, G)])
        assert not made.segments.paused


@pytest.mark.parametrize("wrong", [False, 0.0, [0]])
def test_a_device_is_an_integer_also_where_it_is_known(wrong):
    BackedSegments(G, device_id=0).close()
    with pytest.raises(TypeError, match="^device_id must be an integer, not "):
        BackedSegments(G, device_id=wrong)


def test_a_range_to_keep_may_be_a_row_of_an_array():
    with primary_context(), pool() as made:
        addresses = filled(made, [G, G])
        made.segments.pause(np.array([(address, G) for address in addresses], dtype=np.uint64))
        made.segments.resume()
        assert all(holds(address, G, value) for value, address in enumerate(addresses, 1))


# ---- every driver call fails once


EXCHANGE = "cuThreadExchangeStreamCaptureMode"
PAUSE = {
    "cuCtxGetCurrent": 2,
    "cuStreamCreate": 1,
    "cuMemHostAlloc": 1,
    "cuMemcpyDtoHAsync": 3,
    "cuStreamSynchronize": 1,
    "cuMemUnmap": 1,
}
RESUME = {
    **dict.fromkeys(BACKING, 4),
    "cuCtxGetCurrent": 1,
    "cuMemcpyHtoDAsync": 3,
    "cuStreamSynchronize": 1,
}


def each_of(calls):
    return [(call, nth) for call, count in calls.items() for nth in range(1, count + 1)]


@contextmanager
def scene():
    """Four segments, of which three are to be kept, and a freed one."""
    with primary_context(), pool() as made:
        addresses = filled(made, [G, 2 * G, G, 3 * G, G])
        made.free(addresses.pop(2), G)
        made.keep = [(addresses[0], G), (addresses[1] + G, G), (addresses[3], 100)]
        made.contents = [1, 2, 5]
        yield made


def own_capture_mode():
    """The calling thread's capture mode, which stays."""
    mode = must(driver.cuThreadExchangeStreamCaptureMode(GLOBAL))
    must(driver.cuThreadExchangeStreamCaptureMode(mode))
    return mode


def assert_contents(made):
    for (address, size_bytes), value in zip(made.keep, made.contents, strict=True):
        assert holds(address, size_bytes, value)


def relevant(sim, names):
    return {name: count for name, count in sim.calls().items() if name in names}


def test_the_driver_calls_of_pause_and_resume(sim):
    with scene() as made:
        sim.reset()
        made.segments.pause(made.keep)
        assert relevant(sim, {*PAUSE, *BACKING}) == PAUSE
        sim.reset()
        made.segments.resume()
        assert relevant(sim, {*RESUME, "cuMemUnmap"}) == RESUME


@pytest.mark.parametrize("status", ["CUDA_ERROR_UNKNOWN", "CUDA_ERROR_NOT_FOUND"])
@pytest.mark.parametrize(("call", "nth"), each_of(PAUSE))
def test_a_call_that_fails_in_pause_changes_nothing(sim, call, nth, status):
    with scene() as made:
        before = sim.live(), made.segments.segments, made.segments.leaving_bytes
        sim.fail(call, nth=nth, status=status)
        with pytest.raises(CudaDriverError, match=f"^{call}: {status} "):
            made.segments.pause(made.keep)
        assert not made.segments.paused
        assert (sim.live(), made.segments.segments, made.segments.leaving_bytes) == before
        assert_contents(made)
        assert made.malloc(G)
        made.segments.pause(made.keep)
        made.segments.resume()
        assert_contents(made)


@pytest.mark.parametrize("nth", [1, 3])  # before the host memory is got, and before it is filled
def test_a_pause_whose_thread_cannot_spare_captures_changes_nothing(sim, nth):
    with scene() as made:
        made.segments.synchronize()
        before = made.segments.segments, made.segments.backed_bytes
        sim.reset()
        sim.fail(EXCHANGE, nth=nth)
        with pytest.raises(CudaDriverError, match=f"^{EXCHANGE}: "):
            made.segments.pause(made.keep)
        assert (made.segments.segments, made.segments.backed_bytes) == before
        assert sim.calls().get("cuMemcpyDtoHAsync", 0) == 0
        assert own_capture_mode() == GLOBAL
        made.segments.pause(made.keep)
        made.segments.resume()
        assert_contents(made)


def test_a_resume_whose_thread_cannot_spare_captures_stays_paused(sim):
    with scene() as made:
        made.segments.pause(made.keep)
        sim.reset()
        sim.fail(EXCHANGE)
        with pytest.raises(CudaDriverError, match=f"^{EXCHANGE}: "):
            made.segments.resume()
        assert made.segments.paused
        assert sim.calls().get("cuMemcpyHtoDAsync", 0) == 0
        made.segments.resume()
        assert_contents(made)


@pytest.mark.parametrize("times", [1, 2])
def test_a_thread_gets_its_capture_mode_back_in_two_tries_or_says_so(sim, times):
    with scene() as made:
        made.segments.pause(made.keep)
        sim.reset()
        sim.fail(EXCHANGE, nth=2, times=times)
        if times == 1:
            made.segments.resume()
        else:
            with pytest.raises(CudaDriverError, match=f"^{EXCHANGE}: "):
                made.segments.resume()
            assert made.segments.paused
            must(driver.cuThreadExchangeStreamCaptureMode(GLOBAL))
            made.segments.resume()
        assert own_capture_mode() == GLOBAL
        assert_contents(made)


def test_host_memory_that_cannot_be_given_back_in_peace_stays(sim):
    with scene() as made:
        made.segments.pause(made.keep)
        made.segments.resume()
        held = made.segments.host_bytes
        sim.reset()
        sim.fail(EXCHANGE)
        with pytest.raises(CudaDriverError, match=f"^{EXCHANGE}: "):
            made.segments.release_host()
        assert (made.segments.host_bytes, sim.calls().get("cuMemFreeHost", 0)) == (held, 0)
        made.segments.release_host()
        assert made.segments.host_bytes == 0


@pytest.mark.parametrize("status", ["CUDA_ERROR_OUT_OF_MEMORY", "CUDA_ERROR_NOT_FOUND"])
@pytest.mark.parametrize(("call", "nth"), each_of(RESUME))
def test_a_call_that_fails_in_resume_leaves_all_paused(sim, call, nth, status):
    with scene() as made:
        out = made.segments.segments
        made.segments.pause(made.keep)
        before = sim.live()
        sim.fail(call, nth=nth, status=status)
        with pytest.raises(CudaDriverError, match=f"^{call}: {status} ") as raised:
            made.segments.resume()
        assert not hasattr(raised.value, "__notes__")
        assert made.segments.paused
        assert sim.live() == before
        assert made.malloc(G) is None
        made.segments.resume()
        assert made.segments.segments == out
        assert_contents(made)


AFTER_THE_FIRST = [(call, 2) for call in ("cuMemCreate", "cuMemcpyHtoDAsync")]


@pytest.mark.parametrize(("call", "nth"), [*AFTER_THE_FIRST, ("cuStreamSynchronize", 1)])
def test_a_resume_whose_way_back_fails_too_can_be_tried_again(sim, call, nth):
    with scene() as made:
        made.segments.pause(made.keep)
        sim.fail(call, nth=nth)
        sim.fail("cuMemUnmap", times=100)
        with pytest.raises(CudaDriverError, match=f"^{call}: ") as raised:
            made.segments.resume()
        (note,) = raised.value.__notes__
        assert note.startswith("on the way back: cuMemUnmap: ")
        sim.reset()
        assert made.segments.paused
        assert made.segments.backed_bytes  # on record
        assert made.malloc(G) is None
        made.segments.resume()
        assert_contents(made)


@pytest.mark.parametrize("times", [1, 2])
def test_a_resume_whose_own_commit_cannot_be_undone_can_be_tried_again(sim, times):
    with scene() as made:
        made.segments.pause(made.keep)
        sim.fail("cuMemSetAccess", nth=2, status="CUDA_ERROR_OUT_OF_MEMORY")
        sim.fail("cuMemUnmap", times=times)
        with pytest.raises(CudaOutOfMemoryError, match="^cuMemSetAccess: ") as raised:
            made.segments.resume()
        assert raised.value.__notes__[0].startswith("on the way back: cuMemUnmap: ")
        assert made.segments.paused
        made.segments.resume()
        assert_contents(made)


@pytest.mark.parametrize("times", [1, 2])
def test_what_is_done_is_done_although_the_context_stays(sim, times):
    with pool() as made:
        made.malloc(G)
        for act, paused in ((made.segments.pause, True), (made.segments.resume, False)):
            sim.fail("cuCtxPopCurrent", times=times)
            if times == 1:
                act()
            else:
                with pytest.raises(CudaDriverError, match="^cuCtxPopCurrent: ") as raised:
                    act()
                assert raised.value.__notes__[-1].endswith(" is done all the same")
                must(driver.cuCtxPopCurrent())
            assert made.segments.paused == paused


def test_what_a_failed_way_back_left_is_given_back_with_its_segment(sim):
    with pool() as made:
        first, second = made.malloc(G), made.malloc(G)
        made.segments.pause()
        sim.fail("cuMemCreate", nth=2)
        sim.fail("cuMemUnmap")
        with pytest.raises(CudaDriverError):
            made.segments.resume()
        assert made.segments.backed_bytes == G
        made.free(first, G)
        assert made.segments.backed_bytes == 0
        made.segments.resume()
        assert made.segments.segments == [(second, G)]


def test_out_of_memory_in_resume_is_told_and_passes(sim):
    with primary_context(), pool() as made:
        addresses = filled(made, [G] * 8)
        keep = [(address, G) for address in addresses]
        made.segments.pause(keep)
        sim.fail("cuMemCreate", nth=5, times=100, status="CUDA_ERROR_OUT_OF_MEMORY")
        for _ in range(2):
            with pytest.raises(CudaOutOfMemoryError):
                made.segments.resume()
            sim.fail("cuMemCreate", nth=5, times=100, status="CUDA_ERROR_OUT_OF_MEMORY")
        assert made.segments.backed_bytes == 0
        made.free(addresses.pop(), G)
        sim.reset()
        made.segments.resume()
        assert all(holds(address, G, value) for value, address in enumerate(addresses, 1))


# ---- with a pool of handles


CHUNK = 2 * G
MAKING = {"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemRelease", "cuMemUnmap"}


@contextmanager
def pooled(prefilled=4, **options):
    """Chunks that wait, and segments that are made of them."""
    with HandlePool(0, chunk_bytes=CHUNK, capacity_bytes=4 * CHUNK) as handles:
        handles.prefill(prefilled * CHUNK)
        with pool(pool=handles, **options) as made:
            made.handles = handles
            yield made


def test_a_warm_pool_makes_a_segment_map_and_set_access_and_a_free_one_unmap(sim):
    with pooled() as made:
        sim.reset()
        address = made.malloc(3 * CHUNK)
        assert sim.calls() == {"cuMemMap": 3, "cuMemSetAccess": 1}
        assert made.handles.pooled_handles == 1
        sim.reset()
        made.free(address, 3 * CHUNK)
        assert relevant(sim, MAKING) == {"cuMemUnmap": 1}
        assert made.handles.pooled_handles == 4


def test_pause_gives_to_the_pool_and_resume_takes_from_there(sim):
    with primary_context(), pooled() as made:
        addresses = filled(made, [CHUNK, CHUNK])
        keep = [(address, CHUNK) for address in addresses]
        sim.reset()
        made.segments.pause(keep)
        assert relevant(sim, MAKING) == {"cuMemUnmap": 1}
        assert (made.segments.backed_bytes, made.handles.pooled_handles) == (0, 4)
        sim.reset()
        made.segments.resume()
        assert relevant(sim, MAKING) == {"cuMemMap": 2, "cuMemSetAccess": 2}
        assert all(holds(address, CHUNK, value) for value, address in enumerate(addresses, 1))


def test_a_pool_that_paused_segments_take_from_is_not_closed():
    awaited = "^HandlePool.close: 1 BackedSegments .* are paused, .* resume or close them first$"
    with primary_context(), pooled() as made:
        (address,) = filled(made, [CHUNK])
        made.segments.pause([(address, CHUNK)])
        with pytest.raises(RuntimeError, match=awaited):
            made.handles.close()
        made.segments.resume()
        assert holds(address, CHUNK, 1)
        made.segments.pause()
        made.free(address, CHUNK)
        with pytest.raises(RuntimeError, match=awaited):
            made.handles.close()
        made.segments.close()
        made.handles.close()


def test_a_pool_is_awaited_no_more_when_paused_segments_are_dropped():
    with HandlePool(0, chunk_bytes=CHUNK, capacity_bytes=CHUNK) as handles:
        made = [BackedSegments(RESERVED, device_id=0, pool=handles)]
        made[0].pause()
        with pytest.warns(ResourceWarning, match="was dropped without close"):
            made.clear()


def test_a_pause_that_fails_awaits_no_pool(sim):
    with pooled() as made:
        address = made.malloc(CHUNK)
        sim.fail("cuMemUnmap")
        with pytest.raises(CudaDriverError):
            made.segments.pause()
        made.free(address, CHUNK)
        made.segments.close()
        made.handles.close()


@pytest.mark.parametrize("end", ["close", "drop"])
def test_a_pool_is_dropped_with_the_last_of_its_segments(sim, end):
    handles = HandlePool(0, chunk_bytes=CHUNK, capacity_bytes=CHUNK)
    handles.prefill(CHUNK)
    made = [BackedSegments(RESERVED, device_id=0, pool=handles)]
    if end == "close":
        made[0].close()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made.clear()
        del handles
    assert sim.live()["handles"] == 0


def test_only_a_trimmed_pool_frees_the_memory_of_a_pause(sim):
    with pooled(prefilled=0) as made:
        address = made.malloc(2 * CHUNK)
        before = sim.live()["handles"]
        made.segments.pause()
        assert sim.live()["handles"] == before == 2
        made.handles.trim()
        assert sim.live()["handles"] == 0
        made.segments.resume()
        assert made.segments.segments == [(address, 2 * CHUNK)]


def test_a_segment_that_is_no_whole_chunks_has_its_tail_from_elsewhere(sim):
    with pooled() as made:
        sim.reset()
        address = made.malloc(CHUNK + G)
        assert sim.calls() == {
            "cuMemCreate": 1,
            "cuMemMap": 2,
            "cuMemSetAccess": 1,
            "cuMemRelease": 1,
        }
        made.free(address, 0)
        assert made.handles.pooled_handles == 4


def test_what_the_pool_has_no_room_for_is_released(sim):
    with pooled() as made:
        made.malloc(6 * CHUNK)
        made.segments.pause()
        assert made.handles.pooled_handles == sim.live()["handles"] == 4


WITH_A_POOL = {"cuMemCreate": 2, "cuMemMap": 4, "cuMemSetAccess": 1}


@pytest.mark.parametrize("status", ["CUDA_ERROR_OUT_OF_MEMORY", "CUDA_ERROR_NOT_FOUND"])
@pytest.mark.parametrize(("call", "nth"), each_of(WITH_A_POOL))
def test_a_call_that_fails_with_a_pool_gets_null_and_loses_no_chunk(sim, call, nth, status):
    with pooled(prefilled=2) as made:
        sim.fail(call, nth=nth, status=status, times=2)
        assert made.malloc(4 * CHUNK) is None
        assert made.segments.last_error.call == call
        assert made.segments.backed_bytes == 0
        assert made.handles.pooled_handles == sim.live()["handles"]
        sim.reset()
        assert made.malloc(4 * CHUNK)


@pytest.mark.parametrize(("call", "nth"), each_of({"cuMemMap": 3, "cuMemSetAccess": 2}))
def test_a_resume_that_fails_has_its_chunks_back_in_the_pool(sim, call, nth):
    with pooled() as made:
        segments = [(made.malloc(size_bytes), size_bytes) for size_bytes in (CHUNK, 2 * CHUNK)]
        made.segments.pause()
        sim.fail(call, nth=nth)
        with pytest.raises(CudaDriverError, match=f"^{call}: "):
            made.segments.resume()
        assert (made.segments.paused, made.handles.pooled_handles) == (True, 4)
        made.segments.resume()
        assert made.segments.segments == sorted(segments)


def test_a_pause_that_fails_keeps_the_chunks(sim):
    with pooled() as made:
        made.malloc(2 * CHUNK)
        sim.fail("cuMemUnmap")
        with pytest.raises(CudaDriverError, match="^cuMemUnmap: "):
            made.segments.pause()
        assert (made.segments.paused, made.segments.backed_bytes) == (False, 2 * CHUNK)
        assert made.handles.pooled_handles == 2


def test_a_closed_pool_is_told():
    handles = HandlePool(0, chunk_bytes=CHUNK, capacity_bytes=CHUNK)
    with pool(pool=handles) as made:
        made.malloc(CHUNK)
        with pytest.raises(RuntimeError, match="1 of its handles are in use"):
            handles.close()
    handles.close()
    with pytest.raises(RuntimeError, match="^BackedSegments: the pool is closed$"):
        BackedSegments(G, pool=handles)


def test_why_nothing_comes_from_a_closed_pool():
    handles = HandlePool(0, chunk_bytes=CHUNK, capacity_bytes=CHUNK)
    with pool(pool=handles) as made:
        handles.close()
        assert made.malloc(CHUNK) is None
        assert str(made.segments.last_error) == (
            "BackedSegments: the reservation's HandlePool is closed"
        )


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        ({"pool": 3}, TypeError, "pool must be a HandlePool, not int"),
        ({"chunk_bytes": G}, ValueError, f"chunk_bytes {G} is not that of the HandlePool, {CHUNK}"),
        ({"device_id": 1}, ValueError, "device_id is 1, but the pool's is 0"),
    ],
)
def test_what_contradicts_the_pool_is_refused(wrong, error, text):
    with HandlePool(0, chunk_bytes=CHUNK, capacity_bytes=CHUNK) as handles:
        with pytest.raises(error, match=f"^{text}$"):
            BackedSegments(**{"reserve_bytes": G, "pool": handles, **wrong})
        BackedSegments(G, pool=handles, chunk_bytes=CHUNK).close()


# ---- the end


def test_close_is_refused_while_a_segment_is_out():
    made = Pool()
    address = made.malloc(G)
    with pytest.raises(RuntimeError, match=f"close: 1 segments of {G} bytes are out"):
        made.segments.close()
    assert made.malloc(G)
    made.end()
    assert made.segments.closed
    made.segments.close()
    assert made.malloc(G) is None
    made.free(address, G)
    with pytest.raises(RuntimeError, match="^BackedSegments.pause after close$"):
        made.segments.pause()


def test_segments_are_closed_while_paused(sim):
    made = Pool()
    address = made.malloc(G)
    made.segments.pause([(address, G)])
    made.free(address, G)
    made.segments.close()
    assert made.segments.host_bytes == 0
    assert not any(sim.live().values())


@pytest.mark.parametrize("call", ["cuMemUnmap", "cuMemAddressFree", "cuMemFreeHost"])
def test_a_close_that_fails_is_finished_by_the_next(sim, call):
    made = Pool()
    address = made.malloc(G)
    made.segments.pause([(address, G)])
    made.segments.resume()
    # At the free, and once more before the end.
    sim.fail(call, times=3 if call == "cuMemUnmap" else 1)
    made.free(address, G)
    with pytest.raises(CudaDriverError, match=f"^{call}: "):
        made.segments.close()
    assert made.malloc(G) is None
    made.segments.close()
    assert made.segments.closed
    assert not any(sim.live().values())


def test_dropped_open_they_are_closed_with_a_warning(sim):
    made = Pool()
    with pytest.warns(ResourceWarning, match="was dropped without close"):
        del made.segments
    del made
    gc.collect()
    assert not any(sim.live().values())


def test_dropped_open_what_was_freed_is_waited_for_and_given_back(sim):
    waits = []
    made = Pool(quiesce=lambda: waits.append(True))
    sim.fail("cuEventRecord", times=100)
    made.free(made.malloc(G), G, PER_THREAD)
    with pytest.warns(ResourceWarning, match="was dropped without close"):
        del made.segments
    assert waits == [True]
    del made
    gc.collect()
    assert not any(sim.live().values())


KEPT = """
import gc, sys
sys.path.insert(0, {tests!r})
from arena_help import c_functions
from vmmcy import BackedSegments, BumpArena, live, sim

def quiesce():
    raise RuntimeError("somebody captures")

segments = BackedSegments(1 << 30, device_id=0, quiesce=quiesce)
malloc, free = c_functions(segments.entry_points)
address = malloc(2 << 20)
for _ in range({refused}):
    sim.fail("cuEventRecord", times=100)
{steps}
gc.collect()
assert malloc(2 << 20) is None
for _ in range(256):
    BumpArena().close()
print(live()["mappings"])
"""


ENDS = {
    "dropped": "del segments; gc.collect()",
    "in a cycle": "kept = [segments, segments.entry_points]; kept += [kept]; del segments, kept; "
    "gc.collect()",
}


@pytest.mark.parametrize("refused", [0, 1])
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("steps", ["free(address, 0); {end}", "{end}; free(address, 0)"])
def test_dropped_open_only_what_nobody_could_wait_for_is_kept(sim, steps, end, refused):
    steps = steps.format(end=end)
    seen = run_python(KEPT.format(tests=TESTS, steps=steps, refused=refused))
    assert (seen.returncode, seen.stdout) == (0, f"{refused}\n"), seen.stderr


def test_a_slot_serves_nobody_else_while_a_call_is_at_work(sim):
    entry_points = []
    with pool() as made:
        made.malloc(G)
        entry_points.append(made.segments.entry_points.malloc_address)
        with BumpArena() as arena:
            entry_points.append(arena.entry_points.malloc_address)
    assert len(set(entry_points)) == 2


# ---- threads and processes


def test_many_threads_ask_and_free_while_one_pauses_and_resumes():
    # A segment that is out keeps its bytes over pauses of the others' making.
    errors = []
    with primary_context(), pool(256 * G) as made:
        stop = threading.Event()

        def work(seed):
            random, mine = Random(seed), []
            while not stop.is_set():
                if mine and random.random() < 0.5:
                    made.free(*mine.pop())
                elif (address := made.malloc(G)) is not None:
                    mine.append((address, G))
            for segment in mine:
                made.free(*segment)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        kept = made.malloc(3 * G)
        fill(kept, 3 * G, 9)
        for thread in threads:
            thread.start()
        try:
            for _ in range(50):
                made.segments.pause([(kept, 3 * G)])
                made.segments.resume()
                made.segments.synchronize()
                if not holds(kept, 3 * G, 9):
                    errors.append("lost")
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert errors == []
        assert made.segments.segments == [(kept, 3 * G)]
        assert made.segments.ignored_frees == 0


FORKED = """
import os, sys
sys.path.insert(0, "tests")
from arena_help import c_functions
from vmmcy import BackedSegments

segments = BackedSegments(1 << 30, device_id=0)
malloc, free = c_functions(segments.entry_points)
address = malloc(2 << 20)
child = os.fork()
if child == 0:
    assert malloc(2 << 20) is None
    free(address, 2 << 20)
    for method in (segments.pause, segments.resume, segments.synchronize, segments.close):
        try:
            method()
        except RuntimeError as error:
            assert "made before this process was forked" in str(error), error
        else:
            raise AssertionError(method)
    assert "a parent process's" in repr(segments)
    del segments
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
segments.pause()
segments.resume()
free(address, 2 << 20)
segments.close()
print("parent intact")
"""


def test_a_forked_child_is_refused():
    seen = run_python(FORKED.replace('"tests"', repr(TESTS)))
    assert (seen.stdout, seen.returncode) == ("parent intact\n", 0), seen.stderr


EXIT = """
import sys, ctypes
sys.path.insert(0, {tests!r})
from arena_help import MALLOC
from vmmcy import BackedSegments

segments = BackedSegments(1 << 30, device_id=0)
entry_points = segments.entry_points
malloc = MALLOC(entry_points.malloc_address)
address = malloc(2 << 20, 0, None)
{more}
print("end")
"""


@pytest.mark.parametrize(
    "more",
    ["", "segments.pause([(address, 5)])", "del segments", "kept = [segments]; kept += [kept]"],
)
def test_the_interpreter_exits_in_any_state(more):
    seen = run_python(EXIT.format(tests=TESTS, more=more))
    assert (seen.returncode, seen.stdout) == (0, "end\n"), seen.stderr


# ---- arguments


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        ({"reserve_bytes": 1.5}, TypeError, "reserve_bytes must be an integer"),
        ({"quiesce": 0}, TypeError, "quiesce must be callable, not int 0"),
        ({"reserve_bytes": 0}, ValueError, "reserve_bytes must be "),
        ({"device_id": 99}, ValueError, "device_id 99 is not a visible device"),
        ({"chunk_bytes": 4096}, ValueError, "chunk_bytes 4096 is not a multiple of the gran"),
        ({"chunk_bytes": 0}, ValueError, "chunk_bytes must be "),
    ],
)
def test_arguments_are_named(wrong, error, text):
    with pytest.raises(error, match=f"^{text}"):
        BackedSegments(**{"reserve_bytes": G, "device_id": 0, **wrong})


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        ({"name": 3}, TypeError, "name must be a str, not int 3"),
        ({"name": None}, TypeError, "name must be a str, not NoneType None"),
        (
            {"reserve_bytes": 2**64 - 1},
            ValueError,
            f"reserve_bytes {2**64 - 1} in whole granules, ",
        ),
    ],
)
def test_arguments_are_checked_before_the_addresses(sim, wrong, error, text):
    with pytest.raises(error, match=f"^{text}"):
        BackedSegments(**wrong)
    assert "cuMemAddressReserve" not in sim.calls()


def test_a_name_may_be_of_a_kind_of_its_own():
    class Name(str):
        pass

    segments = BackedSegments(G, name=Name("weights"))
    with segments, pytest.raises(RuntimeError, match=r"^weights.resume: not paused$"):
        segments.resume()


def test_addresses_that_the_driver_refuses(sim):
    sim.fail("cuMemAddressReserve")
    with pytest.raises(CudaDriverError, match="^cuMemAddressReserve: "):
        BackedSegments(G, device_id=0)


def test_they_are_made_once_and_never_copied():
    import copy

    with pool() as made:
        with pytest.raises(RuntimeError, match="on one that was made"):
            made.segments.__init__(G)
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            copy.copy(made.segments)


def test_by_default_a_tebibyte_of_addresses_is_reserved():
    segments = BackedSegments(device_id=0)
    assert segments.reserve_bytes == 1 << 40
    with segments:
        malloc, free = c_functions(segments.entry_points)
        free(malloc(MIB), MIB)


@pytest.mark.parametrize(
    "later",
    [BackedSegments.pause, BackedSegments.resume, BackedSegments.synchronize],
)
def test_after_a_close_that_failed_only_close_is_left(sim, later):
    with pool() as made:
        made.malloc(0)
        made.segments.pause()
        made.free(made.segments.base, G)
        sim.fail("cuMemAddressFree")
        with pytest.raises(CudaDriverError):
            made.segments.close()
        assert "only close is left" in repr(made.segments)
        assert made.malloc(G) is None
        assert str(made.segments.last_error) == "BackedSegments: nothing is handed out after close"
        with pytest.raises(RuntimeError, match=r"left what only close can undo"):
            later(made.segments)


def test_dropped_segments_hand_out_nothing_although_their_entry_points_live(sim):
    made = Pool()
    out = made.malloc(G)
    points = made.segments.entry_points
    with pytest.warns(ResourceWarning, match="was dropped without close"):
        del made.segments
    assert made.malloc(G) is None
    assert sim.live()["mapped_bytes"] == G
    made.free(out, G)
    assert points.malloc_address


def test_dropped_segments_with_nothing_out_are_closed_although_their_entry_points_live(sim):
    made = Pool()
    points = made.segments.entry_points
    with pytest.warns(ResourceWarning, match="was dropped without close"):
        del made.segments
    assert sim.live()["reservations"] == 0
    assert points.malloc_address


def test_while_another_thread_closes_nobody_is_told_of_a_failure():
    told = set()

    def use(segments, start, act):
        start.wait()
        is_closed = False
        while not is_closed:
            is_closed = segments.closed
            try:
                act(segments)
            except RuntimeError as error:
                told.add(str(error))

    acts = [
        lambda segments: segments.entry_points,
        lambda segments: segments.synchronize(),
        lambda segments: segments.release_host(),
        lambda segments: segments.__enter__(),
    ]
    for _ in range(50):
        segments = BackedSegments(RESERVED, device_id=0)
        start = threading.Barrier(len(acts) + 1)
        threads = [threading.Thread(target=use, args=(segments, start, act)) for act in acts]
        for thread in threads:
            thread.start()
        start.wait()
        segments.close()
        for thread in threads:
            thread.join()
    assert told == {
        f"BackedSegments.{method} after close"
        for method in ("synchronize", "release_host", "__enter__")
    }
