"""When the shares of a batch among towers change: a rule over what towers tell of their steps. Pure, no clock.

Consumes   paces of all towers, again and again; changes that the sequencer made
Produces   parts that are wanted from now on, or None
Waits for  nobody

A tower's speed is the rows of its steps / the seconds it was busy with them; waiting counts for nothing. Shares in
proportion to speed let all towers end a step together. What a step costs whatever its rows makes speeds depend on
shares: each change comes nearer to where they agree. A change is worth it when steps would be MORE_THAN faster, and
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerPace:
    """What a tower has done since it began to train. busy_s: without waiting for others."""

    step: int
    rows: int
    busy_s: float


class ShareRule:
    """Looks at all towers' paces. batch_size: rows of a step, which parts add up to."""

    def __init__(self, *, batch_size: int) -> None:
        self._batch_size = batch_size
        self._from_step = 0
        self._base: list[TowerPace] | None = None
        self._waiting = False
        self._seen = False

    def look(self, paces: Sequence[TowerPace]) -> tuple[int, ...] | None:
        """Parts to change to, or None."""
        if self._waiting or min(pace.step for pace in paces) < self._from_step + SETTLING_STEPS:
            return None
        if self._base is None:
            self._base = list(paces)
            return None
        if min(now.step - then.step for now, then in zip(paces, self._base, strict=True)) < LEAST_STEPS:
            return None
        gained, parts = balanced(self._base, paces, batch_size=self._batch_size)
        self._base = list(paces)
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


def balanced(
    before: Sequence[TowerPace], after: Sequence[TowerPace], *, batch_size: int
) -> tuple[float, tuple[int, ...]]:
    """(what of a step's time would be gained, parts in proportion to speed), from two looks at the same parts.

    A tower without rows or time so far keeps its share; every tower has a row at least.
    """
    steps = [now.step - then.step for now, then in zip(after, before, strict=True)]
    rows = [max((now.rows - then.rows) / n, 1e-9) for now, then, n in zip(after, before, steps, strict=True)]
    busy = [max((now.busy_s - then.busy_s) / n, 1e-9) for now, then, n in zip(after, before, steps, strict=True)]
    speeds = [row / seconds for row, seconds in zip(rows, busy, strict=True)]
    slowest, together = max(busy), sum(rows) / sum(speeds)
    return slowest / together - 1, whole_parts(speeds, total=batch_size)


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
