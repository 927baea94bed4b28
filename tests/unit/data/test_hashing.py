"""hash_strings over every Arrow layout of text."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
import xxhash

from hetero.data.hashing import MISSING_KEY, hash_strings

WORDS = ["", "a", "user 7", "größe", "x" * 100]
EXPECTED = [xxhash.xxh64_intdigest(word.encode()) for word in WORDS]


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.string_view(), pa.binary_view()]
)
def test_all_layouts_agree(kind: Any) -> None:
    assert hash_strings(pa.array(WORDS, pa.string()).cast(kind)).tolist() == EXPECTED


def test_slices_and_chunks() -> None:
    array = pa.array(WORDS)
    assert hash_strings(array.slice(2, 2)).tolist() == EXPECTED[2:4]
    assert hash_strings(pa.chunked_array([array.slice(1), array])).tolist() == EXPECTED[1:] + EXPECTED
    assert hash_strings(pa.chunked_array([], pa.string())).tolist() == []


def test_dictionary_arrays_hash_their_values() -> None:
    array = pa.array(WORDS + WORDS[::-1]).dictionary_encode()
    assert hash_strings(array).tolist() == EXPECTED + EXPECTED[::-1]
    assert hash_strings(array.slice(3, 3)).tolist() == [*EXPECTED[3:], EXPECTED[4]]
    two = pa.chunked_array([pa.array(["b", "a"]).dictionary_encode(), pa.array(["a", "c"]).dictionary_encode()])
    assert hash_strings(two).tolist() == [xxhash.xxh64_intdigest(word) for word in (b"b", b"a", b"a", b"c")]


def test_dictionary_of_nothing_but_nulls() -> None:
    array = pa.array([None, None], pa.string()).dictionary_encode()
    assert len(hash_strings(array)) == 2


def test_nulls_do_not_shift_their_neighbours() -> None:
    assert hash_strings(pa.array(["a", None, "user 7"])).tolist()[::2] == EXPECTED[1:3]


def test_fixed_size_binary() -> None:
    assert hash_strings(pa.array([b"ab", b"cd"], pa.binary(2))).tolist() == [
        xxhash.xxh64_intdigest(b"ab"),
        xxhash.xxh64_intdigest(b"cd"),
    ]


def test_numbers_are_refused() -> None:
    with pytest.raises(TypeError, match="int64"):
        hash_strings(pa.array([1, 2]))


def test_missing_key_is_the_hash_of_no_bytes() -> None:
    assert xxhash.xxh64_intdigest(b"") == MISSING_KEY
