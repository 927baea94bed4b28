"""Whether a snapshot is whole, and the newest one that is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from hetero.checkpoint.manifest import MANIFEST, FileEntry, FileKind, Manifest, decode
from hetero.checkpoint.snapshot import Snapshot, list_snapshots
from hetero.checkpoint.storage import Storage, reading, xxh64_of
from hetero.errors import DataError
from hetero.records import JobSpec


class Damage(Enum):
    """What is wrong with a snapshot."""

    NO_MANIFEST = "no manifest"
    MANIFEST = "damaged manifest"
    MISSING_FILE = "missing file"
    SIZE = "wrong size"
    CHECKSUM = "wrong checksum"
    COUNT = "wrong count"
    BASE = "base missing or damaged"
    FOREIGN_JOB = "foreign job"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing wrong. snapshot: its name. message: the file, what was found and what was expected."""

    snapshot: str
    damage: Damage
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """good: the newest whole snapshot, None when there is none. findings: what is wrong with newer ones."""

    good: Snapshot | None
    findings: tuple[Finding, ...]


def latest_good(folder: str | Path, *, job: JobSpec | None = None) -> Found:
    """The newest snapshot in `folder` that is whole, with its bases; and of `job`, when that is given."""
    findings: list[Finding] = []
    for name in reversed(list_snapshots(folder)):
        storage = Storage(folder).child(name)
        wrong = verify(storage.path, job=job)
        if not wrong:
            return Found(good=Snapshot.open(storage.path), findings=tuple(findings))
        findings += wrong
    return Found(good=None, findings=tuple(findings))


def verify(path: str | Path, *, job: JobSpec | None = None) -> tuple[Finding, ...]:
    """Read all of a snapshot and its bases; everything wrong with it, nothing when it is whole.

    Raises for no damage.
    """
    storage = Storage(path)
    manifest = _manifest(storage)
    if isinstance(manifest, Finding):
        return (manifest,)
    return (*_about_job(storage, manifest, job), *_about_files(storage, manifest), *_about_bases(storage, manifest))


def _manifest(storage: Storage) -> Manifest | Finding:
    try:
        if not storage.has_file(MANIFEST):
            return _finding(storage, Damage.NO_MANIFEST, f"{storage.file(MANIFEST)}: is missing")
        data = storage.read(MANIFEST).to_pybytes()
    except DataError as error:
        return _finding(storage, Damage.UNREADABLE, str(error))
    try:
        return decode(data, path=storage.file(MANIFEST))
    except DataError as error:
        return _finding(storage, Damage.MANIFEST, str(error))


def _about_job(storage: Storage, manifest: Manifest, job: JobSpec | None) -> Iterator[Finding]:
    different = None if job is None else manifest.job.difference(job)
    if different:
        yield _finding(storage, Damage.FOREIGN_JOB, f"{storage.file(MANIFEST)}: is of another job ({different})")


def _about_files(storage: Storage, manifest: Manifest) -> Iterator[Finding]:
    for entry in manifest.files:
        try:
            yield from _about_file(storage, entry)
        except DataError as error:
            yield _finding(storage, Damage.UNREADABLE, str(error))


def _about_file(storage: Storage, entry: FileEntry) -> Iterator[Finding]:
    path = storage.file(entry.file)
    size = storage.size(entry.file)
    if size is None:
        yield _finding(storage, Damage.MISSING_FILE, f"{path}: is missing, the manifest lists it")
        return
    if size != entry.bytes:
        yield _finding(storage, Damage.SIZE, f"{path}: has {size} bytes, the manifest says {entry.bytes}")
        return
    data = storage.read(entry.file)
    actual = xxh64_of(data)
    if actual != entry.xxh64:
        told = f"XXH64 {actual}, the manifest says {entry.xxh64}"
        yield _finding(storage, Damage.CHECKSUM, f"{path}: was changed or damaged ({told})")
        return
    if entry.kind in (FileKind.ROWS, FileKind.TOMBSTONES):
        with reading(path):
            rows = pq.ParquetFile(pa.BufferReader(data)).metadata.num_rows
        if rows != entry.rows:
            yield _finding(storage, Damage.COUNT, f"{path}: holds {rows} rows, the manifest says {entry.rows}")


def _about_bases(storage: Storage, manifest: Manifest) -> Iterable[Finding]:
    for ref in manifest.bases:
        base = storage.parent.child(ref.name)
        found = _manifest(base)
        if isinstance(found, Finding):
            yield _finding(storage, Damage.BASE, f"its base: {found.message}")
        elif found.digest != ref.digest:
            yield _finding(storage, Damage.BASE, f"its base: {base.path}: was written anew since")
        else:
            for finding in _about_files(base, found):
                yield _finding(storage, Damage.BASE, f"its base: {finding.message}")


def _finding(storage: Storage, damage: Damage, message: str) -> Finding:
    return Finding(snapshot=storage.name, damage=damage, message=message)
