"""Modes that give up exactness, with several towers as threads: what still must hold, and where they equal `sync`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from hetero.exchange.staleness import merged
from hetero.loops import modes
from hetero.loops.protocols import Phase
from hetero.loops.run import DataPass, TrainOutcome
from hetero.records import GroupSpec, JobSpec, Mode, RoleSpec, RowOptimizer, RowOptimizerSpec
from tests.support.jobs import data_spec, small_job, write_data
from tests.support.runs import alive, finish
from tests.support.thread_towers import TrainedTowers, train_towers

STALENESS = {Mode.BOUNDED: 4, Mode.GEO: 3}
OTHERS = [Mode.BOUNDED, Mode.ASYNC, Mode.GEO]


def without_ftrl(group: GroupSpec) -> GroupSpec:
    """`geo` cannot train tables of FTRL."""
    return replace(group, optimizer=RowOptimizerSpec(kind=RowOptimizer.ADAGRAD, lr=0.05))


def job_of(folder: Path, mode: Mode, *, rows: int = 20 * 64 + 17, towers: int = 1, epochs: int = 1) -> JobSpec:
    data = data_spec(write_data(folder / "data.parquet", rows=rows, seed=5), shuffle=True)
    job = small_job(data, towers=RoleSpec(count=towers), servers=RoleSpec(count=2), epochs=epochs)
    groups = tuple(without_ftrl(group) for group in job.groups)
    return replace(job, groups=groups, mode=mode, staleness=STALENESS.get(mode, 0))


def outcome_of(trained: TrainedTowers) -> TrainOutcome:
    return TrainOutcome.of(trained.logs, cpu_s={})


def test_bounded_with_one_tower_and_one_permit_is_sync_to_the_bit(tmp_path: Path) -> None:
    sync = train_towers(job_of(tmp_path, Mode.SYNC)).logs[0]
    bounded = train_towers(replace(job_of(tmp_path, Mode.BOUNDED), staleness=1)).logs[0]
    np.testing.assert_array_equal(bounded.losses, sync.losses)


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "adagrad", "adamw"])
def test_async_with_one_tower_that_does_not_pull_ahead_is_sync_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optimizer: str
) -> None:
    """So the servers' dense optimizer is the towers'."""
    monkeypatch.setattr(modes, "ASYNC_PERMITS", 1)
    sync, own = (job_of(tmp_path, mode) for mode in (Mode.SYNC, Mode.ASYNC))
    tower = replace(sync.tower, optimizer=optimizer, weight_decay=0.01)
    losses = [train_towers(replace(job, tower=tower)).logs[0].losses for job in (sync, own)]
    np.testing.assert_array_equal(losses[1], losses[0])


def test_geo_with_one_tower_is_sync_to_the_bit_until_it_exchanges(tmp_path: Path) -> None:
    sync = train_towers(job_of(tmp_path, Mode.SYNC)).logs[0]
    for steps in (1, 3, 1000):
        own = train_towers(replace(job_of(tmp_path, Mode.GEO), staleness=steps)).logs[0]
        exact = min(steps, len(sync.losses))
        np.testing.assert_array_equal(own.losses[:exact], sync.losses[:exact])
        np.testing.assert_allclose(own.losses, sync.losses, rtol=1e-4)


@pytest.mark.parametrize("mode", OTHERS)
@pytest.mark.parametrize("towers", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_several_towers_train_every_row_and_learn(tmp_path: Path, mode: Mode, towers: int) -> None:
    rows = 20 * 64 + 1  # the last batch holds one row: all towers but one have none
    job = job_of(tmp_path, mode, rows=rows, towers=towers, epochs=6)
    trained = train_towers(job)
    outcome = outcome_of(trained)
    assert outcome.rows == 6 * rows
    assert len(outcome.losses) == 6 * 21
    assert [len(log.losses) for log in trained.logs] == [6 * 21] * towers
    assert np.mean(outcome.losses[-20:]) < np.mean(outcome.losses[:20]) - 0.02
    staleness = merged(server.state().staleness for server in trained.servers).record()
    assert staleness["max"] <= (4 if mode is Mode.BOUNDED else 6 * 21 * towers)  # type: ignore[operator]


@pytest.mark.parametrize("mode", [Mode.ASYNC, Mode.GEO])
def test_towers_hold_what_the_servers_hold_once_all_are_done(tmp_path: Path, mode: Mode) -> None:
    trained = train_towers(job_of(tmp_path, mode, towers=2))
    before = [values_of(tower.module) for tower in trained.towers]
    for tower in trained.towers:
        tower.dense.refresh()
    after = [values_of(tower.module) for tower in trained.towers]
    np.testing.assert_array_equal(after[0], after[1])
    assert any((was != now).any() for was, now in zip(before, after, strict=True))


def values_of(module: nn.Module) -> np.ndarray:
    return torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()]).numpy()


class Poisoned(nn.Module):
    """Its logits are not finite in the third step."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(()))
        self.calls = 0

    def forward(self, dense: torch.Tensor, embeddings: dict[str, torch.Tensor]) -> torch.Tensor:
        self.calls += 1
        logits = embeddings["user"].sum(1) + dense.sum(1) * 0.01 + self.bias
        return logits * float("nan") if self.calls == 3 else logits


