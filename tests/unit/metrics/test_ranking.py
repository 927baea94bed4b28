"""NDCG@k and MRR against the mean over all orders of equal predictions, written out; parts against the whole."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.errors import ProtocolError
from hetero.metrics.ranking import RankedGroups, ranking_scores
from hetero.metrics.report import WarningKind, evaluate_predictions

Row = tuple[int, float, int]
"""Label, prediction, group."""

ROWS = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from([0.1, 0.5, 0.5000001, 0.9]), st.integers(0, 2)), max_size=9
)


def ndcg_of(labels: list[int], k: int) -> float:
    """Of one ranked list, by the formula."""
    found = sum(label / math.log2(rank + 1) for rank, label in enumerate(labels[:k], start=1))
    best = sum(1 / math.log2(rank + 1) for rank in range(1, min(sum(labels), k) + 1))
    return found / best


def all_orders(rows: list[Row]) -> list[list[int]]:
    """Labels of one group by falling prediction, in every order of equal ones."""
    ties = [
        [label for label, score, _ in rows if score == value] for value in sorted({r[1] for r in rows}, reverse=True)
    ]
    choices = itertools.product(*(list(itertools.permutations(tie)) for tie in ties))
    return [[label for tie in choice for label in tie] for choice in choices]


def oracle(rows: list[Row], k: int) -> tuple[float | None, float | None, int]:
    groups: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row[2]].append(row)
    ndcgs, reciprocals = [], []
    for members in groups.values():
        if any(label for label, _, _ in members):
            orders = all_orders(members)
            ndcgs.append(sum(ndcg_of(order, k) for order in orders) / len(orders))
            reciprocals.append(sum(1 / (order.index(1) + 1) for order in orders) / len(orders))
    if not ndcgs:
        return None, None, 0
    return sum(ndcgs) / len(ndcgs), sum(reciprocals) / len(reciprocals), len(ndcgs)


def arrays(rows: list[Row]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    labels, scores, ids = (np.array([row[at] for row in rows]) for at in range(3))
    return labels, scores, ids.astype(np.uint64) + np.uint64(2**64 - 3)  # ids above 2^63 stay apart


@settings(max_examples=60, deadline=None)
@given(ROWS.filter(lambda rows: len(rows) < 8), st.integers(1, 5))
def test_equal_to_the_mean_over_all_orders(rows: list[Row], k: int) -> None:
    labels, scores, ids = arrays(rows)
    found = ranking_scores(labels, scores, ids, k=k)
    ndcg, mrr, groups = oracle(rows, k)
    assert found.ndcg == (None if ndcg is None else pytest.approx(ndcg, abs=1e-12))
    assert found.mrr == (None if mrr is None else pytest.approx(mrr, abs=1e-12))
    assert found.groups == groups
    assert found.groups + found.left_out == len({row[2] for row in rows})


@settings(max_examples=60, deadline=None)
@given(ROWS, ROWS, ROWS)
def test_parts_in_any_order_make_the_whole(first: list[Row], second: list[Row], third: list[Row]) -> None:
    parts = []
    for rows in (first, second, third):
        part = RankedGroups()
        part.update(*arrays(rows))
        parts.append(part)
    streamed = RankedGroups()
    for rows in (third, first, second):
        streamed.update(*arrays(rows))
    merged = parts[0].merge(parts[1]).merge(parts[2])
    other = parts[2].merge(parts[0].merge(parts[1]))
    for name in ("ids", "scores", "rows", "positives"):
        assert np.array_equal(getattr(merged, name), getattr(other, name))
        assert np.array_equal(getattr(merged, name), getattr(streamed, name))
    assert merged.value() == ranking_scores(*arrays(first + second + third))


def test_many_equal_predictions_have_the_mean_reciprocal_rank() -> None:
    rows = 2000
    labels = np.zeros(rows)
    labels[3] = 1
    found = ranking_scores(labels, np.full(rows, 0.5), np.zeros(rows, np.uint64))
    assert found.mrr == pytest.approx(np.mean(1 / np.arange(1, rows + 1)), rel=1e-9)


def test_rows_of_weight_zero_are_not_ranked() -> None:
    ids = np.zeros(3, np.uint64)
    assert ranking_scores([0, 1, 0], [0.9, 0.5, 0.1], ids, weights=[0.0, 1.0, 1.0]).mrr == 1.0
    assert ranking_scores([0, 1, 0], [0.9, 0.5, 0.1], ids).mrr == 0.5


def test_the_report_holds_them_when_rows_have_groups() -> None:
    ids = np.array([1, 1, 2, 2], np.uint64)
    report = evaluate_predictions([0, 1, 0, 1], [0.9, 0.5, 0.1, 0.7], gauc_ids=ids, k=1)
    assert (report.ndcg, report.mrr, report.ndcg_at, report.ranked_groups) == (0.5, 0.75, 1, 2)
    bare = evaluate_predictions([0, 1], [0.2, 0.7])
    assert (bare.ndcg, bare.mrr, bare.ranked_groups) == (None, None, None)
    none = evaluate_predictions([0, 0], [0.2, 0.7], gauc_ids=ids[:2])
    assert (none.ndcg, none.mrr, none.ranked_groups) == (None, None, 0)
    assert WarningKind.SINGLE_CLASS in {warning.kind for warning in none.warnings}


def test_k_below_one_is_refused() -> None:
    with pytest.raises(ProtocolError, match="k is 0; it must be at least 1"):
        RankedGroups().value(k=0)
