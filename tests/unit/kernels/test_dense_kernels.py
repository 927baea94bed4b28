"""What linear layers need beside matrix products: kernels against plain numpy, and their sums whatever the threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.kernels.dense import (
    BLOCK_ROWS,
    bias_relu_kernel,
    bias_relu_reference,
    from_thin,
    last_backward_kernel,
    last_backward_reference,
    relu_backward_kernel,
    relu_backward_reference,
    thin_backward_kernel,
    thin_backward_reference,
    thin_forward_kernel,
    thin_forward_reference,
    thin_weights,
)
from hetero.kernels.rows import over_rows
from hetero.kernels.vectors import LANES
from hetero.records import F32

TOLERANCE = 2e-6


def at(array: F32) -> int:
    return int(array.ctypes.data)


def apart(matrix: F32, *, by: int) -> F32:
    """The matrix as a view of a wider one."""
    wider = np.full((matrix.shape[0], matrix.shape[1] + by), np.float32(9))
    wider[:, : matrix.shape[1]] = matrix
    return wider


def relu_backward(given: F32, values: F32, *, threads: int = 1, by: int = 0) -> tuple[F32, F32]:
    rows, columns = given.shape
    spread_given, spread_values, masked = apart(given, by=by), apart(values, by=by), apart(given, by=by)
    sums = np.zeros((-(-rows // BLOCK_ROWS), columns), np.float32)
    stride = columns + by

    def part(start: int, stop: int) -> None:
        relu_backward_kernel(
            at(spread_given),
            stride,
            at(spread_values),
            stride,
            at(masked),
            stride,
            at(sums),
            start,
            stop,
            columns,
        )

    over_rows(part, rows, threads=threads, block=BLOCK_ROWS)
    assert (masked[:, columns:] == 9).all()
    return masked[:, :columns], sums.sum(0)


def last_backward(given: F32, weights: F32, values: F32, *, threads: int = 1) -> tuple[F32, F32, F32]:
    rows, columns = values.shape
    masked = np.empty_like(values)
    sums, weight_sums = np.zeros((2, -(-rows // BLOCK_ROWS), columns), np.float32)

    def part(start: int, stop: int) -> None:
        last_backward_kernel(
            at(given),
            at(weights),
            at(values),
            columns,
            at(masked),
            columns,
            at(sums),
            at(weight_sums),
            start,
            stop,
            columns,
        )

    over_rows(part, rows, threads=threads, block=BLOCK_ROWS)
    return masked, sums.sum(0), weight_sums.sum(0)


def thin_forward(source: F32, weights: F32, bias: F32, *, threads: int = 1, by: int = 0) -> F32:
    (rows, inputs), columns = source.shape, len(bias)
    spread, turned = apart(source, by=by), thin_weights(weights)
    out = np.full((rows, columns + by), np.float32(9))

    def part(start: int, stop: int) -> None:
        thin_forward_kernel(
            at(spread),
            inputs + by,
            inputs,
            at(turned),
            at(bias),
            at(out),
            columns + by,
            start,
            stop,
            columns,
        )

    over_rows(part, rows, threads=threads)
    assert (out[:, columns:] == 9).all()
    return out[:, :columns]


def thin_backward(given: F32, values: F32, source: F32, *, threads: int = 1, by: int = 0) -> tuple[F32, F32]:
    (rows, inputs), columns = source.shape, values.shape[1]
    spread_given, spread_values, spread = apart(given, by=by), apart(values, by=by), apart(source, by=by)
    blocks = -(-rows // BLOCK_ROWS)
    sums = np.zeros((blocks, columns), np.float32)
    weight_sums = np.zeros((blocks, columns // LANES, inputs, LANES), np.float32)

    def part(start: int, stop: int) -> None:
        thin_backward_kernel(
            at(spread_given),
            columns + by,
            at(spread_values),
            columns + by,
            at(spread),
            inputs + by,
            inputs,
            at(sums),
            at(weight_sums),
            start,
            stop,
            columns,
        )

    over_rows(part, rows, threads=threads, block=BLOCK_ROWS)
    return sums.sum(0), from_thin(weight_sums.sum(0))


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(0, 135),
    inputs=st.integers(1, 14),
    columns=st.sampled_from([8, 24]),
    by=st.integers(0, 3),
    threads=st.integers(1, 3),
)
def test_thin_layers_equal_the_reference(
    seed: int, rows: int, inputs: int, columns: int, by: int, threads: int
) -> None:
    rng = np.random.default_rng(seed)
    source = rng.normal(size=(rows, inputs)).astype(np.float32)
    weights = rng.normal(size=(columns, inputs)).astype(np.float32)
    bias = rng.normal(size=columns).astype(np.float32)
    given_rows = rng.normal(size=(rows, columns)).astype(np.float32)
    out = thin_forward(source, weights, bias, threads=threads, by=by)
    wide: list[Any] = [array.astype(np.float64) for array in (source, weights, bias)]
    np.testing.assert_allclose(out, thin_forward_reference(*wide), atol=1e-5, rtol=1e-5)
    wide = [given_rows.astype(np.float64), out, source.astype(np.float64)]
    for ours, plain in zip(
        thin_backward(given_rows, out, source, threads=threads, by=by), thin_backward_reference(*wide), strict=True
    ):
        np.testing.assert_allclose(ours, plain, atol=TOLERANCE * max(rows, 1), rtol=1e-5)
    if threads > 1:
        np.testing.assert_array_equal(out, thin_forward(source, weights, bias, by=by))
        for split, alone in zip(
            thin_backward(given_rows, out, source, threads=threads, by=by),
            thin_backward(given_rows, out, source, by=by),
            strict=True,
        ):
            np.testing.assert_array_equal(split, alone)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(0, 150),
    columns=st.sampled_from([1, 3, 8, 16, 21]),
    by=st.integers(0, 3),
)
def test_kernels_equal_the_reference(seed: int, rows: int, columns: int, by: int) -> None:
    rng = np.random.default_rng(seed)
    values, given_rows = rng.normal(size=(2, rows, columns)).astype(np.float32)
    bias, weights = rng.normal(size=(2, columns)).astype(np.float32)
    out = apart(values, by=by)
    bias_relu_kernel(at(out), at(bias), 0, rows, columns, columns + by)
    np.testing.assert_array_equal(out[:, :columns], bias_relu_reference(values, bias))
    assert (out[:, columns:] == 9).all()

    outputs = np.maximum(values, 0)
    masked, sums = relu_backward(given_rows, outputs, by=by)
    expected, expected_sums = relu_backward_reference(given_rows.astype(np.float64), outputs)
    np.testing.assert_array_equal(masked, expected)
    np.testing.assert_allclose(sums, expected_sums, atol=TOLERANCE * max(rows, 1), rtol=TOLERANCE)

    single = rng.normal(size=rows).astype(np.float32)
    found = last_backward(single, weights, outputs)
    wide: list[Any] = [array.astype(np.float64) for array in (single, weights, outputs)]
    wanted = last_backward_reference(*wide)
    for ours, plain in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, plain, atol=TOLERANCE * max(rows, 1), rtol=TOLERANCE)


def test_sums_do_not_depend_on_threads() -> None:
    rng = np.random.default_rng(1)
    values, given_rows = rng.normal(size=(2, 333, 21)).astype(np.float32)
    single, weights = rng.normal(size=333).astype(np.float32), rng.normal(size=21).astype(np.float32)
    for threads in (2, 4):
        for one, other in zip(
            (*relu_backward(given_rows, values), *last_backward(single, weights, values)),
            (
                *relu_backward(given_rows, values, threads=threads),
                *last_backward(single, weights, values, threads=threads),
            ),
            strict=True,
        ):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("column", [0, 9])
def test_not_a_number_is_not_hidden(column: int) -> None:
    """Columns 0 and 9 of 10: one in a whole vector, one in the rest."""
    values = np.ones((2, 10), np.float32)
    values[1, column] = np.nan
    out = values.copy()
    bias_relu_kernel(at(out), at(np.zeros(10, np.float32)), 0, 2, 10, 10)
    assert np.isnan(out[1, column])
    masked, _ = relu_backward(np.full((2, 10), 3, np.float32), values)
    assert masked[1, column] == 3
