"""A rank of a deep model as an actor: one thread trains in one long call, one answers the driver."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import ray
import torch

from actors.metrics import RayMetrics
from actors.naming import Member
from hetero.errors import ProtocolError
from hetero.hardware.heap import keep_freed_memory
from hetero.loops.deep import DeepLog, DeepRank, Evaluation
from hetero.loops.pace import Pace
from hetero.loops.pulses import RolePulses
from hetero.observe.metrics import Pulse
from hetero.parallel.group import Rendezvous
from hetero.parallel.mesh import Mesh, device_named, host_store, join_store
from hetero.records.deep_job import DeepJobSpec

_NEWS_EVERY_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepContext:
    """The frozen facts of a deep run. folder: of the run, for snapshots; every rank must reach it under this path."""

    run: str
    job: DeepJobSpec
    folder: Path
    import_paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankNews:
    """What the driver learns on each look. step: steps done. evaluation: the newest. pulses: of ranks, as they came."""

    step: int
    loss: float | None
    evaluation: Evaluation | None = None
    pulses: tuple[Pulse, ...] = ()


class RankActor:
    """Shell of `hetero.loops.deep.DeepRank`."""

    def __init__(self, context: DeepContext, member: Member) -> None:
        keep_freed_memory()
        for path in reversed(context.import_paths):
            if path not in sys.path:
                sys.path.insert(0, path)
        self._context = context
        self._member = member
        self._store: Any = None
        self._rank: DeepRank | None = None
        self._news = RankNews(step=0, loss=None)
        self._log = DeepLog()
        self._pulses = RolePulses(member.short)
        self._metrics = RayMetrics(context.run)
        torch.set_num_threads(context.job.threads)

    @ray.method(concurrency_group="control")
    def ping(self) -> int:
        """Answer, with the number of this process."""
        return os.getpid()

    def host(self) -> Rendezvous:
        """Open the store where the ranks meet; asked of rank 0."""
        address = cast(Any, ray.util).get_node_ip_address()
        self._store = host_store(address)
        return Rendezvous(address, self._store.port)

    def join(self, rendezvous: Rendezvous, snapshot: Path | None) -> None:
        """Meet the others, build this rank's share of the model, and take over a snapshot's state."""
        job = self._context.job
        if self._store is None:
            self._store = join_store(rendezvous, deadline_s=job.deadline_s)
        mesh = Mesh(
            job.mesh,
            rank=self._member.index,
            size=job.mesh.ranks,
            device=device_named(job.device),
            deadline_s=job.deadline_s,
            store=self._store,
        )
        self._rank = DeepRank(job, mesh=mesh)
        if snapshot is not None:
            self._rank.resume(snapshot)

    def train(self) -> DeepLog:
        """Train to the end."""
        if self._rank is None:
            raise ProtocolError(f"{self._member}: asked to train before it joined the mesh")
        pace = Pace(_NEWS_EVERY_S)

        def after_step(log: DeepLog) -> None:
            self._log = log
            if pace.due():
                self._note(log)

        log = self._rank.train(self._context.folder, after_step=after_step)
        self._note(log)
        return log

    @ray.method(concurrency_group="control")
    def news(self) -> RankNews:
        return self._news

    @ray.method(concurrency_group="control")
    def pulse(self) -> Pulse | None:
        """How this rank stands; None before it has joined."""
        rank = self._rank
        if rank is None:
            return None
        pulse = self._pulses.of_rank(self._log, spans=rank.clock.so_far(), job=self._context.job)
        return self._metrics.publish(pulse)

    def close(self) -> None:
        """Leave the mesh in order."""
        if self._rank is not None:
            self._rank.mesh.close()

    def _note(self, log: DeepLog) -> None:
        loss = log.losses[-1] if log.losses else None
        newest = log.evaluations[-1] if log.evaluations else None
        self._news = RankNews(step=log.first_step + log.steps, loss=loss, evaluation=newest)
