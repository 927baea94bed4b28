"""Where a tower's rows come from and where its gradients go: pulled and pushed every step, or leased for a window.

Both give the same bits in `sync`: the same optimizer meets the same gradients in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from torch import Tensor

from hetero.exchange.client import PushSummary, RowClient
from hetero.exchange.device_copies import as_tensors, on_host
from hetero.exchange.messages import Pending, Purpose
from hetero.exchange.server_pooling import bags_of, divisors
from hetero.records import F32, Bags, Batch, BatchSpec, KeySet


class RowSource(Protocol):
    """What a tower's step needs of the sparse side."""

    def rows(self, spec: BatchSpec, batch: Batch) -> tuple[Tensor, ...]:
        """Weights of the batch's unique rows, per group float32 [U, E], in memory of their own, where rows are held."""

    def apply(self, spec: BatchSpec, batch: Batch, gradients: tuple[Tensor, ...]) -> PushSummary:
        """Hand over merged gradients, per group float32 [U, E], from any device; rows rejected as far as known now."""

    def deliver(self, steps: int) -> PushSummary:
        """The servers hold every row as it is after `steps` steps when this returns, and training goes on; rows
        rejected and not told before."""

    def renew(self) -> None:
        """The cut after `deliver` is made: rows asked for before it are asked for anew, as a run that goes on from the
        cut will ask for them."""

    def let_go(self, steps: int) -> PushSummary:
        """As `deliver`, and no row is leased by this tower when this returns: the servers may change who holds what."""

    def take_again(self) -> None:
        """They have: what was leased or asked for before `let_go` is leased or asked for anew."""

    def finish(self) -> PushSummary:
        """Every update is with the servers when this returns; rows rejected and not told before."""


class PooledRowClient(RowClient, Protocol):
    """A client whose servers pool."""

    def ask(
        self, keys: Sequence[KeySet], *, step: int, purpose: Purpose, bags: Sequence[Bags | None] = ()
    ) -> Pending[tuple[F32, ...]]: ...

    def push(
        self,
        keys: Sequence[KeySet],
        gradients: Sequence[F32],
        *,
        step: int,
        bags: Sequence[Bags | None] = (),
    ) -> None: ...


class PulledRows:
    """Rows by pull, gradients by push, every step; the servers merge towers and apply the optimizer.

    towers: with several, `apply` waits until the servers have the push, since the sum over towers that follows is the
    barrier after which every tower may pull the next step.
    """

    def __init__(self, client: RowClient, *, towers: int) -> None:
        self._client = client
        self._towers = towers

    def rows(self, spec: BatchSpec, batch: Batch) -> tuple[Tensor, ...]:
        keys = [group.unique for group in batch.groups]
        return as_tensors(self._client.pull(keys, step=spec.step, purpose=Purpose.TRAIN))

    def apply(self, spec: BatchSpec, batch: Batch, gradients: tuple[Tensor, ...]) -> PushSummary:
        self._client.push([group.unique for group in batch.groups], on_host(gradients), step=spec.step)
        return self._client.settle() if self._towers > 1 else self._client.settled()

    def deliver(self, steps: int) -> PushSummary:
        return self._client.settle()

    def renew(self) -> None:
        """Nothing is asked for ahead."""

    def let_go(self, steps: int) -> PushSummary:
        return self.deliver(steps)

    def take_again(self) -> None:
        """Nothing is leased."""

    def finish(self) -> PushSummary:
        return self._client.settle()


class ServerPooledRows(PulledRows):
    """As `PulledRows`, with sums of rows pulled where servers pool. `rows` and gradients are then of bags, [bags, E].

    groups: which the servers pool. mean: bool [F] per group, which of its lookups are means.
    """

    def __init__(
        self, client: PooledRowClient, *, towers: int, groups: Sequence[bool], mean: Sequence[np.ndarray]
    ) -> None:
        super().__init__(client, towers=towers)
        self._pooling = client
        self._groups = groups
        self._mean = mean

    def rows(self, spec: BatchSpec, batch: Batch) -> tuple[Tensor, ...]:
        bags = bags_of(batch, self._groups)
        keys = [group.unique for group in batch.groups]
        pulled = self._pooling.ask(keys, step=spec.step, purpose=Purpose.TRAIN, bags=bags).result()
        return as_tensors(self._divided(pulled, batch))

    def apply(self, spec: BatchSpec, batch: Batch, gradients: tuple[Tensor, ...]) -> PushSummary:
        bags = bags_of(batch, self._groups)
        keys = [group.unique for group in batch.groups]
        self._pooling.push(keys, self._divided(on_host(gradients), batch), step=spec.step, bags=bags)
        return self._client.settle() if self._towers > 1 else self._client.settled()

    def _divided(self, values: tuple[F32, ...], batch: Batch) -> tuple[F32, ...]:
        by = divisors(batch, mean=self._mean, groups=self._groups)
        return tuple(own if count is None else own / count for own, count in zip(values, by, strict=True))
