"""Operations on `Jagged`: rows taken, parts joined, lists cut to their newest values, row ranges without copies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hetero.errors import DataError
from hetero.records import F32, I32, I64, Jagged

_MOST_KEYS = 2**31 - 1


def row_offsets(lengths: I32 | I64) -> I32:
    """int32 [R + 1] offsets of rows with these lengths. Raises DataError when one split holds 2**31 keys or more."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if offsets[-1] > _MOST_KEYS:
        raise DataError(
            f"one split holds {offsets[-1]} keys of one feature, over the limit of {_MOST_KEYS}; write the data in"
            " smaller Parquet row groups, set max_length for the feature, or lower text_block_bytes"
        )
    return offsets.astype(np.int32)


def take_rows(jagged: Jagged, rows: I64) -> Jagged:
    """The rows numbered `rows` (int64 [n]), in that order, copied."""
    if jagged.offsets is None:
        weights = None if jagged.weights is None else jagged.weights.take(rows)
        return Jagged(jagged.keys.take(rows), None, weights)
    starts = jagged.offsets[:-1][rows]
    return _gather(jagged, starts=starts, lengths=jagged.offsets[1:][rows] - starts)


def keep_last(jagged: Jagged, *, most: int | None) -> Jagged:
    """Each row cut to its last `most` keys; None keeps all."""
    if most is None or jagged.offsets is None:
        return jagged
    lengths = np.diff(jagged.offsets)
    if not (lengths > most).any():
        return jagged
    lengths = np.minimum(lengths, np.int32(most))
    return _gather(jagged, starts=jagged.offsets[1:] - lengths, lengths=lengths)


def join(parts: Sequence[Jagged]) -> Jagged:
    """Rows of all parts (at least one), one after another; a single part is returned as it is."""
    if len(parts) == 1:
        return parts[0]
    keys = np.concatenate([part.keys for part in parts])
    offsets = None
    if any(part.offsets is not None for part in parts):
        offsets = row_offsets(np.concatenate([_lengths(part) for part in parts]))
    return Jagged(keys, offsets, join_weights([part.weights for part in parts], [len(p.keys) for p in parts]))


def join_weights(parts: Sequence[F32 | None], sizes: Sequence[int]) -> F32 | None:
    """Weights of all parts; None, which stands for ones, only when every part has None."""
    if all(part is None for part in parts):
        return None
    filled = [np.ones(size, np.float32) if part is None else part for part, size in zip(parts, sizes, strict=True)]
    return np.concatenate(filled)


def freeze(jagged: Jagged) -> Jagged:
    """The same arrays, read-only, so that kernels meet one array type whether keys are Arrow's memory or not."""
    for array in (jagged.keys, jagged.offsets, jagged.weights):
        if array is not None:
            array.flags.writeable = False
    return jagged


def _lengths(jagged: Jagged) -> I32:
    if jagged.offsets is None:
        return np.ones(len(jagged.keys), np.int32)
    return np.diff(jagged.offsets)


def _gather(jagged: Jagged, *, starts: I32, lengths: I32) -> Jagged:
    offsets = row_offsets(lengths)
    index = np.arange(offsets[-1], dtype=np.int64) + np.repeat(starts - offsets[:-1], lengths)
    weights = None if jagged.weights is None else jagged.weights.take(index)
    return Jagged(jagged.keys.take(index), offsets, weights)
