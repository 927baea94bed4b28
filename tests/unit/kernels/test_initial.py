"""First values of rows: the kernel gives the bits of the references, and they are distributed as they say."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.kernels.initial import NORMAL, UNIFORM, ZEROS, first_values, first_weights_reference
from hetero.kernels.jit import kernel
from hetero.optim.definition import KIND, first_state, hyper_array, row_width
from hetero.records import F32, U64, RowOptimizer, RowOptimizerSpec
from tests.support.row_updates import DIMS, assert_same_bits, specs

SEEDS = st.integers(0, 2**64 - 1)


@kernel
def fill(
    mixed_seed: np.uint64,
    keys: U64,
    rows: F32,
    dim: int,
    kind: int,
    hyper: F32,
    first: int,
    scale: np.float32,
    accumulator: np.float32,
) -> None:
    for i in range(len(keys)):
        first_values(mixed_seed, keys[i], rows[i], dim, kind, hyper, first, scale, accumulator)


def filled(seed: int, keys: U64, *, dim: int, spec: RowOptimizerSpec, first: int, scale: float) -> F32:
    rows = np.full((len(keys), row_width(spec, dim)), np.nan, np.float32)
    accumulator = np.float32(spec.initial_accumulator)
    hyper, kind = hyper_array(spec), KIND[spec.kind]
    fill(np.uint64(seed), keys, rows, dim, kind, hyper, first, np.float32(scale), accumulator)
    return rows


@pytest.mark.parametrize("kind", RowOptimizer)
def test_kernel_gives_the_bits_of_the_references(kind: RowOptimizer) -> None:
    @settings(max_examples=50, deadline=None)
    @given(
        specs(kind),
        st.sampled_from(DIMS),
        st.sampled_from([ZEROS, UNIFORM, NORMAL]),
        st.sampled_from([0.01, 1.0, 3e-7, 0.0]),
        SEEDS,
        st.lists(st.sampled_from([0, 1, 2**63 - 1, 2**63, 2**64 - 1]) | SEEDS, max_size=5),
    )
    def check(spec: RowOptimizerSpec, dim: int, first: int, scale: float, seed: int, keys: list[int]) -> None:
        values = np.array(keys, np.uint64)
        weights = first_weights_reference(seed, values, dim=dim, first=first, scale=scale)
        with np.errstate(all="ignore"):
            want = np.concatenate([weights, first_state(spec, weights)], axis=1)
        assert_same_bits(filled(seed, values, dim=dim, spec=spec, first=first, scale=scale), want)

    check()


@pytest.mark.parametrize("first", [UNIFORM, NORMAL])
def test_values_do_not_depend_on_the_other_keys_or_the_width(first: int) -> None:
    keys = np.random.default_rng(0).integers(0, 2**64, 50, dtype=np.uint64)
    wide = first_weights_reference(9, keys, dim=7, first=first, scale=1.0)
    np.testing.assert_array_equal(first_weights_reference(9, keys[30:], dim=7, first=first, scale=1.0), wide[30:])
    np.testing.assert_array_equal(first_weights_reference(9, keys, dim=3, first=first, scale=1.0), wide[:, :3])
    assert (first_weights_reference(10, keys, dim=7, first=first, scale=1.0) != wide).all()


@pytest.mark.parametrize(("first", "variance"), [(UNIFORM, 1 / 3), (NORMAL, 1.0)])
def test_neighbouring_keys_and_columns_have_the_moments_and_no_correlation(first: int, variance: float) -> None:
    keys = np.arange(40_000, dtype=np.uint64)
    weights = first_weights_reference(123, keys, dim=4, first=first, scale=1.0).astype(np.float64)
    assert abs(weights.mean()) < 0.01
    assert abs(weights.var() - variance) < 0.01
    joint = np.corrcoef(np.concatenate([weights[:-1], weights[1:]], axis=1).T)
    assert np.abs(joint - np.eye(8)).max() < 0.025


def test_uniform_stays_within_its_scale() -> None:
    weights = first_weights_reference(5, np.arange(50_000, dtype=np.uint64), dim=2, first=UNIFORM, scale=0.25)
    assert weights.min() >= -0.25
    assert weights.max() < 0.25
    shares = np.histogram(weights, bins=10, range=(-0.25, 0.25))[0] / weights.size
    assert np.abs(shares - 0.1).max() < 0.005


def test_normal_follows_the_normal_distribution() -> None:
    weights = np.sort(
        first_weights_reference(5, np.arange(50_000, dtype=np.uint64), dim=1, first=NORMAL, scale=2.0)[:, 0]
    )
    places = np.linspace(-5, 5, 41)
    below = np.searchsorted(weights, places) / len(weights)
    normal = np.array([(1 + math.erf(place / 2 / math.sqrt(2))) / 2 for place in places])
    assert np.abs(below - normal).max() < 0.01
    assert np.abs(weights).max() <= 12.0
