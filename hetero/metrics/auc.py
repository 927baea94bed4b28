"""Area under the ROC curve, exact: over all rows, and within groups of rows (GAUC).

AUC is the probability that a random positive row is predicted above a random negative one, ties counted as half
(Hanley and McNeil 1982, Radiology 143; the same as mean ranks). With sample weights a pair counts by the product of its
rows' weights. Predictions may be any finite numbers; only their order matters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hetero.records import F64, I64, U64

Values = npt.ArrayLike


@dataclass(frozen=True, slots=True)
class GroupedAuc:
    """GAUC and how many groups it rests on. value: None when no group has both classes.

    groups: those with both classes; left_out: those with one.
    """

    value: float | None
    groups: int
    left_out: int


def exact_auc(labels: Values, predictions: Values, *, weights: Values | None = None) -> float | None:
    """AUC of all rows; None when the rows (of weight above 0) do not hold both classes.

    labels [R] in {0, 1}, predictions [R] finite, weights [R] finite and not negative.
    """
    scores = np.asarray(predictions, np.float64)
    if not len(scores):
        return None
    order = np.argsort(scores, kind="stable")
    positive, negative = _class_weights(labels, weights, order)
    ties = np.flatnonzero(_begins(scores[order]))
    areas = _areas(_sums(positive, ties), _sums(negative, ties), np.zeros(1, np.int64))
    return None if np.isnan(areas[0]) else float(areas[0])


def grouped_auc(
    labels: Values, predictions: Values, groups: npt.NDArray[np.uint64], *, weights: Values | None = None
) -> GroupedAuc:
    """GAUC: the mean of the AUCs within groups, weighted by each group's rows (by their weights, when given).

    Groups with one class have no AUC and are left out (Zhou et al. 2018, "Deep interest network", section 6.2, there
    called weighted AUC). groups: uint64 [R], equal for rows of one group; the rest as in `exact_auc`.
    """
    ids: U64 = np.asarray(groups)
    if not len(ids):
        return GroupedAuc(None, 0, 0)
    scores = np.asarray(predictions, np.float64)
    order = np.lexsort((scores, ids))
    ids, scores = ids[order], scores[order]
    positive, negative = _class_weights(labels, weights, order)
    group_begins = _begins(ids)
    group_rows = np.flatnonzero(group_begins)
    ties = np.flatnonzero(group_begins | _begins(scores))
    areas = _areas(_sums(positive, ties), _sums(negative, ties), np.searchsorted(ties, group_rows))
    has_both = ~np.isnan(areas)
    mass = _sums(positive + negative, group_rows)[has_both]
    value = float((areas[has_both] * mass).sum() / mass.sum()) if has_both.any() else None
    return GroupedAuc(value, int(has_both.sum()), int((~has_both).sum()))


def _class_weights(labels: Values, weights: Values | None, order: I64) -> tuple[F64, F64]:
    """The weight of each row, in `order`, as a positive and as a negative: float64 [R] each."""
    is_positive = (np.asarray(labels) > 0)[order]
    weight = np.ones(len(order)) if weights is None else np.asarray(weights, np.float64)[order]
    return np.where(is_positive, weight, 0.0), np.where(is_positive, 0.0, weight)


def _areas(positive: F64, negative: F64, group_starts: I64) -> F64:
    """AUC of each group, NaN without both classes.

    positive, negative: float64 [T], the weights at each distinct score, rising within a group; group_starts: int64
    [G], where each group begins among them.
    """
    before = np.cumsum(negative) - negative
    before -= np.repeat(before[group_starts], np.diff(np.append(group_starts, len(negative))))
    won = _sums(positive * (before + 0.5 * negative), group_starts)
    pairs = _sums(positive, group_starts) * _sums(negative, group_starts)
    areas: F64 = np.divide(won, pairs, out=np.full(len(pairs), np.nan), where=pairs > 0)
    return areas


def _begins(values: npt.NDArray[np.generic]) -> npt.NDArray[np.bool_]:
    """Which values begin a run of equal ones: bool [R]."""
    return np.concatenate([[True], values[1:] != values[:-1]])


def _sums(values: F64, starts: I64) -> F64:
    """Sums of the runs that begin at `starts`."""
    return np.add.reduceat(values, starts)
