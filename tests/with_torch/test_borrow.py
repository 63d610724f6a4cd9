"""Borrowing the free memory of a real graph's pool: needs a GPU."""

import doctest
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch_help

torch = torch_help.cuda_torch()

from vmmcy import VmmReservation  # noqa: E402
from vmmcy.torch import capture, lending  # noqa: E402
from vmmcy.torch.borrowing import GraphPoolBorrower  # noqa: E402
from vmmcy.torch.graph_pool import free_runs, snapshot_of  # noqa: E402
from vmmcy.torch.pool_runs import runs_of  # noqa: E402

HOW_TO = Path(__file__).parents[2] / "docs" / "borrowing.md"
MIB = 1 << 20
WIDE = 64 * MIB  # floats of the graph's intermediate results: 256 MiB each
BORROWED = 200 * MIB


class Captured:
    """A graph whose intermediate results lie in its pool and are free between replays."""

    def __init__(self):
        self.pool = torch.cuda.graph_pool_handle()
        self.borrower = GraphPoolBorrower(self.pool, 0)
        self.input = torch.zeros(WIDE, device="cuda")
        self.graph = torch.cuda.CUDAGraph()
        self._compute()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        self.capture()

    def _compute(self):
        doubled = self.input * 2
        shifted = doubled + 1
        return shifted.sum()

    def capture(self):
        with self.borrower.capture_scope(), torch.cuda.graph(self.graph, pool=self.pool):
            self.output = self._compute()

    def replay(self, value):
        """Replay over an input of `value` and return the result."""
        self.input.fill_(value)
        with self.borrower.replay_scope():
            self.graph.replay()
        return self.output.item()

    def expected(self, value):
        return pytest.approx(float(WIDE * (2 * value + 1)))

    def runs(self):
        return free_runs(self.pool, 0)

    def holds(self, tensor):
        """Whether the tensor lies in one of the runs, all of it."""
        start, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        return any(base <= start and end <= base + size for base, size in self.runs())


@pytest.fixture
def captured():
    captured = Captured()
    yield captured
    captured.borrower.disable("the test is over")
    del captured.graph, captured.output
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def free_device_bytes():
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info(0)[0]


def largest_cached_bytes():
    """The largest block that torch's ordinary memory could hand out without asking the driver."""
    ordinary = [
        segment
        for segment in torch.cuda.memory_snapshot(include_traces=False)
        if tuple(segment["segment_pool_id"]) == (0, 0)
    ]
    return max((size_bytes for _, size_bytes in runs_of(ordinary, 0)), default=0)


