"""Which snapshots stay: the last n that are whole by their manifests, and the bases they need."""

from __future__ import annotations

from pathlib import Path

from hetero.checkpoint.manifest import MANIFEST, Manifest
from hetero.checkpoint.snapshot import PARTIAL, REPLACED, Snapshot, list_snapshots, undo_replacement
from hetero.checkpoint.storage import Storage
from hetero.errors import DataError


def retain(folder: str | Path, *, keep: int) -> tuple[str, ...]:
    """Delete snapshots older than the newest `keep` (1 and up) good ones, unless those are based on them.

    Good: the manifest is sound and every file has its size. One that is not counts for nothing, and is deleted once it
    is older than those kept. Returns the names of deleted ones, newest first. Raises SnapshotError when the disk
    refuses; then what is left is as good as before.
    """
    if keep < 1:
        raise ValueError(f"keep: {keep} snapshots would leave none, at least 1 stays")
    storage, kept = Storage(folder), 0
    needed: set[str] = set()
    deleted = []
    for name in reversed(list_snapshots(folder)):
        manifest = _sound(storage.child(name))
        if kept < keep:
            if manifest is not None:
                kept += 1
                needed.update(ref.name for ref in manifest.bases)
        elif name not in needed:
            _delete(storage.child(name))
            deleted.append(name)
    return tuple(deleted)


def remove_drafts(folder: str | Path) -> tuple[str, ...]:
    """Remove what runs that were killed left of snapshots they were writing; names of what was removed.

    A snapshot moved aside for one that never came is brought back. Call while nothing is being written there.
    """
    storage, removed = Storage(folder), []
    for name in storage.names():
        if name.endswith(REPLACED):
            undo_replacement(storage.child(name.removesuffix(REPLACED)))
        if name.endswith((PARTIAL, REPLACED)) and storage.child(name).exists():
            storage.child(name).remove()
            removed.append(name)
    return tuple(removed)


def _sound(storage: Storage) -> Manifest | None:
    try:
        manifest = Snapshot.open(storage.path).manifest
        return manifest if all(storage.size(entry.file) == entry.bytes for entry in manifest.files) else None
    except DataError:
        return None


def _delete(storage: Storage) -> None:
    """The manifest first: what a stopped deletion leaves is no snapshot."""
    storage.remove_file(MANIFEST)
    storage.remove()
