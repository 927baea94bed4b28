"""The servers of one process, and how their number changes while training goes on: a piece of the work after a step."""

from __future__ import annotations

import time
from collections.abc import Iterator

from hetero.checkpoint.server_rows import ServerSnapshots
from hetero.errors import UserError
from hetero.exchange.client import LocalServer
from hetero.exchange.messages import Done, Pending
from hetero.exchange.moving import Sent, ServerMove
from hetero.exchange.server import RowServer
from hetero.keys.routing import Routing
from hetero.loops.cuts import CutRule
from hetero.loops.moves import ServersChanging, ServersPlace, ServersReport, Wishes, check_number, hand_over
from hetero.records import JobSpec


class LocalServers:
    """Who holds what. servers, snapshots: of each, by number."""

    def __init__(self, job: JobSpec) -> None:
        self.job = job
        self.routing = Routing.first(buckets=job.buckets, servers=job.servers.count)
        self.servers: list[RowServer] = []
        self.snapshots: list[ServerSnapshots] = []
        self.grow(job.servers.count)

    def grow(self, count: int) -> None:
        """Make servers that hold nothing, until there are `count`."""
        for number in range(len(self.servers), count):
            self.servers.append(RowServer(self.job, number=number, routing=self.routing))
            self.snapshots.append(ServerSnapshots(self.servers[-1].stores, self.job, server=number))

    def shrink(self, count: int) -> None:
        """End those beyond `count`."""
        for server in self.servers[count:]:
            server.close()
        del self.servers[count:], self.snapshots[count:]

    def handles(self, routing: Routing) -> list[LocalServer]:
        """Those of a routing, as a client calls them."""
        return [LocalServer(server) for server in self.servers[: routing.servers]]

    def close(self) -> None:
        self.shrink(0)


class LocalMoves:
    """Changes of the number of servers of one training, a `hetero.loops.cuts.Move`. reports: of each so far."""

    def __init__(self, servers: LocalServers, *, rule: CutRule, place: ServersPlace) -> None:
        self.reports: list[ServersReport] = []
        self._servers = servers
        self._rule = rule
        self._place = place
        self._wishes = Wishes(servers.job, place)
        self._work: Iterator[bool] | None = None
        self._changing: ServersChanging | None = None
        self._then: Routing | None = None
        self._rest = Sent()
        self._moved: tuple[int, float] | None = None

    def look(self, step: int) -> None:
        """Between two steps: begin a change that is wanted, or go on with the one under way."""
        self._wishes.look(step)
        wanted = self._wishes.take(self._servers.routing.servers) if self._work is None else None
        if wanted is not None:
            self._work = self._change(wanted, step)
        if self._work is not None and not next(self._work, False):
            self._work = None

    def finish(self) -> None:
        """No step comes any more: bring to an end what has a new routing, give up what has none."""
        if self._moved is None:
            self._give_up("training ended")
        for _ in self._work or ():
            pass
        self._work = None

    def hand_over(self, steps: int) -> None:
        assert self._then is not None
        self._rest = hand_over([_AtBoundary(self._servers, n) for n in self._numbers()], self._then, steps=steps)
        self._servers.routing = self._then
        self._moved = (steps, 0.0)

    def over(self, pause_s: float) -> None:
        assert self._moved is not None
        self._moved = (self._moved[0], pause_s)

    def _numbers(self) -> range:
        return range(len(self._servers.servers))

    def _change(self, count: int, step: int) -> Iterator[bool]:
        """A change to `count` servers, part by part, with a step of training after each."""
        own, before = self._servers, self._servers.routing.servers
        try:
            check_number(own.job, count)
        except UserError as error:
            self._report(ServersReport(step=step, before=before, after=count, error=str(error)))
            return
        while not self._rule.hold():
            yield True
        started_t = time.perf_counter()
        self._changing = ServersChanging(step=step, before=before, after=count)
        self._place.told(self._changing)
        self._then = own.routing.resized(count)
        own.grow(count)
        moves = [server.begin_move(self._then) for server in own.servers]
        sent = Sent()
        for moved in (piece for move in moves for piece in move.copy()):
            moves[moved.target].take(moved)
            sent += Sent.of(moved)
            yield True
        copy_s = time.perf_counter() - started_t
        self._rule.ask_move()
        while self._moved is None:
            yield True
        rows = 0
        for number, move in enumerate(moves):
            for freed in _freed(own.servers[number], move):
                rows += freed
                yield True
            own.servers[number].end_move()
        own.shrink(count)
        (after_step, pause_s), self._moved, self._changing = self._moved, None, None
        self._rule.release()
        self._report(
            ServersReport(
                step=after_step,
                before=before,
                after=count,
                rows=rows,
                bytes=sent.bytes + self._rest.bytes,
                copy_s=copy_s,
                at_boundary=self._rest.rows,
                pause_s=pause_s,
            )
        )

    def _give_up(self, why: str) -> None:
        """Leave everything with the servers that hold it, if a change is under way."""
        self._work = None
        self._rule.release()
        if self._changing is None:
            return
        for server in self._servers.servers:
            server.end_move()
        self._servers.shrink(self._servers.routing.servers)
        told, self._changing = self._changing, None
        self._report(ServersReport(step=told.step, before=told.before, after=told.after, error=why))

    def _report(self, report: ServersReport) -> None:
        self.reports.append(report)
        self._place.told(report)


def _freed(server: RowServer, move: ServerMove) -> Iterator[int]:
    """Rows of a server that are another's now, part by part."""
    if move.leaves:
        yield sum(store.count() for store in server.stores)
        return
    yield from move.free()


class _AtBoundary:
    """A server of this process, as a `MovingServer`."""

    def __init__(self, servers: LocalServers, number: int) -> None:
        self._servers = servers
        self._server = servers.servers[number]

    def send_rest(self) -> Pending[Sent]:
        sent = Sent()
        for moved in self._server.move.rest():
            self._servers.servers[moved.target].move.take(moved)
            sent += Sent.of(moved)
        return Done(sent)

    def adopt(self, then: Routing, *, steps: int) -> Pending[None]:
        self._server.adopt(then, steps=steps)
        return Done(None)
