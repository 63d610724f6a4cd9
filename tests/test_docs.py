"""Every text of the contract has its place in docs/errors.md."""

from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "errors.md"
CONTRACT = [
    "{n} extents exceed BUMPARENA_MAX_EXTENTS ({limit})",
    "mapping [{offset}, {end}) is outside reservation [0, {size})",
    "VmmReservation.{method} after close",
    "BumpArena.{method} after close",
    "Invalid graph capture input size: {nbytes}",
    "graph capture input at {ptr} is outside VMM allocation [base={base}, size={size}]",
    "; graph capture input {i}: {n} bytes at {ptr}, at address {a}",
    "CudaDriverError",
    "CudaOutOfMemoryError",
    "CudaDriverNotFoundError",
]


@pytest.mark.skipif(not PAGE.is_file(), reason="needs a checkout: docs are not installed")
@pytest.mark.parametrize("text", CONTRACT)
def test_the_page_explains(text):
    assert text in PAGE.read_text()
