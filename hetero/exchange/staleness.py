"""How stale rows were: pushes by other towers that were applied to a row between a tower's pull of it and its push.

Measured where rows are updated, on the server, so nothing is missed and nothing is estimated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from hetero.keys.numbering import KeyNumbers, grown
from hetero.records import I32, I64, KeySet


class StalenessCounts:
    """How many pushes of a row met each staleness."""

    def __init__(self) -> None:
        self._counts = np.zeros(1, np.int64)

    def add(self, values: np.ndarray) -> None:
        """Note the staleness of pushed rows, whole numbers [n]."""
        self.merge(np.bincount(values, minlength=1) if len(values) else np.zeros(1, np.int64))

    def merge(self, counts: Sequence[int] | I64) -> None:
        """Add the counts of another server. counts[n]: pushes of staleness n."""
        other = np.asarray(counts, np.int64)
        if len(other) > len(self._counts):
            self._counts = grown(self._counts, len(other))
        self._counts[: len(other)] += other

    @property
    def counts(self) -> tuple[int, ...]:
        """counts[n]: pushes of a row with staleness n; empty when nothing was pushed."""
        return tuple(self._counts.tolist()) if self._counts.any() else ()

    def record(self) -> dict[str, object]:
        """As the summary holds it: {"histogram": {"0": n, ...}, "max": n, "mean": x}, without values nobody met."""
        total = int(self._counts.sum())
        if not total:
            return {}
        met = np.flatnonzero(self._counts)
        return {
            "histogram": {str(value): int(self._counts[value]) for value in met.tolist()},
            "max": int(met[-1]),
            "mean": float(met @ self._counts[met]) / total,
        }


def merged(parts: Iterable[Sequence[int]]) -> StalenessCounts:
    """The counts of several servers together."""
    counts = StalenessCounts()
    for part in parts:
        counts.merge(part)
    return counts


class OthersPushes:
    """Per row and tower of one group: pushes by other towers applied so far, uint32 [rows, T], modulo 2^32."""

    def __init__(self, towers: int) -> None:
        self._numbers = KeyNumbers()
        self._others = np.zeros((0, towers), np.uint32)

    def number(self, keys: KeySet) -> I32:
        """Numbers of unique rows, int32 [n], for the calls below."""
        numbers = self._numbers.number(keys)
        if len(self._numbers) > len(self._others):
            self._others = grown(self._others, 2 * len(self._numbers))
        return numbers

    def seen_by(self, tower: int, numbers: I32) -> np.ndarray:
        """Pushes by others than `tower` so far, uint32 [n]; a difference of two is what was applied between."""
        seen: np.ndarray = self._others[numbers, tower]
        return seen

    def note_push(self, tower: int, numbers: I32) -> None:
        """`tower`'s gradients were applied to these rows."""
        more = np.ones(self._others.shape[1], np.uint32)
        more[tower] = 0
        self._others[numbers] += more
