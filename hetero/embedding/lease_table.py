"""Rows that a tower holds: who has them, and how often they were used. The rows themselves are with the tower."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hetero.embedding.key_words import ENTRY_BYTES, KeyWords
from hetero.errors import LeaseError, ProtocolError
from hetero.records import I64, U16, U64, KeySet

_USES_SHIFT = 12
LEASE_BYTES = ENTRY_BYTES
MOST_HOLDERS = (1 << _USES_SHIFT) - 1
NOBODY = 0


class LeaseTable:
    """Leased rows by (table, key): 12 bytes and a slot each. seeds, shift: as a store has them."""

    def __init__(self, *, seeds: U64, shift: np.uint64) -> None:
        self._held = KeyWords(seeds=seeds, shift=shift)

    def __len__(self) -> int:
        return len(self._held)

    @property
    def memory_bytes(self) -> int:
        return self._held.memory_bytes

    @staticmethod
    def check_holder(holder: int) -> None:
        """Raises ProtocolError for a number that does not fit beside the uses."""
        if not 0 < holder <= MOST_HOLDERS:
            raise ProtocolError(f"rows are leased to number {holder}; holders are numbered 1 to {MOST_HOLDERS}")

    def holders(self, keys: KeySet) -> U16:
        """Who holds each row, uint16 [n]; 0 nobody."""
        return self._held.words(keys) & np.uint16(MOST_HOLDERS)

    def check(self, keys: KeySet, *, holder: int, names: Mapping[int, str]) -> None:
        """Raises LeaseError naming the first row that another than `holder` has. names: of tables, by index."""
        holders = self.holders(keys)
        strange = np.flatnonzero(holders != holder)
        if len(strange):
            at, has = int(strange[0]), int(holders[strange[0]])
            who = f"tower {has - 1}" if has != NOBODY else "nobody"
            raise LeaseError(f"key {int(keys.keys[at])} of table {names[int(keys.tables[at])]} is held by {who}")

    def uses(self, keys: KeySet) -> np.ndarray:
        """Uses of held rows, uint8 [n]."""
        return (self._held.words(keys) >> np.uint16(_USES_SHIFT)).astype(np.uint8)

    def add(self, keys: KeySet, *, holder: int, uses: np.ndarray) -> None:
        """Note that `holder` has rows that nobody had. uses: uint8 [n], below 16."""
        words = (np.uint16(holder) | uses.astype(np.uint16) << np.uint16(_USES_SHIFT)).astype(np.uint16)
        self._held.put(keys, words)

    def remove(self, keys: KeySet) -> None:
        """Forget unique rows, all of them held."""
        self._held.remove(keys)


class ToldLeases:
    """Where the values lie that towers have told of rows they keep, for a cut."""

    def __init__(self) -> None:
        self._told: list[tuple[KeySet, I64]] = []

    def add(self, keys: KeySet, locations: I64) -> None:
        """locations: int64 [n]; of a row that is told again the later one counts."""
        self._told.append((keys, locations))

    def still(self, leases: LeaseTable) -> I64:
        """The last ones of rows that are leased still, int64."""
        if not self._told:
            return np.empty(0, np.int64)
        tables = np.concatenate([keys.tables for keys, _ in self._told])
        values = np.concatenate([keys.keys for keys, _ in self._told])
        located = np.concatenate([locations for _, locations in self._told])
        order = np.lexsort((values, tables))  # stable: of one row in the order of telling
        tables, values, located = tables[order], values[order], located[order]
        last = np.r_[(tables[1:] != tables[:-1]) | (values[1:] != values[:-1]), True]
        keys = KeySet(tables[last], values[last])
        return np.asarray(located[last][leases.holders(keys) != 0])
