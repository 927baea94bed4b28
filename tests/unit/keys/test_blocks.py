"""Memory of splits: taken again when nothing looks at it, and never before."""

from __future__ import annotations

import gc

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.keys.blocks import Blocks
from hetero.records import U64


def address_of(array: U64) -> int:
    return int(array.__array_interface__["data"][0])


def test_memory_comes_back_when_the_last_view_is_gone() -> None:
    blocks = Blocks()
    first = blocks.empty(1000, 26)
    assert first.shape == (1000, 26)
    assert first.dtype == np.uint64
    assert first.flags.writeable
    place, view = address_of(first), first.reshape(-1)[100:200]
    del first
    assert address_of(blocks.empty(1000, 26)) != place
    del view
    gc.collect()
    places = {address_of(held) for held in [blocks.empty(1000, 26), blocks.empty(1000, 26)]}
    assert place in places


def test_no_rows_and_no_columns() -> None:
    blocks = Blocks()
    assert blocks.empty(0, 26).shape == (0, 26)
    assert blocks.empty(3, 0).shape == (3, 0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5000), st.integers(0, 5)), max_size=40))
def test_arrays_that_live_at_the_same_time_share_nothing(calls: list[tuple[bool, int, int]]) -> None:
    blocks = Blocks()
    held: list[tuple[int, U64]] = []
    for number, (drops, rows, which) in enumerate(calls):
        if drops and held:
            held.pop(which % len(held))
        array = blocks.empty(rows, 3)
        array[:] = number
        held.append((number, array))
        for own, kept in held:
            assert (kept == own).all()
