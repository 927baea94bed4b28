"""How rows lie in Parquet: columns table uint16, key uint64, row (4 * W bytes), and one column a statistic.

A row is one value of W little-endian float32: weights, then the optimizer's state, as in memory. With pyarrow, a file's
rows are

    np.frombuffer(column.combine_chunks().buffers()[1], "<f4").reshape(-1, W)

Measured on 1 M rows of 17 normal floats, pyarrow 26, one core of an EPYC (Zen 3), MB/s of what the rows take in memory
and size beside it (`python -m benchmarks.snapshots` measures it anew):

    row as                   write    read    size
    fixed-size binary         1000    4440    1.03
    one column a float         960     890    1.03     (a transposition both ways, and hundreds of columns at dim 256)
    fixed-size list            210     410    1.08     (levels are written for every float)
    list                       180     410    1.08

    binary, lz4                880    3420    0.98     (floats that were trained do not repeat)
    binary, zstd level 1       360     770    0.91
    binary, byte stream split  560     760    1.03     (with zstd: 225, 450, 0.91)
    binary, dictionary         220    2530    1.01

So: fixed-size binary, plain, uncompressed, without dictionary and statistics (keys are spread: a range of them excludes
nothing). A disk that is read or written at 1 GB/s is met by one core, where a list would leave it at a fifth.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from hetero.checkpoint.storage import Sink
from hetero.embedding.cut import RowChunk
from hetero.errors import ProtocolError
from hetero.kernels.partition import owners_kernel, spread_kernel
from hetero.records import F32, I32, U64, KeySet

Number = TypeVar("Number", bound=np.integer[Any])

BUFFER_BYTES = 64 << 20
MOST_ROWS_AT_ONCE = 1 << 16
_FEWEST_ROWS_AT_ONCE = 1 << 8
_OPTIONS: dict[str, Any] = {"compression": "none", "use_dictionary": False, "write_statistics": False}
_ROW_COLUMNS = ("table", "key", "row")


def row_schema(*, width: int, statistics: Mapping[str, np.dtype[Any]]) -> pa.Schema:
    """The columns of a file of rows."""
    columns = [("table", pa.uint16()), ("key", pa.uint64()), ("row", pa.binary(4 * width))]
    columns += [(name, pa.from_numpy_dtype(dtype)) for name, dtype in statistics.items()]
    fields = [pa.field(name, kind, nullable=False) for name, kind in columns]
    return pa.schema(fields, metadata={"row": f"{width} little-endian float32: weights, then the optimizer's state"})


@dataclass(slots=True, kw_only=True)
class RowFile:
    """A file of a part, the number-th of it, and how many rows it holds."""

    part: int
    number: int
    sink: Sink
    rows: int = 0


class RowFiles:
    """Rows on their way into the files of their buckets, gathered into Parquet's row groups.

    open_file: makes the file of a part and number; every part has a first one, and another when one holds `file_bytes`.
    seeds: from `mixed_seeds`. part_of: int32 [buckets], the part of each bucket, below `parts`, -1 for none.
    """

    def __init__(
        self,
        open_file: Callable[[int, int], Sink],
        *,
        parts: int,
        width: int,
        statistics: Mapping[str, np.dtype[Any]],
        seeds: U64,
        part_of: I32,
        file_bytes: int,
    ) -> None:
        self._open_file = open_file
        self._schema = row_schema(width=width, statistics=statistics)
        self._open: list[tuple[RowFile, pq.ParquetWriter]] = []
        self._seeds, self._part_of = seeds, part_of
        self._shift = np.uint64(65 - len(part_of).bit_length())
        row_bytes = 10 + 4 * width
        self._file_rows = -(-file_bytes // row_bytes)
        room = int(np.clip(BUFFER_BYTES // (parts * row_bytes), _FEWEST_ROWS_AT_ONCE, MOST_ROWS_AT_ONCE))
        self._fill = np.zeros(parts, np.int64)
        self._tables = np.empty((parts, room), np.uint16)
        self._keys = np.empty((parts, room), np.uint64)
        self._values = np.empty((parts, room, width), np.float32)
        self._statistics = {name: np.empty((parts, room), dtype) for name, dtype in statistics.items()}
        self.files: list[RowFile] = []

    def __enter__(self) -> RowFiles:
        try:
            for part in range(len(self._fill)):
                self._open.append(self._begin(part, 0))
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Complete the files, unless they are not to be."""
        try:
            if error is None:
                for part in range(len(self._fill)):
                    self._write(part)
                for file, writer in self._open:
                    writer.close()
                    file.sink.end()
        except BaseException:
            self._abandon()
            raise
        if error is not None:
            self._abandon()

    def _abandon(self) -> None:
        """Close what Arrow holds open; nothing of it reaches the files."""
        for file, writer in self._open:
            file.sink.discard()
            with contextlib.suppress(Exception):  # one that failed while it was closed says so again
                writer.close()

    def add(self, chunk: RowChunk) -> None:
        """Take a copy of some rows. Raises ProtocolError for a row whose bucket has no file."""
        count = len(chunk.keys)
        parts, places = np.empty(count, np.int32), np.empty(count, np.int64)
        owners_kernel(chunk.keys.tables, chunk.keys.keys, self._seeds, self._shift, self._part_of, parts)
        if count and parts.min() < 0:
            key = int(chunk.keys.keys[parts.argmin()])
            raise ProtocolError(f"key {key} is in the store of a server that does not own its bucket")
        done = 0
        while done < count:
            start, done = (
                done,
                spread_kernel(
                    chunk.keys.tables,
                    chunk.keys.keys,
                    chunk.rows,
                    done,
                    parts,
                    self._fill,
                    self._tables,
                    self._keys,
                    self._values,
                    places,
                ),
            )
            for name, values in self._statistics.items():
                values.reshape(-1)[places[start:done]] = chunk.statistics[name][start:done]
            if done < count:
                self._write(int(parts[done]))

    def _begin(self, part: int, number: int) -> tuple[RowFile, pq.ParquetWriter]:
        file = RowFile(part=part, number=number, sink=self._open_file(part, number))
        self.files.append(file)
        return file, pq.ParquetWriter(pa.PythonFile(file.sink, mode="w"), self._schema, **_OPTIONS)

    def _write(self, part: int) -> None:
        """A row group of what waits for a part."""
        count = int(self._fill[part])
        if not count:
            return
        file, writer = self._open[part]
        if file.rows and file.rows + count > self._file_rows:
            writer.close()
            file.sink.end()
            file, writer = self._open[part] = self._begin(part, file.number + 1)
        values = pa.py_buffer(self._values[part, :count])
        columns = [
            pa.array(self._tables[part, :count]),
            pa.array(self._keys[part, :count]),
            pa.FixedSizeBinaryArray.from_buffers(self._schema.field("row").type, count, [None, values]),
            *(pa.array(of_parts[part, :count]) for of_parts in self._statistics.values()),
        ]
        writer.write_batch(pa.record_batch(columns, schema=self._schema))
        self._fill[part] = 0
        file.rows += count


