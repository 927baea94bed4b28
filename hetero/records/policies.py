"""What a table does about keys not seen often, and about rows of no use any more; and the days it counts.

A day is a number of steps that the job gives. What goes, goes when a day begins, where no row is leased: so the bits do
not depend on readers, servers and windows.
"""

from __future__ import annotations

from dataclasses import dataclass

LEAST_PROBABILITY = 0.01
"""Below it, a key may reach the largest count there is without a row, and would never get one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionSpec:
    """When a key gets a row: in the step in which it is seen for the `after`-th time, or in each step with
    `probability`, by a hash of seed, key and how often it was seen. A step counts once, however often the key is in it.

    score: instead, when a day begins and the key has this score, of 0.1 a show (occurrence) without a click and 1 a
    click (one with label 1). With a table of dim 1 for the same features these are lazy wide vectors.
    forget_days: a key without a row that was not seen for so many days is counted anew; None remembers all.
    """

    after: int = 1
    probability: float = 1.0
    forget_days: int | None = None
    score: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionSpec:
    """Which rows are dropped when a day begins. Each counts its shows (occurrences) and clicks (those with label 1),
    both multiplied by `decay` every day; its score is show_weight * (shows - clicks) + click_weight * clicks, as in
    Paddle's CtrCommonAccessor.

    expire_days: dropped when not seen for more days. min_score: dropped below it. capacity: rows of a table, of all
    servers together; it holds capacity // buckets rows of each bucket, those of the best score.
    """

    decay: float = 0.98
    expire_days: int | None = None
    min_score: float | None = None
    capacity: int | None = None
    show_weight: float = 0.1
    click_weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """The job's days: day n is the steps [n * day_steps, (n + 1) * day_steps)."""

    day_steps: int

    def day_of(self, step: int) -> int:
        """The day a step belongs to."""
        return step // self.day_steps

    def begins_day(self, step: int) -> bool:
        """Whether a step is the first of a day other than the first."""
        return step > 0 and step % self.day_steps == 0
