"""A consistent cut of a store's rows, read out while they change.

The locking rule: every call of a store holds its lock for its length, and a cut holds it for one chunk at a time (4096
rows; 0.2 ms at 17 floats each). So calls of a server's lane, in their thread, and the cut's reading, in another, never
see each other halfway, and the lane waits for a chunk at most. Before a call changes rows, those that the cut holds and
has not read are kept as they are: memory grows by the rows touched meanwhile, and shrinks as their chunks are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hetero.embedding.epochs import Epochs
from hetero.embedding.shards import SHARDS, Shards
from hetero.errors import CapacityError, ProtocolError
from hetero.kernels.cut import IN_USE, MOST, NODE_BYTES, USED, keep_kernel, read_chunk_kernel
from hetero.kernels.index import HEADER_BYTES, ROW_COUNT
from hetero.kernels.region import Region
from hetero.records import F32, I32, I64, U16, U64, KeySet

CHUNK_ROWS = 1 << 12


@dataclass(frozen=True, slots=True)
class RowChunk:
    """Some rows of a store: rows float32 [n, W]; statistics by name, one array [n] each, where there are any."""

    keys: KeySet
    rows: F32
    statistics: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRows:
    """What kernels take to keep rows of a cut before they change; see `hetero.kernels.cut`."""

    ends: I64
    nexts: I64
    first_chunks: I64
    heads: I32
    counters: I64
    chunk_rows: int

    @staticmethod
    def of(ends: I64) -> KeptRows:
        """Nothing read and nothing kept of `ends` rows a shard."""
        chunk_rows = CHUNK_ROWS
        chunks = -(-ends // chunk_rows)
        return KeptRows(
            ends=ends,
            nexts=np.zeros(len(ends), np.int64),
            first_chunks=np.cumsum(chunks) - chunks,
            heads=np.full(int(chunks.sum()), -1, np.int32),
            counters=np.array([-1, 0, 0, 0], np.int64),
            chunk_rows=chunk_rows,
        )


class StoreCut:
    """The rows a store held when `RowStore.begin_snapshot` was called, or those changed since an earlier mark.

    mark: what to pass as `since` for changes after this cut. held: rows in the store at the cut. width: floats a row.
    statistics: dtypes of what chunks tell of rows besides, by name.
    """

    statistics: Mapping[str, np.dtype[Any]] = {}

    def __init__(
        self,
        shards: Shards,
        epochs: Epochs,
        lock: Any,
        *,
        width: int,
        since: int | None,
        deleted: Sequence[KeySet],
        end: Callable[[], None],
    ) -> None:
        self._forget = since is None and epochs.renewal_due
        self.mark = epochs.advance()
        self.width = width
        self._shards, self._epochs, self._lock, self._end = shards, epochs, lock, end
        self._deleted = tuple(deleted)
        self._changed = epochs.changed(since=since, until=self.mark)
        if self._forget:
            epochs.begin_renewal(mark=self.mark)
        self._kept = KeptRows.of(shards.description[:, ROW_COUNT].astype(np.int64))
        self.held = int(self._kept.ends.sum())
        self._node_bytes = NODE_BYTES + HEADER_BYTES + 4 * width
        self._nodes = Region(1)
        self._open = True

    def chunks(self) -> Iterator[RowChunk]:
        """The rows, once, part by part, in any one thread. A chunk's arrays are overwritten by the next.

        Raises ProtocolError when the cut was closed meanwhile.
        """
        size = self._kept.chunk_rows
        tables, keys = np.empty(size, np.uint16), np.empty(size, np.uint64)
        rows = np.empty((size, self.width), np.float32)
        for shard in range(SHARDS):
            for start in range(0, int(self._kept.ends[shard]), size):
                count = self._read(shard, start, tables, keys, rows)
                if count:
                    yield RowChunk(KeySet(tables[:count], keys[:count]), rows[:count])
        if self._forget:
            with self._lock:
                self._epochs.renewed()

    def deleted(self) -> tuple[KeySet, ...]:
        """Keys deleted since the earlier mark, in the order of their deletion; none without a mark.

        Those made anew since are among the rows: take deletions first.
        """
        return self._deleted

    @property
    def kept_rows(self) -> int:
        """Rows kept now because they changed before they were read."""
        return int(self._kept.counters[IN_USE])

    @property
    def most_kept_rows(self) -> int:
        """The most rows kept at a time so far."""
        return int(self._kept.counters[MOST])

    @property
    def kept_bytes(self) -> int:
        """Memory of rows kept, the most there were at a time."""
        return int(self._kept.counters[USED]) * self._node_bytes

    def close(self) -> None:
        """End the cut, read out or not: nothing is kept for it any more."""
        with self._lock:
            if self._open:
                self._open = False
                self._nodes.clear(1)
                self._end()

    def keep(self, keys: KeySet, seeds: U64, shift: np.uint64) -> None:
        """Keep those of these rows that were not read yet, before they change. The store's lock is held.

        Raises CapacityError when the system has no more memory.
        """
        kept, nodes_at = self.room_for(len(keys))
        keep_kernel(
            keys.tables,
            keys.keys,
            seeds,
            self._shards.description,
            shift,
            self.width,
            self._epochs.field,
            kept.ends,
            kept.nexts,
            kept.first_chunks,
            nodes_at,
            kept.heads,
            kept.counters,
            kept.chunk_rows,
        )

    def room_for(self, rows: int) -> tuple[KeptRows, np.uint64]:
        """What kernels take to keep `rows` more rows, and the address of the nodes. The store's lock is held.

        Raises CapacityError when the system has no more memory.
        """
        needed = (int(self._kept.counters[USED]) + rows) * self._node_bytes
        try:
            if needed > self._nodes.size:
                self._nodes.grow(max(needed, self._nodes.size * 5 // 4))
        except OSError as error:
            raise CapacityError(
                f"rows: the system has no memory to keep {rows} rows for the snapshot under way, {self.kept_rows} are "
                f"kept ({error}); take snapshots less often or use more servers"
            ) from error
        return self._kept, np.uint64(self._nodes.address)

    def _read(self, shard: int, start: int, tables: U16, keys: U64, rows: F32) -> int:
        kept = self._kept
        stop = min(start + kept.chunk_rows, int(kept.ends[shard]))
        with self._lock:
            if not self._open:
                raise ProtocolError("a snapshot's cut was closed before it was read")
            count = read_chunk_kernel(
                self._shards.description,
                shard,
                start,
                stop,
                self.width,
                self._epochs.field,
                self._changed,
                self._forget,
                np.uint64(self._nodes.address),
                int(kept.first_chunks[shard]) + start // kept.chunk_rows,
                kept.heads,
                kept.counters,
                tables,
                keys,
                rows,
            )
            kept.nexts[shard] = stop
        return count
