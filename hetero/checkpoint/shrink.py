"""A snapshot without the rows that its tables' policies drop on a given day, written beside no training.

Consumes   a snapshot; a day
Produces   another that holds everything, bases included, but for the rows that go
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from hetero.checkpoint.manifest import FileEntry, FileKind, merge_held
from hetero.checkpoint.rows import RowsWritten, read_rows, write_rows
from hetero.checkpoint.snapshot import Snapshot, SnapshotDraft
from hetero.checkpoint.storage import Storage
from hetero.embedding.open_rows import open_rows
from hetero.embedding.policies.days import drops_of
from hetero.embedding.policies.rows import PolicyRows
from hetero.embedding.rows import Rows
from hetero.keys.routing import initial_owners
from hetero.records import JobSpec

PART_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrunk:
    """dropped: rows by (table, reason); for `forgotten`, keys without a row. rows: what is left, by table.

    snapshot: what was written, None where it was only counted.
    """

    dropped: dict[tuple[str, str], int]
    rows: dict[str, int]
    snapshot: Snapshot | None


def shrink(snapshot: Snapshot, job: JobSpec, *, day: int, target: Path | None, part_bytes: int = PART_BYTES) -> Shrunk:
    """Drop what goes when `day` begins. target: the new snapshot's folder; None only counts. About part_bytes of rows
    are in memory at a time.

    Raises DataError for a snapshot that is damaged or of another job, SnapshotError where it cannot be written.
    """
    if target is None:
        return _shrunk(snapshot, job, day=day, draft=None, part_bytes=part_bytes)[0]
    with SnapshotDraft.begin(target.parent, name=target.name, step=snapshot.manifest.step) as draft:
        shrunk, written = _shrunk(snapshot, job, day=day, draft=draft, part_bytes=part_bytes)
        files = [entry for part in written for entry in part.files]
        for kind in (FileKind.TENSORS, FileKind.STATE):
            files += [_copied(snapshot, entry, draft) for entry in snapshot.manifest.of_kind(kind)]
        held = merge_held([part.held for part in written])
        return replace(shrunk, snapshot=draft.commit(job, files=files, held=held))


def _shrunk(
    snapshot: Snapshot, job: JobSpec, *, day: int, draft: SnapshotDraft | None, part_bytes: int
) -> tuple[Shrunk, list[RowsWritten]]:
    """Part by part of the buckets: loaded, dropped from, and written if there is a draft."""
    record = snapshot.manifest
    held_bytes = sum(4 * group.width * rows for group, rows in zip(record.job.groups, record.held, strict=True))
    parts = min(max(1, -(-held_bytes // part_bytes)), job.buckets)
    owners = initial_owners(job.buckets, parts)
    dropped: Counter[tuple[str, str]] = Counter()
    left: Counter[str] = Counter()
    written = []
    for part in range(parts):
        with _in_memory(job) as stores:
            read_rows(stores, job, snapshot, server=part, owners=owners)
            for store in stores:
                if isinstance(store, PolicyRows):
                    store.begin_day(day)
                left.update(store.count_by_table())
            for drops in drops_of(stores):
                dropped[drops.table, drops.reason] += drops.rows
            if draft is not None:
                written.append(write_rows(stores, job, folder=draft.path, server=part, owners=owners))
    return Shrunk(dropped=dict(dropped), rows=dict(left), snapshot=None), written


@contextmanager
def _in_memory(job: JobSpec) -> Iterator[list[Rows]]:
    stores = open_rows(replace(job, storage=None))
    try:
        yield stores
    finally:
        for store in stores:
            store.close()


def _copied(snapshot: Snapshot, entry: FileEntry, draft: SnapshotDraft) -> FileEntry:
    """A file as it is, checked on the way."""
    Storage(draft.path).write(entry.file, snapshot.read(entry).to_pybytes())
    return entry
