"""The segment files of one store: who they are, what they hold, how long they stay.

A segment is open (records are appended), sealed (it stays as it is) or retired (compaction took all its rows out). A
retired one goes when nothing refers to it any more and the rows taken out of it are on disk elsewhere.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from threading import Lock

import numpy as np

from hetero.embedding.ssd.layout import Layout, segment_files, segment_name
from hetero.errors import CapacityError, HeteroError, UserError
from hetero.kernels.region import Region
from hetero.kernels.ssd_records import PAGE
from hetero.records import I64, U64, DiskIo

_LOCK = "lock"


class State(Enum):
    """Of a segment, see the module's docstring."""

    OPEN = "open"
    SEALED = "sealed"
    RETIRED = "retired"


@dataclass(slots=True, kw_only=True)
class Segment:
    """One file. records: positions written, tombstones among them. synced: those known to be on disk. holes: those that
    a crash left without a whole record. references: of snapshots and scans.

    retired_at: the sequence number that must be on disk before the file may go.
    """

    slot: int
    number: int
    path: Path
    file: int
    bytes: int
    records: int = 0
    synced: int = 0
    tombstones: int = 0
    holes: int = 0
    state: State = State.OPEN
    references: int = 0
    retired_at: int = 0
    _lock: Lock = field(default_factory=Lock)

    def refer(self) -> None:
        """Keep the file until `let_go`. Any thread may call either."""
        with self._lock:
            self.references += 1

    def let_go(self) -> None:
        with self._lock:
            self.references -= 1


