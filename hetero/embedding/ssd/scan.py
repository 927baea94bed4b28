"""Segments read from end to end: for compaction, for walking all rows, for recovery."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hetero.embedding.ssd.files import Segment, SegmentFiles
from hetero.embedding.ssd.index import SsdIndex
from hetero.embedding.ssd.layout import Layout
from hetero.embedding.ssd.writer import Writer
from hetero.errors import DataError, HeteroError
from hetero.kernels.region import Region
from hetero.kernels.ssd_records import PAGE, ROW, TOMBSTONE, U8, scan_kernel
from hetero.records import F32, I64, U64, KeySet


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedChunk:
    """Records [first, first + n) of a segment. kinds: 0 never written, ROW, TOMBSTONE, 255 damaged or cut off."""

    first: int
    keys: KeySet
    sequences: U64
    kinds: U8
    uses: U8
    rows: F32

    @property
    def written(self) -> np.ndarray:
        """Positions in the chunk that hold a whole record, int64."""
        return np.flatnonzero((self.kinds == ROW) | (self.kinds == TOMBSTONE))


def read_chunk(segment: Segment, part: int, layout: Layout, buffer: Region) -> int:
    """Bring one chunk from the file into memory; how many bytes there were."""
    size, offset, done = layout.chunk_bytes, PAGE + part * layout.chunk_bytes, 0
    with buffer.view(size) as view:
        while done < size:
            try:
                got = os.preadv(segment.file, [view[done:]], offset + done)
            except OSError as error:
                raise HeteroError(
                    f"{segment.path}: cannot be read at byte {offset + done} ({error.strerror})"
                ) from error
            done += got
            if got == 0 or got % PAGE:
                break
    return done


def decode_chunk(segment: Segment, part: int, layout: Layout, *, address: int, size: int, columns: int) -> ScannedChunk:
    """Decode the records of one chunk, of which `size` bytes are at the address. columns: of the rows, W or 0."""
    first = part * layout.per_chunk
    count = min(layout.per_chunk, segment.records - first)
    tables, keys, sequences = np.zeros(count, np.uint16), np.zeros(count, np.uint64), np.zeros(count, np.uint64)
    kinds, uses = np.zeros(count, np.uint8), np.zeros(count, np.uint8)
    rows = np.zeros((count, columns), np.float32)
    scan_kernel(
        np.uint64(address),
        size,
        np.uint64(segment.number),
        first,
        count,
        layout.for_kernels(),
        tables,
        keys,
        sequences,
        kinds,
        uses,
        rows,
    )
    return ScannedChunk(first=first, keys=KeySet(tables, keys), sequences=sequences, kinds=kinds, uses=uses, rows=rows)


def locations_of(segment: Segment, positions: np.ndarray, layout: Layout) -> I64:
    located: I64 = (segment.slot << layout.position_bits) + positions.astype(np.int64)
    return located


def live_rows(files: SegmentFiles, index: SsdIndex, writer: Writer) -> Iterator[tuple[KeySet, F32]]:
    """All rows in parts of a chunk. Files stay as long as the walk lasts.

    Raises DataError when a row that the index knows of cannot be read.
    """
    layout = files.layout
    segments = sorted(files, key=lambda segment: segment.number)
    buffer = Region(layout.chunk_bytes)
    for segment in segments:
        segment.refer()
    try:
        for segment in segments:
            seen, wanted = 0, int(files.live[segment.slot])
            for part in range(-(-segment.records // layout.per_chunk) if wanted else 0):
                writer.reap()
                address = int(files.chunks[segment.slot, part])
                size = layout.chunk_bytes if address else read_chunk(segment, part, layout, buffer)
                chunk = decode_chunk(
                    segment, part, layout, address=address or buffer.address, size=size, columns=layout.width
                )
                positions = np.flatnonzero(chunk.kinds == ROW)
                keys = chunk.keys[positions]
                live = index.is_live(keys, locations_of(segment, chunk.first + positions, layout))
                seen += int(live.sum())
                if live.any():
                    yield keys[live], chunk.rows[positions[live]]
            if seen < int(files.live[segment.slot]):
                raise damaged(segment, int(files.live[segment.slot]) - seen)
    finally:
        for segment in segments:
            segment.let_go()


def damaged(segment: Segment, rows: int) -> DataError:
    return DataError(f"{segment.path}: {rows} records with rows are damaged; resume from a snapshot")
