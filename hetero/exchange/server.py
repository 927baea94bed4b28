"""A server: the rows of its buckets, and the rule by which pushes of several towers become one update.

Consumes   pull requests (keys), push requests (keys, gradients)
Produces   rows; updated rows
Waits for  nobody: a step is applied when the last tower's push for it arrives, nobody blocks meanwhile
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hetero.embedding.store import Create, RowStore
from hetero.errors import LeaseError, ProtocolError
from hetero.exchange.merge import merge_gradients
from hetero.exchange.messages import (
    LeaseReply,
    LeaseRequest,
    PullReply,
    PullRequest,
    Purpose,
    PushReply,
    PushRequest,
    RejectedGradient,
    ReturnRequest,
)
from hetero.keys.dedup import Deduplicator
from hetero.records import JobSpec, KeySet

_MAX_EXAMPLES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """What a server holds, for summaries. rows: per table name."""

    rows: dict[str, int]
    memory_bytes: int
    rejected: int
    steps_applied: int


@dataclass(slots=True)
class _Lane:
    """The pushes and returns of one tower: which sequence numbers come next."""

    next_sequence: int = 0
    next_return: int = 0

    def is_next_return(self, sequence: int) -> bool:
        """Note a return; False when it was seen before. Raises ProtocolError on a gap."""
        if sequence > self.next_return:
            raise ProtocolError(f"server: return number {sequence} came, expected number {self.next_return}")
        if sequence < self.next_return:
            return False
        self.next_return += 1
        return True


@dataclass(slots=True)
class _Counters:
    rejected: int = 0
    examples: list[RejectedGradient] = field(default_factory=list)


class RowServer:
    """One server of a run in `sync` mode, usable in any process."""

    def __init__(self, job: JobSpec) -> None:
        self._job = job
        self.stores = [RowStore(group, threads=job.servers.threads, buckets=job.buckets) for group in job.groups]
        self._lanes = [_Lane() for _ in range(job.towers.count)]
        self._waiting: dict[int, dict[int, PushRequest]] = {}
        self._dedup = Deduplicator()
        self._applied_steps = 0
        self._counters = _Counters()

    def pull(self, request: PullRequest) -> PullReply:
        """Rows of the keys, per group float32 [U, E].

        Raises ProtocolError when a training pull comes before every push of the step before it has been applied.
        """
        if request.purpose is Purpose.TRAIN and request.step != self._applied_steps:
            raise ProtocolError(
                f"server: tower {request.tower} pulls for step {request.step}, but {self._applied_steps} steps are "
                "applied: in sync mode a pull sees exactly the steps before its own"
            )
        create = Create.YES if request.purpose is Purpose.TRAIN else Create.NO
        rows = tuple(
            store.pull(_own(keys), create=create) for store, keys in zip(self.stores, request.keys, strict=True)
        )
        return PullReply(rows=rows)

    def push(self, request: PushRequest) -> PushReply:
        """Take one tower's gradients; apply the step once all towers' are here. A repeated push is not applied again.

        Raises ProtocolError on a gap in the sequence numbers or a step that is not the next one.
        """
        lane = self._lanes[request.tower]
        if request.sequence < lane.next_sequence:
            return PushReply(applied=request.step < self._applied_steps, rejected=0, examples=())
        if request.sequence > lane.next_sequence or request.step != self._applied_steps:
            raise ProtocolError(
                f"server: tower {request.tower} pushed number {request.sequence} for step {request.step}, expected "
                f"number {lane.next_sequence} for step {self._applied_steps}"
            )
        lane.next_sequence += 1
        waiting = self._waiting.setdefault(request.step, {})
        waiting[request.tower] = request
        if len(waiting) < len(self._lanes):
            return PushReply(applied=False, rejected=0, examples=())
        return self._apply(request.step, [waiting[tower] for tower in range(len(self._lanes))])

    def lease(self, request: LeaseRequest) -> LeaseReply:
        """Hand rows to a tower. Raises LeaseError naming key, window and holder of one held; then none is leased."""
        asked = [_own(keys) for keys in request.keys]
        try:
            for store, keys in zip(self.stores, asked, strict=True):
                store.check_free(keys)
        except LeaseError as error:
            raise LeaseError(f"server: tower {request.tower} fetches for window {request.window}: {error}") from error
        holder = request.tower + 1
        return LeaseReply(
            rows=tuple(store.lease(keys, holder=holder) for store, keys in zip(self.stores, asked, strict=True))
        )

    def give_back(self, request: ReturnRequest) -> None:
        """Take leased rows back. A repeated return is not applied again. Raises ProtocolError on a gap, LeaseError."""
        if not self._lanes[request.tower].is_next_return(request.sequence):
            return
        for store, keys, rows in zip(self.stores, request.keys, request.rows, strict=True):
            store.give_back(_own(keys), np.array(rows), holder=request.tower + 1)

    def state(self) -> ServerState:
        """Rows per table, memory and counters."""
        rows: dict[str, int] = {}
        for store in self.stores:
            rows.update(store.count_by_table())
        return ServerState(
            rows=rows,
            memory_bytes=sum(store.memory().total_bytes for store in self.stores),
            rejected=self._counters.rejected,
            steps_applied=self._applied_steps,
        )

    def close(self) -> None:
        for store in self.stores:
            store.close()

    def _apply(self, step: int, pushes: list[PushRequest]) -> PushReply:
        del self._waiting[step]
        rejected, examples = 0, []
        for index, store in enumerate(self.stores):
            parts = [(_own(push.keys[index]), np.array(push.gradients[index])) for push in pushes]
            keys, gradients = merge_gradients(parts, dim=self._job.groups[index].dim, dedup=self._dedup)
            report = store.push(keys, gradients)
            rejected += report.rejected
            examples += [RejectedGradient(step=step, table=table, key=key) for table, key in report.examples]
        self._applied_steps += 1
        self._counters.rejected += rejected
        return PushReply(applied=True, rejected=rejected, examples=tuple(examples[:_MAX_EXAMPLES]))


def _own(keys: KeySet) -> KeySet:
    """A copy in this process's memory: arrays that came through the object store are read-only and pin their object."""
    return KeySet(np.array(keys.tables), np.array(keys.keys))
