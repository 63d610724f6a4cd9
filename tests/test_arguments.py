"""What passes as a size, an address or a device, and how the rest is refused."""

import decimal

import numpy as np
import pytest

from vmmcy import _arguments


@pytest.mark.parametrize("value", [5, np.int8(5), np.uint64(5), np.array(5)[()]])
def test_integers_of_python_and_numpy_pass(value):
    number = _arguments.integer(value, "size")
    assert number == 5
    assert type(number) is int


@pytest.mark.parametrize(
    "value",
    [True, np.True_, 5.0, np.float32(5), "5", b"5", None, decimal.Decimal(5), [5], 5j],
)
def test_everything_else_is_a_type_error_that_names_the_argument(value):
    with pytest.raises(TypeError, match=r"^size must be an integer, not "):
        _arguments.integer(value, "size")


@pytest.mark.parametrize("value", [1 << 64, -(1 << 64), 1 << 200])
def test_more_than_64_bits_is_a_value_error(value):
    with pytest.raises(ValueError, match=f"^size {value} does not fit in 64 bits$"):
        _arguments.unsigned(value, "size")


HUGE = 10**5000  # CPython refuses to print it, in words of its own


@pytest.mark.parametrize(
    ("check", "text"),
    [
        (_arguments.unsigned, "size <int of 16610 bits> does not fit in 64 bits"),
        (_arguments.positive, "size <int of 16610 bits> does not fit in 64 bits"),
        (_arguments.power_of_two, "size <int of 16610 bits> does not fit in 64 bits"),
        (
            _arguments.device_ordinal,
            "size must be a device ordinal, 0 or greater, got <int of 16610 bits>",
        ),
    ],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_what_is_too_long_to_print_is_refused_in_our_words(check, text, sign):
    with pytest.raises(ValueError, match=f"^{text}$"):
        check(sign * HUGE, "size")


class Silent:
    def __repr__(self):
        raise LookupError("mine")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Silent(), "Silent <Silent object>"),
        ("7" * 1000, "str <str object>"),
        ([HUGE], "list <list object>"),
        ("7" * 10, "str '7777777777'"),
    ],
)
def test_a_repr_that_fails_or_is_long_is_left_out(value, text):
    with pytest.raises(TypeError, match=f"^size must be an integer, not {text}$"):
        _arguments.integer(value, "size")


def test_the_ends_of_64_bits_pass():
    assert _arguments.unsigned((1 << 64) - 1, "size") == (1 << 64) - 1
    assert _arguments.unsigned(0, "size") == 0


def test_signs():
    with pytest.raises(ValueError, match="^size must not be negative, got -1$"):
        _arguments.unsigned(-1, "size")
    with pytest.raises(ValueError, match="^size must be at least 1, got 0$"):
        _arguments.positive(0, "size")


def test_device_ordinals():
    assert _arguments.device_ordinal(np.int64(3)) == 3
    for bad in (-1, 1 << 31):
        with pytest.raises(ValueError, match=f"^device_id must be .* got {bad}$"):
            _arguments.device_ordinal(bad)


def test_powers_of_two():
    assert _arguments.power_of_two(512, "align") == 512
    with pytest.raises(ValueError, match="^align must be a power of two, got 768; try 1024$"):
        _arguments.power_of_two(768, "align")
    with pytest.raises(ValueError, match="got 0; try 1$"):
        _arguments.power_of_two(0, "align")
    with pytest.raises(ValueError, match=f"; try {1 << 63}$"):  # there is none above
        _arguments.power_of_two((1 << 63) + 1, "align")


def test_the_multiple_that_is_named_is_one_that_there_is():
    for value, multiple in (
        (1, "next multiple is 2048"),
        (2**64 - 1, f"last multiple is {2**64 - 2048}"),
    ):
        text = f"^size {value} is not a multiple of the granularity 2048; the {multiple} "
        with pytest.raises(ValueError, match=text):
            _arguments.whole_granules(value, 2048, "size")


@pytest.mark.parametrize("value", [True, 1, "x", [0], np.True_, np.array([3])])
def test_what_is_true_is_a_flag(value):
    assert _arguments.flag(value, "force") is True
    assert _arguments.flag(not value, "force") is False


@pytest.mark.parametrize("value", [np.array([1, 2]), np.ma.masked_array([1, 2])])
def test_what_has_no_truth_is_no_flag(value):
    with pytest.raises(
        TypeError, match=f"^force must be true or false, not {type(value).__name__}"
    ):
        _arguments.flag(value, "force")


class Broken:
    def __iter__(self):
        return 5


@pytest.mark.parametrize("value", [np.array(7), Broken(), 7, "7", b"7", None])
def test_what_cannot_be_iterated_over_is_named(value):
    with pytest.raises(TypeError, match="^keep must be an iterable of pairs, not "):
        _arguments.iterable(value, "keep", "pairs")
