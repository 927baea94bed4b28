"""A uint16 of its own for each of many (table, key): 12 bytes and a slot, exact, in memory."""

from __future__ import annotations

import numpy as np

from hetero.embedding.shards import SHARDS, Shards
from hetero.kernels.index import CAPACITY, ROW_COUNT, count_kernel, insert_kernel
from hetero.kernels.key_words import entries_kernel
from hetero.kernels.residency import numbers_kernel, set_words_kernel, take_out_kernel, words_kernel
from hetero.records import F32, I32, U16, U64, KeySet

ENTRY_BYTES = 20  # the most: 12 of a record and a slot, at 0.8 / 1.5 full


class KeyWords:
    """Words by (table, key). seeds, shift: as a store has them. One caller at a time."""

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

    def words(self, keys: KeySet) -> U16:
        """The words of keys, uint16 [n]; 0 for those without."""
        keys = _plain(keys)
        words = np.empty(len(keys), np.uint16)
        words_kernel(keys.tables, keys.keys, self._seeds, self._shards.description, self._shift, 0, words)
        return words

    def put(self, keys: KeySet, words: U16) -> None:
        """Set the words (uint16 [n], not 0) of unique keys. Raises CapacityError where memory ends."""
        keys = _plain(keys)
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
            np.empty((len(keys), 0), np.float32),
        )
        words = np.require(words, np.uint16, ("C", "A", "W"))
        set_words_kernel(keys.tables, keys.keys, self._seeds, self._shards.description, self._shift, 0, words)

    def remove(self, keys: KeySet) -> None:
        """Forget unique keys, those that are there."""
        keys = _plain(keys)
        of_shard, numbers = np.empty(len(keys), np.int32), np.empty(len(keys), np.int32)
        description = self._shards.description
        numbers_kernel(keys.tables, keys.keys, self._seeds, description, self._shift, 0, of_shard, numbers)
        here = np.flatnonzero(numbers >= 0)
        if not len(here):
            return
        largest = int(description[:, CAPACITY].max())
        if largest > len(self._notes):
            self._notes = np.zeros(largest, np.uint8)
        notes_at = np.full(SHARDS, self._notes.ctypes.data, np.uint64)
        order = here[np.lexsort((-numbers[here], of_shard[here]))]  # the order in which they are taken out
        cuts = np.searchsorted(of_shard[order], np.arange(SHARDS + 1))
        tables, out, uses = _room(len(order))
        rows = np.empty((len(order), 0), np.float32)
        for shard in np.flatnonzero(np.diff(cuts)).tolist():
            own: I32 = numbers[order[cuts[shard] : cuts[shard + 1]]]
            take_out_kernel(description, shard, 0, self._seeds, notes_at, own, cuts[shard], tables, out, rows, uses)

    def entries(self) -> tuple[KeySet, U16]:
        """All keys and their words, copies."""
        counts = self._shards.description[:, ROW_COUNT].astype(np.int64)
        ends = np.cumsum(counts)
        tables, keys, _ = _room(int(ends[-1]))
        words = np.empty(len(keys), np.uint16)
        for shard, (end, count) in enumerate(zip(ends.tolist(), counts.tolist(), strict=True)):
            part = slice(end - count, end)
            entries_kernel(self._shards.description, shard, tables[part], keys[part], words[part])
        return KeySet(tables, keys), words


def _room(count: int) -> tuple[U16, U64, np.ndarray]:
    return np.empty(count, np.uint16), np.empty(count, np.uint64), np.empty(count, np.uint8)


def _plain(keys: KeySet) -> KeySet:
    """The keys as kernels take them: a strided or read-only array would be a type of its own, compiled apart."""
    return KeySet(np.require(keys.tables, None, ("C", "A", "W")), np.require(keys.keys, None, ("C", "A", "W")))
