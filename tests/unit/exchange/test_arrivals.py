"""Pushes applied as they arrive: once each, only for what was pulled, and rejected rows count for nobody."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hetero.errors import ProtocolError
from hetero.exchange.messages import PullRequest, Purpose, PushRequest
from hetero.exchange.server import RowServer
from hetero.exchange.staleness import StalenessCounts, merged
from hetero.records import KeySet, Mode, RoleSpec
from tests.support.row_client import contract_job

KEYS = (
    KeySet(np.array([1], np.uint16), np.array([7], np.uint64)),
    KeySet(np.array([2, 4], np.uint16), np.array([7, 9], np.uint64)),
)


def make_server() -> RowServer:
    return RowServer(replace(contract_job(servers=1), mode=Mode.ASYNC, towers=RoleSpec(count=2)))


def pull(server: RowServer, *, tower: int, step: int, keys: tuple[KeySet, ...] = KEYS) -> np.ndarray:
    request = PullRequest(tower=tower, step=step, purpose=Purpose.TRAIN, keys=keys)
    return server.pull(request).rows[1]


def push(server: RowServer, *, tower: int, step: int, sequence: int | None = None, bad: bool = False) -> int:
    gradients = (np.ones((1, 1), np.float32), np.ones((2, 4), np.float32))
    if bad:
        gradients[1][1, 3] = np.nan
    number = step if sequence is None else sequence
    request = PushRequest(tower=tower, sequence=number, step=step, keys=KEYS, gradients=gradients)
    return server.push(request).rejected


def test_a_push_is_applied_at_once() -> None:
    server = make_server()
    first = pull(server, tower=0, step=0)
    push(server, tower=0, step=0)
    assert (pull(server, tower=1, step=0) != first).all()


def test_staleness_counts_pushes_of_others_alone() -> None:
    server = make_server()
    for step in range(3):  # tower 0 pulls three steps ahead of its pushes
        pull(server, tower=0, step=step)
    pull(server, tower=1, step=0)
    for step in range(3):
        push(server, tower=0, step=step)
    assert server.state().staleness == (9,)
    push(server, tower=1, step=0)
    assert server.state().staleness == (9, 0, 0, 3)


def test_a_rejected_row_is_neither_counted_nor_a_push_to_others() -> None:
    server = make_server()
    for tower in range(2):
        pull(server, tower=tower, step=0)
    assert push(server, tower=0, step=0, bad=True) == 1
    assert server.state().staleness == (2,)
    push(server, tower=1, step=0)
    assert server.state().staleness == (3, 2)
    assert server.state().rejected == 1


def test_a_repeated_push_is_not_applied_twice() -> None:
    server = make_server()
    pull(server, tower=0, step=0)
    push(server, tower=0, step=0)
    once = pull(server, tower=1, step=0)
    push(server, tower=0, step=0)
    np.testing.assert_array_equal(pull(server, tower=1, step=1), once)


def test_what_was_not_pulled_cannot_be_pushed() -> None:
    server = make_server()
    with pytest.raises(ProtocolError, match="tower 0 pushes rows for step 0 that it has not pulled"):
        push(server, tower=0, step=0)
    server = make_server()
    pull(server, tower=0, step=0, keys=(KEYS[0], KeySet(KEYS[1].tables[:1], KEYS[1].keys[:1])))
    with pytest.raises(ProtocolError, match="that it has not pulled"):
        push(server, tower=0, step=0)


def test_a_step_is_pulled_once_and_pushes_have_no_gaps() -> None:
    server = make_server()
    pull(server, tower=0, step=0)
    with pytest.raises(ProtocolError, match="pulls for step 0 twice"):
        pull(server, tower=0, step=0)
    with pytest.raises(ProtocolError, match="push number 3 came, expected number 0"):
        push(server, tower=0, step=0, sequence=3)


def test_counts_of_servers_are_added_and_told_as_the_summary_holds_them() -> None:
    counts = merged([(3, 1), (), (1, 0, 0, 5)])
    assert counts.counts == (4, 1, 0, 5)
    assert counts.record() == {"histogram": {"0": 4, "1": 1, "3": 5}, "max": 3, "mean": 1.6}
    assert StalenessCounts().record() == {}
    assert StalenessCounts().counts == ()
