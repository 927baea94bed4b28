"""Sharding stages hold three different amounts of memory: what each gives up is seen, not assumed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hetero.parallel.deep_tower import DeepTower
from hetero.parallel.group import Rendezvous
from hetero.parallel.mesh import Mesh
from hetero.records.mesh import DeepOptimizerSpec, MeshSpec
from hetero.records.transformer import TransformerSpec
from tests.support.deep_runs import PRELOADED, store_at
from tests.support.ranks import on_ranks

LARGE = TransformerSpec(layers=8, width=512, heads=8, kv_heads=8, hidden=1536, vocabulary=64, context=16)
BYTES = 4 * LARGE.parameters
MICRO_BATCHES = 2


def peak_of_a_step(rank: int, size: int, meet: Rendezvous, sharding: int) -> int:
    """Most resident memory of the second step, above what lay there before it, in bytes."""
    mesh = Mesh(
        MeshSpec(shard=size, sharding=sharding, micro_batches=MICRO_BATCHES),
        rank=rank,
        size=size,
        device=torch.device("cpu"),
        deadline_s=60.0,
        store=store_at(meet, rank=rank, size=size),
    )
    tower = DeepTower(LARGE, mesh=mesh, optimizer=DeepOptimizerSpec(), batch_size=2 * MICRO_BATCHES, seed=1)
    tokens = torch.zeros((2, 16), dtype=torch.int64)
    tower.step(tokens, tokens)
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    tower.step(tokens, tokens)
    peak = _status("VmHWM")
    mesh.close()
    return peak - before


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(name)).split()[1])


@pytest.mark.slow
def test_each_stage_takes_less_than_the_one_before() -> None:
    peaks = {}
    for sharding in (1, 2, 3):
        answers = on_ranks(peak_of_a_step, sharding, size=2, preload=PRELOADED, deadline_s=100)
        failed = [answer for answer in answers.values() if isinstance(answer, Exception)]
        assert not failed, failed
        peaks[sharding] = max(answers.values())
    shares = {sharding: peak / BYTES for sharding, peak in peaks.items()}
    # Whole parameters and whole gradients; whole parameters and half of the gradients; a block, and half.
    assert shares[1] > shares[2] + 0.3, shares
    assert shares[2] > shares[3] + 0.3, shares
