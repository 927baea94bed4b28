"""Snapshots as folders: begun, written by many, committed at once; opened and listed.

    with SnapshotDraft.begin(run_folder / "snapshots", name=snapshot_name(100), step=100) as draft:
        ...                       every role writes its files into `draft.path` and hands their FileEntry records over
        draft.commit(job, files=files, held=held)

A local draft is a folder `<name>.partial` beside its place, renamed when it is whole and on the disk. Other
filesystems have no rename of folders: there the files lie in place, and the manifest, written last, commits them.
What is not committed is removed when the block ends.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from hetero.checkpoint.manifest import (
    MANIFEST,
    BaseRef,
    FileEntry,
    JobRecord,
    Manifest,
    SnapshotKind,
    decode,
    encode,
)
from hetero.checkpoint.storage import Storage, xxh64_of
from hetero.errors import DataError, SnapshotError
from hetero.keys.blocks import Blocks
from hetero.records import JobSpec

PARTIAL = ".partial"
REPLACED = ".replaced"
_STEP = "step-"


def snapshot_name(step: int) -> str:
    """The folder of the snapshot taken when `step` steps were done."""
    return f"{_STEP}{step:010d}"


def step_of(name: str) -> int | None:
    """The step in a snapshot's name, None for other names."""
    digits = name.removeprefix(_STEP)
    return int(digits) if name.startswith(_STEP) and digits.isdecimal() and name == snapshot_name(int(digits)) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A committed snapshot, its manifest read. Its other files are checked as they are read."""

    path: str
    manifest: Manifest

    @staticmethod
    def open(path: str | Path) -> Snapshot:
        """Read the manifest in a folder. Raises DataError when there is none or it is damaged."""
        storage = Storage(path)
        if not storage.has_file(MANIFEST):
            raise DataError(f"{storage.file(MANIFEST)}: no complete model or snapshot is here; train to the end first")
        data = storage.read(MANIFEST).to_pybytes()
        return Snapshot(path=storage.path, manifest=decode(data, path=storage.file(MANIFEST)))

    @property
    def name(self) -> str:
        """The folder's name."""
        return Storage(self.path).name

    def file(self, name: str) -> str:
        """Path of a file inside, for messages."""
        return Storage(self.path).file(name)

    def read(self, entry: FileEntry, *, blocks: Blocks | None = None) -> Any:
        """All bytes of one of its files, as an Arrow buffer; blocks: as `Storage.read` takes them.

        Raises DataError when it is missing or damaged.
        """
        storage = Storage(self.path)
        size = storage.size(entry.file)
        if size is None:
            raise DataError(f"{storage.file(entry.file)}: is missing, the manifest lists it")
        if size != entry.bytes:
            raise DataError(f"{storage.file(entry.file)}: has {size} bytes, the manifest says {entry.bytes}")
        data = storage.read(entry.file, blocks=blocks)
        actual = xxh64_of(data)
        if actual != entry.xxh64:
            raise DataError(
                f"{storage.file(entry.file)}: was changed or damaged (XXH64 {actual}, the manifest says {entry.xxh64})"
            )
        return data

    def chain(self) -> tuple[Snapshot, ...]:
        """The snapshots to load one after the other, this one last. Raises DataError when a base is not there, or is
        not the one this snapshot tells the changes from."""
        parent = Storage(self.path).parent
        bases = []
        for ref in self.manifest.bases:
            base = Snapshot.open(parent.child(ref.name).path)
            if base.manifest.digest != ref.digest:
                raise DataError(f"{base.path}: is not the snapshot that {self.name} is based on, it was written anew")
            bases.append(base)
        return (*bases, self)


def list_snapshots(folder: str | Path) -> tuple[str, ...]:
    """Names of the committed or once committed snapshots in a folder, oldest first; drafts are none."""
    return tuple(name for name in Storage(folder).names() if step_of(name) is not None)


class SnapshotDraft:
    """A snapshot being written. `path`: the folder that every role writes its files into."""

    def __init__(self, *, draft: Storage, final: Storage, step: int) -> None:
        self.path = draft.path
        self._draft = draft
        self._final = final
        self._step = step
        self._committed = False

    @staticmethod
    def begin(folder: str | Path, *, name: str, step: int) -> SnapshotDraft:
        """Start a snapshot `name` in `folder`. What an earlier try left is removed. Raises SnapshotError."""
        parent = Storage(folder)
        final = parent.child(name)
        draft = parent.child(name + PARTIAL) if final.local else final
        try:
            if final.local:
                undo_replacement(final)
            else:
                final.remove_file(MANIFEST)
            draft.remove()
            draft.make()
        except DataError as error:  # what may not even be looked at
            raise SnapshotError(f"{final.path}: cannot be written; {error}; give another folder") from error
        return SnapshotDraft(draft=draft, final=final, step=step)

    def commit(
        self,
        job: JobSpec,
        *,
        files: Sequence[FileEntry],
        held: Sequence[int],
        base: Snapshot | None = None,
    ) -> Snapshot:
        """Make it a snapshot: all of it, or nothing. files: every file written. held: rows of each group at the cut.

        base: the snapshot beside it that the files tell the changes from; None when they hold everything. A snapshot of
        the same name is replaced. Raises SnapshotError, also when a file is not there as it was written.
        """
        bases = () if base is None else (*base.manifest.bases, BaseRef(name=base.name, digest=base.manifest.digest))
        manifest = Manifest(
            step=self._step,
            kind=SnapshotKind.DELTA if bases else SnapshotKind.BASE,
            bases=bases,
            job=JobRecord.of(job),
            held=tuple(held),
            files=tuple(sorted(files, key=lambda entry: entry.file)),
            written_t=time.time(),
        )
        for entry in manifest.files:
            if self._draft.size(entry.file) != entry.bytes:
                raise SnapshotError(
                    f"{self._draft.file(entry.file)}: has {self._draft.size(entry.file)} bytes, {entry.bytes} were "
                    "written; do all roles see the same folder?"
                )
        self._draft.write(MANIFEST, encode(manifest))
        if self._draft.local:
            self._draft.sync()
            _move_into_place(self._draft, self._final)
        self._committed = True
        return Snapshot(path=self._final.path, manifest=manifest)

    def abandon(self) -> None:
        """Remove what was written, unless it is committed."""
        if not self._committed:
            self._draft.remove()

    def __enter__(self) -> SnapshotDraft:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.abandon()
        else:
            with contextlib.suppress(SnapshotError):  # what ended the draft says more than what kept it from going
                self.abandon()


def _move_into_place(draft: Storage, final: Storage) -> None:
    """Rename a whole draft to its place; what is there moves aside until then, and comes back when that fails."""
    aside = final.parent.child(final.name + REPLACED)
    try:
        if final.exists():
            aside.remove()
            final.rename(aside.name)
        draft.rename(final.name)
    except SnapshotError:
        undo_replacement(final)
        raise
    with contextlib.suppress(SnapshotError):  # the snapshot is there; `remove_drafts` takes what stays of the old one
        aside.remove()


def undo_replacement(final: Storage) -> None:
    """Bring back a snapshot that was moved aside for one that never came."""
    aside = final.parent.child(final.name + REPLACED)
    if aside.exists() and not final.exists():
        aside.rename(final.name)
