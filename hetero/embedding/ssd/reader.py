"""Reads of many records at once: sorted by where they lie, near ones in one go, shared out to a pool of threads.

They are preads, not requests of an io_uring: of the kept Python libraries for it (November 2026) liburing 2026.3.30
reads into bytearrays alone, and its wheel ends with an illegal instruction on a Zen 3; caio 0.12.10 reads into memory
of its own, which direct IO refuses (EINVAL).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from hetero.embedding.ssd.files import SegmentFiles
from hetero.embedding.ssd.layout import Layout
from hetero.errors import DataError, HeteroError
from hetero.kernels.region import Region
from hetero.kernels.ssd_records import DAMAGED, PAGE, U8, UNREADABLE, read_kernel
from hetero.records import F32, I32, I64, KeySet

_SMALLEST_PART = 32


@dataclass(slots=True)
class ReadCounts:
    """reads: calls to the system. read_bytes: they took, whole pages. records: that were asked for."""

    records: int = 0
    reads: int = 0
    read_bytes: int = 0


def scratch_bytes(layout: Layout) -> int:
    """Memory that one thread reads into."""
    return max(layout.read_bytes, layout.record_bytes + 2 * PAGE)


class Reader:
    """Reads records of one store. threads: reads under way at once; SSDs want many."""

    def __init__(self, files: SegmentFiles, *, threads: int) -> None:
        self._files = files
        self._shape = files.layout.for_kernels()
        self._scratch_bytes = scratch_bytes(files.layout)
        self._scratch = [Region(self._scratch_bytes) for _ in range(threads)]
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="ssd-read")
        self.counts = ReadCounts()

    @property
    def memory_bytes(self) -> int:
        return len(self._scratch) * self._scratch_bytes

    def read(self, keys: KeySet, picked: I32, locations: I64, *, out: F32, uses: U8, status: U8) -> None:
        """out, uses, status at `picked` of the records there. out: float32 [n, up to W]. status: see `ssd_records`.

        Raises DataError naming file and position of a damaged record, HeteroError where the system cannot read.
        """
        order = picked[np.argsort(locations[picked])].astype(np.int64)
        parts = max(1, min(len(self._scratch), len(order) // _SMALLEST_PART))
        cuts = [len(order) * part // parts for part in range(parts + 1)]

        def part(number: int) -> tuple[int, int]:
            return read_kernel(
                order[cuts[number] : cuts[number + 1]],
                locations,
                keys.tables,
                keys.keys,
                self._files.numbers,
                self._files.files,
                self._files.chunks,
                self._shape,
                np.uint64(self._scratch[number].address),
                self._scratch_bytes,
                out,
                uses,
                status,
            )

        for reads, read_bytes in self._pool.map(part, range(parts)) if parts > 1 else [part(0)]:
            self.counts.reads += reads
            self.counts.read_bytes += read_bytes
        self.counts.records += len(order)
        bad = order[status[order] >= DAMAGED]
        if len(bad):
            raise self._bad(int(locations[bad[0]]), unreadable=int(status[bad[0]]) == UNREADABLE)

    def close(self) -> None:
        self._pool.shutdown()

    def _bad(self, location: int, *, unreadable: bool) -> HeteroError:
        layout = self._files.layout
        segment = self._files.at(location >> layout.position_bits)
        position = location & ((1 << layout.position_bits) - 1)
        where = f"{segment.path}: record {position} of {segment.records}"
        if unreadable:
            return HeteroError(
                f"{where} cannot be read: the disk failed, or the file was cut off; resume from a snapshot"
            )
        return DataError(f"{where} is damaged: its checksum does not fit; resume from a snapshot")
