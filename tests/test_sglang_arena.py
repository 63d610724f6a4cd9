"""The engine's bump arena: its limit, its figures, and its quiet end."""

import copy
import gc
import os
import pickle
import re

import pytest
from arena_help import BASE, GIB, KIB, MIB, c_functions
from reservation_help import run_python

from vmmcy import _arena
from vmmcy.sglang import BumpArenaStub


@pytest.fixture
def stub():
    stub = BumpArenaStub()
    yield stub
    stub._arena.close(force=True)


def c_functions_of(stub):
    return c_functions(stub._arena.entry_points)


def test_the_limit_is_64_extents(stub):
    assert BumpArenaStub.MAX_EXTENTS == 64
    extents = [(BASE + index * MIB, MIB) for index in range(65)]
    stub.set_extents(extents[:64])
    malloc, _ = c_functions_of(stub)
    assert malloc(MIB) == BASE
    with pytest.raises(ValueError, match=r"^65 extents exceed BUMPARENA_MAX_EXTENTS \(64\)$"):
        stub.set_extents(extents)
    assert stub.cursor_bytes == MIB
    assert [malloc(MIB) for _ in range(64)] == [base for base, _ in extents[1:64]] + [None]


def test_a_raised_limit_counts_for_the_next_stub(monkeypatch):
    monkeypatch.setattr(BumpArenaStub, "MAX_EXTENTS", 65)
    BumpArenaStub().set_extents([(BASE + index * MIB, MIB) for index in range(65)])


@pytest.mark.parametrize(
    ("limit", "error", "text"),
    [
        (None, TypeError, "^MAX_EXTENTS must be an integer, not NoneType None$"),
        ("64", TypeError, "^MAX_EXTENTS must be an integer, not str '64'$"),
        (0, ValueError, "^max_extents must be from 1 to 65536, got 0$"),
    ],
)
def test_a_limit_that_is_none_is_refused(limit, error, text, monkeypatch):
    monkeypatch.setattr(BumpArenaStub, "MAX_EXTENTS", limit)
    with pytest.raises(error, match=text):
        BumpArenaStub()


def test_one_that_was_never_made_says_so():
    made = BumpArenaStub.__new__(BumpArenaStub)
    for act in (lambda: made.cursor_bytes, lambda: made.set_extents([]), lambda: made.set_align(1)):
        with pytest.raises(RuntimeError, match="^this object was never made"):
            act()


def test_figures_follow_what_torch_asks_and_frees(stub):
    stub.set_extents([(BASE, GIB), (BASE + GIB, MIB)])
    stub.set_align(512)
    malloc, free = c_functions_of(stub)
    assert (stub.cursor_bytes, stub.freed_bytes) == (0, 0)
    first, second = malloc(1), malloc(2 * MIB)
    assert (first, second) == (BASE, BASE + 512)
    assert stub.cursor_bytes == 512 + 2 * MIB
    free(second, 2 * MIB)
    assert (stub.cursor_bytes, stub.freed_bytes) == (512 + 2 * MIB, 2 * MIB)
    stub.set_best_fit(True)
    assert malloc(MIB) == BASE + GIB
    stub.set_align(4 * KIB)
    assert malloc(1) == BASE + 2 * MIB + 4 * KIB
    stub.set_extents([(BASE + 2 * GIB, MIB)])
    assert (stub.cursor_bytes, stub.freed_bytes) == (0, 0)
    for address, size_bytes in ((first, 1), (BASE + GIB, MIB), (BASE + 2 * MIB + 4 * KIB, 1)):
        free(address, size_bytes)
    assert stub.freed_bytes == 0


def test_each_stub_has_a_name_of_its_own():
    names = [BumpArenaStub().sfx for _ in range(3)]
    assert len({*names}) == 3
    assert all(re.fullmatch(rf"{os.getpid()}_\d+", name) for name in names)


def test_a_stub_is_made_once(stub):
    with pytest.raises(RuntimeError, match=r"^BumpArenaStub.__init__ on one that was made: make"):
        stub.__init__()


def test_stubs_come_and_go_without_a_word():
    gc.collect()
    before = _arena.slot_census()
    for _ in range(1000):
        BumpArenaStub().set_extents([(BASE, MIB)])
    gc.collect()
    assert _arena.slot_census() == before


def test_what_a_stub_handed_out_outlives_it():
    stub = BumpArenaStub()
    stub.set_extents([(BASE, 2 * MIB)])
    entry_points = stub._arena.entry_points
    malloc, free = c_functions(entry_points)
    address = malloc(MIB)
    before = _arena.slot_census()
    del stub
    gc.collect()
    assert malloc(MIB) is None
    free(address, MIB)
    del entry_points
    gc.collect()
    assert _arena.slot_census()[0] == before[0] - 1


def test_a_forked_child_drops_the_parents_stub_quietly():
    code = (
        "import os\n"
        "from vmmcy.sglang import BumpArenaStub\n"
        f"stub = BumpArenaStub(); stub.set_extents([({BASE}, {MIB})])\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    del stub\n"
        "    os._exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "print(stub.cursor_bytes)\n"
    )
    seen = run_python(code, "-W", "error")
    assert (seen.stdout, seen.stderr, seen.returncode) == ("0\n", "", 0)


def test_it_is_one_with_what_it_gives_back(stub):
    for act in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be copied or pickled: make another, over"):
            act(stub)
