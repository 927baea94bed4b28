"""All rows of a snapshot, bases and deletions included, in the order of their buckets, a part at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hetero.checkpoint.manifest import FileKind
from hetero.checkpoint.rows import read_part, read_rows
from hetero.checkpoint.snapshot import Snapshot
from hetero.embedding.cut import RowChunk
from hetero.embedding.store import RowStore
from hetero.errors import DataError
from hetero.keys.routing import bucket_of, initial_owners, mixed_seeds
from hetero.records import F32, JobSpec, KeySet

PART_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedRows:
    """Rows of one group whose buckets lie in one range. rows: float32 [n, W], weights first, then optimizer state."""

    group: int
    keys: KeySet
    rows: F32


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRow:
    """One key as a snapshot holds it. row: a RowChunk of one row, None when the key is not held. snapshot: the one of
    the chain that says so; file: its file, None when no file mentions the key. deleted: whether it once was held."""

    row: RowChunk | None
    snapshot: str
    file: str | None
    deleted: bool = False


def scan_rows(snapshot: Snapshot, job: JobSpec, *, part_bytes: int = PART_BYTES) -> Iterator[ScannedRows]:
    """Every row, once, as it is after the snapshot's last file. Parts come in ascending order of buckets, each with all
    its groups; about `part_bytes` of rows are in memory at a time.

    Raises DataError for a snapshot that is damaged or of another job.
    """
    record = snapshot.manifest
    held_bytes = sum(4 * group.width * rows for group, rows in zip(record.job.groups, record.held, strict=True))
    parts = min(max(1, -(-held_bytes // part_bytes)), job.buckets)
    owners = initial_owners(job.buckets, parts)
    for part in range(parts):
        stores = [RowStore(group, threads=1, buckets=job.buckets) for group in job.groups]
        try:
            read_rows(stores, job, snapshot, server=part, owners=owners)
            for number, store in enumerate(stores):
                yield _all_of(store, group=number)
        finally:
            for store in stores:
                store.close()


def find_row(snapshot: Snapshot, job: JobSpec, *, table: int, key: int) -> FoundRow:
    """The row of one key, from the newest snapshot of the chain that mentions it; only files of its bucket are read.

    Raises DataError for a file that is damaged, or a table the job does not have.
    """
    group = next((g for g, spec in enumerate(job.groups) if any(t.index == table for t in spec.tables)), None)
    if group is None:
        raise DataError(f"{snapshot.path}: the job has no table number {table}")
    wanted = KeySet(np.array([table], np.uint16), np.array([key], np.uint64))
    for part in reversed(snapshot.chain()):
        bucket = int(bucket_of(wanted, seeds=mixed_seeds(job.groups), buckets=part.manifest.job.buckets)[0])
        for kind in (FileKind.ROWS, FileKind.TOMBSTONES):
            for entry in part.manifest.of_kind(kind):
                if entry.group != group or not any(start <= bucket < stop for start, stop in entry.buckets):
                    continue
                for chunk in read_part(part, entry):
                    at = np.flatnonzero((chunk.keys.keys == np.uint64(key)) & (chunk.keys.tables == table))
                    if len(at):
                        deleted = kind is FileKind.TOMBSTONES
                        row = None if deleted else _one(chunk, int(at[0]))
                        return FoundRow(row=row, snapshot=part.name, file=entry.file, deleted=deleted)
    return FoundRow(row=None, snapshot=snapshot.name, file=None)


def _all_of(store: RowStore, *, group: int) -> ScannedRows:
    tables, keys, rows = [np.empty(0, np.uint16)], [np.empty(0, np.uint64)], [np.empty((0, store.width), np.float32)]
    for part, values in store.scan():
        tables.append(part.tables)
        keys.append(part.keys)
        rows.append(values)
    return ScannedRows(
        group=group, keys=KeySet(np.concatenate(tables), np.concatenate(keys)), rows=np.concatenate(rows)
    )


def _one(chunk: RowChunk, at: int) -> RowChunk:
    return RowChunk(
        chunk.keys[at : at + 1],
        chunk.rows[at : at + 1],
        {name: values[at : at + 1] for name, values in chunk.statistics.items()},
    )
