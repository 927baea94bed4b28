"""Keys without rows that policies need to know: those that wait for a row, and those whose row was dropped.

A file holds columns table, key and word; the words are `hetero.embedding.policies`'. Every snapshot holds all of them,
also one of changes alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hetero.checkpoint.manifest import FileEntry, FileKind
from hetero.checkpoint.ranges import bucket_ranges, overlaps
from hetero.checkpoint.snapshot import Snapshot
from hetero.checkpoint.storage import Storage, reading
from hetero.embedding.policies.cut import Words
from hetero.embedding.policies.rows import PolicyRows
from hetero.embedding.rows import Rows
from hetero.errors import DataError
from hetero.kernels.partition import owners_kernel
from hetero.keys.routing import mixed_seeds
from hetero.records import I32, JobSpec, KeySet

_SCHEMA = pa.schema([("table", pa.uint16()), ("key", pa.uint64()), ("word", pa.uint16())])


def write_words(
    words: Mapping[str, Words], *, group: int, folder: str, server: int, owners: I32
) -> tuple[FileEntry, ...]:
    """Write what a cut holds of keys without rows, a file a kind of which there are any. Raises SnapshotError."""
    entries = []
    for kind, (keys, values) in words.items():
        if not len(keys):
            continue
        name = f"rows/group-{group:02d}.server-{server:04d}.{kind}.parquet"
        table = pa.table([pa.array(keys.tables), pa.array(keys.keys), pa.array(values)], schema=_SCHEMA)
        with Storage(folder).writing(name) as sink:
            pq.write_table(table, pa.PythonFile(sink, mode="w"), compression="none", write_statistics=False)
        written = sink.written()
        entries.append(
            FileEntry(
                file=name,
                kind=FileKind.WORDS,
                bytes=written.bytes,
                xxh64=written.xxh64,
                rows=len(keys),
                group=group,
                buckets=bucket_ranges(np.flatnonzero(owners == server)),
            )
        )
    return tuple(entries)


def read_words(snapshot: Snapshot, entry: FileEntry) -> Words:
    """One file. Raises DataError when it is damaged."""
    with reading(snapshot.file(entry.file)):
        table = pq.read_table(pa.BufferReader(snapshot.read(entry)))
    if table.num_rows != entry.rows:
        raise DataError(f"{snapshot.file(entry.file)}: holds {table.num_rows} keys, the manifest says {entry.rows}")
    tables, keys, words = (np.array(table.column(name)) for name in _SCHEMA.names)
    return KeySet(tables, keys), words


def words_kind(entry: FileEntry) -> str:
    """`waiting` or `dropped`."""
    return entry.file.split(".")[-2]


def load_words(stores: Sequence[Rows], job: JobSpec, snapshot: Snapshot, *, server: int, owners: I32) -> None:
    """Let stores take up the keys whose buckets belong to `server`. Raises DataError for a file that is damaged."""
    seeds, shift = mixed_seeds(job.groups), np.uint64(65 - job.buckets.bit_length())
    for entry in snapshot.manifest.of_kind(FileKind.WORDS):
        store = stores[entry.group or 0]
        if not isinstance(store, PolicyRows) or not overlaps(entry.buckets, snapshot.manifest.job, owners == server):
            continue
        keys, words = read_words(snapshot, entry)
        owner = np.empty(len(keys), np.int32)
        owners_kernel(keys.tables, keys.keys, seeds, shift, owners, owner)
        mine = owner == server
        store.load_words(words_kind(entry), keys[mine], words[mine])
