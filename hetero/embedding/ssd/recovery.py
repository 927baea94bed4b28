"""Recovery: the rows of a store from its segment files alone, as of a cut or as of the last record that is whole.

Every record says whose row it is and when it was written; the newest one of a row counts, and a tombstone ends it.
Without a cut, everything that was synced is found, and perhaps some of what came later; a record cut off or torn in the
middle is left out and named. With a cut, exactly its files and records count, and a damaged one is an error.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from hetero.embedding.shards import SHARDS
from hetero.embedding.ssd.files import Segment, SegmentFiles
from hetero.embedding.ssd.layout import Layout, segment_files
from hetero.embedding.ssd.references import Cut
from hetero.embedding.ssd.rows import DEFAULT_GARBAGE_SHARE, DEFAULT_THREADS, SsdRows, Start
from hetero.embedding.ssd.scan import read_chunk
from hetero.errors import DataError
from hetero.kernels.region import Region
from hetero.kernels.ssd_records import PAGE, ROW, TOMBSTONE, scan_kernel
from hetero.kernels.ssd_recovery import WORDS, deal_kernel, shards_kernel
from hetero.records import I64, U64, DiskIo

_RECORD_MEMORY = 40
_MOST_NAMED = 8
DEFAULT_MEMORY_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """rows: found. records: whole ones read. damaged: not whole ones, the first few named as `file: record n`."""

    rows: int
    records: int
    damaged: int
    named: tuple[str, ...]


def recover(
    layout: Layout,
    *,
    folders: Sequence[Path],
    seeds: U64,
    shift: np.uint64,
    limit_bytes: int,
    cut: Cut | None = None,
    io: DiskIo = DiskIo.DIRECT,
    threads: int = DEFAULT_THREADS,
    garbage_share: float = DEFAULT_GARBAGE_SHARE,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
) -> tuple[SsdRows, Recovered]:
    """Open a store on what its directories hold, or on a cut, whose files are linked (or copied) into them; with a cut
    other segments there are deleted. memory_bytes: about the most that this takes beside the index; with less, the
    files are read several times.

    Raises DataError for files of another store, and for a record of the cut that is damaged or missing.
    """
    if cut is not None:
        _bring(cut, folders)
    store = SsdRows(
        layout,
        folders=folders,
        seeds=seeds,
        shift=shift,
        limit_bytes=limit_bytes,
        io=io,
        threads=threads,
        garbage_share=garbage_share,
        start=Start.FILES,
    )
    try:
        return store, _Recovery(store, cut, threads=threads).run(memory_bytes)
    except BaseException:
        store.close()
        raise


class _Scratch(threading.local):
    """Memory of one thread, for one chunk after another: fresh memory costs more than what is done with it here.

    buffer: of the chunk. tables uint16, keys and sequences uint64, kinds and uses uint8, shard_of int16 [records].
    """

    def __init__(self, layout: Layout) -> None:
        most = layout.per_chunk
        self.buffer = Region(layout.chunk_bytes)
        self.tables, self.shard_of = np.empty(most, np.uint16), np.empty(most, np.int16)
        self.keys, self.sequences = np.empty(most, np.uint64), np.empty(most, np.uint64)
        self.kinds, self.uses = np.empty(most, np.uint8), np.empty(most, np.uint8)
        self.no_rows = np.zeros((0, 0), np.float32)


@dataclass(slots=True)
class _Scanned:
    """One segment. records: whole ones of the pass's shards, uint64 [n, 3], chunk after chunk, in each shard after
    shard; those of chunk c and shard s are at [starts[c, s], starts[c, s + 1]). end: behind the last record ever
    written, whole or not. whole, tombstones: how many there are. holes: positions of those that are not whole. newest:
    sequence number."""

    records: U64
    starts: I64
    end: int = 0
    whole: int = 0
    tombstones: int = 0
    holes: list[I64] = field(default_factory=list)
    newest: int = 0

    def of_shard(self, shard: int) -> Iterator[U64]:
        for start, stop in self.starts[:, shard : shard + 2].tolist():
            yield self.records[start:stop]


class _Recovery:
    def __init__(self, store: SsdRows, cut: Cut | None, *, threads: int) -> None:
        self._store = store
        self._files: SegmentFiles = store.files
        self._layout = store.layout
        self._threads = threads
        self._parts = {} if cut is None else {part.path.name: part for part in cut.segments}
        self._cut = cut
        self._whole = 0
        self._damaged = 0
        self._named: list[str] = []
        self._newest_sequence = 0
        self._scratch = _Scratch(store.layout)

    def run(self, memory_bytes: int) -> Recovered:
        segments = [self._adopt(path) for path in self._files.existing()]
        total = sum(segment.records for segment in segments)
        passes = max(1, min(SHARDS, -(-total * _RECORD_MEMORY // memory_bytes)))
        with ThreadPoolExecutor(self._threads, thread_name_prefix="ssd-recover") as pool:
            for number in range(passes):
                shards = range(SHARDS * number // passes, SHARDS * (number + 1) // passes)
                scanned = list(pool.map(partial(self._scanned, shards=shards), segments))
                if number == 0:
                    for segment, own in zip(segments, scanned, strict=True):
                        self._note(segment, own)
                    self._check(segments)
                for of_tables, of_segments in pool.map(partial(self._enter, scanned), shards) if scanned else ():
                    self._store.rows_of += of_tables
                    self._files.live += of_segments
        for segment in segments if self._cut is None else ():
            self._drop_torn_end(segment)
            self._files.seal(segment)
        self._store.writer.start_at(self._newest_sequence + 1 if self._cut is None else self._cut.sequence)
        return Recovered(
            rows=self._store.index.row_count,
            records=self._whole,
            damaged=self._damaged,
            named=tuple(self._named),
        )

    def _adopt(self, path: Path) -> Segment:
        segment = self._files.adopt(path)
        chunks, rest = divmod(max(0, segment.bytes - PAGE), self._layout.chunk_bytes)
        most = chunks * self._layout.per_chunk + -(-rest // self._layout.record_bytes)
        part = self._parts.get(path.name)
        segment.records = min(most, self._layout.per_segment) if part is None else part.records
        return segment

    def _drop_torn_end(self, segment: Segment) -> None:
        """Cut off the first part of a record that the file ends in. Sealing fills the page with zeros: a record whose
        lost part was zeros, as a tombstone's row is, would be whole again, and what was found here no longer true."""
        layout = self._layout
        whole, rest = divmod(max(0, os.fstat(segment.file).st_size - PAGE), layout.chunk_bytes)
        end = PAGE + whole * layout.chunk_bytes + rest // layout.record_bytes * layout.record_bytes
        if end < layout.bytes_of(segment.records):
            os.ftruncate(segment.file, end)

    def _scanned(self, segment: Segment, shards: range) -> _Scanned:
        """All records of a segment, and which of them are the shards' own."""
        layout, count = self._layout, segment.records
        chunks = -(-count // layout.per_chunk)
        scanned = _Scanned(_untouched(count), np.zeros((chunks, SHARDS + 1), np.int64))
        for part in range(chunks):
            first = part * layout.per_chunk
            self._scan_chunk(segment, part, scanned, shards, count=min(layout.per_chunk, count - first))
        return scanned

    def _scan_chunk(self, segment: Segment, part: int, scanned: _Scanned, shards: range, *, count: int) -> None:
        layout, scratch, first = self._layout, self._scratch, part * self._layout.per_chunk
        tables, keys, sequences = scratch.tables[:count], scratch.keys[:count], scratch.sequences[:count]
        kinds, starts, shard_of = scratch.kinds[:count], scanned.starts[part], scratch.shard_of[:count]
        scan_kernel(
            np.uint64(scratch.buffer.address),
            read_chunk(segment, part, layout, scratch.buffer),
            np.uint64(segment.number),
            first,
            count,
            layout.for_kernels(),
            tables,
            keys,
            sequences,
            kinds,
            scratch.uses[:count],
            scratch.no_rows,
        )
        whole, newest = shards_kernel(
            tables,
            keys,
            sequences,
            kinds,
            self._store.seeds,
            self._store.shift,
            shards.start,
            shards.stop,
            shard_of,
            starts,
        )
        before = int(scanned.starts[part - 1, -1]) if part else 0
        records = scanned.records[before : before + int(starts[-1])]
        base = np.uint64((segment.slot << layout.position_bits) + first)
        deal_kernel(tables, keys, sequences, kinds, base, shard_of, starts, records)
        starts += before
        scanned.whole += whole
        scanned.newest = max(scanned.newest, int(newest))
        scanned.tombstones += int(np.count_nonzero(kinds == TOMBSTONE))
        if whole < count:
            scanned.holes.append(first + np.flatnonzero((kinds != ROW) & (kinds != TOMBSTONE)))
        if kinds.any():
            scanned.end = first + count - int(np.argmax(kinds[::-1] != 0))

    def _enter(self, scanned: list[_Scanned], shard: int) -> tuple[I64, I64]:
        """Enter the newest records of a shard's rows into the index: how many of each table, and in each segment."""
        parts = [part for own in scanned for part in own.of_shard(shard)]
        records = np.concatenate(parts) if parts else _untouched(0)
        of_tables, of_segments = np.zeros_like(self._store.rows_of), np.zeros_like(self._files.live)
        self._store.index.enter_newest(records, shard=shard, of_tables=of_tables, of_segments=of_segments)
        return of_tables, of_segments

    def _note(self, segment: Segment, scanned: _Scanned) -> None:
        """Count a segment's records, and name those that are not whole, or missing in the cut."""
        if self._cut is None:
            segment.records = scanned.end
        self._whole += scanned.whole
        self._newest_sequence = max(self._newest_sequence, scanned.newest)
        segment.tombstones = scanned.tombstones
        holes = np.concatenate([np.empty(0, np.int64), *scanned.holes])
        positions = holes[holes < segment.records]
        segment.holes = len(positions)
        segment.synced = segment.records
        known = self._parts[segment.path.name].holes if self._cut is not None else 0
        if len(positions) != known:
            self._damaged += len(positions) - known
            room = _MOST_NAMED - len(self._named)
            self._named += [f"{segment.path}: record {position}" for position in positions[:room].tolist()]

    def _check(self, segments: list[Segment]) -> None:
        missing = set(self._parts) - {segment.path.name for segment in segments}
        if missing:
            raise DataError(f"{sorted(missing)[0]}: a segment of the cut is missing; take an older snapshot")
        if self._cut is not None and self._damaged:
            raise DataError(
                f"{self._damaged} records of the cut are damaged: {', '.join(self._named)}; take an older snapshot"
            )


def _untouched(records: int) -> U64:
    """Memory for as many records, uint64 [records, 3], of which only what is written to is taken, in huge pages."""
    size = 8 * WORDS * records
    return np.frombuffer(Region(size).view(size), np.uint64).reshape(records, WORDS)


def _bring(cut: Cut, folders: Sequence[Path]) -> None:
    """Let the directories hold the segments of the cut and no other."""
    names = {part.path.name for part in cut.segments}
    there = set()
    for folder in folders:
        for path in segment_files(folder):
            if path.name in names:
                there.add(path.name)
            else:
                path.unlink()
    for number, part in enumerate(part for part in cut.segments if part.path.name not in there):
        if part.path.exists():
            folder = folders[number % len(folders)]
            folder.mkdir(parents=True, exist_ok=True)
            _link(part.path, folder / part.path.name)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK):
            raise
        shutil.copyfile(source, target)
