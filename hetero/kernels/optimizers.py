"""Row optimizers on the CPU: one row at a time, every operation a single IEEE operation of float32.

`hetero.optim` holds the definition: the layout of state, the reference in numpy and the torch path with equal bits.
Rows, gradients and hyper-parameters are passed by address: an array as an argument costs more than a row's arithmetic.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.kernels.address import floats_at, uint32_at
from hetero.kernels.jit import always_inline, inline
from hetero.kernels.vectors import LANES, add8, all_below8, divide8, fill8, load8, multiply8, store8, subtract8
from hetero.records import F32

SGD, ADAGRAD, ROWWISE_ADAGRAD, ADAM, FTRL = range(5)

# Hyper-parameters, float32 [HYPER]: lr, eps, beta1, beta2, 1 - beta1, 1 - beta2, l1, l2, beta.
HYPER = 9

LARGEST_GRADIENT = 2.0**56
"""From here on a gradient counts as not finite: sums of its squares would be infinite, and a row never recover."""
_LARGEST = np.float32(LARGEST_GRADIENT)
_LARGEST_BITS = np.uint32(np.float32(LARGEST_GRADIENT).view(np.uint32))
_LINE_FLOATS = 16
USUAL_DIM = 16


def update_room(dim: int) -> F32:
    """The scratch memory of `update_row`, float32 [3 E], on a cache line's boundary: what vectors that straddle two
    lines have stored comes back slowly."""
    memory = np.empty(3 * dim + _LINE_FLOATS, np.float32)
    start = -(int(memory.ctypes.data) // 4) % _LINE_FLOATS
    return memory[start : start + 3 * dim]


@always_inline
def _tree_of_eight(address: np.uint64) -> Any:
    """Written out: a loop of a few rounds costs more than its additions."""
    values = floats_at(address, 8)
    even = (values[0] + values[4]) + (values[2] + values[6])
    return even + ((values[1] + values[5]) + (values[3] + values[7]))


@inline
def tree_sum(address: np.uint64, count: int) -> Any:
    """Sum of `count` floats by the fixed tree: padded with zeros to a power of two, upper half added to lower half.

    Overwrites them, and has room for the padding behind them.
    """
    size = 1
    while size < count:
        size *= 2
    values = floats_at(address, size)
    for j in range(count, size):
        values[j] = np.float32(0)
    while size > 8:
        size //= 2
        for j in range(size):
            values[j] += values[j + size]
    if size == 8:
        return _tree_of_eight(address)
    if size == 4:
        return (values[0] + values[2]) + (values[1] + values[3])
    if size == 2:
        return values[0] + values[1]
    return values[0]


@always_inline
def is_finite(address: np.uint64, count: int) -> bool:
    """Whether `count` floats are all numbers below LARGEST_GRADIENT in magnitude."""
    if count % LANES == 0:
        good = True
        for j in range(count // LANES):
            good &= all_below8(load8(address + np.uint64(4 * LANES * j)), _LARGEST)
        return good
    bits = uint32_at(address, count)
    worst = np.uint32(0)
    for j in range(count):
        worst = max(worst, bits[j] & np.uint32(0x7FFFFFFF))
    return bool(worst < _LARGEST_BITS)


@always_inline
def update_row(kind: int, hyper: np.uint64, row: np.uint64, dim: int, gradient: np.uint64, scratch: np.uint64) -> None:
    """Apply one gradient [E] to one row [W]. scratch: `update_room`, overwritten."""
    given = gradient
    if kind != 4 and floats_at(hyper, 9)[7] != np.float32(0):
        given = scratch + np.uint64(8 * dim)
        _add_penalty(hyper, row, dim, gradient, given)
    if kind == 0:
        _sgd(hyper, row, dim, given)
    elif kind == 1:
        _adagrad(hyper, row, dim, given)
    elif kind == 2:
        _rowwise_adagrad(hyper, row, dim, given, scratch)
    elif kind == 3:
        _adam(hyper, row, dim, given)
    else:
        _ftrl(hyper, row, dim, given)


@inline
def _add_penalty(hyper: np.uint64, row: np.uint64, dim: int, gradient: np.uint64, penalized: np.uint64) -> None:
    """penalized = gradient + l2 * weights, for the optimizers whose l2 is a penalty on the loss."""
    l2 = floats_at(hyper, 9)[7]
    weights, g, out = floats_at(row, dim), floats_at(gradient, dim), floats_at(penalized, dim)
    for j in range(dim):
        out[j] = g[j] + l2 * weights[j]


@inline
def _sgd(hyper: np.uint64, row: np.uint64, dim: int, gradient: np.uint64) -> None:
    lr = floats_at(hyper, 9)[0]
    weights, g = floats_at(row, dim), floats_at(gradient, dim)
    for j in range(dim):
        weights[j] -= lr * g[j]


@inline
def _adagrad(hyper: np.uint64, row: np.uint64, dim: int, gradient: np.uint64) -> None:
    h = floats_at(hyper, 9)
    lr, eps = h[0], h[1]
    values, g = floats_at(row, 2 * dim), floats_at(gradient, dim)
    for j in range(dim):
        total = values[dim + j] + g[j] * g[j]
        values[dim + j] = total
        values[j] -= lr * g[j] / (np.sqrt(total) + eps)


@always_inline
def _rowwise_adagrad(hyper: np.uint64, row: np.uint64, dim: int, gradient: np.uint64, scratch: np.uint64) -> None:
    h = floats_at(hyper, 9)
    lr, eps = h[0], h[1]
    values = floats_at(row, dim + 1)
    whole = dim % LANES == 0
    squares = _sum_of_squares8(gradient, dim, scratch) if whole else _sum_of_squares(gradient, dim, scratch)
    total = values[dim] + squares / np.float32(dim)
    values[dim] = total
    below = np.sqrt(total) + eps
    if whole:
        _divided_step8(lr, row, dim, gradient, below)
        return
    g = floats_at(gradient, dim)
    for j in range(dim):
        values[j] -= lr * g[j] / below


@always_inline
def _divided_step8(lr: np.float32, row: np.uint64, dim: int, gradient: np.uint64, below: np.float32) -> None:
    """row -= lr * gradient / below, by whole vectors."""
    rate, divisor = fill8(lr), fill8(below)
    for j in range(dim // LANES):
        at = np.uint64(4 * LANES * j)
        change = divide8(multiply8(rate, load8(gradient + at)), divisor)
        store8(row + at, subtract8(load8(row + at), change))


@inline
def _sum_of_squares(gradient: np.uint64, dim: int, scratch: np.uint64) -> Any:
    g, squares = floats_at(gradient, dim), floats_at(scratch, dim)
    for j in range(dim):
        squares[j] = g[j] * g[j]
    return tree_sum(scratch, dim)


@always_inline
def _sum_of_squares8(gradient: np.uint64, dim: int, scratch: np.uint64) -> Any:
    """The same tree over whole vectors: its upper levels add vectors, those that are all padding are left out."""
    count, line = dim // LANES, 4 * LANES
    half = 1
    while 2 * half < count:
        half *= 2
    for j in range(min(half, count)):
        g = load8(gradient + np.uint64(line * j))
        squares = multiply8(g, g)
        if j + half < count:
            g = load8(gradient + np.uint64(line * (j + half)))
            squares = add8(squares, multiply8(g, g))
        store8(scratch + np.uint64(line * j), squares)
    while half > 1:
        half //= 2
        for j in range(half):
            low = scratch + np.uint64(line * j)
            store8(low, add8(load8(low), load8(low + np.uint64(line * half))))
    return _tree_of_eight(scratch)


@inline
def _adam(hyper: np.uint64, row: np.uint64, dim: int, gradient: np.uint64) -> None:
    h = floats_at(hyper, 9)
    lr, eps, beta1, beta2, rest1, rest2 = h[0], h[1], h[2], h[3], h[4], h[5]
    values, g = floats_at(row, 3 * dim + 2), floats_at(gradient, dim)
    power1 = values[3 * dim] * beta1
    power2 = values[3 * dim + 1] * beta2
    values[3 * dim] = power1
    values[3 * dim + 1] = power2
    correct1 = np.float32(1) - power1
    correct2 = np.float32(1) - power2
    for j in range(dim):
        first = beta1 * values[dim + j] + rest1 * g[j]
        second = beta2 * values[2 * dim + j] + rest2 * (g[j] * g[j])
        values[dim + j] = first
        values[2 * dim + j] = second
        values[j] -= lr * (first / correct1) / (np.sqrt(second / correct2) + eps)


@inline
def _ftrl(hyper: np.uint64, row: np.uint64, dim: int, gradient: np.uint64) -> None:
    h = floats_at(hyper, 9)
    lr, l1, l2, beta = h[0], h[6], h[7], h[8]
    values, g = floats_at(row, 3 * dim), floats_at(gradient, dim)
    for j in range(dim):
        z, n = values[dim + j], values[2 * dim + j]
        more = n + g[j] * g[j]
        root = np.sqrt(more)
        sigma = (root - np.sqrt(n)) / lr
        z = z + (g[j] - sigma * values[j])
        values[dim + j] = z
        values[2 * dim + j] = more
        if np.abs(z) <= l1:
            values[j] = np.float32(0)
        else:
            shrunk = z - l1 if z > np.float32(0) else z + l1
            values[j] = -shrunk / ((beta + root) / lr + l2)