def ramp():
    return torch.arange(BORROWED // 4, dtype=torch.float32, device="cuda")


# ---- what is free


def test_free_runs_are_the_pools_inactive_bytes(captured):
    runs = captured.runs()
    assert runs == sorted(runs, key=lambda run: -run[1])
    assert runs[0][1] >= 4 * WIDE, (runs, snapshot_of(captured.pool))
    output = captured.output.data_ptr()
    assert not any(base <= output < base + size for base, size in runs)
    assert captured.borrower.largest_run == runs[0][1]


def test_a_pool_never_used_or_freed_is_refused(captured):
    with pytest.raises(ValueError, match="has no memory pool"):
        free_runs(torch.cuda.graph_pool_handle(), 0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = torch.ones(MIB, device="cuda") * 2
    pool = graph.pool()
    assert free_runs(pool, 0) == free_runs(graph, 0)
    del graph
    gc.collect()
    with pytest.raises(ValueError, match=r"was freed|has no memory pool"):
        free_runs(pool, 0)
    del kept
    torch.cuda.empty_cache()
    with pytest.raises(ValueError, match="has no memory pool"):
        free_runs(pool, 0)


def test_looking_does_not_keep_a_pool_alive():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        torch.empty(32 * MIB, dtype=torch.uint8, device="cuda")
    before = pool.use_count()
    assert free_runs(pool, 0)[0][1] == 32 * MIB
    assert pool.use_count() == before


# ---- borrowing


def test_a_large_temporary_lands_in_the_graphs_pool_and_costs_no_device_memory(captured):
    plain = ramp()
    expected = (plain.sin() * plain).sum().item()
    del plain
    gc.collect()
    torch.cuda.empty_cache()
    assert largest_cached_bytes() < BORROWED
    captured.replay(1.0)
    free = free_device_bytes()
    assert captured.borrower.can_fit(BORROWED)
    with captured.borrower.borrow("sampler"):
        borrowed = ramp()
        assert captured.holds(borrowed), (borrowed.data_ptr(), captured.runs())
        borrowed.sin_()
        assert borrowed.sum().item() != 0
        del borrowed
    with captured.borrower.borrow("sampler again"):
        borrowed = ramp()
        total = (borrowed.sin().mul_(borrowed)).sum().item()
        del borrowed
    assert total == expected
    assert free_device_bytes() == free


def test_replays_right_after_a_borrow_are_right(captured):
    for round_ in range(20):
        with captured.borrower.borrow("round"):
            torch.full((BORROWED,), 255, dtype=torch.uint8, device="cuda")
        assert captured.replay(float(round_)) == captured.expected(round_)


def test_only_this_thread_borrows(captured):
    with captured.borrower.borrow("one"), ThreadPoolExecutor(1) as threads:
        elsewhere = threads.submit(torch.empty, 4 * MIB, device="cuda").result()
        here = torch.empty(4 * MIB, device="cuda")
        assert captured.holds(here)
        assert not captured.holds(elsewhere)
        del here


def test_small_requests_leave_the_largest_run_to_a_large_one(captured):
    largest = captured.borrower.largest_run
    with captured.borrower.borrow("many"):
        small = [torch.empty(1024, device="cuda") for _ in range(64)]
        middle = torch.empty(5 * MIB, dtype=torch.uint8, device="cuda")
        large = torch.empty(largest // 2, dtype=torch.uint8, device="cuda")
        assert all(map(captured.holds, [*small, middle, large]))
        del small, middle, large
    with captured.borrower.borrow("one"):
        whole = torch.empty(largest - 64 * MIB, dtype=torch.uint8, device="cuda")
        del whole


def test_what_no_run_holds_is_out_of_memory_and_the_next_request_works(captured):
    largest = captured.borrower.largest_run
    assert not captured.borrower.can_fit(largest + 1)
    with captured.borrower.borrow("greedy"):
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(2 * largest, dtype=torch.uint8, device="cuda")
        fits = torch.empty(MIB, device="cuda")
        del fits
    assert captured.replay(3.0) == captured.expected(3.0)


def test_forty_runs_are_all_of_use():
    size_bytes = 16 * MIB
    with VmmReservation(40 * 2 * size_bytes, device_id=0) as reservation:
        reservation.commit(0, reservation.size)
        runs = [(reservation.base + 2 * n * size_bytes, size_bytes) for n in range(40)]
        borrower = GraphPoolBorrower(None, 0)
        assert (borrower.largest_run, borrower.can_fit(1)) == (0, False)
        borrower.set_static_runs(runs)
        assert borrower.largest_run == size_bytes
        with borrower.borrow("forty"):
            # Two runs' worth of the 40 may go to small requests.
            tensors = [
                torch.full((12 * MIB,), n, dtype=torch.uint8, device="cuda") for n in range(38)
            ]
            places = {(tensor.data_ptr() - reservation.base) // size_bytes for tensor in tensors}
            smalls = [torch.empty(MIB, dtype=torch.uint8, device="cuda") for _ in range(31)]
            places |= {(tensor.data_ptr() - reservation.base) // size_bytes for tensor in smalls}
            assert places == set(range(0, 80, 2)), sorted(places)
            assert [tensor.min().item() for tensor in tensors] == list(range(38))
            del tensors, smalls
        borrower.disable("the test is over")
        gc.collect()
        torch.cuda.synchronize()


def test_a_new_capture_is_followed_by_new_runs(captured):
    with captured.borrower.borrow("before"):
        torch.empty(BORROWED, dtype=torch.uint8, device="cuda")
    second = torch.cuda.CUDAGraph()
    with captured.borrower.capture_scope(), torch.cuda.graph(second, pool=captured.pool):
        kept = (captured.input * 3)[: 16 * MIB].clone()
    with captured.borrower.borrow("after"):
        borrowed = torch.full((BORROWED,), 7, dtype=torch.uint8, device="cuda")
        start, end = borrowed.data_ptr(), borrowed.data_ptr() + BORROWED
        assert not start <= kept.data_ptr() < end
        assert captured.holds(borrowed)
        del borrowed
    captured.input.fill_(2.0)
    with captured.borrower.replay_scope():
        second.replay()
    assert (kept == 6.0).all().item()


# ---- misuse


def test_a_tensor_that_outlives_its_borrow_stops_the_next_replay_and_capture(captured):
    with captured.borrower.borrow("leaky"):
        leaked = torch.zeros(3 * MIB, dtype=torch.uint8, device="cuda")
    text = f"{3 * MIB} bytes of borrowed graph-pool memory are still in use"
    with pytest.raises(RuntimeError, match=f"^graph replay: {text}"):
        captured.replay(1.0)
    with pytest.raises(RuntimeError, match=f"^graph capture: {text}"):
        captured.capture()
    assert not capture.anyone_captures()
    del leaked
    assert captured.replay(1.0) == captured.expected(1.0)


def test_capture_replay_and_borrow_exclude_each_other(captured):
    borrower = captured.borrower
    with borrower.borrow("first"):
        for scope in (borrower.borrow("second"), borrower.replay_scope(), borrower.capture_scope()):
            with pytest.raises(RuntimeError, match="held by borrow by 'first'"), scope:
                pass
    with borrower.replay_scope(), pytest.raises(RuntimeError, match="held by graph replay"):
        borrower.disable("no")
    with (
        borrower.capture_scope(),
        pytest.raises(RuntimeError, match="held by graph capture"),
        borrower.borrow("third"),
    ):
        pass
    assert captured.replay(2.0) == captured.expected(2.0)


def test_another_stream_than_the_first_is_refused(captured):
    with captured.borrower.borrow("first"):
        pass
    other = torch.cuda.Stream()
    with torch.cuda.stream(other):
        with pytest.raises(RuntimeError, match="was lent on stream"):
            captured.replay(1.0)
        with (
            pytest.raises(RuntimeError, match="was lent on stream"),
            captured.borrower.borrow("second"),
        ):
            pass
    torch.cuda.synchronize()
    assert captured.replay(4.0) == captured.expected(4.0)


class Crossing:
    """A borrowed tensor that another stream reads after it was dropped, a second later."""

    def __init__(self, captured):
        self.captured = captured
        self.other = torch.cuda.Stream()
        self.seen = torch.empty(BORROWED // 4, device="cuda")
        # Loads the kernels, which waits for the device.
        self.seen.copy_(self.seen + 1)
        torch.cuda._sleep(1)
        torch.cuda.synchronize()

    def begin(self):
        with self.captured.borrower.borrow("crossing"):
            crossing = torch.full((BORROWED // 4,), 7.0, device="cuda")
            assert self.captured.holds(crossing)
            self.other.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.other):
                torch.cuda._sleep(2_000_000_000)
                self.seen.copy_(crossing)
            crossing.record_stream(self.other)
            del crossing

    def was_left_alone(self):
        torch.cuda.synchronize()
        return bool((self.seen == 7.0).all())


@pytest.mark.parametrize("fails", [False, True])
def test_a_replay_runs_behind_work_on_memory_of_another_stream(captured, fails):
    other = Crossing(captured).other
    seen = torch.zeros(MIB // 4, device="cuda")

    def go_astray():
        with captured.borrower.borrow("astray"), torch.cuda.stream(other):
            astray = torch.full((MIB // 4,), 7.0, device="cuda")
            assert captured.holds(astray)
            torch.cuda._sleep(2_000_000_000)
            seen.copy_(astray)
            del astray
            if fails:
                raise ZeroDivisionError

    error, text = (ZeroDivisionError, None) if fails else (RuntimeError, "asked for on stream")
    with pytest.raises(error, match=text):
        go_astray()
    captured.input.fill_(1.0)
    with captured.borrower.replay_scope():
        captured.graph.replay()
    assert not other.query()
    torch.cuda.synchronize()
    assert bool((seen == 7.0).all())
    assert captured.output.item() == captured.expected(1.0)
    with captured.borrower.borrow("innocent"):
        torch.empty(BORROWED, dtype=torch.uint8, device="cuda")


def test_a_lending_that_others_have_dropped_owes_nothing(captured):
    with captured.borrower.borrow("keeper"):
        kept = torch.empty(MIB, device="cuda")
    captured.borrower.disable("no more")
    with pytest.raises(RuntimeError, match="still in use"):
        captured.replay(1.0)
    del kept
    GraphPoolBorrower(None).disable("drops what is over")
    assert captured.replay(1.0) == captured.expected(1.0)


def test_borrowers_of_one_pool_are_one(captured):
    second = GraphPoolBorrower(captured.pool, 0)
    with (
        captured.borrower.borrow("first"),
        pytest.raises(RuntimeError, match="held by borrow by 'first'"),
        second.replay_scope(),
    ):
        pass
    with second.borrow("second"):
        kept = torch.empty(MIB, device="cuda")
    with pytest.raises(RuntimeError, match="still in use"):
        captured.replay(1.0)
    del kept
    assert captured.replay(1.0) == captured.expected(1.0)


def test_what_a_dropped_borrower_left_out_is_still_owed(captured):
    with captured.borrower.borrow("forgetful"):
        kept = torch.empty(MIB, device="cuda")
    captured.borrower = None
    captured.borrower = GraphPoolBorrower(captured.pool, 0)
    with pytest.raises(RuntimeError, match="still in use"):
        captured.replay(1.0)
    del kept
    assert captured.replay(1.0) == captured.expected(1.0)


def test_memory_for_another_stream_inside_a_borrow_is_refused_at_its_end(captured):
    other = torch.cuda.Stream()
    with (
        pytest.raises(RuntimeError, match="memory was asked for on stream"),
        captured.borrower.borrow("astray"),
        torch.cuda.stream(other),
    ):
        torch.empty(1024, device="cuda")
    torch.cuda.synchronize()
    with captured.borrower.borrow("back"):
        torch.empty(BORROWED, dtype=torch.uint8, device="cuda")
    assert captured.replay(5.0) == captured.expected(5.0)


def test_a_replay_runs_behind_another_stream_that_uses_what_was_dropped(captured):
    crossing = Crossing(captured)
    crossing.begin()
    captured.input.fill_(1.0)
    with captured.borrower.replay_scope():
        captured.graph.replay()
    assert not crossing.other.query()
    assert crossing.was_left_alone()
    assert captured.output.item() == captured.expected(1.0)


def test_a_borrow_runs_behind_another_stream_that_uses_what_was_dropped(captured):
    crossing = Crossing(captured)
    crossing.begin()
    with captured.borrower.borrow("next"):
        for _ in range(3):
            over = torch.full((BORROWED // 4,), 9.0, device="cuda")
            del over
    assert not crossing.other.query()
    assert crossing.was_left_alone()


def test_while_another_thread_captures_what_a_stream_still_uses_is_not_lent_or_replayed(captured):
    begun, done = threading.Event(), threading.Event()

    def capture_elsewhere():
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        static = torch.zeros(16, device="cuda")
        with (
            capture.capture_scope(),
            torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"),
        ):
            static.add_(1)
            begun.set()
            done.wait(60)

    crossing = Crossing(captured)
    with ThreadPoolExecutor(1) as pool:
        capturing = pool.submit(capture_elsewhere)
        try:
            assert begun.wait(60)
            crossing.begin()
            with pytest.raises(RuntimeError, match="still in use"):
                captured.replay(1.0)
            with (
                pytest.raises(RuntimeError, match="borrow after that"),
                captured.borrower.borrow("next"),
            ):
                pass
        finally:
            done.set()
        capturing.result()
    assert crossing.was_left_alone()
    assert captured.replay(1.0) == captured.expected(1.0)


def test_a_stream_that_is_captured_borrows_nothing(captured):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        assert capture.anyone_captures()
        with (
            pytest.raises(RuntimeError, match="while the current stream is being captured"),
            captured.borrower.borrow("inside"),
        ):
            pass
        torch.zeros(16, device="cuda")
    assert not capture.anyone_captures()


def test_after_disable_allocations_go_where_they_would_anyway(captured):
    captured.borrower.disable("memory saver is on")
    assert captured.borrower.disabled_reason == "memory saver is on"
    assert (captured.borrower.largest_run, captured.borrower.can_fit(1)) == (0, False)
    with captured.borrower.borrow("nobody"):
        plain = torch.empty(MIB, device="cuda")
        assert not captured.holds(plain)
    assert captured.replay(1.0) == captured.expected(1.0)


def test_a_pool_without_a_graph_lends_nothing():
    borrower = GraphPoolBorrower(torch.cuda.graph_pool_handle(), 0)
    for look in (lambda: borrower.largest_run, lambda: borrower.can_fit(1)):
        with pytest.raises(ValueError, match="has no memory pool"):
            look()
    with pytest.raises(ValueError, match="has no memory pool"), borrower.borrow("early"):
        pass
    with borrower.replay_scope():
        pass


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu"), True, 1.0])
def test_a_device_that_is_none_is_refused(device):
    with pytest.raises((TypeError, ValueError), match="^device must be"):
        GraphPoolBorrower(torch.cuda.graph_pool_handle(), device)


# ---- the how-to


@pytest.mark.skipif(not HOW_TO.is_file(), reason="needs a checkout: docs are not installed")
def test_the_how_to_does_what_it_says():
    failed, tried = doctest.testfile(str(HOW_TO), module_relative=False, report=True)
    assert tried > 0
    assert failed == 0
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


# ---- captures of others


def test_nothing_is_dropped_while_another_thread_captures(captured):
    with captured.borrower.borrow("once"):
        torch.empty(BORROWED, dtype=torch.uint8, device="cuda")
    inside, go_on = threading.Event(), threading.Event()

    def capture_elsewhere():
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with capture.capture_scope(), torch.cuda.graph(graph, stream=stream):
            result = torch.zeros(16, device="cuda") + 1
            inside.set()
            assert go_on.wait(60)
        graph.replay()
        torch.cuda.synchronize()
        return result.sum().item()

    with ThreadPoolExecutor(1) as threads:
        result = threads.submit(capture_elsewhere)
        try:
            assert inside.wait(60)
            kept = len(lending._kept)
            captured.borrower.disable("while another captures")
            assert len(lending._kept) == kept
        finally:
            go_on.set()
        assert result.result() == 16.0
    lending.drop_retired()
    assert len(lending._kept) < kept


def test_a_borrower_that_is_gone_leaves_nothing_behind():
    captured = Captured()
    with captured.borrower.borrow("last"):
        torch.empty(BORROWED, dtype=torch.uint8, device="cuda")
    pool = captured.pool
    del captured
    gc.collect()
    lending.drop_retired()
    assert not [kept for kept in lending._kept if kept.retired]
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    with pytest.raises(ValueError, match="has no memory pool"):
        free_runs(pool, 0)
