"""Which extent serves a request: order, size, alignment, and no overflow."""

import numpy as np
import pytest
from arena_help import BASE, GIB, KIB, MIB, assert_whole_space_is_there, fill, free_all

from vmmcy.arena import BumpArena, coalesce_contiguous


@pytest.fixture
def arena():
    with BumpArena([(BASE, MIB)]) as arena:
        yield arena
        free_all(arena)


# ---- A4: which extent is taken


def big_then_small():
    return [(BASE, GIB)] + [(BASE + 2 * GIB + 4 * MIB * k, 2 * MIB) for k in range(64)]


def test_best_fit_keeps_the_big_run_for_the_big_request():
    with BumpArena(big_then_small(), best_fit=True) as arena:
        small = [arena.allocate(2 * MIB) for _ in range(64)]
        assert small == [base for base, _ in big_then_small()[1:]]
        assert arena.allocate(GIB) == BASE
        assert_whole_space_is_there(arena)


def test_first_fit_follows_the_given_order():
    with BumpArena(big_then_small()) as arena:
        assert [arena.allocate(2 * MIB) for _ in range(64)] == [
            BASE + 2 * MIB * number for number in range(64)
        ]
        with pytest.raises(MemoryError):
            arena.allocate(GIB)
        assert_whole_space_is_there(arena)


def test_first_fit_follows_the_order_and_not_the_addresses():
    extents = [(BASE + 2 * MIB, MIB), (BASE, MIB)]
    with BumpArena(extents) as arena:
        assert fill(arena, MIB) == [BASE + 2 * MIB, BASE]
        free_all(arena)


def test_first_fit_goes_back_for_what_is_smaller():
    with BumpArena([(BASE, 1024), (BASE + MIB, 4096)]) as arena:
        assert arena.allocate(2048) == BASE + MIB
        assert arena.allocate(512) == BASE
        assert arena.allocate(1024) == BASE + MIB + 2048
        assert arena.allocate(512) == BASE + 512
        assert_whole_space_is_there(arena)


def test_best_fit_counts_exact_bytes_and_takes_the_earlier_of_equals():
    sizes = [2048, 1100, 1024 + 75, 1100]
    extents = [(BASE + MIB * number, size) for number, size in enumerate(sizes)]
    with BumpArena(extents, best_fit=True) as arena:
        assert [arena.allocate(1024) for _ in range(3)] == [
            BASE + 2 * MIB,
            BASE + MIB,
            BASE + 3 * MIB,
        ]
        assert_whole_space_is_there(arena)


def test_the_policy_can_change_while_things_are_live():
    with BumpArena([(BASE, 4096), (BASE + MIB, 1024)]) as arena:
        assert arena.allocate(512) == BASE
        arena.set_best_fit(True)
        arena.check_consistency()
        assert arena.best_fit
        assert arena.allocate(512) == BASE + MIB
        arena.set_best_fit(False)
        assert arena.allocate(512) == BASE + 512
        assert_whole_space_is_there(arena)


# ---- A5: no request overflows


@pytest.mark.parametrize("size_bytes", [2**64 - 1, 2**64 - 511, 2**64 - 512, 2**63, MIB + 1])
@pytest.mark.parametrize("best_fit", [False, True])
def test_a_request_too_large_moves_nothing(size_bytes, best_fit):
    with BumpArena([(BASE, MIB)], best_fit=best_fit) as arena:
        with pytest.raises(MemoryError, match=f"room for {size_bytes} bytes"):
            arena.allocate(size_bytes)
        assert arena.extents == [(BASE, MIB, 0)]
        assert arena.allocate(MIB) == BASE
        assert_whole_space_is_there(arena)


def test_the_error_says_what_would_fit():
    with (
        BumpArena([(BASE, 4096), (BASE + MIB, 1000)], align=1024) as arena,
        pytest.raises(
            MemoryError,
            match=r"^no extent has room for 4097 bytes \(5120 when rounded up to the alignment "
            r"of 1024\): the largest free run of 2 extents is 4096 bytes$",
        ),
    ):
        arena.allocate(4097)


def test_an_extent_at_the_end_of_the_address_space():
    with BumpArena([(2**64 - 4096, 4096)]) as arena:
        assert fill(arena, 1024) == [2**64 - 4096 + 1024 * number for number in range(4)]
        assert arena.largest_free_bytes == 0
        arena.set_align(4096)
        assert arena.largest_free_bytes == 0
        arena.check_consistency()
        assert_whole_space_is_there(arena)


