"""What a layer `relu(x @ w.T + b)` needs beside its matrix products, each in one pass over memory, on the CPU.

    forward   y = max(y + b, 0), in place                      y float32 [B, H], b float32 [H]
    backward  g = gradient where y > 0, else 0; d b = sum of g over rows
    last      for one linear output after it (weights w [H], gradient u [B]):
              g = u * w where y > 0, else 0; d b = sum of g, d w = sum of u * y over rows
    thin      a first layer of few inputs x [B, K], whose products are too small for a library to be good at:
              y = max(x @ w.T + b, 0); and where x needs no gradient, d b and d w = g.T @ x without storing g

Not-a-numbers pass through all of them. Sums over rows are taken in blocks of 64 rows, then over blocks in order; so
they do not depend on the number of threads. Rows may lie further apart than their columns need (`stride`).
"""

from __future__ import annotations

import numpy as np

from hetero.kernels.address import floats_at
from hetero.kernels.jit import kernel
from hetero.kernels.vectors import (
    LANES,
    add8,
    load8,
    multiply_add8,
    not_below_zero8,
    splat8,
    store8,
    where_positive8,
    zero8,
)
from hetero.records import F32

BLOCK_ROWS = 64


def thin_weights(weights: F32) -> F32:
    """Weights [H, K] as the thin kernels walk over them: [H / 8, K, 8], for H a multiple of 8."""
    outputs, inputs = weights.shape
    return np.ascontiguousarray(weights.reshape(outputs // LANES, LANES, inputs).transpose(0, 2, 1))


def from_thin(weights: F32) -> F32:
    """[H / 8, K, 8] -> [H, K]."""
    return np.ascontiguousarray(weights.transpose(0, 2, 1)).reshape(-1, weights.shape[1])


# ---------------------------------------------------------------------------------------------- kernels
# Memory is passed by address, strides in floats.


@kernel
def bias_relu_kernel(values: int, bias: int, start: int, stop: int, columns: int, stride: int) -> None:
    """Rows [start, stop) of y, in place."""
    four, lanes = np.uint64(4), np.uint64(LANES)
    whole = np.uint64(columns) // lanes * lanes
    shift = floats_at(np.uint64(bias), columns)
    for row in range(start, stop):
        at = np.uint64(values) + four * np.uint64(row) * np.uint64(stride)
        column = np.uint64(0)
        while column < whole:
            place = at + four * column
            store8(place, not_below_zero8(add8(load8(place), load8(np.uint64(bias) + four * column))))
            column += lanes
        rest = floats_at(at, columns)
        while column < np.uint64(columns):
            value = rest[column] + shift[column]
            rest[column] = np.float32(0) if value < np.float32(0) else value
            column += np.uint64(1)


@kernel
def relu_backward_kernel(
    given: int,
    given_stride: int,
    values: int,
    stride: int,
    masked: int,
    masked_stride: int,
    sums: int,
    start: int,
    stop: int,
    columns: int,
) -> None:
    """Rows [start, stop), whole blocks: `masked` may be `given`. sums: [blocks, columns], zeros at first."""
    four, lanes = np.uint64(4), np.uint64(LANES)
    whole = np.uint64(columns) // lanes * lanes
    for row in range(start, stop):
        at = np.uint64(row)
        source = np.uint64(given) + four * at * np.uint64(given_stride)
        held = np.uint64(values) + four * at * np.uint64(stride)
        to = np.uint64(masked) + four * at * np.uint64(masked_stride)
        total = np.uint64(sums) + four * (at // np.uint64(BLOCK_ROWS)) * np.uint64(columns)
        column = np.uint64(0)
        while column < whole:
            place = four * column
            gradient = where_positive8(load8(held + place), load8(source + place))
            store8(to + place, gradient)
            store8(total + place, add8(load8(total + place), gradient))
            column += lanes
        gradients, outputs = floats_at(source, columns), floats_at(held, columns)
        written, added = floats_at(to, columns), floats_at(total, columns)
        while column < np.uint64(columns):
            value = np.float32(0) if outputs[column] <= np.float32(0) else gradients[column]
            written[column] = value
            added[column] += value
            column += np.uint64(1)


@kernel
def last_backward_kernel(
    given: int,
    weights: int,
    values: int,
    stride: int,
    masked: int,
    masked_stride: int,
    sums: int,
    weight_sums: int,
    start: int,
    stop: int,
    columns: int,
) -> None:
    """Rows [start, stop), whole blocks. given: u [B]. sums, weight_sums: [blocks, columns], zeros at first."""
    four, lanes = np.uint64(4), np.uint64(LANES)
    whole = np.uint64(columns) // lanes * lanes
    factors = floats_at(np.uint64(weights), columns)
    for row in range(start, stop):
        at = np.uint64(row)
        scale = splat8(np.uint64(given) + four * at)
        single = floats_at(np.uint64(given) + four * at, 1)[0]
        held = np.uint64(values) + four * at * np.uint64(stride)
        to = np.uint64(masked) + four * at * np.uint64(masked_stride)
        block = four * (at // np.uint64(BLOCK_ROWS)) * np.uint64(columns)
        total, weight_total = np.uint64(sums) + block, np.uint64(weight_sums) + block
        column = np.uint64(0)
        while column < whole:
            place = four * column
            value = load8(held + place)
            gradient = where_positive8(value, multiply_add8(scale, load8(np.uint64(weights) + place), zero8()))
            store8(to + place, gradient)
            store8(total + place, add8(load8(total + place), gradient))
            store8(weight_total + place, multiply_add8(scale, value, load8(weight_total + place)))
            column += lanes
        outputs, written = floats_at(held, columns), floats_at(to, columns)
        added, weight_added = floats_at(total, columns), floats_at(weight_total, columns)
        while column < np.uint64(columns):
            change = np.float32(0) if outputs[column] <= np.float32(0) else single * factors[column]
            written[column] = change
            added[column] += change
            weight_added[column] += single * outputs[column]
            column += np.uint64(1)


@kernel
def thin_forward_kernel(
    source: int,
    source_stride: int,
    inputs: int,
    weights: int,
    bias: int,
    out: int,
    stride: int,
    start: int,
    stop: int,
    columns: int,
) -> None:
    """Rows [start, stop) of y. weights: as `thin_weights` lays them out. Four rows share their loads."""
    four, vector = np.uint64(4), np.uint64(4 * LANES)
    apart, away = np.uint64(4 * source_stride), np.uint64(4 * stride)
    for row in range(start, stop, 4):
        # rows past the last are the last one again, and write what it writes
        rows0, rows1 = np.uint64(row), np.uint64(min(row + 1, stop - 1))
        rows2, rows3 = np.uint64(min(row + 2, stop - 1)), np.uint64(min(row + 3, stop - 1))
        for column in range(0, columns, LANES):
            place = four * np.uint64(column)
            weight = np.uint64(weights) + place * np.uint64(inputs)
            at0, at1 = np.uint64(source) + rows0 * apart, np.uint64(source) + rows1 * apart
            at2, at3 = np.uint64(source) + rows2 * apart, np.uint64(source) + rows3 * apart
            sum0 = load8(np.uint64(bias) + place)
            sum1, sum2, sum3 = sum0, sum0, sum0
            for _ in range(inputs):
                factors = load8(weight)
                sum0 = multiply_add8(splat8(at0), factors, sum0)
                sum1 = multiply_add8(splat8(at1), factors, sum1)
                sum2 = multiply_add8(splat8(at2), factors, sum2)
                sum3 = multiply_add8(splat8(at3), factors, sum3)
                weight += vector
                at0, at1, at2, at3 = at0 + four, at1 + four, at2 + four, at3 + four
            to = np.uint64(out) + place
            store8(to + rows0 * away, not_below_zero8(sum0))
            store8(to + rows1 * away, not_below_zero8(sum1))
            store8(to + rows2 * away, not_below_zero8(sum2))
            store8(to + rows3 * away, not_below_zero8(sum3))


@kernel
def thin_backward_kernel(
    given: int,
    given_stride: int,
    values: int,
    stride: int,
    source: int,
    source_stride: int,
    inputs: int,
    sums: int,
    weight_sums: int,
    start: int,
    stop: int,
    columns: int,
) -> None:
    """Rows [start, stop), whole blocks. sums: [blocks, H], weight_sums: [blocks, H / 8, K, 8], zeros at first."""
    four, line, vector = np.uint64(4), np.uint64(4 * columns), np.uint64(4 * LANES)
    apart, away, held = np.uint64(4 * given_stride), np.uint64(4 * stride), np.uint64(4 * source_stride)
    for row in range(start, stop, 4):
        block = np.uint64(row) // np.uint64(BLOCK_ROWS)
        # rows past the last are the last one again, and count as nothing
        rows0, rows1 = np.uint64(row), np.uint64(min(row + 1, stop - 1))
        rows2, rows3 = np.uint64(min(row + 2, stop - 1)), np.uint64(min(row + 3, stop - 1))
        for column in range(0, columns, LANES):
            place = four * np.uint64(column)
            output, gradient = np.uint64(values) + place, np.uint64(given) + place
            masked0 = where_positive8(load8(output + rows0 * away), load8(gradient + rows0 * apart))
            masked1, masked2, masked3 = zero8(), zero8(), zero8()
            if row + 1 < stop:
                masked1 = where_positive8(load8(output + rows1 * away), load8(gradient + rows1 * apart))
            if row + 2 < stop:
                masked2 = where_positive8(load8(output + rows2 * away), load8(gradient + rows2 * apart))
            if row + 3 < stop:
                masked3 = where_positive8(load8(output + rows3 * away), load8(gradient + rows3 * apart))
            total = np.uint64(sums) + block * line + place
            store8(total, add8(load8(total), add8(add8(masked0, masked1), add8(masked2, masked3))))
            at0, at1 = np.uint64(source) + rows0 * held, np.uint64(source) + rows1 * held
            at2, at3 = np.uint64(source) + rows2 * held, np.uint64(source) + rows3 * held
            to = np.uint64(weight_sums) + (block * line + place) * np.uint64(inputs)
            for _ in range(inputs):
                added = multiply_add8(splat8(at0), masked0, load8(to))
                added = multiply_add8(splat8(at1), masked1, added)
                added = multiply_add8(splat8(at2), masked2, added)
                store8(to, multiply_add8(splat8(at3), masked3, added))
                to += vector
                at0, at1, at2, at3 = at0 + four, at1 + four, at2 + four, at3 + four


# ---------------------------------------------------------------------------------------------- references


def bias_relu_reference(values: F32, bias: F32) -> F32:
    """y of the forward pass, in plain numpy."""
    shifted: F32 = np.maximum(values + bias, 0)
    return shifted


def thin_forward_reference(source: F32, weights: F32, bias: F32) -> F32:
    """y of a thin layer, in plain numpy. weights: [H, K]."""
    return bias_relu_reference(source @ weights.T, bias)


def relu_backward_reference(given: F32, values: F32) -> tuple[F32, F32]:
    """g and d b of the backward pass, in plain numpy."""
    masked: F32 = np.where(values <= 0, np.zeros((), given.dtype), given)
    sums: F32 = masked.sum(0)
    return masked, sums


def thin_backward_reference(given: F32, values: F32, source: F32) -> tuple[F32, F32]:
    """d b [H] and d w [H, K] of a thin layer, in plain numpy."""
    masked, sums = relu_backward_reference(given, values)
    weight_sums: F32 = masked.T @ source
    return sums, weight_sums


def last_backward_reference(given: F32, weights: F32, values: F32) -> tuple[F32, F32, F32]:
    """g, d b and d w of the last layer's backward pass, in plain numpy."""
    masked, sums = relu_backward_reference(given[:, None] * weights, values)
    weight_sums: F32 = given @ values
    return masked, sums, weight_sums
