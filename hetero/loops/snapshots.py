"""The snapshots of a run: where they lie, how the parts of one become a whole, what is known of each afterwards."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hetero.checkpoint.manifest import FileEntry, merge_held
from hetero.checkpoint.retention import remove_drafts, retain
from hetero.checkpoint.rows import RowsWritten
from hetero.checkpoint.snapshot import Snapshot, SnapshotDraft, step_of
from hetero.checkpoint.storage import Storage
from hetero.errors import ProtocolError, SnapshotError
from hetero.records import JobSpec

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotReport:
    """One snapshot. pause_s: seconds training stood still for it. write_s: from then until it was whole on the disk.

    rows: in it. bytes: of its files. error: why it was given up, or None.
    """

    step: int
    path: str
    pause_s: float
    write_s: float
    rows: int = 0
    bytes: int = 0
    error: str | None = None

    @staticmethod
    def failed(
        name: str, folder: str, error: Exception, *, pause_s: float = 0.0, write_s: float = 0.0
    ) -> SnapshotReport:
        """Of a snapshot that was given up."""
        return SnapshotReport(
            step=_step(name), path=f"{folder}/{name}", pause_s=pause_s, write_s=write_s, error=str(error)
        )


def _step(name: str) -> int:
    step = step_of(name)
    if step is None:
        raise ProtocolError(f"`{name}` is no name of a snapshot")
    return step


def nobody_listens(report: SnapshotReport) -> None:
    """Tells nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPlace:
    """Where a run's snapshots go. told: hears of each. stop: looked at now and then: a cut that ends the run is wanted.

    folder: a path or URI that all roles reach; None takes no snapshots, whatever the job says.
    """

    folder: str | None = None
    told: Callable[[SnapshotReport], None] = nobody_listens
    stop: Callable[[], bool] = field(default=lambda: False)


NOWHERE = SnapshotPlace()


class SnapshotWriting:
    """One snapshot between its cut and its commit: parts arrive, then it is made whole.

    base: the one beside it whose changes it tells, or None. next_base: the base of the one after it.
    Raises SnapshotError when it cannot be begun, DataError when the base is gone.
    """

    def __init__(self, job: JobSpec, folder: str, *, name: str, base: str | None, pause_s: float) -> None:
        self._job = job
        self._folder = folder
        self._pause_s = pause_s
        self._started_t = time.perf_counter()
        self._name = name
        self._base = None if base is None else Snapshot.open(Storage(folder).child(base).path)
        self.next_base = base
        self._draft = SnapshotDraft.begin(folder, name=name, step=_step(name))

    @property
    def path(self) -> str:
        """The folder that every role writes its files into."""
        return self._draft.path

    def commit(self, rows: Sequence[RowsWritten], tower: Sequence[FileEntry]) -> SnapshotReport:
        """Make it whole, and delete those that are not kept. rows: of every server. Raises SnapshotError."""
        files = [*tower, *(entry for own in rows for entry in own.files)]
        with self._draft as draft:
            snapshot = draft.commit(
                self._job, files=files, held=merge_held([own.held for own in rows]), base=self._base
            )
        fits = len(snapshot.manifest.bases) < self._job.snapshots.deltas
        self.next_base = snapshot.name if fits else None
        try:
            retain(self._folder, keep=self._job.snapshots.keep)
        except SnapshotError as error:  # this one is whole; more stay than were asked for
            _LOG.warning("older snapshots in %s could not be deleted: %s", self._folder, error)
        return SnapshotReport(
            step=snapshot.manifest.step,
            path=snapshot.path,
            pause_s=self._pause_s,
            write_s=time.perf_counter() - self._started_t,
            rows=sum(snapshot.manifest.held),
            bytes=sum(entry.bytes for entry in snapshot.manifest.files),
        )

    def give_up(self, error: Exception) -> SnapshotReport:
        """Remove what was written; the snapshots there stay, and the next one holds everything."""
        self.next_base = None
        self._draft.abandon()
        write_s = time.perf_counter() - self._started_t
        return SnapshotReport.failed(self._name, self._folder, error, pause_s=self._pause_s, write_s=write_s)


def clear_drafts(folder: str) -> None:
    """Remove what a killed run left of a snapshot it was writing. Call before the run takes its first."""
    remove_drafts(folder)
