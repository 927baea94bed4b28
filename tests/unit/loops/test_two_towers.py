"""Several towers over shared servers, as threads of this process, equal one tower of the joint batch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from hetero.errors import NumericsError, TowerError
from hetero.exchange.client import LocalServer, ShardedRowClient
from hetero.exchange.leases import LeasedRows
from hetero.exchange.messages import Pending, PullReply, PullRequest, PushReply, PushRequest
from hetero.exchange.server import RowServer
from hetero.exchange.sources import PulledRows
from hetero.keys.sequencer import Sequencer
from hetero.loops.batches import InlineStream
from hetero.loops.protocols import Phase
from hetero.loops.reader import Reader, make_sequencer
from hetero.loops.results import StepLog
from hetero.loops.run import DataPass
from hetero.loops.tower import Tower, train
from hetero.loops.windows import InlineWindows
from hetero.observe.spans import SpanClock
from hetero.parallel.group import SoleTower, TowerGroup
from hetero.records import JobSpec, RoleSpec
from hetero.towers.build import make_tower
from tests.support.jobs import data_spec, small_job, write_data

DEADLINE_S = 60.0


class Meeting:
    """Where threads leave their values and read the sum, added up in rank order."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size)
        self.values: list[torch.Tensor | None] = [None] * size
        self.parts: list[list[torch.Tensor]] = [[]] * size


class ThreadGroup:
    """A TowerGroup of threads."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.rank = rank
        self.size = meeting.size
        self._meeting = meeting

    def sum_(self, values: torch.Tensor) -> None:
        self._meeting.values[self.rank] = values.clone()
        self._meeting.barrier.wait(timeout=DEADLINE_S)
        values.zero_()
        for part in self._meeting.values:
            assert part is not None
            values += part
        self._meeting.barrier.wait(timeout=DEADLINE_S)

    def exchange(self, rows: torch.Tensor, send: list[int], receive: list[int]) -> torch.Tensor:
        self._meeting.parts[self.rank] = list(torch.split(rows.clone(), send))
        self._meeting.barrier.wait(timeout=DEADLINE_S)
        received = torch.cat([parts[self.rank] for parts in self._meeting.parts])
        assert len(received) == sum(receive)
        self._meeting.barrier.wait(timeout=DEADLINE_S)
        return received

    def close(self) -> None:
        """Nothing to release."""


class SharedServer(LocalServer):
    """A server that takes one call at a time, as an actor does."""

    def __init__(self, server: RowServer) -> None:
        super().__init__(server)
        self._lock = threading.Lock()

    def pull(self, request: PullRequest) -> Pending[PullReply]:
        with self._lock:
            return super().pull(request)

    def push(self, request: PushRequest) -> Pending[PushReply]:
        with self._lock:
            return super().push(request)


def own_reading(job: JobSpec) -> tuple[Sequencer, list[Reader]]:
    """A sequencer and a reader for one tower of a job with several."""
    data = DataPass.open(job.train, phase=Phase.TRAIN)
    sequencer = make_sequencer(
        job, data=job.train, splits=len(data.splits), epochs=job.epochs, max_steps=None, towers=job.towers.count
    )
    return sequencer, [Reader(job, index=0, data=job.train, splits=data.splits)]


def train_towers(job: JobSpec, *, make: Callable[[], nn.Module] | None = None) -> list[StepLog]:
    servers = [SharedServer(RowServer(job)) for _ in range(job.servers.count)]
    meeting = Meeting(job.towers.count)
    modules = [make_tower(job) if make is None else make() for _ in range(job.towers.count)]  # seeds torch: one thread

    def one(rank: int) -> StepLog:
        clock = SpanClock()
        group: TowerGroup = SoleTower() if meeting.size == 1 else ThreadGroup(meeting, rank)
        client = ShardedRowClient(job, tower=rank, servers=servers, clock=clock)
        tower = Tower(job, module=modules[rank], client=client, group=group, clock=clock)
        sequencer, readers = own_reading(job)
        if not job.window:
            stream = InlineStream(job, sequencer, readers, tower=rank)
            pulled = PulledRows(client, towers=meeting.size)
            return train(tower, stream, pulled, after_step=lambda _: None)
        windowed = InlineWindows(job, sequencer, readers, steps=job.window, tower=rank)
        leased = LeasedRows(job, client=client, group=group, windows=windowed.windows(), clock=clock)
        return train(tower, windowed, leased, after_step=lambda _: None)

    with ThreadPoolExecutor(job.towers.count) as pool:
        return list(pool.map(one, range(job.towers.count), timeout=DEADLINE_S))


def job_of(folder: Path, *, rows: int, towers: int, servers: int = 2) -> JobSpec:
    data = data_spec(write_data(folder / "data.parquet", rows=rows, seed=5), shuffle=True)
    return small_job(data, towers=RoleSpec(count=towers), servers=RoleSpec(count=servers))


@pytest.mark.parametrize("towers", [2, 3])
def test_several_towers_equal_one_of_the_joint_batch(tmp_path: Path, towers: int) -> None:
    rows = 50 * 64 + 17
    one = train_towers(job_of(tmp_path, rows=rows, towers=1))[0]
    several = train_towers(job_of(tmp_path, rows=rows, towers=towers))
    assert len(one.losses) == 51
    assert sum(log.rows for log in several) == rows
    for log in several:
        np.testing.assert_allclose(log.losses, one.losses, rtol=1e-5)


@pytest.mark.parametrize("window", [1, 4, 16])
def test_several_towers_over_windows_give_the_bits_of_pulling(tmp_path: Path, window: int) -> None:
    job = job_of(tmp_path, rows=20 * 64 + 17, towers=3)
    pulled = train_towers(job)
    leased = train_towers(replace(job, window=window))
    for rank in range(3):
        np.testing.assert_array_equal(leased[rank].losses, pulled[rank].losses)


def test_the_loss_falls(tmp_path: Path) -> None:
    job = replace(job_of(tmp_path, rows=3200, towers=1), epochs=4)
    losses = train_towers(job)[0].losses
    assert np.mean(losses[-10:]) < np.mean(losses[:10]) - 0.02


class Poisoned(nn.Module):
    """Its logits are not finite from step 2 on, for `steps` steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(()))
        self.calls = 0
        self.steps = steps

    def forward(self, dense: torch.Tensor, embeddings: dict[str, torch.Tensor]) -> torch.Tensor:
        self.calls += 1
        bad = 2 <= self.calls - 1 < 2 + self.steps
        logits = embeddings["user"].sum(1) + dense.sum(1) * 0.01 + self.bias
        return logits * float("nan") if bad else logits


