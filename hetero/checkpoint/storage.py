"""Where snapshots lie: a folder on the local disk, or on any filesystem that Arrow knows.

What the system refuses becomes an error that names the file, the cause and what to do: SnapshotError while writing,
DataError while reading.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from hetero.checkpoint.write_behind import WriteBehind
from hetero.data.filesystem import absolute, first_line, is_uri, locate
from hetero.errors import DataError, SnapshotError
from hetero.kernels.xxhash64 import StreamHash
from hetero.keys.blocks import Blocks

_SYNC_EVERY_BYTES = 32 << 20
_REMEDIES = {
    errno.ENOSPC: "the disk is full: free some space, keep fewer snapshots, or give another folder",
    errno.EDQUOT: "this user's quota is used up: free some space or give another folder",
    errno.EROFS: "the file system is read-only: give another folder",
    errno.EACCES: "this user may not write there: give another folder or change its permissions",
    errno.EPERM: "this user may not write there: give another folder or change its permissions",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What a finished file holds. bytes: its size. xxh64: of its bytes, 16 digits in hexadecimal."""

    bytes: int
    xxh64: str


def hexadecimal(digest: StreamHash) -> str:
    """A checksum as manifests tell it."""
    return f"{digest.value():016x}"


def xxh64_of(data: Any) -> str:
    """The checksum of a buffer of bytes."""
    digest = StreamHash()
    digest.update(memoryview(data))
    return hexadecimal(digest)


class Sink:
    """A file being written, in order: bytes go to the disk and into the file's checksum. One thread writes.

    behind: the thread that the bytes go through, or None.
    """

    def __init__(self, name: str, target: Target, *, behind: WriteBehind | None) -> None:
        self._name = name
        self._target = target
        self._behind = behind
        self._digest = StreamHash()
        self._bytes = 0
        self._discarding = False
        self._complete = False
        self.closed = False

    def write(self, data: Any) -> int:
        """Append a buffer of bytes; returns its length. Raises SnapshotError, for earlier bytes too."""
        view = memoryview(data).cast("B")
        if self._discarding:
            return view.nbytes
        if self._behind is None:
            self.take(view)
        else:
            self._behind.put(self, bytes(view))
        return view.nbytes

    def take(self, data: bytes | memoryview) -> None:
        """Write bytes now. Raises SnapshotError."""
        with _refusals(self._name):
            self._target.write(memoryview(data))
        self._digest.update(data)
        self._bytes += len(data)

    def end(self) -> None:
        """The last byte was given: have the file complete and let it go, soon. Raises SnapshotError."""
        if self._behind is None:
            self.complete()
        else:
            self._behind.end(self)

    def complete(self) -> None:
        """Have all bytes on the disk and let the file go, now, unless that was done. Raises SnapshotError."""
        if not self._complete:
            with _refusals(self._name):
                self._target.finish()
            self.let_go()

    def let_go(self) -> None:
        """Close the file as it is, unless that was done."""
        if not self._complete:
            self._complete = True
            self._target.close()

    def finish(self) -> None:
        """Wait until all bytes are on the disk. Raises SnapshotError."""
        if self._behind is not None:
            self._behind.drain()
        self.complete()

    def discard(self) -> None:
        """Drop what is still written: the file will not be."""
        self._discarding = True

    def flush(self) -> None:
        """Bytes are complete after `finish`, no earlier."""

    def close(self) -> None:
        """Take no more bytes."""
        self.closed = True

    def written(self) -> Written:
        """Size and checksum, once finished."""
        return Written(bytes=self._bytes, xxh64=hexadecimal(self._digest))


class Target(Protocol):
    """Where a sink's bytes go."""

    def write(self, data: memoryview) -> None: ...

    def finish(self) -> None:
        """Have all bytes on the disk."""

    def close(self) -> None: ...


class LocalTarget:
    """A local file. It goes to the disk as it is written, so that the end has little left to wait for."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        self._waiting_bytes = 0

    def write(self, data: memoryview) -> None:
        self._waiting_bytes += data.nbytes
        while data.nbytes:
            data = data[os.write(self._descriptor, data) :]
        if self._waiting_bytes >= _SYNC_EVERY_BYTES:
            self.finish()

    def finish(self) -> None:
        os.fsync(self._descriptor)
        self._waiting_bytes = 0

    def close(self) -> None:
        os.close(self._descriptor)


class StreamTarget:
    """A file of one of Arrow's filesystems, which is complete when it is closed."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, data: memoryview) -> None:
        self._stream.write(data)

    def finish(self) -> None:
        self._stream.close()

    def close(self) -> None:
        self._stream.close()