def write_keys(sink: Sink, deleted: Iterable[KeySet]) -> None:
    """Write a file of keys without rows. Raises SnapshotError."""
    schema = pa.schema([("table", pa.uint16()), ("key", pa.uint64())])
    with pa.PythonFile(sink, mode="w") as file, pq.ParquetWriter(file, schema, **_OPTIONS) as writer:
        for keys in deleted:
            writer.write_batch(pa.record_batch([pa.array(keys.tables), pa.array(keys.keys)], schema=schema))


def chunks_of(data: pa.Buffer) -> Iterator[RowChunk]:
    """The rows of a file, row group by row group, or its keys with rows of no floats.

    Raises what Arrow raises for bytes that are no Parquet.
    """
    file = pq.ParquetFile(pa.BufferReader(data))
    for number in range(file.num_row_groups):
        for batch in file.read_row_group(number, use_threads=False).to_batches():
            keys = KeySet(_numbers(batch.column("table"), np.uint16), _numbers(batch.column("key"), np.uint64))
            names = [name for name in batch.schema.names if name not in _ROW_COLUMNS]
            rows = _floats(batch.column("row")) if "row" in batch.schema.names else np.empty((len(keys), 0), np.float32)
            yield RowChunk(keys, rows, {name: np.array(batch.column(name)) for name in names})


def _numbers(column: pa.Array, dtype: type[Number]) -> npt.NDArray[Number]:
    """A column without nulls, where Arrow holds it."""
    return np.frombuffer(column.buffers()[1], dtype)[column.offset : column.offset + len(column)]


def _floats(column: pa.FixedSizeBinaryArray) -> F32:
    """A column of rows, float32 [n, W]."""
    size = column.type.byte_width
    start = column.offset * size
    values = np.frombuffer(column.buffers()[1], "<f4")[start // 4 :][: len(column) * size // 4]
    return values.reshape(len(column), size // 4)
