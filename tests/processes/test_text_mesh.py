"""A text half on a mesh follows the whole one: losses of every step, parameters, optimizer state, in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hetero.loops.tower_state import TowerState
from hetero.records import START, RoleSpec
from hetero.records.mesh import MeshSpec
from tests.support.joint_jobs import joint_data, joint_job, write_joint_data
from tests.support.mesh_towers import joint_mesh_run
from tests.support.ranks import on_ranks
from tests.support.text_meshes import OTHER, TextCase, double, mesh_runs, serial_run
from tests.support.thread_towers import train_towers

PRELOADED = ("tests.support.text_meshes",)


def check(cases: Sequence[TextCase], *, size: int) -> None:
    answers = on_ranks(mesh_runs, cases, size=size, deadline_s=100.0, preload=PRELOADED)
    failed = [answer for answer in answers.values() if isinstance(answer, Exception)]
    for error in sorted(failed, key=lambda error: "closed by peer" in str(error)):
        raise error
    for case in cases:
        losses, (parameters, optimizer) = serial_run(case)
        led = [answer[case.name] for answer in answers.values() if answer[case.name] is not None]
        assert len(led) == case.meshes[-1].dp
        for found_losses, found_parameters, found_optimizer in led:
            np.testing.assert_allclose(found_losses, losses, rtol=1e-9, err_msg=case.name)
            for found, wanted in ((found_parameters, parameters), (found_optimizer, optimizer)):
                assert found.keys() == wanted.keys()
                for name, value in wanted.items():
                    np.testing.assert_allclose(
                        found[name], value.numpy(), rtol=1e-7, atol=1e-9, err_msg=f"{case.name}: {name}"
                    )


def test_a_pipeline_of_split_tensors_follows_the_whole_half() -> None:
    check([TextCase(name="pp 2 x tp 2", meshes=(double(pp=2, tp=2, micro_batches=2),))], size=4)


@pytest.mark.slow
def test_any_mesh_follows_the_whole_half() -> None:
    """Ways to lay out four ranks, and states that go from one mesh to another."""
    pipeline, ways = double(pp=2, tp=2, micro_batches=2), double(dp=2, pp=2, micro_batches=3)
    cases = [
        TextCase(name="dp 2 x pp 2", meshes=(ways,)),
        TextCase(name="dp 2 x tp 2, other parts", meshes=(double(dp=2, tp=2),), model=OTHER),
        TextCase(name="pp 4, then dp 2 x tp 2, then pp 2 x tp 2", meshes=(double(pp=4), double(dp=2, tp=2), pipeline)),
    ]
    check(cases, size=4)


@pytest.mark.slow
def test_a_joint_run_on_a_pipeline_of_split_tensors_is_that_of_one_process(tmp_path: Path) -> None:
    """Two servers, windows, two labels, a history: losses of every step, scores, and what a snapshot would hold."""
    data = joint_data(write_joint_data(tmp_path / "data.parquet", rows=12 * 64 + 5, seed=2))
    job = joint_job(data, servers=RoleSpec(count=2), window=4)
    job = replace(job, tower=replace(job.tower, args={**job.tower.args, "masked": None}))
    whole = train_towers(job)
    on_mesh = replace(job, tower=replace(job.tower, mesh=MeshSpec(pp=2, tp=2, micro_batches=2)))
    answers = on_ranks(joint_mesh_run, on_mesh, size=4, deadline_s=100.0, preload=("tests.support.mesh_towers",))
    for answer in answers.values():
        if isinstance(answer, Exception):
            raise answer
    (led,) = [answer for answer in answers.values() if answer is not None]
    losses, predictions, shapes = led
    np.testing.assert_allclose(losses, whole.logs[0].losses, rtol=1e-5)
    assert len(predictions) == 12 * 64 + 5
    state = TowerState.of(whole.towers[0], START, rejected_rows=0)
    assert shapes == {n: tuple(v.shape) for part in (state.dense, state.optimizer) for n, v in part.items()}
