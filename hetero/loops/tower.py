"""A tower's steps: what happens between a batch and the updated model.

Consumes   (BatchSpec, Batch)                   from a BatchStream
Produces   gradients per unique row             to the servers
           dense gradients, loss                to the sum over towers, or to the servers (`hetero.loops.modes`)
Waits for  readers (next batch), servers (rows), towers (the sum)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import nn

from hetero.errors import NumericsError, TowerError
from hetero.exchange.client import PushSummary, RowClient
from hetero.exchange.dense_sides import DenseSide
from hetero.exchange.messages import Pending, Purpose
from hetero.exchange.server_pooling import pooled_groups, shown
from hetero.exchange.sources import RowSource
from hetero.hardware.tower_device import ON_HOST, TowerDevice
from hetero.kernels.pooling_torch import tensor_of
from hetero.loops.protocols import BatchStream, Cut
from hetero.loops.results import ScoredPart, Scores, StepLog
from hetero.loops.sparse_lane import SparseLane, StepLane
from hetero.loops.uses import with_uses
from hetero.metrics.bucketed import BucketedAuc
from hetero.observe.spans import Span, SpanClock
from hetero.parallel.dense import DenseStep
from hetero.records import F32, Batch, BatchSpec, JobSpec, Precision
from hetero.towers.embeddings import EmbeddingLayout, Embeddings, backward, embed, leaf_of
from hetero.towers.lookup import Backend
from hetero.towers.losses import TowerLoss
from hetero.towers.outputs import TowerOutput, check_output
from hetero.towers.registry import batch_coupled_layers

_MAX_EXAMPLES = 8
_MAX_STEPS_NOT_FINITE = 10


class Tower:
    """A model replica with what it needs to train: rows from a client, a side that updates dense parameters.

    place: where it computes; the module is there. precision: of the module's matrix products, FP32 or BF16, the same on
    all towers of the group. lane: where the sparse side of a step runs; default, in the step's thread.
    Raises TowerError when the module couples the rows of a batch (BatchNorm) and there are several towers.
    """

    def __init__(
        self,
        job: JobSpec,
        *,
        module: nn.Module,
        client: RowClient,
        dense: DenseSide,
        clock: SpanClock,
        precision: Precision = Precision.FP32,
        place: TowerDevice = ON_HOST,
        lane: SparseLane | None = None,
    ) -> None:
        coupled, towers = batch_coupled_layers(module), job.towers.count
        if coupled and towers > 1:
            raise TowerError(
                f"tower: {', '.join(coupled)} normalizes over the rows of one tower's batch, so {towers} towers "
                "would not equal one; use LayerNorm, or set roles.towers to 1"
            )
        self.module = module
        self.dense = dense
        self.log = StepLog(joint=job.mode.joint)
        self._job = job
        self._client = client
        self.clock = clock
        self._layout = EmbeddingLayout.from_job(job)
        self._pooled = pooled_groups(job)
        self._loss = TowerLoss(job)
        self._place = place
        self.lane = lane or StepLane(clock)
        self._leaving: Pending[PushSummary] | None = None
        self._goes_on = self.lane.apart and towers == 1
        self._read = getattr(module, "read", None) if job.train.texts else None
        self._backend = Backend.TORCH if place.holds_rows else Backend.AUTO
        self._is_bf16 = precision is Precision.BF16

    def train_step(self, spec: BatchSpec, batch: Batch, source: RowSource, *, flag: float = 0.0) -> DenseStep:
        """Rows, forward, backward, gradients to the source, dense update. Returns the loss of the joint batch, or this
        tower's share of it in modes without a sum over towers; and likewise the flags of all towers, or its own.

        Raises NumericsError when the loss has not been finite for several steps in a row; until then gradients that
        are not finite are rejected and counted.
        """
        with self.clock.span(Span.ROWS_PULL):
            before = self._leaving
            coming = self.lane.begin(lambda: self._looked_up(spec, batch, source, before=before))
            self.dense.begin()
        with self.clock.span(Span.TOWER_STEP):
            _seed_dropout(self._job.seed, spec.step, spec.tower, kind=self._place.kind)
            texts = self._texts(batch)
        with self.clock.span(Span.ROWS_PULL):
            self._settle()
            found = coming.result()
        with self.clock.span(Span.TOWER_STEP):
            leaves = [leaf_of(text) for text in texts]
            embeddings = found.embeddings.cut(leaves) if texts else found.embeddings
            loss = self._loss(self._output(batch, embeddings, is_bf16=self._is_bf16), batch, weight_sum=spec.weight_sum)
            loss.backward()  # type: ignore[no-untyped-call]
        with self.clock.span(Span.ROWS_PUSH):
            self._leaving = self.lane.begin(lambda: self._given(spec, batch, source, found, embeddings))
        with self.clock.span(Span.TOWER_STEP):
            backward(texts, leaves)
        if not self._goes_on:
            with self.clock.span(Span.ROWS_PUSH):
                self._settle()
        with self.clock.span(Span.GRADS_MERGE):
            outcome = self.dense.step(loss, flag=flag)
        self._note_step(batch, outcome)
        self._check_finite(spec.step)
        return outcome

    def score(self, batch: Batch, *, step: int) -> F32:
        """Probabilities of a batch, float32 [B]; unseen keys read as zeros and nothing is created.

        In fp32 whatever the run trains in, so that a model's scores do not depend on the machine that computes them.
        """
        with self.clock.span(Span.ROWS_PULL):
            pulled = self._client.pull([group.unique for group in batch.groups], step=step, purpose=Purpose.SCORE)
        with self.clock.span(Span.TOWER_STEP), torch.no_grad():
            embeddings = embed(batch, [self._there(values) for values in pulled], self._layout, backend=self._backend)
            output = self._output(batch, embeddings, is_bf16=False)
            probabilities: F32 = torch.sigmoid(output.logits.float()).cpu().numpy()
        return probabilities

    def text_vectors(self, batch: Batch) -> tuple[F32, ...]:
        """What the text half makes of each text: float32 [B, D] each. Raises TowerError for a tower that has none."""
        text = getattr(self.module, "text", None)
        if text is None or not batch.tokens:
            raise TowerError(f"tower {self._job.tower.name}: has no text half, so it gives no vectors of texts")
        with self.clock.span(Span.TOWER_STEP), torch.no_grad():
            return tuple(text(self._there(tokens)).float().cpu().numpy() for tokens in batch.tokens)

    def deliver(self, source: RowSource, *, steps: int) -> None:
        """Let the servers hold everything as it is after `steps` steps; training goes on."""
        self._settle()
        self._note_rejected(source.deliver(steps))
        self._note_rejected_dense(self.dense.settle())

    def let_go(self, source: RowSource, *, steps: int) -> None:
        """Let the servers hold everything as it is after `steps` steps, and lease nothing."""
        self._settle()
        self._note_rejected(source.let_go(steps))
        self._note_rejected_dense(self.dense.settle())

    def look_for_routing(self) -> None:
        """Go by the routing that the servers go by."""
        self._client.look_for_routing()

    def finish(self, source: RowSource) -> None:
        """Wait until every update is with the servers."""
        self._settle()
        self._note_rejected(source.finish())
        self._note_rejected_dense(self.dense.settle())

    def _settle(self) -> None:
        """Wait until the rows' gradients of the step before are given to the source; raises what that raised."""
        if self._leaving is not None:
            self._note_rejected(self._leaving.result())
            self._leaving = None

    def _looked_up(
        self, spec: BatchSpec, batch: Batch, source: RowSource, *, before: Pending[PushSummary] | None
    ) -> _LookedUp:
        """The batch's rows, as leaves, and what its lookups make of them. before: the step before's gradients, which
        were given by now; where that failed no row is asked for."""
        if before is not None:
            before.result()
        with self.lane.clock.span(Span.ROWS_PULL):
            rows = [values.to(self._place.device).requires_grad_() for values in source.rows(spec, batch)]
            return _LookedUp(rows, embed(shown(batch, self._pooled), rows, self._layout, backend=self._backend))

    def _texts(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """Vectors of the batch's texts, of a module that can read them before it has rows."""
        if self._read is None:
            return ()
        with torch.autocast(self._place.kind, dtype=torch.bfloat16, enabled=self._is_bf16):
            texts: tuple[torch.Tensor, ...] = self._read([self._there(tokens) for tokens in batch.tokens])
        return texts

    def _output(self, batch: Batch, embeddings: Embeddings, *, is_bf16: bool) -> TowerOutput:
        with torch.autocast(self._place.kind, dtype=torch.bfloat16, enabled=is_bf16):
            output = self.module(self._there(batch.dense), embeddings)
        return check_output(output, batch.rows, tasks=len(self._job.train.tasks))

    def _given(
        self, spec: BatchSpec, batch: Batch, source: RowSource, found: _LookedUp, embeddings: Embeddings
    ) -> PushSummary:
        """Hand the source the rows' gradients. embeddings: those that the module had, which may be cut from `found`."""
        with self.lane.clock.span(Span.ROWS_PUSH):
            if embeddings is not found.embeddings:
                found.embeddings.backward(embeddings)
            gradients = tuple(_gradient(values) for values in found.rows)
            return source.apply(spec, batch, with_uses(gradients, batch, groups=self._job.groups))

    def _there(self, values: np.ndarray) -> torch.Tensor:
        """An array as a tensor where this tower computes."""
        return tensor_of(values, device=self._place.device)

    def _note_step(self, batch: Batch, outcome: DenseStep) -> None:
        now = time.time()
        self.log.losses.append(outcome.loss)
        self.log.rows += batch.rows
        self._note_rejected_dense(outcome.rejected)
        self.log.first_step_t = self.log.first_step_t or now
        self.log.last_step_t = now
        self.log.step_ends_t.append(now)

    def _note_rejected_dense(self, names: tuple[str, ...]) -> None:
        for name in names:
            self.log.rejected_dense[name] = self.log.rejected_dense.get(name, 0) + 1

    def _check_finite(self, step: int) -> None:
        recent = self.log.losses[-_MAX_STEPS_NOT_FINITE:]
        if np.isfinite(recent[-1]) or len(recent) < _MAX_STEPS_NOT_FINITE or np.isfinite(recent).any():
            return
        raise NumericsError(
            f"step {step}: the loss has not been finite for {_MAX_STEPS_NOT_FINITE} steps (now {recent[-1]}; "
            f"{self.log.rejected_rows} row gradients were rejected); lower tower.optimizer.lr or "
            "tables[*].optimizer.lr, or look for extreme values in the dense features"
        )

    def _note_rejected(self, told: PushSummary) -> None:
        self.log.rejected_rows += told.rejected
        room = _MAX_EXAMPLES - len(self.log.rejected_examples)
        self.log.rejected_examples += told.examples[:room]


@dataclass(frozen=True, slots=True, eq=False)
class _LookedUp:
    """rows: per group float32 [U, E], whose gradients gather."""

    rows: list[torch.Tensor]
    embeddings: Embeddings


class Cuts(Protocol):
    """Cuts for snapshots, as the loop of steps sees them."""

    def flag(self, spec: BatchSpec) -> float:
        """What this tower flags in the step's sum."""

    def after(self, tower: Tower, source: RowSource, spec: BatchSpec, flags: float) -> Cut:
        """Cut where all towers are to, after the step; what was done. flags: the step's sum."""

    def end(self) -> None:
        """No further step comes."""


def train(
    tower: Tower,
    batches: BatchStream,
    source: RowSource,
    *,
    after_step: Callable[[Tower], None],
    cuts: Cuts | None = None,
) -> StepLog:
    """Train on every batch of the stream, or until a cut that stops the run, then wait for the servers."""
    tower.module.train()
    tower.log.started_t = time.time()
    waits_before = tower.clock.totals().waits
    for spec, batch in batches:
        flags = tower.train_step(spec, batch, source, flag=cuts.flag(spec) if cuts else 0.0).flags
        after_step(tower)
        if cuts is not None and cuts.after(tower, source, spec, flags) is Cut.STOP:
            tower.log.stopped = True
            break
    if cuts is not None:
        cuts.end()
    if not tower.log.stopped:  # after a stop nothing is sent on: the snapshot holds all
        tower.finish(source)
    waits = tower.clock.totals().waits
    tower.log.waits = {role: waited - waits_before.get(role, 0.0) for role, waited in waits.items()}
    return tower.log


def score(tower: Tower, batches: BatchStream) -> Scores:
    """Predict every batch of the stream with the run's parameters; no row is created, no parameter changes."""
    tower.dense.refresh()
    tower.module.eval()
    labels, predictions, weights, gauc_ids = [], [], [], []
    buckets = BucketedAuc()
    for spec, batch in batches:
        predictions.append(tower.score(batch, step=spec.step))
        buckets.update(batch.labels, predictions[-1], weights=batch.weights)
        labels.append(batch.labels)
        if batch.weights is not None:
            weights.append(batch.weights)
        if batch.gauc_ids is not None:
            gauc_ids.append(batch.gauc_ids)
    return Scores(
        labels=np.concatenate(labels) if labels else np.empty(0, np.float32),
        predictions=np.concatenate(predictions) if predictions else np.empty(0, np.float32),
        weights=np.concatenate(weights) if weights else None,
        gauc_ids=np.concatenate(gauc_ids) if gauc_ids else None,
        buckets=buckets,
    )


def predict(tower: Tower, batches: BatchStream, *, sink: Callable[[ScoredPart], None], vectors: bool = False) -> None:
    """Predict every batch of the stream and hand the predictions on, batch by batch; nothing is kept or changed.

    vectors: what the text half makes of the texts too.
    """
    tower.dense.refresh()
    tower.module.eval()
    for spec, batch in batches:
        predictions = tower.score(batch, step=spec.step)
        found = tower.text_vectors(batch) if vectors else ()
        sink(ScoredPart(step=spec.step, tower=spec.tower, pieces=spec.pieces, predictions=predictions, vectors=found))


def _gradient(rows: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(rows) if rows.grad is None else rows.grad


def _seed_dropout(seed: int, step: int, tower: int, *, kind: str) -> None:
    """Dropout depends on (job seed, step, tower) alone; distinct below 2^12 towers and 2^28 steps.

    Only the generators of the CPU and of the tower's device: `torch.manual_seed` leaves word for devices never begun,
    with a stack trace each.
    """
    mixed = ((seed << 40) ^ (step << 12) ^ tower) & 0x7FFF_FFFF_FFFF_FFFF
    torch.default_generator.manual_seed(mixed)
    if kind == "cuda":
        torch.cuda.manual_seed(mixed)
