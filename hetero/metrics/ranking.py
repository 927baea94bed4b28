"""How well rows are ranked within their groups (NDCG@k, MRR), exact, and from parts that merge.

A group is one list shown to somebody: the rows of a user, a query, a session. Relevance is the label, 0 or 1. Equal
predictions have no order, so a metric is its mean over all orders of them (McSherry and Najork 2008, "Computing
information retrieval performance measures efficiently in the presence of tied scores", ECIR): it depends on predictions
alone, never on the order of rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from hetero.errors import ProtocolError
from hetero.metrics.auc import Values
from hetero.records import F64, I64, U64

DEFAULT_K = 10


@dataclass(frozen=True, slots=True)
class RankingScores:
    """ndcg: NDCG@k. mrr: mean reciprocal rank of the first positive. Both in [0, 1], means over groups, each group
    counting once; None when no group has a positive row. groups: those with one; left_out: those without."""

    ndcg: float | None
    mrr: float | None
    k: int
    groups: int
    left_out: int


class RankedGroups:
    """Rows counted by (group, prediction): all that ranking metrics need, and what parts of a data set merge to.

    Adding batches or merging parts in any order gives equal arrays. Memory: 32 bytes a distinct (group, prediction).

    ids uint64 [T], scores float64 [T], sorted by id, then by falling score; rows, positives int64 [T].
    """

    def __init__(self) -> None:
        self.ids: U64 = np.empty(0, np.uint64)
        self.scores: F64 = np.empty(0, np.float64)
        self.rows: I64 = np.empty(0, np.int64)
        self.positives: I64 = np.empty(0, np.int64)

    def update(
        self,
        labels: Values,
        predictions: Values,
        groups: npt.NDArray[np.uint64],
        *,
        weights: Values | None = None,
    ) -> None:
        """Add rows. labels [R] in {0, 1}, predictions [R] finite, groups uint64 [R]; rows of weight 0 are left out."""
        counts = np.ones(len(groups), np.bool_) if weights is None else np.asarray(weights) > 0
        positive = (np.asarray(labels) > 0)[counts].astype(np.int64)
        ids, scores = np.asarray(groups, np.uint64)[counts], np.asarray(predictions, np.float64)[counts]
        self._add(ids, scores, np.ones(len(ids), np.int64), positive)

    def merge(self, other: RankedGroups) -> Self:
        """A new one of the rows of both."""
        merged = type(self)()
        merged._add(self.ids, self.scores, self.rows, self.positives)
        merged._add(other.ids, other.scores, other.rows, other.positives)
        return merged

    def value(self, *, k: int = DEFAULT_K) -> RankingScores:
        """NDCG@k and MRR of all rows so far. Raises ProtocolError for k below 1."""
        if k < 1:
            raise ProtocolError(f"NDCG@k: k is {k}; it must be at least 1")
        starts = np.flatnonzero(_begins(self.ids))
        if not len(starts):
            return RankingScores(None, None, k, 0, 0)
        relevant = np.add.reduceat(self.positives, starts)
        has_positive = relevant > 0
        if not has_positive.any():
            return RankingScores(None, None, k, 0, len(starts))
        above = _rows_above(self.rows, starts)
        ndcg = self._ndcg(starts, relevant, above, k)[has_positive]
        first = self._first_positive(starts)[has_positive]
        reciprocal = _expected_reciprocal(above[first], self.rows[first], self.positives[first])
        return RankingScores(
            ndcg=float(ndcg.mean()),
            mrr=float(reciprocal.mean()),
            k=k,
            groups=int(has_positive.sum()),
            left_out=int((~has_positive).sum()),
        )

    def _add(self, ids: U64, scores: F64, rows: I64, positives: I64) -> None:
        ids, scores = np.concatenate([self.ids, ids]), np.concatenate([self.scores, scores])
        rows, positives = np.concatenate([self.rows, rows]), np.concatenate([self.positives, positives])
        if not len(ids):
            return
        order = np.lexsort((-scores, ids))
        ids, scores = ids[order], scores[order]
        ties = np.flatnonzero(_begins(ids) | _begins(scores))
        self.ids, self.scores = ids[ties], scores[ties]
        self.rows = np.add.reduceat(rows[order], ties)
        self.positives = np.add.reduceat(positives[order], ties)

    def _ndcg(self, starts: I64, relevant: I64, above: I64, k: int) -> F64:
        """Of each group; 0 without positives. Rows of a tie share the discounts of its ranks."""
        gains = np.zeros(k + 1)
        np.cumsum(1.0 / np.log2(np.arange(2, k + 2)), out=gains[1:])
        discounts = gains[np.minimum(above + self.rows, k)] - gains[np.minimum(above, k)]
        found = np.add.reduceat(discounts * self.positives / self.rows, starts)
        best = gains[np.minimum(relevant, k)]
        ndcg: F64 = np.divide(found, best, out=np.zeros(len(starts)), where=best > 0)
        return ndcg

    def _first_positive(self, starts: I64) -> I64:
        """The first tie of each group that has a positive row; any, in groups without."""
        places = np.where(self.positives > 0, np.arange(len(self.ids)), len(self.ids) - 1)
        first: I64 = np.minimum.reduceat(places, starts)
        return first


def ranking_scores(
    labels: Values,
    predictions: Values,
    groups: npt.NDArray[np.uint64],
    *,
    weights: Values | None = None,
    k: int = DEFAULT_K,
) -> RankingScores:
    """NDCG@k and MRR of rows that are all there; arguments as `RankedGroups.update` takes them."""
    ranked = RankedGroups()
    ranked.update(labels, predictions, groups, weights=weights)
    return ranked.value(k=k)


def _rows_above(rows: I64, starts: I64) -> I64:
    """How many rows of its group stand above each tie: int64 [T]."""
    before = np.cumsum(rows) - rows
    above: I64 = before - np.repeat(before[starts], np.diff(np.append(starts, len(rows))))
    return above


def _expected_reciprocal(above: I64, rows: I64, positives: I64) -> F64:
    """Mean of 1 / rank of the first positive over all orders of a tie of `rows` rows below `above` others.

    The first of p positives among n rows stands at place j with probability C(n - j, p - 1) / C(n, p).
    """
    total = np.zeros(len(rows))
    chance = positives / rows
    place, open_ = 1, np.arange(len(rows))
    while len(open_):
        total[open_] += chance[open_] / (above[open_] + place)
        left = rows[open_] - place - positives[open_] + 1
        chance[open_] *= left / np.maximum(rows[open_] - place, 1)
        place += 1
        open_ = open_[left > 0]
    return total


def _begins(values: npt.NDArray[np.generic]) -> npt.NDArray[np.bool_]:
    """Which values begin a run of equal ones: bool [R]."""
    return np.concatenate([[True], values[1:] != values[:-1]]) if len(values) else np.empty(0, np.bool_)
