"""One server's part of snapshots: the cut in its lane, the writing beside it, and loading.

    snapshots = ServerSnapshots(server.stores, job, server=index)
    snapshots.cut(name, owners=owners)            in the lane, between two calls: what the snapshot holds is settled
    snapshots.write(folder=draft.path)            in the writer's thread, while the lane goes on; ends the cut

A cut with a `base` holds the rows changed since that snapshot's cut, and what was deleted since.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hetero.checkpoint.rows import RowsWritten, read_rows, write_cuts
from hetero.checkpoint.snapshot import Snapshot
from hetero.embedding.rows import Rows, RowsCut
from hetero.errors import ProtocolError
from hetero.records import I32, JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    """A cut to be written. whole: of all rows."""

    name: str
    owners: I32
    cuts: tuple[RowsCut, ...]
    whole: bool


class ServerSnapshots:
    """The snapshots of one server's stores. One cut at a time."""

    def __init__(self, stores: Sequence[Rows], job: JobSpec, *, server: int) -> None:
        self._stores = stores
        self._job = job
        self._server = server
        self._marks: dict[str, tuple[int, ...]] = {}
        self._cut: _Cut | None = None

    def bases(self) -> tuple[str, ...]:
        """Names of the snapshots that a delta may be based on, oldest first.

        Those that this server wrote or loaded, back to the last with all rows; and not too many cuts ago.
        """
        return tuple(name for name, marks in self._marks.items() if self._tell_since(marks))

    def cut(self, name: str, *, owners: I32, base: str | None = None) -> None:
        """Settle what the snapshot `name` holds: this server's rows as they are now, or those changed since `base`.

        owners: server of each bucket, int32 [buckets]. Call in the server's lane. Raises ProtocolError while another
        cut is open, or for a base that is not among `bases()`.
        """
        if self._cut is not None:
            raise ProtocolError(f"server {self._server}: cut for {name} while {self._cut.name} is being written")
        if base is not None and base not in self.bases():
            known = ", ".join(self.bases()) or "none"
            raise ProtocolError(f"server {self._server}: cannot tell what changed since {base} (known: {known})")
        since: Sequence[int | None] = (None,) * len(self._stores) if base is None else self._marks[base]
        cuts: list[RowsCut] = []
        try:
            for store, mark in zip(self._stores, since, strict=True):
                cuts.append(store.begin_snapshot(since=mark))
        except BaseException:
            for cut in cuts:
                cut.close()
            raise
        self._cut = _Cut(name=name, owners=owners, cuts=tuple(cuts), whole=base is None)

    def write(self, *, folder: str) -> RowsWritten:
        """Write the cut's rows into the draft's folder and end the cut, whatever happens.

        Call in any one thread; calls of the lane go on meanwhile. Raises SnapshotError naming the file when the disk
        refuses, ProtocolError without a cut.
        """
        if self._cut is None:
            raise ProtocolError(f"server {self._server}: asked to write a snapshot before its cut")
        cut = self._cut
        try:
            written = write_cuts(cut.cuts, self._job, folder=folder, server=self._server, owners=cut.owners)
        finally:
            self._close(cut)
        self._remember(cut)
        return written

    def drop(self) -> None:
        """End the cut without a snapshot, if there is one. Who is writing it gets a ProtocolError."""
        if self._cut is not None:
            self._close(self._cut)

    def load(self, snapshot: Snapshot, *, owners: I32) -> int:
        """Load this server's rows of a snapshot and its bases into the stores, which hold none; returns their number.

        Raises DataError for a snapshot that is damaged or of another job.
        """
        rows = read_rows(self._stores, self._job, snapshot, server=self._server, owners=owners)
        self._marks = {snapshot.name: tuple(store.mark() for store in self._stores)}
        return rows

    def _remember(self, cut: _Cut) -> None:
        """The marks of a snapshot that was written. Behind one of all rows nobody looks for a base."""
        marks = tuple(of_store.mark for of_store in cut.cuts)
        if cut.whole:
            for store, mark in zip(self._stores, marks, strict=True):
                store.forget_before(mark)
        self._marks = {**({} if cut.whole else self._marks), cut.name: marks}  # anew: the lane may be looking at it

    def _close(self, cut: _Cut) -> None:
        for of_store in cut.cuts:
            of_store.close()
        if self._cut is cut:  # once dropped, the lane may have made another
            self._cut = None

    def _tell_since(self, marks: Sequence[int]) -> bool:
        return all(store.tells_since(mark) for store, mark in zip(self._stores, marks, strict=True))
