"""The metric report: values by the formulas, and counted warnings instead of crashes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.errors import DataError
from hetero.metrics.probability import CLIP
from hetero.metrics.report import MetricReport, WarningKind, evaluate_predictions

LABELS = [1, 0, 0, 1]
PREDICTIONS = [0.8, 0.3, 0.6, 0.4]
WEIGHTS = [1.0, 2.0, 0.5, 4.0]


def kinds(report: MetricReport) -> dict[WarningKind, int]:
    return {warning.kind: warning.count for warning in report.warnings}


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_values_by_the_formulas(weights: list[float] | None) -> None:
    report = evaluate_predictions(LABELS, PREDICTIONS, weights=weights)
    w = weights or [1.0] * 4
    total = sum(w)
    logloss = 0.0
    for y, p, weight in zip(LABELS, PREDICTIONS, w, strict=True):
        logloss -= weight * (y * math.log(p) + (1 - y) * math.log(1 - p)) / total
    rate = sum(weight * y for weight, y in zip(w, LABELS, strict=True)) / total
    mean = sum(weight * p for weight, p in zip(w, PREDICTIONS, strict=True)) / total
    entropy = -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate))
    assert report.logloss == pytest.approx(logloss, rel=1e-12)
    assert report.normalized_entropy == pytest.approx(logloss / entropy, rel=1e-12)
    assert report.calibration == pytest.approx(mean / rate, rel=1e-12)
    assert report.mean_label == pytest.approx(rate)
    assert report.mean_prediction == pytest.approx(mean)
    assert (report.rows, report.left_out, report.warnings) == (4, 0, ())
    assert (report.gauc, report.gauc_groups) == (None, None)


def test_predicting_the_mean_has_normalized_entropy_one() -> None:
    report = evaluate_predictions([1, 0, 0, 0], [0.25] * 4)
    assert report.normalized_entropy == pytest.approx(1.0, rel=1e-12)
    assert report.calibration == 1.0
    assert report.auc == 0.5


def test_certain_and_wrong_predictions_stay_finite() -> None:
    report = evaluate_predictions(np.array([1, 0], np.float32), np.array([0.0, 1.0], np.float32))
    assert report.logloss == pytest.approx(-math.log(CLIP), rel=1e-6)
    assert report.auc == 0.0


def test_unusable_rows_are_counted_and_left_out() -> None:
    clean = evaluate_predictions(LABELS, PREDICTIONS, weights=WEIGHTS, gauc_ids=np.array([1, 1, 2, 2], np.uint64))
    labels = [*LABELS, 2, 1, 0, 1, 0, math.nan]
    predictions = [*PREDICTIONS, 0.5, math.nan, 1.5, -math.inf, 0.5, math.nan]
    weights = [*WEIGHTS, 1.0, 1.0, 1.0, 1.0, -1.0, 1.0]
    ids = np.array([1, 1, 2, 2, 3, 3, 3, 3, 3, 3], np.uint64)
    report = evaluate_predictions(labels, predictions, weights=weights, gauc_ids=ids)
    assert kinds(report) == {
        WarningKind.LABEL: 2,
        WarningKind.NAN_PREDICTION: 1,
        WarningKind.PREDICTION_RANGE: 2,
        WarningKind.WEIGHT: 1,
    }
    assert (report.rows, report.left_out) == (4, 6)
    for name in ("auc", "logloss", "normalized_entropy", "calibration", "gauc", "gauc_groups"):
        assert getattr(report, name) == getattr(clean, name)
    assert report.warnings[1].message == "1 of 10 rows have a prediction that is NaN; they are left out"


@pytest.mark.parametrize("label", [0, 1])
def test_a_single_class_has_no_auc_but_a_warning(label: int) -> None:
    report = evaluate_predictions([label] * 3, [0.2, 0.3, 0.9], gauc_ids=np.array([1, 1, 2], np.uint64))
    assert kinds(report) == {WarningKind.SINGLE_CLASS: 3, WarningKind.SINGLE_CLASS_GROUPS: 2}
    assert (report.auc, report.normalized_entropy, report.gauc) == (None, None, None)
    assert report.logloss is not None
    assert (report.calibration is None) == (label == 0)
    assert (report.gauc_groups, report.gauc_groups_left_out) == (0, 2)


@pytest.mark.parametrize("weights", [None, [0.0, 0.0]])
def test_no_usable_rows_give_an_empty_report(weights: list[float] | None) -> None:
    predictions = [math.nan, 2.0] if weights is None else [0.5, 0.5]
    report = evaluate_predictions([1, 0], predictions, weights=weights, gauc_ids=np.zeros(2, np.uint64))
    assert report.warnings[-1].kind is WarningKind.NO_ROWS
    assert (report.auc, report.logloss, report.gauc) == (None, None, None)
    assert evaluate_predictions([], []).warnings[0].kind is WarningKind.NO_ROWS


def test_huge_weights_do_not_overflow() -> None:
    report = evaluate_predictions(LABELS, PREDICTIONS, weights=[2.0**1022] * 4)
    assert report == evaluate_predictions(LABELS, PREDICTIONS, weights=[1.0] * 4)


def test_unequal_lengths_are_refused() -> None:
    with pytest.raises(DataError, match="labels 2, predictions 2, gauc_ids 1"):
        evaluate_predictions([0, 1], [0.5, 0.5], gauc_ids=np.zeros(1, np.uint64))


FLOATS = st.floats(allow_nan=True, allow_infinity=True)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(FLOATS, FLOATS, FLOATS, st.integers(0, 2**64 - 1))))
def test_nothing_crashes_it(rows: list[tuple[float, float, float, int]]) -> None:
    report = evaluate_predictions(
        [row[0] for row in rows],
        [row[1] for row in rows],
        weights=[row[2] for row in rows],
        gauc_ids=np.array([row[3] for row in rows], np.uint64),
    )
    assert report.rows + report.left_out == len(rows)
    for name in ("auc", "logloss", "normalized_entropy", "calibration", "gauc"):
        value = getattr(report, name)
        assert value is None or not math.isnan(value)
