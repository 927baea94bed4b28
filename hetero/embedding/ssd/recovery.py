"""Recovery: the rows of a store from its segment files alone, as of a cut or as of the last record that is whole.

Every record says whose row it is and when it was written; the newest one of a row counts, and a tombstone ends it.
Without a cut, everything that was synced is found, and perhaps some of what came later; a record cut off or torn in the
middle is left out and named. With a cut, exactly its files and records count, and a damaged one is an error.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from hetero.embedding.shards import SHARDS
from hetero.embedding.ssd.files import Segment, SegmentFiles
from hetero.embedding.ssd.layout import Layout, segment_files
from hetero.embedding.ssd.references import Cut
from hetero.embedding.ssd.rows import DEFAULT_GARBAGE_SHARE, DEFAULT_THREADS, SsdRows, Start
from hetero.embedding.ssd.scan import locations_of, read_chunk
from hetero.errors import DataError
from hetero.kernels.region import Region
from hetero.kernels.ssd_index import by_shard_kernel, newest_kernel
from hetero.kernels.ssd_records import PAGE, ROW, TOMBSTONE, U8, scan_kernel
from hetero.records import I64, U16, U64, DiskIo, KeySet

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


@dataclass(frozen=True, slots=True)
class _Found:
    """Records: tables uint16, keys and sequences uint64, kinds and uses uint8 [n]."""

    tables: U16
    keys: U64
    sequences: U64
    kinds: U8
    uses: U8

    @staticmethod
    def empty(count: int) -> _Found:
        wide = np.zeros(count, np.uint64), np.zeros(count, np.uint64)
        return _Found(np.zeros(count, np.uint16), *wide, np.zeros(count, np.uint8), np.zeros(count, np.uint8))

    def part(self, start: int, stop: int) -> _Found:
        own = slice(start, stop)
        return _Found(self.tables[own], self.keys[own], self.sequences[own], self.kinds[own], self.uses[own])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scanned:
    """One segment. found, locations: whole records of the pass's shards, shard after shard; those of shard s are at
    [starts[s], starts[s + 1]). kinds: of all records, as they lie. whole: how many are. newest: sequence number."""

    found: _Found
    locations: I64
    starts: I64
    kinds: U8
    whole: int
    newest: int


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
        buffer, no_rows = Region(layout.chunk_bytes), np.zeros((0, 0), np.float32)
        found = _Found.empty(count)
        for part in range(-(-count // layout.per_chunk)):
            first = part * layout.per_chunk
            own = found.part(first, min(first + layout.per_chunk, count))
            scan_kernel(
                np.uint64(buffer.address),
                read_chunk(segment, part, layout, buffer),
                np.uint64(segment.number),
                first,
                len(own.keys),
                layout.for_kernels(),
                own.tables,
                own.keys,
                own.sequences,
                own.kinds,
                own.uses,
                no_rows,
            )
        starts = np.zeros(SHARDS + 1, np.int64)
        sorted_, positions = _Found.empty(count), np.empty(count, np.int32)
        kept = by_shard_kernel(
            found.tables,
            found.keys,
            found.sequences,
            found.kinds,
            self._store.seeds,
            self._store.shift,
            shards.start,
            shards.stop,
            starts,
            sorted_.tables,
            sorted_.keys,
            sorted_.sequences,
            sorted_.kinds,
            positions,
        )
        whole = np.flatnonzero((found.kinds == ROW) | (found.kinds == TOMBSTONE))
        return _Scanned(
            found=sorted_.part(0, kept),
            locations=locations_of(segment, positions[:kept], self._layout),
            starts=starts,
            kinds=found.kinds,
            whole=len(whole),
            newest=int(found.sequences[whole].max()) if len(whole) else 0,
        )

    def _enter(self, scanned: list[_Scanned], shard: int) -> tuple[I64, I64]:
        """Enter the newest records of a shard's rows into the index: how many of each table, and in each segment."""
        parts = [(own, slice(int(own.starts[shard]), int(own.starts[shard + 1]))) for own in scanned]
        tables = np.concatenate([own.found.tables[part] for own, part in parts])
        keys = np.concatenate([own.found.keys[part] for own, part in parts])
        sequences = np.concatenate([own.found.sequences[part] for own, part in parts])
        kinds = np.concatenate([own.found.kinds[part] for own, part in parts])
        locations = np.concatenate([own.locations[part] for own, part in parts])
        slots = np.full(1 << max(4, int(1.5 * len(keys)).bit_length()), -1, np.int32)
        newest = np.empty(len(keys), np.int32)
        newest = newest[: newest_kernel(tables, keys, sequences, slots, newest)]
        newest = newest[kinds[newest] == ROW]
        tables, locations = tables[newest], locations[newest]
        self._store.index.enter(KeySet(tables, keys[newest]), locations)
        return (
            np.bincount(tables, minlength=len(self._store.rows_of)),
            np.bincount(locations >> self._layout.position_bits, minlength=len(self._files.live)),
        )

    def _note(self, segment: Segment, scanned: _Scanned) -> None:
        """Count a segment's records, and name those that are not whole, or missing in the cut."""
        kinds = scanned.kinds
        if self._cut is None:
            there = np.flatnonzero(kinds)
            segment.records = int(there[-1]) + 1 if len(there) else 0  # behind the last one ever written, whole or not
        self._whole += scanned.whole
        self._newest_sequence = max(self._newest_sequence, scanned.newest)
        segment.tombstones = int((kinds == TOMBSTONE).sum())
        positions = np.flatnonzero((kinds != ROW) & (kinds != TOMBSTONE))
        positions = positions[positions < segment.records]
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
