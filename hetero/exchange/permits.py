"""Pulls ahead of training, bounded by permits: how `bounded` keeps every pull within k pushes of others.

Every tower has P permits, P = k // (towers - 1), or k when it is alone. The rule:

    1. before the pull of a step a tower takes a permit; without one it does not pull
    2. a tower joins the sum over towers of a step only when the servers have applied its push of that step
    3. after that sum the tower gives the step's permit back

Why no row ever lags by more than k pushes of others. The pull of step s needs the permit of step s - P, given back
after the sum of s - P, which everybody joined after their push of s - P was applied (2): so the pull sees all pushes
up to s - P. Its own push is applied before the tower joins the sum of s; until then nobody is past that sum, and the
latest that others can have pushed is step s. So each of the others can slip in steps s - P + 1 to s, which are P; all
of them together P * (towers - 1) <= k. A tower slower than the others meets all of them: the bound is reached.

Nobody but the tower itself keeps its permits: the sum over towers, which `bounded` needs for dense gradients anyhow,
tells it that the others' pushes are applied. `async` has no such sum; there permits only limit how far a tower pulls
ahead of its own pushes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol

from torch import Tensor

from hetero.errors import JobError, ProtocolError
from hetero.exchange.client import PushSummary
from hetero.exchange.device_copies import as_tensors, on_host
from hetero.exchange.messages import Pending, Purpose
from hetero.records import F32, Batch, BatchSpec, KeySet


def permits_of(*, staleness: int, towers: int) -> int:
    """Permits of each tower. Raises JobError when the bound is too small for that many towers."""
    if staleness < max(1, towers - 1):
        raise JobError(
            f"train.staleness: {staleness} is too small for {towers} towers: in mode `bounded` the others may push the "
            f"same step first, so set it to {max(1, towers - 1)} or more, or use mode `sync`"
        )
    return staleness // max(1, towers - 1)


class Permits:
    """What a tower may have pulled and not yet finished: `total` steps."""

    def __init__(self, total: int) -> None:
        self._left = self._total = total

    def take(self) -> bool:
        """Take one; False when none is left."""
        if not self._left:
            return False
        self._left -= 1
        return True

    def give_back(self) -> None:
        """Raises ProtocolError when more come back than were taken."""
        if self._left == self._total:
            raise ProtocolError(f"permits: one came back that nobody took, of {self._total}")
        self._left += 1


class AskingClient(Protocol):
    """What pulling ahead needs of the servers; each serves one tower's calls in order."""

    def ask(self, keys: Sequence[KeySet], *, step: int, purpose: Purpose) -> Pending[tuple[F32, ...]]: ...

    def push(self, keys: Sequence[KeySet], gradients: Sequence[F32], *, step: int) -> None: ...

    def settle(self) -> PushSummary: ...

    def settled(self) -> PushSummary: ...


class Batches(Protocol):
    """Batches of one tower in step order."""

    def __iter__(self) -> Iterator[tuple[BatchSpec, Batch]]: ...

    def close(self) -> None: ...


class PullsAhead:
    """A stream of batches and the source of their rows: rows of later steps are asked for while this one trains.

    The loop takes the next batch when a step is done, its sum over towers included; that is when its permit comes
    back. joint: a push is applied when `apply` returns (rule 2); otherwise it is only under way.
    """

    def __init__(self, client: AskingClient, batches: Batches, *, permits: Permits, joint: bool) -> None:
        self._client = client
        self._batches = batches
        self._permits = permits
        self._joint = joint
        self._asked: deque[tuple[BatchSpec, Batch, Pending[tuple[F32, ...]]]] = deque()
        self._rows: dict[int, Pending[tuple[F32, ...]]] = {}

    def __iter__(self) -> Iterator[tuple[BatchSpec, Batch]]:
        coming = iter(self._batches)
        while True:
            self._ask_ahead(coming)
            if not self._asked:
                return
            spec, batch, self._rows[spec.step] = self._asked.popleft()
            yield spec, batch
            self._permits.give_back()

    def close(self) -> None:
        """Close the batches; what was asked for is dropped."""
        self._asked.clear()
        self._batches.close()

    def rows(self, spec: BatchSpec, batch: Batch) -> tuple[Tensor, ...]:
        return as_tensors(self._rows.pop(spec.step).result())

    def apply(self, spec: BatchSpec, batch: Batch, gradients: tuple[Tensor, ...]) -> PushSummary:
        self._client.push([group.unique for group in batch.groups], on_host(gradients), step=spec.step)
        return self._client.settle() if self._joint else self._client.settled()

    def deliver(self, steps: int) -> PushSummary:
        """Rows that were asked for are waited for, so that nothing of this tower is under way."""
        for _, _, pending in self._asked:
            pending.result()
        return self._client.settle()

    def renew(self) -> None:
        self._asked = deque((spec, batch, self._ask(spec, batch)) for spec, batch, _ in self._asked)

    def let_go(self, steps: int) -> PushSummary:
        return self.deliver(steps)

    def take_again(self) -> None:
        self.renew()

    def finish(self) -> PushSummary:
        return self._client.settle()

    def _ask_ahead(self, coming: Iterator[tuple[BatchSpec, Batch]]) -> None:
        """Ask for rows while permits last; waits for batches, which towers in step all need anyway."""
        while self._permits.take():
            following = next(coming, None)
            if following is None:
                self._permits.give_back()
                return
            spec, batch = following
            self._asked.append((spec, batch, self._ask(spec, batch)))

    def _ask(self, spec: BatchSpec, batch: Batch) -> Pending[tuple[F32, ...]]:
        return self._client.ask([group.unique for group in batch.groups], step=spec.step, purpose=Purpose.TRAIN)
