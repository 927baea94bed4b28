"""Several towers over shared servers, as threads of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn

from hetero.exchange.client import LocalServer, ShardedRowClient
from hetero.exchange.leases import LeasedRows
from hetero.exchange.server import RowServer
from hetero.exchange.traffic import Traffic
from hetero.hardware.tower_device import tower_device
from hetero.keys.sequencer import Sequencer
from hetero.loops.batches import InlineStream
from hetero.loops.modes import dense_side, pulled_source
from hetero.loops.protocols import Phase
from hetero.loops.reader import Reader, make_sequencer
from hetero.loops.results import StepLog
from hetero.loops.run import DataPass
from hetero.loops.sparse_lane import lane_of
from hetero.loops.tower import Cuts, Tower, train
from hetero.loops.windows import InlineWindows
from hetero.observe.spans import SpanClock
from hetero.parallel.group import SoleTower, TowerGroup
from hetero.records import JobSpec
from hetero.towers.build import make_tower

DEADLINE_S = 60.0


class Meeting:
    """Where threads leave their values and read the sum, added up in rank order."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size)
        self.values: list[torch.Tensor | None] = [None] * size
        self.parts: list[list[torch.Tensor]] = [[]] * size


class ThreadGroup:
    """A TowerGroup of threads."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.rank = rank
        self.size = meeting.size
        self._meeting = meeting

    def sum_(self, values: torch.Tensor) -> None:
        self._meeting.values[self.rank] = values.clone()
        self._meeting.barrier.wait(timeout=DEADLINE_S)
        values.zero_()
        for part in self._meeting.values:
            assert part is not None
            values += part
        self._meeting.barrier.wait(timeout=DEADLINE_S)

    def exchange(self, rows: torch.Tensor, send: list[int], receive: list[int]) -> torch.Tensor:
        self._meeting.parts[self.rank] = list(torch.split(rows.clone(), send))
        self._meeting.barrier.wait(timeout=DEADLINE_S)
        received = torch.cat([parts[self.rank] for parts in self._meeting.parts])
        assert len(received) == sum(receive)
        self._meeting.barrier.wait(timeout=DEADLINE_S)
        return received

    def close(self) -> None:
        """Nothing to release."""


class OneCallAtATime:
    """A server that takes one call at a time whatever it is, as an actor does."""

    def __init__(self, server: RowServer) -> None:
        self._server = server
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._server, name)

        def called(*arguments: object) -> object:
            with self._lock:
                return method(*arguments)

        return called


@dataclass(frozen=True, kw_only=True)
class TrainedTowers:
    """What several towers did: their logs, the towers themselves, and the servers they shared."""

    logs: list[StepLog]
    towers: list[Tower]
    servers: list[RowServer]
    traffic: list[Traffic]


def own_reading(job: JobSpec) -> tuple[Sequencer, list[Reader]]:
    """A sequencer and a reader for one tower of a job with several."""
    data = DataPass.open(job.train, phase=Phase.TRAIN)
    sequencer = make_sequencer(
        job,
        data=job.train,
        splits=len(data.splits),
        epochs=job.epochs,
        max_steps=job.max_steps,
        towers=job.towers.count,
    )
    return sequencer, [Reader(job, index=0, data=job.train, splits=data.splits)]


MakeCuts = Callable[[int, TowerGroup, list[RowServer]], Cuts]


def train_towers(
    job: JobSpec, *, make: Callable[[], nn.Module] | None = None, make_cuts: MakeCuts | None = None
) -> TrainedTowers:
    """Train all towers of a job over shared servers, each in a thread of its own. make: a tower's module. make_cuts:
    a tower's cuts."""
    row_servers = [RowServer(job) for _ in range(job.servers.count)]
    servers = [LocalServer(cast(RowServer, OneCallAtATime(server))) for server in row_servers]
    meeting = Meeting(job.towers.count)
    place = tower_device(job.device, window_bytes=job.window_bytes)
    made = [make_tower(job) if make is None else make() for _ in range(job.towers.count)]  # seeds torch: one thread
    modules = [module.to(place.device) for module in made]

    towers: list[Tower | None] = [None] * job.towers.count
    traffic = [Traffic() for _ in towers]

    def one(rank: int) -> StepLog:
        torch.set_num_threads(job.towers.threads)  # as a tower's process does
        clock = SpanClock()
        group: TowerGroup = SoleTower() if meeting.size == 1 else ThreadGroup(meeting, rank)
        lane = lane_of(job, clock=clock, holds_rows=place.holds_rows)
        client = ShardedRowClient(job, tower=rank, servers=servers, clock=lane.clock)
        traffic[rank] = client.traffic
        dense = dense_side(
            job, tower=rank, module=modules[rank], client=client, servers=servers, group=group, clock=clock
        )
        tower = Tower(job, module=modules[rank], client=client, dense=dense, clock=clock, place=place, lane=lane)
        towers[rank] = tower
        sequencer, readers = own_reading(job)
        cuts = None if make_cuts is None else make_cuts(rank, group, row_servers)
        if not job.window:
            stream = InlineStream(job, sequencer, readers, tower=rank)
            source, batches = pulled_source(job, client=client, dense=dense, batches=stream)
            return train(tower, batches, source, after_step=lambda _: None, cuts=cuts)
        windowed = InlineWindows(job, sequencer, readers, tower=rank)
        leased = LeasedRows(
            job,
            client=client,
            group=group,
            windows=windowed,
            clock=lane.clock,
            traffic=client.traffic,
            device=place.device if place.holds_rows else None,
            background=True,
        )
        return train(tower, windowed, leased, after_step=lambda _: None, cuts=cuts)

    with ThreadPoolExecutor(job.towers.count) as pool:
        logs = list(pool.map(one, range(job.towers.count), timeout=DEADLINE_S))
    alive = [tower for tower in towers if tower is not None]
    return TrainedTowers(logs=logs, towers=alive, servers=row_servers, traffic=traffic)
