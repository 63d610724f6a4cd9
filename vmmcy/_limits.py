"""How many extents an arena takes where it is not told: read once, when vmmcy is imported."""

import os

LIMIT_VARIABLE = "BUMPARENA_MAX_EXTENTS"
HIGHEST_LIMIT = 65_536
DEFAULT_LIMIT = 4096
MOST_DIGITS = 20


def limit_from_environment() -> int:
    """Return the environment's limit, else the default; empty counts as unset.

    Raises
    ------
    ValueError
        The environment's is no integer from 1 to 65,536.
    """
    text = os.environ.get(LIMIT_VARIABLE)
    if not text:
        return DEFAULT_LIMIT
    # The length comes first: int() has a text of its own for thousands of digits.
    is_number = text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS
    if not (is_number and 1 <= int(text) <= HIGHEST_LIMIT):
        raise ValueError(
            f"{LIMIT_VARIABLE} must be an integer from 1 to {HIGHEST_LIMIT}, got {text!r}"
        )
    return int(text)


MAX_EXTENTS = limit_from_environment()
