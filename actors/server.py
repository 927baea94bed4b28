"""A server as an actor: pulls and pushes run one after the other in one lane; it never blocks."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import ray

from actors.clients import Peer
from actors.context import RunContext
from actors.metrics import RayMetrics
from actors.moving import Sender
from hetero.checkpoint.rows import RowsWritten, read_rows, write_rows
from hetero.checkpoint.server_rows import ServerSnapshots
from hetero.checkpoint.snapshot import Snapshot
from hetero.checkpoint.warm_start import warm_rows
from hetero.errors import ProtocolError
from hetero.exchange.messages import (
    DensePart,
    DensePullReply,
    DensePushRequest,
    DifferencesReply,
    DifferencesRequest,
    LeasedValues,
    LeaseReply,
    LeaseRequest,
    PullReply,
    PullRequest,
    PushReply,
    PushRequest,
    ReturnRequest,
)
from hetero.exchange.moving import MovedRows, Sent
from hetero.exchange.server import RowServer, ServerState
from hetero.hardware.heap import keep_freed_memory
from hetero.hardware.probe import peak_rss_bytes
from hetero.keys.routing import Routing
from hetero.loops.pulses import RolePulses
from hetero.loops.run import RoleReport
from hetero.loops.warm_rows import warm_server_kernels
from hetero.observe.metrics import Pulse
from hetero.observe.spans import Span, SpanClock
from hetero.records import I32


class ServerActor:
    """Shell of `hetero.exchange.server.RowServer`."""

    def __init__(self, context: RunContext, index: int, routing: Routing | None = None) -> None:
        """routing: that holds when this server begins, without its taking part in it; without one, of the start."""
        keep_freed_memory()  # what is lent and given back is allocated and freed all the time
        context.enter()
        warm_server_kernels(context.job)
        self._job = context.job
        self._index = index
        self._server = RowServer(context.job, number=index, routing=routing)
        self._snapshots = ServerSnapshots(self._server.stores, context.job, server=index)
        self._clock = SpanClock()
        self._peers: Sequence[Peer] = ()
        self._pulses = RolePulses(f"server/{index}")
        self._metrics = RayMetrics(context.run)

    @ray.method(concurrency_group="control")
    def ping(self) -> int:
        """Answer, with the number of this process."""
        return os.getpid()

    def pull(self, request: PullRequest) -> PullReply:
        with self._clock.span(Span.ROWS_PULL):
            return self._server.pull(request)

    def push(self, request: PushRequest) -> PushReply:
        with self._clock.span(Span.ROWS_PUSH):
            return self._server.push(request)

    def lease(self, request: LeaseRequest) -> LeaseReply:
        with self._clock.span(Span.ROWS_PULL):
            return self._server.lease(request)

    def give_back(self, request: ReturnRequest) -> None:
        with self._clock.span(Span.ROWS_PUSH):
            self._server.give_back(request)

    def note_leased(self, values: LeasedValues) -> None:
        with self._clock.span(Span.ROWS_PUSH):
            self._server.note_leased(values)

    def cut(self, name: str, base: str | None) -> None:
        """Settle what a snapshot holds. A change of servers under way is given up: the run stops."""
        self._server.end_move()
        self._snapshots.cut(name, owners=self._owners(), base=base)
        self._server.note_cut()

    @ray.method(concurrency_group="snapshot")
    def write_cut(self, folder: str) -> RowsWritten:
        """Write what was settled, while the lane goes on."""
        return self._snapshots.write(folder=folder)

    def drop_cut(self) -> None:
        """The snapshot is given up before it was written."""
        self._snapshots.drop()

    def begin_move(self, then: Routing) -> None:
        """Prepare for this routing."""
        self._server.begin_move(then)

    @ray.method(concurrency_group="moving")
    def copy_out(self, peers: Sequence[Peer]) -> Sent | None:
        """Send the rows that move to their new servers, while the lane goes on; None when that was given up."""
        if not self._server.is_moving:
            return None
        move, sender = self._server.move, Sender(peers)
        self._peers = peers
        try:
            for moved in move.copy():
                sender.send(moved)
            return sender.settle()
        except ProtocolError:
            if move.ended:
                return None
            raise

    @ray.method(concurrency_group="moving")
    def take_moved(self, moved: MovedRows) -> None:
        """Hold rows of another server."""
        self._server.move.take(moved)

    def send_rest(self) -> Sent:
        """Send what changed since the copy; nothing is leased and no push under way."""
        sender = Sender(self._peers)
        for moved in self._server.move.rest():
            sender.send(moved)
        return sender.settle()

    def adopt(self, then: Routing, steps: int) -> None:
        """Go by this routing from now on."""
        self._server.adopt(then, steps=steps)

    @ray.method(concurrency_group="moving")
    def free_moved(self) -> int:
        """Forget rows that are another's now, while the lane goes on; how many moved. None are left after a stop."""
        if not self._server.is_moving:
            return 0
        move = self._server.move
        rows = sum(store.count() for store in self._server.stores) if move.leaves else sum(move.free())
        self._server.end_move()
        return rows

    def end_move(self) -> None:
        """The change of servers is given up, or over."""
        self._server.end_move()

    def restore(self, path: str, steps: int) -> int:
        """Hold the rows of a snapshot taken after `steps` steps; their number."""
        rows = self._snapshots.load(Snapshot.open(path), owners=self._owners())
        self._server.begin_at(steps)
        return rows

    def warm_start(self, path: str) -> int:
        """Begin with the rows of a snapshot that the job wants; their number."""
        snapshot = Snapshot.open(path)
        return warm_rows(self._server.stores, self._job, snapshot, server=self._index, owners=self._owners())

    def open_dense(self, part: DensePart) -> None:
        self._server.open_dense(part)

    def pull_dense(self) -> DensePullReply:
        with self._clock.span(Span.ROWS_PULL):
            return self._server.pull_dense()

    def dense_state(self) -> dict[str, np.ndarray]:
        return self._server.dense_state()

    def push_dense(self, request: DensePushRequest) -> None:
        with self._clock.span(Span.ROWS_PUSH):
            self._server.push_dense(request)

    def exchange(self, request: DifferencesRequest) -> DifferencesReply:
        with self._clock.span(Span.ROWS_PUSH):
            return self._server.exchange(request)

    def state(self) -> ServerState:
        return self._server.state()

    def save(self, folder: str) -> RowsWritten:
        with self._clock.span(Span.SNAPSHOT_WRITE):
            return write_rows(self._server.stores, self._job, folder=folder, server=self._index, owners=self._owners())

    def load(self, folder: Path) -> int:
        self._server.forget_towers()
        snapshot = Snapshot.open(folder)
        return read_rows(self._server.stores, self._job, snapshot, server=self._index, owners=self._owners())

    def close(self) -> None:
        """Delete what the server has on disk; no call comes after it."""
        self._server.close()

    def pulse(self) -> Pulse:
        """How this server stands; in its lane, where nothing changes meanwhile."""
        return self._metrics.publish(self._pulses.of_server(self._server.use(), spans=self._clock.so_far()))

    def role_report(self) -> RoleReport:
        return RoleReport(
            name=f"server/{self._index}",
            spans=self._clock.totals(),
            peak_rss_bytes=peak_rss_bytes(),
            cpu_s=time.process_time(),
        )

    def _owners(self) -> I32:
        return self._server.routing.owners
