"""`hetero.kernels.dense` where values and gradients are bf16 and sums float32, on the CPU: what a layer
`relu(x @ w.T + b)` needs beside its matrix products, each in one pass over memory.

    backward  g = gradient where y > 0, else 0, in place; d b = sum of g over rows         y, g bf16 [B, H]
    dot       one linear output after it: u = y @ w                                        w float32 [H], u float32 [B]
    last      back through that output: g = u * w where y > 0, else 0; d b = sum of g, d w = sum of u * y over rows

H is a multiple of 8. Sums take unrounded g, in blocks of 64 rows, then over blocks in order; so they do not depend on
the number of threads. Not-a-numbers pass through. The references are those of `hetero.kernels.dense`.
"""

from __future__ import annotations

import numpy as np

from hetero.kernels.dense import BLOCK_ROWS
from hetero.kernels.jit import kernel
from hetero.kernels.vectors import (
    LANES,
    add8,
    load8,
    load8_bf16,
    multiply_add8,
    splat8,
    store8,
    store8_bf16,
    sums8,
    where_positive8,
    zero8,
)

# ---------------------------------------------------------------------------------------------- kernels
# Memory is passed by address; matrices are contiguous.


@kernel
def relu_backward_kernel(given: int, values: int, sums: int, start: int, stop: int, columns: int) -> None:
    """Rows [start, stop), whole blocks, in place. sums: float32 [blocks, columns], zeros at first."""
    two, four, width = np.uint64(2), np.uint64(4), np.uint64(columns)
    for row in range(start, stop):
        at = two * np.uint64(row) * width
        total = np.uint64(sums) + four * (np.uint64(row) // np.uint64(BLOCK_ROWS)) * width
        column = np.uint64(0)
        while column < width:
            place = at + two * column
            gradient = where_positive8(load8_bf16(np.uint64(values) + place), load8_bf16(np.uint64(given) + place))
            store8_bf16(np.uint64(given) + place, gradient)
            added = total + four * column
            store8(added, add8(load8(added), gradient))
            column += np.uint64(LANES)


@kernel
def dot_kernel(values: int, weights: int, out: int, start: int, stop: int, columns: int) -> None:
    """out [start, stop), float32, room for seven more behind `stop`. Eight rows are summed up together."""
    two, four, width = np.uint64(2), np.uint64(4), np.uint64(columns)
    line, last = two * width, np.uint64(stop - 1)
    for row in range(start, stop, LANES):
        # rows past the last are the last one again, and what they give is written over or not read
        first = np.uint64(row)
        at0, at1 = np.uint64(values) + line * first, np.uint64(values) + line * min(first + np.uint64(1), last)
        at2 = np.uint64(values) + line * min(first + np.uint64(2), last)
        at3 = np.uint64(values) + line * min(first + np.uint64(3), last)
        at4 = np.uint64(values) + line * min(first + np.uint64(4), last)
        at5 = np.uint64(values) + line * min(first + np.uint64(5), last)
        at6 = np.uint64(values) + line * min(first + np.uint64(6), last)
        at7 = np.uint64(values) + line * min(first + np.uint64(7), last)
        zero = zero8()
        sum0, sum1, sum2, sum3, sum4, sum5, sum6, sum7 = zero, zero, zero, zero, zero, zero, zero, zero
        column = np.uint64(0)
        while column < width:
            factors, place = load8(np.uint64(weights) + four * column), two * column
            sum0 = multiply_add8(load8_bf16(at0 + place), factors, sum0)
            sum1 = multiply_add8(load8_bf16(at1 + place), factors, sum1)
            sum2 = multiply_add8(load8_bf16(at2 + place), factors, sum2)
            sum3 = multiply_add8(load8_bf16(at3 + place), factors, sum3)
            sum4 = multiply_add8(load8_bf16(at4 + place), factors, sum4)
            sum5 = multiply_add8(load8_bf16(at5 + place), factors, sum5)
            sum6 = multiply_add8(load8_bf16(at6 + place), factors, sum6)
            sum7 = multiply_add8(load8_bf16(at7 + place), factors, sum7)
            column += np.uint64(LANES)
        store8(np.uint64(out) + four * first, sums8(sum0, sum1, sum2, sum3, sum4, sum5, sum6, sum7))


@kernel
def last_backward_kernel(
    given: int, weights: int, values: int, masked: int, sums: int, weight_sums: int, start: int, stop: int, columns: int
) -> None:
    """Rows [start, stop), whole blocks. given: u float32 [B]. masked: bf16. sums, weight_sums: float32
    [blocks, columns], zeros at first."""
    two, four, width = np.uint64(2), np.uint64(4), np.uint64(columns)
    for row in range(start, stop):
        scale = splat8(np.uint64(given) + four * np.uint64(row))
        at = two * np.uint64(row) * width
        block = four * (np.uint64(row) // np.uint64(BLOCK_ROWS)) * width
        column = np.uint64(0)
        while column < width:
            place, added = at + two * column, block + four * column
            value = load8_bf16(np.uint64(values) + place)
            factors = load8(np.uint64(weights) + four * column)
            gradient = where_positive8(value, multiply_add8(scale, factors, zero8()))
            store8_bf16(np.uint64(masked) + place, gradient)
            store8(np.uint64(sums) + added, add8(load8(np.uint64(sums) + added), gradient))
            weight_total = np.uint64(weight_sums) + added
            store8(weight_total, multiply_add8(scale, value, load8(weight_total)))
            column += np.uint64(LANES)
