"""A tower as an actor: one thread trains, one fetches batches in the background, one answers the driver."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import ray
import torch

from actors.clients import Peer, RemoteReader, RemoteSequencer, RemoteServer
from actors.context import RunContext
from hetero.checkpoint.dense import read_dense, write_dense
from hetero.errors import ProtocolError
from hetero.exchange.client import ShardedRowClient
from hetero.hardware.probe import peak_rss_bytes
from hetero.loops.batches import PrefetchStream
from hetero.loops.pace import Pace
from hetero.loops.results import Scores, StepLog
from hetero.loops.run import RoleReport
from hetero.loops.tower import Tower, score, train
from hetero.observe.spans import SpanClock
from hetero.parallel.group import CollectiveGroup, Rendezvous, SoleTower, TowerGroup, free_rendezvous
from hetero.towers.build import make_tower

_NEWS_EVERY_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """Whom a tower talks to."""

    sequencer: Peer
    readers: Sequence[Peer]
    servers: Sequence[Peer]


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerNews:
    """What the driver learns on each look, as of a step shortly before. waits: seconds so far, by role waited for."""

    step: int
    rows: int
    loss: float | None
    waits: dict[str, float]


class TowerActor:
    """Shell of `hetero.loops.tower.Tower`."""

    def __init__(self, context: RunContext, index: int) -> None:
        context.enter()
        self._context = context
        self._job = context.job
        self._index = index
        self._clock = SpanClock()
        self._tower: Tower | None = None
        self._peers: Peers | None = None
        self._latest = TowerNews(step=0, rows=0, loss=None, waits={})
        torch.set_num_threads(context.job.towers.threads)

    @ray.method(concurrency_group="control")
    def ping(self) -> int:
        """Answer, with the number of this process."""
        return os.getpid()

    def rendezvous(self) -> Rendezvous:
        """Where the group meets; asked of tower 0."""
        return free_rendezvous(cast(Any, ray.util).get_node_ip_address())

    def join(self, peers: Peers, rendezvous: Rendezvous | None) -> None:
        """Build the model and meet the other towers. Raises TowerError, JobError."""
        group: TowerGroup = SoleTower()
        if rendezvous is not None:
            group = CollectiveGroup(
                rendezvous,
                rank=self._index,
                size=self._job.towers.count,
                deadline_s=self._job.deadline_s,
                device=torch.device("cpu"),
            )
        client = ShardedRowClient(
            self._job,
            tower=self._index,
            servers=[RemoteServer(peer) for peer in peers.servers],
            clock=self._clock,
        )
        module = make_tower(self._job, tower_class=self._context.tower_class)
        self._peers = peers
        self._tower = Tower(self._job, module=module, client=client, group=group, clock=self._clock)

    def train(self) -> StepLog:
        """Train until the sequencer has no more batches."""
        tower, stream = self._ready()
        pace = Pace(_NEWS_EVERY_S)

        def after_step(tower: Tower) -> None:
            if pace.due():
                self._note_news(tower)

        try:
            log = train(tower, stream, after_step=after_step)
        finally:
            stream.close()
        self._note_news(tower)
        return log

    def score(self) -> Scores:
        """Score until the sequencer has no more batches."""
        tower, stream = self._ready()
        try:
            return score(tower, stream)
        finally:
            stream.close()

    def save(self, folder: Path) -> str:
        return write_dense(self._joined().module, folder=folder)

    def load(self, folder: Path) -> None:
        read_dense(self._joined().module, folder=folder)

    @ray.method(concurrency_group="control")
    def news(self) -> TowerNews:
        return self._latest

    def role_report(self) -> RoleReport:
        return RoleReport(
            name=f"tower/{self._index}",
            spans=self._clock.totals(),
            peak_rss_bytes=peak_rss_bytes(),
            cpu_s=time.process_time(),
        )

    def _note_news(self, tower: Tower) -> None:
        log = tower.log
        waits = self._clock.totals().waits
        self._latest = TowerNews(
            step=len(log.losses), rows=log.rows, loss=log.losses[-1] if log.losses else None, waits=waits
        )

    def _ready(self) -> tuple[Tower, PrefetchStream]:
        tower = self._joined()
        assert self._peers is not None
        stream = PrefetchStream(
            self._job,
            tower=self._index,
            sequencer=RemoteSequencer(self._peers.sequencer),
            readers=[RemoteReader(peer) for peer in self._peers.readers],
            clock=self._clock,
        )
        return tower, stream

    def _joined(self) -> Tower:
        if self._tower is None:
            raise ProtocolError(f"tower {self._index}: asked before it joined its group")
        return self._tower
