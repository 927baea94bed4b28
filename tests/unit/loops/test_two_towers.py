"""Several towers over shared servers, as threads of this process, equal one tower of the joint batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from hetero.errors import NumericsError, TowerError
from hetero.loops.results import StepLog
from hetero.records import JobSpec, RoleSpec
from tests.support.jobs import data_spec, small_job, write_data
from tests.support.joint_jobs import joint_data, joint_job, write_joint_data
from tests.support.thread_towers import train_towers


def logs_of(job: JobSpec, *, make: Callable[[], nn.Module] | None = None) -> list[StepLog]:
    return train_towers(job, make=make).logs


def job_of(folder: Path, *, rows: int, towers: int, servers: int = 2) -> JobSpec:
    data = data_spec(write_data(folder / "data.parquet", rows=rows, seed=5), shuffle=True)
    return small_job(data, towers=RoleSpec(count=towers), servers=RoleSpec(count=servers))


@pytest.mark.parametrize("towers", [2, 3])
def test_several_towers_equal_one_of_the_joint_batch(tmp_path: Path, towers: int) -> None:
    rows = 50 * 64 + 17
    one = logs_of(job_of(tmp_path, rows=rows, towers=1))[0]
    several = logs_of(job_of(tmp_path, rows=rows, towers=towers))
    assert len(one.losses) == 51
    assert sum(log.rows for log in several) == rows
    for log in several:
        np.testing.assert_allclose(log.losses, one.losses, rtol=1e-5)


@pytest.mark.parametrize("window", [0, 4])
def test_several_joint_towers_equal_one_of_the_joint_batch(tmp_path: Path, window: int) -> None:
    """Both halves, several labels, a history; what a masked model hides is drawn by each tower for itself."""
    job = joint_job(joint_data(write_joint_data(tmp_path / "data.parquet", rows=10 * 64 + 17, seed=5)), window=window)
    job = replace(job, tower=replace(job.tower, args={**job.tower.args, "masked": None}))
    one = logs_of(job)[0]
    for log in logs_of(replace(job, towers=RoleSpec(count=2))):
        np.testing.assert_allclose(log.losses, one.losses, rtol=1e-5)


@pytest.mark.parametrize("window", [1, 4, 16])
def test_several_towers_over_windows_give_the_bits_of_pulling(tmp_path: Path, window: int) -> None:
    job = job_of(tmp_path, rows=20 * 64 + 17, towers=3)
    pulled = logs_of(job)
    leased = logs_of(replace(job, window=window))
    for rank in range(3):
        np.testing.assert_array_equal(leased[rank].losses, pulled[rank].losses)


def test_the_loss_falls(tmp_path: Path) -> None:
    job = replace(job_of(tmp_path, rows=3200, towers=1), epochs=4)
    losses = logs_of(job)[0].losses
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
    log = logs_of(job, make=lambda: Poisoned(1))[0]
    assert np.isnan(log.losses).nonzero()[0].tolist() == [2]
    assert log.rejected_rows > 0
    assert log.rejected_examples[0].step == 2
    assert log.rejected_examples[0].table == "deep/user"
    assert log.rejected_dense == {"bias": 1}
    assert np.isfinite(log.losses[3:]).all()


def test_a_lasting_nan_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(NumericsError, match="has not been finite for 10 steps"):
        logs_of(job_of(tmp_path, rows=64 * 20, towers=1), make=lambda: Poisoned(1000))


class WithBatchNorm(Poisoned):
    """Couples the rows of a batch."""

    def __init__(self) -> None:
        super().__init__(0)
        self.norm = nn.BatchNorm1d(2)


def test_batch_norm_is_refused_with_several_towers(tmp_path: Path) -> None:
    with pytest.raises(TowerError, match=r"norm .*set roles.towers to 1"):
        logs_of(job_of(tmp_path, rows=128, towers=2), make=WithBatchNorm)


class TwoLogits(Poisoned):
    """Returns two logits a row."""

    def forward(self, dense: torch.Tensor, embeddings: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.stack([super().forward(dense, embeddings)] * 2, 1)


def test_a_tower_of_the_wrong_shape_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(TowerError, match=r"\[64, 2\]"):
        logs_of(job_of(tmp_path, rows=128, towers=1), make=lambda: TwoLogits(0))
