"""The rules of leases on the servers' side, each shown to fire."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hetero.errors import LeaseError, ProtocolError
from hetero.exchange.client import LocalServer, ShardedRowClient
from hetero.exchange.messages import LeaseRequest, Purpose, ReturnRequest
from hetero.exchange.server import RowServer
from hetero.observe.spans import SpanClock
from hetero.records import JobSpec, RoleSpec
from tests.support.jobs import DEEP, WIDE
from tests.support.row_client import contract_job, some_keys


def two_towers(job: JobSpec) -> list[ShardedRowClient]:
    servers = [LocalServer(RowServer(job)) for _ in range(job.servers.count)]
    return [ShardedRowClient(job, tower=tower, servers=servers, clock=SpanClock()) for tower in range(2)]


@pytest.fixture(params=[1, 3])
def clients(request: pytest.FixtureRequest) -> list[ShardedRowClient]:
    return two_towers(replace(contract_job(servers=request.param), towers=RoleSpec(count=2)))


def test_leased_rows_begin_as_pulled_ones_and_come_back_as_returned(clients: list[ShardedRowClient]) -> None:
    client, keys = clients[0], some_keys()
    rows = client.lease(keys, window=0).result()
    assert [part.shape[1] for part in rows] == [3, 5]
    changed = [part + np.float32(0.5) for part in rows]
    client.give_back(keys, changed, window=1)
    again = client.lease(keys, window=1).result()
    for part, want in zip(again, changed, strict=True):
        np.testing.assert_array_equal(part, want)
    client.give_back(keys, again, window=2)
    client.settle()
    pulled = clients[1].pull(keys, step=0, purpose=Purpose.SCORE)
    np.testing.assert_array_equal(pulled[DEEP], changed[DEEP][:, :4])
    np.testing.assert_array_equal(pulled[WIDE], changed[WIDE][:, :1])


def test_a_fetch_that_meets_a_leased_row_names_key_window_and_holder(clients: list[ShardedRowClient]) -> None:
    keys = some_keys()
    clients[0].lease(keys, window=3).result()
    with pytest.raises(
        LeaseError, match=r"tower 1 fetches for window 4: key \d+ of table wide/item is held by tower 0"
    ):
        clients[1].lease(keys, window=4).result()


def test_a_fetch_that_fails_leases_nothing(clients: list[ShardedRowClient]) -> None:
    keys = some_keys()
    one = [type(part)(part.tables[:1], part.keys[:1]) for part in keys]
    rest = [type(part)(part.tables[1:], part.keys[1:]) for part in keys]
    clients[0].lease([rest[WIDE], one[DEEP]], window=0).result()
    with pytest.raises(LeaseError, match="table deep/"):
        clients[1].lease([one[WIDE], keys[DEEP]], window=0).result()
    clients[0].lease([one[WIDE], rest[DEEP]], window=1).result()


def test_only_the_holder_may_give_back(clients: list[ShardedRowClient]) -> None:
    keys = some_keys()
    rows = clients[0].lease(keys, window=0).result()
    with pytest.raises(LeaseError, match="is held by tower 0"):
        clients[1].give_back(keys, rows, window=1)


def test_leased_rows_are_noted_for_a_snapshot_and_stay_leased(clients: list[ShardedRowClient]) -> None:
    keys = some_keys()
    now = [part + np.float32(0.5) for part in clients[0].lease(keys, window=0).result()]
    clients[0].note_leased(keys, now, steps=3)
    pulled = clients[1].pull(keys, step=0, purpose=Purpose.SCORE)
    np.testing.assert_array_equal(pulled[DEEP], now[DEEP][:, :4])
    with pytest.raises(LeaseError, match="is held by tower 0"):
        clients[1].lease(keys, window=0).result()
    with pytest.raises(LeaseError, match="is held by tower 0"):
        clients[1].note_leased(keys, now, steps=3)
    clients[0].give_back(keys, now, window=1)
    with pytest.raises(LeaseError, match="is held by nobody"):
        clients[0].note_leased(keys, now, steps=3)


def test_rows_nobody_holds_cannot_be_given_back(clients: list[ShardedRowClient]) -> None:
    keys = some_keys()
    rows = [np.zeros((len(part), width), np.float32) for part, width in zip(keys, (3, 5), strict=True)]
    with pytest.raises(LeaseError, match="is held by nobody"):
        clients[0].give_back(keys, rows, window=1)


def test_a_repeated_return_is_not_applied_twice_and_a_gap_is_refused() -> None:
    job = contract_job(servers=1)
    server, keys = RowServer(job), tuple(some_keys())
    rows = server.lease(LeaseRequest(tower=0, window=0, keys=keys)).rows
    first = ReturnRequest(tower=0, sequence=0, window=1, keys=keys, rows=rows)
    server.give_back(first)
    server.give_back(first)
    with pytest.raises(ProtocolError, match="return number 5 came, expected number 1"):
        server.give_back(ReturnRequest(tower=0, sequence=5, window=1, keys=keys, rows=rows))
