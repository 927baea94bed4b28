"""Rows of a snapshot: Parquet files by ranges of buckets, written by servers and loaded by any number of them.

A server reads only files that hold buckets of its. How rows lie in a file: `hetero.checkpoint.parquet_rows`.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero.checkpoint.manifest import FileEntry, FileKind, Ranges
from hetero.checkpoint.parquet_rows import RowFiles, chunks_of, write_keys
from hetero.checkpoint.ranges import bucket_ranges, overlaps
from hetero.checkpoint.snapshot import Snapshot
from hetero.checkpoint.storage import Sink, Storage, reading
from hetero.checkpoint.words import load_words, write_words
from hetero.checkpoint.write_behind import WriteBehind
from hetero.embedding.cut import RowChunk
from hetero.embedding.policies.cut import PolicyCut
from hetero.embedding.rows import Rows, RowsCut
from hetero.errors import DataError
from hetero.kernels.partition import owners_kernel
from hetero.keys.blocks import Blocks
from hetero.keys.routing import mixed_seeds
from hetero.records import I32, JobSpec

FILE_BYTES = 32 << 20
"""Of one file: loading holds two in memory, whatever a table's size."""
MOST_PARTS = 64
"""Ranges of buckets with files of their own, so that a server reads little of what others own."""
_FILES_A_PART = 2
"""At least, where there are several parts: when half is written all first files are on their way to the disk."""
_CHUNKS_AHEAD = 16
_FILES_AHEAD = 3
"""Files whose bytes the system fetches while one is decoded, so that the disk is never idle."""
_SHORT_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsWritten:
    """A server's part of a snapshot. held: its rows of each group at the cut."""

    files: tuple[FileEntry, ...]
    held: tuple[int, ...]


def write_rows(stores: Sequence[Rows], job: JobSpec, *, folder: str, server: int, owners: I32) -> RowsWritten:
    """Write every row of one server. owners: server of each bucket, int32 [buckets].

    Raises SnapshotError naming the file when the disk refuses.
    """
    cuts = [store.begin_snapshot() for store in stores]
    try:
        return write_cuts(cuts, job, folder=folder, server=server, owners=owners)
    finally:
        for cut in cuts:
            cut.close()


def write_cuts(cuts: Sequence[RowsCut], job: JobSpec, *, folder: str, server: int, owners: I32) -> RowsWritten:
    """Write the rows of cuts of one server's stores. Raises SnapshotError naming the file when the disk refuses."""
    files: list[FileEntry] = []
    for group, cut in enumerate(cuts):
        files += _write_group(cut, job, group=group, folder=folder, server=server, owners=owners)
        files += _write_deleted(cut, group=group, folder=folder, server=server, owners=owners)
        if isinstance(cut, PolicyCut):
            files += write_words(cut.words, group=group, folder=folder, server=server, owners=owners)
    return RowsWritten(files=tuple(files), held=tuple(cut.held for cut in cuts))


