"""The towers' side of `geo`: a tower trains copies of its own, and every k steps exchanges differences with servers.

Consumes   batches; gradients
Produces   rows of every step; differences, scaled, of rows and dense parameters
Waits for  servers (rows met for the first time, and every exchange); never for other towers

A copy is a whole row: weights from the server, optimizer state that is the tower's own and never leaves it. Beside it
lies its base, what the server held when the tower last read it. An exchange sends scale * (copy - base) of the rows
that were updated since the last one; the reply sets copy and base to the server's value for every row that changed
there, these included. A tower keeps a copy of every row it has used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from hetero.errors import ProtocolError
from hetero.exchange.client import PushSummary
from hetero.exchange.dense_sides import DenseClient
from hetero.exchange.device_copies import as_tensors, on_host
from hetero.exchange.messages import DifferencesReply, Purpose, RejectedGradient
from hetero.kernels.leased import gather_kernel, scatter_rows, update_slots_kernel
from hetero.kernels.optimizers import update_room
from hetero.keys.numbering import KeyNumbers, grown
from hetero.optim.definition import KIND, first_state, hyper_array, row_width
from hetero.parallel.dense import DenseStep, DenseUpdater
from hetero.records import F32, I32, Batch, BatchSpec, GroupSpec, JobSpec, KeySet

_MAX_EXAMPLES = 8


class ExchangeClient(Protocol):
    """What `geo` needs of the servers; each serves one tower's calls in order."""

    def pull(self, keys: Sequence[KeySet], *, step: int, purpose: Purpose) -> tuple[F32, ...]: ...

    def exchange(
        self, keys: Sequence[KeySet], differences: Sequence[F32], *, step: int, dense: Mapping[int, F32]
    ) -> Sequence[DifferencesReply]:
        """Send differences to every server and wait for the replies. dense: by server that holds dense tensors."""


class CopiedGroup:
    """One group's copies, float32 [rows, W], and their bases, float32 [rows, E]."""

    def __init__(self, spec: GroupSpec) -> None:
        self._spec = spec
        self._numbers = KeyNumbers()
        self._rows = np.empty((0, row_width(spec.optimizer, spec.dim)), np.float32)
        self._base = np.empty((0, spec.dim), np.float32)
        self._touched = np.empty(0, np.bool_)
        self._hyper = hyper_array(spec.optimizer)
        self._room = update_room(spec.dim)

    def without_copy(self, keys: KeySet) -> KeySet:
        """Those of the rows that this tower has no copy of."""
        missing = np.flatnonzero(self._numbers.find(keys) < 0)
        return keys[missing]

    def add(self, keys: KeySet, weights: F32) -> None:
        """Copies of rows met for the first time, float32 [n, E], with the state that new rows begin with."""
        numbers = self._numbers.number(keys)
        if len(self._numbers) > len(self._rows):
            room = len(self._numbers) * 3 // 2
            self._rows, self._base = grown(self._rows, room), grown(self._base, room)
            self._touched = grown(self._touched, room)
        rows = np.concatenate([weights, first_state(self._spec.optimizer, weights)], axis=1)
        scatter_rows(self._rows, numbers, rows)
        scatter_rows(self._base, numbers, weights)

    def weights(self, keys: KeySet) -> F32:
        """Weights of copies, float32 [n, E]."""
        out = np.empty((len(keys), self._spec.dim), np.float32)
        gather_kernel(self._rows, self._numbers.find(keys), out)
        return out

    def update(self, keys: KeySet, gradients: F32) -> I32:
        """Apply gradients float32 [n, E]; positions of those not finite, whose copies are left as they are."""
        numbers = self._numbers.find(keys)
        rejected = np.empty(len(keys), np.int32)
        kind = KIND[self._spec.optimizer.kind]
        bad = update_slots_kernel(self._rows, numbers, gradients, kind, self._hyper, rejected, self._room)
        self._touched[np.delete(numbers, rejected[:bad])] = True
        return rejected[:bad]

    def take_differences(self, scale: float) -> tuple[KeySet, F32]:
        """Rows updated since the last time, and scale * (copy - base), float32 [n, E]."""
        touched = np.flatnonzero(self._touched).astype(np.int32)
        self._touched[touched] = False
        differences = self._rows[touched, : self._spec.dim] - self._base[touched]
        return self._numbers.keys_of(touched), differences * np.float32(scale)

    def set(self, keys: KeySet, weights: F32) -> None:
        """Copies and bases become the server's values, float32 [n, E]."""
        numbers = self._numbers.find(keys)
        self._rows[numbers, : self._spec.dim] = weights
        self._base[numbers] = weights


