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
from pathlib import Path

import numpy as np

from hetero.embedding.shards import SHARDS
from hetero.embedding.ssd.files import Segment, SegmentFiles
from hetero.embedding.ssd.layout import Layout, segment_files
from hetero.embedding.ssd.references import Cut
from hetero.embedding.ssd.rows import DEFAULT_GARBAGE_SHARE, DEFAULT_THREADS, SsdRows, Start
from hetero.embedding.ssd.scan import ScannedChunk, decode_chunk, locations_of, read_chunk
from hetero.errors import DataError
from hetero.kernels.mix import mix64_reference
from hetero.kernels.region import Region
from hetero.kernels.ssd_index import newest_kernel
from hetero.kernels.ssd_records import PAGE, ROW, TOMBSTONE
from hetero.records import I64, U64, DiskIo, KeySet

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
                self._enter(segments, list(pool.map(self._scanned, segments)), shards)
                if number == 0:
                    self._check(segments)
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

    def _scanned(self, segment: Segment) -> list[ScannedChunk]:
        """All chunks of a segment, without rows."""
        layout = self._layout
        buffer = Region(layout.chunk_bytes)
        chunks = []
        for part in range(-(-segment.records // layout.per_chunk)):
            size = read_chunk(segment, part, layout, buffer)
            chunks.append(decode_chunk(segment, part, layout, address=buffer.address, size=size, columns=0))
        return chunks

    def _enter(self, segments: list[Segment], scanned: list[list[ScannedChunk]], shards: range) -> None:
        """Enter the newest records of all rows of these shards into the index."""
        located: list[I64] = []
        for segment, chunks in zip(segments, scanned, strict=True):
            located += [locations_of(segment, chunk.first + chunk.written, self._layout) for chunk in chunks]
            if shards.start == 0:
                self._note(segment, chunks)
        parts = [chunk for chunks in scanned for chunk in chunks]
        if not parts:
            return
        tables = np.concatenate([chunk.keys.tables[chunk.written] for chunk in parts])
        keys = np.concatenate([chunk.keys.keys[chunk.written] for chunk in parts])
        sequences = np.concatenate([chunk.sequences[chunk.written] for chunk in parts])
        kinds = np.concatenate([chunk.kinds[chunk.written] for chunk in parts])
        locations = np.concatenate(located)
        if len(shards) < SHARDS:
            shard = (mix64_reference(keys ^ self._store.seeds[tables]) >> self._store.shift) & np.uint64(SHARDS - 1)
            own = (shard >= shards.start) & (shard < shards.stop)
            tables, keys, sequences, kinds, locations = (
                values[own] for values in (tables, keys, sequences, kinds, locations)
            )
        slots = np.full(1 << max(4, int(1.5 * len(keys)).bit_length()), -1, np.int32)
        newest = np.empty(len(keys), np.int32)
        newest = newest[: newest_kernel(tables, keys, sequences, slots, newest)]
        newest = newest[kinds[newest] == ROW]
        self._store.index.enter(KeySet(tables[newest], keys[newest]), locations[newest])
        self._store.rows_of += np.bincount(tables[newest], minlength=len(self._store.rows_of))
        np.add.at(self._files.live, locations[newest] >> self._layout.position_bits, 1)

    def _note(self, segment: Segment, chunks: list[ScannedChunk]) -> None:
        """Count a segment's records, and name those that are not whole, or missing in the cut."""
        if self._cut is None:
            segment.records = max((_end_of(chunk) for chunk in chunks), default=0)
        bad = []
        for chunk in chunks:
            whole = chunk.written
            self._whole += len(whole)
            segment.tombstones += int((chunk.kinds == TOMBSTONE).sum())
            if len(whole):
                self._newest_sequence = max(self._newest_sequence, int(chunk.sequences[whole].max()))
            bad.append(chunk.first + np.flatnonzero((chunk.kinds != ROW) & (chunk.kinds != TOMBSTONE)))
        positions = np.concatenate([np.empty(0, np.int64), *bad])
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


def _end_of(chunk: ScannedChunk) -> int:
    """Position behind the last record that was ever written, whole or not; 0 for a chunk without any."""
    there = np.flatnonzero(chunk.kinds)
    return chunk.first + int(there[-1]) + 1 if len(there) else 0


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
