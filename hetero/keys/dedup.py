"""Dedup of (table, key) occurrences with the inverse."""

from __future__ import annotations

import numpy as np

from hetero.kernels.dedup import dedup_kernel
from hetero.records import I32, U16, U64, KeySet

_SMALLEST = 1 << 10
_LAST_STAMP = (1 << 32) - 1


class Deduplicator:
    """Unique rows and local ids of occurrences. Keeps its scratch memory between calls; one thread at a time."""

    def __init__(self) -> None:
        self._allocate(_SMALLEST)

    def __call__(self, tables: U16, keys: U64) -> tuple[KeySet, I32]:
        """tables uint16 [N], keys uint64 [N] -> unique rows in order of first occurrence, local int32 [N]."""
        count = len(keys)
        if 2 * count > len(self._slots) or self._stamp == _LAST_STAMP:
            self._allocate(max(len(self._slots), _SMALLEST, 1 << (2 * count).bit_length()))
        self._stamp += 1
        unique_tables, unique_keys = np.empty(count, np.uint16), np.empty(count, np.uint64)
        local = np.empty(count, np.int32)
        unique = dedup_kernel(
            tables, keys, self._stamps, self._slots, np.uint32(self._stamp), unique_tables, unique_keys, local
        )
        return KeySet(unique_tables[:unique].copy(), unique_keys[:unique].copy()), local

    def _allocate(self, slots: int) -> None:
        self._stamps = np.zeros(slots, np.uint32)
        self._slots = np.empty(slots, np.int32)
        self._stamp = 0