def test_the_whole_address_space_in_single_bytes():
    for best_fit in (False, True):
        with BumpArena([(1, 2**64 - 1)], align=1, best_fit=best_fit) as arena:
            assert arena.allocate(2**64 - 1) == 1
            arena.check_consistency()
            with pytest.raises(MemoryError):
                arena.allocate(1)
            arena.free(1, 2**64 - 1)
            assert (arena.live_bytes, arena.freed_bytes) == (0, 2**64 - 1)


# ---- A6: alignment


@pytest.mark.parametrize("align", [1, 2, 512, 4096, 2 * MIB])
def test_every_address_is_aligned_and_the_end_is_kept(align):
    base = BASE + 512 * 12_345 + 256
    end = base + 5 * MIB + 100
    with BumpArena([(base, end - base)], align=align) as arena:
        first = -(-base // align) * align
        size_bytes = max(align, MIB)
        addresses = fill(arena, size_bytes - align // 2)
        assert addresses == list(range(first, end - size_bytes + 1, size_bytes))
        assert arena.largest_free_bytes == end - (addresses[-1] + size_bytes)
        assert_whole_space_is_there(arena)


def test_an_extent_smaller_than_its_padding_is_never_used():
    with BumpArena([(BASE + 1, 510), (BASE + 512, 512)]) as arena:
        assert arena.largest_free_bytes == 512
        assert fill(arena, 1) == [BASE + 512]
        free_all(arena)


@pytest.mark.parametrize("align", [0, -512, 3, 513, 2**63 + 1])
def test_an_alignment_that_is_no_power_of_two_is_refused(arena, align):
    with pytest.raises(ValueError, match=f"^align must be a power of two, got {align}"):
        BumpArena(align=align)
    with pytest.raises(ValueError, match=f"^align must be a power of two, got {align}"):
        arena.set_align(align)
    assert arena.align == 512


def test_the_highest_alignment(arena):
    arena.set_align(2**63)
    assert arena.largest_free_bytes == 0
    arena.set_extents([(2**63, MIB)])
    assert arena.largest_free_bytes == MIB
    with pytest.raises(MemoryError):
        arena.allocate(1)
    with pytest.raises(ValueError, match="does not fit in 64 bits"):
        arena.set_align(2**64)
    arena.set_align(512)


def test_a_new_alignment_holds_for_what_comes_next(arena):
    assert arena.allocate(1) == BASE
    arena.set_align(4096)
    arena.check_consistency()
    assert arena.allocate(1) == BASE + 4096
    assert arena.cursor_bytes == 8192
    arena.set_align(256)
    assert arena.allocate(1) == BASE + 8192
    assert arena.live_bytes == 512 + 4096 + 256
    for address in (BASE, BASE + 4096, BASE + 8192):
        arena.free(address, 1)
    assert (arena.live_bytes, arena.freed_bytes) == (0, 512 + 4096 + 256)
    arena.set_align(512)
    assert_whole_space_is_there(arena)


# ---- A11: nothing crosses an extent


@pytest.mark.parametrize("best_fit", [False, True])
def test_nothing_lies_over_two_extents(best_fit):
    touching = [(BASE, 2 * MIB), (BASE + 2 * MIB, 2 * MIB)]
    with BumpArena(touching, best_fit=best_fit) as arena:
        with pytest.raises(MemoryError):
            arena.allocate(3 * MIB)
        assert [arena.allocate(1536 * KIB) for _ in range(2)] == [base for base, _ in touching]
        assert_whole_space_is_there(arena)


def test_joined_extents_serve_what_touching_ones_cannot():
    touching = [(BASE + 2 * MIB, 2 * MIB), (BASE, 2 * MIB), (BASE + 5 * MIB, MIB)]
    assert coalesce_contiguous(touching) == [(BASE, 4 * MIB), (BASE + 5 * MIB, MIB)]
    with BumpArena(coalesce_contiguous(touching)) as arena:
        assert arena.allocate(3 * MIB) == BASE
        assert_whole_space_is_there(arena)


def test_coalescing_nothing_and_everything():
    assert coalesce_contiguous([]) == []
    pieces = [(1 + 7 * number, 7) for number in range(1000)]
    assert coalesce_contiguous(pieces[::-1]) == [(1, 7000)]
    assert coalesce_contiguous([(1, 2**63), (2**63 + 1, 2**63 - 1)]) == [(1, 2**64 - 1)]
    array = np.array(pieces)
    assert coalesce_contiguous(array) == [(1, 7000)]
    assert array.tolist() == [list(piece) for piece in pieces]
