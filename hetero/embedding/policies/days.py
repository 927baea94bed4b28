"""The days of a server's stores: when one begins, what is to go goes; and what stores with policies tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hetero.embedding.policies.dropped import DayDrops
from hetero.embedding.policies.rows import PolicyRows
from hetero.embedding.rows import Rows
from hetero.records import JobSpec


class Days:
    """The job's clock on one server. Without one, it is day 0 for ever."""

    def __init__(self, job: JobSpec, stores: Sequence[Rows]) -> None:
        self._clock = job.clock
        self._towers = job.towers.count
        self._stores = [store for store in stores if isinstance(store, PolicyRows)]
        self._day = 0
        self._flushed: set[int] = set()

    def reach(self, step: int) -> None:
        """A step is about to be trained, and all before it are done."""
        if self._clock is not None and self._clock.day_of(step) > self._day:
            self._day = self._clock.day_of(step)
            for store in self._stores:
                store.begin_day(self._day)

    def flushed(self, step: int, *, tower: int) -> None:
        """A tower has given back all its rows before a step; when the last one has, the day begins."""
        self._flushed.add(tower)
        if len(self._flushed) == self._towers:
            self._flushed.clear()
            self.reach(step)

    def resume(self, steps: int) -> None:
        """The rows are those after so many steps: what is to go before the next one is still here."""
        self._day = self._clock.day_of(max(0, steps - 1)) if self._clock is not None else 0
        for store in self._stores:
            store.resume_day(self._day)


def bare(store: Rows) -> Rows:
    """The store of tiers behind policies, or the store itself."""
    return store.inner if isinstance(store, PolicyRows) else store


def policy_counts(stores: Sequence[Rows]) -> dict[str, int]:
    """What policies did in all stores, added up; empty without any."""
    total: Counter[str] = Counter()
    for store in stores:
        if isinstance(store, PolicyRows):
            total.update(store.policy_counts())
    return dict(total)


def drops_of(stores: Sequence[Rows]) -> tuple[DayDrops, ...]:
    """What went in all stores, day by day."""
    return tuple(drops for store in stores if isinstance(store, PolicyRows) for drops in store.drops)
