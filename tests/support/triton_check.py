"""`TRITON_INTERPRET=1 python -m tests.support.triton_check`: the fused row kernel against torch operations, on the CPU.

Triton reads that variable when it is imported, so this runs in a process of its own.
"""

from __future__ import annotations

import itertools

import numpy as np
import torch

from hetero.kernels.optimizers_triton import update_at
from hetero.optim.definition import KIND, first_state, hyper_array
from hetero.optim.torch_path import update_at_
from hetero.records import RowOptimizer, RowOptimizerSpec

SLOTS, ROWS = 300, 131


def check(kind: RowOptimizer, *, dim: int, l2: float) -> None:
    """Three updates of some rows; three gradients of each are not finite."""
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
        told = update_at(KIND[kind], hyper_array(spec).tolist(), found[0], found[1], index, gradients)
        assert told.nonzero().flatten().tolist() == rejected.nonzero().flatten().tolist() == [5, 7, 9]
    assert all(torch.equal(part, want) for part, want in zip(found, wanted, strict=True)), (kind, dim, l2)


if __name__ == "__main__":
    for case in itertools.product(RowOptimizer, (1, 4, 17, 64), (0.0, 0.01)):
        check(case[0], dim=case[1], l2=case[2])
