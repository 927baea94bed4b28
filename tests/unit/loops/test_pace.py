"""Things done every so often."""

from __future__ import annotations

from itertools import pairwise

from hetero.loops.pace import GrowingPace, Pace


class Clock:
    t = 0.0

    def __call__(self) -> float:
        return self.t


def test_a_pace_is_due_at_once_and_then_every_so_often() -> None:
    clock = Clock()
    pace = Pace(2.0, now=clock)
    due = []
    for tenth in range(100):
        clock.t = tenth / 10
        if pace.due():
            due.append(clock.t)
    assert due == [0.0, 2.0, 4.0, 6.0, 8.0]


def test_a_growing_pace_keeps_all_at_first_and_few_of_a_long_time() -> None:
    clock = Clock()
    pace = GrowingPace(share=1 / 100, now=clock)
    due = []
    for second in range(0, 100_000, 2):
        clock.t = float(second)
        told = pace.is_due
        if pace.due():
            due.append(second)
            assert told
    assert due[:101] == list(range(0, 202, 2))
    assert len(due) < 800
    assert max(after - before for before, after in pairwise(due)) <= 1002
