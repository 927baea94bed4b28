"""Appends to segment files: records are laid out in memory, and whole chunks written in the background.

Until a chunk is on disk its rows are read from memory. `sync` is the only promise: what was appended before it survives
the loss of the process and of the machine. Calls come from one thread; each directory has a thread that writes, in
order.
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from hetero.embedding.ssd.files import Segment, SegmentFiles, disk_error, sync_names
from hetero.kernels.region import Region
from hetero.kernels.ssd_records import PAGE, ROW, U8, encode_kernel
from hetero.records import F32, I64, U64, KeySet

WRITE_BUFFERS = 4


@dataclass(slots=True, eq=False)
class _Write:
    """A chunk under way. buffer: to be used again after it, or None while rows are still added to it."""

    done: Future[None]
    segment: Segment
    part: int
    buffer: Region | None


@dataclass(frozen=True, slots=True)
class _Sync:
    """A sync under way: records below `target` will be on disk, so many of each segment."""

    target: int
    dones: list[Future[None]]
    records: list[tuple[Segment, int]]


@dataclass(slots=True)
class WriteCounts:
    """records: appended. written_bytes: to files. syncs: `fdatasync` of all that was dirty."""

    records: int = 0
    written_bytes: int = 0
    syncs: int = 0


class Writer:
    """Appends to one store's open segment. folders: how many directories there are.

    next_sequence: of the next record. synced: records below it are on disk.
    """

    def __init__(self, files: SegmentFiles, *, folders: int) -> None:
        self._files = files
        self._layout = files.layout
        self._shape = files.layout.for_kernels()
        self._pools = [ThreadPoolExecutor(1, thread_name_prefix="ssd-write") for _ in range(folders)]
        self._free: list[Region] = []
        self._made = 0
        self._open: Segment | None = None
        self._buffer: Region | None = None
        self._writes: deque[_Write] = deque()
        self._syncing: _Sync | None = None
        self._dirty: dict[int, Segment] = {}
        self.next_sequence = 1
        self.synced = 1
        self.counts = WriteCounts()

    @property
    def memory_bytes(self) -> int:
        """Of the chunks in memory."""
        return self._made * self._layout.chunk_bytes

    def start_at(self, sequence: int) -> None:
        """Go on from records that are on disk."""
        self.next_sequence = self.synced = sequence

    def needs_segment(self, records: int) -> bool:
        """Whether so many records would open a new segment."""
        room = 0 if self._open is None else self._layout.per_segment - self._open.records
        return records > room

    def append(self, keys: KeySet, rows: F32, uses: U8, *, kind: int = ROW, sequences: U64 | None = None) -> I64:
        """Write records float32 [n, W]; where they lie, int64 [n]. sequences: of records that keep theirs; default, the
        next ones. Raises CapacityError when a disk is full.
        """
        self.reap()
        if sequences is None:
            sequences = np.arange(self.next_sequence, self.next_sequence + len(keys), dtype=np.uint64)
        locations = np.empty(len(keys), np.int64)
        start = 0
        while start < len(keys):
            segment = self._opened()
            position = segment.records
            count = min(len(keys) - start, self._layout.per_chunk - position % self._layout.per_chunk)
            buffer = self._current(segment, position // self._layout.per_chunk)
            encode_kernel(
                keys.tables,
                keys.keys,
                rows,
                uses,
                start,
                count,
                kind,
                np.uint64(buffer.address),
                np.uint64(segment.number),
                position,
                sequences,
                self._shape,
            )
            first = (segment.slot << self._layout.position_bits) + position
            locations[start : start + count] = np.arange(first, first + count)
            start += count
            self.next_sequence += count  # by records that keep theirs too: `synced` counts what is on disk
            self.counts.records += count
            segment.records += count
            self._dirty[segment.number] = segment
            if segment.records % self._layout.per_chunk == 0:
                self._write_out(segment, buffer)
        return locations

    def reap(self) -> None:
        """Take note of writes that are done. Raises what they raised."""
        for write in [write for write in self._writes if write.done.done()]:
            self._writes.remove(write)
            self._finish(write)
        if self._syncing is not None and all(done.done() for done in self._syncing.dones):
            self._finish_sync()

    def begin_sync(self) -> None:
        """Bring all that was appended so far to disk, in the background."""
        if self._syncing is not None or self.synced == self.next_sequence:
            return
        if self._buffer is not None and self._open is not None:
            part = (self._open.records - 1) // self._layout.per_chunk
            self._submit(self._open, part, self._buffer, keep=True)
        by_folder: dict[int, list[Segment]] = {}
        for segment in self._dirty.values():
            by_folder.setdefault(self._files.folder_of(segment), []).append(segment)
        dones = [self._pools[folder].submit(_sync, segments) for folder, segments in by_folder.items()]
        records = [(segment, segment.records) for segment in self._dirty.values()]
        self._dirty = {}
        self._syncing = _Sync(self.next_sequence, dones, records)

    def sync(self) -> None:
        """Return when all that was appended is on disk. Raises CapacityError when a disk is full."""
        target = self.next_sequence
        while self.synced < target:
            self.begin_sync()
            self._drain()

    def seal(self) -> None:
        """`sync`, and let the next append open a new segment."""
        self.sync()
        if self._open is not None:
            self._files.chunks[self._open.slot] = 0
            self._files.seal(self._open)
            os.fdatasync(self._open.file)
            self._open = None
        if self._buffer is not None:
            self._free.append(self._buffer)
            self._buffer = None

    def close(self) -> None:
        """End the threads. What was not synced may be lost."""
        for pool in self._pools:
            pool.shutdown(wait=True)

    def _opened(self) -> Segment:
        """The open segment, with room for a record."""
        if self._open is not None and self._open.records == self._layout.per_segment:
            self._files.seal(self._open)
            self._open = None
        if self._open is None:
            self._open = self._files.create()
        return self._open

    def _current(self, segment: Segment, part: int) -> Region:
        """The memory of the chunk that takes the next record."""
        if self._buffer is None:
            while not self._free and self._made >= WRITE_BUFFERS:
                self._finish(self._writes.popleft())
            if self._free:
                self._buffer = self._free.pop()
            else:
                self._buffer = Region(self._layout.chunk_bytes)
                self._made += 1
            self._files.chunks[segment.slot, part] = self._buffer.address
        return self._buffer

    def _write_out(self, segment: Segment, buffer: Region) -> None:
        self._submit(segment, segment.records // self._layout.per_chunk - 1, buffer, keep=False)
        self._buffer = None

    def _submit(self, segment: Segment, part: int, buffer: Region, *, keep: bool) -> None:
        in_chunk = segment.records - part * self._layout.per_chunk
        # What an earlier use left behind the last record of a chunk would read as damaged.
        used = in_chunk * self._layout.record_bytes
        size = -(-used // PAGE) * PAGE
        buffer.view(size)[used:size] = bytes(size - used)
        offset = PAGE + part * self._layout.chunk_bytes
        done = self._pools[self._files.folder_of(segment)].submit(_write, segment, buffer, size, offset)
        self.counts.written_bytes += size
        self._writes.append(_Write(done, segment, part, None if keep else buffer))

    def _finish(self, write: _Write) -> None:
        write.done.result()
        if write.buffer is not None:
            self._files.chunks[write.segment.slot, write.part] = 0
            self._free.append(write.buffer)

    def _finish_sync(self) -> None:
        assert self._syncing is not None
        sync = self._syncing
        self._syncing = None
        for done in sync.dones:
            done.result()
        for segment, records in sync.records:
            segment.synced = records
        self.synced = sync.target
        self.counts.syncs += 1

    def _drain(self) -> None:
        while self._writes:
            self._finish(self._writes.popleft())
        if self._syncing is not None:
            self._finish_sync()


def _write(segment: Segment, buffer: Region, size: int, offset: int) -> None:
    try:
        with buffer.view(size) as view:
            done = 0
            while done < size:
                done += os.pwrite(segment.file, view[done:], offset + done)
    except OSError as error:
        raise disk_error(error, segment.path, wanted=size) from error


def _sync(segments: list[Segment]) -> None:
    """Data, sizes and names of the files of one directory."""
    for segment in segments:
        try:
            os.fdatasync(segment.file)
        except OSError as error:
            raise disk_error(error, segment.path, wanted=segment.bytes) from error
    sync_names(segments[0].path.parent)
