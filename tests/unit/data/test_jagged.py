"""Operations on Jagged against lists of lists."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.data.jagged import freeze, join, keep_last, row_offsets, take_rows
from hetero.errors import DataError
from hetero.records import Jagged

Rows = list[list[tuple[int, float]]]

cells = st.tuples(st.integers(0, 2**64 - 1), st.sampled_from([0.5, 1.0, 2.0]))
rows_of_lists = st.lists(st.lists(cells, max_size=4), max_size=6)


def from_rows(rows: Rows, *, weighted: bool = True) -> Jagged:
    flat = [cell for row in rows for cell in row]
    return Jagged(
        np.array([key for key, _ in flat], np.uint64),
        row_offsets(np.array([len(row) for row in rows], np.int64)),
        np.array([weight for _, weight in flat], np.float32) if weighted else None,
    )


def to_rows(jagged: Jagged) -> Rows:
    offsets = np.arange(len(jagged.keys) + 1) if jagged.offsets is None else jagged.offsets
    weights = np.ones(len(jagged.keys)) if jagged.weights is None else jagged.weights
    flat = list(zip(jagged.keys.tolist(), weights.tolist(), strict=True))
    return [flat[a:b] for a, b in itertools.pairwise(offsets)]


@given(rows_of_lists, st.data())
@settings(max_examples=50, deadline=None)
def test_take_rows(rows: Rows, data: st.DataObject) -> None:
    picked = data.draw(st.lists(st.integers(0, max(len(rows) - 1, 0)), max_size=8 if rows else 0))
    taken = take_rows(from_rows(rows), np.array(picked, np.int64))
    assert to_rows(taken) == [rows[i] for i in picked]


@given(rows_of_lists, st.integers(1, 4))
@settings(max_examples=50, deadline=None)
def test_keep_last(rows: Rows, most: int) -> None:
    assert to_rows(keep_last(from_rows(rows), most=most)) == [row[-most:] for row in rows]


@given(st.lists(st.tuples(rows_of_lists, st.booleans()), min_size=1, max_size=4))
@settings(max_examples=50, deadline=None)
def test_join_with_and_without_weights(parts: list[tuple[Rows, bool]]) -> None:
    expected = [[(key, weight if weighted else 1.0) for key, weight in row] for rows, weighted in parts for row in rows]
    joined = join([from_rows(rows, weighted=weighted) for rows, weighted in parts])
    assert to_rows(joined) == expected
    assert (joined.weights is None) == (not any(weighted for _, weighted in parts))


def test_one_key_a_row_stays_without_offsets() -> None:
    ones = Jagged(np.arange(5, dtype=np.uint64))
    assert take_rows(ones, np.array([4, 0])).offsets is None
    assert keep_last(ones, most=1) is ones
    assert join([ones, ones]).offsets is None
    lists = from_rows([[], [(7, 1.0), (8, 1.0)]], weighted=False)
    mixed = join([ones, lists])
    assert mixed.offsets is not None
    assert mixed.offsets.tolist() == [0, 1, 2, 3, 4, 5, 5, 7]


def test_more_keys_than_offsets_can_number() -> None:
    with pytest.raises(DataError, match="2147483648 keys"):
        row_offsets(np.array([2**31], np.int64))


def test_freeze_makes_every_array_read_only() -> None:
    frozen = freeze(from_rows([[(1, 2.0)]]))
    assert frozen.offsets is not None
    assert frozen.weights is not None
    assert not any(array.flags.writeable for array in (frozen.keys, frozen.offsets, frozen.weights))
