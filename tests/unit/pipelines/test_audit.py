"""Updates of rows, counted from Adam's state; what one model lacks and has beyond another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hetero.optim.definition import first_state, update_reference
from hetero.records import RowOptimizer, RowOptimizerSpec
from pipelines.audit import Updates, adam_steps, difference, updates_of
from pipelines.job import load_job
from pipelines.progress import Silent
from tests.support.cli import hetero_here, write_job
from tests.support.jobs import write_data

ADAM = {"name": "adam", "lr": 0.001}


@pytest.mark.parametrize("steps", [0, 1, 7, 300, 2000])
def test_steps_of_adam_are_read_from_the_powers_of_its_betas(steps: int) -> None:
    spec = RowOptimizerSpec(kind=RowOptimizer.ADAM, lr=0.01)
    weights = np.ones((3, 2), np.float32)
    rows = np.concatenate([weights, first_state(spec, weights)], axis=1)
    for _ in range(steps):
        rows[1:] = update_reference(spec, rows[1:], np.zeros((2, 2), np.float32))
    assert adam_steps(rows, spec, dim=2).tolist() == [0, steps, steps]


def updates(*counts: tuple[int, int, int]) -> Updates:
    rows = np.array([(table, key) for table, key, _ in counts], np.dtype([("table", np.uint16), ("key", np.uint64)]))
    return Updates(rows, np.array([count for *_, count in counts], np.int64))


def test_what_is_lost_and_what_came_twice() -> None:
    base = updates((0, 1, 3), (0, 2, 1), (1, 2, 5))
    assert difference(base, base) == (0, 0)
    assert difference(base, updates((0, 1, 3), (1, 2, 7), (2, 9, 4))) == (1, 6)
    assert difference(base, updates()) == (9, 0)


def drilled_job(folder: Path, **optimizer: object) -> Path:
    write_data(folder / "train.parquet", rows=300, seed=1)
    write_data(folder / "test.parquet", rows=50, seed=2)
    tables = [{"name": "wide", "dim": 1, "optimizer": optimizer}, {"name": "deep", "dim": 4}]
    return write_job(folder / "job.yaml", tables=tables, train={"batch_size": 50, "epochs": 2})


def test_a_models_rows_are_counted_where_there_is_adam(tmp_path: Path) -> None:
    job = load_job(drilled_job(tmp_path, **ADAM))
    job.fit(run_folder=tmp_path / "run", in_process=True, progress=Silent())
    counted = updates_of(tmp_path / "run")
    assert counted is not None
    assert counted.counts.min() >= 2  # of two passes
    assert counted.counts.max() <= 12  # a key is updated once a step
    plain = load_job(drilled_job(tmp_path, name="sgd"))
    plain.fit(run_folder=tmp_path / "plain", in_process=True, progress=Silent())
    assert updates_of(tmp_path / "plain") is None


def test_a_step_that_the_run_does_not_come_to_and_a_deep_job_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    drilled_job(tmp_path, **ADAM)
    late = hetero_here("drill", "job.yaml", "--step", "12", "--json")
    assert late.code == 2
    assert "--step 12: the run has 12 steps" in late.json["error"]["message"]
    (tmp_path / "deep.yaml").write_text("name: deep\ntransformer: {layers: 1}\n")
    deep = hetero_here("drill", "deep.yaml", "--json")
    assert deep.code == 2
    assert "only wide jobs are drilled" in deep.json["error"]["message"]
