"""The README's example does what it says."""

import doctest
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.skipif(not README.is_file(), reason="needs a checkout: the README is not installed")
def test_the_example_prints_what_it_says():
    failed, tried = doctest.testfile(str(README), module_relative=False, report=True)
    assert tried > 0
    assert failed == 0
