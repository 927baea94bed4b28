"""Row optimizers on the CPU: one row at a time, every operation a single IEEE operation of float32.

`hetero.optim` holds the definition: the layout of state, the reference in numpy and the torch path with equal bits.
"""

from __future__ import annotations

import numpy as np

from hetero.kernels.jit import inline
from hetero.records import F32

SGD, ADAGRAD, ROWWISE_ADAGRAD, ADAM, FTRL = range(5)

# Hyper-parameters, float32 [HYPER]: lr, eps, beta1, beta2, 1 - beta1, 1 - beta2, l1, l2, beta.
HYPER = 9


@inline
def tree_sum(values: F32, count: int) -> np.float32:
    """Sum of values[:count] by the fixed tree: padded with zeros to a power of two, upper half added to lower half.

    Overwrites `values`, which has room for the padding.
    """
    size = 1
    while size < count:
        size *= 2
    for j in range(count, size):
        values[j] = np.float32(0)
    while size > 1:
        size //= 2
        for j in range(size):
            values[j] += values[j + size]
    return values[0]


@inline
def update_row(kind: int, hyper: F32, weights: F32, state: F32, gradient: F32, scratch: F32) -> None:
    """Apply one gradient [E] to one row: weights [E], state [W - E]. scratch: at least 2 E floats, overwritten."""
    dim = len(weights)
    lr = hyper[0]
    l2 = hyper[7]
    if l2 != np.float32(0) and kind != 4:
        for j in range(dim):
            gradient[j] = gradient[j] + l2 * weights[j]
    if kind == 0:
        for j in range(dim):
            weights[j] -= lr * gradient[j]
    elif kind == 1:
        eps = hyper[1]
        for j in range(dim):
            state[j] += gradient[j] * gradient[j]
            weights[j] -= lr * gradient[j] / (np.sqrt(state[j]) + eps)
    elif kind == 2:
        for j in range(dim):
            scratch[j] = gradient[j] * gradient[j]
        state[0] += tree_sum(scratch, dim) / np.float32(dim)
        below = np.sqrt(state[0]) + hyper[1]
        for j in range(dim):
            weights[j] -= lr * gradient[j] / below
    elif kind == 3:
        _adam(hyper, weights, state, gradient)
    else:
        _ftrl(hyper, weights, state, gradient)


@inline
def _adam(hyper: F32, weights: F32, state: F32, gradient: F32) -> None:
    dim = len(weights)
    lr, eps = hyper[0], hyper[1]
    power1 = state[2 * dim] * hyper[2]
    power2 = state[2 * dim + 1] * hyper[3]
    state[2 * dim] = power1
    state[2 * dim + 1] = power2
    correct1 = np.float32(1) - power1
    correct2 = np.float32(1) - power2
    for j in range(dim):
        first = hyper[2] * state[j] + hyper[4] * gradient[j]
        second = hyper[3] * state[dim + j] + hyper[5] * (gradient[j] * gradient[j])
        state[j] = first
        state[dim + j] = second
        weights[j] -= lr * (first / correct1) / (np.sqrt(second / correct2) + eps)


@inline
def _ftrl(hyper: F32, weights: F32, state: F32, gradient: F32) -> None:
    dim = len(weights)
    lr, l1, l2, beta = hyper[0], hyper[6], hyper[7], hyper[8]
    for j in range(dim):
        z, n = state[j], state[dim + j]
        more = n + gradient[j] * gradient[j]
        root = np.sqrt(more)
        sigma = (root - np.sqrt(n)) / lr
        z = z + (gradient[j] - sigma * weights[j])
        state[j] = z
        state[dim + j] = more
        if np.abs(z) <= l1:
            weights[j] = np.float32(0)
        else:
            shrunk = z - l1 if z > np.float32(0) else z + l1
            weights[j] = -shrunk / ((beta + root) / lr + l2)
