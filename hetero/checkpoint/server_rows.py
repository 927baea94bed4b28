"""One server's part of snapshots: the cut in its lane, the writing beside it, and loading.

    snapshots = ServerSnapshots(server.stores, job, server=index)
    snapshots.cut(name, owners=owners)            in the lane, between two calls: what the snapshot holds is settled
    snapshots.write(folder=draft.path)            in the writer's thread, while the lane goes on; ends the cut

A cut with a `base` holds the rows changed since that snapshot's cut, and what was deleted since.
"""

from __future__ import annotations

from collections.abc import Sequence

from hetero.checkpoint.rows import RowsWritten, read_rows, write_cuts
from hetero.checkpoint.snapshot import Snapshot
from hetero.embedding.rows import Rows, RowsCut
from hetero.errors import ProtocolError
from hetero.records import I32, JobSpec


class ServerSnapshots:
    """The snapshots of one server's stores. One cut at a time."""

    def __init__(self, stores: Sequence[Rows], job: JobSpec, *, server: int) -> None:
        self._stores = stores
        self._job = job
        self._server = server
        self._marks: dict[str, tuple[int, ...]] = {}
        self._cut: tuple[str, I32, tuple[RowsCut, ...]] | None = None

    def bases(self) -> tuple[str, ...]:
        """Names of the snapshots that a delta may be based on, oldest first: written or loaded by this server."""
        return tuple(self._marks)

    def cut(self, name: str, *, owners: I32, base: str | None = None) -> None:
        """Settle what the snapshot `name` holds: this server's rows as they are now, or those changed since `base`.

        owners: server of each bucket, int32 [buckets]. Call in the server's lane. Raises ProtocolError while another
        cut is open, or for a base that is not among `bases()`.
        """
        if self._cut is not None:
            raise ProtocolError(f"server {self._server}: cut for {name} while {self._cut[0]} is being written")
        if base is not None and base not in self._marks:
            known = ", ".join(self._marks) or "none"
            raise ProtocolError(f"server {self._server}: cannot tell what changed since {base} (known: {known})")
        since = self._marks[base] if base is not None else (None,) * len(self._stores)
        cuts = tuple(store.begin_snapshot(since=mark) for store, mark in zip(self._stores, since, strict=True))
        self._cut = (name, owners, cuts)

    def write(self, *, folder: str) -> RowsWritten:
        """Write the cut's rows into the draft's folder and end the cut, whatever happens.

        Call in any one thread; calls of the lane go on meanwhile. Raises SnapshotError naming the file when the disk
        refuses, ProtocolError without a cut.
        """
        if self._cut is None:
            raise ProtocolError(f"server {self._server}: asked to write a snapshot before its cut")
        name, owners, cuts = self._cut
        try:
            written = write_cuts(cuts, self._job, folder=folder, server=self._server, owners=owners)
            self._marks[name] = tuple(cut.mark for cut in cuts)
            return written
        finally:
            self.drop()

    def drop(self) -> None:
        """End the cut without a snapshot, if there is one."""
        if self._cut is not None:
            for cut in self._cut[2]:
                cut.close()
            self._cut = None

    def load(self, snapshot: Snapshot, *, owners: I32) -> int:
        """Load this server's rows of a snapshot and its bases into the stores, which hold none; returns their number.

        Raises DataError for a snapshot that is damaged or of another job.
        """
        rows = read_rows(self._stores, self._job, snapshot, server=self._server, owners=owners)
        self._marks = {snapshot.name: tuple(store.mark() for store in self._stores)}
        return rows
