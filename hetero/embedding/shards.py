"""The memory of a store's shards: slots and records, described to the kernels by their addresses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hetero.errors import CapacityError
from hetero.kernels.index import (
    CAPACITY,
    HEADER_BYTES,
    MOST_ROWS,
    RECORDS_AT,
    ROW_COUNT,
    SLOT_COUNT,
    SLOTS_AT,
    rehash_kernel,
)
from hetero.kernels.region import Region
from hetero.records import U64

SHARDS = 64
_FULLEST = 0.8  # `is_full` says the same
_SLOT_GROWTH = 1.5
_RECORD_GROWTH = 1.25
_FIRST_ROWS = 32


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes of the rows held. index: slots, and the key and table in each record. rows: float32 [W] each. kept: rows
    as they were before they changed, for a snapshot under way."""

    index_bytes: int
    row_bytes: int
    kept_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        return self.index_bytes + self.row_bytes + self.kept_bytes


class Shards:
    """64 shards of one store, each growing by itself: records in place, slots entered anew.

    `description` is what kernels take: uint64 [shards, 5].
    """

    def __init__(self, *, width: int, seeds: U64) -> None:
        self._width = width
        self._stride = HEADER_BYTES + 4 * width
        self._seeds = seeds
        self.description = np.zeros((SHARDS, CAPACITY + 1), np.uint64)
        self._slots = [Region(1) for _ in range(SHARDS)]
        self._records = [Region(1) for _ in range(SHARDS)]
        for shard in range(SHARDS):
            self._make_records(shard, _FIRST_ROWS)
            self._make_slots(shard, _FIRST_ROWS)

    @property
    def row_count(self) -> int:
        return int(self.description[:, ROW_COUNT].sum())

    def rows_in(self, shard: int) -> int:
        return int(self.description[shard, ROW_COUNT])

    def make_room(self, needed: U64) -> None:
        """Let every shard take `needed` more rows, uint64 [shards].

        Raises CapacityError at 2^24 - 1 rows a shard, or when the system has no more memory; the rows there are stay.
        """
        wanted = (self.description[:, ROW_COUNT] + needed).astype(np.int64)
        worst = int(wanted.max())
        if worst > MOST_ROWS:
            raise CapacityError(
                f"a shard of the index would hold {worst} rows, at most {MOST_ROWS} are possible "
                f"({SHARDS * MOST_ROWS} rows a server); raise roles.servers"
            )
        try:
            for shard in np.flatnonzero(wanted > self.description[:, CAPACITY].astype(np.int64)).tolist():
                grown = int(int(self.description[shard, CAPACITY]) * _RECORD_GROWTH)
                self._make_records(shard, max(int(wanted[shard]), grown))
            for shard in np.flatnonzero(wanted > self.description[:, SLOT_COUNT] * _FULLEST).tolist():
                self._make_slots(shard, int(wanted[shard] * _SLOT_GROWTH))
        except OSError as error:
            raise CapacityError(
                f"rows: the system has no memory for {int(wanted.sum())} rows of {self._stride} bytes, "
                f"{self.row_count} are there ({error}); use more or larger servers"
            ) from error

    def memory(self) -> MemoryUse:
        """Bytes in use; places reserved and not yet filled cost no resident memory and are left out."""
        rows, slots = self.row_count, int(self.description[:, SLOT_COUNT].sum())
        return MemoryUse(index_bytes=4 * slots + HEADER_BYTES * rows, row_bytes=4 * self._width * rows)

    def _make_records(self, shard: int, rows: int) -> None:
        region = self._records[shard]
        region.grow(rows * self._stride)
        self.description[shard, RECORDS_AT] = region.address
        self.description[shard, CAPACITY] = region.size // self._stride

    def _make_slots(self, shard: int, rows: int) -> None:
        """Empty slots for `rows` rows, and enter those there are."""
        count = int(rows / _FULLEST) + 1
        self._slots[shard].clear(4 * count)
        self.description[shard, SLOTS_AT] = self._slots[shard].address
        self.description[shard, SLOT_COUNT] = count
        rehash_kernel(self.description, shard, self._seeds, self._width)
