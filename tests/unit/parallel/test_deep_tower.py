"""A deep tower in one process: the same path as on a mesh, held against plain PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch

from hetero.errors import JobError, NumericsError
from hetero.parallel.adamw import LossScale
from hetero.parallel.deep_tower import DeepTower
from hetero.parallel.learning_rate import learning_rate
from hetero.parallel.mesh import Mesh
from hetero.records.mesh import DeepOptimizerSpec, DeepPrecision, LrSchedule, MeshSpec, Recompute
from tests.support.deep_runs import BATCH, OPTIMIZER, SEED, SMALL, Case, batch_of, double, mesh_run, serial_run


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small products in one thread: on a busy machine two wait for each other longer than they compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@contextmanager
def tower_of(mesh_spec: MeshSpec, optimizer: DeepOptimizerSpec = OPTIMIZER, seed: int = SEED) -> Iterator[DeepTower]:
    mesh = Mesh(mesh_spec, rank=0, size=mesh_spec.ranks, device=torch.device("cpu"), deadline_s=5.0)
    try:
        yield DeepTower(SMALL, mesh=mesh, optimizer=optimizer, batch_size=BATCH, seed=seed)
    finally:
        mesh.close()


@pytest.mark.parametrize(
    "mesh",
    [double(), double(micro_batches=4), double(recompute=Recompute.FULL), double(recompute=Recompute.SELECTIVE)],
    ids=["plain", "accumulation", "full recomputation", "selective recomputation"],
)
def test_one_process_follows_plain_torch(mesh: MeshSpec) -> None:
    found = mesh_run(Case(name="alone", mesh=mesh), rank=0, store=None)
    np.testing.assert_allclose(found, serial_run(SMALL), rtol=1e-10)


def test_the_serial_run_moves() -> None:
    losses = serial_run(SMALL)[:, 0]
    assert np.ptp(losses) > 1e-3


@pytest.mark.parametrize("precision", [DeepPrecision.BF16, DeepPrecision.FP16])
def test_half_precision_follows_to_its_accuracy_with_float32_masters(precision: DeepPrecision) -> None:
    serial = serial_run(SMALL, dtype=torch.float32)
    found = mesh_run(Case(name="half", mesh=MeshSpec(precision=precision)), rank=0, store=None)
    np.testing.assert_allclose(found[:, 0], serial[:, 0], rtol=5e-3)
    assert not np.array_equal(found[:, 0], serial[:, 0])
    with tower_of(MeshSpec(precision=precision)) as tower:
        tower.step(*batch_of(SMALL, 0))
        assert {p.dtype for p in tower.parameters().values()} == {torch.float32}
        assert all(moments["exp_avg"].dtype == torch.float32 for _, moments in tower.optimizer.pieces())


def test_a_half_precision_overflow_changes_nothing_and_halves_the_scale() -> None:
    with tower_of(MeshSpec(precision=DeepPrecision.FP16)) as tower:
        assert tower.scale is not None
        tower.scale.value = 2.0**40
        before = {name: p.detach().clone() for name, p in tower.parameters().items()}
        done = tower.step(*batch_of(SMALL, 0))
        assert done.skipped
        assert tower.scale.value == 2.0**39
        for name, parameter in tower.parameters().items():
            assert torch.equal(parameter.detach(), before[name]), name
        tower.scale.value = 2.0**10
        assert not tower.step(*batch_of(SMALL, 1)).skipped


def test_overflows_without_end_are_an_error() -> None:
    scale = LossScale()
    for _ in range(39):
        scale.note(overflowed=True)
    assert scale.value == 1.0
    with pytest.raises(NumericsError, match="float16 gradients overflowed in 40 steps on end"):
        scale.note(overflowed=True)


def test_the_scale_grows_after_good_steps() -> None:
    scale = LossScale(value=4.0)
    for _ in range(2000):
        scale.note(overflowed=False)
    assert (scale.value, scale.good_steps) == (8.0, 0)


def test_a_loss_that_is_no_number_is_refused_before_it_does_harm() -> None:
    with tower_of(double()) as tower:
        name, parameter = next(iter(tower.parameters().items()))
        other = {n: p.detach().clone() for n, p in tower.parameters().items() if n != name}
        with torch.no_grad():
            parameter.fill_(float("nan"))
        with pytest.raises(NumericsError, match="step 0: loss nan, gradient norm nan; nothing was changed"):
            tower.step(*batch_of(SMALL, 0))
        for n, value in other.items():
            assert torch.equal(tower.parameters()[n].detach(), value)


def test_evaluation_is_the_mean_loss_and_changes_nothing() -> None:
    with tower_of(double(micro_batches=2)) as tower:
        expected = serial_run(SMALL, steps=1)[0, 0]
        assert tower.loss(*batch_of(SMALL, 0)).mean == pytest.approx(expected, rel=1e-12)
        assert tower.step(*batch_of(SMALL, 0)).loss == pytest.approx(expected, rel=1e-12)


def test_dropout_is_a_function_of_seed_and_step() -> None:
    model = replace(SMALL, dropout=0.2)

    def losses(seed: int) -> list[float]:
        mesh = Mesh(double(), rank=0, size=1, device=torch.device("cpu"), deadline_s=5.0)
        try:
            tower = DeepTower(model, mesh=mesh, optimizer=OPTIMIZER, batch_size=BATCH, seed=seed)
            return [tower.step(*batch_of(model, step)).loss for step in range(2)]
        finally:
            mesh.close()

    assert losses(1) == losses(1)
    assert losses(1) != losses(2)


def test_a_mesh_of_another_size_is_refused() -> None:
    with pytest.raises(JobError, match="= 2 ranks, and there are 1"):
        Mesh(MeshSpec(tp=2), rank=0, size=1, device=torch.device("cpu"), deadline_s=5.0)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (LrSchedule.CONSTANT, [0.5, 1.0, 1.0, 1.0, 1.0]),
        (LrSchedule.LINEAR, [0.5, 1.0, 1.0, 0.6, 0.2]),
        (LrSchedule.COSINE, [0.5, 1.0, 1.0, 0.6, 0.2]),
    ],
)
def test_learning_rates(schedule: LrSchedule, expected: list[float]) -> None:
    spec = DeepOptimizerSpec(lr=1.0, warmup=2, steps=10, schedule=schedule, final_lr_share=0.2)
    assert [learning_rate(spec, step) for step in (0, 1, 2, 6, 10)] == pytest.approx(expected)
    assert learning_rate(spec, 100) == pytest.approx(expected[-1])


def test_cosine_is_above_the_line_at_first() -> None:
    spec = DeepOptimizerSpec(lr=1.0, warmup=0, steps=8, final_lr_share=0.0)
    assert learning_rate(spec, 2) == pytest.approx(0.5 * (1 + np.cos(np.pi / 4)))
