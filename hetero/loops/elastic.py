"""How many actors a run goes on with when nodes come and go: a decision with its reason, from what there is room for.

    nodes that are alive, less what other runs hold -> Room      the cluster
    Room, the job's numbers, bounds                 -> Replan    `replan`: pure
    many looks                                      -> one       `Settled`: nodes that come one by one count once

Numbers keep the job's own proportions: as many towers as there is room for, and readers and servers to match.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from hetero.loops.recovery import Counts, Room
from hetero.records import JobSpec

ROLES = ("readers", "servers", "towers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The least and the most actors of each role."""

    least: Counts
    most: Counts

    def around(self, wanted: Counts) -> Counts:
        """The numbers within the bounds that are nearest to those wanted."""
        return Counts(**{name: min(max(_of(wanted, name), self._low(name)), self._high(name)) for name in ROLES})

    def _low(self, name: str) -> int:
        return _of(self.least, name)

    def _high(self, name: str) -> int:
        return _of(self.most, name)

    def sizes(self, job: Counts) -> list[Counts]:
        """Numbers in the job's proportions, rounded up and kept within the bounds, the smallest first."""
        factors = {
            Fraction(number, _of(job, name))
            for name in ROLES
            for number in range(self._low(name), self._high(name) + 1)
        }
        sizes = [
            self.around(Counts(**{name: -(-_of(job, name) * factor.numerator // factor.denominator) for name in ROLES}))
            for factor in sorted(factors)
        ]
        return list(dict.fromkeys(sizes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Replan:
    """What is decided. counts: to go on with, those there are where nothing changes."""

    counts: Counts
    reason: str


def replan(job: JobSpec, *, now: Counts, bounds: Bounds, room: Room) -> Replan:
    """The most actors within the bounds that there is room for. job: whose numbers give the proportions.

    now: the numbers that the run has. A run is never ended for lack of room: where not even the least fit, it stays.
    """
    nodes = room.described
    fitting = [size for size in bounds.sizes(Counts.of(job)) if room.holds(size.put_in(job))]
    if not fitting:
        return Replan(counts=now, reason=f"{nodes} do not hold the least, {bounds.least}: it stays as it is")
    best = fitting[-1]
    if best == now:
        return Replan(counts=now, reason=f"{nodes} hold {now} and, within the bounds, no more")
    return Replan(counts=best, reason=f"{nodes} hold {best}, within the bounds; it had {now}")


class Settled:
    """Waits until one decision has held for `settle_s` seconds. now: monotonic seconds."""

    def __init__(self, settle_s: float, *, now: Callable[[], float] = time.monotonic) -> None:
        self._settle_s = settle_s
        self._now = now
        self._last: Replan | None = None
        self._since_t = 0.0
        self._told = False

    def look(self, decision: Replan) -> Replan | None:
        """The decision, once, when it has stood long enough."""
        if self._last is None or decision != self._last:
            self._last, self._since_t, self._told = decision, self._now(), False
        if self._told or self._now() - self._since_t < self._settle_s:
            return None
        self._told = True
        return decision


def _of(counts: Counts, name: str) -> int:
    return int(getattr(counts, name))
