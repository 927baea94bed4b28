"""The orders in which splits of a pass and rows of a split are read: functions of seed, epoch and position alone.

Each order is numpy's `Generator(PCG64(SeedSequence([seed mod 2**64, epoch, stream, position]))).permutation`, with
stream 1 for the rows of a split and stream 2 (position 0) for the splits of a pass.
"""

from __future__ import annotations

import numpy as np

from hetero.records import I64, DataSpec

_SEED_MASK = (1 << 64) - 1
_ROWS_STREAM = 1
_SPLITS_STREAM = 2


def row_order(count: int, *, spec: DataSpec, epoch: int, position: int) -> I64:
    """A permutation of the `count` good rows of the split at `position`: int64 [count]."""
    return _permutation(count, spec.seed, epoch, _ROWS_STREAM, position)


def pass_order(count: int, *, spec: DataSpec, epoch: int) -> I64:
    """A permutation of the `count` splits of a pass: int64 [count] of positions."""
    return _permutation(count, spec.seed, epoch, _SPLITS_STREAM, 0)


def _permutation(count: int, seed: int, epoch: int, stream: int, position: int) -> I64:
    entropy = np.random.SeedSequence([seed & _SEED_MASK, epoch, stream, position])
    return np.random.Generator(np.random.PCG64(entropy)).permutation(count).astype(np.int64)
