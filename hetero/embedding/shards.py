"""The memory of a store's shards: slots and records in numpy arrays, described to the kernels by their addresses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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
from hetero.records import U64

SHARDS = 64
_FULLEST = 0.8
_GROWTH = 1.4
_FIRST_ROWS = 32


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes reserved by a store. index: slots and the keys and tables in records. rows: float32 [W] of every place.

    Places not yet filled are reserved and, while untouched, cost no resident memory.
    """

    index_bytes: int
    row_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.index_bytes + self.row_bytes


class Shards:
    """64 shards of one store, each growing by itself: its records are copied once, its slots entered anew.

    `description` is what kernels take: uint64 [shards, 5].
    """

    def __init__(self, *, width: int, seeds: U64) -> None:
        self._width = width
        self._stride = HEADER_BYTES + 4 * width
        self._seeds = seeds
        self.description = np.zeros((SHARDS, CAPACITY + 1), np.uint64)
        self._slots: list[npt.NDArray[np.uint32]] = [np.empty(0, np.uint32)] * SHARDS
        self._records: list[npt.NDArray[np.uint8]] = [np.empty(0, np.uint8)] * SHARDS
        for shard in range(SHARDS):
            self._resize(shard, _FIRST_ROWS)

    @property
    def row_count(self) -> int:
        return int(self.description[:, ROW_COUNT].sum())

    def rows_in(self, shard: int) -> int:
        return int(self.description[shard, ROW_COUNT])

    def make_room(self, needed: U64) -> None:
        """Let every shard take `needed` more rows, uint64 [shards]. Raises CapacityError at 2^24 - 1 rows a shard."""
        wanted = self.description[:, ROW_COUNT] + needed
        for shard in np.flatnonzero(wanted > self.description[:, CAPACITY]):
            rows = int(wanted[shard])
            if rows > MOST_ROWS:
                raise CapacityError(
                    f"a shard of the index would hold {rows} rows, at most {MOST_ROWS} are possible "
                    f"({SHARDS * MOST_ROWS} rows a server); raise roles.servers"
                )
            grown = max(rows, int(int(self.description[shard, CAPACITY]) * _GROWTH))
            self._resize(int(shard), min(grown, MOST_ROWS))

    def memory(self) -> MemoryUse:
        places = int(self.description[:, CAPACITY].sum())
        slots = int(self.description[:, SLOT_COUNT].sum())
        return MemoryUse(index_bytes=4 * slots + HEADER_BYTES * places, row_bytes=4 * self._width * places)

    def _resize(self, shard: int, rows: int) -> None:
        """Give a shard room for `rows`: its records are copied once, its slots are filled anew."""
        used = self.rows_in(shard) * self._stride
        records = np.empty(rows * self._stride, np.uint8)
        records[:used] = self._records[shard][:used]
        slots = np.zeros(int(rows / _FULLEST) + 1, np.uint32)
        self._records[shard], self._slots[shard] = records, slots
        self.description[shard, SLOTS_AT] = slots.ctypes.data
        self.description[shard, SLOT_COUNT] = len(slots)
        self.description[shard, RECORDS_AT] = records.ctypes.data
        self.description[shard, CAPACITY] = rows
        rehash_kernel(self.description, shard, self._seeds, self._width)
