"""All metrics of a set of predictions in one record. Rows that cannot be used are counted and left out, never fatal."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
import numpy.typing as npt

from hetero.errors import DataError
from hetero.metrics.auc import GroupedAuc, Values, exact_auc, grouped_auc
from hetero.metrics.probability import calibration, log_loss, normalized_entropy
from hetero.metrics.ranking import DEFAULT_K, RankingScores, ranking_scores
from hetero.records import F64, U64


class WarningKind(Enum):
    """Why a metric is missing, or rows are missing from all of them."""

    LABEL = "label"
    NAN_PREDICTION = "nan_prediction"
    PREDICTION_RANGE = "prediction_range"
    WEIGHT = "weight"
    NO_ROWS = "no_rows"
    SINGLE_CLASS = "single_class"
    SINGLE_CLASS_GROUPS = "single_class_groups"


@dataclass(frozen=True, slots=True)
class MetricWarning:
    """One kind of trouble. count: how many rows (for SINGLE_CLASS_GROUPS groups) it concerns."""

    kind: WarningKind
    count: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricReport:
    """Metrics of predictions; None where there is no such value, and `warnings` say why.

    rows: how many the metrics rest on; left_out: how many could not be used. auc, gauc: [0, 1]. logloss: nats a row.
    normalized_entropy, calibration: ratios, see `hetero.metrics.probability`. gauc_groups, gauc_groups_left_out: groups
    with both classes, and with one; ndcg (NDCG at `ndcg_at`), mrr: [0, 1], means over the ranked_groups groups that
    have a positive row, see `hetero.metrics.ranking`. None without group ids.
    """

    rows: int
    left_out: int
    auc: float | None
    logloss: float | None
    normalized_entropy: float | None
    calibration: float | None
    mean_label: float | None
    mean_prediction: float | None
    gauc: float | None
    gauc_groups: int | None
    gauc_groups_left_out: int | None
    ndcg: float | None
    mrr: float | None
    ndcg_at: int
    ranked_groups: int | None
    warnings: tuple[MetricWarning, ...]


@dataclass(frozen=True, slots=True)
class _Rows:
    labels: F64
    predictions: F64
    weights: F64 | None
    groups: U64 | None


def evaluate_predictions(
    labels: Values,
    predictions: Values,
    *,
    weights: Values | None = None,
    gauc_ids: npt.NDArray[np.uint64] | None = None,
    k: int = DEFAULT_K,
) -> MetricReport:
    """Compute every metric of R predictions.

    labels [R] in {0, 1}; predictions [R], probabilities; weights [R], finite and not negative, or None for 1; gauc_ids
    uint64 [R], rows of one group have one id, or None for no GAUC and no ranking metrics; k: of NDCG@k.
    Raises DataError when the lengths differ.
    """
    given = _Rows(
        np.asarray(labels, np.float64),
        np.asarray(predictions, np.float64),
        None if weights is None else np.asarray(weights, np.float64),
        None if gauc_ids is None else np.asarray(gauc_ids, np.uint64),
    )
    _check_lengths(given)
    rows, warnings = _usable(given)
    left_out = len(given.labels) - len(rows.labels)
    mass = len(rows.labels) if rows.weights is None else float(rows.weights.sum())
    if mass == 0:
        warnings.append(MetricWarning(WarningKind.NO_ROWS, len(given.labels), "no rows to compute metrics from"))
        return _empty(rows, left_out, tuple(warnings), k=k)
    mean_label = float(np.average(rows.labels, weights=rows.weights))
    mean_prediction = float(np.average(rows.predictions, weights=rows.weights))
    logloss = log_loss(rows.labels, rows.predictions, weights=rows.weights)
    auc = exact_auc(rows.labels, rows.predictions, weights=rows.weights)
    if auc is None:
        only = "positive" if mean_label > 0 else "negative"
        text = f"all rows that count are {only}, so there is no AUC and no normalized entropy"
        warnings.append(MetricWarning(WarningKind.SINGLE_CLASS, len(rows.labels), text))
    grouped, ranked = _grouped(rows, warnings), _ranked(rows, k=k)
    return MetricReport(
        rows=len(rows.labels),
        left_out=left_out,
        auc=auc,
        logloss=logloss,
        normalized_entropy=normalized_entropy(logloss, mean_label),
        calibration=calibration(mean_prediction, mean_label),
        mean_label=mean_label,
        mean_prediction=mean_prediction,
        gauc=None if grouped is None else grouped.value,
        gauc_groups=None if grouped is None else grouped.groups,
        gauc_groups_left_out=None if grouped is None else grouped.left_out,
        ndcg=None if ranked is None else ranked.ndcg,
        mrr=None if ranked is None else ranked.mrr,
        ndcg_at=k,
        ranked_groups=None if ranked is None else ranked.groups,
        warnings=tuple(warnings),
    )


def _check_lengths(rows: _Rows) -> None:
    lengths = {"labels": len(rows.labels), "predictions": len(rows.predictions)}
    if rows.weights is not None:
        lengths["weights"] = len(rows.weights)
    if rows.groups is not None:
        lengths["gauc_ids"] = len(rows.groups)
    if len(set(lengths.values())) > 1:
        given = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise DataError(f"evaluate_predictions needs one value a row in every array; got {given}")


def _usable(rows: _Rows) -> tuple[_Rows, list[MetricWarning]]:
    """The rows metrics can use, and a warning for each reason others were left out; a row counts once."""
    usable = np.ones(len(rows.labels), np.bool_)
    warnings = []
    checks = [
        (WarningKind.LABEL, (rows.labels == 0) | (rows.labels == 1), "have a label that is neither 0 nor 1"),
        (WarningKind.NAN_PREDICTION, ~np.isnan(rows.predictions), "have a prediction that is NaN"),
        (
            WarningKind.PREDICTION_RANGE,
            (rows.predictions >= 0) & (rows.predictions <= 1),
            "have a prediction outside [0, 1]",
        ),
    ]
    if rows.weights is not None:
        is_weight = np.isfinite(rows.weights) & (rows.weights >= 0)
        checks.append((WarningKind.WEIGHT, is_weight, "have a weight that is negative or not finite"))
    for kind, passes, what in checks:
        count = int((usable & ~passes).sum())
        usable &= passes
        if count:
            text = f"{count} of {len(usable)} rows {what}; they are left out"
            warnings.append(MetricWarning(kind, count, text))
    if not usable.all():
        rows = _Rows(
            rows.labels[usable],
            rows.predictions[usable],
            None if rows.weights is None else rows.weights[usable],
            None if rows.groups is None else rows.groups[usable],
        )
    return replace(rows, weights=_scaled(rows.weights)), warnings


def _scaled(weights: F64 | None) -> F64 | None:
    """Weights times a power of two so that the largest lies in [0.5, 1): no metric changes, no sum overflows."""
    if weights is None or not weights.any():
        return weights
    scaled: F64 = np.ldexp(weights, -np.frexp(weights.max())[1])
    return scaled


def _grouped(rows: _Rows, warnings: list[MetricWarning]) -> GroupedAuc | None:
    if rows.groups is None:
        return None
    grouped = grouped_auc(rows.labels, rows.predictions, rows.groups, weights=rows.weights)
    if grouped.value is None:
        text = f"none of {grouped.left_out} groups has both classes, so there is no GAUC"
        warnings.append(MetricWarning(WarningKind.SINGLE_CLASS_GROUPS, grouped.left_out, text))
    return grouped


def _ranked(rows: _Rows, *, k: int) -> RankingScores | None:
    """None without groups; without a positive row SINGLE_CLASS has said why there is no value."""
    if rows.groups is None:
        return None
    return ranking_scores(rows.labels, rows.predictions, rows.groups, weights=rows.weights, k=k)


def _empty(rows: _Rows, left_out: int, warnings: tuple[MetricWarning, ...], *, k: int) -> MetricReport:
    groups = None if rows.groups is None else 0
    return MetricReport(
        rows=len(rows.labels),
        left_out=left_out,
        auc=None,
        logloss=None,
        normalized_entropy=None,
        calibration=None,
        mean_label=None,
        mean_prediction=None,
        gauc=None,
        gauc_groups=groups,
        gauc_groups_left_out=groups,
        ndcg=None,
        mrr=None,
        ndcg_at=k,
        ranked_groups=groups,
        warnings=warnings,
    )
