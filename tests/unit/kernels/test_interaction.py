"""Dot interaction: the numba kernels and the torch path against plain numpy in float64, and that against torch."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.kernels import interaction_torch
from hetero.kernels.interaction import (
    Shape,
    backward_kernel,
    backward_reference,
    forward_kernel,
    forward_reference,
)
from hetero.kernels.rows import over_rows
from hetero.records import F32

TOLERANCE = 1e-6
UNTOUCHED = np.float32(7)


def address(array: F32 | None) -> int:
    return 0 if array is None else int(array.ctypes.data)


def forward(first: F32 | None, block: F32, *, beyond: int = 0, threads: int = 1) -> F32:
    """The kernel's result, with `beyond` columns behind it, which it must leave alone."""
    fields = block.shape[1] + (first is not None)
    shape = Shape(fields=fields, dim=block.shape[2], has_first=first is not None)
    out = np.full((len(block), shape.columns + beyond), UNTOUCHED, np.float32)

    def part(start: int, stop: int) -> None:
        room = shape.room()
        forward_kernel(
            address(first),
            address(block),
            address(out),
            start,
            stop,
            fields,
            shape.dim,
            out.shape[1],
            address(room),
        )

    over_rows(part, len(block), threads=threads)
    assert (out[:, shape.columns :] == UNTOUCHED).all()
    return out[:, : shape.columns]


def backward(first: F32 | None, block: F32, grad: F32, *, threads: int = 1) -> tuple[F32 | None, F32]:
    """The kernel's gradients of `first` and `block`."""
    fields = block.shape[1] + (first is not None)
    shape = Shape(fields=fields, dim=block.shape[2], has_first=first is not None)
    grad_first, grad_block = None if first is None else np.empty_like(first), np.empty_like(block)

    def part(start: int, stop: int) -> None:
        room = shape.room()
        backward_kernel(
            address(first),
            address(block),
            address(grad),
            address(grad_first),
            address(grad_block),
            start,
            stop,
            fields,
            shape.dim,
            grad.shape[1],
            address(room),
        )

    over_rows(part, len(block), threads=threads)
    return grad_first, grad_block


def random_case(seed: int, *, rows: int, fields: int, dim: int, has_first: bool) -> tuple[F32 | None, F32, F32]:
    """first or None, block, a gradient; entries of 1 / sqrt(dim), so that products are about 1."""
    rng = np.random.default_rng(seed)
    block = rng.normal(size=(rows, fields - has_first, dim)) / np.sqrt(dim)
    first = rng.normal(size=(rows, dim)) / np.sqrt(dim)
    columns = (dim if has_first else 0) + fields * (fields - 1) // 2
    grad = rng.normal(size=(rows, columns)) / np.sqrt(fields)
    return first.astype(np.float32) if has_first else None, block.astype(np.float32), grad.astype(np.float32)


def wide(array: F32 | None) -> F32:
    """The same numbers in float64, typed as the references are."""
    assert array is not None
    numbers: Any = array.astype(np.float64)
    return cast(F32, numbers)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(0, 5),
    fields=st.integers(2, 40),
    dim=st.sampled_from([1, 2, 4, 7, 8, 16, 20]),
    has_first=st.booleans(),
    beyond=st.integers(0, 3),
)
def test_kernels_equal_the_reference(seed: int, rows: int, fields: int, dim: int, has_first: bool, beyond: int) -> None:
    first, block, grad = random_case(seed, rows=rows, fields=fields, dim=dim, has_first=has_first)
    wide_first = None if first is None else wide(first)
    expected = forward_reference(wide_first, wide(block))
    np.testing.assert_allclose(forward(first, block, beyond=beyond), expected, atol=TOLERANCE, rtol=TOLERANCE)
    grad_first, grad_block = backward(first, block, grad)
    expected_first, expected_block = backward_reference(wide_first, wide(block), wide(grad))
    np.testing.assert_allclose(grad_block, expected_block, atol=TOLERANCE, rtol=TOLERANCE)
    if has_first:
        np.testing.assert_allclose(wide(grad_first), wide(expected_first), atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("has_first", [True, False])
def test_the_reference_is_the_derivative(has_first: bool) -> None:
    """The references in float64 against finite differences of the forward one."""
    first, block, grad = random_case(3, rows=2, fields=5, dim=3, has_first=has_first)
    wide_first = None if first is None else wide(first)
    found_first, found_block = backward_reference(wide_first, wide(block), wide(grad))

    def value(first: F32 | None, block: F32) -> float:
        return float((forward_reference(first, block) * grad).sum())

    step = 1e-6
    for place in np.ndindex(block.shape):
        up, down = wide(block), wide(block)
        up[place] += step
        down[place] -= step
        slope = (value(wide_first, up) - value(wide_first, down)) / (2 * step)
        assert found_block[place] == pytest.approx(slope, abs=1e-7)
    for place in np.ndindex(first.shape if first is not None else (0,)):
        up, down = wide(first), wide(first)
        up[place] += step
        down[place] -= step
        slope = (value(up, wide(block)) - value(down, wide(block))) / (2 * step)
        assert wide(found_first)[place] == pytest.approx(slope, abs=1e-7)


@pytest.mark.parametrize("has_first", [True, False])
def test_the_torch_path_equals_the_kernels(has_first: bool) -> None:
    first, block, grad = random_case(4, rows=33, fields=27, dim=16, has_first=has_first)
    leaves = [torch.from_numpy(array.copy()).requires_grad_() for array in (block, first) if array is not None]
    lower = interaction_torch.lower_triangle(27)
    out = interaction_torch.forward(leaves[1] if has_first else None, leaves[0], lower=lower)
    out.backward(torch.from_numpy(grad))  # type: ignore[no-untyped-call]
    np.testing.assert_allclose(forward(first, block), out.detach().numpy(), atol=TOLERANCE, rtol=TOLERANCE)
    grad_first, grad_block = backward(first, block, grad)
    for ours, leaf in zip((grad_block, grad_first), leaves, strict=False):
        assert leaf.grad is not None
        np.testing.assert_allclose(wide(ours), leaf.grad.numpy(), atol=TOLERANCE, rtol=TOLERANCE)


def test_bits_depend_neither_on_threads_nor_on_the_batch() -> None:
    first, block, grad = random_case(5, rows=67, fields=27, dim=16, has_first=True)
    assert first is not None
    alone = forward(first, block), *backward(first, block, grad)
    for threads in (2, 3):
        split = forward(first, block, threads=threads), *backward(first, block, grad, threads=threads)
        for one, other in zip(alone, split, strict=True):
            np.testing.assert_array_equal(wide(one), wide(other))
    np.testing.assert_array_equal(alone[0][20:40], forward(first[20:40].copy(), block[20:40].copy()))


def test_not_a_number_stays_in_its_row() -> None:
    first, block, _ = random_case(6, rows=4, fields=6, dim=8, has_first=True)
    block[2, 3, 1] = np.nan
    out = forward(first, block)
    assert np.isnan(out[2]).any()
    assert np.isfinite(np.delete(out, 2, 0)).all()
