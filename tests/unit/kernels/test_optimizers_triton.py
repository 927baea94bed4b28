"""The fused kernel of devices, run by Triton's interpreter on the CPU, against torch operations: the same bits."""

from __future__ import annotations

import importlib
from types import ModuleType

import numpy as np
import pytest
import torch

from hetero.optim.definition import KIND, first_state, hyper_array
from hetero.optim.torch_path import update_at_
from hetero.records import RowOptimizer, RowOptimizerSpec

pytest.importorskip("triton", reason="Triton comes with torch for CUDA")
SLOTS, ROWS = 300, 131


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    return importlib.reload(importlib.import_module("hetero.kernels.optimizers_triton"))


@pytest.mark.parametrize("dim", [1, 4, 17, 64])
@pytest.mark.parametrize("l2", [0.0, 0.01])
@pytest.mark.parametrize("kind", list(RowOptimizer))
def test_the_kernel_gives_the_bits_of_torch_operations(
    kernel: ModuleType, kind: RowOptimizer, l2: float, dim: int
) -> None:
    random = np.random.default_rng(dim)
    spec = RowOptimizerSpec(kind=kind, l2=l2, l1=0.02, initial_accumulator=0.1)
    first = random.normal(size=(SLOTS, dim)).astype(np.float32)
    wanted = [torch.from_numpy(first), torch.from_numpy(first_state(spec, first))]
    found = [part.clone() for part in wanted]
    for _ in range(3):
        index = torch.from_numpy(random.permutation(SLOTS)[:ROWS].astype(np.int32))
        gradients = torch.from_numpy(random.normal(size=(ROWS, dim)).astype(np.float32))
        gradients[5, 0], gradients[7, 0], gradients[9, -1] = float("nan"), 2.0**57, -float("inf")
        rejected = update_at_(spec, wanted[0], wanted[1], index, gradients)
        told = kernel.update_at(KIND[kind], hyper_array(spec).tolist(), found[0], found[1], index, gradients)
        assert told.nonzero().flatten().tolist() == rejected.nonzero().flatten().tolist() == [5, 7, 9]
    for part, want in zip(found, wanted, strict=True):
        assert torch.equal(part, want)
