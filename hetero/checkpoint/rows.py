"""Rows of a snapshot: Parquet files by ranges of buckets, columns table uint16, key uint64, row list<float32>[W].

A row holds weights and optimizer state, as in memory; statistics, where the store has any, are columns of their own.
Any Parquet tool opens the files. Any number of servers loads them, each reading only files that hold buckets of its.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hetero.checkpoint.manifest import FileEntry, FileKind, JobRecord, Ranges
from hetero.checkpoint.snapshot import Snapshot
from hetero.checkpoint.storage import Sink, Storage, reading
from hetero.embedding.cut import RowChunk, StoreCut
from hetero.embedding.store import RowStore
from hetero.errors import DataError
from hetero.kernels.partition import owners_kernel
from hetero.keys.routing import mixed_seeds
from hetero.records import F32, I32, U16, U64, GroupSpec, JobSpec, KeySet

PART_BYTES = 64 << 20
MOST_PARTS = 64
ROWS_PER_GROUP = 1 << 16
_ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsWritten:
    """A server's part of a snapshot. held: its rows of each group at the cut."""

    files: tuple[FileEntry, ...]
    held: tuple[int, ...]


def write_rows(stores: Sequence[RowStore], job: JobSpec, *, folder: str, server: int, owners: I32) -> RowsWritten:
    """Write every row of one server. owners: server of each bucket, int32 [buckets].

    Raises SnapshotError naming the file when the disk refuses.
    """
    cuts = [store.begin_snapshot() for store in stores]
    try:
        return write_cuts(cuts, job, folder=folder, server=server, owners=owners)
    finally:
        for cut in cuts:
            cut.close()


def write_cuts(cuts: Sequence[StoreCut], job: JobSpec, *, folder: str, server: int, owners: I32) -> RowsWritten:
    """Write the rows of cuts of one server's stores. Raises SnapshotError naming the file when the disk refuses."""
    files = [
        entry
        for group, cut in enumerate(cuts)
        for entry in _write_group(cut, job, group=group, folder=folder, server=server, owners=owners)
    ]
    return RowsWritten(files=tuple(files), held=tuple(cut.held for cut in cuts))


