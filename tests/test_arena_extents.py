"""Which extents an arena takes, and which it refuses; coalescing."""

import subprocess
import sys

import numpy as np
import pytest
from arena_help import BASE, GIB, MIB, fill, free_all

from vmmcy.arena import BumpArena, coalesce_contiguous


@pytest.fixture
def arena():
    with BumpArena([(BASE, MIB)]) as arena:
        yield arena
        free_all(arena)


# ---- A3: the limit on extents


def many_extents(count):
    return [(BASE + 2 * MIB * number, MIB) for number in range(count)]


def test_too_many_extents_change_nothing(arena):
    arena.allocate(512)
    before = arena.extents
    text = r"^5000 extents exceed BUMPARENA_MAX_EXTENTS \(4096\)$"
    with pytest.raises(ValueError, match=text):
        arena.set_extents(many_extents(5000))
    with pytest.raises(ValueError, match=text):
        arena.add_extents([(extent[0] + GIB, extent[1]) for extent in many_extents(4999)])
    assert (arena.extents, arena.live_bytes) == (before, 512)
    with pytest.raises(ValueError, match=text):
        BumpArena(many_extents(5000))


@pytest.mark.parametrize("best_fit", [False, True])
def test_all_extents_are_used_under_a_higher_limit(best_fit):
    with BumpArena(many_extents(5000), max_extents=8192, best_fit=best_fit) as arena:
        addresses = fill(arena, MIB)
        assert addresses == [base for base, _ in many_extents(5000)]
        free_all(arena)


def test_the_most_extents_of_all():
    extents = np.array(many_extents(65_536), dtype=np.uint64)
    with BumpArena(extents, max_extents=65_536) as arena:
        assert arena.capacity_bytes == 65_536 * MIB
        assert arena.largest_free_bytes == MIB
        arena.check_consistency()


@pytest.mark.parametrize("limit", [0, -1, 65_537])
def test_a_limit_out_of_bounds_is_refused(limit):
    with pytest.raises(ValueError, match=f"^max_extents must be from 1 to 65536, got {limit}$"):
        BumpArena(max_extents=limit)


def test_the_limit_counts_the_number_there_would_be(arena):
    with BumpArena([(BASE, MIB)], max_extents=2) as small:
        small.add_extents([(BASE + MIB, MIB)])
        with pytest.raises(ValueError, match=r"^3 extents exceed BUMPARENA_MAX_EXTENTS \(2\)$"):
            small.add_extents([(BASE + 2 * MIB, MIB)])
        assert len(small.extents) == 2


@pytest.mark.parametrize(
    ("value", "printed"),
    [("17", "17"), ("65536", "65536"), ("", "4096"), (None, "4096")],
)
def test_the_environment_sets_the_limit(value, printed):
    answer = import_with_limit(value)
    assert (answer.returncode, answer.stdout.strip()) == (0, printed)


@pytest.mark.parametrize("value", ["0", "65537", "many", "-1", "1.5", "٣", " ", "7" * 5000])
def test_a_bad_limit_in_the_environment_names_the_variable(value):
    answer = import_with_limit(value)
    assert answer.returncode == 1
    assert (
        f"ValueError: BUMPARENA_MAX_EXTENTS must be an integer from 1 to 65536, got {value!r}"
        in answer.stderr
    )


def import_with_limit(value):
    set_it = "" if value is None else f"os.environ['BUMPARENA_MAX_EXTENTS'] = {value!a}; "
    code = (
        "import os; os.environ.pop('BUMPARENA_MAX_EXTENTS', None); "
        f"{set_it}from vmmcy.arena import BumpArena; print(BumpArena.MAX_EXTENTS)"
    )
    command = [sys.executable, "-X", "utf8", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=False, encoding="utf8")


# ---- A7: extents that are wrong


@pytest.mark.parametrize(
    ("extents", "names"),
    [
        (
            [(4 * MIB, 4 * MIB), (6 * MIB, 4 * MIB)],
            r"\[4194304, 8388608\) and \[6291456, 10485760\)",
        ),
        (
            [(6 * MIB, 4 * MIB), (4 * MIB, 4 * MIB)],
            r"\[4194304, 8388608\) and \[6291456, 10485760\)",
        ),
        ([(100, 5), (100, 5)], r"\[100, 105\) and \[100, 105\)"),
        ([(100, 50), (1, 2), (120, 1)], r"\[100, 150\) and \[120, 121\)"),
        ([(1, 2**64 - 1), (2**64 - 1, 1)], rf"\[1, {2**64}\) and \[{2**64 - 1}, {2**64}\)"),
    ],
)
def test_overlapping_extents_are_both_named(arena, extents, names):
    for refuse in (arena.set_extents, BumpArena, coalesce_contiguous):
        with pytest.raises(ValueError, match=f"^extents {names} overlap$"):
            refuse(extents)
    assert arena.extents == [(BASE, MIB, 0)]


def test_added_extents_may_not_overlap_the_old(arena):
    with pytest.raises(ValueError, match=rf"^extents \[{BASE}, {BASE + MIB}\) and "):
        arena.add_extents([(BASE + MIB - 1, 1)])
    assert arena.extents == [(BASE, MIB, 0)]


