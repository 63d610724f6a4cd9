"""What is lent of a pool is one record, however many borrowers it has, as far as CPUs show."""

import pytest
import torch_help

torch = torch_help.any_torch()

from vmmcy.torch import GraphPoolBorrower  # noqa: E402
from vmmcy.torch.loans import loans_of  # noqa: E402
from vmmcy.torch.turns import CAPTURE, REPLAY  # noqa: E402

POOL = (7, 7)


def test_all_borrowers_of_a_pool_share_its_turns():
    first, second = loans_of(POOL, 0), loans_of(POOL, 0)
    first.turns.take(CAPTURE)
    with pytest.raises(RuntimeError, match="held by graph capture"):
        second.turns.take(REPLAY)
    first.turns.give_back()
    second.turns.take(REPLAY)
    second.turns.give_back()


def test_pools_devices_and_memory_of_others_have_their_own():
    records = [loans_of(POOL, 0), loans_of(POOL, 1), loans_of((7, 8), 0)]
    records += [loans_of(None, 0), loans_of(None, 0)]
    assert len({id(loans) for loans in records}) == 5
    for loans in records:
        loans.turns.take(CAPTURE)


def test_a_pool_without_borrowers_is_begun_anew():
    loans = loans_of(POOL, 0)
    loans.turns.take(CAPTURE)
    del loans
    assert loans_of(POOL, 0).turns.holder is None


@pytest.mark.parametrize(
    ("runs", "error", "text"),
    [
        (None, TypeError, "^runs must be an iterable of .* pairs, not NoneType None$"),
        ([4096], TypeError, "^extent 0 must be a "),
        ([(4096, 0)], ValueError, "^size of extent 0 must be at least 1"),
    ],
)
def test_wrong_runs_are_refused_before_anything_is_looked_at(runs, error, text):
    borrower = GraphPoolBorrower.__new__(GraphPoolBorrower)
    with pytest.raises(error, match=text) as raised:
        borrower.set_static_runs(runs)
    assert (runs is None) != hasattr(raised.value, "__notes__")


def test_a_borrower_that_was_never_made_says_so():
    borrower = GraphPoolBorrower.__new__(GraphPoolBorrower)
    acts = [
        lambda: borrower.largest_run,
        lambda: borrower.can_fit(1),
        lambda: borrower.set_static_runs([]),
        lambda: borrower.disable("over"),
    ]
    for act in acts:
        with pytest.raises(RuntimeError, match="^this object was never made"):
            act()


def test_a_reason_is_a_text():
    borrower = GraphPoolBorrower.__new__(GraphPoolBorrower)
    with pytest.raises(TypeError, match="^reason must be a str, not NoneType None$"):
        borrower.disable(None)
