"""Where the rows on SSD lie: the arrays behind `hetero.kernels.ssd_index`, growing one shard at a time."""

from __future__ import annotations

import numpy as np

from hetero.embedding.shards import SHARDS
from hetero.errors import CapacityError
from hetero.kernels.region import FixedRegion
from hetero.kernels.ssd_index import (
    ENTRIES_AT,
    ENTRY_COUNT,
    MOST_ENTRIES,
    ROWS_IN,
    candidates_kernel,
    drop_kernel,
    enter_kernel,
    flag_kernel,
    flag_rows_kernel,
    live_kernel,
    move_kernel,
    needed_kernel,
    regrow_kernel,
)
from hetero.kernels.ssd_recovery import fill_kernel, newest_kernel, tags_kernel
from hetero.records import I32, I64, U8, U64, KeySet

ENTRY_BYTES = 8
MOST_ENTRY_BYTES = 12
# Between 8 / 0.85 and 8 / 0.85 * 1.22 bytes a row: 9.4 to 11.5.
_FULLEST = 0.85
_GROWTH = 1.22
_FIRST_ENTRIES = 8


class SsdIndex:
    """Locations of rows by (table, key). seeds: mixed ones by table index. shift: of a hash, leaves its bucket.

    Locations are candidates: the record there says whether it is the row's.
    """

    def __init__(self, *, seeds: U64, shift: np.uint64, position_bits: int) -> None:
        self._seeds = seeds
        self._shift = shift
        self._bits = position_bits
        self._entries = [FixedRegion(1) for _ in range(SHARDS)]
        self.description = np.zeros((SHARDS, 3), np.uint64)
        for shard in range(SHARDS):
            self._resize(shard, _FIRST_ENTRIES)

    @property
    def row_count(self) -> int:
        return int(self.description[:, ROWS_IN].sum())

    @property
    def memory_bytes(self) -> int:
        """Of all entries, whole pages."""
        return sum(region.size for region in self._entries)

    def candidates(self, keys: KeySet, picked: I32, cursors: I64, locations: I64) -> int:
        """See `candidates_kernel`."""
        return candidates_kernel(
            keys.tables, keys.keys, picked, self._seeds, self.description, self._shift, cursors, locations
        )

    def enter(self, keys: KeySet, locations: I64) -> None:
        """Add rows that are not there. Raises CapacityError when there is no memory for them; then none is added."""
        self.make_room(keys)
        self.enter_into_room(keys, locations)

    def enter_into_room(self, keys: KeySet, locations: I64) -> None:
        """`enter`, after `make_room` for these rows."""
        enter_kernel(keys.tables, keys.keys, locations, self._seeds, self.description, self._shift)

    def enter_newest(self, records: U64, *, shard: int, of_tables: I64, of_segments: I64) -> None:
        """Add the rows among a shard's records, which are not there, each at its newest record; rows are counted by
        table and by segment slot. records: uint64 [n, 3], see `hetero.kernels.ssd_recovery`. Raises CapacityError when
        there is no memory for them; then none is added."""
        tags, entries = np.empty(len(records), np.uint64), np.empty(len(records), np.uint64)
        tags_kernel(records, self._seeds, tags)
        tags.sort()
        entries = entries[: newest_kernel(records, tags, self._bits, entries, of_tables, of_segments)]
        needed = np.zeros(SHARDS, np.int64)
        needed[shard] = len(entries)
        self._fit(needed)
        fill_kernel(entries, self.description[shard])

    def make_room(self, keys: KeySet) -> None:
        """Let `enter` succeed for these rows."""
        left = self.description[:, ENTRY_COUNT] * _FULLEST - self.description[:, ROWS_IN]
        if left.min() >= len(keys):  # even if one shard were to take them all
            return
        needed = np.zeros(SHARDS, np.int64)
        needed_kernel(keys.tables, keys.keys, self._seeds, self._shift, needed)
        self._fit(needed)

    def reserve(self, rows: int) -> None:
        """Make room for about this many more rows at once, so that they come without growing. Raises CapacityError."""
        mean = rows / SHARDS
        self._fit(np.full(SHARDS, int(mean + 4 * mean**0.5), np.int64))  # shards differ by about the square root

    def _fit(self, needed: I64) -> None:
        """Let every shard take so many rows more, int64 [shards]."""
        wanted = self.description[:, ROWS_IN].astype(np.int64) + needed
        if int(wanted.max()) > MOST_ENTRIES * _FULLEST:
            raise CapacityError(
                f"a shard of the index would hold {int(wanted.max())} rows on SSD, at most "
                f"{int(MOST_ENTRIES * _FULLEST)} are possible; raise roles.servers"
            )
        try:
            for shard in np.flatnonzero(wanted > self.description[:, ENTRY_COUNT] * _FULLEST).tolist():
                grown = int(int(self.description[shard, ENTRY_COUNT]) * _GROWTH)
                self._resize(shard, max(grown, int(int(wanted[shard]) / _FULLEST) + 2))
        except OSError as error:
            raise CapacityError(
                f"the index of rows on SSD: the system has no memory for {int(wanted.sum())} rows of at most 12 bytes "
                f"({error}); use more or larger servers"
            ) from error

    def drop(self, keys: KeySet, picked: I32, locations: I64, live: I64) -> int:
        """See `drop_kernel`."""
        return drop_kernel(
            keys.tables,
            keys.keys,
            picked,
            locations,
            self._seeds,
            self.description,
            self._shift,
            live,
            self._bits,
        )

    def move(self, keys: KeySet, old: I64, new: I64) -> None:
        """Rows at `old` locations lie at `new` ones from now on."""
        move_kernel(keys.tables, keys.keys, old, new, self._seeds, self.description, self._shift)

    def is_live(self, keys: KeySet, locations: I64) -> np.ndarray:
        """bool [n]: whether the row is held to lie there. A record of the location must name the row."""
        live = np.empty(len(keys), np.bool_)
        live_kernel(keys.tables, keys.keys, locations, self._seeds, self.description, self._shift, live)
        return live

    def flag(self, starts: I64, flags: U8, *, also: I64) -> None:
        """Flag the records of all rows, and of the locations `also`: one bit each, from bit starts[segment slot] on."""
        flag_rows_kernel(self.description, self._bits, starts, flags)
        flag_kernel(also, self._bits, starts, flags)

    def _resize(self, shard: int, entries: int) -> None:
        """Entries for a shard, in fresh memory: those there are entered anew."""
        fresh = FixedRegion(ENTRY_BYTES * entries)
        at, count = int(self.description[shard, ENTRIES_AT]), int(self.description[shard, ENTRY_COUNT])
        if count:
            regrow_kernel(np.uint64(at), count, np.uint64(fresh.address), entries)
        self._entries[shard] = fresh
        self.description[shard, ENTRIES_AT] = fresh.address
        self.description[shard, ENTRY_COUNT] = entries
