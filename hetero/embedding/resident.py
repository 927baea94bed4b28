"""The memory tier above an SSD tier: a store of rows with notes of their uses, from which rows are taken out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hetero.embedding.shards import SHARDS
from hetero.embedding.store import RowStore
from hetero.kernels.index import CAPACITY, HEADER_BYTES, ROW_COUNT
from hetero.kernels.region import Region
from hetero.kernels.residency import (
    TURNS,
    note_kernel,
    numbers_kernel,
    take_out_kernel,
    touch_kernel,
    victims_kernel,
)
from hetero.records import F32, I32, U64, KeySet

# A record's header and row, its note, and its share of slots that are at least 0.8 / 1.5 full.
ROW_OVERHEAD_BYTES = HEADER_BYTES + 1 + 4 * 1.5 / 0.8


# After so many halvings no row has uses left.
_ALL_ROUNDS = 6


@dataclass(frozen=True, slots=True)
class TakenRows:
    """rows float32 [n, W], uses uint8 [n]."""

    keys: KeySet
    rows: F32
    uses: np.ndarray


class ResidentRows:
    """Notes and clock hands over the rows of `store`. One caller at a time.

    A turn is one call that may bring rows in: rows it touches stay until the next turn.
    """

    def __init__(self, store: RowStore, *, seeds: U64, shift: np.uint64) -> None:
        self._store = store
        self._seeds = seeds
        self._shift = shift
        self._width = store.width
        self._notes = [Region(1) for _ in range(SHARDS)]
        self._notes_at = np.zeros(SHARDS, np.uint64)
        self._hands = [0] * SHARDS
        self._turn = 0
        self._fit_notes()

    @property
    def description(self) -> U64:
        return self._store.shards.description

    def next_turn(self) -> None:
        self._turn = (self._turn + 1) % TURNS

    def touch(self, keys: KeySet) -> I32:
        """Note a use of the rows that are here; positions of the others, ascending."""
        missing = np.empty(len(keys), np.int32)
        return missing[
            : touch_kernel(
                keys.tables,
                keys.keys,
                self._seeds,
                self.description,
                self._shift,
                self._width,
                self._notes_at,
                self._turn,
                missing,
            )
        ]

    def note(self, keys: KeySet, uses: np.ndarray) -> None:
        """Set the uses (uint8 [n], up to 15) of rows that have just come."""
        self._fit_notes()
        note_kernel(
            keys.tables,
            keys.keys,
            self._seeds,
            self.description,
            self._shift,
            self._width,
            self._notes_at,
            self._turn,
            uses,
        )

    def evict(self, wanted: int) -> TakenRows:
        """Take out up to `wanted` rows that this turn has not touched, from the fullest shards first."""
        counts = self.description[:, ROW_COUNT].astype(np.int64)
        picked: list[tuple[int, I32]] = []
        left = wanted
        for shares, rounds in ((_levelled(counts, wanted), 1), (counts, 1), (counts, _ALL_ROUNDS)):
            for shard in range(SHARDS):
                numbers = np.empty(min(left, int(shares[shard])), np.int32)
                if not len(numbers):
                    continue
                found, self._hands[shard] = victims_kernel(
                    self.description, shard, self._notes_at, self._turn, self._hands[shard], rounds, numbers
                )
                picked.append((shard, numbers[:found]))
                left -= found
        by_shard: dict[int, list[I32]] = {}
        for shard, numbers in picked:
            by_shard.setdefault(shard, []).append(numbers)
        return self._take({shard: np.concatenate(parts) for shard, parts in by_shard.items()})

    def remove(self, keys: KeySet) -> np.ndarray:
        """Take rows out of which the caller has copies; their uses, uint8 [n], 0 for those that are not here."""
        of_shard, numbers = np.empty(len(keys), np.int32), np.empty(len(keys), np.int32)
        numbers_kernel(
            keys.tables, keys.keys, self._seeds, self.description, self._shift, self._width, of_shard, numbers
        )
        uses = np.zeros(len(keys), np.uint8)
        here = np.flatnonzero(numbers >= 0)
        order = here[np.lexsort((-numbers[here], of_shard[here]))]  # the order in which they are taken out
        cuts = np.searchsorted(of_shard[order], np.arange(SHARDS + 1))
        shards = np.flatnonzero(np.diff(cuts)).tolist()
        uses[order] = self._take({shard: numbers[order[cuts[shard] : cuts[shard + 1]]] for shard in shards}).uses
        return uses

    def _take(self, by_shard: dict[int, I32]) -> TakenRows:
        count = sum(len(numbers) for numbers in by_shard.values())
        tables, keys, uses = np.empty(count, np.uint16), np.empty(count, np.uint64), np.empty(count, np.uint8)
        rows = np.empty((count, self._width), np.float32)
        start = 0
        for shard, numbers in by_shard.items():
            take_out_kernel(
                self.description,
                shard,
                self._width,
                self._seeds,
                self._notes_at,
                np.sort(numbers)[::-1].copy(),
                start,
                tables,
                keys,
                rows,
                uses,
            )
            start += len(numbers)
        return TakenRows(KeySet(tables, keys), rows, uses)

    def _fit_notes(self) -> None:
        for shard, (region, capacity) in enumerate(
            zip(self._notes, self.description[:, CAPACITY].tolist(), strict=True)
        ):
            if capacity > region.size or not self._notes_at[shard]:
                region.grow(capacity)
                self._notes_at[shard] = region.address


def _levelled(counts: np.ndarray, wanted: int) -> np.ndarray:
    """How many rows to take from each shard, so that those left are alike; int64 [shards], `wanted` or a few more."""
    low, high = 0, int(counts.max())
    while low < high:  # the highest level that gives enough
        level = (low + high + 1) // 2
        if int(np.maximum(counts - level, 0).sum()) >= wanted:
            low = level
        else:
            high = level - 1
    return np.asarray(np.maximum(counts - low, 0))
