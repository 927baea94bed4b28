"""Windows against plain sets: what enters and leaves, one row a slot, and routes that bring the right rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.keys.windows import TowerWindow, WindowBuilder
from hetero.records import START, BatchSpec, DataSpec, JobSpec, KeySet, RoleSpec
from tests.support.jobs import small_job

Row = tuple[int, int]
BATCH = st.lists(st.tuples(st.sampled_from([2, 3, 4]), st.integers(0, 11)), unique=True, max_size=8)


def job_of(towers: int) -> JobSpec:
    nothing = DataSpec(paths=(), dense=(), sparse=(), label="label")
    return small_job(nothing, towers=RoleSpec(count=towers))


def key_set(rows: list[Row]) -> KeySet:
    return KeySet(np.array([table for table, _ in rows], np.uint16), np.array([key for _, key in rows], np.uint64))


def rows_of(keys: KeySet) -> list[Row]:
    return list(zip(keys.tables.tolist(), keys.keys.tolist(), strict=True))


class Owners:
    """What every tower's buffer of the deep group holds, slot by slot."""

    def __init__(self, towers: int) -> None:
        self.buffers: list[dict[int, Row]] = [{} for _ in range(towers)]

    @property
    def held(self) -> set[Row]:
        return {row for buffer in self.buffers for row in buffer.values()}

    def move(self, parts: tuple[TowerWindow, ...]) -> None:
        for buffer, part in zip(self.buffers, parts, strict=True):
            moves = part.moves[1]
            for slot, row in zip(moves.leave_slots.tolist(), rows_of(moves.leave), strict=True):
                assert buffer.pop(slot) == row
            for slot, row in zip(moves.enter_slots.tolist(), rows_of(moves.enter), strict=True):
                assert slot not in buffer
                assert slot < moves.capacity
                assert row not in self.held
                buffer[slot] = row

    def check_step(self, parts: tuple[TowerWindow, ...], step: int, batches: list[list[Row]]) -> None:
        routes = [part.routes[step][1] for part in parts]
        towers = len(parts)
        for tower, batch in enumerate(batches):
            received = []
            for owner in range(towers):
                served = routes[owner].serve_slots.tolist()
                begin = int(routes[owner].serve_counts[:tower].sum())
                mine = served[begin : begin + int(routes[owner].serve_counts[tower])]
                assert len(mine) == routes[tower].need_counts[owner]
                received += [self.buffers[owner][slot] for slot in mine]
            collected: list[Row | None] = [None] * len(batch)
            order = routes[tower].order.tolist() if towers > 1 else list(range(len(batch)))
            for place, row in zip(order, received, strict=True):
                collected[place] = row
            assert collected == batch
        for route in routes:
            assert len(set(route.merged_slots.tolist())) == len(route.merged_slots)
            merged = route.merged_slots[route.merged_local] if towers > 1 else route.merged_slots
            np.testing.assert_array_equal(merged, route.serve_slots)
            assert towers > 1 or len(route.order) == len(route.merged_local) == 0


@settings(max_examples=60, deadline=None)
@given(
    towers=st.integers(1, 3),
    windows=st.lists(st.lists(st.lists(BATCH, min_size=3, max_size=3), min_size=1, max_size=3), min_size=1, max_size=5),
)
def test_rows_enter_stay_leave_and_come_back(towers: int, windows: list[list[list[list[Row]]]]) -> None:
    builder = WindowBuilder(job_of(towers))
    owners = Owners(towers)
    empty = key_set([])
    for number, window in enumerate(windows):
        specs = [
            [BatchSpec(step=step, tower=tower, pieces=(), weight_sum=1.0, after=START) for tower in range(towers)]
            for step in range(len(window))
        ]
        keys = [[(empty, key_set(step[tower])) for tower in range(towers)] for step in window]
        before = owners.held
        parts = builder.build(specs, keys)
        needed = {row for step in window for tower in range(towers) for row in step[tower]}
        assert {row for part in parts for row in rows_of(part.moves[1].leave)} == before - needed
        assert {row for part in parts for row in rows_of(part.moves[1].enter)} == needed - before
        owners.move(parts)
        assert owners.held == needed
        assert [part.index for part in parts] == [number] * towers
        for step, batches in enumerate(window):
            owners.check_step(parts, step, batches[:towers])
    owners.move(builder.build([], []))
    assert owners.held == set()


def test_slots_are_used_again() -> None:
    builder = WindowBuilder(job_of(1))
    empty = key_set([])
    spec = [[BatchSpec(step=0, tower=0, pieces=(), weight_sum=1.0, after=START)]]
    for start in range(0, 100, 10):
        rows = [(2, start + key) for key in range(10)]
        (part,) = builder.build(spec, [[(empty, key_set(rows))]])
    assert part.moves[1].capacity == 10


def test_a_row_has_one_owner_whatever_the_window() -> None:
    owners: dict[Row, int] = {}
    builder = WindowBuilder(replace(job_of(3)))
    empty = key_set([])
    spec = [[BatchSpec(step=0, tower=tower, pieces=(), weight_sum=1.0, after=START) for tower in range(3)]]
    for start in (0, 100, 0, 50):
        rows = [(2, start + key) for key in range(60)]
        parts = builder.build(spec, [[(empty, key_set(rows))] * 3])
        for tower, part in enumerate(parts):
            for row in rows_of(part.moves[1].enter):
                assert owners.setdefault(row, tower) == tower
    assert set(owners.values()) == {0, 1, 2}
