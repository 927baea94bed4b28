"""Pooled lookups: the numba kernels against plain numpy to the bit, the torch path against the kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.errors import ProtocolError
from hetero.kernels import pooling, pooling_torch
from hetero.records import F32, Bags

CPU = torch.device("cpu")
RELATIVE = 1e-6


def random_bags(
    rng: np.random.Generator, *, bags: int, unique: int, single: bool, weighted: bool, longest: int = 4
) -> Bags:
    counts = np.ones(bags, np.int64) if single else rng.integers(0, longest + 1, bags)
    if unique == 0:
        counts = np.zeros(bags, np.int64)
    local = rng.integers(0, max(1, unique), int(counts.sum())).astype(np.int32)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    weights = rng.standard_normal(len(local)).astype(np.float32) if weighted else None
    return Bags(local, None if single and unique else offsets, weights)


@st.composite
def cases(draw: st.DrawFn) -> tuple[F32, Bags, pooling.Bool, np.random.Generator]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    columns, unique = draw(st.integers(1, 3)), draw(st.integers(0, 6))
    bags = random_bags(
        rng,
        bags=columns * draw(st.integers(0, 7)),
        unique=unique,
        single=draw(st.booleans()),
        weighted=draw(st.booleans()),
    )
    rows = rng.standard_normal((unique, draw(st.sampled_from([1, 3, 16])))).astype(np.float32)
    return rows, bags, rng.random(columns) < 0.5, rng


def same_bits(actual: F32, expected: F32) -> None:
    assert actual.dtype == expected.dtype == np.float32
    assert actual.shape == expected.shape
    np.testing.assert_array_equal(actual.view(np.int32), expected.view(np.int32))


@settings(max_examples=60, deadline=None)
@given(cases())
def test_pooling_equals_the_reference_to_the_bit(
    case: tuple[F32, Bags, pooling.Bool, np.random.Generator],
) -> None:
    rows, bags, mean, rng = case
    pooled = pooling.pool_forward(rows, bags, mean=mean)
    same_bits(pooled, pooling.pool_forward_reference(rows, bags, mean=mean))
    grad = rng.standard_normal(pooled.shape).astype(np.float32)
    merged = pooling.pool_backward(grad, bags, mean=mean, unique=len(rows))
    same_bits(merged, pooling.pool_backward_reference(grad, bags, mean=mean, unique=len(rows)))


@settings(max_examples=60, deadline=None)
@given(cases())
def test_sequences_equal_the_reference_to_the_bit(
    case: tuple[F32, Bags, pooling.Bool, np.random.Generator],
) -> None:
    rows, bags, _, rng = case
    padded = pooling.sequence_forward(rows, bags)
    same_bits(padded, pooling.sequence_forward_reference(rows, bags))
    assert padded.shape[1] == max(1, pooling.bag_lengths(bags).max(initial=0))
    grad = rng.standard_normal(padded.shape).astype(np.float32)
    begun = rng.standard_normal(rows.shape).astype(np.float32)
    expected = begun.copy()
    pooling.add_sequence_backward(grad, bags, grad_rows=begun)
    pooling.add_sequence_backward_reference(grad, bags, grad_rows=expected)
    same_bits(begun, expected)


@settings(max_examples=60, deadline=None)
@given(cases())
def test_torch_path_equals_the_kernels(case: tuple[F32, Bags, pooling.Bool, np.random.Generator]) -> None:
    rows, bags, mean, rng = case
    device_bags = pooling_torch.to_device(bags, device=CPU)
    pooled = pooling.pool_forward(rows, bags, mean=mean)
    same_bits(pooling_torch.pool_forward(torch.from_numpy(rows), device_bags, mean=mean).numpy(), pooled)

    mask = torch.from_numpy(pooling.sequence_mask(bags))
    padded = pooling.sequence_forward(rows, bags)
    same_bits(pooling_torch.sequence_forward(torch.from_numpy(rows), device_bags, mask=mask).numpy(), padded)

    grads = [rng.standard_normal(shape).astype(np.float32) for shape in (pooled.shape, padded.shape)]
    merged = pooling.pool_backward(grads[0], bags, mean=mean, unique=len(rows))
    pooling.add_sequence_backward(grads[1], bags, grad_rows=merged)
    pooled_terms = pooling_torch.pool_contributions(torch.from_numpy(grads[0]), device_bags, mean=mean)
    sequence_terms = pooling_torch.sequence_contributions(torch.from_numpy(grads[1]), device_bags, mask=mask)
    parts = [(device_bags.local, pooled_terms), (device_bags.local, sequence_terms)]
    same_bits(pooling_torch.merge_contributions(parts, unique=len(rows), width=rows.shape[1]).numpy(), merged)


def test_torch_path_without_segment_reduce_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooling_torch, "_SEGMENT_REDUCE_DEVICES", frozenset())
    rng = np.random.default_rng(3)
    bags = random_bags(rng, bags=300, unique=20, single=False, weighted=True)
    rows = rng.standard_normal((20, 8)).astype(np.float32)
    mean = np.array([True, False, True])
    device_bags = pooling_torch.to_device(bags, device=CPU)
    pooled = pooling_torch.pool_forward(torch.from_numpy(rows), device_bags, mean=mean)
    np.testing.assert_allclose(
        pooled.numpy(), pooling.pool_forward(rows, bags, mean=mean), rtol=RELATIVE, atol=RELATIVE
    )
    grad = rng.standard_normal((300, 8)).astype(np.float32)
    terms = pooling_torch.pool_contributions(torch.from_numpy(grad), device_bags, mean=mean)
    merged = pooling_torch.merge_contributions([(device_bags.local, terms)], unique=20, width=8)
    expected = pooling.pool_backward(grad, bags, mean=mean, unique=20)
    np.testing.assert_allclose(merged.numpy(), expected, rtol=1e-5, atol=1e-5)


def test_gradients_of_duplicates_are_summed_in_order_of_occurrence() -> None:
    """1 + 2^-24 rounds back to 1, so (big + small) + small and (small + small) + big differ in float32."""
    small = np.float32(2.0**-24)
    bags = Bags(np.zeros(3, np.int32))
    for grads, expected in [((1.0, small, small), 1.0), ((small, small, 1.0), 1.0 + 2.0**-23)]:
        grad = np.array(grads, np.float32)[:, None]
        merged = pooling.pool_backward(grad, bags, mean=np.zeros(1, np.bool_), unique=1)
        assert merged[0, 0] == np.float32(expected)


def test_pooled_gradients_come_before_those_of_sequences() -> None:
    small = np.float32(2.0**-24)
    merged = pooling.pool_backward(
        np.array([[1.0]], np.float32), Bags(np.zeros(1, np.int32)), mean=np.zeros(1, np.bool_), unique=1
    )
    sequence = Bags(np.zeros(2, np.int32), np.array([0, 2], np.int32))
    pooling.add_sequence_backward(np.full((1, 2, 1), small, np.float32), sequence, grad_rows=merged)
    assert merged[0, 0] == 1.0


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_merged_gradients_do_not_depend_on_the_numbering_of_rows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    bags = random_bags(rng, bags=40, unique=9, single=False, weighted=True)
    grad = rng.standard_normal((40, 4)).astype(np.float32)
    mean = np.array([False, True])
    renumbered = rng.permutation(9).astype(np.int32)
    plain = pooling.pool_backward(grad, bags, mean=mean, unique=9)
    other = pooling.pool_backward(grad, replace(bags, local=renumbered[bags.local]), mean=mean, unique=9)
    same_bits(other[renumbered], plain)


def test_a_mean_divides_by_positions_not_by_weights() -> None:
    rows = np.array([[2.0], [4.0]], np.float32)
    bags = Bags(np.array([0, 1], np.int32), np.array([0, 2, 2], np.int32), np.array([3.0, 1.0], np.float32))
    pooled = pooling.pool_forward(rows, bags, mean=np.ones(1, np.bool_))
    assert pooled.tolist() == [[5.0], [0.0]]


def test_read_only_arrays_use_the_same_compiled_kernel() -> None:
    rng = np.random.default_rng(0)
    rows, mean = rng.standard_normal((5, 3)).astype(np.float32), np.zeros(1, np.bool_)
    bags = random_bags(rng, bags=6, unique=5, single=False, weighted=True)
    expected = pooling.pool_forward(rows, bags, mean=mean)
    compiled = len(pooling._pool.signatures)  # type: ignore[attr-defined]
    for array in (rows, bags.local, bags.offsets, bags.weights, mean):
        assert array is not None
        array.flags.writeable = False
        same_bits(pooling.pool_forward(rows, bags, mean=mean), expected)
    same_bits(pooling.pool_forward(np.asfortranarray(rows), bags, mean=mean), expected)
    assert len(pooling._pool.signatures) == compiled == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("bags", "message"),
    [
        (Bags(np.array([0, 3], np.int32)), "run from 0 to 3, but the batch has 3"),
        (Bags(np.array([-1, 0], np.int32)), "run from -1 to 0"),
        (Bags(np.array([0, 1], np.int32), np.array([0, 1], np.int32)), "offsets do not rise from 0 to 2"),
        (Bags(np.array([0, 1], np.int32), np.array([0, 9, 2], np.int32)), "offsets do not rise from 0 to 2"),
        (Bags(np.array([0, 1], np.int32), np.empty(0, np.int32)), "offsets do not rise from 0 to 2"),
        (Bags(np.array([0, 1], np.int32), None, np.ones(3, np.float32)), "3 given, 2 expected"),
        (Bags(np.array([0, 1, 2], np.int32)), "3 bags are not a whole number of rows of 2 lookups"),
    ],
)
def test_bags_that_do_not_fit_are_refused(bags: Bags, message: str) -> None:
    rows, mean = np.zeros((3, 2), np.float32), np.zeros(2, np.bool_)
    with pytest.raises(ProtocolError, match=message):
        pooling.pool_forward(rows, bags, mean=mean)


def test_gradients_that_do_not_fit_are_refused() -> None:
    bags, grad = Bags(np.array([0, 1], np.int32)), np.zeros((3, 2), np.float32)
    with pytest.raises(ProtocolError, match="3 given, 2 expected"):
        pooling.pool_backward(grad, bags, mean=np.zeros(2, np.bool_), unique=2)
    with pytest.raises(ProtocolError, match="3 given, 2 expected"):
        pooling.add_sequence_backward(np.zeros((3, 1, 2), np.float32), bags, grad_rows=np.zeros((2, 2), np.float32))
