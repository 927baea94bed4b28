"""First values of rows: a function of (table seed, key, position) alone, by counter instead of a generator's state.

UNIFORM: the top 24 bits of a mix, scaled to [-scale, scale). NORMAL: the sum of twelve such uniforms in [0, 1), less 6
(Irwin-Hall: mean 0, variance 1, tails end at +-6), times scale. Basic operations only, so that every backend agrees.
"""

from __future__ import annotations

import numpy as np

from hetero.kernels.jit import inline
from hetero.kernels.mix import GOLDEN, mix64, mix64_reference
from hetero.records import F32, U64

ZEROS, UNIFORM, NORMAL = range(3)
_TERMS = 12
_UNIT = np.float32(1.0 / (1 << 24))


@inline
def _unit(mixed_seed: np.uint64, key: np.uint64, counter: int) -> np.float32:
    """A float32 in [0, 1) for a counter."""
    mixed = mix64(mix64(key ^ mixed_seed) + np.uint64(counter + 1) * GOLDEN)
    return np.float32(mixed >> np.uint64(40)) * _UNIT


@inline
def first_values(
    mixed_seed: np.uint64,
    key: np.uint64,
    row: F32,
    dim: int,
    kind: int,
    hyper: F32,
    first: int,
    scale: np.float32,
    accumulator: np.float32,
) -> None:
    """Fill a new row float32 [W]: weights [dim] by `first` (ZEROS, ...), then state as `hetero.optim` defines it, and
    zeros behind it.

    mixed_seed: mix64 of the table's seed. kind: of the optimizer. accumulator: initial accumulator.
    """
    for j in range(dim):
        value = np.float32(0)
        if first == 1:
            value = (_unit(mixed_seed, key, j) * np.float32(2) - np.float32(1)) * scale
        elif first == 2:
            for term in range(_TERMS):
                value += _unit(mixed_seed, key, j * _TERMS + term)
            value = (value - np.float32(_TERMS // 2)) * scale
        row[j] = value
    for j in range(dim, len(row)):
        row[j] = np.float32(0)
    if kind == 1 or kind == 2:
        for j in range(dim, 2 * dim if kind == 1 else dim + 1):
            row[j] = accumulator
    elif kind == 3:
        row[3 * dim] = np.float32(1)
        row[3 * dim + 1] = np.float32(1)
    elif kind == 4:
        steep = (hyper[8] + np.sqrt(accumulator)) / hyper[0] + hyper[7]
        for j in range(dim):
            pull = np.float32(0)
            if row[j] > np.float32(0):
                pull = hyper[6]
            elif row[j] < np.float32(0):
                pull = -hyper[6]
            row[dim + j] = -(row[j] * steep) - pull
            row[2 * dim + j] = accumulator


def first_weights_reference(mixed_seed: int, keys: U64, *, dim: int, first: int, scale: float) -> F32:
    """First weights of keys, float32 [n, dim], in numpy."""
    per = _TERMS if first == NORMAL else 1
    counters = np.arange(1, dim * per + 1, dtype=np.uint64) * GOLDEN
    mixed = mix64_reference(mix64_reference(keys ^ np.uint64(mixed_seed))[:, None] + counters)
    units = (mixed >> np.uint64(40)).astype(np.float32) * _UNIT
    if first == ZEROS:
        return np.zeros((len(keys), dim), np.float32)
    if first == UNIFORM:
        weights: F32 = (units * np.float32(2) - np.float32(1)) * np.float32(scale)
        return weights
    total = np.zeros((len(keys), dim), np.float32)
    for term in range(_TERMS):
        total += units[:, term::_TERMS]
    return (total - np.float32(_TERMS // 2)) * np.float32(scale)
