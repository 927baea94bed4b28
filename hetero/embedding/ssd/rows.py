"""Rows on SSD: appended in batches, read in batches, taken out, deleted; with compaction beside it.

Consumes   unique keys; rows float32 [W] with the count of their recent uses
Produces   the rows again, same bits
Waits for  reads of its own call; a free buffer when the disk writes slower than rows come

Rows that are appended must not be here already: the tier above keeps each row in one place only. `take` leaves no trace
on disk, so what a scan of the files finds may be older than what was taken since; who restores a cut also has what was
above this tier then, and that is newer. `delete` leaves a tombstone, which a scan honours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import numpy as np

from hetero.embedding.ssd.compaction import Compaction
from hetero.embedding.ssd.files import SegmentFiles
from hetero.embedding.ssd.index import SsdIndex
from hetero.embedding.ssd.layout import Layout
from hetero.embedding.ssd.reader import Reader, scratch_bytes
from hetero.embedding.ssd.references import Cut, CutSegment, Hold
from hetero.embedding.ssd.scan import live_rows
from hetero.embedding.ssd.writer import WRITE_BUFFERS, Writer
from hetero.errors import DataError
from hetero.kernels.ssd_records import FOUND, NOT_READ, OTHER_ROW, TOMBSTONE, U8
from hetero.records import F32, I32, I64, U16, U64, DiskIo, KeySet

DEFAULT_THREADS = 8
DEFAULT_GARBAGE_SHARE = 0.5


class Start(Enum):
    """Whether the directories must be empty, or hold what `recover` is about to enter."""

    EMPTY = "empty"
    FILES = "files"


@dataclass(frozen=True, slots=True)
class SsdRead:
    """rows float32 [n, W] and uses uint8 [n], zeros where not found; found bool [n]."""

    rows: F32
    uses: U8
    found: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class SsdUse:
    """What a store has done and takes. Bytes: read and written are whole pages, as the disk sees them.

    row_bytes_written: records of rows that came from above, once each; written_bytes / row_bytes_written is the write
    amplification. held_bytes: of files that stay for snapshots and scans alone. index_bytes, buffer_bytes: of memory.
    """

    rows: int
    disk_bytes: int
    held_bytes: int
    read_bytes: int
    reads: int
    rows_read: int
    written_bytes: int
    row_bytes_written: int
    compacted_segments: int
    index_bytes: int
    buffer_bytes: int


class SsdRows:
    """The rows of one group on SSD. One caller at a time.

    seeds: mixed ones by table index. shift: of a hash, leaves its bucket. limit_bytes: of all segment files, dead
    records included; rows take at most 1 / (1 - garbage_share) of their size in the long run. The directories are this
    store's own, and empty: to open what is there use `recover`. rows_of: int64 [tables], rows here by table index.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        folders: Sequence[Path],
        seeds: U64,
        shift: np.uint64,
        limit_bytes: int,
        io: DiskIo = DiskIo.DIRECT,
        threads: int = DEFAULT_THREADS,
        garbage_share: float = DEFAULT_GARBAGE_SHARE,
        start: Start = Start.EMPTY,
    ) -> None:
        self.layout = layout
        self.seeds, self.shift = seeds, shift
        self.files = SegmentFiles(layout, folders=folders, io=io, limit_bytes=limit_bytes)
        self.index = SsdIndex(seeds=seeds, shift=shift, position_bits=layout.position_bits)
        self.writer = Writer(self.files, folders=len(folders))
        self.reader = Reader(self.files, threads=threads)
        self.compaction = Compaction(self.files, self.index, self.writer, garbage_share=garbage_share)
        self._row_bytes_written = 0
        self.rows_of = np.zeros(len(seeds), np.int64)
        if start is Start.EMPTY and self.files.existing():
            there = self.files.existing()[0]
            self.close()
            raise DataError(f"{there}: is left of another run; recover it, or give an empty directory")

    def append(self, keys: KeySet, rows: F32, uses: U8) -> None:
        """Take rows float32 [n, W] that are not here. uses: uint8 [n], comes back with the row.

        Raises CapacityError when the limit or a disk is reached; then the first of the rows may be here.
        """
        for start in range(0, len(keys), self.layout.per_chunk):
            stop = start + self.layout.per_chunk
            part = keys[start:stop]
            self.index.make_room(part)
            self.compaction.ensure_space(len(part))
            locations = self.writer.append(part, rows[start:stop], uses[start:stop])
            slots = locations >> self.layout.position_bits
            self.files.live += np.bincount(slots, minlength=len(self.files.live))
            self.index.enter_into_room(part, locations)
            self._count(part.tables, 1)
            self._row_bytes_written += len(part) * self.layout.record_bytes
        self.tick()

    def reserve(self, rows: int) -> None:
        """Let about this many rows come without growing the index. Raises CapacityError."""
        self.index.reserve(rows)

    def append_copies(self, keys: KeySet, rows: F32) -> I64:
        """Write rows float32 [n, W] to the files without taking them: for a cut. Where they lie, int64 [n].

        Raises CapacityError when the limit or a disk is reached.
        """
        uses = np.zeros(len(keys), np.uint8)
        written = [np.empty(0, np.int64)]
        for start in range(0, len(keys), self.layout.per_chunk):
            stop = start + self.layout.per_chunk
            part = keys[start:stop]
            self.compaction.ensure_space(len(part))
            written.append(self.writer.append(part, rows[start:stop], uses[start:stop]))
        return np.concatenate(written)

    def read(self, keys: KeySet, *, columns: int | None = None) -> SsdRead:
        """Rows of keys, which stay. columns: only so many of them. Raises as `Reader.read` does."""
        read, _ = self._read(keys, self.layout.width if columns is None else columns)
        return read

    def take(self, keys: KeySet) -> SsdRead:
        """Rows of unique keys, which are here no longer."""
        rows, uses = np.zeros((len(keys), self.layout.width), np.float32), np.zeros(len(keys), np.uint8)
        found = self.take_into(keys, np.arange(len(keys), dtype=np.int32), rows=rows, uses=uses)
        return SsdRead(rows, uses, found)

    def take_into(self, keys: KeySet, picked: I32, *, rows: F32, uses: U8) -> np.ndarray:
        """`take` the picked ones of unique keys into their places in rows float32 [n, W] and uses uint8 [n].

        Returns which of the picked were here, bool; places of the others stay as they are.
        """
        status, locations = self._find(keys, picked, rows, uses)
        found = status[picked] == FOUND
        self._drop(keys, picked[found], locations)
        self.tick()
        return np.asarray(found)

    def discard(self, keys: KeySet) -> np.ndarray:
        """As `take`, without bringing the rows; which were here, bool [n]."""
        read, locations = self._read(keys, 0)
        self._drop(keys, np.flatnonzero(read.found).astype(np.int32), locations)
        return read.found

    def delete(self, keys: KeySet) -> np.ndarray:
        """Forget rows of unique keys, here or taken before, so that no scan of the files finds them again.

        Returns which were here, bool [n].
        """
        read, locations = self._read(keys, 0)
        self.compaction.ensure_space(len(keys))
        nothing = np.zeros((len(keys), self.layout.width), np.float32)
        written = self.writer.append(keys, nothing, np.zeros(len(keys), np.uint8), kind=TOMBSTONE)
        for slot, count in zip(*np.unique(written >> self.layout.position_bits, return_counts=True), strict=True):
            self.files.at(int(slot)).tombstones += int(count)
        self._drop(keys, np.flatnonzero(read.found).astype(np.int32), locations)
        self.tick()
        return read.found

    def scan(self) -> Iterator[tuple[KeySet, F32]]:
        """All rows in parts, segment by segment. Rows may be taken meanwhile; whether those still come is open."""
        return live_rows(self.files, self.index, self.writer)

    def tick(self) -> None:
        """Let compaction and deletion of files go on, without waiting for a disk."""
        self.writer.reap()
        self.compaction.advance()

    def sync(self) -> None:
        """Bring everything to disk."""
        self.writer.sync()

    def seal(self) -> Hold:
        """Bring everything to disk and refer to it: the files of the cut stay until the hold is released."""
        self.writer.seal()
        segments = [segment for segment in self.files if segment.records]
        for segment in segments:
            segment.refer()
        cut = Cut(
            sequence=self.writer.next_sequence,
            segments=tuple(
                CutSegment(path=segment.path, records=segment.records, holes=segment.holes) for segment in segments
            ),
        )
        return Hold(cut, segments)

    def use(self) -> SsdUse:
        retired = [segment for segment in self.files if segment.references and not self.files.live[segment.slot]]
        return SsdUse(
            rows=self.index.row_count,
            disk_bytes=self.files.bytes,
            held_bytes=sum(segment.bytes for segment in retired),
            read_bytes=self.reader.counts.read_bytes + self.compaction.read_bytes,
            reads=self.reader.counts.reads,
            rows_read=self.reader.counts.records,
            written_bytes=self.writer.counts.written_bytes,
            row_bytes_written=self._row_bytes_written,
            compacted_segments=self.compaction.segments,
            index_bytes=self.index.memory_bytes,
            buffer_bytes=self.writer.memory_bytes + self.reader.memory_bytes + self.compaction.memory_bytes,
        )

    def close(self) -> None:
        """End the threads and let go of the files. What was not synced may be lost."""
        self.compaction.close()
        self.reader.close()
        self.writer.close()
        self.files.close()

    def _drop(self, keys: KeySet, picked: I32, locations: I64) -> None:
        self.index.drop(keys, picked, locations, self.files.live)
        self._count(keys.tables[picked], -1)

    def _count(self, tables: U16, sign: int) -> None:
        self.rows_of += sign * np.bincount(tables, minlength=len(self.rows_of))

    def _read(self, keys: KeySet, columns: int) -> tuple[SsdRead, I64]:
        """Rows of keys, and where they lie, int64 [n]."""
        rows, uses = np.zeros((len(keys), columns), np.float32), np.zeros(len(keys), np.uint8)
        status, locations = self._find(keys, np.arange(len(keys), dtype=np.int32), rows, uses)
        return SsdRead(rows, uses, status == FOUND), locations

    def _find(self, keys: KeySet, picked: I32, rows: F32, uses: U8) -> tuple[U8, I64]:
        """Read the picked rows; what became of each, uint8 [n], and where those that were found lie, int64 [n]."""
        self.writer.reap()
        status = np.full(len(keys), NOT_READ, np.uint8)
        locations, cursors = np.empty(len(keys), np.int64), np.full(len(keys), -1, np.int64)
        while self.index.candidates(keys, picked, cursors, locations):
            picked = picked[locations[picked] >= 0]
            self.reader.read(keys, picked, locations, out=rows, uses=uses, status=status)
            picked = picked[status[picked] == OTHER_ROW]
        return status, locations


def buffer_bytes(layout: Layout, *, threads: int = DEFAULT_THREADS) -> int:
    """Memory of all buffers of a store once they are in use."""
    return (WRITE_BUFFERS + 1) * layout.chunk_bytes + threads * scratch_bytes(layout)
