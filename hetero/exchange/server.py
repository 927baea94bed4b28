"""A server: the rows of its buckets, pulled, pushed and leased by towers.

Consumes   pull requests (keys), push requests (keys, gradients)
Produces   rows; updated rows
Waits for  nobody: a call that cannot be answered yet is noted or refused, none blocks
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from hetero.embedding.answers import Create
from hetero.embedding.open_rows import open_rows
from hetero.embedding.policies.days import Days, bare, drops_of, policy_counts
from hetero.embedding.policies.dropped import DayDrops
from hetero.embedding.rows import Rows
from hetero.embedding.tiered import tier_counts
from hetero.errors import LeaseError, ProtocolError, StaleRoutingError
from hetero.exchange.arrivals import Arrivals
from hetero.exchange.dense_tables import DenseTables
from hetero.exchange.geo_tables import GeoTables
from hetero.exchange.joint_steps import JointSteps
from hetero.exchange.lanes import Lane
from hetero.exchange.messages import (
    DensePart,
    DensePullReply,
    DensePushRequest,
    DifferencesReply,
    DifferencesRequest,
    LeasedValues,
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
from hetero.exchange.moving import ServerMove
from hetero.exchange.server_pooling import pooled, unpooled
from hetero.keys.routing import Routing
from hetero.records import JobSpec, Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """What a server holds, for summaries. rows: per table name.

    staleness[n]: pushes of a row between whose pull and push others had pushed it n times; empty in `sync`. tiers: see
    `hetero.embedding.tiered.tier_counts`; empty without SSD. policies: what went by reason and table, see
    `PolicyRows.policy_counts`; empty without policies. drops: the same, day by day.
    """

    rows: dict[str, int]
    memory_bytes: int
    rejected: int
    steps_applied: int
    staleness: tuple[int, ...] = ()
    tiers: Mapping[str, int] = field(default_factory=dict)
    policies: Mapping[str, int] = field(default_factory=dict)
    drops: tuple[DayDrops, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerUse:
    """What a server holds and has done so far, as far as it is known at once. rows: per table of the job, `+` between
    those that are one physically. staleness, tiers: as in ServerState.
    """

    rows: Mapping[str, int]
    staleness: tuple[int, ...]
    tiers: Mapping[str, int]


class RowServer:
    """One server of a run, usable in any process. The job's mode decides how pushes are applied.

    number: which of the servers. routing: who holds what when it begins; without one that of the run's start. A call by
    a routing of another version raises StaleRoutingError, which holds this one, and changes nothing.
    """

    def __init__(self, job: JobSpec, *, number: int = 0, routing: Routing | None = None) -> None:
        self.routing = routing or Routing.first(buckets=job.buckets, servers=job.servers.count)
        self._job = job
        self._number = number
        self._move: ServerMove | None = None
        self._mode = job.mode
        self.stores = open_rows(job)
        self._pushes = _rule(job, self.stores)
        self._dense = DenseTables(job)
        self._returns = [Lane("return") for _ in range(job.towers.count)]
        self._days = Days(job, self.stores)

    def pull(self, request: PullRequest) -> PullReply:
        """Rows of the keys, per group float32 [U, E].

        Raises ProtocolError for a training pull that the mode's rule does not allow.
        """
        self._check_version(request)
        create = Create.NO
        if request.purpose is Purpose.TRAIN:
            self._pushes.note_pull(request)
            self._days.reach(request.step)
            create = Create.YES
        rows = tuple(
            store.pull(own_keys(keys), create=create) for store, keys in zip(self.stores, request.keys, strict=True)
        )
        return PullReply(rows=pooled(rows, request.bags))

    def push(self, request: PushRequest) -> PushReply:
        """Take one tower's gradients. A repeated push is not applied again. Raises ProtocolError, see the rules."""
        self._check_version(request)
        return self._pushes.push(unpooled(request))

    def lease(self, request: LeaseRequest) -> LeaseReply:
        """Hand rows to a tower. Raises LeaseError naming key, window and holder of one held; then none is leased."""
        self._check_version(request)
        asked = [(store, own_keys(keys)) for store, keys in zip(self.stores, request.keys, strict=True)]
        try:
            for store, keys in asked if len(asked) > 1 else ():  # one alone looks for itself
                store.check_free(keys)
            rows = tuple(store.lease(keys, holder=request.tower + 1) for store, keys in asked)
        except LeaseError as error:
            raise LeaseError(f"server: tower {request.tower} fetches for window {request.window}: {error}") from error
        return LeaseReply(rows=rows)

    def give_back(self, request: ReturnRequest) -> None:
        """Take leased rows back. A repeated return is not applied again. Raises ProtocolError on a gap, LeaseError."""
        self._check_version(request)
        if not self._returns[request.tower].is_next(request.sequence):
            return
        for store, keys, rows in zip(self.stores, request.keys, request.rows, strict=True):
            store.give_back(own_keys(keys), rows, holder=request.tower + 1)
        if request.flush is not None:
            self._days.flushed(request.flush, tower=request.tower)

    def note_leased(self, values: LeasedValues) -> None:
        """Hold what leased rows are now, for a snapshot; the tower keeps them. Raises LeaseError for one it lacks."""
        self._check_version(values)
        for store, keys, rows in zip(self.stores, values.keys, values.rows, strict=True):
            store.note_leased(own_keys(keys), rows, holder=values.tower + 1)

    def open_dense(self, part: DensePart) -> None:
        """Hold dense parameters from now on, unless some are held."""
        self._dense.open(part)

    def pull_dense(self) -> DensePullReply:
        """The dense parameters as they are now. Raises ProtocolError before a tower opened them."""
        return self._dense.pull()

    def dense_state(self) -> dict[str, np.ndarray]:
        """The dense optimizer's state, by `<parameter>/<name of the tensor>`."""
        return self._dense.state()

    def push_dense(self, request: DensePushRequest) -> None:
        """Apply gradients of the dense parameters. A repeated push is not applied again."""
        self._dense.push(request)

    def exchange(self, request: DifferencesRequest) -> DifferencesReply:
        """Add what a tower's copies gained; what changed since its last exchange comes back (`geo`).

        Raises ProtocolError in another mode, out of sequence, or for a row the tower never pulled.
        """
        self._check_version(request)
        if not isinstance(self._pushes, GeoTables):
            raise ProtocolError(f"server: tower {request.tower} sent differences in mode {self._mode.value}")
        return self._pushes.exchange(request, dense=self._dense.exchange(np.array(request.dense)))

    def forget_towers(self) -> None:
        """Hold no dense parameters and know of no copies, as at the start: another model was loaded."""
        self._dense.forget()
        if isinstance(self._pushes, GeoTables):
            self._pushes.forget_copies()

    def note_cut(self) -> None:
        """A snapshot holds what is here now: rows pulled ahead of it are pulled anew."""
        if isinstance(self._pushes, Arrivals):
            self._pushes.forget_pulls()

    def begin_at(self, steps: int) -> None:
        """Go on after `steps` steps: the rows are those of a snapshot taken then."""
        self._pushes.steps_applied = steps
        self._days.resume(steps)

    def begin_move(self, then: Routing) -> ServerMove:
        """This server's part in a change to the routing `then`; it ends with `adopt` and `end_move`."""
        self.end_move()
        self._move = ServerMove(self.stores, self._job, server=self._number, now=self.routing, then=then)
        return self._move

    @property
    def is_moving(self) -> bool:
        """Whether a change is under way."""
        return self._move is not None

    @property
    def move(self) -> ServerMove:
        """The change under way. Raises ProtocolError without one."""
        if self._move is None:
            raise ProtocolError(f"server {self._number}: there is no change of servers under way")
        return self._move

    def adopt(self, then: Routing, *, steps: int) -> None:
        """Answer by this routing from now on, as after `steps` steps. Call when no row is leased and no push under
        way. Raises ProtocolError for another than that of the change under way."""
        if self.move.then.version != then.version:
            raise ProtocolError(
                f"server {self._number}: told of routing {then.version} in a change to {self.move.then.version}"
            )
        self.routing = then
        self.begin_at(steps)
        self.note_cut()

    def end_move(self) -> None:
        """Hold only what is this server's, as before every snapshot: a change that has not come so far is given up."""
        move, self._move = self._move, None
        if move is not None:
            move.end(holds=self.routing)

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
            staleness=() if isinstance(self._pushes, JointSteps) else self._pushes.staleness.counts,
            tiers=tier_counts([bare(store) for store in self.stores]),
            policies=policy_counts(self.stores),
            drops=drops_of(self.stores),
        )

    def use(self) -> ServerUse:
        """What is known without counting rows one by one, for a look every few seconds."""
        rows: Counter[str] = Counter()
        for group, store in zip(self._job.groups, self.stores, strict=True):
            rows["+".join(dict.fromkeys(table.name.partition("/")[0] for table in group.tables))] += store.count()
        return ServerUse(
            rows=rows,
            staleness=() if isinstance(self._pushes, JointSteps) else self._pushes.staleness.counts,
            tiers=tier_counts([bare(store) for store in self.stores]),
        )

    def close(self) -> None:
        for store in self.stores:
            store.close()

    def _check_version(self, request: _Routed) -> None:
        if request.version != self.routing.version:
            raise StaleRoutingError(
                f"server {self._number}: tower {request.tower} asks by routing {request.version}, "
                f"{self.routing.version} holds now",
                routing=self.routing,
            )


_Routed = PullRequest | PushRequest | LeaseRequest | ReturnRequest | LeasedValues | DifferencesRequest


def _rule(job: JobSpec, stores: list[Rows]) -> JointSteps | Arrivals | GeoTables:
    if job.mode is Mode.SYNC:
        return JointSteps(job, stores)
    return GeoTables(job, stores) if job.mode is Mode.GEO else Arrivals(job, stores)
