"""Training with memory for a part of the rows: the same losses and predictions, bit for bit, as with memory for all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hetero.embedding.store import RowStore
from hetero.records import DiskIo, JobSpec, Mode, StorageSpec
from tests.support.jobs import data_spec, small_job, write_data
from tests.support.runs import finish

ROWS = 16_000
# Two groups, of which each keeps 0.9 MB of pages and buffers beside its rows.
MEMORY = 3_180_000


def job_of(folder: Path, **changes: object) -> JobSpec:
    """Rows of which most have a user and an item of their own: some 48,000 rows in the tables."""
    path = write_data(folder / "data.parquet", rows=ROWS, seed=1, row_group=1000)
    random = np.random.default_rng(2)
    table = pq.read_table(path)
    users = pa.array([f"u{value}" for value in random.zipf(1.1, ROWS) % 10**6])
    items = pa.array((random.zipf(1.1, ROWS) % 10**6).astype(np.int64))
    table = table.set_column(0, "user", users).set_column(1, "item", items)
    pq.write_table(table, path, row_group_size=1000)
    return small_job(data_spec(path, shuffle=True), batch_size=256, epochs=2, **changes)


def tiered(job: JobSpec, folder: Path) -> JobSpec:
    storage = StorageSpec(memory_bytes=MEMORY, directories=(str(folder / "ssd"),), ssd_bytes=1 << 28, io=DiskIo.CACHED)
    return replace(job, storage=storage)


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
    assert parts.report.tiers["ssd_hits"] > 0


def test_a_saved_model_is_the_same(tmp_path: Path) -> None:
    """Rows of both tiers are in the files, and can be loaded where memory holds all."""
    from hetero.loops.protocols import Phase
    from hetero.loops.run import DataPass
    from tests.support.runs import alive

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


def test_without_budgets_rows_are_in_memory_alone(tmp_path: Path) -> None:
    from hetero.embedding.open_rows import open_rows

    stores = open_rows(small_job(data_spec(tmp_path / "none")))
    assert all(isinstance(store, RowStore) for store in stores)
