"""A deep tower on one GPU: float32 as on the CPU, bf16 to its accuracy, every kind of recomputation."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from hetero.hardware.matrix_rate import matrix_rate
from hetero.parallel.deep_tower import DeepTower
from hetero.parallel.mesh import Mesh
from hetero.records.mesh import DeepPrecision, MeshSpec, Recompute
from tests.support.deep_runs import BATCH, BERT, OPTIMIZER, SEED, SMALL, STEPS, batch_of, serial_run

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


@pytest.fixture(autouse=True)
def full_float32() -> Iterator[None]:
    """No TF32, so that float32 is what it is on the CPU."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def losses_on_gpu(spec: MeshSpec, *, masked: bool = False) -> np.ndarray:
    model = BERT if masked else SMALL
    device = torch.device("cuda", 0)
    mesh = Mesh(spec, rank=0, size=1, device=device, deadline_s=60.0)
    try:
        tower = DeepTower(model, mesh=mesh, optimizer=OPTIMIZER, batch_size=BATCH, seed=SEED)
        steps = [tower.step(*(part.to(device) for part in batch_of(model, step))) for step in range(STEPS)]
        return np.array([(done.loss, done.norm) for done in steps])
    finally:
        mesh.close()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("recompute", list(Recompute))
def test_float32_follows_the_cpu(masked: bool, recompute: Recompute) -> None:
    model = BERT if masked else SMALL
    found = losses_on_gpu(MeshSpec(recompute=recompute, micro_batches=2), masked=masked)
    np.testing.assert_allclose(found, serial_run(model, dtype=torch.float32), rtol=1e-4)


@pytest.mark.parametrize("precision", [DeepPrecision.BF16, DeepPrecision.FP16])
def test_half_precision_follows_to_its_accuracy(precision: DeepPrecision) -> None:
    found = losses_on_gpu(MeshSpec(precision=precision))
    np.testing.assert_allclose(found[:, 0], serial_run(SMALL, dtype=torch.float32)[:, 0], rtol=5e-3)


def test_the_device_multiplies_bf16_faster_than_float32() -> None:
    device = torch.device("cuda", 0)
    assert matrix_rate(device, torch.bfloat16, size=4096) > 2 * matrix_rate(device, torch.float32, size=4096)
