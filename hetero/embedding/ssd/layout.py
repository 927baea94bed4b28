"""What a segment file looks like: its sizes, its name, its header."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hetero.errors import DataError
from hetero.kernels.ssd_index import MOST_LOCATIONS
from hetero.kernels.ssd_records import HEADER_BYTES, PAGE
from hetero.kernels.xxhash64 import hash_text
from hetero.records import I64

_MAGIC = b"heteroS1"
_HEADER = struct.Struct("<8sQQIIIIQ")
_SUFFIX = ".rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Sizes of one store's segments. width: floats a row. identity: of the store, in every header.

    chunk_bytes: what is written at once, a multiple of a page. gap_bytes: neighbours on disk this near are read in one
    go, of at most read_bytes. On an SSD of a virtual machine with 250 MB/s and 20,000 reads/s, reading 12 KB more costs
    what one read does.
    """

    width: int
    identity: int
    chunk_bytes: int = 4 << 20
    chunks: int = 16
    gap_bytes: int = 12 << 10
    read_bytes: int = 512 << 10

    @staticmethod
    def fitting(*, width: int, identity: int, memory_bytes: int, ssd_bytes: int) -> Layout:
        """Sizes for budgets: buffers take some tenth of the memory, segments a sixteenth of the disk at most."""
        rows_fit = PAGE * (1 + (HEADER_BYTES + 4 * width) // PAGE)
        chunk = _power_of_two(memory_bytes // 64, low=2 * rows_fit, high=4 << 20)
        chunks = max(2, min(16, ssd_bytes // 16 // chunk))
        read = _power_of_two(memory_bytes // 256, low=2 * rows_fit, high=512 << 10)
        return Layout(width=width, identity=identity, chunk_bytes=chunk, chunks=chunks, read_bytes=read)

    @property
    def record_bytes(self) -> int:
        return HEADER_BYTES + 8 * -(-4 * self.width // 8)

    @property
    def per_chunk(self) -> int:
        return self.chunk_bytes // self.record_bytes

    @property
    def per_segment(self) -> int:
        return self.per_chunk * self.chunks

    @property
    def segment_bytes(self) -> int:
        return PAGE + self.chunk_bytes * self.chunks

    @property
    def position_bits(self) -> int:
        return self.per_segment.bit_length()

    @property
    def most_segments(self) -> int:
        return MOST_LOCATIONS >> self.position_bits

    def bytes_of(self, records: int) -> int:
        """Bytes of a file that holds so many records, in whole pages."""
        whole, rest = divmod(records, self.per_chunk)
        return PAGE + whole * self.chunk_bytes + -(-rest * self.record_bytes // PAGE) * PAGE

    def for_kernels(self) -> I64:
        """int64 [6], see `hetero.kernels.ssd_records`."""
        sizes = [self.width, self.record_bytes, self.per_chunk, self.chunk_bytes, self.position_bits, self.gap_bytes]
        return np.array(sizes, np.int64)

    def header(self, number: int) -> bytes:
        """The first page of a segment."""
        facts = (self.identity, number, self.width, self.record_bytes, self.chunk_bytes, self.chunks)
        body = _HEADER.pack(_MAGIC, *facts, 0)
        return (body[:-8] + struct.pack("<Q", hash_text(body))).ljust(PAGE, b"\0")

    def number_in(self, header: bytes, path: Path) -> int:
        """The number of the segment with this first page. Raises DataError for another store's, or a damaged one."""
        if len(header) < _HEADER.size:
            raise DataError(f"{path}: is no segment of rows: it ends after {len(header)} bytes")
        number = int(_HEADER.unpack_from(header)[2])
        if header[: _HEADER.size] == self.header(number)[: _HEADER.size]:
            return number
        magic, *facts, _ = _HEADER.unpack_from(header)
        body = header[: _HEADER.size - 8] + bytes(8)
        if magic != _MAGIC or header[_HEADER.size - 8 : _HEADER.size] != struct.pack("<Q", hash_text(body)):
            raise DataError(f"{path}: the header is damaged, or it is no segment of rows")
        raise DataError(
            f"{path}: is of another store (identity {facts[0]:#x}, rows of {facts[2]} floats, {facts[3]} bytes a "
            f"record); expected identity {self.identity:#x}, {self.width} floats, {self.record_bytes} bytes"
        )


def _power_of_two(wanted: int, *, low: int, high: int) -> int:
    """The largest power of two up to `wanted`, within limits."""
    power: int = 1 << max(wanted.bit_length() - 1, (low - 1).bit_length())
    return min(power, max(high, 1 << (low - 1).bit_length()))


def segment_name(number: int) -> str:
    return f"segment-{number:010d}{_SUFFIX}"


def segment_files(folder: Path) -> list[Path]:
    """The segments in a folder, by number."""
    return sorted(folder.glob(f"segment-*{_SUFFIX}"))
