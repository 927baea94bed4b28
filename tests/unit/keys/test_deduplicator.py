"""Dedup over many calls: scratch memory that is reused, grows and shrinks."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.kernels.dedup import dedup_reference
from hetero.keys.dedup import Deduplicator
from hetero.records import U16, U64
from tests.support.crafted_keys import unmix64


def occurrences(count: int, *, seed: int, distinct: int = 50) -> tuple[U16, U64]:
    random = np.random.default_rng(seed)
    extremes = np.array([0, 2**64 - 1, 2**63], np.uint64)
    keys = np.concatenate([extremes, random.integers(0, 2**64, distinct, dtype=np.uint64)])
    return random.integers(0, 3, count).astype(np.uint16), random.choice(keys, count)


def assert_right(dedup: Deduplicator, tables: U16, keys: U64) -> None:
    unique, local = dedup(tables, keys)
    want_tables, want_keys, want_local = dedup_reference(tables, keys)
    np.testing.assert_array_equal(unique.tables, want_tables)
    np.testing.assert_array_equal(unique.keys, want_keys)
    np.testing.assert_array_equal(local, want_local)
    np.testing.assert_array_equal(unique.keys[local], keys)
    np.testing.assert_array_equal(unique.tables[local], tables)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([0, 1, 7, 300, 511, 512, 513, 5000]), st.integers(0, 99)), max_size=8))
def test_calls_of_any_size_do_not_disturb_each_other(calls: list[tuple[int, int]]) -> None:
    dedup = Deduplicator()
    for count, seed in calls:
        assert_right(dedup, *occurrences(count, seed=seed))


def test_the_scratch_memory_follows_the_unique_rows() -> None:
    dedup, random = Deduplicator(), np.random.default_rng(0)
    nothing = np.zeros(0, np.uint16)
    for _ in range(2):
        many = random.permutation(np.arange(40_000, dtype=np.uint64))
        assert_right(dedup, np.zeros(40_000, np.uint16), many)
        assert dedup._slots.nbytes <= 4 * 8 * 40_000
        assert_right(dedup, np.zeros(40_000, np.uint16), many % np.uint64(100))
        for _ in range(8):
            assert_right(dedup, nothing, nothing.astype(np.uint64))
        assert dedup._slots.nbytes <= 4096


def test_all_occurrences_distinct_and_all_the_same() -> None:
    dedup = Deduplicator()
    distinct = np.random.default_rng(0).permutation(np.arange(3000, dtype=np.uint64))
    assert_right(dedup, np.zeros(3000, np.uint16), distinct)
    assert_right(dedup, np.zeros(3000, np.uint16), np.full(3000, 2**64 - 1, np.uint64))


def test_keys_made_to_collide() -> None:
    keys = np.array([unmix64(number << 32 | 0xFFFFFFFF) for number in range(400)], np.uint64)
    assert_right(Deduplicator(), np.zeros(800, np.uint16), np.concatenate([keys, keys[::-1]]))


def test_results_are_not_overwritten_by_later_calls() -> None:
    dedup = Deduplicator()
    tables, keys = occurrences(300, seed=1)
    unique, local = dedup(tables, keys)
    kept = (unique.tables.copy(), unique.keys.copy(), local.copy())
    dedup(*occurrences(300, seed=2))
    for got, want in zip((unique.tables, unique.keys, local), kept, strict=True):
        np.testing.assert_array_equal(got, want)
