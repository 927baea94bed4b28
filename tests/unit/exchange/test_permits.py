"""Pulls ahead within permits, over every kind of interleaving: staleness as counted by hand, never above the bound."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.errors import JobError, ProtocolError
from hetero.exchange.client import ShardedRowClient
from hetero.exchange.permits import Permits, PullsAhead, permits_of
from hetero.exchange.server import RowServer
from hetero.exchange.staleness import merged
from hetero.observe.spans import SpanClock
from hetero.records import START, Bags, Batch, BatchSpec, GroupBatch, JobSpec, KeySet, Mode, RoleSpec
from tests.support.interleaving import Interleaving, Message
from tests.support.row_client import contract_job

Choose = Callable[[Sequence[Message]], Message]
NO_BAGS = Bags(np.empty(0, np.int32))


class GivenBatches:
    """A stream of batches of these keys: per step, the keys of both groups."""

    def __init__(self, steps: Sequence[Sequence[int]], *, tower: int) -> None:
        self._steps = steps
        self._tower = tower

    def __iter__(self):  # type: ignore[no-untyped-def]
        for step, keys in enumerate(self._steps):
            values = np.array(keys, np.uint64)
            groups = (KeySet(np.full(len(keys), table, np.uint16), values) for table in (1, 2))
            yield (
                BatchSpec(step=step, tower=self._tower, pieces=(), weight_sum=1.0, after=START),
                Batch(
                    labels=np.empty(0, np.float32),
                    weights=None,
                    dense=np.empty((0, 0), np.float32),
                    groups=tuple(GroupBatch(unique, NO_BAGS) for unique in groups),
                    gauc_ids=None,
                ),
            )

    def close(self) -> None:
        """Nothing runs in the background."""


def job_of(*, towers: int, servers: int, staleness: int, mode: Mode = Mode.BOUNDED) -> JobSpec:
    job = contract_job(servers=servers)
    return replace(job, towers=RoleSpec(count=towers), mode=mode, staleness=staleness)


def trained(
    job: JobSpec, batches: Sequence[Sequence[Sequence[int]]], *, permits: int, choose: Choose
) -> tuple[Interleaving, tuple[int, ...]]:
    """Train towers on batches[tower][step]; the schedule, and the servers' counts of staleness."""
    servers = [RowServer(job) for _ in range(job.servers.count)]
    schedule = Interleaving(servers, choose=choose)
    joint = job.mode is Mode.BOUNDED and job.towers.count > 1

    def tower(number: int) -> Callable[[], None]:
        def run() -> None:
            client = ShardedRowClient(job, tower=number, servers=schedule.handles(number), clock=SpanClock())
            stream = GivenBatches(batches[number], tower=number)
            ahead = PullsAhead(client, stream, permits=Permits(permits), joint=joint)
            for spec, batch in ahead:
                rows = ahead.rows(spec, batch)
                ahead.apply(spec, batch, tuple(torch.ones_like(part) for part in rows))
                if joint:
                    schedule.sum_over_towers(number, job.towers.count)
            ahead.finish()

        return run

    schedule.run([tower(number) for number in range(job.towers.count)])
    return schedule, merged(server.state().staleness for server in servers).counts


def counted_by_hand(delivered: Sequence[Message]) -> Counter[int]:
    """For every row of every push: pushes by others to it since the tower's pull for that step."""
    counts: Counter[int] = Counter()
    pulled: dict[tuple[int, int, int], int] = {}
    for at, message in enumerate(delivered):
        call = (message.tower, message.server, message.request.step)
        if message.what == "pull":
            pulled[call] = at
            continue
        between = delivered[pulled[call] : at]
        others = [other for other in between if other.what == "push" and other.tower != message.tower]
        for group in range(2):
            for key in message.request.keys[group].keys.tolist():
                counts[
                    sum(o.server == message.server and key in o.request.keys[group].keys.tolist() for o in others)
                ] += 1
    return counts


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_staleness_is_that_counted_by_hand_and_within_the_bound(data: st.DataObject) -> None:
    towers, servers = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 2))
    staleness = data.draw(st.integers(max(1, towers - 1), 6))
    steps = data.draw(st.integers(1, 8))
    draw = random.Random(data.draw(st.integers(0, 2**32 - 1)))
    weights = [data.draw(st.sampled_from([1.0, 0.02])) for _ in range(towers)]

    def choose(first: Sequence[Message]) -> Message:
        return draw.choices(first, [weights[message.tower] for message in first])[0]

    batches = [[sorted(draw.sample(range(6), draw.randint(0, 4))) for _ in range(steps)] for _ in range(towers)]
    job = job_of(towers=towers, servers=servers, staleness=staleness)
    permits = permits_of(staleness=staleness, towers=towers)
    schedule, counts = trained(job, batches, permits=permits, choose=choose)
    assert len(schedule.delivered) == 2 * towers * servers * steps
    by_hand = counted_by_hand(schedule.delivered)
    assert {value: count for value, count in enumerate(counts) if count} == dict(by_hand)
    assert max(by_hand, default=0) <= staleness


def slow_pushes_of_the_last(first: Sequence[Message]) -> Message:
    """Pulls arrive at once, pushes of the last tower only when nothing else is under way."""
    return min(first, key=lambda message: (message.what == "push", message.tower))


@pytest.mark.parametrize(("towers", "staleness"), [(2, 1), (2, 4), (3, 2), (3, 6)])
def test_a_slow_tower_reaches_the_bound(towers: int, staleness: int) -> None:
    job = job_of(towers=towers, servers=1, staleness=staleness)
    batches = [[[7]] * 10] * towers
    permits = permits_of(staleness=staleness, towers=towers)
    _, counts = trained(job, batches, permits=permits, choose=slow_pushes_of_the_last)
    assert len(counts) - 1 == staleness


def test_one_permit_more_breaks_the_bound_and_the_server_says_so() -> None:
    job = job_of(towers=2, servers=1, staleness=4)
    with pytest.raises(ProtocolError, match=r"pushes for step \d lags by 5 pushes, the job allows 4"):
        trained(job, [[[7]] * 10] * 2, permits=5, choose=slow_pushes_of_the_last)


def test_async_goes_beyond_any_bound() -> None:
    job = job_of(towers=2, servers=1, staleness=0, mode=Mode.ASYNC)
    _, counts = trained(job, [[[7]] * 12] * 2, permits=2, choose=slow_pushes_of_the_last)
    assert len(counts) - 1 == 12


def test_towers_with_unlike_numbers_of_steps_end_in_async() -> None:
    job = job_of(towers=2, servers=2, staleness=0, mode=Mode.ASYNC)
    schedule, _ = trained(job, [[[1, 2]] * 9, [[2, 3]] * 2], permits=2, choose=lambda first: first[-1])
    assert len(schedule.delivered) == 2 * 2 * (9 + 2)


def test_permits_of_many_towers_share_the_bound() -> None:
    assert [permits_of(staleness=4, towers=towers) for towers in (1, 2, 3, 5)] == [4, 4, 2, 1]
    with pytest.raises(JobError, match="4 is too small for 6 towers"):
        permits_of(staleness=4, towers=6)
    with pytest.raises(JobError, match="0 is too small for 1 towers"):
        permits_of(staleness=0, towers=1)


def test_a_permit_comes_back_once() -> None:
    permits = Permits(1)
    assert permits.take()
    assert not permits.take()
    permits.give_back()
    with pytest.raises(ProtocolError, match="nobody took"):
        permits.give_back()
