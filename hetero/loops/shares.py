"""When the shares of a batch among towers change: a rule over what towers tell of their steps. Pure, no clock.

Consumes   paces of all towers, again and again; changes that the sequencer made
Produces   parts that are wanted from now on, or None
Waits for  nobody

A tower is busy fixed_s + rows x row_s with a step; waiting for others counts for nothing. Parts are such that all end a
step together. What a step costs whatever its rows is known once a tower has had two parts that differ, and is none
before that: the first change is in proportion to speed. A change is worth it when steps would be MORE_THAN faster, and
is made when that is seen twice in a row, each time over LEAST_STEPS steps that were all cut with the same parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hetero.records import SharesFrom, ShareSpec

MORE_THAN = 0.04
LEAST_STEPS = 8
SETTLING_STEPS = 2
"""Steps after a change that are not looked at: buffers grow."""
_APART = 0.25
"""How much the rows of two looks differ, of the larger, for what a step costs without rows to be told from them."""
_MOST_FIXED = 0.98
"""Of a step's time, so that rows always cost something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerPace:
    """What a tower has done since it began to train. busy_s: without waiting for others."""

    step: int
    rows: int
    busy_s: float


@dataclass(frozen=True, slots=True)
class StepCost:
    """What a tower's steps were between two looks, in the mean: rows, and seconds it was busy."""

    rows: float
    busy_s: float

    @staticmethod
    def between(then: TowerPace, now: TowerPace) -> StepCost:
        """Not none of either, so that a tower without rows or time so far keeps its share."""
        steps = now.step - then.step
        return StepCost(max((now.rows - then.rows) / steps, 1e-9), max((now.busy_s - then.busy_s) / steps, 1e-9))


class ShareRule:
    """Looks at all towers' paces. batch_size: rows of a step, which parts add up to."""

    def __init__(self, *, batch_size: int) -> None:
        self._batch_size = batch_size
        self._from_step = 0
        self._base: list[TowerPace] | None = None
        self._waiting = False
        self._seen = False
        self._latest: list[StepCost] = []
        self._marks: list[StepCost] = []  # of the parts before the latest change
        self._fixed: list[float] = []

    def look(self, paces: Sequence[TowerPace]) -> tuple[int, ...] | None:
        """Parts to change to, or None."""
        if self._waiting or min(pace.step for pace in paces) < self._from_step + SETTLING_STEPS:
            return None
        if self._base is None:
            self._base = list(paces)
            return None
        if min(now.step - then.step for now, then in zip(paces, self._base, strict=True)) < LEAST_STEPS:
            return None
        costs = [StepCost.between(then, now) for then, now in zip(self._base, paces, strict=True)]
        self._base, self._latest = list(paces), costs
        self._fixed = self._fixed or [0.0] * len(costs)
        if self._marks:
            self._fixed = [fixed_of(*each) for each in zip(self._marks, costs, self._fixed, strict=True)]
        gained, parts = balanced(costs, self._fixed, batch_size=self._batch_size)
        if gained <= MORE_THAN:
            self._seen = False
            return None
        if not self._seen:
            self._seen = True
            return None
        self._waiting, self._seen = True, False
        return parts

    def changed(self, change: SharesFrom) -> None:
        """The sequencer cuts with other parts from a step on."""
        self._from_step, self._base, self._waiting = change.step, None, False
        self._marks = self._latest


def fixed_of(before: StepCost, now: StepCost, known: float) -> float:
    """Seconds of a step whatever its rows: by the line through two costs that are apart, else as known before."""
    apart = abs(now.rows - before.rows) > _APART * max(now.rows, before.rows)
    row_s = (now.busy_s - before.busy_s) / (now.rows - before.rows) if apart else 0.0
    return max(0.0, now.busy_s - row_s * now.rows) if row_s > 0 else known


def balanced(costs: Sequence[StepCost], fixed: Sequence[float], *, batch_size: int) -> tuple[float, tuple[int, ...]]:
    """(what of a step's time would be gained, parts with which all towers end a step together).

    fixed: seconds of each tower's step whatever its rows. A tower that needs longer without any has one row.
    """
    fixed = [min(known, _MOST_FIXED * cost.busy_s) for known, cost in zip(fixed, costs, strict=True)]
    row_s = [(cost.busy_s - known) / cost.rows for known, cost in zip(fixed, costs, strict=True)]
    taking = list(range(len(costs)))
    while True:
        whole_s = batch_size + sum(fixed[tower] / row_s[tower] for tower in taking)
        together_s = whole_s / sum(1 / row_s[tower] for tower in taking)
        still = [tower for tower in taking if fixed[tower] < together_s]
        if len(still) == len(taking):
            break
        taking = still
    shares = [(together_s - fixed[t]) / row_s[t] if t in taking else 1e-9 for t in range(len(costs))]
    parts = whole_parts(shares, total=batch_size)
    then_s = max(known + part * each for known, part, each in zip(fixed, parts, row_s, strict=True))
    return max(cost.busy_s for cost in costs) / then_s - 1, parts


def whole_parts(shares: Sequence[float], *, total: int = 10_000) -> tuple[int, ...]:
    """Whole numbers, 1 at least, in proportion to `shares` and with their sum, by largest remainders."""
    if not shares:
        return ()
    whole = sum(shares)
    exact = [total * share / whole for share in shares]
    parts = [max(1, int(each)) for each in exact]
    order = sorted(range(len(parts)), key=lambda n: exact[n] - int(exact[n]), reverse=True)
    missing = total - sum(parts)
    for number in range(max(0, missing)):
        parts[order[number % len(parts)]] += 1
    while sum(parts) > total and max(parts) > 1:
        parts[parts.index(max(parts))] -= 1
    return tuple(parts)


def parts_at(changes: Sequence[SharesFrom], step: int) -> tuple[int, ...]:
    """Parts that hold for a step, of changes by ascending step; empty before the first."""
    held: tuple[int, ...] = ()
    for change in changes:
        if change.step <= step:
            held = change.parts
    return held


def going_on(spec: ShareSpec, changes: Sequence[SharesFrom], *, step: int) -> ShareSpec:
    """How a run that goes on from a step begins: with the parts it had there."""
    held = parts_at(changes, step)
    return ShareSpec(first=held, measured=spec.measured) if held and not spec.replay else spec
