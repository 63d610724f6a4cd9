"""Buffers that are backed from their starts: all or nothing, and tails that come back."""

import gc
import itertools
import os

import pytest
from conformance.steps import G
from hypothesis import given, settings
from hypothesis import strategies as st
from reservation_help import places

from vmmcy import _buffer_spans
from vmmcy._buffer_spans import BufferSpans
from vmmcy.errors import CudaDriverError
from vmmcy.handle_pool import HandlePool
from vmmcy.properties import free_memory_bytes

SIZES = (8 * G, 3 * G - 5, 100)
WHOLE = (8 * G, 3 * G - 5, 100)
TWO_CHUNKS = 2 * G


def nothing_runs():
    """No kernel uses the memory of these tests."""


def busy():
    raise RuntimeError("a capture is under way")


def make(sizes_bytes=SIZES, chunk_bytes=TWO_CHUNKS, quiesce=nothing_runs):
    return BufferSpans(sizes_bytes, 0, chunk_bytes, quiesce)


@pytest.fixture
def spans():
    spans = make()
    yield spans
    spans._quiesce = nothing_runs
    spans.close()


def state(spans):
    return spans.spans, spans.reservation.mappings, spans.is_final


def test_each_buffer_starts_on_a_granule_and_nothing_is_backed(spans):
    assert spans.offsets == [0, 8 * G, 11 * G]
    assert (spans.reservation.size, spans.reservation.mapped_bytes) == (12 * G, 0)
    assert [spans.address(index) - spans.reservation.base for index in range(3)] == spans.offsets


def test_what_is_backed_is_the_spans_rounded_to_granules_in_chunks(spans):
    assert spans.grow((5 * G - 1, 1, 0), "ensure") == 6 * G
    assert places(spans.reservation) == [(0, 2), (2, 2), (4, 1), (8, 1)]
    assert spans.spans == (5 * G - 1, 1, 0)
    assert spans.grow((5 * G, G, 0), "ensure") == 0
    assert spans.grow(WHOLE, "ensure") == 6 * G
    assert places(spans.reservation) == [
        (0, 2), (2, 2), (4, 1), (5, 1), (6, 2), (8, 1), (9, 1), (10, 1), (11, 1),
    ]  # fmt: skip
    assert spans.grow((0, 0, 0), "ensure") == 0
    assert spans.spans == WHOLE


def test_only_whole_mappings_past_the_spans_come_back(spans):
    spans.grow(WHOLE, "ensure")
    assert spans.shrink((3 * G, 3 * G - 5, 100), "shrink") == 4 * G
    assert places(spans.reservation)[:2] == [(0, 2), (2, 2)]
    assert spans.spans == (3 * G, 3 * G - 5, 100)
    assert spans.shrink((2 * G + 1, G, 0), "shrink") == 2 * G
    assert places(spans.reservation) == [(0, 2), (2, 2), (8, 2)]
    assert spans.shrink(WHOLE, "shrink") == 0
    assert spans.spans == (2 * G + 1, G, 0)
    assert spans.grow((3 * G, 0, 1), "ensure") == G
    assert spans.shrink((0, 0, 0), "shrink") == spans.grow((4 * G, 2 * G, 1), "ensure") == 7 * G


def test_what_is_final_stays(spans):
    spans.grow((G, 0, 0), "finalize", final=True)
    before = state(spans)
    too_large = (9 * G, -1, 0)
    for act, method in ((spans.grow, "ensure"), (spans.grow, "finalize"), (spans.shrink, "shrink")):
        with pytest.raises(RuntimeError, match=f"^KvArena.{method} after finalize: "):
            act(too_large, method)
    assert state(spans) == before
    spans.close()
    with pytest.raises(RuntimeError, match="^KvArena.ensure after close$"):
        spans.grow((0, 0, 0), "ensure")
    spans.close()


@pytest.mark.parametrize(
    ("wanted", "error", "text"),
    [
        ((G, G), ValueError, "2 spans for 3 buffers"),
        ((G, G, G), ValueError, rf"spans\[2\] is {G} bytes, but buffer 2 has 100"),
        ((G, -1, 0), ValueError, r"spans\[1\] must not be negative"),
        ((G, 0.5, 0), TypeError, r"spans\[1\] must be an integer"),
        ((G, True, 0), TypeError, r"spans\[1\] must be an integer"),
        (G, TypeError, "spans must be an iterable of bytes"),
        ("123", TypeError, "spans must be an iterable of bytes"),
    ],
)
def test_spans_that_do_not_fit_are_refused_before_anything_is_backed(spans, wanted, error, text):
    spans.grow((G, 0, 0), "ensure")
    before = state(spans)
    for act in (spans.grow, spans.shrink):
        with pytest.raises(error, match=f"^{text}"):
            act(wanted, "ensure")
    assert state(spans) == before


