"""A tower's view of all servers as one table: route, ask every server at once, put the answers back in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hetero.errors import ProtocolError, StaleRoutingError
from hetero.exchange.messages import (
    DensePart,
    DensePullReply,
    DensePushRequest,
    DifferencesReply,
    DifferencesRequest,
    Done,
    LeasedValues,
    LeaseReply,
    LeaseRequest,
    Pending,
    PullReply,
    PullRequest,
    Purpose,
    PushReply,
    PushRequest,
    Refused,
    RejectedGradient,
    ReturnRequest,
    ServerHandle,
)
from hetero.exchange.pending_rows import Asked, PendingRows
from hetero.exchange.server import RowServer
from hetero.exchange.server_pooling import bytes_of_bags, parts_of_bags
from hetero.exchange.traffic import Traffic, bytes_of
from hetero.kernels.pooling import bag_count
from hetero.keys.routing import Routed, Router, Routing
from hetero.observe.spans import Span, SpanClock
from hetero.optim.definition import lease_width
from hetero.records import F32, Bags, JobSpec, KeySet


class RowClient(Protocol):
    """What a tower needs of the servers."""

    def pull(self, keys: Sequence[KeySet], *, step: int, purpose: Purpose) -> tuple[F32, ...]:
        """Rows of unique keys, one KeySet per group; returns per group float32 [U, E], writable and its own memory."""

    def push(self, keys: Sequence[KeySet], gradients: Sequence[F32], *, step: int) -> None:
        """Send merged gradients, per group float32 [U, E]. Returns once they are under way."""

    def look_for_routing(self) -> None:
        """Go by the routing that the servers go by, where that is another."""

    def settle(self) -> PushSummary:
        """Wait until every push so far is taken by its server; what happened to those not told of before."""

    def settled(self) -> PushSummary:
        """What happened to the pushes before the latest: the pull between them was answered after them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PushSummary:
    """Rows whose gradients were rejected since the last `settle`, with examples."""

    rejected: int
    examples: tuple[RejectedGradient, ...]


class LocalServer:
    """A server in this process, as a ServerHandle."""

    def __init__(self, server: RowServer) -> None:
        self._server = server

    def pull(self, request: PullRequest) -> Pending[PullReply]:
        try:
            return Done(self._server.pull(request))
        except StaleRoutingError as error:
            return Refused(error)

    def push(self, request: PushRequest) -> Pending[PushReply]:
        return Done(self._server.push(request))

    def lease(self, request: LeaseRequest) -> Pending[LeaseReply]:
        try:
            return Done(self._server.lease(request))
        except StaleRoutingError as error:
            return Refused(error)

    def give_back(self, request: ReturnRequest) -> Pending[None]:
        self._server.give_back(request)
        return Done(None)

    def note_leased(self, values: LeasedValues) -> Pending[None]:
        self._server.note_leased(values)
        return Done(None)

    def open_dense(self, part: DensePart) -> Pending[None]:
        self._server.open_dense(part)
        return Done(None)

    def pull_dense(self) -> Pending[DensePullReply]:
        return Done(self._server.pull_dense())

    def dense_state(self) -> Pending[dict[str, np.ndarray]]:
        return Done(self._server.dense_state())

    def push_dense(self, request: DensePushRequest) -> Pending[None]:
        self._server.push_dense(request)
        return Done(None)

    def exchange(self, request: DifferencesRequest) -> Pending[DifferencesReply]:
        return Done(self._server.exchange(request))


