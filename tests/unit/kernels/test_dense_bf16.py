"""Kernels over bf16 against the float32 references, and the rounding of bf16 against torch's."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.kernels.dense import BLOCK_ROWS, last_backward_reference, relu_backward_reference
from hetero.kernels.dense_bf16 import dot_kernel, last_backward_kernel, relu_backward_kernel
from hetero.kernels.jit import kernel
from hetero.kernels.rows import over_rows
from hetero.kernels.vectors import LANES, load8, load8_bf16, store8, store8_bf16
from hetero.records import F32

Bits = npt.NDArray[np.uint16]


@kernel
def round_kernel(source: int, to: int) -> None:
    """Eight floats to bf16."""
    store8_bf16(np.uint64(to), load8(np.uint64(source)))


@kernel
def widen_kernel(source: int, to: int) -> None:
    """Eight bf16 to floats."""
    store8(np.uint64(to), load8_bf16(np.uint64(source)))


def at(array: npt.NDArray[np.generic]) -> int:
    return int(array.ctypes.data)


def bf16_of(values: F32) -> Bits:
    bits: Bits = torch.from_numpy(values).bfloat16().view(torch.int16).numpy().view(np.uint16)
    return bits


def wide(bits: Bits) -> F32:
    values: F32 = (bits.astype(np.uint32) << 16).view(np.float32)
    return values


def random_bf16(random: np.random.Generator, *shape: int) -> Bits:
    return bf16_of(random.normal(size=shape).astype(np.float32))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 2**32 - 1), min_size=LANES, max_size=LANES))
def test_rounding_is_torchs(bits: list[int]) -> None:
    values = np.array(bits, np.uint32).view(np.float32)
    found, expected = np.zeros(LANES, np.uint16), bf16_of(values)
    round_kernel(at(values), at(found))
    there = ~np.isnan(values)
    np.testing.assert_array_equal(found[there], expected[there])
    assert np.isnan(wide(found)[~there]).all()
    back = np.zeros(LANES, np.float32)
    widen_kernel(at(found), at(back))
    np.testing.assert_array_equal(back, wide(found))


@pytest.mark.parametrize(("rows", "columns"), [(1, 8), (64, 16), (131, 40)])
@pytest.mark.parametrize("threads", [1, 2])
def test_backward_is_the_references(rows: int, columns: int, threads: int) -> None:
    random = np.random.default_rng(0)
    gradient, values = random_bf16(random, rows, columns), random_bf16(random, rows, columns)
    masked, sums = relu_backward_reference(wide(gradient), wide(values))
    found = np.zeros((-(-rows // BLOCK_ROWS), columns), np.float32)
    over_rows(
        lambda start, stop: relu_backward_kernel(at(gradient), at(values), at(found), start, stop, columns),
        rows,
        threads=threads,
        block=BLOCK_ROWS,
    )
    np.testing.assert_array_equal(wide(gradient), masked)
    np.testing.assert_allclose(found.sum(0), sums, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("rows", "columns"), [(1, 8), (7, 16), (64, 16), (131, 40)])
def test_the_last_output_and_back(rows: int, columns: int) -> None:
    random = np.random.default_rng(1)
    values, weights = random_bf16(random, rows, columns), random.normal(size=columns).astype(np.float32)
    out = np.zeros(rows + LANES, np.float32)
    dot_kernel(at(values), at(weights), at(out), 0, rows, columns)
    np.testing.assert_allclose(out[:rows], wide(values) @ weights, rtol=1e-5, atol=1e-5)
    given_to = random.normal(size=rows).astype(np.float32)
    masked = np.zeros_like(values)
    sums, weight_sums = (np.zeros((-(-rows // BLOCK_ROWS), columns), np.float32) for _ in range(2))
    places = at(given_to), at(weights), at(values), at(masked), at(sums), at(weight_sums)
    last_backward_kernel(*places, 0, rows, columns)
    expected, total, weight_total = last_backward_reference(given_to, weights, wide(values))
    np.testing.assert_array_equal(masked, bf16_of(expected))
    np.testing.assert_allclose(sums.sum(0), total, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(weight_sums.sum(0), weight_total, rtol=1e-5, atol=1e-5)
