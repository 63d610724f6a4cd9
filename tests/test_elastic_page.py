"""The page on elastic memory does what it says."""

import doctest
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "elastic.md"


@pytest.mark.skipif(not PAGE.is_file(), reason="needs a checkout: the docs are not installed")
def test_the_examples_print_what_they_say():
    failed, tried = doctest.testfile(str(PAGE), module_relative=False, report=True)
    assert tried > 0
    assert failed == 0