class ShardedRowClient:
    """RowClient over any number of servers; which server holds a row is decided by `hetero.keys.routing` alone.

    connect: the servers of another routing, when there is one. traffic: bytes it has moved so far for training.
    """

    def __init__(
        self,
        job: JobSpec,
        *,
        tower: int,
        servers: Sequence[ServerHandle],
        clock: SpanClock,
        connect: Callable[[Routing], Sequence[ServerHandle]] | None = None,
    ) -> None:
        self._job = job
        self._tower = tower
        self._clock = clock
        self._servers = tuple(servers)
        self._connect = connect
        self.traffic = Traffic()
        self.routing = Routing.first(buckets=job.buckets, servers=len(servers))
        self._router = Router(job.groups, job.buckets, self.routing.owners)
        self._sequences = [0] * len(servers)
        self._returns = [0] * len(servers)
        self._exchanges = 0
        self._under_way: list[Pending[PushReply]] = []
        self._returning: list[Pending[None]] = []

    def look_for_routing(self) -> None:
        """Ask the servers for no rows at all: if they go by another routing, so does this client from now on."""
        nothing = KeySet(np.empty(0, np.uint16), np.empty(0, np.uint64))
        self.pull([nothing] * len(self._job.groups), step=0, purpose=Purpose.SCORE)

    def ask(
        self, keys: Sequence[KeySet], *, step: int, purpose: Purpose, bags: Sequence[Bags | None] = ()
    ) -> PendingRows:
        """Begin to pull rows of unique keys, per group; or sums of them, where a group has bags."""
        traffic = self.traffic if purpose is Purpose.TRAIN else Traffic()
        traffic.pulled += bytes_of(keys) + bytes_of_bags(bags)

        def pulled(
            server: ServerHandle, own: tuple[KeySet, ...], of_bags: tuple[Bags | None, ...]
        ) -> Pending[PullReply]:
            version = self.routing.version
            return server.pull(
                PullRequest(tower=self._tower, step=step, purpose=purpose, keys=own, version=version, bags=of_bags)
            )

        widths = [group.dim for group in self._job.groups]
        return self._pending(keys, pulled, widths=widths, traffic=traffic, bags=bags)

    def pull(self, keys: Sequence[KeySet], *, step: int, purpose: Purpose) -> tuple[F32, ...]:
        return self.ask(keys, step=step, purpose=purpose).result()

    def push(
        self,
        keys: Sequence[KeySet],
        gradients: Sequence[F32],
        *,
        step: int,
        bags: Sequence[Bags | None] = (),
    ) -> None:
        """As `RowClient` has it. Of a group with bags, gradients are those of the bags, float32 [bags, E]."""
        routed = self._route(keys)
        self.traffic.pushed += bytes_of(keys) + bytes_of(gradients) + bytes_of_bags(bags)
        parts = parts_of_bags(bags, routed, servers=len(self._servers))
        for index, server in enumerate(self._servers):
            request = PushRequest(
                tower=self._tower,
                sequence=self._sequences[index],
                step=step,
                keys=tuple(group[index].keys for group in routed),
                gradients=tuple(
                    part if index_bags is not None else part[group[index].positions]
                    for part, group, index_bags in zip(
                        gradients, routed, parts[index] or [None] * len(routed), strict=True
                    )
                ),
                version=self.routing.version,
                bags=parts[index],
            )
            self._sequences[index] += 1
            self._under_way.append(server.push(request))

    def lease(self, keys: Sequence[KeySet], *, window: int, clock: SpanClock | None = None) -> PendingRows:
        """Begin to fetch whole rows of unique keys, per group; they are this tower's until given back. What comes may
        be read-only: it is for being copied into slots.

        clock: of the thread that will wait for them, when it is another than this client's.
        """
        self.traffic.pulled += bytes_of(keys)

        def leased(server: ServerHandle, own: tuple[KeySet, ...], _: tuple[Bags | None, ...]) -> Pending[LeaseReply]:
            version = self.routing.version
            return server.lease(LeaseRequest(tower=self._tower, window=window, keys=own, version=version))

        widths = [lease_width(group) for group in self._job.groups]
        return self._pending(keys, leased, widths=widths, traffic=self.traffic, clock=clock, own=False)

    def give_back(self, keys: Sequence[KeySet], rows: Sequence[F32], *, window: int, flush: int | None = None) -> None:
        """Send leased rows back, per group float32 [U, W]. Returns once they are under way. flush: see the message.

        A server handles this tower's calls in order: a later `lease` sees what was given back before it.
        """
        for earlier in self._returning:  # answered before the lease that followed them
            earlier.result()
        self._returning.clear()
        routed = self._route(keys)
        self.traffic.pushed += bytes_of(keys) + bytes_of(rows)
        for index, server in enumerate(self._servers):
            request = ReturnRequest(
                tower=self._tower,
                sequence=self._returns[index],
                window=window,
                flush=flush,
                keys=tuple(group[index].keys for group in routed),
                rows=tuple(group[index].rows(part) for part, group in zip(rows, routed, strict=True)),
                version=self.routing.version,
            )
            self._returns[index] += 1
            self._returning.append(server.give_back(request))

    def note_leased(self, keys: Sequence[KeySet], rows: Sequence[F32], *, steps: int) -> None:
        """Let the servers hold what leased rows are now, per group float32 [U, W]; they do when this returns."""
        routed = self._route(keys)
        answers = []
        for index, server in enumerate(self._servers):
            values = LeasedValues(
                tower=self._tower,
                steps=steps,
                keys=tuple(group[index].keys for group in routed),
                rows=tuple(group[index].rows(part) for part, group in zip(rows, routed, strict=True)),
                version=self.routing.version,
            )
            answers.append(server.note_leased(values))
        with self._clock.span(Span.WAIT_SERVER):
            for answer in answers:
                answer.result()

    def exchange(
        self, keys: Sequence[KeySet], differences: Sequence[F32], *, step: int, dense: Mapping[int, F32]
    ) -> tuple[DifferencesReply, ...]:
        """Send differences of copies, per group float32 [U, E], to every server and wait for the replies.

        dense: differences of dense parameters, by the server that holds them.
        """
        routed = self._route(keys)
        nothing = np.empty(0, np.float32)
        self.traffic.pushed += bytes_of(keys) + bytes_of(differences)
        self.traffic.dense_pushed += bytes_of(dense.values())
        answers = []
        for index, server in enumerate(self._servers):
            request = DifferencesRequest(
                tower=self._tower,
                sequence=self._exchanges,
                step=step,
                keys=tuple(group[index].keys for group in routed),
                differences=tuple(
                    part[group[index].positions] for part, group in zip(differences, routed, strict=True)
                ),
                dense=dense.get(index, nothing),
                version=self.routing.version,
            )
            answers.append(server.exchange(request))
        self._exchanges += 1
        with self._clock.span(Span.WAIT_SERVER):
            replies = tuple(answer.result() for answer in answers)
        for reply in replies:
            self.traffic.pulled += bytes_of(reply.keys) + bytes_of(reply.rows)
            self.traffic.dense_pulled += reply.dense.nbytes
        return replies

    def settled(self) -> PushSummary:
        latest = self._under_way[-len(self._servers) :]
        self._under_way = self._under_way[: -len(self._servers)]
        summary = self.settle()
        self._under_way = latest
        return summary

    def settle(self) -> PushSummary:
        with self._clock.span(Span.WAIT_SERVER):
            replies = [pending.result() for pending in self._under_way]
            for returned in self._returning:
                returned.result()
        self._under_way.clear()
        self._returning.clear()
        examples = [example for reply in replies for example in reply.examples]
        return PushSummary(rejected=sum(reply.rejected for reply in replies), examples=tuple(examples))

    @property
    def servers(self) -> tuple[ServerHandle, ...]:
        """Those there are now, by number."""
        return self._servers

    def _follow(self, refused: StaleRoutingError, version: int) -> None:
        """Go by the routing that the servers go by, after a call by routing `version` was refused.

        Raises ProtocolError while calls are under way that change rows, or when there is no newer one.
        """
        routing = refused.routing
        if not isinstance(routing, Routing) or routing.version <= version or self._connect is None:
            raise ProtocolError(f"tower {self._tower}: refused without a newer routing to go by: {refused}")
        if routing.version == self.routing.version:  # an earlier answer told of it
            return
        if self._under_way or self._returning:
            raise ProtocolError(f"tower {self._tower}: the routing changed while pushes or returns were under way")
        kept = min(len(self._servers), routing.servers)
        fresh = [0] * (routing.servers - kept)
        self._servers = tuple(self._connect(routing))
        self._router = Router(self._job.groups, self._job.buckets, routing.owners)
        self._sequences = self._sequences[:kept] + fresh
        self._returns = self._returns[:kept] + fresh
        self.routing = routing

    def _pending(
        self,
        keys: Sequence[KeySet],
        call: Callable[
            [ServerHandle, tuple[KeySet, ...], tuple[Bags | None, ...]], Pending[PullReply] | Pending[LeaseReply]
        ],
        *,
        widths: Sequence[int],
        traffic: Traffic,
        clock: SpanClock | None = None,
        bags: Sequence[Bags | None] = (),
        own: bool = True,
    ) -> PendingRows:
        counts = [0 if each is None else bag_count(each) for each in bags] or [0] * len(keys)

        def ask() -> Asked:
            routed = self._route(keys)
            parts = parts_of_bags(bags, routed, servers=len(self._servers))
            answers = [
                call(server, tuple(group[index].keys for group in routed), parts[index])
                for index, server in enumerate(self._servers)
            ]
            return Asked(self.routing.version, routed, answers, counts)

        waits = clock or self._clock
        return PendingRows(ask, widths=widths, follow=self._follow, clock=waits, traffic=traffic, own=own)

    def _route(self, keys: Sequence[KeySet]) -> list[tuple[Routed, ...]]:
        return [self._router.route(group) for group in keys]
