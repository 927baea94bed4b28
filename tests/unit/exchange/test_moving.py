"""Rows that move between servers: none lost, none twice, whatever happens while they are copied."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.errors import ProtocolError, StaleRoutingError
from hetero.exchange.client import LocalServer, ShardedRowClient
from hetero.exchange.messages import LeaseRequest, PullRequest, Purpose, PushRequest, ReturnRequest
from hetero.exchange.moving import MovedRows
from hetero.exchange.server import RowServer
from hetero.keys.routing import Router, Routing
from hetero.observe.spans import SpanClock
from hetero.records import JobSpec, KeySet
from tests.support.moves import owned_rows
from tests.support.row_client import contract_job, some_gradients, some_keys

JOB = contract_job(servers=2)


class Servers:
    """Servers of a run whose number changes, and what they must hold."""

    def __init__(self, job: JobSpec, *, seed: int) -> None:
        self.job = job
        self.chance = random.Random(seed)
        self.routing = Routing.first(buckets=job.buckets, servers=job.servers.count)
        self.servers = [RowServer(job, number=number) for number in range(job.servers.count)]
        self.single = RowServer(contract_job(servers=1))
        self.seed = seed

    def update(self) -> None:
        """Push to some rows, and delete some, on the servers and on the one that holds everything."""
        self.seed += 1
        keys = some_keys(seed=self.chance.randrange(6), rows=40)
        gradients = some_gradients(keys, seed=self.seed)
        gone = [group[::7] for group in keys] if self.chance.random() < 0.4 else None
        self._change([self.single], Routing.first(buckets=self.job.buckets, servers=1), keys, gradients, gone)
        self._change(self.servers, self.routing, keys, gradients, gone)

    def _change(
        self,
        servers: list[RowServer],
        routing: Routing,
        keys: list[KeySet],
        gradients: list[np.ndarray],
        gone: list[KeySet] | None,
    ) -> None:
        router = Router(self.job.groups, self.job.buckets, routing.owners)
        for index, group in enumerate(keys):
            for server, part in zip(servers, router.route(group), strict=False):
                server.stores[index].push(part.keys, gradients[index][part.positions])
            for server, part in zip(servers, router.route(gone[index]) if gone else (), strict=False):
                server.stores[index].delete_rows(part.keys)

    def resize(self, count: int) -> None:
        """As a run does it, with updates whenever there may be some."""
        then = self.routing.resized(count)
        new = range(len(self.servers), count)
        self.servers += [RowServer(self.job, number=number, routing=self.routing) for number in new]
        moves = [server.begin_move(then) for server in self.servers]
        for move in moves:
            for moved in move.copy():
                moves[moved.target].take(moved)
                self.update()
        self.update()
        for move in moves:
            for moved in move.rest():
                moves[moved.target].take(moved)
        for server in self.servers:
            server.adopt(then, steps=0)
        self.routing = then
        for move in moves:
            for _ in move.free():
                self.update()
        for server in self.servers:
            server.end_move()
        del self.servers[count:]

    def check(self) -> None:
        first = Routing.first(buckets=self.job.buckets, servers=1)
        want = owned_rows([self.single], first, job=self.job)
        assert owned_rows(self.servers, self.routing, job=self.job) == want
        assert sum(map(len, want)) > 50


def check_changes(seed: int, counts: list[int]) -> None:
    servers = Servers(JOB, seed=seed)
    for _ in range(3):
        servers.update()
    for count in counts:
        servers.resize(count)
        servers.check()
    servers.update()
    servers.check()


@settings(max_examples=4, deadline=None)
@given(st.integers(0, 1000), st.lists(st.integers(1, 5), min_size=1, max_size=3))
def test_every_row_is_with_its_server_after_every_change(seed: int, counts: list[int]) -> None:
    check_changes(seed, counts)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1000), st.lists(st.integers(1, 7), min_size=1, max_size=6))
def test_every_row_is_with_its_server_after_many_changes(seed: int, counts: list[int]) -> None:
    check_changes(seed, counts)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("pieces", [0, 1, 99])
def test_a_move_given_up_leaves_every_row_where_it_was(count: int, pieces: int) -> None:
    servers = Servers(JOB, seed=3)
    servers.update()
    own = list(servers.servers)
    own += [RowServer(JOB, number=number) for number in range(len(own), count)]
    moves = [server.begin_move(servers.routing.resized(count)) for server in own]
    copies = [moved for move in moves for moved in move.copy()]
    for moved in copies[:pieces]:
        moves[moved.target].take(moved)
    for server in own:
        server.end_move()
    assert all(store.count() == 0 for server in own[2:] for store in server.stores)
    servers.check()
    with pytest.raises(ProtocolError, match="came for a change of servers that was given up"):
        moves[copies[0].target].take(copies[0])
    with pytest.raises(ProtocolError, match="the change of servers was given up"):
        next(moves[1].copy())


def test_a_copy_that_is_ended_midway_says_so_and_lets_a_snapshot_begin() -> None:
    servers = Servers(JOB, seed=1)
    servers.update()
    source = servers.servers[1]
    copying = source.begin_move(servers.routing.resized(1)).copy()
    next(copying)
    source.end_move()
    with pytest.raises(ProtocolError):
        list(copying)
    for store in source.stores:
        store.begin_snapshot().close()
    servers.check()


def test_what_changed_is_not_asked_for_before_the_copy_is_there() -> None:
    server = Servers(JOB, seed=1).servers[1]
    move = server.begin_move(server.routing.resized(1))
    with pytest.raises(ProtocolError, match="what changed since a copy that is not there"):
        next(move.rest())


def test_a_server_goes_by_no_other_routing_than_the_one_prepared() -> None:
    server = Servers(JOB, seed=1).servers[1]
    then = server.routing.resized(1)
    with pytest.raises(ProtocolError, match="no change of servers under way"):
        server.adopt(then, steps=0)
    server.begin_move(then)
    with pytest.raises(ProtocolError, match="told of routing 2 in a change to 1"):
        server.adopt(then.resized(2), steps=0)


def test_every_call_by_an_old_routing_is_refused_with_the_new_one() -> None:
    server = RowServer(JOB, routing=Routing.first(buckets=JOB.buckets, servers=2).resized(3))
    keys = tuple(some_keys())
    rows = tuple(
        np.zeros((len(group), store.width), np.float32) for group, store in zip(keys, server.stores, strict=True)
    )
    gradients = tuple(some_gradients(list(keys), seed=1))
    calls: list[Callable[[], object]] = [
        lambda: server.pull(PullRequest(tower=0, step=0, purpose=Purpose.TRAIN, keys=keys)),
        lambda: server.pull(PullRequest(tower=0, step=0, purpose=Purpose.SCORE, keys=keys, version=2)),
        lambda: server.push(PushRequest(tower=0, sequence=0, step=0, keys=keys, gradients=gradients)),
        lambda: server.lease(LeaseRequest(tower=0, window=0, keys=keys)),
        lambda: server.give_back(ReturnRequest(tower=0, sequence=0, window=0, keys=keys, rows=rows)),
    ]
    for call in calls:
        with pytest.raises(StaleRoutingError, match=r"server 0: tower 0 asks by routing \d, 1 holds now") as refused:
            call()
        assert refused.value.routing is server.routing
    assert all(store.count() == 0 for store in server.stores)


def test_a_client_that_is_refused_goes_on_by_the_new_routing() -> None:
    servers = Servers(JOB, seed=2)
    connected: list[int] = []

    def connect(routing: Routing) -> list[LocalServer]:
        connected.append(routing.version)
        return [LocalServer(server) for server in servers.servers]

    def client(*, may_follow: bool = True) -> ShardedRowClient:
        handles = [LocalServer(server) for server in servers.servers[:2]]
        follow = connect if may_follow else None
        return ShardedRowClient(JOB, tower=0, servers=handles, clock=SpanClock(), connect=follow)

    going_on, stuck, keys = client(), client(may_follow=False), some_keys()
    want = going_on.pull(keys, step=0, purpose=Purpose.TRAIN)
    early = going_on.ask(keys, step=0, purpose=Purpose.SCORE)
    servers.resize(3)
    late = [going_on.ask(keys, step=0, purpose=Purpose.SCORE) for _ in range(2)]
    held = owned_rows(servers.servers, servers.routing, job=JOB)
    for pending in late:
        for group, (rows, keys_of) in enumerate(zip(pending.result(), keys, strict=True)):
            for table, key, weights in zip(keys_of.tables.tolist(), keys_of.keys.tolist(), rows, strict=True):
                assert held[group][table, key].startswith(weights.tobytes())
    assert [rows.shape for rows in early.result()] == [rows.shape for rows in want]
    assert connected == [1]
    assert going_on.routing.version == 1
    with pytest.raises(ProtocolError, match="refused without a newer routing"):
        stuck.pull(keys, step=0, purpose=Purpose.TRAIN)
    going_on.push(keys, some_gradients(keys, seed=0), step=0)
    assert going_on.settle().rejected == 0


def test_rows_that_carry_more_than_a_move_takes_are_not_moved() -> None:
    class Told:
        statistics: ClassVar[dict[str, np.dtype[np.int64]]] = {"shows": np.dtype(np.int64)}

    server = Servers(JOB, seed=1).servers[1]
    move = server.begin_move(server.routing.resized(1))
    with pytest.raises(ProtocolError, match="rows hold shows besides"):
        next(move._moving(0, Told()))  # type: ignore[arg-type]


def test_moved_rows_are_copies() -> None:
    servers = Servers(JOB, seed=5)
    servers.update()
    move = servers.servers[1].begin_move(servers.routing.resized(1))
    pieces: list[MovedRows] = list(move.copy())
    kept = [piece.rows.copy() for piece in pieces if piece.rows is not None]
    servers.update()
    for piece, rows in zip(pieces, kept, strict=True):
        np.testing.assert_array_equal(piece.rows, rows)


def test_the_refusal_crosses_processes() -> None:
    routing = Routing.first(buckets=64, servers=2).resized(3)
    error = pickle.loads(pickle.dumps(StaleRoutingError("old", routing=routing)))
    assert str(error) == "old"
    assert isinstance(error.routing, Routing)
    assert error.routing.version == 1
    np.testing.assert_array_equal(error.routing.owners, routing.owners)


def test_servers_that_disagree_about_the_routing_are_not_believed() -> None:
    first = Routing.first(buckets=JOB.buckets, servers=2)
    ahead, behind = RowServer(JOB, number=0, routing=first.resized(3)), RowServer(JOB, number=1)
    handles = [LocalServer(ahead), LocalServer(behind)]
    client = ShardedRowClient(JOB, tower=0, servers=handles, clock=SpanClock(), connect=lambda _: handles)
    with pytest.raises(ProtocolError, match="1 servers answered by a routing that another refused"):
        client.pull(some_keys(), step=0, purpose=Purpose.SCORE)


def test_the_routing_does_not_change_while_pushes_are_under_way() -> None:
    servers, keys = Servers(JOB, seed=2), some_keys()
    handles = [LocalServer(server) for server in servers.servers]
    client = ShardedRowClient(JOB, tower=0, servers=handles, clock=SpanClock(), connect=lambda _: handles)
    client.pull(keys, step=0, purpose=Purpose.TRAIN)
    client.push(keys, some_gradients(keys, seed=0), step=0)
    servers.resize(1)
    with pytest.raises(ProtocolError, match="changed while pushes or returns were under way"):
        client.pull(keys, step=1, purpose=Purpose.TRAIN)
