"""The definition of row optimizers against the papers' formulas in float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.optim.definition import first_state, hyper_array, row_width, state_size, tree_mean, update_reference
from hetero.records import F32, F64, RowOptimizer, RowOptimizerSpec
from tests.support.row_updates import DIMS, UpdateCase, assert_same_bits, update_cases


def begun(spec: RowOptimizerSpec, weights: F32) -> F32:
    return np.concatenate([weights, first_state(spec, weights)], axis=1)


def gradients(*, rows: int = 6, dim: int = 5, steps: int = 8, seed: int = 0) -> list[F32]:
    random = np.random.default_rng(seed)
    return [random.normal(size=(rows, dim)).astype(np.float32) for _ in range(steps)]


def weights_after(spec: RowOptimizerSpec, weights: F32, steps: list[F32]) -> F32:
    rows = begun(spec, weights)
    for step in steps:
        rows = update_reference(spec, rows, step)
    return rows[:, : weights.shape[1]]


@pytest.mark.parametrize("dim", DIMS)
def test_a_row_holds_as_much_state_as_its_optimizer_needs(dim: int) -> None:
    sizes = {kind: state_size(RowOptimizerSpec(kind=kind), dim) for kind in RowOptimizer}
    assert sizes == {
        RowOptimizer.SGD: 0,
        RowOptimizer.ADAGRAD: dim,
        RowOptimizer.ROWWISE_ADAGRAD: 1,
        RowOptimizer.ADAM: 2 * dim + 2,
        RowOptimizer.FTRL: 2 * dim,
    }
    for kind in RowOptimizer:
        spec = RowOptimizerSpec(kind=kind)
        assert row_width(spec, dim) == dim + sizes[kind] == begun(spec, np.zeros((1, dim), np.float32)).shape[1]


@pytest.mark.parametrize("l2", [0.0, 0.1])
def test_sgd_and_adagrad_are_their_formulas(l2: float) -> None:
    weights = np.random.default_rng(1).normal(size=(6, 5)).astype(np.float32)
    plain, scaled, sums = weights.astype(np.float64), weights.astype(np.float64), np.full((6, 5), 0.2)
    for step in gradients():
        plain = plain - 0.05 * (step + l2 * plain)
        g = step + l2 * scaled
        sums += g * g
        scaled = scaled - 0.05 * g / (np.sqrt(sums) + 1e-3)
    sgd = RowOptimizerSpec(kind=RowOptimizer.SGD, lr=0.05, l2=l2)
    adagrad = RowOptimizerSpec(kind=RowOptimizer.ADAGRAD, lr=0.05, l2=l2, eps=1e-3, initial_accumulator=0.2)
    np.testing.assert_allclose(weights_after(sgd, weights, gradients()), plain, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(weights_after(adagrad, weights, gradients()), scaled, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("l2", [0.0, 0.1])
def test_adam_is_algorithm_1_of_its_paper(l2: float) -> None:
    spec = RowOptimizerSpec(kind=RowOptimizer.ADAM, lr=0.05, l2=l2, eps=1e-3)
    weights = np.random.default_rng(1).normal(size=(6, 5)).astype(np.float32)
    want, m, v = weights.astype(np.float64), np.zeros((6, 5)), np.zeros((6, 5))
    for t, step in enumerate(gradients(), start=1):
        g = step + l2 * want
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        want = want - 0.05 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-3)
    np.testing.assert_allclose(weights_after(spec, weights, gradients()), want, rtol=2e-4, atol=2e-5)


def test_rowwise_adagrad_divides_by_the_root_of_summed_mean_squares() -> None:
    spec = RowOptimizerSpec(lr=0.05, eps=1e-3, initial_accumulator=0.2, l2=0.1)
    weights = np.random.default_rng(2).normal(size=(6, 5)).astype(np.float32)
    want, total = weights.astype(np.float64), np.full((6, 1), 0.2)
    for step in gradients():
        g = step + 0.1 * want
        total += (g * g).mean(axis=1, keepdims=True)
        want = want - 0.05 * g / (np.sqrt(total) + 1e-3)
    np.testing.assert_allclose(weights_after(spec, weights, gradients()), want, rtol=2e-5, atol=2e-6)


def solved(z: F64, n: F64, spec: RowOptimizerSpec) -> F64:
    """Weights of FTRL-proximal, McMahan et al. 2013, algorithm 1."""
    shrunk = np.sign(z) * spec.l1 - z
    return np.where(np.abs(z) <= spec.l1, 0.0, shrunk / ((spec.beta + np.sqrt(n)) / spec.lr + spec.l2))


@pytest.mark.parametrize("l1", [0.0, 0.3])
def test_ftrl_is_algorithm_1_of_its_paper(l1: float) -> None:
    spec = RowOptimizerSpec(kind=RowOptimizer.FTRL, lr=0.1, l1=l1, l2=0.01, beta=1.0)
    zeros = np.zeros((6, 5), np.float32)
    z, n = np.zeros((6, 5)), np.zeros((6, 5))
    for g in gradients():
        sigma = (np.sqrt(n + g * g) - np.sqrt(n)) / spec.lr
        z += g - sigma * solved(z, n, spec)
        n += g * g
    want = solved(z, n, spec)
    assert (want == 0).any() == (l1 > 0)
    np.testing.assert_allclose(weights_after(spec, zeros, gradients()), want, rtol=5e-5, atol=2e-6)


@settings(max_examples=50, deadline=None)
@given(
    st.sampled_from([0.0, 0.01, 0.7]),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from([0.5, 1.0]),
    st.sampled_from([0.0, 2.0]),
    st.sampled_from([1e-6, 0.01, 1.0, 1e4]),
    st.integers(0, 2**32 - 1),
)
def test_ftrls_first_weights_are_their_own_solution(
    l1: float, l2: float, beta: float, accumulator: float, scale: float, seed: int
) -> None:
    """A gradient of zero leaves z and n, bit for bit, and gives back the weights up to the rounding of z.

    z is -(w * s) -+ l1 with s = (beta + sqrt(n)) / lr + l2, so it keeps w to half a unit of the last place of
    |w| * s + l1: a weight far below l1 / s is lost in it. A second zero gradient changes nothing at all.
    """
    spec = RowOptimizerSpec(kind=RowOptimizer.FTRL, lr=0.1, l1=l1, l2=l2, beta=beta, initial_accumulator=accumulator)
    weights = (np.random.default_rng(seed).normal(size=(4, 3)) * scale).astype(np.float32)
    rows, nothing = begun(spec, weights), np.zeros((4, 3), np.float32)
    once = update_reference(spec, rows, nothing)
    assert_same_bits(once[:, 3:], rows[:, 3:])
    steep = (beta + np.sqrt(accumulator)) / 0.1 + l2
    allowed = 4 * 2.0**-24 * (2 * np.abs(weights) + l1 / steep)
    assert (np.abs(once[:, :3].astype(np.float64) - weights) <= allowed).all()
    assert_same_bits(update_reference(spec, once, nothing), once)


@pytest.mark.parametrize("kind", [RowOptimizer.SGD, RowOptimizer.ADAGRAD, RowOptimizer.ROWWISE_ADAGRAD])
def test_a_zero_gradient_leaves_a_row_as_it_is(kind: RowOptimizer) -> None:
    spec = RowOptimizerSpec(kind=kind)
    rows = begun(spec, np.random.default_rng(3).normal(size=(4, 3)).astype(np.float32))
    for _ in range(2):
        assert_same_bits(update_reference(spec, rows, np.zeros((4, 3), np.float32)), rows)
        rows = update_reference(spec, rows, np.ones((4, 3), np.float32))


def test_adam_counts_the_steps_of_each_row_by_itself() -> None:
    spec = RowOptimizerSpec(kind=RowOptimizer.ADAM)
    rows, step = begun(spec, np.zeros((2, 3), np.float32)), np.full((1, 3), 0.5, np.float32)
    for _ in range(5):
        rows[:1] = update_reference(spec, rows[:1], step)
    late = update_reference(spec, rows[1:], step)
    early = update_reference(spec, begun(spec, np.zeros((1, 3), np.float32)), step)
    assert_same_bits(late, early)
    np.testing.assert_allclose(rows[0, 9:], [0.9**5, 0.999**5], rtol=1e-6)
    np.testing.assert_allclose(late[0, :3], -spec.lr, rtol=1e-4)


@pytest.mark.parametrize("kind", RowOptimizer)
def test_rows_are_updated_independently_and_inputs_left_alone(kind: RowOptimizer) -> None:
    @settings(max_examples=20, deadline=None)
    @given(update_cases(kind))
    def check(case: UpdateCase) -> None:
        rows, step = case.rows.copy(), case.gradients[0].copy()
        with np.errstate(all="ignore"):
            together = update_reference(case.spec, case.rows, case.gradients[0])
            apart = [
                update_reference(case.spec, case.rows[i : i + 1], case.gradients[0][i : i + 1])
                for i in range(len(case.rows))
            ]
        assert_same_bits(np.concatenate(apart), together)
        np.testing.assert_array_equal(case.rows, rows)
        np.testing.assert_array_equal(case.gradients[0], step)

    check()


def test_the_mean_of_a_row_is_taken_by_a_tree() -> None:
    big = np.float32(2.0**24)
    np.testing.assert_array_equal(tree_mean(np.array([[big, 1, -big, 1], [3, 4, 5, 6]], np.float32)), [0.5, 4.5])
    for dim in DIMS:
        values = np.random.default_rng(dim).normal(size=(7, dim)).astype(np.float32)
        np.testing.assert_allclose(tree_mean(values), values.mean(axis=1, dtype=np.float64), rtol=1e-5, atol=1e-7)


def test_hyper_parameters_are_rounded_to_float32_once() -> None:
    hyper = hyper_array(RowOptimizerSpec(beta1=0.9, beta2=0.999))
    assert hyper.dtype == np.float32
    assert hyper[4] == np.float32(1) - np.float32(0.9)
    assert hyper[5] == np.float32(1) - np.float32(0.999)
