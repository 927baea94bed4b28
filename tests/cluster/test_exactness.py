"""One tower in `sync`: the same bits however the run is laid out. Several towers: the joint batch to 1e-5."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hetero.records import JobSpec, Precision, RoleSpec
from tests.support.jobs import data_spec, small_job, write_data
from tests.support.runs import Finished, finish

ROWS = (1043, 1044, 1126)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> JobSpec:
    """51 steps, the last one of 13 rows: it divides neither by the batch size nor by two towers. In fp32: of bf16,
    which `auto` takes on some machines, nothing is claimed for several towers."""
    folder: Path = tmp_path_factory.mktemp("data")
    files = [write_data(folder / f"{n}.parquet", rows=rows, seed=n) for n, rows in enumerate(ROWS)]
    return small_job(data_spec(*files, shuffle=True), precision=Precision.FP32)


@pytest.fixture(scope="module")
def in_process(job: JobSpec) -> Finished:
    return finish(job, in_process=True, score=True)


def test_the_last_batch_does_not_divide(job: JobSpec, in_process: Finished) -> None:
    assert in_process.outcome.rows == sum(ROWS)
    assert sum(ROWS) % job.batch_size % 2 == 1
    assert len(in_process.outcome.losses) == 51


@pytest.mark.parametrize(("servers", "readers"), [pytest.param(1, 1, marks=pytest.mark.slow), (3, 2)])
def test_any_layout_gives_the_bits_of_one_process(
    job: JobSpec, in_process: Finished, servers: int, readers: int
) -> None:
    laid_out = replace(job, window=4, servers=RoleSpec(count=servers), readers=RoleSpec(count=readers))
    run = finish(laid_out, in_process=False, score=True)
    np.testing.assert_array_equal(run.outcome.losses, in_process.outcome.losses)
    assert run.scores is not None
    assert in_process.scores is not None
    np.testing.assert_array_equal(run.scores.predictions, in_process.scores.predictions)
    np.testing.assert_array_equal(run.scores.labels, in_process.scores.labels)
    assert run.report.rows == in_process.report.rows


@pytest.mark.parametrize(("towers", "window"), [pytest.param(1, 7, marks=pytest.mark.slow), (2, 7)])
def test_leased_windows_on_ray(job: JobSpec, in_process: Finished, towers: int, window: int) -> None:
    laid_out = replace(
        job, window=window, servers=RoleSpec(count=2), readers=RoleSpec(count=2), towers=RoleSpec(count=towers)
    )
    run = finish(laid_out, in_process=False)
    if towers == 1:
        np.testing.assert_array_equal(run.outcome.losses, in_process.outcome.losses)
    np.testing.assert_allclose(run.outcome.losses, in_process.outcome.losses, rtol=1e-5)
    assert run.report.rows == in_process.report.rows


@pytest.mark.slow
@pytest.mark.parametrize("towers", [1, 2])
def test_leased_windows_on_a_device_on_ray(job: JobSpec, in_process: Finished, towers: int) -> None:
    """Rows are torch tensors of the towers, brought and sent by a thread of its own."""
    laid_out = replace(job, window=3, servers=RoleSpec(count=2), towers=RoleSpec(count=towers), device="cpu")
    run = finish(laid_out, in_process=False)
    if towers == 1:
        np.testing.assert_array_equal(run.outcome.losses, in_process.outcome.losses)
    np.testing.assert_allclose(run.outcome.losses, in_process.outcome.losses, rtol=1e-5)
    assert run.report.rows == in_process.report.rows
    assert [tower.device for tower in run.report.towers] == ["cpu, rows updated by torch operations"] * towers
    assert run.report.traffic["to_device"] > 0


@pytest.mark.slow
def test_two_towers_equal_one_of_the_joint_batch(job: JobSpec, in_process: Finished) -> None:
    run = finish(replace(job, towers=RoleSpec(count=2), servers=RoleSpec(count=2)), in_process=False, score=True)
    np.testing.assert_allclose(run.outcome.losses, in_process.outcome.losses, rtol=1e-5)
    assert run.outcome.rows == in_process.outcome.rows
    assert run.scores is not None
    assert len(run.scores.predictions) == in_process.outcome.rows


@pytest.mark.slow
def test_a_tower_without_rows_in_a_batch_does_not_hang(tmp_path: Path) -> None:
    files = [write_data(tmp_path / "a.parquet", rows=65, seed=0)]
    job = small_job(data_spec(*files), batch_size=64)
    one = finish(job, in_process=True)
    two = finish(replace(job, towers=RoleSpec(count=2)), in_process=False)
    assert len(two.outcome.losses) == 2
    np.testing.assert_allclose(two.outcome.losses, one.outcome.losses, rtol=1e-5)
