"""Numbers of rows against a dict: first met, first numbered, and kept while the tables grow."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.errors import CapacityError
from hetero.keys.numbering import KeyNumbers
from hetero.records import KeySet

ROWS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0, 1, 2, 2**63, 2**64 - 1])), max_size=12)


def key_set(rows: list[tuple[int, int]]) -> KeySet:
    return KeySet(np.array([t for t, _ in rows], np.uint16), np.array([k for _, k in rows], np.uint64))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), ROWS), max_size=6))
def test_numbers_are_those_of_a_dict(calls: list[tuple[bool, list[tuple[int, int]]]]) -> None:
    numbers, oracle = KeyNumbers(), dict[tuple[int, int], int]()
    for adds, rows in calls:
        if adds:
            for row in rows:
                oracle.setdefault(row, len(oracle))
            got = numbers.number(key_set(rows))
        else:
            got = numbers.find(key_set(rows))
        assert got.tolist() == [oracle.get(row, -1) for row in rows]
        assert len(numbers) == len(oracle)
    back = numbers.keys_of(np.arange(len(oracle), dtype=np.int32))
    assert list(zip(back.tables.tolist(), back.keys.tolist(), strict=True)) == list(oracle)


def test_numbers_stay_while_the_tables_grow() -> None:
    random = np.random.default_rng(0)
    numbers, keys = KeyNumbers(), np.unique(random.integers(0, 2**64, 20_000, dtype=np.uint64))
    random.shuffle(keys)
    tables = np.zeros(len(keys), np.uint16)
    for start in range(0, len(keys), 777):
        numbers.number(KeySet(tables[start : start + 777], keys[start : start + 777]))
    np.testing.assert_array_equal(numbers.find(KeySet(tables, keys)), np.arange(len(keys)))
    assert (numbers.find(KeySet(tables + np.uint16(1), keys)) == -1).all()


def test_more_rows_than_numbers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hetero.keys.numbering._MOST_ROWS", 3)
    with pytest.raises(CapacityError, match="4 rows would be numbered, at most 3"):
        KeyNumbers().number(key_set([(0, key) for key in range(4)]))
