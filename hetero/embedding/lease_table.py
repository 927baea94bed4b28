"""Rows that a tower holds: who has them, and how often they were used. The rows themselves are with the tower."""

from __future__ import annotations

import numpy as np

from hetero.embedding.shards import SHARDS, Shards
from hetero.errors import ProtocolError
from hetero.kernels.index import CAPACITY, count_kernel, insert_kernel
from hetero.kernels.residency import numbers_kernel, set_words_kernel, take_out_kernel, words_kernel
from hetero.records import F32, I64, U16, U64, KeySet

_USES_SHIFT = 12
LEASE_BYTES = 20  # the most: 12 of a record and a slot, at 0.8 / 1.5 full
MOST_HOLDERS = (1 << _USES_SHIFT) - 1


class LeaseTable:
    """Leased rows by (table, key): 12 bytes and a slot each. seeds, shift: as a store has them."""

    def __init__(self, *, seeds: U64, shift: np.uint64) -> None:
        self._seeds = seeds
        self._shift = shift
        self._shards = Shards(width=0, seeds=seeds)
        self._notes = np.zeros(1, np.uint8)

    def __len__(self) -> int:
        return self._shards.row_count

    @property
    def memory_bytes(self) -> int:
        return self._shards.memory().total_bytes

    @staticmethod
    def check_holder(holder: int) -> None:
        """Raises ProtocolError for a number that does not fit beside the uses."""
        if not 0 < holder <= MOST_HOLDERS:
            raise ProtocolError(f"rows are leased to number {holder}; holders are numbered 1 to {MOST_HOLDERS}")

    def holders(self, keys: KeySet) -> U16:
        """Who holds each row, uint16 [n]; 0 nobody."""
        return self._words(keys) & np.uint16(MOST_HOLDERS)

    def uses(self, keys: KeySet) -> np.ndarray:
        """Uses of held rows, uint8 [n]."""
        return (self._words(keys) >> np.uint16(_USES_SHIFT)).astype(np.uint8)

    def add(self, keys: KeySet, *, holder: int, uses: np.ndarray) -> None:
        """Note that `holder` has rows that nobody had. uses: uint8 [n], below 16."""
        needed = np.zeros(SHARDS, np.uint64)
        every = np.arange(len(keys), dtype=np.int32)
        count_kernel(keys.tables, keys.keys, every, self._seeds, self._shift, needed)
        self._shards.make_room(needed)
        nothing: F32 = np.zeros(16, np.float32)
        insert_kernel(
            keys.tables,
            keys.keys,
            every,
            self._seeds,
            self._shards.description,
            self._shift,
            0,
            0,
            0,
            nothing,
            0,
            np.float32(0),
            np.float32(0),
            np.uint16(0),
        )
        words = (np.uint16(holder) | uses.astype(np.uint16) << np.uint16(_USES_SHIFT)).astype(np.uint16)
        set_words_kernel(keys.tables, keys.keys, self._seeds, self._shards.description, self._shift, 0, words)

    def remove(self, keys: KeySet) -> None:
        """Forget unique rows, all of them held."""
        of_shard, numbers = np.empty(len(keys), np.int32), np.empty(len(keys), np.int32)
        description = self._shards.description
        numbers_kernel(keys.tables, keys.keys, self._seeds, description, self._shift, 0, of_shard, numbers)
        largest = int(description[:, CAPACITY].max())
        if largest > len(self._notes):
            self._notes = np.zeros(largest, np.uint8)
        notes_at = np.full(SHARDS, self._notes.ctypes.data, np.uint64)
        order = np.lexsort((-numbers, of_shard))
        cuts = np.searchsorted(of_shard[order], np.arange(SHARDS + 1))
        count = len(keys)
        tables, out, uses = np.empty(count, np.uint16), np.empty(count, np.uint64), np.empty(count, np.uint8)
        rows = np.empty((count, 0), np.float32)
        for shard in np.flatnonzero(np.diff(cuts)).tolist():
            own = numbers[order[cuts[shard] : cuts[shard + 1]]]
            take_out_kernel(description, shard, 0, self._seeds, notes_at, own, cuts[shard], tables, out, rows, uses)

    def _words(self, keys: KeySet) -> U16:
        words = np.empty(len(keys), np.uint16)
        words_kernel(keys.tables, keys.keys, self._seeds, self._shards.description, self._shift, 0, words)
        return words


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
