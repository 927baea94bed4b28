"""A server in `sync`: steps in order, pushes applied once and only when all towers' are here, merged in tower order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.errors import ProtocolError
from hetero.exchange.merge import merge_gradients
from hetero.exchange.messages import PullRequest, Purpose, PushRequest
from hetero.exchange.server import RowServer
from hetero.keys.dedup import Deduplicator
from hetero.records import KeySet, RoleSpec
from tests.support.jobs import DEEP
from tests.support.row_client import contract_job, some_gradients, some_keys


def push(server: RowServer, *, tower: int, step: int, sequence: int | None = None, seed: int = 0) -> bool:
    keys = some_keys(seed=seed)
    request = PushRequest(
        tower=tower,
        sequence=step if sequence is None else sequence,
        step=step,
        keys=tuple(keys),
        gradients=tuple(some_gradients(keys, seed=seed + 100 * tower)),
    )
    return server.push(request).applied


def rows(server: RowServer, seed: int = 0) -> np.ndarray:
    request = PullRequest(tower=0, step=0, purpose=Purpose.SCORE, keys=tuple(some_keys(seed=seed)))
    return server.pull(request).rows[DEEP]


def make_server(*, towers: int) -> RowServer:
    return RowServer(replace(contract_job(servers=1), towers=RoleSpec(count=towers)))


def test_a_step_is_applied_when_the_last_tower_has_pushed() -> None:
    server = make_server(towers=2)
    assert not push(server, tower=1, step=0)
    assert not rows(server).any()
    assert push(server, tower=0, step=0)
    assert rows(server).any()


def test_the_order_of_arrival_does_not_matter() -> None:
    first, second = make_server(towers=2), make_server(towers=2)
    for server, order in ((first, (0, 1)), (second, (1, 0))):
        for tower in order:
            push(server, tower=tower, step=0)
    np.testing.assert_array_equal(rows(first), rows(second))


def test_a_repeated_push_is_not_applied_twice() -> None:
    server = make_server(towers=1)
    push(server, tower=0, step=0)
    once = rows(server)
    push(server, tower=0, step=0)
    np.testing.assert_array_equal(rows(server), once)


def test_a_gap_in_the_pushes_is_refused() -> None:
    server = make_server(towers=1)
    with pytest.raises(ProtocolError, match="number 1 for step 0, expected number 0"):
        push(server, tower=0, step=0, sequence=1)
    with pytest.raises(ProtocolError, match="for step 4, expected number 0 for step 0"):
        push(server, tower=0, step=4, sequence=0)


def test_a_training_pull_before_the_step_before_is_applied_is_refused() -> None:
    server = make_server(towers=2)
    push(server, tower=0, step=0)
    request = PullRequest(tower=0, step=1, purpose=Purpose.TRAIN, keys=tuple(some_keys()))
    with pytest.raises(ProtocolError, match="pulls for step 1, but 0 steps are applied"):
        server.pull(request)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), unique=True), max_size=4), st.integers(0, 99))
def test_merged_gradients_are_sums_in_tower_order(towers: list[list[tuple[int, int]]], seed: int) -> None:
    random = np.random.default_rng(seed)
    parts: list[tuple[KeySet, np.ndarray]] = []
    want: dict[tuple[int, int], np.ndarray] = {}
    for identities in towers:
        gradients = random.normal(size=(len(identities), 3)).astype(np.float32)
        keys = KeySet(
            np.array([table for table, _ in identities], np.uint16), np.array([key for _, key in identities], np.uint64)
        )
        parts.append((keys, gradients))
        for identity, gradient in zip(identities, gradients, strict=True):
            want[identity] = gradient if identity not in want else want[identity] + gradient
    keys, merged = merge_gradients(parts, dim=3, dedup=Deduplicator())
    got = dict(zip(zip(keys.tables.tolist(), keys.keys.tolist(), strict=True), merged, strict=True))
    assert list(got) == list(want)
    for identity, gradient in want.items():
        np.testing.assert_array_equal(got[identity], gradient)
