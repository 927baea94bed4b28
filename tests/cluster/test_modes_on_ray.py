"""Every mode with two towers as actors: it ends, learns, keeps its bound, and its model is what the servers hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from hetero.loops.protocols import Phase
from hetero.loops.run import DataPass
from hetero.records import JobSpec, Mode, RoleSpec, RowOptimizer, RowOptimizerSpec, TowerSpec
from tests.support.jobs import data_spec, small_job, write_data
from tests.support.runs import alive, finish

ROWS = 30 * 64 + 1
TOWER_BITS = (1 << 12) - 1


class SlowSecondTower(nn.Module):
    """Takes far longer in tower 1, which it knows from the seed that every step sets (job seed, step, tower)."""

    def __init__(self, inputs: object, width: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(()))
        self.width = width

    def forward(self, dense: torch.Tensor, embeddings: dict[str, torch.Tensor]) -> torch.Tensor:
        if torch.initial_seed() & TOWER_BITS == 1 and self.training:
            values = torch.ones(self.width, self.width)
            for _ in range(12):
                values = torch.tanh(values @ values / self.width)
        return embeddings["user"].sum(1) + embeddings["item"].sum(1) + dense.sum(1) * 0.01 + self.bias


@pytest.fixture
def job(tmp_path: Path) -> JobSpec:
    data = data_spec(write_data(tmp_path / "data.parquet", rows=ROWS, seed=5), shuffle=True)
    job = small_job(data, towers=RoleSpec(count=2), servers=RoleSpec(count=2), epochs=2)
    adagrad = RowOptimizerSpec(kind=RowOptimizer.ADAGRAD, lr=0.05)
    return replace(job, groups=tuple(replace(group, optimizer=adagrad) for group in job.groups))


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "staleness"), [(Mode.BOUNDED, 3), (Mode.ASYNC, 0), (Mode.GEO, 5)])
def test_two_towers_train_and_their_model_scores_alike(
    job: JobSpec, tmp_path: Path, mode: Mode, staleness: int
) -> None:
    job = replace(job, mode=mode, staleness=staleness, geo_scale=0.5)
    rows = DataPass.open(job.train, phase=Phase.TEST)
    with alive(job, in_process=False) as run:
        data = DataPass.open(job.train, phase=Phase.TRAIN, epochs=job.epochs)
        outcome = run.train(data, watch=lambda _: None)
        scores = run.score(rows, watch=lambda _: None)
        run.save(tmp_path / "model")
        report = run.report()
    assert outcome.rows == 2 * ROWS
    assert len(outcome.losses) == 2 * 31
    assert np.mean(outcome.losses[-11:-1]) < np.mean(outcome.losses[:10])  # the last batch is one row
    counts = report.staleness.counts
    assert counts
    assert mode is not Mode.BOUNDED or len(counts) - 1 <= staleness
    assert report.traffic["pushed"] > 0
    with alive(replace(job, towers=RoleSpec()), in_process=True) as run:
        run.load(tmp_path / "model")
        again = run.score(rows, watch=lambda _: None)
    np.testing.assert_allclose(np.sort(again.predictions), np.sort(scores.predictions), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("mode", [Mode.BOUNDED, Mode.ASYNC])
def test_a_slowed_tower_reaches_the_bound_or_passes_it(job: JobSpec, mode: Mode) -> None:
    tower = TowerSpec(name="tests.cluster.test_modes_on_ray:SlowSecondTower", args={"width": 300})
    staleness = 3 if mode is Mode.BOUNDED else 0
    run = finish(replace(job, tower=tower, mode=mode, staleness=staleness), in_process=False)
    most = len(run.report.staleness.counts) - 1
    assert most == 3 if mode is Mode.BOUNDED else most > 3