class GeoCopies:
    """A RowSource and a DenseSide in one: both exchange with the servers after every k steps."""

    def __init__(self, job: JobSpec, *, client: ExchangeClient, dense: DenseClient, updater: DenseUpdater) -> None:
        self._job = job
        self._client = client
        self._dense = dense
        self._updater = updater
        self._groups = [CopiedGroup(spec) for spec in job.groups]
        self._opened = False
        self._dense_base: list[F32] = []
        self._step = 0
        self._since = 0
        self._told = PushSummary(rejected=0, examples=())
        self._lost: tuple[str, ...] = ()

    def begin(self) -> None:
        if not self._opened:
            self._dense.open()
            self._dense_base = self._dense.values()
            self._opened = True

    def rows(self, spec: BatchSpec, batch: Batch) -> tuple[Tensor, ...]:
        self._step = spec.step
        keys = [group.unique for group in batch.groups]
        missing = [copied.without_copy(part) for copied, part in zip(self._groups, keys, strict=True)]
        if any(len(part) for part in missing):
            fetched = self._client.pull(missing, step=spec.step, purpose=Purpose.TRAIN)
            for copied, part, weights in zip(self._groups, missing, fetched, strict=True):
                copied.add(part, weights)
        return as_tensors([copied.weights(part) for copied, part in zip(self._groups, keys, strict=True)])

    def apply(self, spec: BatchSpec, batch: Batch, gradients: tuple[Tensor, ...]) -> PushSummary:
        told, self._told = self._told, PushSummary(rejected=0, examples=())
        rejected, examples, given = told.rejected, list(told.examples), on_host(gradients)
        for index, copied in enumerate(self._groups):
            unique = batch.groups[index].unique
            bad = copied.update(unique, given[index])
            rejected += len(bad)
            names = {table.index: table.name for table in self._job.groups[index].tables}
            examples += [
                RejectedGradient(step=spec.step, table=names[int(unique.tables[at])], key=int(unique.keys[at]))
                for at in bad[:_MAX_EXAMPLES]
            ]
        return PushSummary(rejected=rejected, examples=tuple(examples[:_MAX_EXAMPLES]))

    def step(self, loss: torch.Tensor, *, flag: float = 0.0) -> DenseStep:
        """Update this tower's dense parameters; after every k steps exchange rows and dense parameters."""
        outcome = self._updater.step(loss, flag=flag)
        self._since += 1
        lost = self._exchange() if self._since == self._job.staleness else ()
        return replace(outcome, rejected=outcome.rejected + lost)

    def deliver(self, steps: int) -> PushSummary:
        """Send what has not been sent: the servers' rows and dense parameters are the run's."""
        return self.finish()

    def renew(self) -> None:
        """Nothing is asked for ahead."""

    def let_go(self, steps: int) -> PushSummary:
        """Raises ProtocolError: the servers hold dense parameters and know of this tower's copies."""
        raise ProtocolError("geo: servers cannot change while training")

    def take_again(self) -> None:
        """Nothing is leased."""

    def finish(self) -> PushSummary:
        """Send what has not been sent."""
        if self._since:
            self._lost = self._exchange()
        told, self._told = self._told, PushSummary(rejected=0, examples=())
        return told

    def settle(self) -> tuple[str, ...]:
        """Exchanges are waited for; what the last one, in `finish`, could not send."""
        lost, self._lost = self._lost, ()
        return lost

    def refresh(self) -> None:
        if self._opened:
            self._dense.put(self._dense.ask().result())
            self._dense_base = self._dense.values()

    def reopen(self) -> None:
        self._opened = False
        self._groups = [CopiedGroup(spec) for spec in self._job.groups]

    def state(self) -> dict[str, torch.Tensor]:
        return self._updater.state()

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """The optimizer of dense parameters goes on; the state of copies of rows begins anew with the copies."""
        self._updater.restore(state)
        self.reopen()

    def _exchange(self) -> tuple[str, ...]:
        """Send differences and take what changed. Names of dense tensors whose difference is not finite: they go back
        to what the server holds."""
        self._since = 0
        sent = [copied.take_differences(self._job.geo_scale) for copied in self._groups]
        dense, lost = self._dense_differences()
        replies = self._client.exchange(
            [keys for keys, _ in sent],
            [part for _, part in sent],
            step=self._step,
            dense=dict(zip(self._dense.numbers, dense, strict=True)),
        )
        for reply in replies:
            for copied, keys, rows in zip(self._groups, reply.keys, reply.rows, strict=True):
                copied.set(KeySet(np.array(keys.tables), np.array(keys.keys)), rows)
        self._dense_base = [np.array(replies[number].dense) for number in self._dense.numbers]
        self._dense.put(self._dense_base)
        examples = self._told.examples + tuple(example for reply in replies for example in reply.examples)
        self._told = PushSummary(rejected=self._told.rejected + sum(r.rejected for r in replies), examples=examples)
        return lost

    def _dense_differences(self) -> tuple[list[F32], tuple[str, ...]]:
        differences, lost = [], []
        for held, own, base in zip(self._dense.held, self._dense.values(), self._dense_base, strict=True):
            part, start = (own - base) * np.float32(self._job.geo_scale), 0
            for name, parameter in held:
                tensor = part[start : start + parameter.numel()]
                if not np.isfinite(tensor).all():
                    tensor[:] = 0
                    lost.append(name)
                start += parameter.numel()
            differences.append(part)
        return differences, tuple(lost)
