"""Rows split over threads are covered once, in whole blocks, and what fails in a part fails the whole."""

from __future__ import annotations

import threading
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero.kernels.rows import LINE_FLOATS, aligned_floats, line_up, over_rows, part_edges


@given(rows=st.integers(0, 300), threads=st.integers(1, 5), block=st.sampled_from([1, 7, 64]))
def test_every_row_once_in_whole_blocks(rows: int, threads: int, block: int) -> None:
    seen = np.zeros(rows, np.int64)
    parts: list[tuple[int, int]] = []
    lock = threading.Lock()

    def work(start: int, stop: int) -> None:
        seen[start:stop] += 1
        with lock:
            parts.append((start, stop))

    over_rows(work, rows, threads=threads, block=block)
    assert (seen == 1).all()
    assert all(start % block == 0 and (stop == rows or stop % block == 0) for start, stop in parts)
    assert len(parts) == 1 or threads > 1 or not rows
    assert sorted(parts) == [*pairwise(part_edges(rows, threads=threads, block=block))]
    assert len(parts) >= min(threads, -(-rows // block))


def test_parts_shrink_to_the_end() -> None:
    sizes = np.diff(part_edges(4096, threads=2, block=1))
    assert sizes[0] == 1024
    assert (np.diff(sizes) <= 0).all()
    assert sizes[-1] <= 4096 // 16


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_failing_part_is_raised(failing: int) -> None:
    at = part_edges(30, threads=3, block=1)[failing]

    def work(start: int, stop: int) -> None:
        if start == at:
            raise ValueError(f"rows from {start}")

    with pytest.raises(ValueError, match=f"rows from {at}"):
        over_rows(work, 30, threads=3)


def test_memory_begins_on_a_cache_line() -> None:
    for count in (1, 17, 400):
        room = aligned_floats(count)
        assert room.shape == (count,)
        assert int(room.ctypes.data) % (4 * LINE_FLOATS) == 0
    assert [line_up(count) for count in (0, 1, 16, 367)] == [0, 16, 16, 368]
