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
        located = np.sort(np.concatenate([ssd.index.locations(), copies]))
        self.held = len(located)
        bits = self._layout.position_bits
        self._counted = {
            segment.slot: located[
                np.searchsorted(located, segment.slot << bits) : np.searchsorted(located, (segment.slot + 1) << bits)
            ]
            & ((1 << bits) - 1)
            for segment in self._hold.segments
        }

    def chunks(self) -> Iterator[RowChunk]:
        """The rows, once, part by part. Raises ProtocolError when the cut was closed meanwhile, DataError for a damaged
        record."""
        buffer = Region(self._layout.chunk_bytes)
        for segment in self._open().segments:
            counted = self._counted[segment.slot]
            parts = counted // self._layout.per_chunk
            for part in np.unique(parts).tolist():
                self._open()
                size = read_chunk(segment, part, self._layout, buffer)
                chunk = decode_chunk(segment, part, self._layout, address=buffer.address, size=size, columns=self.width)
                at = counted[parts == part] - chunk.first
                bad = int((chunk.kinds[at] != ROW).sum())
                if bad:
                    raise damaged(segment, bad)
                yield RowChunk(chunk.keys[at], chunk.rows[at])

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
