"""AUC and GAUC against a count of all pairs; the bucketed AUC against the exact one."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.errors import ProtocolError
from hetero.metrics.auc import exact_auc, grouped_auc
from hetero.metrics.bucketed import BucketedAuc

Row = tuple[int, float, float, int]

SCORES = st.one_of(st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.floats(0, 1))
ROWS = st.lists(st.tuples(st.integers(0, 1), SCORES, st.sampled_from([0.0, 0.5, 1.0, 3.0]), st.integers(0, 3)))


def count_pairs(rows: list[Row]) -> float | None:
    """Every (positive, negative) pair by itself."""
    won = pairs = 0.0
    for label, score, weight, _ in rows:
        for other_label, other_score, other_weight, _ in rows:
            if label == 1 and other_label == 0:
                pairs += weight * other_weight
                won += weight * other_weight * (1.0 if score > other_score else 0.5 if score == other_score else 0.0)
    return won / pairs if pairs else None


def columns(rows: list[Row]) -> tuple[list[int], list[float], list[float], list[int]]:
    return [r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows], [r[3] for r in rows]


@settings(max_examples=100, deadline=None)
@given(ROWS)
def test_exact_auc_equals_the_count_of_all_pairs(rows: list[Row]) -> None:
    labels, scores, weights, _ = columns(rows)
    assert exact_auc(labels, scores, weights=weights) == pytest.approx(count_pairs(rows), abs=1e-12)
    unweighted = [(label, score, 1.0, group) for label, score, _, group in rows]
    assert exact_auc(labels, scores) == pytest.approx(count_pairs(unweighted), abs=1e-12)


@settings(max_examples=100, deadline=None)
@given(ROWS)
def test_gauc_equals_the_auc_of_each_group_weighted_by_rows(rows: list[Row]) -> None:
    labels, scores, weights, ids = columns(rows)
    # ids above 2^63 must stay apart from small ones
    found = grouped_auc(labels, scores, np.array(ids, np.uint64) + np.uint64(2**64 - 4), weights=weights)
    by_group: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        by_group[row[3]].append(row)
    total = mass = 0.0
    groups = 0
    for members in by_group.values():
        area = count_pairs(members)
        if area is not None:
            groups += 1
            total += area * sum(row[2] for row in members)
            mass += sum(row[2] for row in members)
    assert found.value == pytest.approx(total / mass if groups else None, abs=1e-12)
    assert (found.groups, found.left_out) == (groups, len(by_group) - groups)


def test_gauc_without_weights_weighs_by_rows() -> None:
    labels, scores = [1, 0, 1, 0, 0, 0], [0.9, 0.1, 0.2, 0.8, 0.1, 0.5]
    ids = np.array([7, 7, 8, 8, 8, 9], np.uint64)
    found = grouped_auc(labels, scores, ids)
    assert found.value == pytest.approx((2 * 1.0 + 3 * 0.5) / 5)
    assert (found.groups, found.left_out) == (2, 1)


def test_auc_does_not_depend_on_the_order_of_rows() -> None:
    rng = np.random.default_rng(0)
    labels, scores = rng.integers(0, 2, 500), rng.integers(0, 20, 500) / 20
    shuffled = rng.permutation(500)
    assert exact_auc(labels, scores) == exact_auc(labels[shuffled], scores[shuffled])


def simulated(seed: int, *, rows: int = 40_000, crowding: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.random(rows) < 0.2
    logits = rng.standard_normal(rows) + labels
    return labels.astype(np.float32), (crowding / (1 + np.exp(-logits))).astype(np.float32)


@pytest.mark.parametrize("buckets", [1 << 16, 1 << 20])
@pytest.mark.parametrize("crowding", [1.0, 0.02])
def test_bucketed_auc_is_close_to_the_exact_one(buckets: int, crowding: float) -> None:
    labels, scores = simulated(1, crowding=crowding)
    weights = np.random.default_rng(2).random(len(labels)) + 0.5
    bucketed = BucketedAuc(buckets)
    bucketed.update(labels, scores, weights=weights)
    assert bucketed.value() == pytest.approx(exact_auc(labels, scores, weights=weights), abs=1e-4)


def test_merged_histograms_equal_one_of_all_rows() -> None:
    parts = []
    for seed in range(3):
        part = BucketedAuc(1 << 12)
        part.update(*simulated(seed, rows=3_000))
        parts.append(part)
    a, b, c = parts
    left, right, whole = a.merge(b).merge(c), a.merge(b.merge(c)), BucketedAuc(1 << 12)
    for seed in range(3):
        whole.update(*simulated(seed, rows=3_000))
    for merged in (left, right, b.merge(c).merge(a)):
        np.testing.assert_array_equal(merged.positives, whole.positives)
        np.testing.assert_array_equal(merged.negatives, whole.negatives)
        assert merged.value() == whole.value()
    assert a.positives.sum() < whole.positives.sum(), "merge must not change its inputs"


def test_bucketed_auc_counts_what_it_leaves_out() -> None:
    bucketed = BucketedAuc(16)
    assert bucketed.value() is None
    bucketed.update([1, 0, 1, 0, 1], [1.0, 0.0, np.nan, 1.5, -np.inf])
    assert bucketed.left_out == 3
    assert bucketed.value() == 1.0
    assert bucketed.merge(bucketed).left_out == 6


def test_histograms_of_unlike_buckets_do_not_merge() -> None:
    with pytest.raises(ProtocolError, match="of 16 and 32 buckets cannot be merged"):
        BucketedAuc(16).merge(BucketedAuc(32))
