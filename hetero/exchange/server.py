"""A server: the rows of its buckets, pulled, pushed and leased by towers.

Consumes   pull requests (keys), push requests (keys, gradients)
Produces   rows; updated rows
Waits for  nobody: a call that cannot be answered yet is noted or refused, none blocks
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hetero.embedding.store import Create, RowStore
from hetero.errors import LeaseError
from hetero.exchange.joint_steps import JointSteps
from hetero.exchange.lanes import Lane
from hetero.exchange.messages import (
    LeaseReply,
    LeaseRequest,
    PullReply,
    PullRequest,
    Purpose,
    PushReply,
    PushRequest,
    ReturnRequest,
    own_keys,
)
from hetero.records import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """What a server holds, for summaries. rows: per table name."""

    rows: dict[str, int]
    memory_bytes: int
    rejected: int
    steps_applied: int


class RowServer:
    """One server of a run in `sync` mode, usable in any process."""

    def __init__(self, job: JobSpec) -> None:
        self.stores = [RowStore(group, threads=job.servers.threads, buckets=job.buckets) for group in job.groups]
        self._pushes = JointSteps(job, self.stores)
        self._returns = [Lane("return") for _ in range(job.towers.count)]

    def pull(self, request: PullRequest) -> PullReply:
        """Rows of the keys, per group float32 [U, E].

        Raises ProtocolError when a training pull comes before every push of the step before it has been applied.
        """
        create = Create.NO
        if request.purpose is Purpose.TRAIN:
            self._pushes.check_pull(request)
            create = Create.YES
        rows = tuple(
            store.pull(own_keys(keys), create=create) for store, keys in zip(self.stores, request.keys, strict=True)
        )
        return PullReply(rows=rows)

    def push(self, request: PushRequest) -> PushReply:
        """Take one tower's gradients. A repeated push is not applied again. Raises ProtocolError, see the rules."""
        return self._pushes.push(request)

    def lease(self, request: LeaseRequest) -> LeaseReply:
        """Hand rows to a tower. Raises LeaseError naming key, window and holder of one held; then none is leased."""
        asked = [own_keys(keys) for keys in request.keys]
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
        if not self._returns[request.tower].is_next(request.sequence):
            return
        for store, keys, rows in zip(self.stores, request.keys, request.rows, strict=True):
            store.give_back(own_keys(keys), np.array(rows), holder=request.tower + 1)

    def state(self) -> ServerState:
        """Rows per table, memory and counters."""
        rows: dict[str, int] = {}
        for store in self.stores:
            rows.update(store.count_by_table())
        return ServerState(
            rows=rows,
            memory_bytes=sum(store.memory().total_bytes for store in self.stores),
            rejected=self._pushes.rejected,
            steps_applied=self._pushes.steps_applied,
        )

    def close(self) -> None:
        for store in self.stores:
            store.close()
