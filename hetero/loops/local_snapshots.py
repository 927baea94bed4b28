"""Snapshots of a run in one process: written at once, between two steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hetero.checkpoint.server_rows import ServerSnapshots
from hetero.checkpoint.snapshot import Snapshot
from hetero.checkpoint.warm_start import warm_rows
from hetero.errors import DataError, SnapshotError
from hetero.exchange.messages import Done, Pending
from hetero.exchange.server import RowServer
from hetero.keys.routing import initial_owners
from hetero.loops.cuts import CutRule, CutServer, Taken, TowerCuts
from hetero.loops.protocols import Cut
from hetero.loops.snapshots import SnapshotPlace, SnapshotReport, SnapshotWriting
from hetero.loops.tower_state import ResumePoint
from hetero.parallel.group import SoleTower
from hetero.records import I32, JobSpec, SnapshotSpec


@dataclass(frozen=True, slots=True)
class _CutHere:
    """A server in this process, as a CutServer."""

    server: RowServer
    snapshots: ServerSnapshots
    owners: I32

    def cut(self, name: str, *, base: str | None) -> Pending[None]:
        self.snapshots.cut(name, owners=self.owners, base=base)
        self.server.note_cut()
        return Done(None)


class LocalSnapshots:
    """The snapshots of all servers and the tower of one process."""

    def __init__(self, job: JobSpec, servers: Sequence[RowServer]) -> None:
        self._job = job
        self._servers = servers
        self._owners = initial_owners(job.buckets, len(servers))
        self._snapshots = [ServerSnapshots(server.stores, job, server=n) for n, server in enumerate(servers)]

    def load(self, snapshot: Snapshot) -> ResumePoint:
        """Let the servers hold a snapshot's rows and go on after its steps."""
        point = ResumePoint.of(snapshot)
        for server, snapshots in zip(self._servers, self._snapshots, strict=True):
            snapshots.load(snapshot, owners=self._owners)
            server.begin_at(point.cursor.step)
        return point

    def warm_start(self, snapshot: Snapshot) -> int:
        """Let the servers begin with the rows of a snapshot that the job wants; their number."""
        return sum(
            warm_rows(server.stores, self._job, snapshot, server=number, owners=self._owners)
            for number, server in enumerate(self._servers)
        )

    def begin(self, place: SnapshotPlace, *, digest: str) -> LocalCuts:
        """Cuts of one training. digest: of its data."""
        handles = [
            _CutHere(server, snapshots, self._owners)
            for server, snapshots in zip(self._servers, self._snapshots, strict=True)
        ]
        return LocalCuts(self._job, self._snapshots, handles, place=place, digest=digest)


class LocalCuts(TowerCuts):
    """Cuts that are written as they are made. reports: of each so far."""

    def __init__(
        self,
        job: JobSpec,
        servers: Sequence[ServerSnapshots],
        handles: Sequence[CutServer],
        *,
        place: SnapshotPlace,
        digest: str,
    ) -> None:
        self.reports: list[SnapshotReport] = []
        self._job = job
        self._snapshots = servers
        self._place = place
        self._digest = digest
        self._own_rule = CutRule(job.snapshots if place.folder else SnapshotSpec())
        super().__init__(rule=self._own_rule, group=SoleTower(), servers=handles, taken=self._write)

    def look(self) -> None:
        """Between two steps: whether the run is to stop."""
        if self._place.folder and self._place.stop():
            self._own_rule.ask(Cut.STOP)

    def _write(self, taken: Taken) -> None:
        assert self._place.folder is not None
        base = None
        try:
            writing = SnapshotWriting(
                self._job, self._place.folder, name=taken.name, base=taken.base, pause_s=taken.pause_s
            )
            try:
                rows = [server.write(folder=writing.path) for server in self._snapshots]
                report = writing.commit(rows, taken.state.write(folder=writing.path, digest=self._digest))
                base = writing.next_base
            except SnapshotError as error:
                report = writing.give_up(error)
        except (SnapshotError, DataError) as error:
            report = SnapshotReport.failed(taken.name, self._place.folder, error)
        for server in self._snapshots:
            server.drop()
        report = replace(report, pause_s=report.pause_s + report.write_s)  # nobody trains meanwhile
        self._own_rule.written(base=base)
        self.reports.append(report)
        self._place.told(report)
