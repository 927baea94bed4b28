"""Snapshots of a run in one process: written at once, between two steps."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hetero.checkpoint.server_rows import ServerSnapshots
from hetero.checkpoint.snapshot import Snapshot
from hetero.checkpoint.warm_start import warm_rows
from hetero.errors import DataError, SnapshotError
from hetero.exchange.messages import Done, Pending
from hetero.exchange.server import RowServer
from hetero.loops.cuts import CutRule, CutServer, Taken, TowerCuts
from hetero.loops.local_servers import LocalMoves, LocalServers
from hetero.loops.moves import AS_SCHEDULED, ServersPlace
from hetero.loops.protocols import Cut
from hetero.loops.snapshots import SnapshotPlace, SnapshotReport, SnapshotWriting
from hetero.loops.tower_state import ResumePoint
from hetero.parallel.group import SoleTower
from hetero.records import I32, SnapshotSpec


@dataclass(frozen=True, slots=True)
class _CutHere:
    """A server in this process, as a CutServer."""

    server: RowServer
    snapshots: ServerSnapshots
    owners: I32

    def cut(self, name: str, *, base: str | None) -> Pending[None]:
        self.server.end_move()
        self.snapshots.cut(name, owners=self.owners, base=base)
        self.server.note_cut()
        return Done(None)


class LocalSnapshots:
    """The snapshots of all servers and the tower of one process."""

    def __init__(self, servers: LocalServers) -> None:
        self._own = servers

    def load(self, snapshot: Snapshot) -> ResumePoint:
        """Let the servers hold a snapshot's rows and go on after its steps."""
        point = ResumePoint.of(snapshot)
        for server, snapshots in zip(self._own.servers, self._own.snapshots, strict=True):
            snapshots.load(snapshot, owners=self._own.routing.owners)
            server.begin_at(point.cursor.step)
        return point

    def warm_start(self, snapshot: Snapshot) -> int:
        """Let the servers begin with the rows of a snapshot that the job wants; their number."""
        return sum(
            warm_rows(server.stores, self._own.job, snapshot, server=number, owners=self._own.routing.owners)
            for number, server in enumerate(self._own.servers)
        )

    def begin(self, place: SnapshotPlace, *, digest: str, servers: ServersPlace = AS_SCHEDULED) -> LocalCuts:
        """Cuts of one training. digest: of its data. servers: who else decides how many servers there are."""
        return LocalCuts(self._own, place=place, digest=digest, servers=servers)


class LocalCuts(TowerCuts):
    """Cuts that are written as they are made. reports: of each snapshot so far. moves: of buckets between servers."""

    def __init__(self, own: LocalServers, *, place: SnapshotPlace, digest: str, servers: ServersPlace) -> None:
        self.reports: list[SnapshotReport] = []
        self._own = own
        self._place = place
        self._digest = digest
        self._own_rule = CutRule(own.job.snapshots if place.folder else SnapshotSpec())
        self.moves = LocalMoves(own, rule=self._own_rule, place=servers)
        super().__init__(
            rule=self._own_rule, group=SoleTower(), servers=self._cut_servers, taken=self._write, move=self.moves
        )

    def look(self, step: int) -> None:
        """Between two steps: whether the run is to stop, and whether the number of servers is to change."""
        if self._place.folder and self._place.stop():
            self._own_rule.ask(Cut.STOP)
        self.moves.look(step)

    def _cut_servers(self) -> list[CutServer]:
        routing = self._own.routing
        return [
            _CutHere(server, snapshots, routing.owners)
            for server, snapshots in zip(self._own.servers[: routing.servers], self._own.snapshots, strict=False)
        ]

    def _write(self, taken: Taken) -> None:
        assert self._place.folder is not None
        base = None
        try:
            writing = SnapshotWriting(
                self._own.job, self._place.folder, name=taken.name, base=taken.base, pause_s=taken.pause_s
            )
            try:
                members = self._own.snapshots[: self._own.routing.servers]
                rows = [server.write(folder=writing.path) for server in members]
                report = writing.commit(rows, taken.state.write(folder=writing.path, digest=self._digest))
                base = writing.next_base
            except SnapshotError as error:
                report = writing.give_up(error)
        except (SnapshotError, DataError) as error:
            report = SnapshotReport.failed(taken.name, self._place.folder, error)
        for server in self._own.snapshots:
            server.drop()
        report = replace(report, pause_s=report.pause_s + report.write_s)  # nobody trains meanwhile
        self._own_rule.written(base=base)
        self.reports.append(report)
        self._place.told(report)
