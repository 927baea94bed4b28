"""The step loop of one rank of a deep model: batches -> loss -> gradients -> parameters, evaluations, snapshots."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import torch
from torch import Tensor

from hetero.checkpoint.mesh_snapshot import read_snapshot, write_snapshot
from hetero.hardware.probe import peak_rss_bytes
from hetero.loops.deep_batches import DeepBatches
from hetero.loops.deep_rates import rank_rates
from hetero.observe.spans import Span, SpanClock, SpanTotals
from hetero.parallel.deep_tower import DeepLoss, DeepStep, DeepTower
from hetero.parallel.mesh import Mesh
from hetero.parallel.traffic import Traffic, TrafficMeter
from hetero.planning.deep_run import RankRates
from hetero.records.deep_job import DeepJobSpec

SNAPSHOTS = "snapshots"
_METERED_STEP = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Validation loss in nats a target, after so many steps."""

    step: int
    loss: float
    targets: int


@dataclass(slots=True)
class DeepLog:
    """What a rank saw. losses, norms, step_ends_t (unix seconds): one a step, from step `first_step` on.

    peak_bytes: of the process, or of device memory where there is a device. rates: as this rank measured them before
    its first step, while all did. step_s: seconds inside steps. bubbles: of every step, where there is a pipeline.
    traffic: of one step, None on one rank. node: the machine's name. spans: where the rank's time went.
    """

    first_step: int = 0
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    step_ends_t: list[float] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    skipped: int = 0
    step_s: float = 0.0
    peak_bytes: int = 0
    rates: RankRates = field(default_factory=RankRates)
    bubbles: list[float] = field(default_factory=list)
    traffic: Traffic | None = None
    node: str = ""
    spans: SpanTotals = field(default_factory=SpanTotals)
    snapshot: str | None = None

    @property
    def steps(self) -> int:
        return len(self.losses)


AfterStep = Callable[[DeepLog], None]


class DeepRank:
    """One rank, built: model, batches and where it is in them."""

    def __init__(self, job: DeepJobSpec, *, mesh: Mesh) -> None:
        place, spec = mesh.place, mesh.spec
        self._base_bytes = psutil.Process().memory_info().rss if mesh.device.type == "cpu" else 0
        self._job = job
        self.mesh = mesh
        self.batches = DeepBatches(
            job, way=place.dp * spec.shard + place.shard, ways=spec.data_ways, device=mesh.device
        )
        self.tower = DeepTower(job.model, mesh=mesh, optimizer=job.optimizer, batch_size=job.batch_size, seed=job.seed)
        self.cursor = 0
        self.clock = SpanClock()

    def resume(self, snapshot: Path) -> None:
        """Go on from a snapshot, on whatever mesh it was written."""
        self.cursor = read_snapshot(self.tower, snapshot, data=self.batches.data).cursor

    def train(self, folder: Path, *, after_step: AfterStep) -> DeepLog:
        """Train until the job's last step; snapshots go to `folder`/snapshots."""
        job = self._job
        rates = rank_rates(job, self.mesh, base_bytes=self._base_bytes)
        log = DeepLog(first_step=self.tower.step_number, rates=rates, node=platform.node())
        while self.tower.step_number < job.last_step:
            started = time.perf_counter()
            with self.clock.span(Span.DATA_BATCH):
                tokens, targets = self.batches.train(self.cursor)
            read = time.perf_counter()
            done = self._step(tokens, targets, log)
            waited_s = self.tower.waited_s
            self.clock.add(Span.TOWER_STEP, seconds=time.perf_counter() - read - waited_s)
            self.clock.add(Span.WAIT_TOWERS, seconds=waited_s)
            self.cursor += job.batch_size
            log.step_s += time.perf_counter() - started
            log.losses.append(done.loss)
            log.norms.append(done.norm)
            log.step_ends_t.append(time.time())
            log.skipped += done.skipped
            if self.tower.bubble is not None:
                log.bubbles.append(self.tower.bubble)
            self._between_steps(log, folder)
            after_step(log)
        log.peak_bytes = self._peak_bytes()
        log.spans = self.clock.totals()
        return log

    def validation_loss(self, *, most: int | None) -> DeepLoss | None:
        """Over the validation tokens, `most` blocks of them; None without any."""
        total: DeepLoss | None = None
        for tokens, targets in self.batches.validation(most=most):
            loss = self.tower.loss(tokens, targets)
            total = loss if total is None else total + loss
        return total

    def _step(self, tokens: Tensor, targets: Tensor, log: DeepLog) -> DeepStep:
        """One step; an early one with its traffic counted."""
        if self.mesh.size == 1 or log.steps != _METERED_STEP:
            return self.tower.step(tokens, targets)
        with TrafficMeter(self.mesh) as meter:
            done = self.tower.step(tokens, targets)
        log.traffic = meter.traffic
        return done

    def _between_steps(self, log: DeepLog, folder: Path) -> None:
        job, step = self._job, self.tower.step_number
        last = step == job.last_step
        if last or (job.evaluate_every and step % job.evaluate_every == 0):
            with self.clock.span(Span.TOWER_SCORE):
                loss = self.validation_loss(most=None if last else job.validation_blocks)
            if loss is not None:
                log.evaluations.append(Evaluation(step=step, loss=loss.mean, targets=loss.targets))
        if last or (job.snapshot_every and step % job.snapshot_every == 0):
            with self.clock.span(Span.SNAPSHOT_WRITE):
                written = write_snapshot(
                    self.tower, folder / SNAPSHOTS, cursor=self.cursor, data=self.batches.data, keep=job.keep
                )
            log.snapshot = str(written)

    def _peak_bytes(self) -> int:
        if self.mesh.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.mesh.device)
        return peak_rss_bytes()
