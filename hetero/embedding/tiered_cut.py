"""A consistent cut of a tiered store's rows, read out while they change and move.

At the cut the rows in memory, and the values that towers told of leased ones, are appended to the files once more, so
that the files hold every row as it is; they are sealed and kept, and which of their records count is noted, one flag a
record. So reading the cut needs nothing of the store, and any thread may do it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from hetero.embedding.cut import RowChunk
from hetero.embedding.ssd.files import Segment
from hetero.embedding.ssd.references import Hold
from hetero.embedding.ssd.rows import SsdRows
from hetero.embedding.ssd.scan import damaged, decode_chunk, read_chunk
from hetero.errors import ProtocolError
from hetero.kernels.region import Region
from hetero.kernels.ssd_records import ROW
from hetero.records import I64, KeySet


class TieredCut:
    """The rows of `ssd` and those at other locations (int64), as they are now. See `hetero.embedding.cut.StoreCut`."""

    statistics: Mapping[str, np.dtype[Any]] = {}

    def __init__(self, ssd: SsdRows, copies: I64) -> None:
        self.mark = 0
        self.width = ssd.layout.width
        self._layout = ssd.layout
        self._hold: Hold | None = ssd.seal()
        self.held = ssd.index.row_count + len(copies)
        records = np.zeros(1 + max((segment.slot for segment in self._hold.segments), default=0), np.int64)
        for segment in self._hold.segments:
            records[segment.slot] = -(-segment.records // 8) * 8
        starts = np.cumsum(records) - records
        self._flags = np.zeros(int(records.sum()) // 8, np.uint8)
        ssd.index.flag(starts, self._flags, also=copies)
        self._starts = starts

    def chunks(self) -> Iterator[RowChunk]:
        """The rows, once, part by part. Raises ProtocolError when the cut was closed meanwhile, DataError for a damaged
        record."""
        buffer = Region(self._layout.chunk_bytes)
        for segment in self._open().segments:
            for part in range(-(-segment.records // self._layout.per_chunk)):
                at = self._counted(segment, part)
                if not len(at):
                    continue
                self._open()
                size = read_chunk(segment, part, self._layout, buffer)
                chunk = decode_chunk(segment, part, self._layout, address=buffer.address, size=size, columns=self.width)
                bad = int((chunk.kinds[at] != ROW).sum())
                if bad:
                    raise damaged(segment, bad)
                yield RowChunk(chunk.keys[at], chunk.rows[at])

    def _counted(self, segment: Segment, part: int) -> I64:
        """The records of a segment's chunk that count: their places in the chunk, ascending."""
        first = part * self._layout.per_chunk
        count = min(self._layout.per_chunk, segment.records - first)
        start = int(self._starts[segment.slot]) + first
        flags = np.unpackbits(self._flags[start // 8 : -(-(start + count) // 8)], bitorder="little")
        places: I64 = np.flatnonzero(flags[start % 8 : start % 8 + count])
        return places

    def deleted(self) -> tuple[KeySet, ...]:
        """None: a cut holds all rows there are."""
        return ()

    def close(self) -> None:
        """End the cut, read out or not: its files may go."""
        if self._hold is not None:
            self._hold.release()
            self._hold = None

    def _open(self) -> Hold:
        if self._hold is None:
            raise ProtocolError("a snapshot's cut was closed before it was read")
        return self._hold
