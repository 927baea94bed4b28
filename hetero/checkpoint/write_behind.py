"""Bytes on their way to the disk in a thread of its own: checksums and the disk's pace do not hold up who encodes."""

from __future__ import annotations

import threading
from collections import deque
from types import TracebackType
from typing import Protocol

MOST_BYTES = 32 << 20


class Taker(Protocol):
    """A file that takes bytes in order."""

    def take(self, data: bytes) -> None:
        """Write them. Raises SnapshotError."""

    def complete(self) -> None:
        """Have them all on the disk, and let the file go. Raises SnapshotError."""


class WriteBehind:
    """A queue of at most 32 MiB before any number of files, emptied by one thread in the order it was filled.

    The thread works inside its block alone, which is to end before the files are closed.
    """

    def __init__(self) -> None:
        self._queue: deque[tuple[Taker, bytes | None]] = deque()  # None: the file's end
        self._bytes = 0
        self._busy = False
        self._closed = False
        self._error: Exception | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="snapshot files", daemon=True)

    def put(self, file: Taker, data: bytes) -> None:
        """Have bytes appended to a file; waits for room in the queue. Raises what an earlier write raised."""
        self._append(file, data)

    def end(self, file: Taker) -> None:
        """Have a file completed after the bytes it was given. Raises what an earlier write raised."""
        self._append(file, None)

    def drain(self) -> None:
        """Wait until all is written. Raises what a write raised."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._queue or self._busy) or self._error is not None)
            self._raise()

    def __enter__(self) -> WriteBehind:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the thread once all is written; after an error, what waits is dropped."""
        try:
            if error is None:
                self.drain()
        finally:
            with self._changed:
                self._closed = True
                self._queue.clear()
                self._changed.notify_all()
            self._thread.join()

    def _append(self, file: Taker, data: bytes | None) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._bytes < MOST_BYTES or self._error is not None)
            self._raise()
            self._queue.append((file, data))
            self._bytes += len(data or b"")
            self._changed.notify_all()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: bool(self._queue) or self._closed)
                if self._closed:
                    return
                file, data = self._queue.popleft()
                self._busy = True
            try:
                if data is None:
                    file.complete()
                else:
                    file.take(data)
            except Exception as error:  # reaches whoever puts or drains next, as everything must
                self._fail(error)
                return
            with self._changed:
                self._bytes -= len(data or b"")

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self._error = error
            self._queue.clear()
            self._busy = False
            self._changed.notify_all()