class Storage:
    """One folder, by local path or URI."""

    def __init__(self, path: str | Path) -> None:
        self.path = absolute(str(path))
        location = locate(self.path)
        self._filesystem: Any = location.filesystem
        self._root = location.path
        self.local = isinstance(self._filesystem, pafs.LocalFileSystem)

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self._root.rstrip("/").rsplit("/", 1)[-1]

    @property
    def parent(self) -> Storage:
        """The folder that holds this one."""
        return Storage(self.path.rstrip("/").rsplit("/", 1)[0] or "/")

    def child(self, name: str) -> Storage:
        """A folder inside this one."""
        if is_uri(self.path) and "?" in self.path:
            base, query = self.path.split("?", 1)
            return Storage(f"{base.rstrip('/')}/{name}?{query}")
        return Storage(f"{self.path.rstrip('/')}/{name}")

    def file(self, name: str) -> str:
        """Path of a file inside, for messages."""
        return f"{self.path.rstrip('/')}/{name}"

    def make(self) -> None:
        """Make the folder and those above it. Raises SnapshotError."""
        with _refusals(self.path):
            if self.local:
                os.makedirs(self._root, exist_ok=True)
            else:
                self._filesystem.create_dir(self._root, recursive=True)

    def exists(self) -> bool:
        """Whether there is such a folder."""
        return bool(self._kind(self._root) == pafs.FileType.Directory)

    def has_file(self, name: str) -> bool:
        """Whether the folder holds this file."""
        return bool(self._kind(f"{self._root}/{name}") == pafs.FileType.File)

    def names(self) -> list[str]:
        """Names of what the folder holds, sorted; none when there is no such folder. Raises DataError."""
        with reading(self.path):
            selector = pafs.FileSelector(self._root, allow_not_found=True)
            return sorted(str(info.base_name) for info in self._filesystem.get_file_info(selector))

    def size(self, name: str) -> int | None:
        """Bytes of a file, None when it is not there. Raises DataError."""
        with reading(self.file(name)):
            info = self._filesystem.get_file_info(f"{self._root}/{name}")
        return int(info.size) if info.type == pafs.FileType.File else None

    def read(self, name: str, *, blocks: Blocks | None = None) -> Any:
        """All bytes of a file, as an Arrow buffer. blocks: where its memory is to come from. Raises DataError."""
        with reading(self.file(name)), self._filesystem.open_input_file(f"{self._root}/{name}") as source:
            return source.read_buffer() if blocks is None else _read_into(source, blocks)

    def expect(self, name: str) -> None:
        """A file is to be read soon: the system may fetch it meanwhile, where it can."""
        if self.local and hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):  # what is wrong with it is told when it is read
                descriptor = os.open(f"{self._root}/{name}", os.O_RDONLY)
                try:
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
                finally:
                    os.close(descriptor)

    @contextmanager
    def writing(self, name: str, *, behind: WriteBehind | None = None) -> Iterator[Sink]:
        """A new file, complete and on the disk when the block ends. Raises SnapshotError."""
        with _refusals(self.file(name)):
            target = self._target(f"{self._root}/{name}")
        sink = Sink(self.file(name), target, behind=behind)
        try:
            yield sink
            sink.finish()
        finally:
            sink.let_go()

    def write(self, name: str, data: bytes) -> Written:
        """Write a file at once. Raises SnapshotError."""
        with self.writing(name) as sink:
            sink.write(data)
        return sink.written()

    def remove(self) -> None:
        """Delete the folder with all it holds, if there is one. Raises SnapshotError."""
        with _refusals(self.path):
            if self.local:
                with contextlib.suppress(FileNotFoundError):
                    shutil.rmtree(self._root)
            elif self.exists():
                self._filesystem.delete_dir(self._root)

    def remove_file(self, name: str) -> None:
        """Delete one file, if it is there. Raises SnapshotError."""
        with _refusals(self.file(name)):
            if self.has_file(name):
                self._filesystem.delete_file(f"{self._root}/{name}")

    def rename(self, name: str) -> Storage:
        """Move a local folder to another name beside it, at once. Raises SnapshotError when that is taken."""
        target = self.parent.child(name)
        with _refusals(target.path):
            os.rename(self._root, target._root)
            _sync_folder(os.path.dirname(target._root))
        return target

    def sync(self) -> None:
        """Have a local folder's entries on the disk, and those of folders inside. Raises SnapshotError."""
        with _refusals(self.path):
            for folder, _, _ in os.walk(self._root):
                _sync_folder(folder)

    def _target(self, path: str) -> Target:
        if not self.local:
            self._filesystem.create_dir(path.rsplit("/", 1)[0], recursive=True)
            return StreamTarget(self._filesystem.open_output_stream(path))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return LocalTarget(path)

    def _kind(self, path: str) -> Any:
        with reading(self.path):
            return self._filesystem.get_file_info(path).type


def _read_into(source: Any, blocks: Blocks) -> Any:
    size = source.size()
    memory = blocks.empty(-(-size // 8), 1).reshape(-1).view(np.uint8).data[:size]
    filled = 0
    while filled < size and (count := source.readinto(memory[filled:])):
        filled += count
    return pa.py_buffer(memory[:filled])


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Turns what Arrow and the system raise while a snapshot is read into a DataError that names the file."""
    try:
        yield
    except FileNotFoundError as error:
        raise DataError(f"{path}: is missing") from error
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: cannot be read ({first_line(error)})") from error


@contextmanager
def _refusals(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        number = error.errno if isinstance(error, OSError) else None
        remedy = _REMEDIES.get(number or 0, "see that the folder is there and can be written, or give another")
        raise SnapshotError(f"{path}: cannot be written ({first_line(error)}); {remedy}") from error


def _sync_folder(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
