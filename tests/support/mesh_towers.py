"""A joint run whose text half lies on a mesh of processes: the leader trains as a tower does, the others follow."""

from __future__ import annotations

import torch

from hetero.exchange.client import LocalServer, ShardedRowClient
from hetero.exchange.leases import LeasedRows
from hetero.exchange.server import RowServer
from hetero.loops.batches import InlineStream
from hetero.loops.modes import dense_side
from hetero.loops.text_ranks import put_on_mesh, text_rank
from hetero.loops.tower import Tower, score, train
from hetero.loops.tower_state import TowerState
from hetero.loops.windows import InlineWindows
from hetero.observe.spans import SpanClock
from hetero.parallel.group import Rendezvous
from hetero.parallel.mesh import Mesh
from hetero.parallel.text_mesh import leader_of
from hetero.records import START, JobSpec
from hetero.towers.build import make_tower
from tests.support.deep_runs import store_at
from tests.support.thread_towers import own_reading

Trained = tuple[list[float], list[float], dict[str, tuple[int, ...]]]
"""Losses of every step, predictions of the training rows after them, shapes of what a snapshot holds."""


def joint_mesh_run(rank: int, size: int, meet: Rendezvous, job: JobSpec) -> Trained | None:
    """What the leader of the only way saw; None of the others. The servers are in the leader's process."""
    torch.set_num_threads(1)
    spec = job.tower.mesh
    assert spec is not None
    store = store_at(meet, rank=rank, size=size)
    mesh = Mesh(spec, rank=rank, size=size, device=torch.device("cpu"), deadline_s=60.0, store=store)
    try:
        if rank != leader_of(spec, 0):
            text_rank(job, make_tower(job), mesh=mesh).follow()
            return None
        return _lead(job, mesh)
    finally:
        mesh.close()


def _lead(job: JobSpec, mesh: Mesh) -> Trained:
    module, text = put_on_mesh(job, mesh=mesh)
    servers = [LocalServer(RowServer(job)) for _ in range(job.servers.count)]
    clock = SpanClock()
    client = ShardedRowClient(job, tower=0, servers=servers, clock=clock)
    dense = dense_side(
        job, tower=0, module=module, client=client, servers=servers, group=text.leaders, clock=clock, text=text
    )
    tower = Tower(job, module=module, client=client, dense=dense, clock=clock)
    sequencer, readers = own_reading(job)
    windowed = InlineWindows(job, sequencer, readers)
    leased = LeasedRows(job, client=client, group=text.leaders, windows=windowed, clock=clock)
    log = train(tower, windowed, leased, after_step=lambda _: None)
    sequencer, readers = own_reading(job)
    scores = score(tower, InlineStream(job, sequencer, readers))
    state = TowerState.of(tower, START, rejected_rows=0)
    shapes = {name: tuple(value.shape) for part in (state.dense, state.optimizer) for name, value in part.items()}
    text.stop()
    return log.losses, scores.predictions.tolist(), shapes
