"""Text and clicks on Ray: one tower gives the bits of one process, two the joint batch to 1e-5."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hetero.records import JobSpec, RoleSpec
from hetero.records.mesh import MeshSpec
from tests.support.joint_jobs import joint_data, joint_job, write_joint_data
from tests.support.runs import finish


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> JobSpec:
    folder: Path = tmp_path_factory.mktemp("joint")
    files = [write_joint_data(folder / f"{number}.parquet", rows=523, seed=number) for number in range(2)]
    return joint_job(joint_data(*files))


@pytest.mark.slow
@pytest.mark.parametrize(("towers", "window"), [(1, 4), (2, 4), (2, 0)])
def test_any_layout_on_ray(job: JobSpec, towers: int, window: int) -> None:
    """Several towers draw which tokens to hide apart from each other, so that loss is left out there."""
    if towers > 1:
        job = replace(job, tower=replace(job.tower, args={**job.tower.args, "masked": None}))
    laid_out = replace(
        job,
        readers=RoleSpec(count=2),
        servers=RoleSpec(count=2),
        towers=RoleSpec(count=towers),
        window=window,
    )
    run, alone = finish(laid_out, in_process=False, score=True), finish(job, in_process=True, score=True)
    if towers == 1:
        np.testing.assert_array_equal(run.outcome.losses, alone.outcome.losses)
        assert run.scores is not None
        assert alone.scores is not None
        np.testing.assert_array_equal(run.scores.predictions, alone.scores.predictions)
    np.testing.assert_allclose(run.outcome.losses, alone.outcome.losses, rtol=1e-5)
    assert run.report.rows == alone.report.rows


@pytest.mark.slow
@pytest.mark.parametrize(("towers", "pp", "tp"), [(1, 2, 2), (2, 2, 1)])
def test_the_text_half_on_a_mesh(job: JobSpec, towers: int, pp: int, tp: int) -> None:
    """Two servers, windows: every step's loss and the scores are those of one process."""
    tower = replace(job.tower, args={**job.tower.args, "masked": None})
    alone = finish(replace(job, tower=tower), in_process=True, score=True)
    mesh = MeshSpec(pp=pp, dp=towers, tp=tp, micro_batches=pp)
    laid_out = replace(
        job,
        tower=replace(tower, mesh=mesh),
        servers=RoleSpec(count=2),
        towers=RoleSpec(count=towers),
        window=4,
    )
    run = finish(laid_out, in_process=False, score=True)
    np.testing.assert_allclose(run.outcome.losses, alone.outcome.losses, rtol=1e-5)
    assert run.report.rows == alone.report.rows
    assert run.scores is not None
    assert alone.scores is not None
    if towers == 1:
        np.testing.assert_allclose(run.scores.predictions, alone.scores.predictions, rtol=1e-4)
