"""xxHash64: the kernel and the plain function against the `xxhash` package."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.kernels.xxhash64 import StreamHash, hash_slices, hash_text


def kernel_hashes(values: list[bytes], *, kind: Any) -> list[int]:
    data = np.frombuffer(b"".join(values), np.uint8)
    offsets: Any = np.cumsum([0, *map(len, values)]).astype(kind)
    out = np.empty(len(values), np.uint64)
    hash_slices(data, offsets, out)
    return [int(value) for value in out]


@given(st.lists(st.binary(max_size=200), max_size=8))
@settings(max_examples=50, deadline=None)
def test_kernel_and_plain_function_equal_the_package(values: list[bytes]) -> None:
    expected = [xxhash.xxh64_intdigest(value) for value in values]
    assert kernel_hashes(values, kind=np.int32) == expected
    assert [hash_text(value) for value in values] == expected


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_every_length_up_to_two_hundred(kind: type[np.int32] | type[np.int64]) -> None:
    values = [bytes((7 * i + length) % 256 for i in range(length)) for length in range(201)]
    assert kernel_hashes(values, kind=kind) == [xxhash.xxh64_intdigest(value) for value in values]


def test_published_value_of_no_bytes() -> None:
    assert hash_text("") == hash_text(b"") == 0xEF46DB3751D8E999


def test_text_is_hashed_as_utf8() -> None:
    assert hash_text("größe 字") == xxhash.xxh64_intdigest("größe 字".encode())


def test_offsets_may_begin_inside_the_data() -> None:
    data = np.frombuffer(b"skipped, then this", np.uint8)
    out = np.empty(1, np.uint64)
    hash_slices(data, np.array([14, 18], np.int32), out)
    assert int(out[0]) == hash_text("this")


@given(st.lists(st.binary(max_size=100), max_size=12))
@settings(max_examples=100, deadline=None)
def test_parts_of_any_size_hash_as_their_whole(parts: list[bytes]) -> None:
    stream = StreamHash()
    for part in parts:
        stream.update(part)
        stream.value()  # asking does not change what follows
    assert stream.value() == xxhash.xxh64_intdigest(b"".join(parts))