@pytest.mark.parametrize(
    ("extents", "text"),
    [
        ([(4096, 1), (4096, 0)], r"^size of extent 1 must be at least 1, got 0$"),
        ([(4096, -1)], r"^size of extent 0 must not be negative, got -1$"),
        ([(0, 4096)], r"^base of extent 0 must be at least 1, got 0$"),
        ([(-1, 4096)], r"^base of extent 0 must not be negative, got -1$"),
        ([(2**64, 1)], r"^base of extent 0 18446744073709551616 does not fit in 64 bits$"),
        (
            [(2**64 - 1, 2)],
            r"^extent 0 \[18446744073709551615, 18446744073709551617\) does not fit in 64 bits$",
        ),
    ],
)
def test_bad_extents_are_refused(arena, extents, text):
    for refuse in (arena.set_extents, arena.add_extents, BumpArena, coalesce_contiguous):
        with pytest.raises(ValueError, match=text):
            refuse(extents)
    if all(abs(value) < 2**63 for pair in extents for value in pair):
        with pytest.raises(ValueError, match=text):
            arena.set_extents(np.array(extents, dtype=np.int64))
    assert arena.extents == [(BASE, MIB, 0)]


@pytest.mark.parametrize(
    "extents",
    [
        [(4096.0, 4096)],
        [(4096, True)],
        [(4096, np.True_)],
        [("4096", 4096)],
        [(4096, None)],
        [(4096, 4096, 4096)],
        [4096],
        4096,
        np.zeros((2, 3), dtype=np.int64),
        np.zeros(4, dtype=np.int64),
        np.ones((1, 2), dtype=np.float64),
        np.ones((1, 2), dtype=bool),
    ],
    ids=repr,
)
def test_extents_of_other_types_are_refused(arena, extents):
    for refuse in (arena.set_extents, arena.add_extents, BumpArena, coalesce_contiguous):
        with pytest.raises(TypeError):
            refuse(extents)
    assert arena.extents == [(BASE, MIB, 0)]


def test_types_come_before_values_and_before_the_limit():
    with BumpArena(max_extents=1) as arena:
        with pytest.raises(TypeError, match="^size of extent 1 must be an integer, not float 2.0$"):
            arena.set_extents([(0, 0), (4096, 2.0)])
        with pytest.raises(ValueError, match="^2 extents exceed"):
            arena.set_extents([(0, 0), (4096, 2)])


@pytest.mark.parametrize(
    "extents",
    [
        ((BASE, MIB), (BASE + MIB, MIB)),
        [[BASE, MIB], [BASE + MIB, MIB]],
        iter([(BASE, MIB), (BASE + MIB, MIB)]),
        [(np.int64(BASE), np.uint32(MIB)), (np.uint64(BASE + MIB), MIB)],
        np.array([(BASE, MIB), (BASE + MIB, MIB)]),
        np.array([(BASE, MIB), (BASE + MIB, MIB)], dtype=np.uint64),
        np.array([(BASE, MIB), (BASE + MIB, MIB)], dtype=object),
        np.array([(MIB, BASE + MIB), (MIB, BASE)])[::-1, ::-1],
    ],
    ids=lambda extents: type(extents).__name__,
)
def test_extents_come_in_many_forms(extents):
    with BumpArena(extents) as arena:
        assert arena.extents == [(BASE, MIB, 0), (BASE + MIB, MIB, 0)]


@pytest.mark.parametrize("nothing", [(), [], np.empty((0, 2), np.int64), np.array([])])
def test_an_arena_without_extents_hands_out_nothing(nothing):
    for best_fit in (False, True):
        with BumpArena(nothing, best_fit=best_fit) as arena:
            with pytest.raises(MemoryError):
                arena.allocate(1)
            arena.free(BASE, 1)
            assert (arena.largest_free_bytes, arena.ignored_frees, arena.reclaim()) == (0, 1, 0)
            arena.check_consistency()
            arena.add_extents([(BASE, MIB)])
            assert arena.allocate(MIB) == BASE
            arena.free(BASE, MIB)


@pytest.mark.parametrize(
    "bases",
    [
        [512 << k for k in range(54)],
        [512, *(2**64 - 1024 * k for k in range(100, 0, -1))],
        [*range(1024, 1024 * 100, 1024), 2**63],
        [2**40 + 1024 * k * k for k in range(1, 300)],
    ],
    ids=["doubling gaps", "all but one at the far end", "and at the near end", "squares"],
)
def test_a_free_finds_its_extent_however_the_extents_lie(bases):
    with BumpArena([(base, 512) for base in bases]) as arena:
        arena.check_consistency()
        assert [arena.allocate(512) for _ in bases] == bases
        outside = {address for base in bases for address in (base - 1, base + 512)} - set(bases)
        outside -= {base + 511 for base in bases}
        for address in outside:
            arena.free(address, 512)
        assert (arena.ignored_frees, arena.live_bytes) == (len(outside), 512 * len(bases))
        for number, base in enumerate(bases, 1):
            arena.free(base + 511, 512)
            assert (arena.live_bytes, arena.extents[number - 1]) == (
                512 * (len(bases) - number),
                (base, 512, 512),
            )
        assert arena.reclaim() == 512 * len(bases)
