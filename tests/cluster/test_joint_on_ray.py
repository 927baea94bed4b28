"""Text and clicks on Ray: one tower gives the bits of one process, two the joint batch to 1e-5."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hetero.checkpoint.search import latest_good
from hetero.loops.protocols import Phase
from hetero.loops.run import DataPass
from hetero.loops.snapshots import SnapshotPlace
from hetero.loops.tower_state import ResumePoint
from hetero.records import JobSpec, RoleSpec, SnapshotSpec
from hetero.records.mesh import MeshSpec
from tests.support.joint_jobs import joint_data, joint_job, write_joint_data
from tests.support.runs import alive, finish


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


@pytest.mark.slow
def test_a_snapshot_of_a_mesh_is_that_of_a_whole_tower(job: JobSpec, tmp_path: Path) -> None:
    """Begun on a pipeline of split tensors, gone on in one process, then on two ways: the losses of one whole run."""
    whole = replace(job, tower=replace(job.tower, args={**job.tower.args, "masked": None}))
    pipeline = replace(whole, tower=replace(whole.tower, mesh=MeshSpec(pp=2, tp=2, micro_batches=2)))
    ways = replace(whole.tower, mesh=MeshSpec(pp=2, dp=2, micro_batches=2))
    two = replace(whole, tower=ways, towers=RoleSpec(count=2), servers=RoleSpec(count=3))
    legs = [(pipeline, False, 5), (whole, True, 9), (two, False, None)]
    losses = np.empty(0)
    for leg, in_process, steps in legs:
        every = replace(leg, snapshots=SnapshotSpec(every_steps=steps or 100))
        data = DataPass.open(job.train, phase=Phase.TRAIN, max_steps=steps)
        with alive(every, in_process=in_process) as run:
            if len(losses):
                snapshot = latest_good(tmp_path, job=job).good
                assert snapshot is not None
                run.restore(snapshot)
                data = replace(data, start=ResumePoint.of(snapshot).cursor)
            losses = run.train(data, watch=lambda _: None, snapshots=SnapshotPlace(folder=str(tmp_path))).losses
    np.testing.assert_allclose(losses, finish(whole, in_process=True).outcome.losses, rtol=1e-5)
