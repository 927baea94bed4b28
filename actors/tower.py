"""A tower as an actor: one thread trains, one fetches batches in the background, one answers the driver."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import ray
import torch

from actors.clients import Peer, RemoteReader, RemoteSequencer, RemoteServer, find_server
from actors.context import RunContext
from actors.metrics import RayMetrics
from actors.moving import MoveNews, TowerMove
from actors.text_rank import text_mesh
from actors.tower_news import CutNews, Peers, TowerNews
from hetero.checkpoint.manifest import FileEntry
from hetero.checkpoint.pretrained import StartedPart
from hetero.checkpoint.snapshot import Snapshot
from hetero.checkpoint.tensors import read_module, write_module
from hetero.errors import ProtocolError
from hetero.exchange.client import ShardedRowClient
from hetero.exchange.leases import LeasedRows
from hetero.exchange.messages import ServerHandle
from hetero.exchange.sources import RowSource
from hetero.hardware.heap import keep_freed_memory
from hetero.hardware.precision import FastBf16, fast_bf16_here
from hetero.hardware.probe import peak_rss_bytes
from hetero.hardware.tower_device import tower_device
from hetero.keys.routing import Routing
from hetero.loops.batches import PrefetchStream
from hetero.loops.cuts import CutRule, Taken, TowerCuts
from hetero.loops.handover import Handover
from hetero.loops.modes import dense_side, pulled_source
from hetero.loops.pace import Pace
from hetero.loops.protocols import BatchStream, Cut, SequencerForTower
from hetero.loops.pulses import RolePulses
from hetero.loops.results import ScoredPart, Scores, StepLog
from hetero.loops.run import RoleReport
from hetero.loops.separate_cuts import SeparateCuts
from hetero.loops.sparse_lane import SparseLane, StepLane, lane_of
from hetero.loops.text_ranks import put_on_mesh
from hetero.loops.tower import Cuts, Tower, predict, score, train
from hetero.loops.tower_state import restore_tower, start_tower, warm_tower
from hetero.loops.warm import warm_tower_kernels
from hetero.loops.windows import WindowFeed
from hetero.observe.metrics import Pulse
from hetero.observe.spans import SpanClock
from hetero.optim.device_path import described
from hetero.parallel.group import CollectiveGroup, Rendezvous, SoleTower, TowerGroup, free_rendezvous
from hetero.parallel.text_mesh import TextRank
from hetero.records import Precision, SnapshotSpec
from hetero.towers.build import make_tower

_NEWS_EVERY_S = 0.2
_MEETINGS_DEADLINES = 10  # a tower that lags may have many steps to go until the others' cut


@dataclass(frozen=True, slots=True, kw_only=True)
class _Joined:
    """What a tower has once it has met the others."""

    tower: Tower
    peers: Peers
    readers: list[RemoteReader]
    client: ShardedRowClient
    group: TowerGroup
    move: TowerMove


class TowerActor:
    """Shell of `hetero.loops.tower.Tower`."""

    def __init__(self, context: RunContext, index: int) -> None:
        keep_freed_memory()
        context.enter()
        self._context = context
        self._job = context.job
        self._index = index
        self._clock = SpanClock()
        self._lane: SparseLane = StepLane(self._clock)
        self._state: _Joined | None = None
        self._latest = TowerNews(step=0, rows=0, loss=None, waits={})
        self._rule = CutRule(SnapshotSpec())
        self._taken: Taken | None = None
        self._digest = ""
        self._is_training = False
        self._scored = Handover()
        torch.set_num_threads(context.job.threads_of_tower(index))
        self._pulses = RolePulses(f"tower/{index}")
        self._metrics = RayMetrics(context.run)
        self._place = tower_device(context.job.device, window_bytes=context.job.window_bytes)
        warm_tower_kernels(context.job, place=self._place)

    @ray.method(concurrency_group="control")
    def ping(self) -> int:
        """Answer, with the number of this process."""
        return os.getpid()

    def rendezvous(self) -> Rendezvous:
        """Where the group meets; asked of tower 0."""
        return free_rendezvous(cast(Any, ray.util).get_node_ip_address())

    def fast_bf16(self) -> FastBf16:
        """Whether this tower's device multiplies bf16 matrices in hardware."""
        return fast_bf16_here(self._place.kind)

    def join(self, peers: Peers, rendezvous: Rendezvous | None, precision: Precision) -> None:
        """Build the model and meet the other towers, who take the same precision. Raises TowerError, JobError."""
        group: TowerGroup = SoleTower()
        text: TextRank | None = None
        if self._job.tower.mesh is not None and rendezvous is not None:
            patience_s = self._job.deadline_s + self._context.reader_patience_s
            mesh = text_mesh(self._job, self._index, rendezvous, deadline_s=patience_s)
            module, text = put_on_mesh(self._job, mesh=mesh)
            group = text.leaders
        elif rendezvous is not None:
            group = CollectiveGroup.meet(
                rendezvous,
                rank=self._index,
                size=self._job.towers.count,
                deadline_s=self._job.deadline_s + self._context.reader_patience_s,  # another may wait for its reader
                device=self._place.device,
            )
        servers = [RemoteServer(peer) for peer in peers.servers]
        clock, place = self._clock, self._place
        self._lane = lane_of(self._job, clock=clock, holds_rows=place.holds_rows)
        client = ShardedRowClient(
            self._job, tower=self._index, servers=servers, clock=self._lane.clock, connect=self._servers_of
        )
        if text is None:
            module = make_tower(self._job, tower_class=self._context.tower_class).to(self._place.device)
        dense = dense_side(
            self._job,
            tower=self._index,
            module=module,
            client=client,
            servers=servers,
            group=group,
            clock=clock,
            text=text,
        )
        tower = Tower(
            self._job,
            module=module,
            client=client,
            dense=dense,
            clock=clock,
            precision=precision,
            place=place,
            lane=self._lane,
        )
        move = TowerMove(client, self._servers_of)
        readers = [RemoteReader(peer, patience_s=self._context.reader_patience_s) for peer in peers.readers]
        self._state = _Joined(tower=tower, peers=peers, readers=readers, client=client, group=group, move=move)

    def train(self, digest: str | None) -> StepLog:
        """Train until the sequencer has no more batches, or until a cut that stops the run.

        digest: of the data, for snapshots at the job's times; None takes none but those asked for.
        """
        state = self._joined()
        sequencer = RemoteSequencer(state.peers.sequencer)
        separate = self._job.towers.count > 1 and not self._job.mode.joint  # then the driver asks at the job's times
        timed = digest is not None and self._index == 0 and not separate
        self._rule = CutRule(self._job.snapshots if timed else SnapshotSpec())
        self._digest = digest or ""
        self._is_training = True
        try:
            log = self._train_on(state, sequencer)
        finally:
            self._is_training = False
        if log.stopped:
            sequencer.stop()
        return log

    def _train_on(self, state: _Joined, sequencer: RemoteSequencer) -> StepLog:
        """Rows leased by windows, or as the mode has it."""
        if not self._job.window:
            stream = self._stream(state, sequencer)
            dense = state.tower.dense
            source, batches = pulled_source(self._job, client=state.client, dense=dense, batches=stream)
            return self._train(state, batches, source)
        feed = WindowFeed(tower=self._index, sequencer=sequencer)
        leased = LeasedRows(
            self._job,
            client=state.client,
            group=state.group,
            windows=feed,
            clock=self._lane.clock,
            traffic=state.client.traffic,
            device=self._place.device if self._place.holds_rows else None,
            background=True,
        )
        try:
            return self._train(state, self._stream(state, feed), leased)
        finally:
            feed.close()

    def score(self) -> Scores:
        """Score until the sequencer has no more batches."""
        state = self._joined()
        stream = self._stream(state, RemoteSequencer(state.peers.sequencer))
        try:
            return score(state.tower, stream)
        finally:
            stream.close()

    def predict(self, vectors: bool) -> None:
        """Score until the sequencer has no more batches; the driver fetches what is there by `take_scored`."""
        state = self._joined()
        stream = self._stream(state, RemoteSequencer(state.peers.sequencer))
        try:
            predict(state.tower, stream, sink=self._scored.put, vectors=vectors)
        finally:
            stream.close()

    @ray.method(concurrency_group="control")
    def take_scored(self) -> list[ScoredPart]:
        return self._scored.take()

    def save(self, folder: str) -> FileEntry:
        tower = self._joined().tower
        tower.dense.refresh()
        return write_module(tower.module, folder=folder)

    def load(self, folder: Path) -> None:
        tower = self._joined().tower
        read_module(tower.module, Snapshot.open(folder))
        tower.dense.reopen()

    def restore(self, path: str) -> None:
        """Take up a snapshot's state."""
        restore_tower(self._joined().tower, Snapshot.open(path), first=self._index == 0)

    def warm_start(self, path: str) -> None:
        """Begin with a snapshot's parameters."""
        warm_tower(self._joined().tower, Snapshot.open(path))

    def start_parts(self) -> tuple[StartedPart, ...]:
        """Begin with pretrained models."""
        return start_tower(self._joined().tower, self._job)

    @ray.method(concurrency_group="control")
    def reader_replaced(self, reader: int, peer: Peer) -> None:
        """Another reader is there: ask it for what the lost one has not answered."""
        self._joined().readers[reader].replaced(peer)

    @ray.method(concurrency_group="control")
    def news(self) -> TowerNews:
        return self._latest

    @ray.method(concurrency_group="control")
    def pulse(self) -> Pulse:
        """How this tower stands."""
        log = StepLog() if self._state is None else self._state.tower.log
        traffic = {} if self._state is None else self._state.client.traffic.to_dict()
        return self._metrics.publish(self._pulses.of_tower(log, spans=self._clock.so_far(), traffic=traffic))

    @ray.method(concurrency_group="control")
    def ask_cut(self, cut: Cut) -> None:
        """Cut after the step under way, with all towers."""
        self._rule.ask(cut)

    @ray.method(concurrency_group="control")
    def cut_news(self) -> CutNews | None:
        """The cut that waits to be written; asked of tower 0."""
        taken = self._taken
        if taken is None:
            return None
        version = self._joined().client.routing.version
        return CutNews(name=taken.name, base=taken.base, cut=taken.cut, pause_s=taken.pause_s, routing=version)

    @ray.method(concurrency_group="snapshot")
    def write_cut(self, folder: str) -> tuple[FileEntry, ...]:
        """Write this tower's state as of the cut, while training goes on."""
        if self._taken is None:
            raise ProtocolError(f"tower {self._index}: asked to write a snapshot without a cut")
        if self._index:
            return self._taken.state.write_share(folder=folder, tower=self._index)
        return self._taken.state.write(folder=folder, digest=self._digest)

    @ray.method(concurrency_group="control")
    def cut_written(self, base: str | None) -> None:
        """The snapshot is whole, or given up: another may begin, with the changes since `base`."""
        self._taken = None
        self._rule.written(base=base)

    @ray.method(concurrency_group="control")
    def hold_cuts(self) -> bool:
        """Put snapshots off, stops excepted, until `release_cuts`; False while one is being made, and while this tower
        does not train. Asked of tower 0."""
        return self._is_training and self._rule.hold()

    @ray.method(concurrency_group="control")
    def release_cuts(self) -> None:
        """Snapshots may begin again."""
        self._rule.release()

    @ray.method(concurrency_group="control")
    def ask_move(self, then: Routing) -> None:
        """The rows that move are copied: let all towers be cut, and servers go by this routing. Asked of tower 0."""
        self._joined().move.prepare(then)
        self._rule.ask_move()

    @ray.method(concurrency_group="control")
    def move_news(self) -> MoveNews | None:
        """What came of it, once it is done."""
        return self._joined().move.news

    def role_report(self) -> RoleReport:
        return RoleReport(
            name=f"tower/{self._index}",
            spans=self._clock.totals(),
            peak_rss_bytes=peak_rss_bytes(),
            cpu_s=time.process_time(),
            traffic={} if self._state is None else self._state.client.traffic.to_dict(),
            device=described(self._place),
        )

    def _train(self, state: _Joined, stream: BatchStream, source: RowSource) -> StepLog:
        pace = Pace(_NEWS_EVERY_S)
        cuts: Cuts = TowerCuts(
            rule=self._rule,
            group=state.group,
            servers=lambda: _cut_servers(state.client),
            taken=self._note_taken,
            move=state.move,
        )
        if self._job.towers.count > 1 and not self._job.mode.joint:
            cuts = SeparateCuts(
                rule=self._rule,
                tower=self._index,
                place=RemoteSequencer(state.peers.sequencer),
                servers=_cut_servers(state.client),
                taken=self._note_taken,
                wait_s=_MEETINGS_DEADLINES * self._job.deadline_s,
            )

        def after_step(tower: Tower) -> None:
            if pace.due():
                self._note_news(tower)

        try:
            log = train(state.tower, stream, source, after_step=after_step, cuts=cuts)
        finally:
            stream.close()
        self._note_news(state.tower)
        return log

    def _stream(self, state: _Joined, sequencer: SequencerForTower) -> PrefetchStream:
        return PrefetchStream(
            self._job,
            tower=self._index,
            sequencer=sequencer,
            readers=state.readers,
            clock=self._clock,
        )

    def _note_news(self, tower: Tower) -> None:
        log = tower.log
        loss = log.losses[-1] if log.losses else None
        spent = self._clock.totals()
        self._latest = TowerNews(
            step=len(log.losses),
            rows=log.rows,
            loss=loss,
            waits=spent.waits,
            busy_s=spent.total_s - spent.wait_s,
        )

    def _note_taken(self, taken: Taken) -> None:
        self._taken = taken

    def _servers_of(self, routing: Routing) -> list[ServerHandle]:
        """Those of a routing: known ones by their handles, new ones by their names."""
        known = self._joined().client.servers[: routing.servers]
        run, deadline_s = self._context.run, self._job.deadline_s
        return [*known, *(find_server(run, n, deadline_s=deadline_s) for n in range(len(known), routing.servers))]

    def _joined(self) -> _Joined:
        if self._state is None:
            raise ProtocolError(f"tower {self._index}: asked before it joined its group")
        return self._state


def _cut_servers(client: ShardedRowClient) -> list[RemoteServer]:
    return [server for server in client.servers if isinstance(server, RemoteServer)]
