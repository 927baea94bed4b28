"""The contract of `RowClient`: every implementation passes these tests, over one server and over several."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from hetero.embedding.answers import Create
from hetero.embedding.store import RowStore
from hetero.exchange.client import RowClient
from hetero.exchange.messages import Purpose
from hetero.records import DataSpec, JobSpec, KeySet
from tests.support.jobs import DEEP, WIDE, small_job

MakeClient = Callable[[JobSpec], RowClient]
EXTREMES = [0, 1, 2**63 - 1, 2**63, 2**64 - 1]


def contract_job(*, servers: int) -> JobSpec:
    from hetero.records import RoleSpec

    nothing = DataSpec(paths=(), dense=(), sparse=(), label="label")
    return small_job(nothing, servers=RoleSpec(count=servers))


def some_keys(*, seed: int = 0, rows: int = 50) -> list[KeySet]:
    """Unique keys of both groups, the extremes of uint64 among them, the same keys in several tables."""
    random = np.random.default_rng(seed)
    values = np.unique(random.integers(0, 2**64, rows, dtype=np.uint64))
    keys = np.concatenate([np.array(EXTREMES, np.uint64), values])
    random.shuffle(keys)
    wide = KeySet(np.full(len(keys), 1, np.uint16), keys)
    deep = KeySet(np.repeat(np.array([2, 4], np.uint16), len(keys)), np.tile(keys, 2))
    return [wide, deep]


def some_gradients(keys: list[KeySet], *, seed: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.normal(size=(len(group), dim)).astype(np.float32) for group, dim in zip(keys, (1, 4), strict=True)]


class RowClientContract:
    """Subclasses provide the fixture `make_client`."""

    @pytest.fixture(params=[3, pytest.param(1, marks=pytest.mark.slow)])
    def servers(self, request: pytest.FixtureRequest) -> int:
        return int(request.param)

    def test_rows_are_those_of_one_store_in_the_order_asked(self, make_client: MakeClient, servers: int) -> None:
        job = contract_job(servers=servers)
        client, keys = make_client(job), some_keys()
        pulled = client.pull(keys, step=0, purpose=Purpose.TRAIN)
        for group, spec in enumerate(job.groups):
            want = RowStore(spec).pull(keys[group], create=Create.YES)
            np.testing.assert_array_equal(pulled[group], want)
            assert pulled[group].flags.writeable

    def test_pushes_update_as_one_store_does(self, make_client: MakeClient, servers: int) -> None:
        job = contract_job(servers=servers)
        client = make_client(job)
        stores = [RowStore(spec) for spec in job.groups]
        for step in range(3):
            keys = some_keys(seed=step)
            gradients = some_gradients(keys, seed=10 + step)
            pulled = client.pull(keys, step=step, purpose=Purpose.TRAIN)
            client.push(keys, gradients, step=step)
            for group, store in enumerate(stores):
                np.testing.assert_array_equal(pulled[group], store.pull(keys[group], create=Create.YES))
                store.push(keys[group], gradients[group])
        assert client.settle().rejected == 0
        for seed in range(3):
            keys = some_keys(seed=seed)
            pulled = client.pull(keys, step=3, purpose=Purpose.SCORE)
            for group, store in enumerate(stores):
                np.testing.assert_array_equal(pulled[group], store.pull(keys[group], create=Create.NO))

    def test_scoring_reads_zeros_for_unseen_keys_and_creates_nothing(
        self, make_client: MakeClient, servers: int
    ) -> None:
        client, keys = make_client(contract_job(servers=servers)), some_keys()
        for _ in range(2):
            pulled = client.pull(keys, step=0, purpose=Purpose.SCORE)
            assert not any(rows.any() for rows in pulled)

    def test_a_gradient_that_is_not_finite_is_named_and_not_applied(
        self, make_client: MakeClient, servers: int
    ) -> None:
        client, keys = make_client(contract_job(servers=servers)), some_keys()
        before = client.pull(keys, step=0, purpose=Purpose.TRAIN)
        gradients = some_gradients(keys, seed=1)
        gradients[DEEP][7, 2] = np.nan
        gradients[WIDE][3, 0] = np.inf
        client.push(keys, gradients, step=0)
        settled = client.settle()
        assert settled.rejected == 2
        named = {(example.table, example.key, example.step) for example in settled.examples}
        assert named == {
            ("wide/item", int(keys[WIDE].keys[3]), 0),
            ("deep/user" if keys[DEEP].tables[7] == 2 else "deep/tags", int(keys[DEEP].keys[7]), 0),
        }
        after = client.pull(keys, step=1, purpose=Purpose.TRAIN)
        np.testing.assert_array_equal(after[DEEP][7], before[DEEP][7])
        np.testing.assert_array_equal(after[WIDE][3], before[WIDE][3])
        assert (after[DEEP] != before[DEEP]).any(axis=1).sum() == len(keys[DEEP]) - 1

    def test_no_keys_at_all(self, make_client: MakeClient, servers: int) -> None:
        client = make_client(contract_job(servers=servers))
        empty = [KeySet(np.empty(0, np.uint16), np.empty(0, np.uint64))] * 2
        pulled = client.pull(empty, step=0, purpose=Purpose.TRAIN)
        assert [rows.shape for rows in pulled] == [(0, 1), (0, 4)]
        client.push(empty, list(pulled), step=0)
        assert client.settle().rejected == 0