class SegmentFiles:
    """All segments of one store, in slots. One caller at a time.

    live: int64 [slots], rows that the index finds in a segment. numbers, files, chunks: for kernels, see
    `hetero.kernels.ssd_records`. limit_bytes: of all files together.
    """

    def __init__(self, layout: Layout, *, folders: Sequence[Path], io: DiskIo, limit_bytes: int) -> None:
        self.layout = layout
        self.limit_bytes = limit_bytes
        self._io = io
        self._folders = list(folders)
        self._locks = [_locked(folder) for folder in folders]
        self._segments: list[Segment | None] = []
        self._next_number = 0
        self.live: I64 = np.zeros(0, np.int64)
        self.numbers: U64 = np.zeros(0, np.uint64)
        self.files: I64 = np.zeros(0, np.int64)
        self.chunks: U64 = np.zeros((0, layout.chunks), np.uint64)

    def __iter__(self) -> Iterator[Segment]:
        return iter([segment for segment in self._segments if segment is not None])

    @property
    def bytes(self) -> int:
        """Of all files, retired ones and those that snapshots refer to included."""
        return sum(segment.bytes for segment in self)

    def at(self, slot: int) -> Segment:
        segment = self._segments[slot]
        assert segment is not None
        return segment

    def folder_of(self, segment: Segment) -> int:
        """Number of the directory it lies in."""
        return self._folders.index(segment.path.parent)

    def create(self) -> Segment:
        """A new open segment, its whole size reserved, in the directory that holds least.

        Raises CapacityError when the file system has no room for it.
        """
        used = [sum(part.bytes for part in self if part.path.parent == folder) for folder in self._folders]
        folder = self._folders[used.index(min(used))]
        path = folder / segment_name(self._next_number)
        file = self._opened(path, os.O_CREAT | os.O_EXCL)
        try:
            os.posix_fallocate(file, 0, self.layout.segment_bytes)
            self._write_header(file)
        except OSError as error:
            os.close(file)
            path.unlink()
            raise disk_error(error, path, wanted=self.layout.segment_bytes) from error
        return self._add(path, file, bytes_=self.layout.segment_bytes)

    def adopt(self, path: Path) -> Segment:
        """An existing file as a sealed segment without rows. Raises DataError when it is not this store's."""
        with path.open("rb") as header:
            number = self.layout.number_in(header.read(PAGE), path)
        self._next_number = number
        segment = self._add(path, self._opened(path, 0), bytes_=path.stat().st_size)
        segment.state = State.SEALED
        return segment

    def number_after(self, number: int) -> None:
        """New segments are numbered from here on."""
        self._next_number = max(self._next_number, number)

    def existing(self) -> list[Path]:
        """Segment files in the directories, by number."""
        return sorted((path for folder in self._folders for path in segment_files(folder)), key=lambda path: path.name)

    def seal(self, segment: Segment) -> None:
        """It takes no more records; what it does not use is given back."""
        segment.state = State.SEALED
        segment.bytes = self.layout.bytes_of(segment.records)
        os.ftruncate(segment.file, segment.bytes)

    def oldest(self) -> int:
        """Number of the first segment there is."""
        return min((segment.number for segment in self), default=0)

    def garbage(self, segment: Segment, *, oldest: int) -> int:
        """Records that need not be kept. A tombstone must be, as long as an older segment is there."""
        kept = 0 if segment.number == oldest else segment.tombstones
        return segment.records - int(self.live[segment.slot]) - kept

    def remove(self, segment: Segment) -> None:
        """Delete the file. Names that snapshots gave it elsewhere stay."""
        assert segment.references == 0
        os.close(segment.file)
        segment.path.unlink()
        self._segments[segment.slot] = None
        self.live[segment.slot] = 0
        self.chunks[segment.slot] = 0

    def close(self) -> None:
        for segment in self:
            os.close(segment.file)
        self._segments = []
        for lock in self._locks:
            os.close(lock)
        self._locks = []

    def _opened(self, path: Path, flags: int) -> int:
        direct = os.O_DIRECT if self._io is DiskIo.DIRECT else 0
        try:
            return os.open(path, os.O_RDWR | os.O_CLOEXEC | direct | flags, 0o644)
        except OSError as error:
            if error.errno == errno.EINVAL and direct:
                raise UserError(
                    f"{path.parent}: the file system does not do direct IO; give another directory or set "
                    "storage.io to `cached`, and mind that pages of the files then take memory beside the budget"
                ) from error
            raise disk_error(error, path, wanted=self.layout.segment_bytes) from error

    def _write_header(self, file: int) -> None:
        page = Region(PAGE)
        view = page.view(PAGE)
        view[:] = self.layout.header(self._next_number)
        if os.pwrite(file, view, 0) != PAGE:
            raise OSError(errno.ENOSPC, "the header was cut off")

    def _add(self, path: Path, file: int, *, bytes_: int) -> Segment:
        slot = self._segments.index(None) if None in self._segments else len(self._segments)
        if slot == len(self.live):
            self._more_slots()
        if slot == len(self._segments):
            self._segments.append(None)
        segment = Segment(slot=slot, number=self._next_number, path=path, file=file, bytes=bytes_)
        self._segments[slot] = segment
        self.numbers[slot], self.files[slot] = segment.number, file
        self._next_number += 1
        return segment

    def _more_slots(self) -> None:
        count = max(16, 2 * len(self.live))
        if count > self.layout.most_segments:
            raise CapacityError(
                f"{self._folders[0]}: {count} segments are more than locations can name "
                f"({self.layout.most_segments}); raise roles.servers"
            )
        for name in ("live", "numbers", "files", "chunks"):
            old = getattr(self, name)
            larger = np.zeros((count, *old.shape[1:]), old.dtype)
            larger[: len(old)] = old
            setattr(self, name, larger)


def sync_names(folder: Path) -> None:
    """Put the names in a directory on disk."""
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def disk_error(error: OSError, path: Path, *, wanted: int) -> HeteroError:
    """What the system refused, as an error for people. wanted: bytes that were to be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = os.statvfs(path.parent)
        return CapacityError(
            f"{path.parent}: no room for {wanted} more bytes of rows, {free.f_bavail * free.f_frsize} are free; make "
            "room, or give another directory in storage.directories"
        )
    return HeteroError(f"{path}: {error.strerror or error}")


def _locked(folder: Path) -> int:
    """Make the directory and keep others out. Raises UserError when one is in, or it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise UserError(f"storage.directories: {folder} cannot be used ({error.strerror})") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise UserError(f"storage.directories: {folder} is in use by another server; end it or give another") from error
    return lock
