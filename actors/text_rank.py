"""A rank of a text half that leads no data way, as an actor: it follows its way's tower until the run ends."""

from __future__ import annotations

import os
import time

import ray
import torch

from actors.context import RunContext
from actors.metrics import RayMetrics
from hetero.errors import ProtocolError
from hetero.hardware.heap import keep_freed_memory
from hetero.hardware.probe import peak_rss_bytes
from hetero.loops.pulses import RolePulses
from hetero.loops.run import RoleReport
from hetero.loops.text_ranks import text_rank
from hetero.observe.metrics import Pulse
from hetero.observe.spans import SpanTotals
from hetero.parallel.group import Rendezvous
from hetero.parallel.mesh import Mesh, join_store, store_at
from hetero.parallel.text_mesh import TextRank, followers, leader_of
from hetero.records import JobSpec
from hetero.towers.build import make_tower


def text_mesh(job: JobSpec, tower: int, rendezvous: Rendezvous, *, deadline_s: float) -> Mesh:
    """The mesh as the leader of way `tower` sees it; tower 0 holds the store where all ranks meet."""
    assert job.tower.mesh is not None
    store = store_at(rendezvous) if tower == 0 else join_store(rendezvous, deadline_s=deadline_s)
    return Mesh(
        job.tower.mesh,
        rank=leader_of(job.tower.mesh, tower),
        size=job.tower.mesh.ranks,
        device=torch.device("cpu"),
        deadline_s=deadline_s,
        store=store,
    )


class TextRankActor:
    """Shell of `hetero.parallel.text_mesh.TextRank`."""

    def __init__(self, context: RunContext, index: int) -> None:
        keep_freed_memory()
        context.enter()
        self._context = context
        self._index = index
        self._rank: TextRank | None = None
        self._pulses = RolePulses(f"rank/{index}")
        self._metrics = RayMetrics(context.run)
        torch.set_num_threads(context.job.towers.threads)

    @ray.method(concurrency_group="control")
    def ping(self) -> int:
        """Answer, with the number of this process."""
        return os.getpid()

    @ray.method(concurrency_group="control")
    def pulse(self) -> Pulse:
        """How this rank stands."""
        return self._metrics.publish(self._pulses.of_role(SpanTotals()))

    @ray.method(concurrency_group="control")
    def role_report(self) -> RoleReport:
        """What this process spent; it answers while the rank follows."""
        return RoleReport(
            name=f"rank/{self._index}",
            spans=SpanTotals(),
            peak_rss_bytes=peak_rss_bytes(),
            cpu_s=time.process_time(),
        )

    def join(self, rendezvous: Rendezvous) -> None:
        """Meet the others and build this rank's share of the text half."""
        job = self._context.job
        spec = job.tower.mesh
        assert spec is not None
        deadline_s = job.deadline_s + self._context.reader_patience_s
        mesh = Mesh(
            spec,
            rank=followers(spec)[self._index],
            size=spec.ranks,
            device=torch.device("cpu"),
            deadline_s=deadline_s,
            store=join_store(rendezvous, deadline_s=deadline_s),
        )
        self._rank = text_rank(job, make_tower(job, tower_class=self._context.tower_class), mesh=mesh)

    def follow(self) -> None:
        """Do what the way's tower says, until it says stop or the run ends."""
        if self._rank is None:
            raise ProtocolError(f"rank/{self._index}: asked to follow before it joined the mesh")
        self._rank.follow()
