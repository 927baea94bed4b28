"""Leased rows on one GPU: losses as on the CPU to float32's accuracy, row updates, copies, collectives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from hetero.exchange.device_copies import Copies
from hetero.exchange.traffic import Traffic
from hetero.optim.definition import first_state
from hetero.optim.device_path import RowUpdate, why_not_fused
from hetero.parallel.group import CollectiveGroup, free_rendezvous
from hetero.records import HOST_DEVICE, JobSpec, Precision, RoleSpec, RowOptimizer, RowOptimizerSpec
from tests.support.jobs import data_spec, small_job, write_data
from tests.support.runs import finish
from tests.support.thread_towers import train_towers
from tests.unit.loops.test_two_towers import Poisoned

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> JobSpec:
    folder: Path = tmp_path_factory.mktemp("data")
    data = data_spec(write_data(folder / "a.parquet", rows=1400, seed=0), shuffle=True)
    return small_job(data, servers=RoleSpec(count=2), window=4, precision=Precision.FP32)


@pytest.mark.parametrize("window", [0, 1, 4])
def test_losses_and_predictions_follow_the_cpu(job: JobSpec, window: int) -> None:
    on_host = finish(job, in_process=True, score=True)
    on_gpu = finish(replace(job, device="cuda", window=window), in_process=True, score=True)
    np.testing.assert_allclose(on_gpu.outcome.losses, on_host.outcome.losses, rtol=1e-5)
    assert on_host.scores is not None
    assert on_gpu.scores is not None
    np.testing.assert_allclose(on_gpu.scores.predictions, on_host.scores.predictions, rtol=1e-4, atol=1e-6)
    assert on_gpu.report.rows == on_host.report.rows
    assert (on_gpu.report.traffic["to_device"] > 0) == (window > 0)


@pytest.mark.parametrize("dim", [1, 16, 100])
@pytest.mark.parametrize("kind", list(RowOptimizer))
def test_kernel_and_torch_operations_agree(kind: RowOptimizer, dim: int) -> None:
    assert why_not_fused() is None, "torch for CUDA brings Triton"
    random, device = np.random.default_rng(dim), torch.device("cuda")
    spec = RowOptimizerSpec(kind=kind, l2=0.01, l1=0.02, initial_accumulator=0.1)
    first = random.normal(size=(1000, dim)).astype(np.float32)
    fused, plain = RowUpdate(spec, device), RowUpdate(spec, device)
    plain.use_torch()
    rows = [torch.from_numpy(part).to(device) for part in (first, first_state(spec, first))]
    others = [part.clone() for part in rows]
    for _ in range(5):
        index = torch.from_numpy(random.permutation(1000)[:333].astype(np.int32)).to(device)
        gradients = torch.from_numpy(random.normal(size=(333, dim)).astype(np.float32)).to(device)
        gradients[3, 0], gradients[5, -1] = float("nan"), 2.0**57
        assert torch.equal(fused(rows[0], rows[1], index, gradients), plain(others[0], others[1], index, gradients))
    for part, other in zip(rows, others, strict=True):
        np.testing.assert_allclose(part.cpu().numpy(), other.cpu().numpy(), rtol=1e-6, atol=1e-7)


def test_copies_there_and_back_beside_kernels_keep_every_value() -> None:
    copies, random = Copies(torch.device("cuda"), Traffic()), np.random.default_rng(2)
    for _ in range(20):
        array = random.normal(size=(100_000, 16)).astype(np.float32)
        brought = copies.bring([array])
        kept = array * 2
        array[:] = 0  # may be reused at once
        landing = copies.send(brought.take()[0] * 2)
        np.testing.assert_array_equal(landing.result(), kept)


def test_rejected_rows_are_told(job: JobSpec) -> None:
    devices = (HOST_DEVICE, "cuda")
    logs = [train_towers(replace(job, device=d, max_steps=8), make=lambda: Poisoned(1)).logs[0] for d in devices]
    assert logs[0].rejected_rows == logs[1].rejected_rows > 0
    assert logs[0].rejected_examples == logs[1].rejected_examples


def test_collectives_over_one_rank_by_nccl_and_gloo() -> None:
    device = torch.device("cuda", 0)
    group = CollectiveGroup.meet(free_rendezvous("127.0.0.1"), rank=0, size=1, deadline_s=60.0, device=device)
    try:
        for place in (device, torch.device("cpu")):
            rows = torch.arange(12.0, device=place).reshape(4, 3)
            assert torch.equal(group.exchange(rows, [4], [4]), rows)
            summed = rows.clone()
            group.sum_(summed)
            assert torch.equal(summed, rows)
    finally:
        group.close()
