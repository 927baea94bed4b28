"""Training with memory for a part of the rows: the same losses and predictions, bit for bit, as with memory for all."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hetero.loops.protocols import Phase
from hetero.loops.run import DataPass
from hetero.records import Mode, SnapshotSpec
from tests.support.runs import alive, finish
from tests.support.tiered_jobs import MEMORY, job_of, tiered
from tests.unit.loops.test_resume import assert_equal, train_on


@pytest.mark.parametrize("window", [pytest.param(0, marks=pytest.mark.slow), 4])
def test_a_small_memory_changes_no_bit(tmp_path: Path, window: int) -> None:
    job = job_of(tmp_path, window=window)
    whole = finish(job, in_process=True, score=True)
    parts = finish(tiered(job, tmp_path), in_process=True, score=True)
    np.testing.assert_array_equal(parts.outcome.losses, whole.outcome.losses)
    assert whole.scores is not None
    assert parts.scores is not None
    np.testing.assert_array_equal(parts.scores.predictions, whole.scores.predictions)
    assert parts.report.rows == whole.report.rows
    tiers = parts.report.tiers
    assert not whole.report.tiers
    assert tiers["memory_rows"] + tiers["ssd_rows"] == sum(whole.report.rows.values())
    assert tiers["memory_rows"] <= 0.5 * sum(whole.report.rows.values())
    assert tiers["ssd_hits"] > 0
    assert tiers["memory_hits"] > 0
    assert tiers["memory_bytes"] <= tiers["memory_budget_bytes"] <= MEMORY
    assert list((tmp_path / "ssd").iterdir()) == []


@pytest.mark.parametrize("mode", [Mode.BOUNDED, Mode.ASYNC, Mode.GEO])
@pytest.mark.slow
def test_nor_in_other_modes_of_one_tower(tmp_path: Path, mode: Mode) -> None:
    job = job_of(tmp_path, mode=mode, staleness=2)
    job = replace(job, groups=(replace(job.groups[0], optimizer=job.groups[1].optimizer), job.groups[1]))
    whole, parts = finish(job, in_process=True), finish(tiered(job, tmp_path), in_process=True)
    np.testing.assert_array_equal(parts.outcome.losses, whole.outcome.losses)
    assert parts.report.tiers["ssd_rows"] > 0
    assert parts.report.tiers["ssd_hits"] > 0 or mode is Mode.GEO  # there a tower pulls a row once, when it is new


@pytest.mark.slow
def test_a_saved_model_is_the_same(tmp_path: Path) -> None:
    """Rows of both tiers are in the files, and can be loaded where memory holds all."""
    job = job_of(tmp_path, window=4, max_steps=40)
    data = DataPass.open(job.train, phase=Phase.TRAIN, epochs=1, max_steps=40)
    test = DataPass.open(job.train, phase=Phase.TEST)
    with alive(tiered(job, tmp_path), in_process=True) as run:
        run.train(data, watch=lambda _: None)
        wanted = run.score(test, watch=lambda _: None).predictions
        run.save(tmp_path / "model")
    for loaded in (job, tiered(job, tmp_path)):
        with alive(loaded, in_process=True) as run:
            run.load(tmp_path / "model")
            np.testing.assert_array_equal(run.score(test, watch=lambda _: None).predictions, wanted)
            assert bool(run.report().tiers) == (loaded.storage is not None)


def test_a_tiered_run_goes_on_from_its_snapshot_as_one_in_memory(tmp_path: Path) -> None:
    """A snapshot in the middle of a window: rows in memory, on SSD and with the tower; then all in memory, and back."""
    job = job_of(tmp_path, window=4, max_steps=24)
    whole = train_on(job, tmp_path / "whole", resumed=False)
    cut = replace(job, snapshots=SnapshotSpec(every_steps=10, every_s=None), max_steps=14)
    train_on(tiered(cut, tmp_path), tmp_path / "parts", resumed=False)
    for goes_on in (job, tiered(job, tmp_path)):
        shutil.copytree(tmp_path / "parts", tmp_path / "again", dirs_exist_ok=True)
        assert_equal(train_on(goes_on, tmp_path / "again", resumed=True), whole)
        shutil.rmtree(tmp_path / "again")
