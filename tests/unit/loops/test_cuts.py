"""When a cut is wanted, and where towers meet for one."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from hetero.loops.cuts import CutRule
from hetero.loops.meeting import Absent, Meetings
from hetero.loops.protocols import Cut
from hetero.records import SnapshotSpec


class Clock:
    def __init__(self) -> None:
        self.t = 0.0

    def __call__(self) -> float:
        return self.t


def test_a_cut_is_due_by_steps_by_time_and_on_request() -> None:
    clock = Clock()
    rule = CutRule(SnapshotSpec(every_steps=5, every_s=60.0), now=clock)
    assert [rule.wanted(steps) for steps in (1, 4)] == [Cut.NONE, Cut.NONE]
    assert rule.wanted(5) is Cut.SNAPSHOT
    rule.begun()
    rule.written(base=None)
    clock.t = 59.0
    assert rule.wanted(6) is Cut.NONE
    clock.t = 60.0
    assert rule.wanted(6) is Cut.SNAPSHOT
    rule.begun()
    rule.written(base=None)
    rule.ask(Cut.SNAPSHOT)
    assert rule.wanted(7) is Cut.SNAPSHOT
    rule.ask(Cut.STOP)
    rule.ask(Cut.SNAPSHOT)
    assert rule.wanted(8) is Cut.STOP


def test_while_one_is_written_the_next_waits_and_is_not_forgotten() -> None:
    rule = CutRule(SnapshotSpec(every_steps=5))
    assert rule.wanted(5) is Cut.SNAPSHOT
    rule.begun()
    assert [rule.wanted(steps) for steps in (9, 10, 11)] == [Cut.NONE] * 3
    rule.ask(Cut.STOP)
    assert rule.wanted(12) is Cut.NONE
    rule.written(base=None)
    assert rule.wanted(13) is Cut.STOP
    rule.begun()
    rule.written(base=None)
    assert rule.wanted(14) is Cut.NONE


def test_without_a_rule_there_are_only_requests() -> None:
    rule = CutRule(SnapshotSpec())
    assert {rule.wanted(steps) for steps in range(100)} == {Cut.NONE}
    rule.ask(Cut.SNAPSHOT)
    rule.withdraw()
    assert rule.wanted(100) is Cut.NONE


@given(towers=st.integers(1, 4), seed=st.integers(0, 1000), leaver=st.none() | st.integers(0, 3))
def test_all_towers_learn_the_same_of_a_meeting(towers: int, seed: int, leaver: int | None) -> None:
    """Whoever comes first; with one that has left there is no result, unless it came before."""
    chance, meetings = random.Random(seed), Meetings(towers=towers)
    values = {tower: chance.randrange(100) for tower in range(towers)}
    met: dict[int, int | Absent] = {}
    leaver = None if leaver is None else leaver % towers
    waiting = list(values)
    while waiting:
        tower = chance.choice(waiting)
        if tower == leaver:
            meetings.leave(tower)
            waiting.remove(tower)
            continue
        met[tower] = meetings.meet(tower, number=0, value=values[tower])
        if met[tower] is not Absent.YET:
            waiting.remove(tower)
    assert set(met.values()) <= ({max(values.values())} if leaver is None else {Absent.ENDED})