def _write_group(
    cut: RowsCut, job: JobSpec, *, group: int, folder: str, server: int, owners: I32
) -> tuple[FileEntry, ...]:
    """Write a group's rows of one server, in files of about 32 MiB at most. Raises SnapshotError."""
    width = cut.width
    mine = np.flatnonzero(owners == server)
    full = -(-cut.held * (4 * width + 10) // (_FILES_A_PART * FILE_BYTES))
    parts = int(np.clip(full, 1, min(MOST_PARTS, max(1, len(mine)))))
    part_of = np.full(len(owners), -1, np.int32)
    part_of[mine] = np.arange(len(mine)) * parts // max(1, len(mine))
    storage = Storage(folder)
    prefix = f"rows/group-{group:02d}.server-{server:04d}"
    behind = WriteBehind()

    def name(part: int, number: int) -> str:
        return f"{prefix}.part-{part:04d}{f'.{number:04d}' if number else ''}.parquet"

    def open_file(part: int, number: int) -> Sink:
        return files.enter_context(storage.writing(name(part, number), behind=behind))

    with ExitStack() as files, behind:
        row_files = RowFiles(
            open_file,
            parts=parts,
            width=width,
            statistics=cut.statistics,
            seeds=mixed_seeds([job.groups[group]]),
            part_of=part_of,
            file_bytes=FILE_BYTES,
        )
        with row_files:
            for chunk in cut.chunks():
                row_files.add(chunk)
    buckets = [bucket_ranges(np.flatnonzero(part_of == part)) for part in range(parts)]
    return tuple(
        FileEntry(
            file=name(file.part, file.number),
            kind=FileKind.ROWS,
            bytes=file.sink.written().bytes,
            xxh64=file.sink.written().xxh64,
            rows=file.rows,
            group=group,
            buckets=buckets[file.part],
            server=server,
        )
        for file in sorted(row_files.files, key=lambda file: (file.part, file.number))
    )


def _write_deleted(cut: RowsCut, *, group: int, folder: str, server: int, owners: I32) -> tuple[FileEntry, ...]:
    """Write the keys deleted since the base, where there are any. Raises SnapshotError."""
    rows = sum(len(keys) for keys in cut.deleted())
    if not rows:
        return ()
    name = f"rows/group-{group:02d}.server-{server:04d}.deleted.parquet"
    with Storage(folder).writing(name) as sink:
        write_keys(sink, cut.deleted())
    written = sink.written()
    return (
        FileEntry(
            file=name,
            kind=FileKind.TOMBSTONES,
            bytes=written.bytes,
            xxh64=written.xxh64,
            rows=rows,
            group=group,
            buckets=bucket_ranges(np.flatnonzero(owners == server)),
            server=server,
        ),
    )


def read_rows(stores: Sequence[Rows], job: JobSpec, snapshot: Snapshot, *, server: int, owners: I32) -> int:
    """Load the rows whose buckets belong to `server`; returns how many rows the stores hold then.

    Raises DataError for a snapshot that is damaged or of another job.
    """
    chain = snapshot.chain()
    for part in chain:
        different = part.manifest.job.difference(job)
        if different:
            raise DataError(f"{part.path}: holds the tables of another job ({different}); take the job that wrote it")
    wanted = [
        (part, entry)
        for part in chain
        for entry in (*part.manifest.of_kind(FileKind.TOMBSTONES), *part.manifest.of_kind(FileKind.ROWS))
        if entry.group is not None and overlaps(entry.buckets, part.manifest.job, owners == server)
    ]
    for group, store in enumerate(stores):
        entries = [entry for _, entry in wanted if entry.group == group and entry.kind is FileKind.ROWS]
        store.reserve(int(sum(entry.rows * _share(entry.buckets, owners, server) for entry in entries)))
    load_words(stores, job, snapshot, server=server, owners=owners)
    for entry, chunk in _read_ahead(wanted):
        _load(stores[entry.group or 0], job, chunk, entry, server=server, owners=owners)
    return sum(store.count() for store in stores)


def _share(ranges: Ranges, owners: I32, server: int) -> float:
    """About what part of a file's rows belong to a server. Buckets of another number than the file's: all."""
    mine = np.concatenate([owners[:0] == 0, *(owners[start:stop] == server for start, stop in ranges)])
    return float(mine.mean()) if len(mine) else 1.0


def read_part(snapshot: Snapshot, entry: FileEntry) -> Iterator[RowChunk]:
    """The rows of one file, checked against its checksum and count; of tombstones, rows without floats.

    Raises DataError when it is damaged.
    """
    return _checked(snapshot, entry, snapshot.read(entry))


def _read_ahead(wanted: Sequence[tuple[Snapshot, FileEntry]]) -> Iterator[tuple[FileEntry, RowChunk]]:
    """The rows of files in order: one thread reads and checks the next file while another decodes one, and this one
    loads rows. Raises DataError."""
    ready: queue.Queue[tuple[FileEntry, RowChunk] | BaseException | None] = queue.Queue(maxsize=_CHUNKS_AHEAD)
    blocks = Blocks()  # memory that comes from the system anew for every file may take longer than the disk
    stopped = threading.Event()

    def put(item: tuple[FileEntry, RowChunk] | BaseException | None) -> bool:
        while not stopped.is_set():
            with contextlib.suppress(queue.Full):
                ready.put(item, timeout=_SHORT_S)
                return True
        return False

    def fetch(number: int) -> Any:
        for later, soon in wanted[number + (_FILES_AHEAD if number else 1) : number + 1 + _FILES_AHEAD]:
            Storage(later.path).expect(soon.file)
        part, entry = wanted[number]
        return part.read(entry, blocks=blocks)

    def run() -> None:
        try:
            with ThreadPoolExecutor(1, thread_name_prefix="snapshot bytes") as fetching:
                next_data = fetching.submit(fetch, 0) if wanted else None
                for number, (part, entry) in enumerate(wanted):
                    assert next_data is not None
                    data = next_data.result()
                    next_data = fetching.submit(fetch, number + 1) if number + 1 < len(wanted) else None
                    for chunk in _checked(part, entry, data):
                        if not put((entry, chunk)):
                            return
            put(None)
        except BaseException as error:  # raised where the rows are loaded
            put(error)

    reader = threading.Thread(target=run, name="snapshot files", daemon=True)
    reader.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stopped.set()
        reader.join()


def _checked(snapshot: Snapshot, entry: FileEntry, data: Any) -> Iterator[RowChunk]:
    path = snapshot.file(entry.file)
    seen = 0
    with reading(path):
        for chunk in chunks_of(data):
            seen += len(chunk.keys)
            yield chunk
    if seen != entry.rows:
        raise DataError(f"{path}: holds {seen} rows, the manifest says {entry.rows}")


def _load(store: Rows, job: JobSpec, chunk: RowChunk, entry: FileEntry, *, server: int, owners: I32) -> None:
    keys, rows = chunk.keys, chunk.rows
    if not (owners == server).all():
        owner = np.empty(len(keys), np.int32)
        shift = np.uint64(65 - job.buckets.bit_length())
        owners_kernel(keys.tables, keys.keys, mixed_seeds(job.groups), shift, owners, owner)
        kept = owner == server
        keys, rows = keys[kept], rows[kept]
    if entry.kind is FileKind.TOMBSTONES:
        store.delete_rows(keys)
    else:
        store.load_rows(keys, rows)
