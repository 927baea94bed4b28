"""A text half on a mesh follows the whole one: losses of every step, parameters, optimizer state, in float64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tests.support.ranks import on_ranks
from tests.support.text_meshes import OTHER, TextCase, double, mesh_runs, serial_run

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
