"""`geo` against a plain oracle: dicts of float32 rows, moved by the rule in words, to the bit."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.errors import ProtocolError
from hetero.exchange.client import LocalServer, ShardedRowClient
from hetero.exchange.geo_copies import CopiedGroup
from hetero.exchange.messages import DifferencesReply, Purpose
from hetero.exchange.server import RowServer
from hetero.exchange.staleness import merged
from hetero.observe.spans import SpanClock
from hetero.records import F32, JobSpec, KeySet, Mode, RoleSpec, RowOptimizer, RowOptimizerSpec
from tests.support.row_client import contract_job

LR = 0.25
KEYS = 6
TOWERS = 3
DEEP = 1
Keys = list[int]


def geo_job(*, servers: int, scale: float) -> JobSpec:
    job = contract_job(servers=servers)
    sgd = RowOptimizerSpec(kind=RowOptimizer.SGD, lr=LR)
    groups = tuple(replace(group, optimizer=sgd) for group in job.groups)
    return replace(job, groups=groups, mode=Mode.GEO, staleness=2, geo_scale=scale, towers=RoleSpec(count=TOWERS))


def deep_keys(keys: Keys) -> KeySet:
    return KeySet(np.full(len(keys), 2, np.uint16), np.array(keys, np.uint64))


NO_KEYS = KeySet(np.empty(0, np.uint16), np.empty(0, np.uint64))
NO_ROWS = np.empty((0, 1), np.float32)


class Towers:
    """Three towers over shared servers, as `GeoCopies` drives them; only the deep group is used."""

    def __init__(self, job: JobSpec) -> None:
        self.job = job
        self.servers = [RowServer(job) for _ in range(job.servers.count)]
        handles = [LocalServer(server) for server in self.servers]
        self.clients = [ShardedRowClient(job, tower=t, servers=handles, clock=SpanClock()) for t in range(TOWERS)]
        self.copies = [CopiedGroup(job.groups[DEEP]) for _ in range(TOWERS)]

    def pull(self, tower: int, keys: Keys) -> F32:
        missing = self.copies[tower].without_copy(deep_keys(keys))
        if len(missing):
            self.copies[tower].add(
                missing, self.clients[tower].pull([NO_KEYS, missing], step=0, purpose=Purpose.TRAIN)[1]
            )
        return self.copies[tower].weights(deep_keys(keys))

    def exchange(self, tower: int) -> tuple[DifferencesReply, ...]:
        keys, differences = self.copies[tower].take_differences(self.job.geo_scale)
        replies = self.clients[tower].exchange([NO_KEYS, keys], [NO_ROWS, differences], step=0, dense={})
        for reply in replies:
            self.copies[tower].set(reply.keys[DEEP], reply.rows[DEEP])
        return replies


@dataclass
class Oracle:
    """The rule in words. server: rows by key, as they began until somebody sends differences."""

    scale: np.float32
    first: dict[int, F32]
    server: dict[int, F32] = field(default_factory=dict)
    copies: list[dict[int, F32]] = field(default_factory=lambda: [{} for _ in range(TOWERS)])
    bases: list[dict[int, F32]] = field(default_factory=lambda: [{} for _ in range(TOWERS)])
    touched: list[set[int]] = field(default_factory=lambda: [set() for _ in range(TOWERS)])
    changed: list[set[int]] = field(default_factory=lambda: [set() for _ in range(TOWERS)])
    lag: list[Counter[int]] = field(default_factory=lambda: [Counter() for _ in range(TOWERS)])
    staleness: Counter[int] = field(default_factory=Counter)

    def train(self, tower: int, keys: Keys, gradients: F32) -> None:
        for key, gradient in zip(keys, gradients, strict=True):
            if key not in self.copies[tower]:
                self.copies[tower][key] = self.bases[tower][key] = self.server.setdefault(key, self.first[key])
            if np.isfinite(gradient).all():
                self.copies[tower][key] = self.copies[tower][key] - np.float32(LR) * gradient
                self.touched[tower].add(key)

    def exchange(self, tower: int) -> set[int]:
        for key in self.touched[tower]:
            gained = (self.copies[tower][key] - self.bases[tower][key]) * self.scale
            self.server[key] = self.server[key] + gained
            self.staleness[self.lag[tower][key]] += 1
            for other in range(TOWERS):
                if key in self.copies[other]:
                    self.changed[other].add(key)
                    self.lag[other][key] += other != tower
        self.touched[tower] = set()
        due, self.changed[tower] = self.changed[tower], set()
        for key in due:
            self.copies[tower][key] = self.bases[tower][key] = self.server[key]
            self.lag[tower][key] = 0
        return due


TRAIN = st.tuples(st.just("train"), st.integers(0, TOWERS - 1), st.lists(st.integers(0, KEYS - 1), unique=True))
EXCHANGE = st.tuples(st.just("exchange"), st.integers(0, TOWERS - 1), st.just(Keys()))


@settings(max_examples=80, deadline=None)
@given(st.lists(st.one_of(TRAIN, EXCHANGE), max_size=24), st.integers(1, 2), st.sampled_from([1.0, 1 / 3]), st.data())
def test_towers_and_servers_hold_what_the_rule_says(
    actions: list[tuple[str, int, Keys]], servers: int, scale: float, data: st.DataObject
) -> None:
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    towers = Towers(geo_job(servers=servers, scale=scale))
    all_keys = list(range(KEYS))
    first = RowServer(replace(towers.job, servers=RoleSpec()))
    values = ShardedRowClient(towers.job, tower=0, servers=[LocalServer(first)], clock=SpanClock()).pull(
        [NO_KEYS, deep_keys(all_keys)], step=0, purpose=Purpose.TRAIN
    )[DEEP]
    oracle = Oracle(np.float32(scale), dict(zip(all_keys, values, strict=True)))
    for kind, tower, keys in [*actions, *(("exchange", tower, Keys()) for tower in range(TOWERS))]:
        if kind == "train":
            gradients = random.normal(size=(len(keys), 4)).astype(np.float32)
            gradients[random.random(len(keys)) < 0.1, 2] = np.nan
            towers.pull(tower, keys)
            towers.copies[tower].update(deep_keys(keys), gradients)
            oracle.train(tower, keys, gradients)
        else:
            replies = towers.exchange(tower)
            sent = [key for reply in replies for key in reply.keys[DEEP].keys.tolist()]
            assert len(sent) == len(set(sent))
            assert set(sent) == oracle.exchange(tower)
        held = list(oracle.copies[tower])
        want = np.array([oracle.copies[tower][key] for key in held], np.float32).reshape(len(held), 4)
        np.testing.assert_array_equal(towers.copies[tower].weights(deep_keys(held)), want)
    held = list(oracle.server)
    scored = towers.clients[0].pull([NO_KEYS, deep_keys(held)], step=0, purpose=Purpose.SCORE)[DEEP]
    np.testing.assert_array_equal(scored, np.array([oracle.server[k] for k in held], np.float32).reshape(len(held), 4))
    counts = merged(server.state().staleness for server in towers.servers).counts
    assert {value: count for value, count in enumerate(counts) if count} == dict(+oracle.staleness)


def test_only_what_changed_is_sent_back() -> None:
    towers = Towers(geo_job(servers=1, scale=1.0))
    for tower in range(2):
        towers.pull(tower, [0, 1, 2])
    towers.copies[0].update(deep_keys([1]), np.ones((1, 4), np.float32))
    assert [reply.keys[DEEP].keys.tolist() for reply in towers.exchange(0)] == [[1]]
    assert [reply.keys[DEEP].keys.tolist() for reply in towers.exchange(1)] == [[1]]
    assert [reply.keys[DEEP].keys.tolist() for reply in towers.exchange(1)] == [[]]


def test_differences_that_are_not_finite_are_named_and_the_copy_goes_back() -> None:
    towers = Towers(geo_job(servers=1, scale=1.0))
    before = towers.pull(0, [3, 4]).copy()
    towers.copies[0].update(deep_keys([3, 4]), np.ones((2, 4), np.float32))
    towers.copies[0]._rows[towers.copies[0]._numbers.find(deep_keys([3])), 1] = np.inf
    (reply,) = towers.exchange(0)
    assert reply.rejected == 1
    assert [(example.table, example.key) for example in reply.examples] == [("deep/user", 3)]
    np.testing.assert_array_equal(towers.copies[0].weights(deep_keys([3])), before[:1])


def test_a_row_nobody_pulled_cannot_be_sent() -> None:
    towers = Towers(geo_job(servers=1, scale=1.0))
    towers.pull(1, [5])
    with pytest.raises(ProtocolError, match=r"tower 0 sends differences of a row .* it never pulled"):
        towers.clients[0].exchange([NO_KEYS, deep_keys([5])], [NO_ROWS, np.ones((1, 4), np.float32)], step=0, dense={})


def test_a_repeated_exchange_is_refused() -> None:
    towers = Towers(geo_job(servers=1, scale=1.0))
    towers.exchange(0)
    towers.clients[0]._exchanges = 0
    with pytest.raises(ProtocolError, match="exchange number 0 of tower 0 came, expected number 1"):
        towers.exchange(0)


def test_gradients_have_no_place_in_geo_nor_differences_elsewhere() -> None:
    job = geo_job(servers=1, scale=1.0)
    client = Towers(job).clients[0]
    with pytest.raises(ProtocolError, match="in mode geo it sends differences"):
        client.push([NO_KEYS, deep_keys([1])], [NO_ROWS, np.ones((1, 4), np.float32)], step=0)
    other = Towers(replace(job, mode=Mode.ASYNC))
    with pytest.raises(ProtocolError, match="sent differences in mode async"):
        other.exchange(0)
