"""Row optimizers in torch operations give, on the CPU, the bits of the definition in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from hetero.optim import torch_path
from hetero.optim.definition import first_state, tree_mean, update_reference
from hetero.records import F32, RowOptimizer, RowOptimizerSpec
from tests.support.row_updates import DIMS, UpdateCase, assert_same_bits, update_cases


def updated(spec: RowOptimizerSpec, rows: F32, gradients: F32) -> F32:
    tensor = torch.from_numpy(rows.copy())
    torch_path.update_rows_(spec, tensor, torch.from_numpy(gradients))
    result: F32 = tensor.numpy()
    return result


@pytest.mark.parametrize("kind", RowOptimizer)
def test_torch_gives_the_bits_of_numpy(kind: RowOptimizer) -> None:
    @settings(max_examples=60, deadline=None)
    @given(update_cases(kind))
    def check(case: UpdateCase) -> None:
        torch_rows = numpy_rows = case.rows
        for gradients in case.gradients:
            torch_rows = updated(case.spec, torch_rows, gradients)
            with np.errstate(all="ignore"):
                numpy_rows = update_reference(case.spec, numpy_rows, gradients)
            assert_same_bits(torch_rows, numpy_rows)

    check()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", RowOptimizer)
def test_many_rows_and_several_threads_take_the_same_operations(kind: RowOptimizer, threads: int) -> None:
    """Large tensors go through other code in torch: blocks for threads, vectors with other ends."""
    random, spec = np.random.default_rng(5), RowOptimizerSpec(kind=kind, l1=0.01, l2=0.1, initial_accumulator=0.1)
    weights = random.normal(size=(3001, 17)).astype(np.float32)
    rows = np.concatenate([weights, first_state(spec, weights)], axis=1)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for _ in range(3):
            gradients = random.normal(size=(3001, 17)).astype(np.float32)
            torch_rows, rows = updated(spec, rows, gradients), update_reference(spec, rows, gradients)
            assert_same_bits(torch_rows, rows)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("kind", RowOptimizer)
def test_rows_inside_a_larger_tensor_are_updated_in_place_and_alone(kind: RowOptimizer) -> None:
    random, spec = np.random.default_rng(6), RowOptimizerSpec(kind=kind)
    weights = random.normal(size=(4, 3)).astype(np.float32)
    rows = np.concatenate([weights, first_state(spec, weights)], axis=1)
    gradients = random.normal(size=(4, 3)).astype(np.float32)
    around = torch.full((6, rows.shape[1] + 2), 7.5)
    around[1:5, 1:-1] = torch.from_numpy(rows)
    torch_path.update_rows_(spec, around[1:5, 1:-1], torch.from_numpy(gradients))
    assert_same_bits(around[1:5, 1:-1].numpy().copy(), update_reference(spec, rows, gradients))
    around[1:5, 1:-1] = 7.5
    assert bool((around == 7.5).all())


def test_every_square_root_is_the_right_one() -> None:
    """Over one binade and its neighbour every mantissa once; numpy's root is the hardware's, rounded as IEEE says."""
    values = np.arange(0x3F800000, 0x40800000, 3, dtype=np.uint32).view(np.float32)
    extremes = np.array([0.0, -0.0, 1e-45, 1e-38, 3.4e38, np.inf, np.nan, -1.0], np.float32)
    for part in (values, extremes):
        with np.errstate(invalid="ignore"):
            assert_same_bits(torch_path.root(torch.from_numpy(part)).numpy(), np.sqrt(part))


def test_the_mean_goes_by_the_tree_of_the_definition() -> None:
    for dim in DIMS:
        values = np.random.default_rng(dim).normal(size=(50, dim)).astype(np.float32)
        assert_same_bits(torch_path.tree_mean(torch.from_numpy(values)).numpy(), tree_mean(values))


def test_no_rows_at_all() -> None:
    for kind in RowOptimizer:
        spec = RowOptimizerSpec(kind=kind, l2=0.1)
        none = np.empty((0, 3), np.float32)
        rows = np.concatenate([none, first_state(spec, none)], axis=1)
        assert updated(spec, rows, none).shape == rows.shape == update_reference(spec, rows, none).shape
