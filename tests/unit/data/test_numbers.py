"""Numbers out of text and Arrow columns, against Python's own parsers."""

from __future__ import annotations

import math
import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.data.numbers import integers_of, numbers_of

digits = st.text("0123456789", max_size=25)
decimals = st.builds(
    lambda sign, whole, point, rest, exponent: sign + whole + point + rest + exponent,
    st.sampled_from(["", "+", "-"]),
    digits,
    st.sampled_from(["", "."]),
    digits,
    st.sampled_from(["", "e5", "E-7", "e+22", "e-30", "e400"]),
)


def python_float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def bits(value: float) -> bytes:
    return struct.pack("<d", value)


def check_against_python(texts: list[str]) -> None:
    numbers = numbers_of(pa.array(texts, pa.string()))
    for i, text in enumerate(texts):
        expected = python_float(text)
        missing = numbers.missing is not None and bool(numbers.missing[i])
        invalid = numbers.invalid is not None and bool(numbers.invalid[i])
        assert missing == (text.strip() == "")
        assert invalid == (expected is None and not missing), text
        if expected is not None:
            assert bits(float(numbers.values[i])) == bits(expected), text


@given(st.lists(st.floats(allow_nan=False), max_size=20))
@settings(max_examples=50, deadline=None)
def test_floats_round_as_python_does(values: list[float]) -> None:
    check_against_python([repr(value) for value in values])


@given(st.lists(decimals, max_size=20))
@settings(max_examples=50, deadline=None)
def test_decimal_text_of_any_length(texts: list[str]) -> None:
    check_against_python(texts)


@pytest.mark.parametrize(
    "text",
    ["1.0.0", "--1", "1e", "1e+", "e5", ".", "+", "0x10", "1,5", "12a", "1 2", "nano", "infinit", "ä"],
)
def test_text_that_is_no_number_is_invalid(text: str) -> None:
    numbers = numbers_of(pa.array(["1", text, "2"]))
    assert numbers.invalid is not None
    assert numbers.invalid.tolist() == [False, True, False]
    assert numbers.values[[0, 2]].tolist() == [1.0, 2.0]


def test_names_of_special_values_and_spaces() -> None:
    values = numbers_of(pa.array(["inf", "-Infinity", "NaN", " 7 ", "-0"])).values.tolist()
    assert values[:2] == [math.inf, -math.inf]
    assert math.isnan(values[2])
    assert values[3] == 7.0
    assert math.copysign(1.0, values[4]) == -1.0


def test_null_and_blank_text_is_missing() -> None:
    numbers = numbers_of(pa.array(["1", None, "", "  "], pa.binary()))
    assert numbers.missing is not None
    assert numbers.missing.tolist() == [False, True, True, True]


def test_bytes_behind_a_null_do_not_count() -> None:
    buffers = [pa.py_buffer(b"\x05"), pa.py_buffer(np.array([0, 1, 4, 5], np.int32)), pa.py_buffer(b"1bad2")]
    array = pa.Array.from_buffers(pa.string(), 3, buffers)
    assert array.to_pylist() == ["1", None, "2"]
    for numbers in (numbers_of(array), integers_of(array)):
        assert numbers.invalid is None
        assert numbers.missing is not None
        assert numbers.missing.tolist() == [False, True, False]


@pytest.mark.parametrize(
    "array",
    [
        pa.array([1, None, 0], pa.int8()),
        pa.array([1, None, 0], pa.uint64()),
        pa.array([1.0, None, 0.0], pa.float16()),
        pa.array([1.0, None, 0.0], pa.float64()),
        pa.array([True, None, False]),
        pa.array(["1.00", None, "0.00"]).cast(pa.decimal128(8, 2)),
        pa.array([1, None, 0], pa.int64()).dictionary_encode(),
    ],
)
def test_arrow_types(array: pa.Array) -> None:
    numbers = numbers_of(array)
    assert numbers.values.tolist() == [1.0, 0.0, 0.0]
    assert numbers.missing is not None
    assert numbers.missing.tolist() == [False, True, False]


@given(st.lists(st.integers(-(2**65), 2**65), max_size=20))
@settings(max_examples=50, deadline=None)
def test_integers_of_64_bits_and_no_more(values: list[int]) -> None:
    integers = integers_of(pa.array([str(value) for value in values], pa.string()))
    for i, value in enumerate(values):
        fits = -(2**63) <= value < 2**64
        assert (integers.invalid is None or not integers.invalid[i]) == fits
        if fits:
            assert int(integers.values[i]) == value % 2**64


def test_extremes_of_integer_text() -> None:
    texts = ["18446744073709551615", "18446744073709551616", "-9223372036854775808", "-9223372036854775809", "-1"]
    integers = integers_of(pa.array(texts))
    assert integers.invalid is not None
    assert integers.invalid.tolist() == [False, True, False, True, False]
    assert integers.values[[0, 2, 4]].tolist() == [2**64 - 1, 2**63, 2**64 - 1]


@pytest.mark.parametrize("text", ["1.0", "", "+", "-", "1e3", "0x1", "1 2"])
def test_text_that_is_no_integer(text: str) -> None:
    integers = integers_of(pa.array(["1", text]))
    flagged = integers.missing if text == "" else integers.invalid
    assert flagged is not None
    assert flagged.tolist() == [False, True]


def test_arrow_integers_of_every_width_keep_their_bits() -> None:
    for kind, low, high in (("int8", -128, 127), ("int64", -(2**63), 2**63 - 1), ("uint64", 0, 2**64 - 1)):
        array = pa.array([low, high, None], getattr(pa, kind)())
        integers = integers_of(array)
        assert integers.values[:2].tolist() == [low % 2**64, high % 2**64]
        assert integers.missing is not None
        assert integers.missing.tolist() == [False, False, True]
