"""How long windows are: set, or grown from measured times within a limit of memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hetero.errors import CapacityError
from hetero.exchange.window_size import MOST_STEPS, WindowSize
from hetero.keys.windows import GroupMoves, TowerWindow
from hetero.records import AUTO_WINDOW, START, BatchSpec, JobSpec, KeySet
from tests.support.jobs import data_spec, small_job, write_data

ROW_BYTES = 4 * (4 + 1)
"""Of the deep group, whose rows have 4 weights and one accumulator."""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> JobSpec:
    folder: Path = tmp_path_factory.mktemp("data")
    whole = small_job(data_spec(write_data(folder / "a.parquet", rows=10, seed=0)), window=AUTO_WINDOW)
    return replace(whole, groups=whole.groups[1:])


def window(*, steps: int, leave: int = 0, hold: int = 0, enter: int = 0) -> tuple[TowerWindow, ...]:
    """A window of one tower and one group, with so many rows."""

    def rows(count: int) -> KeySet:
        return KeySet(np.zeros(count, np.uint16), np.zeros(count, np.uint64))

    none = np.empty(0, np.int32)
    moves = GroupMoves(rows(leave), none, rows(enter), none, hold)
    specs = tuple(BatchSpec(step=step, tower=0, pieces=(), weight_sum=1.0, after=START) for step in range(steps))
    return (TowerWindow(index=3, specs=specs, moves=(moves,), routes=()),)


def test_windows_double_while_boundaries_cost_much(job: JobSpec) -> None:
    size = WindowSize(job)
    taken = []
    for share in (0.5, 0.3, 0.02, 0.01, 0.009):
        taken.append(size.steps)
        size.built(window(steps=size.steps, hold=10))
        size.crossed(share)
    assert taken == [1, 2, 4, 8, 8]
    assert "0.9%" in size.choice().why


def test_there_is_a_longest_window(job: JobSpec) -> None:
    size = WindowSize(job)
    for _ in range(20):
        size.built(window(steps=size.steps, hold=10))
        size.crossed(0.5)
    assert size.steps == MOST_STEPS


def test_rows_that_leave_stay_and_enter_count_against_the_limit(job: JobSpec) -> None:
    size = WindowSize(replace(job, window_bytes=120 * ROW_BYTES))
    size.built(window(steps=1, leave=10, hold=30, enter=20))
    assert size.choice().bytes == 60 * ROW_BYTES
    size.crossed(0.5)
    assert size.steps == 2  # twice 60 rows fit exactly
    size.built(window(steps=2, leave=10, hold=30, enter=21))
    size.crossed(0.5)
    assert size.steps == 2
    assert "would not fit" in size.choice().why


def test_a_window_that_does_not_fit_makes_the_next_ones_shorter(job: JobSpec) -> None:
    size = WindowSize(replace(job, window_bytes=100 * ROW_BYTES))
    size.steps = 8
    size.built(window(steps=8, hold=101))
    assert size.steps == 4
    assert "over train.window_bytes" in size.choice().why


def test_a_batch_that_does_not_fit_is_an_error_with_numbers(job: JobSpec) -> None:
    size = WindowSize(replace(job, window_bytes=100 * ROW_BYTES))
    with pytest.raises(CapacityError, match=rf"window 3 of 1 steps.*{101 * ROW_BYTES} bytes.*is {100 * ROW_BYTES};"):
        size.built(window(steps=1, hold=101))


def test_a_window_set_by_the_job_is_kept_or_fails(job: JobSpec) -> None:
    size = WindowSize(replace(job, window=4, window_bytes=100 * ROW_BYTES))
    size.built(window(steps=4, hold=100))
    size.crossed(0.9)
    assert size.steps == 4
    assert size.choice().asked == 4
    with pytest.raises(CapacityError, match=r"lower train\.window"):
        size.built(window(steps=4, hold=101))


def test_on_a_device_rows_that_grow_count_twice(job: JobSpec) -> None:
    """Longer tensors lie beside those they take the place of: 100 rows of before, and 150."""
    size = WindowSize(replace(job, device="cpu", window_bytes=300 * ROW_BYTES))
    size.built(window(steps=1, hold=100))
    assert size.choice().bytes == 100 * ROW_BYTES
    size.crossed(0.5)
    assert size.steps == 2
    size.built(window(steps=2, hold=150))
    assert size.choice().bytes == 250 * ROW_BYTES
    size.built(window(steps=2, leave=40, hold=150, enter=40))
    assert size.choice().bytes == 250 * ROW_BYTES
    size.crossed(0.5)
    assert size.steps == 2
    assert "would not fit" in size.choice().why
    with pytest.raises(CapacityError, match="the rows a tower leases need 7000 bytes"):
        WindowSize(replace(job, device="cpu", window_bytes=300 * ROW_BYTES)).built(window(steps=1, hold=350))
