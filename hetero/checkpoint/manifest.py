"""The manifest of a snapshot: which files belong together, of which job, and how to know that they are whole.

    step-0000000100/manifest.json                            written last; a folder without one is no snapshot
    step-0000000100/rows/group-00.server-0000.part-0000.parquet    `hetero.checkpoint.rows`
    step-0000000100/dense.safetensors, optimizer.safetensors       `hetero.checkpoint.tensors`
    step-0000000100/state.json                               cursors, clock, random state: `hetero.checkpoint.state`

It lists every other file with size, SHA-256 and rows, and ends with the SHA-256 of itself; its text is the only one
that its contents may have, so that no flipped byte goes unseen. A delta names the snapshots to be loaded before it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from hetero.errors import DataError
from hetero.optim.definition import group_width
from hetero.records import JobSpec

FORMAT = 3
MANIFEST = "manifest.json"
Ranges = tuple[tuple[int, int], ...]


class FileKind(Enum):
    """What a file of a snapshot holds: rows; keys deleted since the base; keys without rows, with a word each that
    policies need; tensors; one JSON object."""

    ROWS = "rows"
    TOMBSTONES = "tombstones"
    WORDS = "words"
    TENSORS = "tensors"
    STATE = "state"


class SnapshotKind(Enum):
    """BASE holds every row, DELTA those changed since the snapshots it is based on, and what was deleted since."""

    BASE = "base"
    DELTA = "delta"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One file. file: path inside the folder. xxh64: of its bytes, 16 digits in hexadecimal.

    rows, group, buckets and server are of rows and tombstones: how many, of which of the job's groups, the ranges
    [start, stop) of buckets they may lie in, and which server had these.
    """

    file: str
    kind: FileKind
    bytes: int
    xxh64: str
    rows: int = 0
    group: int | None = None
    buckets: Ranges = ()
    server: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRecord:
    """One table. The bucket of a row follows from its key and its table's seed."""

    index: int
    name: str
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """What the rows of a group are. width: floats of a row, `dim` weights and the optimizer's state after them."""

    dim: int
    width: int
    optimizer: str
    tables: tuple[TableRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """What a snapshot says of its job: as much as decides whether its rows mean the same elsewhere."""

    name: str
    seed: int
    buckets: int
    groups: tuple[GroupRecord, ...]

    @staticmethod
    def of(job: JobSpec) -> JobRecord:
        """The record of a job."""
        groups = tuple(
            GroupRecord(
                dim=group.dim,
                width=group_width(group),
                optimizer=group.optimizer.kind.value,
                tables=tuple(
                    TableRecord(index=table.index, name=table.name, seed=table.seed) for table in group.tables
                ),
            )
            for group in job.groups
        )
        return JobRecord(name=job.name, seed=job.seed, buckets=job.buckets, groups=groups)

    def difference(self, job: JobSpec) -> str | None:
        """What keeps rows of this record from being rows of `job`, or None. Names and buckets may differ."""
        other = JobRecord.of(job)
        if len(self.groups) != len(other.groups):
            return f"{len(self.groups)} groups of tables, the job has {len(other.groups)}"
        for index, (mine, its) in enumerate(zip(self.groups, other.groups, strict=True)):
            if mine != its:
                return f"group {index} is {_told(mine)}, in the job {_told(its)}"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseRef:
    """A snapshot beside this one that is to be loaded before it. digest: `Manifest.digest` of that very one."""

    name: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A snapshot's contents.

    bases: what is to be loaded before, oldest first; none for BASE. held: rows of each group once all are loaded.
    written_t: unix seconds.
    """

    step: int
    kind: SnapshotKind
    bases: tuple[BaseRef, ...]
    job: JobRecord
    held: tuple[int, ...]
    files: tuple[FileEntry, ...]
    written_t: float

    @property
    def digest(self) -> str:
        """SHA-256 of the manifest's text, and so of all the snapshot holds."""
        return hashlib.sha256(encode(self)).hexdigest()

    def of_kind(self, kind: FileKind) -> tuple[FileEntry, ...]:
        """The files of one kind, in the manifest's order."""
        return tuple(entry for entry in self.files if entry.kind is kind)

    def entry(self, file: str) -> FileEntry:
        """The entry of a file. Raises DataError when the snapshot has none of that name."""
        for entry in self.files:
            if entry.file == file:
                return entry
        raise DataError(f"{file}: the snapshot of step {self.step} has no such file")


def encode(manifest: Manifest) -> bytes:
    """The manifest's text."""
    record = asdict(manifest)
    record["kind"] = manifest.kind.value
    for entry in record["files"]:
        entry["kind"] = entry["kind"].value
    record = {"format": FORMAT, **record}
    return _text({**record, "sha256": _digest(record)})


def decode(data: bytes, *, path: str) -> Manifest:
    """Read a manifest's text; `path` is for messages. Raises DataError when it is not whole or of another format."""
    try:
        record: Any = json.loads(data.decode("utf-8"))
        found = record.get("format") if isinstance(record, dict) else None
        if found != FORMAT:
            raise DataError(f"{path}: is of format {found!r}, this version reads {FORMAT}")
        told = record.pop("sha256", None)
        sound = told == _digest(record) and _text({**record, "sha256": told}) == data
    except ValueError as error:
        raise DataError(f"{path}: was cut off or damaged ({error})") from error
    if not sound:
        raise DataError(f"{path}: was changed or damaged (it does not match its own checksum)")
    try:
        return _manifest(record)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: lacks what a manifest of format {FORMAT} holds ({error})") from error


def _manifest(record: dict[str, Any]) -> Manifest:
    job = record["job"]
    groups = tuple(
        GroupRecord(**{**group, "tables": tuple(TableRecord(**table) for table in group["tables"])})
        for group in job["groups"]
    )
    return Manifest(
        step=record["step"],
        kind=SnapshotKind(record["kind"]),
        bases=tuple(BaseRef(**base) for base in record["bases"]),
        job=JobRecord(**{**job, "groups": groups}),
        held=tuple(record["held"]),
        files=tuple(_entry(entry) for entry in record["files"]),
        written_t=record["written_t"],
    )


def _entry(record: dict[str, Any]) -> FileEntry:
    buckets = tuple((int(start), int(stop)) for start, stop in record["buckets"])
    return FileEntry(**{**record, "kind": FileKind(record["kind"]), "buckets": buckets})


def _told(group: GroupRecord) -> str:
    tables = ", ".join(f"{table.name} (number {table.index}, seed {table.seed})" for table in group.tables)
    return f"dim {group.dim} with {group.optimizer}, {group.width} floats a row, of {tables}"


def _digest(record: dict[str, Any]) -> str:
    return hashlib.sha256(_text(record)).hexdigest()


def _text(record: dict[str, Any]) -> bytes:
    return (json.dumps(record, indent=1, allow_nan=False) + "\n").encode("utf-8")


def merge_held(held: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Rows of each group over all servers."""
    return tuple(sum(of_group) for of_group in zip(*held, strict=True))
