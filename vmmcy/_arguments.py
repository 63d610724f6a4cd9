"""Validation that every public call shares: what is a size, an address, a device.

Checks run in the contract's order, types first; all come before a driver call.
"""

import operator
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

LIMIT_31_BIT = 1 << 31
LIMIT_64_BIT = 1 << 64
LONGEST_SHOWN = 120


def shown(value: Any) -> str:
    """Return what an error text shows of `value`: its repr if that is short, else its kind.

    Never fails: a repr may raise, as that of an ``int`` of more than 4300 digits does.
    """
    try:
        text = repr(value)
    except Exception:
        text = ""
    if 0 < len(text) <= LONGEST_SHOWN:
        return text
    if type(value) is int:
        return f"<int of {value.bit_length()} bits>"
    return f"<{type(value).__name__} object>"


def integer(value: Any, name: str) -> int:
    """Return `value` as an ``int``; NumPy integers pass, bools, floats and strings do not.

    Raises
    ------
    TypeError
        `value` is not an integer.
    """
    if type(value) is int:
        return value
    if not isinstance(value, bool) and type(value).__name__ not in ("bool", "bool_"):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise TypeError(f"{name} must be an integer, not {type(value).__name__} {shown(value)}")


def flag(value: Any, name: str) -> bool:
    """Return the truth of `value`, which arrays and some others have not.

    Raises
    ------
    TypeError
        It has none.
    """
    if value is True or value is False:
        return value
    try:
        return bool(value)
    except (TypeError, ValueError, RuntimeError) as error:  # torch raises the last
        kind = type(value).__name__
        raise TypeError(f"{name} must be true or false, not {kind} {shown(value)}") from error


def within_64_bits(value: int, name: str) -> int:
    """Return `value` if its magnitude fits 64 bits.

    Raises
    ------
    ValueError
        It does not.
    """
    if not -LIMIT_64_BIT < value < LIMIT_64_BIT:
        raise ValueError(f"{name} {shown(value)} does not fit in 64 bits")
    return value


def unsigned(value: Any, name: str) -> int:
    """Return `value` as an ``int`` from 0 to 2**64 - 1: a size in bytes or an address.

    Raises
    ------
    TypeError
        `value` is not an integer.
    ValueError
        It is negative or does not fit in 64 bits.
    """
    if type(value) is int and 0 <= value < LIMIT_64_BIT:
        return value
    number = within_64_bits(integer(value, name), name)
    if number < 0:
        raise ValueError(f"{name} must not be negative, got {number}")
    return number


def positive(value: Any, name: str) -> int:
    """Return `value` as an ``int`` from 1 to 2**64 - 1.

    Raises
    ------
    TypeError
        `value` is not an integer.
    ValueError
        It is zero, negative, or does not fit in 64 bits.
    """
    number = unsigned(value, name)
    if number == 0:
        raise ValueError(f"{name} must be at least 1, got 0")
    return number


def iterable(value: Any, name: str, of_what: str) -> Any:
    """Return what iterates over `value`; text and bytes, made of the wrong items, cannot be.

    Raises
    ------
    TypeError
        It cannot; the text says what `of_what` it should hold.
    """
    if type(value) in (list, tuple):
        return value
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes, bytearray)):
        with suppress(TypeError):  # as of an array without dimensions
            return iter(value)
    raise TypeError(
        f"{name} must be an iterable of {of_what}, not {type(value).__name__} {shown(value)}"
    )


def two_items(value: Any, name: str, what: str) -> tuple[Any, Any]:
    """Return both items of `value`; text, bytes, and what has no order, are no pair.

    Raises
    ------
    TypeError
        It is none; the text says `what` it should be.
    """
    if not isinstance(value, (str, bytes, bytearray, set, frozenset, dict)):
        try:
            first, second = value
            return first, second
        except (TypeError, ValueError):
            pass
    raise TypeError(f"{name} must be {what}, not {shown(value)}")


def device_ordinal(value: Any, name: str = "device_id") -> int:
    """Return `value` as a device ordinal; whether there is such a device, the driver knows.

    Raises
    ------
    TypeError
        `value` is not an integer.
    ValueError
        It is negative or above 2**31 - 1.
    """
    if type(value) is int and 0 <= value < LIMIT_31_BIT:
        return value
    number = integer(value, name)
    if not 0 <= number < LIMIT_31_BIT:
        raise ValueError(f"{name} must be a device ordinal, 0 or greater, got {shown(number)}")
    return number


def power_of_two(value: int, name: str) -> int:
    """Return `value` if it is a power of two of at most 64 bits.

    Raises
    ------
    ValueError
        It is not; the text names the next one, of those that there are.
    """
    if 0 < value < LIMIT_64_BIT and value & (value - 1) == 0:
        return value
    within_64_bits(value, name)
    nearest = min(_next_power(value), LIMIT_64_BIT // 2)
    raise ValueError(f"{name} must be a power of two, got {value}; try {nearest}")


def whole_granules(value: int, granularity: int, name: str) -> None:
    """Refuse bytes that are not whole granules.

    Raises
    ------
    ValueError
        `value` is no multiple of `granularity`; the text names the next one, or the last.
    """
    if value % granularity == 0:
        return
    last = value - value % granularity
    is_last = last + granularity >= LIMIT_64_BIT
    nearest = f"last multiple is {last}" if is_last else f"next multiple is {last + granularity}"
    raise ValueError(
        f"{name} {value} is not a multiple of the granularity {granularity}; the {nearest} (bytes)"
    )


def rounded_up(value: int, granularity: int, name: str) -> int:
    """Return the bytes in whole granules that `value` bytes need.

    Raises
    ------
    ValueError
        They do not fit in 64 bits.
    """
    rounded = -(-value // granularity) * granularity
    return within_64_bits(rounded, f"{name} {value} in whole granules,")


def _next_power(value: int) -> int:
    return 1 << max(value - 1, 0).bit_length()