def _write_group(
    cut: StoreCut, job: JobSpec, *, group: int, folder: str, server: int, owners: I32
) -> tuple[FileEntry, ...]:
    """Write a group's rows of one server, as many files as make about 64 MiB each. Raises SnapshotError."""
    width = cut.width
    mine = np.flatnonzero(owners == server)
    parts = int(np.clip(-(-cut.held * (4 * width + 10) // PART_BYTES), 1, min(MOST_PARTS, max(1, len(mine)))))
    part_of = np.full(len(owners), -1, np.int32)
    part_of[mine] = np.arange(len(mine)) * parts // max(1, len(mine))
    storage = Storage(folder)
    prefix = f"rows/group-{group:02d}.server-{server:04d}"
    names = [f"{prefix}.part-{part:04d}.parquet" for part in range(parts)]
    with ExitStack() as files:
        sinks = [files.enter_context(storage.writing(name)) for name in names]
        with _Spread(sinks, job.groups[group], width=width, part_of=part_of) as spread:
            for chunk in cut.chunks():
                spread.add(chunk)
        rows = spread.rows
    return tuple(
        FileEntry(
            file=names[part],
            kind=FileKind.ROWS,
            bytes=sinks[part].written().bytes,
            sha256=sinks[part].written().sha256,
            rows=rows[part],
            group=group,
            buckets=_ranges(np.flatnonzero(part_of == part)),
        )
        for part in range(parts)
    )


def read_rows(stores: Sequence[RowStore], job: JobSpec, snapshot: Snapshot, *, server: int, owners: I32) -> int:
    """Load the rows whose buckets belong to `server`; returns how many rows the stores hold then.

    Raises DataError for a snapshot that is damaged or of another job.
    """
    chain = snapshot.chain()
    for part in chain:
        different = part.manifest.job.difference(job)
        if different:
            raise DataError(f"{part.path}: holds the tables of another job ({different}); take the job that wrote it")
    for part in chain:
        for entry in (*part.manifest.of_kind(FileKind.TOMBSTONES), *part.manifest.of_kind(FileKind.ROWS)):
            if entry.group is not None and overlaps(entry.buckets, part.manifest.job, owners == server):
                _load_file(stores[entry.group], job, part, entry, server=server, owners=owners)
    return sum(store.count() for store in stores)


def read_part(snapshot: Snapshot, entry: FileEntry) -> Iterator[RowChunk]:
    """The rows of one file, checked against its checksum and count. Raises DataError when it is damaged."""
    path = snapshot.file(entry.file)
    data = snapshot.read(entry)
    seen = 0
    with reading(path):
        for batch in pq.ParquetFile(pa.BufferReader(data)).iter_batches(batch_size=_ROWS_AT_ONCE):
            seen += len(batch)
            yield _chunk(batch)
    if seen != entry.rows:
        raise DataError(f"{path}: holds {seen} rows, the manifest says {entry.rows}")


def overlaps(ranges: Ranges, record: JobRecord, mine: np.ndarray) -> bool:
    """Whether a file with these ranges, of a snapshot of `record`, may hold rows of the buckets marked in `mine`, bool
    [buckets]."""
    finest = max(record.buckets, len(mine))
    spread = np.repeat(mine, finest // len(mine))
    scale = finest // record.buckets
    return any(bool(spread[start * scale : stop * scale].any()) for start, stop in ranges)


def _load_file(
    store: RowStore, job: JobSpec, snapshot: Snapshot, entry: FileEntry, *, server: int, owners: I32
) -> None:
    seeds, shift = mixed_seeds(job.groups), np.uint64(65 - job.buckets.bit_length())
    for chunk in read_part(snapshot, entry):
        owner = np.empty(len(chunk.keys), np.int32)
        owners_kernel(chunk.keys.tables, chunk.keys.keys, seeds, shift, owners, owner)
        kept = owner == server
        keys, rows = chunk.keys, chunk.rows
        if not kept.all():
            keys, rows = KeySet(keys.tables[kept], keys.keys[kept]), rows[kept]
        store.write_rows(keys, rows)


class _Spread:
    """Rows on their way into the files of their buckets, gathered into Parquet's row groups."""

    def __init__(self, sinks: Sequence[Sink], group: GroupSpec, *, width: int, part_of: I32) -> None:
        self._schema = pa.schema([("table", pa.uint16()), ("key", pa.uint64()), ("row", pa.list_(pa.float32(), width))])
        self._sinks = sinks
        self._writers: list[pq.ParquetWriter] = []
        self._seeds = mixed_seeds([group])
        self._part_of = part_of
        self._shift = np.uint64(65 - len(part_of).bit_length())
        self.rows = [0] * len(sinks)

    def __enter__(self) -> _Spread:
        try:
            for sink in self._sinks:
                self._writers.append(pq.ParquetWriter(pa.PythonFile(sink, mode="w"), self._schema))
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Complete the files, unless they are not to be."""
        if error is not None:
            for sink in self._sinks:
                sink.discard()
        for writer in self._writers:
            writer.close()

    def add(self, chunk: RowChunk) -> None:
        part = np.empty(len(chunk.keys), np.int32)
        owners_kernel(chunk.keys.tables, chunk.keys.keys, self._seeds, self._shift, self._part_of, part)
        for index, writer in enumerate(self._writers):
            kept = np.flatnonzero(part == index)
            if len(kept):
                self._write(index, writer, chunk.keys.tables[kept], chunk.keys.keys[kept], chunk.rows[kept])

    def _write(self, index: int, writer: pq.ParquetWriter, tables: U16, keys: U64, rows: F32) -> None:
        values = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])
        writer.write_batch(pa.record_batch([pa.array(tables), pa.array(keys), values], schema=self._schema))
        self.rows[index] += len(keys)


def _chunk(batch: pa.RecordBatch) -> RowChunk:
    rows = batch.column("row")
    keys = KeySet(np.array(batch.column("table")), np.array(batch.column("key")))
    values = np.array(rows.flatten()).reshape(-1, rows.type.list_size)
    return RowChunk(keys, values, _statistics(batch))


def _statistics(batch: pa.RecordBatch) -> Mapping[str, np.ndarray]:
    names = [name for name in batch.schema.names if name not in ("table", "key", "row")]
    return {name: np.array(batch.column(name)) for name in names}


def _ranges(buckets: np.ndarray) -> Ranges:
    """Ascending numbers as runs [start, stop)."""
    if not len(buckets):
        return ()
    breaks = np.flatnonzero(np.diff(buckets) != 1) + 1
    runs = np.split(buckets, breaks)
    return tuple((int(run[0]), int(run[-1]) + 1) for run in runs)
