"""Made rows: the kernel against numpy and the C library, Zipf's law, keys that lead back to ranks, the planted rule."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.kernels.mix import mix64_reference
from hetero.kernels.synthetic import (
    DENSE,
    DENSE_MEAN,
    SPARSE,
    SyntheticRows,
    chances_reference,
    exp2,
    fill_rows,
    log2,
    ranks_of,
    rows_reference,
)
from hetero.metrics.auc import exact_auc
from hetero.records import F64

CARDINALITIES = np.array([1, 2, 3, 10, 100, 1000, 50_000, 3_000_000, 1 << 40, *range(4, SPARSE - 5)], np.int64)
GOLDEN_KEYS = ["0x2d9dcfcf18e205a7", "0xf786cfecca17e52b", "0x7b88e698c1117504"]
GOLDEN_DENSE = ["0x1.2645e60000000p-1", "0x1.7cd7860000000p-1", "0x1.e79eea0000000p-2"]
GOLDEN_CHANCES = ["0x1.151d5826df47bp-1", "0x1.00997dfc01e1bp-4", "0x1.5c1e1192c9babp-6"]


def made(*, rows: int, seed: int = 7, exponent: float = 1.05, first: int = 0, part: int = 1 << 20) -> SyntheticRows:
    """Rows of the kernel, in parts of `part` rows."""
    out = SyntheticRows.empty(rows)
    for at in range(0, rows, part):
        count = min(part, rows - at)
        columns = (out.dense, out.keys, out.labels, out.chances)
        fill_rows(np.uint64(seed), CARDINALITIES, exponent, first + at, at, count, *columns)
    return out


def same(left: SyntheticRows, right: SyntheticRows) -> bool:
    """Whether all columns are equal to the bit."""
    columns = ("dense", "keys", "labels", "chances")
    return all(getattr(left, name).tobytes() == getattr(right, name).tobytes() for name in columns)


@pytest.fixture(scope="module")
def many() -> SyntheticRows:
    """A hundred thousand rows of the default law."""
    return made(rows=100_000)


@given(st.floats(2.0**-60, 2.0**60), st.floats(-900.0, 900.0))
@settings(max_examples=50, deadline=None)
def test_logarithm_and_power_to_the_last_bits(x: float, y: float) -> None:
    assert abs(log2(x) - math.log2(x)) <= 4e-16 * max(1.0, abs(math.log2(x)))
    assert exp2(y) == pytest.approx(2.0**y, rel=6e-16, abs=0)


def test_logarithm_and_power_where_they_must_be_exact() -> None:
    for k in range(-60, 61):
        assert log2(2.0**k) == k
        assert exp2(float(k)) == 2.0**k


@given(
    seed=st.integers(0, 2**64 - 1),
    exponent=st.sampled_from([0.0, 0.3, 1.0, 1.0 + 1e-12, 1.0 + 1e-6, 1.05, 2.0, 5.0, 60.0, 1e300]),
    first=st.integers(0, 2**40),
)
@settings(max_examples=50, deadline=None)
def test_kernel_equals_the_c_librarys_functions(seed: int, exponent: float, first: int) -> None:
    rows = made(rows=200, seed=seed, exponent=exponent, first=first)
    expected = rows_reference(seed, CARDINALITIES, exponent, first=first, rows=200)
    narrow = CARDINALITIES < 1 << 30  # of wider columns the last bit of a power may decide the rank
    assert (rows.keys[narrow] == expected.keys[narrow]).all()
    assert np.abs(ranks_of(rows.keys) - ranks_of(expected.keys)).max() <= 1 + (1 << 40) * 1e-11
    assert np.abs(rows.dense - expected.dense).max() <= 2e-7
    assert np.abs(rows.chances - chances_reference(rows.dense, rows.keys, seed=seed)).max() < 1e-13


@given(cuts=st.lists(st.integers(1, 5000), min_size=1, max_size=6), at=st.integers(0, 3000))
@settings(max_examples=30, deadline=None)
def test_any_range_of_rows_is_the_same_in_any_parts(cuts: list[int], at: int) -> None:
    whole = made(rows=9000)
    for part in cuts:
        assert same(made(rows=9000, part=part), whole)
    alone = made(rows=500, first=at)
    assert alone.keys.tobytes() == np.ascontiguousarray(whole.keys[:, at : at + 500]).tobytes()
    assert alone.labels.tobytes() == whole.labels[at : at + 500].tobytes()


def test_bytes_are_these_on_every_machine() -> None:
    rows = made(rows=3)
    assert [hex(key) for key in rows.keys[7].tolist()] == GOLDEN_KEYS
    assert [value.hex() for value in rows.dense[0].tolist()] == GOLDEN_DENSE
    assert [value.hex() for value in rows.chances.tolist()] == GOLDEN_CHANCES


def test_another_seed_makes_other_rows_and_another_rule(many: SyntheticRows) -> None:
    uniform = [made(rows=1000, seed=seed, exponent=0.0).keys[8] for seed in (7, 8)]
    assert (uniform[0] != uniform[1]).all()
    other = made(rows=1000, seed=8)
    assert (other.dense != many.dense[:, :1000]).mean() > 0.999
    changed = chances_reference(other.dense, other.keys, seed=7) - other.chances
    assert np.abs(changed).mean() > 0.1


def test_keys_lead_back_to_ranks_within_cardinalities(many: SyntheticRows) -> None:
    ranks = ranks_of(many.keys)
    assert (ranks >= 0).all()
    assert (ranks < CARDINALITIES[:, None]).all()
    columns = np.arange(1, SPARSE + 1, dtype=np.uint64)[:, None]
    assert (mix64_reference(columns << np.uint64(40) | ranks.astype(np.uint64)) == many.keys).all()
    assert [len(np.unique(column)) for column in many.keys[:5]] == [1, 2, 3, 10, 100]
    assert len(np.unique(many.keys)) == sum(len(np.unique(column)) for column in many.keys)
    assert (np.sort(many.keys[4])[-1] >> np.uint64(63)) == 1, "all 64 bits are in use"


def masses(cardinality: int, exponent: float, edges: F64) -> F64:
    """What the continuous law gives to heights between consecutive edges."""
    if exponent == 1.0:
        cumulative = np.log(edges) / np.log(cardinality + 1.0)
    else:
        power = 1.0 - exponent
        cumulative = (edges**power - 1.0) / ((cardinality + 1.0) ** power - 1.0)
    return np.diff(cumulative)


@pytest.mark.parametrize("exponent", [0.0, 0.7, 1.0, 1.05, 1.6])
def test_ranks_follow_the_law(exponent: float) -> None:
    count = 100_000
    ranks = ranks_of(made(rows=count, exponent=exponent, seed=11).keys)
    for column in (3, 5, 7):
        cardinality = int(CARDINALITIES[column])
        edges = np.unique(np.floor(np.geomspace(1, cardinality + 1, 13)))
        expected = count * masses(cardinality, exponent, edges)
        seen, _ = np.histogram(ranks[column] + 1.0, edges)
        deviations = (seen - expected) / np.sqrt(np.maximum(expected * (1 - expected / count), 1.0))
        assert np.abs(deviations).max() < 4.5, (column, seen, expected)


def test_draws_of_columns_and_rows_are_independent(many: SyntheticRows) -> None:
    heights = np.log(ranks_of(many.keys[5:]) + 1.5)
    values = np.concatenate([many.dense.astype(np.float64), heights])
    correlations = np.corrcoef(values) - np.eye(len(values))
    assert np.abs(correlations).max() < 5 / np.sqrt(values.shape[1])
    following = [np.corrcoef(row[1:], row[:-1])[0, 1] for row in values]
    assert np.abs(following).max() < 5 / np.sqrt(values.shape[1])


def test_dense_columns_are_logs_of_lognormal_counts(many: SyntheticRows) -> None:
    assert many.dense.shape == (DENSE, 100_000)
    assert (many.dense > 0).all()
    assert np.abs(many.dense.mean(axis=1) - DENSE_MEAN).max() < 5 * 0.52 / np.sqrt(100_000)
    logs = np.log(np.expm1(many.dense.astype(np.float64)))
    assert np.abs(logs.std(axis=1) - 1.0).max() < 0.02


def test_labels_are_drawn_with_the_planted_probability(many: SyntheticRows) -> None:
    assert set(np.unique(many.labels)) == {0.0, 1.0}
    assert 0.1 < many.labels.mean() < 0.6
    order = np.argsort(many.chances)
    for part in np.array_split(order, 20):
        expected = many.chances[part].mean()
        error = np.sqrt((many.chances[part] * (1 - many.chances[part])).mean() / len(part))
        assert abs(many.labels[part].mean() - expected) < 4.5 * error


def test_who_knows_the_rule_reaches_the_auc_and_nobody_else(many: SyntheticRows) -> None:
    known = chances_reference(many.dense, many.keys, seed=7)
    best = exact_auc(many.labels, known)
    assert best is not None
    assert best == exact_auc(many.labels, many.chances)
    assert 0.75 < best < 0.95
    population = exact_auc(np.repeat([1.0, 0.0], 100_000), np.tile(known, 2), weights=np.append(known, 1 - known))
    assert population == pytest.approx(best, abs=0.005)
    noise = np.random.default_rng(0)
    assert (exact_auc(many.labels, noise.permutation(known)) or 0.0) == pytest.approx(0.5, abs=0.01)
    assert (exact_auc(many.labels, known + noise.normal(0, 0.2, len(known))) or 1.0) < best - 0.01
    assert (exact_auc(many.labels, chances_reference(many.dense, many.keys, seed=8)) or 1.0) < best - 0.1
