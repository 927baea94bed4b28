"""Compaction: segments that are mostly garbage are read, their live rows appended anew, and their files deleted.

A segment is compacted when `garbage_share` of its records are garbage, so one appended row costs at most
1 / garbage_share written ones in the long run. Only when the limit is reached lesser shares are taken, down to a
tenth. Reading goes on in the background, a chunk at a time; what it brings is applied between the store's calls.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from hetero.embedding.ssd.files import Segment, SegmentFiles, State
from hetero.embedding.ssd.index import SsdIndex
from hetero.embedding.ssd.scan import ScannedChunk, damaged, decode_chunk, locations_of, read_chunk
from hetero.embedding.ssd.writer import Writer
from hetero.errors import CapacityError
from hetero.kernels.region import Region
from hetero.kernels.ssd_records import ROW, TOMBSTONE

_LEAST_SHARE = 0.1
_CHUNKS_AT_ONCE = 2


@dataclass(slots=True)
class _Job:
    """A segment under compaction: the chunk that is being read."""

    segment: Segment
    part: int
    read: Future[int]


class Compaction:
    """Compaction of one store's segments. Calls come from the store's thread. paused: while records that no index
    knows of are to stay; no segment is begun then."""

    def __init__(self, files: SegmentFiles, index: SsdIndex, writer: Writer, *, garbage_share: float) -> None:
        self._files = files
        self._layout = files.layout
        self._index = index
        self._writer = writer
        self._share = garbage_share
        self._buffer: Region | None = None
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="ssd-compact")
        self._job: _Job | None = None
        self.paused = False
        self.segments = 0
        self.read_bytes = 0

    @property
    def memory_bytes(self) -> int:
        return 0 if self._buffer is None else self._buffer.size

    def advance(self) -> None:
        """Apply what was read meanwhile, and let the next be read. Raises DataError when a live row is damaged."""
        self._delete()
        for _ in range(_CHUNKS_AT_ONCE):
            if self._job is None and not self._start(self._share):
                return
            assert self._job is not None
            if not self._job.read.done():
                return
            self._apply()

    def ensure_space(self, records: int) -> None:
        """Make room on disk for records to be appended, waiting for it where the limit is near.

        Raises CapacityError when there is none to be made. The last segment below the limit is left to compaction.
        """
        if not self._writer.needs_segment(records):
            return
        while self._files.bytes + 2 * self._layout.segment_bytes > self._files.limit_bytes:
            before = self._files.bytes
            self._writer.sync()
            self._delete()
            if self._files.bytes < before:
                continue
            if self._job is None and not self._start(_LEAST_SHARE):
                if self._files.bytes >= before:
                    raise self._full()
                continue
            while self._job is not None:
                self._apply()

    def close(self) -> None:
        self._pool.shutdown(wait=True)

    def _start(self, share: float) -> bool:
        """Begin with the segment that has most garbage, if that is at least this share of it."""
        if self.paused:
            return False
        oldest = self._files.oldest()
        best, most = None, share
        for segment in list(self._files):
            if segment.state is not State.SEALED or segment.references:
                continue
            garbage = self._files.garbage(segment, oldest=oldest)
            if garbage < share * segment.records or self._files.chunks[segment.slot].any():
                continue  # too little, or not on disk yet
            if garbage == segment.records:
                self._retire(segment)
            elif garbage / segment.records >= most:
                best, most = segment, garbage / segment.records
        if best is None or self._files.bytes + self._layout.segment_bytes > self._files.limit_bytes:
            return False
        self._read(best, 0)
        return True

    def _read(self, segment: Segment, part: int) -> None:
        if self._buffer is None:
            self._buffer = Region(self._layout.chunk_bytes)
        self._job = _Job(segment, part, self._pool.submit(read_chunk, segment, part, self._layout, self._buffer))

    def _apply(self) -> None:
        """Append the live rows of the chunk that was read, and go on to the next chunk."""
        job, buffer = self._job, self._buffer
        assert job is not None
        assert buffer is not None
        self._job = None
        size = job.read.result()
        self.read_bytes += size
        chunk = decode_chunk(
            job.segment, job.part, self._layout, address=buffer.address, size=size, columns=self._layout.width
        )
        self._move_rows(job.segment, chunk)
        self._keep_tombstones(job.segment, chunk)
        if (job.part + 1) * self._layout.per_chunk < job.segment.records:
            self._read(job.segment, job.part + 1)
            return
        left = int(self._files.live[job.segment.slot])
        if left:
            raise damaged(job.segment, left)
        self._retire(job.segment)

    def _move_rows(self, segment: Segment, chunk: ScannedChunk) -> None:
        positions = np.flatnonzero(chunk.kinds == ROW)
        keys = chunk.keys[positions]
        old = locations_of(segment, chunk.first + positions, self._layout)
        live = self._index.is_live(keys, old)
        if not live.any():
            return
        keys, picked = keys[live], positions[live]
        new = self._writer.append(keys, chunk.rows[picked], chunk.uses[picked])
        np.add.at(self._files.live, new >> self._layout.position_bits, 1)
        self._files.live[segment.slot] -= len(keys)
        self._index.move(keys, old[live], new)

    def _keep_tombstones(self, segment: Segment, chunk: ScannedChunk) -> None:
        """An older segment may hold the deleted row. They keep their numbers: it may have come again since."""
        if segment.number == self._files.oldest():
            return
        positions = np.flatnonzero(chunk.kinds == TOMBSTONE)
        if not len(positions):
            return
        keys = chunk.keys[positions]
        nothing = np.zeros((len(positions), self._layout.width), np.float32)
        written = self._writer.append(
            keys,
            nothing,
            np.zeros(len(positions), np.uint8),
            kind=TOMBSTONE,
            sequences=chunk.sequences[positions],
        )
        for slot, count in zip(*np.unique(written >> self._layout.position_bits, return_counts=True), strict=True):
            self._files.at(int(slot)).tombstones += int(count)

    def _retire(self, segment: Segment) -> None:
        segment.state = State.RETIRED
        segment.retired_at = self._writer.next_sequence
        self.segments += 1
        self._delete()

    def _delete(self) -> None:
        """Delete retired files that nothing refers to, once the rows they held are on disk elsewhere."""
        for segment in list(self._files):
            if segment.state is State.RETIRED and not segment.references:
                if segment.retired_at <= self._writer.synced:
                    self._files.remove(segment)
                else:
                    self._writer.begin_sync()

    def _full(self) -> CapacityError:
        rows, held = int(self._files.live.sum()), sum(part.bytes for part in self._files if part.references)
        folders = sorted({str(part.path.parent) for part in self._files})
        return CapacityError(
            f"{', '.join(folders)}: rows on SSD take {self._files.bytes} bytes and the limit is "
            f"{self._files.limit_bytes}: {rows} rows of {self._layout.record_bytes} bytes, {held} bytes held for "
            f"snapshots and scans, segments of {self._layout.segment_bytes} bytes; raise storage.ssd_bytes"
        )