@pytest.mark.parametrize("window", [0, 4])
def test_a_passing_nan_is_rejected_counted_and_survived(tmp_path: Path, window: int) -> None:
    job = replace(job_of(tmp_path, rows=640, towers=1), window=window)
    log = train_towers(job, make=lambda: Poisoned(1))[0]
    assert np.isnan(log.losses).nonzero()[0].tolist() == [2]
    assert log.rejected_rows > 0
    assert log.rejected_examples[0].step == 2
    assert log.rejected_examples[0].table == "deep/user"
    assert log.rejected_dense == {"bias": 1}
    assert np.isfinite(log.losses[3:]).all()


def test_a_lasting_nan_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(NumericsError, match="has not been finite for 10 steps"):
        train_towers(job_of(tmp_path, rows=64 * 20, towers=1), make=lambda: Poisoned(1000))


class WithBatchNorm(Poisoned):
    """Couples the rows of a batch."""

    def __init__(self) -> None:
        super().__init__(0)
        self.norm = nn.BatchNorm1d(2)


def test_batch_norm_is_refused_with_several_towers(tmp_path: Path) -> None:
    with pytest.raises(TowerError, match=r"norm .*set roles.towers to 1"):
        train_towers(job_of(tmp_path, rows=128, towers=2), make=WithBatchNorm)


class TwoLogits(Poisoned):
    """Returns two logits a row."""

    def forward(self, dense: torch.Tensor, embeddings: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.stack([super().forward(dense, embeddings)] * 2, 1)


def test_a_tower_of_the_wrong_shape_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(TowerError, match=r"\[64, 2\]"):
        train_towers(job_of(tmp_path, rows=128, towers=1), make=lambda: TwoLogits(0))
