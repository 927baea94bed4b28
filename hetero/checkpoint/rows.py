"""Rows of a server on disk: one Parquet file a group, columns table uint16, key uint64, row list<float32>[W].

A row holds weights and optimizer state, as in memory; any Parquet tool opens the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hetero.checkpoint.manifest import Part, check_file, file_sha256, read_manifest
from hetero.embedding.rows import Rows
from hetero.errors import HeteroError
from hetero.keys.routing import Router, initial_owners
from hetero.records import F32, GroupSpec, JobSpec, KeySet

_ROWS_AT_ONCE = 1 << 18


def write_rows(stores: Sequence[Rows], job: JobSpec, *, folder: Path, server: int) -> tuple[Part, ...]:
    """Write every row of one server, one file a group. Raises HeteroError naming the file when the disk refuses."""
    (folder / "rows").mkdir(parents=True, exist_ok=True)
    return tuple(
        _write_part(store, group, folder=folder, name=f"rows/group-{index:02d}.part-{server:04d}.parquet", index=index)
        for index, (store, group) in enumerate(zip(stores, job.groups, strict=True))
    )


def read_rows(stores: Sequence[Rows], job: JobSpec, *, folder: Path, server: int, servers: int) -> int:
    """Load the rows whose buckets belong to `server` of `servers`; returns their number.

    Raises DataError for a folder without a manifest, a file that is missing or differs from its checksum, or tables
    that are not the job's.
    """
    router = Router(job.groups, job.buckets, initial_owners(job.buckets, servers))
    loaded = 0
    for part in read_manifest(folder, job=job).parts:
        path = folder / part.file
        check_file(path, sha256=part.sha256)
        for keys, rows in _read_part(path):
            mine = router.route(keys)[server]
            stores[part.group].write_rows(mine.keys, rows[mine.positions])
            loaded += len(mine.keys)
    return loaded


def _write_part(store: Rows, group: GroupSpec, *, folder: Path, name: str, index: int) -> Part:
    path = folder / name
    schema = pa.schema([("table", pa.uint16()), ("key", pa.uint64()), ("row", pa.list_(pa.float32(), store.width))])
    written = 0
    try:
        with pq.ParquetWriter(path, schema) as writer:
            for keys, rows in store.scan():
                values = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), store.width)
                columns = [pa.array(keys.tables), pa.array(keys.keys), values]
                writer.write_batch(pa.record_batch(columns, schema=schema))
                written += len(keys)
    except OSError as error:
        raise HeteroError(f"{path}: rows of {group.tables[0].name} could not be written: {error}") from error
    return Part(file=name, group=index, rows=written, sha256=file_sha256(path))


def _read_part(path: Path) -> Iterator[tuple[KeySet, F32]]:
    for batch in pq.ParquetFile(path).iter_batches(batch_size=_ROWS_AT_ONCE):
        rows = batch.column("row")
        keys = KeySet(np.array(batch.column("table")), np.array(batch.column("key")))
        yield keys, np.array(rows.flatten()).reshape(-1, rows.type.list_size)
