"""What of a step's sparse side goes on while the next step begins, and what must not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from torch import Tensor

from hetero.exchange.client import LocalServer, PushSummary, ShardedRowClient
from hetero.exchange.server import RowServer
from hetero.exchange.sources import PulledRows
from hetero.loops.batches import InlineStream
from hetero.loops.modes import dense_side
from hetero.loops.sparse_lane import SparseLane, StepLane, ThreadLane
from hetero.loops.tower import Tower
from hetero.observe.spans import SpanClock
from hetero.parallel.group import SoleTower
from hetero.records import Batch, BatchSpec, JobSpec
from hetero.towers.build import make_tower
from tests.support.joint_jobs import joint_data, joint_job, write_joint_data
from tests.support.thread_towers import own_reading

DEADLINE_S = 20.0


class HeldRows(PulledRows):
    """Rows of a server; gradients wait until they may go, or fail."""

    def __init__(self, client: ShardedRowClient) -> None:
        super().__init__(client, towers=1)
        self.may_go = threading.Event()
        self.fails = False
        self.asked: list[int] = []
        self.given: list[int] = []

    def rows(self, spec: BatchSpec, batch: Batch) -> tuple[Tensor, ...]:
        self.asked.append(spec.step)
        return super().rows(spec, batch)

    def apply(self, spec: BatchSpec, batch: Batch, gradients: tuple[Tensor, ...]) -> PushSummary:
        assert self.may_go.wait(DEADLINE_S)
        if self.fails:
            raise ValueError("the server is gone")
        self.given.append(spec.step)
        return super().apply(spec, batch, gradients)


@pytest.fixture
def job(tmp_path: Path) -> JobSpec:
    return joint_job(joint_data(write_joint_data(tmp_path / "0.parquet", rows=640, seed=0)))


def made(job: JobSpec, lane: SparseLane) -> tuple[Tower, HeldRows, Iterator[tuple[BatchSpec, Batch]]]:
    servers = [LocalServer(RowServer(job))]
    client = ShardedRowClient(job, tower=0, servers=servers, clock=lane.clock)
    module, clock = make_tower(job), SpanClock()
    dense = dense_side(job, tower=0, module=module, client=client, servers=servers, group=SoleTower(), clock=clock)
    tower = Tower(job, module=module, client=client, dense=dense, clock=clock, lane=lane)
    sequencer, readers = own_reading(job)
    return tower, HeldRows(client), iter(InlineStream(job, sequencer, readers, tower=0))


def test_a_step_ends_before_its_rows_are_updated_and_the_next_one_waits_for_them(job: JobSpec) -> None:
    tower, source, batches = made(job, ThreadLane())
    tower.train_step(*next(batches), source)
    assert (source.asked, source.given) == ([0], [])
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(tower.train_step, *next(batches), source)
        assert not second.done()
        assert source.asked == [0]
        source.may_go.set()
        second.result(DEADLINE_S)
    assert source.asked == [0, 1]
    tower.deliver(source, steps=2)
    assert source.given == [0, 1]


@pytest.mark.parametrize("what", ["deliver", "let_go", "finish"])
def test_what_servers_are_to_hold_they_hold(job: JobSpec, what: str) -> None:
    tower, source, batches = made(job, ThreadLane())
    tower.train_step(*next(batches), source)
    settle = {
        "deliver": lambda: tower.deliver(source, steps=1),
        "let_go": lambda: tower.let_go(source, steps=1),
        "finish": lambda: tower.finish(source),
    }[what]
    with ThreadPoolExecutor(1) as pool:
        settling = pool.submit(settle)
        assert not settling.done()
        source.may_go.set()
        settling.result(DEADLINE_S)
    assert source.given == [0]


def test_after_gradients_that_failed_no_row_is_asked_for(job: JobSpec) -> None:
    tower, source, batches = made(job, ThreadLane())
    source.fails = True
    source.may_go.set()
    tower.train_step(*next(batches), source)
    with pytest.raises(ValueError, match="the server is gone"):
        tower.train_step(*next(batches), source)
    assert source.asked == [0]


def test_in_the_steps_own_thread_a_step_ends_with_its_rows_updated(job: JobSpec) -> None:
    tower, source, batches = made(job, StepLane(SpanClock()))
    source.may_go.set()
    tower.train_step(*next(batches), source)
    assert source.given == [0]