@pytest.mark.parametrize("chunk_bytes", [0, -G, G + 1, G // 2])
def test_a_chunk_is_whole_granules(chunk_bytes):
    with pytest.raises(ValueError, match="^chunk_bytes "):
        make(chunk_bytes=chunk_bytes)


def test_a_chunk_is_64_mib_unless_told():
    spans = make(chunk_bytes=None)
    assert spans.chunk_bytes == 64 << 20
    spans.close()


# ---- failures of the driver


GROWN = ((3 * G, G, 0), WHOLE)  # what is there, and what is asked for
CALLS = {"cuMemCreate": 6, "cuMemMap": 6, "cuMemSetAccess": 5, "cuMemRelease": 6}
EACH = [(call, nth) for call, count in CALLS.items() for nth in range(1, count + 1)]


def test_the_driver_calls_of_a_growth(sim, spans):
    spans.grow(GROWN[0], "ensure")
    sim.reset()
    spans.grow(GROWN[1], "ensure")
    assert sim.calls() == CALLS


@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize(("call", "nth"), EACH)
def test_one_failing_call_leaves_every_buffer_as_it_was(sim, spans, call, nth, final):
    spans.grow(GROWN[0], "ensure")
    before, live = state(spans), sim.live()
    sim.fail(call, nth=nth)
    with pytest.raises(CudaDriverError, match=f"^{call}: ") as raised:
        spans.grow(GROWN[1], "ensure", final=final)
    assert not hasattr(raised.value, "__notes__")
    assert (state(spans), sim.live()) == (before, live)
    sim.reset()
    assert spans.grow(GROWN[1], "ensure", final=final) == 8 * G
    assert sim.calls() == CALLS


def test_what_cannot_be_given_back_is_noted_and_counts_as_backed(sim, spans):
    sim.fail("cuMemCreate", nth=7)
    sim.fail("cuMemUnmap")
    with pytest.raises(CudaDriverError, match="^cuMemCreate: ") as raised:
        spans.grow(WHOLE, "ensure")
    assert raised.value.__notes__[0].startswith("on the way back, buffer 0: cuMemUnmap: ")
    assert len(raised.value.__notes__) == 1
    assert spans.spans == (0, 0, 0)
    assert spans.reservation.mapped_bytes == 8 * G
    assert spans.grow(WHOLE, "ensure") == 4 * G
    assert spans.shrink((0, 0, 0), "shrink") == 12 * G


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_shrink_that_fails_has_given_back_the_buffers_before(sim, spans, nth):
    spans.grow(WHOLE, "ensure")
    sim.fail("cuMemUnmap", nth=nth)
    with pytest.raises(CudaDriverError, match="^cuMemUnmap: "):
        spans.shrink((0, 0, 0), "shrink")
    assert spans.spans == (0,) * (nth - 1) + WHOLE[nth - 1 :]
    assert spans.reservation.mapped_bytes == (12 - sum((8, 3, 1)[: nth - 1])) * G
    assert spans.shrink((0, 0, 0), "shrink") == sum((8, 3, 1)[nth - 1 :]) * G


def test_out_of_memory_in_the_last_buffer_backs_nothing(sim):
    sim.load(memory_bytes=10 * G)
    try:
        spans = make()
        with pytest.raises(MemoryError, match="^cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY"):
            spans.grow(WHOLE, "ensure")
        assert spans.reservation.mapped_bytes == 0
        assert spans.grow((7 * G, 3 * G - 5, 0), "ensure") == 10 * G
        spans.close()
    finally:
        sim.load()


# ---- who waits for kernels


def test_memory_is_taken_away_only_after_a_wait():
    mapped = []
    spans = make(quiesce=lambda: mapped.append(spans.reservation.mapped_bytes))
    spans.grow((4 * G, 0, 0), "ensure")
    spans.shrink((4 * G, 0, 0), "shrink")
    assert mapped == []
    spans.shrink((2 * G, 0, 0), "shrink")
    assert mapped == [4 * G]
    spans.close()
    spans.close()
    assert mapped == [4 * G, 2 * G]


def test_where_nobody_can_wait_nothing_is_taken_away(spans):
    spans.grow((4 * G, 0, 0), "ensure")
    before = state(spans)
    spans._quiesce = busy
    for act in (lambda: spans.shrink((0, 0, 0), "shrink"), spans.close):
        with pytest.raises(RuntimeError, match="^a capture is under way$"):
            act()
    assert state(spans) == before
    spans.grow((5 * G, 0, 0), "ensure")


def test_dropped_open_it_goes_after_a_wait():
    mapped = []
    spans = make()
    kept = [spans.reservation]
    spans._quiesce = lambda: mapped.append(kept[0].mapped_bytes)
    spans.grow((4 * G, 0, 0), "ensure")
    del spans
    gc.collect()
    assert mapped == [4 * G]
    with pytest.warns(ResourceWarning, match=r"dropped without close\(\)$"):
        kept.clear()


def test_dropped_open_where_nobody_can_wait_it_stays():
    spans = make(quiesce=busy)
    spans.grow((4 * G, 0, 0), "ensure")
    del spans
    gc.collect()
    (kept,) = _buffer_spans._never_unmapped
    assert kept.mapped_bytes == 4 * G
    _buffer_spans._never_unmapped.clear()
    kept.close()


def test_a_closed_arena_is_refused_by_its_own_name(spans):
    spans.close()
    for act in (
        lambda: spans.check_open("__enter__"),
        lambda: spans.grow([0] * len(SIZES), "__enter__"),
    ):
        with pytest.raises(RuntimeError, match=r"^KvArena.__enter__ after close$"):
            act()


def test_a_child_is_refused_without_the_parents_lock(spans):
    with spans._lock:
        child = os.fork()
        if child == 0:
            refusals = 0
            for act in (lambda: spans.grow((0, 0, 0), "ensure"), spans.close):
                try:
                    act()
                except RuntimeError as error:
                    refusals += "before this process was forked" in str(error)
            os._exit(refusals)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2


# ---- against a model


class Model:
    """The mappings of each buffer as (start, end), by the rules in words."""

    def __init__(self):
        self.mappings = [[] for _ in SIZES]
        self.spans = [0] * len(SIZES)

    def grow(self, wanted):
        for index, span in enumerate(wanted):
            starts = range(0, SIZES[index], G)
            ends = [end for _, end in self.mappings[index]]
            fresh = [start for start in starts if start >= max(ends, default=0) and start < span]
            for _, granules in itertools.groupby(fresh, lambda start: start // TWO_CHUNKS):
                run = list(granules)
                self.mappings[index].append((run[0], run[-1] + G))
            self.spans[index] = max(self.spans[index], span)

    def shrink(self, wanted):
        for index, span in enumerate(wanted):
            self.mappings[index] = [m for m in self.mappings[index] if m[0] < span]
            self.spans[index] = min(self.spans[index], span)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.booleans(), st.tuples(*(st.integers(0, size) for size in SIZES))), max_size=12
    )
)
def test_any_sequence_is_as_the_model_says(steps):
    spans, model = make(), Model()
    for grows, wanted in steps:
        if grows:
            spans.grow(wanted, "ensure")
            model.grow(wanted)
        else:
            spans.shrink(wanted, "shrink")
            model.shrink(wanted)
        expected = [
            ((spans.offsets[index] + start) // G, (end - start) // G)
            for index, mappings in enumerate(model.mappings)
            for start, end in mappings
        ]
        assert places(spans.reservation) == expected
        assert spans.spans == tuple(model.spans)
    spans.close()


# ---- how much is free


def test_free_memory_counts_what_is_backed(spans):
    before = free_memory_bytes(0)
    spans.grow((4 * G, 0, 0), "ensure")
    assert before - free_memory_bytes(0) == 4 * G


def test_free_memory_is_refused_for_a_device_that_is_not_there():
    with pytest.raises(ValueError, match="^device_id 99 is not a visible device"):
        free_memory_bytes(99)


@pytest.mark.parametrize("call", ["cuMemGetInfo", "cuCtxPopCurrent"])
def test_free_memory_leaves_the_context_as_it_was(sim, call):
    free_memory_bytes(0)
    sim.fail(call)
    with pytest.raises(CudaDriverError, match=f"^{call}: "):
        free_memory_bytes(0)
    sim.reset()
    assert free_memory_bytes(0) > 0
    assert sim.calls()["cuCtxPushCurrent"] == sim.calls()["cuCtxPopCurrent"]


# ---- with a pool of handles


@pytest.fixture
def handles():
    with HandlePool(0, chunk_bytes=TWO_CHUNKS, capacity_bytes=4 * TWO_CHUNKS) as handles:
        handles.prefill(4 * TWO_CHUNKS)
        yield handles


def test_whole_chunks_come_from_the_pool_and_go_back(sim, handles):
    spans = BufferSpans(SIZES, None, None, nothing_runs, handles)
    assert spans.chunk_bytes == TWO_CHUNKS
    sim.reset()
    assert spans.grow((8 * G, 0, 0), "ensure") == 8 * G
    assert "cuMemCreate" not in sim.calls()
    assert handles.pooled_handles == 0
    assert spans.shrink((2 * G, 0, 0), "shrink") == 6 * G
    assert handles.pooled_handles == 3
    assert spans.grow((2 * G, G, 0), "ensure") == G  # a part of a chunk is made
    assert handles.pooled_handles == 3
    spans.close()
    assert handles.pooled_handles == 4


@pytest.mark.parametrize("call", ["cuMemMap", "cuMemSetAccess"])
def test_a_failed_ensure_loses_no_chunk(sim, handles, call):
    spans = BufferSpans(SIZES, 0, TWO_CHUNKS, nothing_runs, handles)
    sim.fail(call, nth=2)
    with pytest.raises(CudaDriverError, match=f"^{call}: "):
        spans.grow((4 * G, 2 * G, 0), "ensure")
    assert (spans.reservation.mapped_bytes, handles.pooled_handles) == (0, 4)
    spans.close()


@pytest.mark.parametrize(
    ("device_id", "chunk_bytes", "text"),
    [(1, None, "device_id is 1, but the pool's is 0"), (0, G, f"chunk_bytes {G} is not that of")],
)
def test_what_contradicts_the_pool_is_refused(handles, device_id, chunk_bytes, text):
    with pytest.raises(ValueError, match=f"^{text}"):
        BufferSpans(SIZES, device_id, chunk_bytes, nothing_runs, handles)
