"""Row optimizers as torch operations, for rows in device memory. On the CPU the bits equal the kernel's.

Apart from `definition`, so that servers need not load torch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hetero.kernels.optimizers import LARGEST_GRADIENT
from hetero.optim.definition import hyper_array
from hetero.records import RowOptimizer, RowOptimizerSpec


def tree_mean(values: Tensor) -> Tensor:
    """Mean over the last axis by the tree of `hetero.optim.definition.tree_mean`."""
    dim = values.shape[-1]
    size = 1 << (dim - 1).bit_length()
    padded = torch.nn.functional.pad(values, (0, size - dim))
    while size > 1:
        size //= 2
        padded = padded[..., :size] + padded[..., size:]
    return padded[..., 0] / dim


def root(values: Tensor) -> Tensor:
    """Square root, rounded as IEEE says.

    Torch's own on the CPU is MKL's, which is off by one in the last place now and then; so it goes through float64,
    whose root rounds to the right float32 (Figueroa 1995, "When is double rounding innocuous?").
    """
    return values.double().sqrt().float() if values.device.type == "cpu" else values.sqrt()


def update_at_(spec: RowOptimizerSpec, weights: Tensor, state: Tensor, index: Tensor, gradients: Tensor) -> Tensor:
    """Apply one gradient [n, E] to each of the rows at `index`, int [n], distinct; weights float32 [slots, E] and state
    float32 [slots, W - E] in place. Returns which gradients were not finite, bool [n]; their rows stay as they are.
    """
    index = index.long()
    fits = (gradients.abs() < LARGEST_GRADIENT).all(dim=1)
    before = [part.index_select(0, index) for part in (weights, state)]
    after = [part.clone() for part in before]
    update_(spec, after[0], after[1], gradients)
    for part, old, new in zip((weights, state), before, after, strict=True):
        part.index_copy_(0, index, torch.where(fits[:, None], new, old))
    return ~fits


def update_rows_(spec: RowOptimizerSpec, rows: Tensor, gradients: Tensor) -> None:
    """Apply one gradient [n, E] to each of the rows float32 [n, W], in place, on any device."""
    dim = gradients.shape[1]
    update_(spec, rows[:, :dim], rows[:, dim:], gradients)


def update_(spec: RowOptimizerSpec, weights: Tensor, state: Tensor, gradients: Tensor) -> None:
    """Apply one gradient [n, E] to each row's weights float32 [n, E] and state [n, W - E], in place, on any device."""
    dim, g = gradients.shape[1], gradients
    lr, eps, beta1, beta2, rest1, rest2, l1, l2, beta = hyper_array(spec).tolist()
    if l2 != 0 and spec.kind is not RowOptimizer.FTRL:
        g = g + l2 * weights
    if spec.kind is RowOptimizer.SGD:
        weights -= lr * g
    elif spec.kind is RowOptimizer.ADAGRAD:
        state += g * g
        weights -= lr * g / (root(state) + eps)
    elif spec.kind is RowOptimizer.ROWWISE_ADAGRAD:
        state[:, 0] += tree_mean(g * g)
        weights -= lr * g / (root(state) + eps)
    elif spec.kind is RowOptimizer.ADAM:
        first, second = state[:, :dim], state[:, dim : 2 * dim]
        first.copy_(beta1 * first + rest1 * g)
        second.copy_(beta2 * second + rest2 * (g * g))
        state[:, 2 * dim] *= beta1
        state[:, 2 * dim + 1] *= beta2
        correct1, correct2 = 1 - state[:, 2 * dim, None], 1 - state[:, 2 * dim + 1, None]
        weights -= lr * (first / correct1) / (root(second / correct2) + eps)
    else:
        z, n = state[:, :dim], state[:, dim:]
        more = n + g * g
        grown = root(more)
        z.copy_(z + (g - (grown - root(n)) / lr * weights))
        n.copy_(more)
        shrunk = torch.where(z > 0, z - l1, z + l1)
        solved = -shrunk / ((beta + grown) / lr + l2)
        weights.copy_(torch.where(z.abs() <= l1, torch.zeros_like(z), solved))
