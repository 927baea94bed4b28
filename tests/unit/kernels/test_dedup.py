"""The dedup kernel against numpy's reference, and the reference against a dictionary."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.kernels.dedup import dedup_kernel, dedup_reference
from hetero.records import I32, U16, U64
from tests.support.crafted_keys import unmix64

EXTREMES = [0, 1, 2**63 - 1, 2**63, 2**64 - 1]
occurrences = st.lists(
    st.tuples(
        st.integers(0, 3) | st.just(65535), st.sampled_from(EXTREMES) | st.integers(0, 20) | st.integers(0, 2**64 - 1)
    ),
    max_size=80,
)


def by_kernel(tables: U16, keys: U64, *, slots: int) -> tuple[U16, U64, I32]:
    count = len(keys)
    unique_tables, unique_keys = np.zeros(count + 1, np.uint16), np.zeros(count + 1, np.uint64)
    local = np.empty(count, np.int32)
    table = np.random.default_rng(0).integers(0, 2**32, slots, dtype=np.uint32)  # what is there before does not count
    bits = (count + 1).bit_length()
    unique = dedup_kernel(tables, keys, table, bits, unique_tables, unique_keys, local)
    return unique_tables[1 : unique + 1], unique_keys[1 : unique + 1], local


def by_dictionary(tables: U16, keys: U64) -> tuple[list[tuple[int, int]], list[int]]:
    numbers: dict[tuple[int, int], int] = {}
    local = [numbers.setdefault(pair, len(numbers)) for pair in zip(tables.tolist(), keys.tolist(), strict=True)]
    return list(numbers), local


def assert_all_agree(tables: U16, keys: U64, *, slots: int) -> None:
    want, want_local = by_dictionary(tables, keys)
    for got_tables, got_keys, local in (by_kernel(tables, keys, slots=slots), dedup_reference(tables, keys)):
        assert list(zip(got_tables.tolist(), got_keys.tolist(), strict=True)) == want
        assert local.tolist() == want_local
        assert [str(array.dtype) for array in (got_tables, got_keys, local)] == ["uint16", "uint64", "int32"]


@settings(max_examples=50, deadline=None)
@given(occurrences)
def test_kernel_reference_and_dictionary_agree(pairs: list[tuple[int, int]]) -> None:
    tables = np.array([table for table, _ in pairs], np.uint16)
    assert_all_agree(tables, np.array([key for _, key in pairs], np.uint64), slots=256)


@settings(max_examples=30, deadline=None)
@given(occurrences, st.sampled_from([0, 7, 65535]))
def test_rows_of_one_table_have_code_of_their_own_and_the_same_results(
    pairs: list[tuple[int, int]], table: int
) -> None:
    keys = np.array([key for _, key in pairs], np.uint64)
    assert_all_agree(np.full(len(keys), table, np.uint16), keys, slots=512)


@pytest.mark.parametrize("tags", [1, 3, 100], ids=["one tag", "three tags", "a tag each"])
def test_keys_that_all_begin_at_the_last_slot_wrap_around(tags: int) -> None:
    hashes = [(number % tags) << 45 | number << 32 | 0xFFFFFFFF for number in range(100)]
    keys = np.array([unmix64(hashed) for hashed in hashes] * 3, np.uint64)
    assert_all_agree(np.zeros(300, np.uint16), keys, slots=1024)


def test_a_table_that_would_fill_beyond_a_quarter_is_refused() -> None:
    keys = np.random.default_rng(1).permutation(np.arange(512, dtype=np.uint64))
    tables, local = np.zeros(512, np.uint16), np.empty(512, np.int32)
    for rows, slots, fits in [(512, 2048, True), (512, 1024, False), (256, 1024, True), (320, 1024, False)]:
        room = (np.empty(rows + 1, np.uint16), np.empty(rows + 1, np.uint64), local[:rows])
        unique = dedup_kernel(tables[:rows], keys[:rows], np.empty(slots, np.uint32), 10, *room)
        assert unique == (rows if fits else -1)


def test_the_same_key_in_several_tables_is_several_rows() -> None:
    tables = np.array([0, 1, 65535, 1, 0], np.uint16)
    got_tables, got_keys, local = by_kernel(tables, np.full(5, 2**64 - 1, np.uint64), slots=64)
    assert got_tables.tolist() == [0, 1, 65535]
    assert got_keys.tolist() == [2**64 - 1] * 3
    assert local.tolist() == [0, 1, 2, 1, 0]
