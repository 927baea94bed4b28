"""Gradients of several towers become one gradient per row, summed in the order of tower numbers.

Used in `sync` only: ((g_0 + g_1) + g_2) + ... per element, over the towers whose batch holds the row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hetero.keys.dedup import Deduplicator
from hetero.records import F32, KeySet


def merge_gradients(parts: Sequence[tuple[KeySet, F32]], *, dim: int, dedup: Deduplicator) -> tuple[KeySet, F32]:
    """Sum the parts' gradients per (table, key).

    parts: per tower, in tower order: unique keys [U_t] and their gradients float32 [U_t, dim].
    Returns the united keys in order of first occurrence and float32 [U, dim].
    """
    filled = [part for part in parts if len(part[0])]
    if len(filled) == 1:
        return filled[0]
    if not filled:
        return KeySet(np.empty(0, np.uint16), np.empty(0, np.uint64)), np.empty((0, dim), np.float32)
    tables = np.concatenate([keys.tables for keys, _ in filled])
    keys = np.concatenate([keys.keys for keys, _ in filled])
    united, local = dedup(tables, keys)
    merged = np.zeros((len(united), dim), np.float32)
    start = 0
    for part_keys, gradients in filled:
        rows = local[start : start + len(part_keys)]
        merged[rows] += gradients
        start += len(part_keys)
    return united, merged
