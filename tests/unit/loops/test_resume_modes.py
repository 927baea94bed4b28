"""Resuming in the modes that give up exactness: what is on the servers goes on, their dense optimizer too."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hetero.checkpoint.search import latest_good
from hetero.loops import modes
from hetero.loops.protocols import Phase
from hetero.loops.run import DataPass, TrainOutcome
from hetero.loops.snapshots import SnapshotPlace
from hetero.loops.tower_state import ResumePoint
from hetero.records import JobSpec, Mode, RowOptimizer, RowOptimizerSpec, SnapshotSpec, TowerSpec
from tests.support.jobs import data_spec, small_job, write_data
from tests.support.runs import alive

STEPS, CUT = 20, 9


def job_of(folder: Path, mode: Mode, *, staleness: int = 0, **changes: object) -> JobSpec:
    job = small_job(data_spec(write_data(folder / "data.parquet", rows=STEPS * 32, seed=5), shuffle=True))
    return replace(job, batch_size=32, mode=mode, staleness=staleness, **changes)  # type: ignore[arg-type]


def train(job: JobSpec, folder: Path | None) -> TrainOutcome:
    """To the end, from the newest snapshot in the folder if there is one."""
    with alive(job, in_process=True) as run:
        data = DataPass.open(job.train, phase=Phase.TRAIN, max_steps=job.max_steps)
        found = latest_good(folder, job=job).good if folder is not None and folder.is_dir() else None
        if found is not None:
            run.restore(found)
            data = replace(data, start=ResumePoint.of(found).cursor)
        return run.train(
            data, watch=lambda _: None, snapshots=SnapshotPlace(folder=None if folder is None else str(folder))
        )


def cut_and_resumed(job: JobSpec, folder: Path) -> TrainOutcome:
    first = train(replace(job, max_steps=CUT, snapshots=SnapshotSpec(every_steps=CUT)), folder)
    assert len(first.losses) == CUT
    return train(job, folder)


def test_bounded_with_one_permit_goes_on_to_the_bit(tmp_path: Path) -> None:
    job = job_of(tmp_path, Mode.BOUNDED, staleness=1)
    np.testing.assert_array_equal(cut_and_resumed(job, tmp_path / "s").losses, train(job, None).losses)


@pytest.mark.parametrize(
    "optimizer", ["adam", *(pytest.param(name, marks=pytest.mark.slow) for name in ("adagrad", "adamw", "sgd"))]
)
def test_async_without_pulling_ahead_goes_on_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optimizer: str
) -> None:
    """So the servers' dense optimizer goes on with its state."""
    monkeypatch.setattr(modes, "ASYNC_PERMITS", 1)
    tower = TowerSpec(name="wide_and_deep", args={"hidden": [8]}, lr=0.01, optimizer=optimizer)
    job = job_of(tmp_path, Mode.ASYNC, tower=tower)
    np.testing.assert_array_equal(cut_and_resumed(job, tmp_path / "s").losses, train(job, None).losses)


def test_geo_goes_on_to_the_bit_where_rows_have_no_state(tmp_path: Path) -> None:
    """Cut at an exchange; the state of row optimizers is the tower's, and begins anew."""
    job = job_of(tmp_path, Mode.GEO, staleness=3)
    sgd = RowOptimizerSpec(kind=RowOptimizer.SGD, lr=0.05)
    job = replace(job, groups=tuple(replace(group, optimizer=sgd) for group in job.groups))
    np.testing.assert_array_equal(cut_and_resumed(job, tmp_path / "s").losses, train(job, None).losses)


@pytest.mark.parametrize(("mode", "staleness"), [(Mode.BOUNDED, 4), (Mode.ASYNC, 0)])
def test_a_resumed_tower_goes_on_as_the_one_that_was_cut(tmp_path: Path, mode: Mode, staleness: int) -> None:
    """Nothing is under way at a cut: rows pulled ahead are pulled anew on both sides of it."""
    job = job_of(tmp_path, mode, staleness=staleness, snapshots=SnapshotSpec(every_steps=CUT, keep=9))
    cut = train(job, tmp_path / "s")
    assert len(list((tmp_path / "s").iterdir())) == 2
    shutil.rmtree(tmp_path / "s" / f"step-{2 * CUT:010d}")
    np.testing.assert_array_equal(train(job, tmp_path / "s").losses, cut.losses)


@pytest.mark.parametrize(("mode", "staleness"), [(Mode.BOUNDED, 4), (Mode.ASYNC, 0), (Mode.GEO, 4)])
def test_every_row_is_trained_once_and_the_loss_stays_near(tmp_path: Path, mode: Mode, staleness: int) -> None:
    job = job_of(tmp_path, mode, staleness=staleness)
    adagrad = RowOptimizerSpec(kind=RowOptimizer.ADAGRAD, lr=0.02)
    job = replace(job, groups=tuple(replace(group, optimizer=adagrad) for group in job.groups))
    resumed, whole = cut_and_resumed(job, tmp_path / "s"), train(job, None)
    assert resumed.rows == whole.rows == STEPS * 32
    assert len(resumed.losses) == STEPS
    np.testing.assert_array_equal(resumed.losses[:CUT], whole.losses[:CUT])
    np.testing.assert_allclose(resumed.losses[CUT:], whole.losses[CUT:], atol=0.1)
