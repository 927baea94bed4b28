"""What a row optimizer is: how its state lies behind the weights, how it begins, and its update in plain numpy.

A row is float32 [W]: weights [E], then state:

    sgd              (nothing)
    adagrad          sum of squares [E]
    rowwise_adagrad  sum of mean squares [1]
    adam             first moment [E], second moment [E], beta1^t, beta2^t
    ftrl             z [E], n [E]

Sources: Adagrad, Duchi et al. 2011; row-wise, Gupta et al. 2014 as in DLRM; Adam, Kingma and Ba 2015, on the rows a
step touches, each with its own t; FTRL-proximal, McMahan et al. 2013. Operations are float32 and in the order written
here; the mean of row-wise Adagrad adds by a fixed tree (`tree_mean`).
"""

from __future__ import annotations

import numpy as np

from hetero.kernels.optimizers import ADAGRAD, ADAM, FTRL, HYPER, ROWWISE_ADAGRAD, SGD
from hetero.records import F32, GroupSpec, RowOptimizer, RowOptimizerSpec

KIND = {
    RowOptimizer.SGD: SGD,
    RowOptimizer.ADAGRAD: ADAGRAD,
    RowOptimizer.ROWWISE_ADAGRAD: ROWWISE_ADAGRAD,
    RowOptimizer.ADAM: ADAM,
    RowOptimizer.FTRL: FTRL,
}

STATISTICS = ("shows", "clicks", "seen", "came")
"""What a row counts behind its state where its table drops rows: shows and clicks as of the day it was seen last, that
day and the day it came. Days are held plus 1, so that 0 is never."""


def state_size(spec: RowOptimizerSpec, dim: int) -> int:
    """Floats of state per row."""
    return sum(size for _, size in state_parts(spec, dim))


def row_width(spec: RowOptimizerSpec, dim: int) -> int:
    """Floats per row: W = dim + state."""
    return dim + state_size(spec, dim)


def group_width(group: GroupSpec) -> int:
    """Floats per row of a group: W = dim + state + statistics."""
    return row_width(group.optimizer, group.dim) + (len(STATISTICS) if group.eviction else 0)


def lease_width(group: GroupSpec) -> int:
    """Floats of a row while a tower leases it: behind the row, where keys are admitted, 1 + the steps that saw a key
    which has no row yet, and 0 for one that has."""
    return group_width(group) + (1 if group.admission else 0)


def gradient_width(group: GroupSpec) -> int:
    """Floats of what a tower says of a row after a step: its gradient [E], then shows and clicks where they count."""
    scored = group.admission is not None and group.admission.score is not None
    return group.dim + (2 if group.eviction or scored else 0)


def state_parts(spec: RowOptimizerSpec, dim: int) -> tuple[tuple[str, int], ...]:
    """Names and sizes in floats of what lies behind a row's weights, in order."""
    return {
        RowOptimizer.SGD: (),
        RowOptimizer.ADAGRAD: (("sum_of_squares", dim),),
        RowOptimizer.ROWWISE_ADAGRAD: (("sum_of_mean_squares", 1),),
        RowOptimizer.ADAM: (("first_moment", dim), ("second_moment", dim), ("beta1_power", 1), ("beta2_power", 1)),
        RowOptimizer.FTRL: (("z", dim), ("n", dim)),
    }[spec.kind]


def hyper_array(spec: RowOptimizerSpec) -> F32:
    """Hyper-parameters as the kernels take them, float32 [HYPER]."""
    one = np.float32(1)
    beta1, beta2 = np.float32(spec.beta1), np.float32(spec.beta2)
    values = [spec.lr, spec.eps, beta1, beta2, one - beta1, one - beta2, spec.l1, spec.l2, spec.beta]
    hyper = np.array(values, np.float32)
    assert len(hyper) == HYPER
    return hyper


def first_state(spec: RowOptimizerSpec, weights: F32) -> F32:
    """State of new rows, float32 [n, W - E], from their first weights [n, E].

    FTRL's z is what makes the first weights their own solution; its n and Adagrad's sums begin at
    initial_accumulator.
    """
    rows, dim = weights.shape
    state = np.zeros((rows, state_size(spec, dim)), np.float32)
    if spec.kind in (RowOptimizer.ADAGRAD, RowOptimizer.ROWWISE_ADAGRAD):
        state[:] = np.float32(spec.initial_accumulator)
    elif spec.kind is RowOptimizer.ADAM:
        state[:, 2 * dim :] = np.float32(1)
    elif spec.kind is RowOptimizer.FTRL:
        hyper = hyper_array(spec)
        lr, l1, l2, beta = hyper[0], hyper[6], hyper[7], hyper[8]
        n = np.float32(spec.initial_accumulator)
        state[:, dim:] = n
        state[:, :dim] = -(weights * ((beta + np.sqrt(n)) / lr + l2)) - np.sign(weights) * l1
    return state


def tree_mean(values: F32) -> F32:
    """Mean over the last axis [n, E] by the fixed tree: pad with zeros to a power of two, add upper to lower half."""
    dim = values.shape[-1]
    size = 1 << (dim - 1).bit_length()
    padded = np.zeros((*values.shape[:-1], size), np.float32)
    padded[..., :dim] = values
    while size > 1:
        size //= 2
        padded = padded[..., :size] + padded[..., size:]
    return (padded[..., 0] / np.float32(dim)).astype(np.float32, copy=False)


def update_reference(spec: RowOptimizerSpec, rows: F32, gradients: F32) -> F32:
    """Rows [n, W] after one gradient each [n, E], in numpy: what kernel and torch path are tested against."""
    dim = gradients.shape[1]
    lr, eps, beta1, beta2, rest1, rest2, l1, l2, beta = hyper_array(spec)
    weights, state, g = rows[:, :dim].copy(), rows[:, dim:].copy(), gradients
    if l2 != 0 and spec.kind is not RowOptimizer.FTRL:
        g = g + l2 * weights
    if spec.kind is RowOptimizer.SGD:
        weights -= lr * g
    elif spec.kind is RowOptimizer.ADAGRAD:
        state += g * g
        weights -= lr * g / (np.sqrt(state) + eps)
    elif spec.kind is RowOptimizer.ROWWISE_ADAGRAD:
        state[:, 0] += tree_mean(g * g)
        weights -= lr * g / (np.sqrt(state) + eps)
    elif spec.kind is RowOptimizer.ADAM:
        state[:, :dim] = beta1 * state[:, :dim] + rest1 * g
        state[:, dim : 2 * dim] = beta2 * state[:, dim : 2 * dim] + rest2 * (g * g)
        state[:, 2 * dim] *= beta1
        state[:, 2 * dim + 1] *= beta2
        first = state[:, :dim] / (np.float32(1) - state[:, 2 * dim, None])
        second = state[:, dim : 2 * dim] / (np.float32(1) - state[:, 2 * dim + 1, None])
        weights -= lr * first / (np.sqrt(second) + eps)
    else:
        z, n = state[:, :dim], state[:, dim:]
        more = n + g * g
        root = np.sqrt(more)
        z = z + (g - (root - np.sqrt(n)) / lr * weights)
        shrunk = np.where(z > 0, z - l1, z + l1)
        weights = np.where(np.abs(z) <= l1, np.float32(0), -shrunk / ((beta + root) / lr + l2))
        state[:, :dim], state[:, dim:] = z, more
    return np.concatenate([weights, state], axis=1)