@pytest.mark.parametrize("mode", OTHERS)
@pytest.mark.parametrize("towers", [1, 2])
def test_a_passing_nan_is_rejected_counted_named_and_survived(tmp_path: Path, mode: Mode, towers: int) -> None:
    trained = train_towers(job_of(tmp_path, mode, towers=towers), make=Poisoned)
    outcome = outcome_of(trained)
    assert np.isnan(outcome.losses).nonzero()[0].tolist() == [2]
    assert outcome.rejected_rows > 0
    assert {(e.step, e.table) for e in outcome.rejected_examples} == {(2, "deep/user")}
    assert outcome.rejected_dense == {"bias": 1 if mode is Mode.BOUNDED else towers}
    for tower in trained.towers:
        tower.dense.refresh()
        assert np.isfinite(values_of(tower.module)).all()


class Exploding(nn.Module):
    """Its bias is beyond float32 after the last step, though every gradient is finite."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(()))
        self.calls = 0

    def forward(self, dense: torch.Tensor, embeddings: dict[str, torch.Tensor]) -> torch.Tensor:
        self.calls += 1
        logits = embeddings["user"].sum(1) + 0.01 * torch.tanh(self.bias)
        if self.calls == 21:
            self.bias.data.fill_(float("inf"))
        return logits


@pytest.mark.parametrize("steps", [3, 1000])
def test_a_parameter_beyond_float32_is_named_and_goes_back_to_what_the_server_holds(tmp_path: Path, steps: int) -> None:
    job = replace(job_of(tmp_path, Mode.GEO), staleness=steps)
    trained = train_towers(job, make=Exploding)
    assert len(trained.logs[0].losses) == 21
    assert trained.logs[0].rejected_dense == {"bias": 1}
    trained.towers[0].dense.refresh()
    assert np.isfinite(values_of(trained.towers[0].module)).all()


@pytest.mark.parametrize("mode", OTHERS)
def test_a_model_written_and_read_scores_alike(tmp_path: Path, mode: Mode) -> None:
    job = job_of(tmp_path, mode)
    data = DataPass.open(job.train, phase=Phase.TRAIN)
    rows = DataPass.open(job.train, phase=Phase.TEST)
    with alive(job, in_process=True) as run:
        run.train(data, watch=lambda _: None)
        run.save(tmp_path / "model")
        scored = run.score(rows, watch=lambda _: None).predictions
    with alive(job, in_process=True) as run:
        run.load(tmp_path / "model")
        again = run.score(rows, watch=lambda _: None).predictions
        np.testing.assert_array_equal(again, scored)
        trained_on = run.train(data, watch=lambda _: None)
    assert trained_on.losses[0] < 0.99 * finish(job, in_process=True).outcome.losses[0]


@pytest.mark.parametrize("mode", OTHERS)
def test_training_goes_on_from_a_model_loaded_into_the_same_run(tmp_path: Path, mode: Mode) -> None:
    job = job_of(tmp_path, mode)
    data = DataPass.open(job.train, phase=Phase.TRAIN)
    with alive(job, in_process=True) as run:
        first = len(run.train(data, watch=lambda _: None).losses)
        run.save(tmp_path / "model")
        once = run.train(data, watch=lambda _: None).losses[first:]
        run.load(tmp_path / "model")
        again = run.train(data, watch=lambda _: None).losses[2 * first :]
    np.testing.assert_allclose(again[0], once[0], rtol=1e-5)
    np.testing.assert_allclose(again, once, rtol=0.1)  # what loading leaves behind is the dense optimizer's state


@pytest.mark.parametrize("mode", [Mode.SYNC, *OTHERS])
def test_bytes_are_counted_by_path(tmp_path: Path, mode: Mode) -> None:
    trained = train_towers(job_of(tmp_path, mode, towers=2))
    floats = sum(parameter.numel() for parameter in trained.towers[0].module.parameters())
    steps = len(trained.logs[0].losses)
    for traffic in trained.traffic:
        assert traffic.pulled > 0
        assert traffic.pushed > 0
        assert traffic.dense_summed == (4 * floats * steps if mode.joint else 0)
        sent = {Mode.ASYNC: steps, Mode.GEO: steps / 3}.get(mode, 0)
        assert traffic.dense_pushed == 4 * floats * sent
        assert traffic.dense_pulled == traffic.dense_pushed


def test_bytes_of_pushed_rows_are_keys_and_gradients(tmp_path: Path) -> None:
    """A row of the wide group is 2 + 8 bytes of table and key and 4 of value, of the deep group 16 of value."""
    job = replace(job_of(tmp_path, Mode.BOUNDED), max_steps=1)
    run = finish(job, in_process=True)
    rows = run.report.rows
    wide = sum(count for table, count in rows.items() if table.startswith("wide/"))
    deep = sum(count for table, count in rows.items() if table.startswith("deep/"))
    assert run.report.traffic["pushed"] == wide * (10 + 4) + deep * (10 + 16)
    assert run.report.traffic["pulled"] == run.report.traffic["pushed"]


@pytest.mark.parametrize("towers", [1, 2])
def test_towers_of_a_window_swap_rows_and_gradients(tmp_path: Path, towers: int) -> None:
    """A row sent is 4 or 16 bytes, and its gradient comes back: together as many bytes again."""
    trained = train_towers(replace(job_of(tmp_path, Mode.SYNC, towers=towers), window=4))
    swapped = sum(traffic.swapped for traffic in trained.traffic)
    assert swapped % 8 == 0
    assert (swapped > 0) == (towers > 1)
