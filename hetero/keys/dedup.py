"""Dedup of (table, key) occurrences with the inverse."""

from __future__ import annotations

import numpy as np

from hetero.kernels.dedup import dedup_kernel
from hetero.records import I32, U16, U64, KeySet

_FEWEST_SLOTS = 1 << 10


class Deduplicator:
    """Unique rows and local ids of occurrences. Keeps its scratch memory between calls; one thread at a time.

    The scratch table is sized for four times the unique rows of the call before, so that it stays in the cache where
    most occurrences are duplicates; a call that finds more begins again with a larger one.
    """

    def __init__(self) -> None:
        self._slots = np.empty(_FEWEST_SLOTS, np.uint32)
        self._tables, self._keys = np.empty(0, np.uint16), np.empty(0, np.uint64)

    def __call__(self, tables: U16, keys: U64) -> tuple[KeySet, I32]:
        """tables uint16 [N], keys uint64 [N] -> unique rows in order of first occurrence, local int32 [N]."""
        count = len(keys)
        if count >= len(self._keys):
            self._tables, self._keys = np.empty(count + 1, np.uint16), np.empty(count + 1, np.uint64)
        local = np.empty(count, np.int32)
        bits = (count + 1).bit_length()
        while (unique := dedup_kernel(tables, keys, self._slots, bits, self._tables, self._keys, local)) < 0:
            self._slots = np.empty(2 * len(self._slots), np.uint32)
        if 16 * unique < len(self._slots) > _FEWEST_SLOTS:
            self._slots = np.empty(max(_FEWEST_SLOTS, len(self._slots) // 2), np.uint32)
        return KeySet(self._tables[1 : unique + 1].copy(), self._keys[1 : unique + 1].copy()), local
