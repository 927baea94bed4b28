"""Sharding stages hold three different amounts of memory: what each gives up is seen, not assumed."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

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
STEPS = 5


def peak_of_a_step(rank: int, size: int, meet: Rendezvous, sharding: int) -> int:
    """Most memory of tensors in a step, above what lay there before it, in bytes: the least of a few steps, for a
    collective that ends late keeps what it carries alive a while longer."""
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
    peaks = []
    for _ in range(STEPS):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            tower.step(tokens, tokens)
        peaks.append(_peak(profile))
    mesh.close()
    return min(peaks)


def _peak(profile: Any) -> int:
    """Most bytes of tensors alive at once, above those alive when the profile began."""
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    assert changes
    return int(max(accumulate(changes)))


@pytest.mark.slow
def test_each_stage_takes_less_than_the_one_before() -> None:
    peaks = {}
    for sharding in (1, 2, 3):
        answers = on_ranks(peak_of_a_step, sharding, size=2, preload=PRELOADED, deadline_s=100)
        failed = [answer for answer in answers.values() if isinstance(answer, Exception)]
        assert not failed, failed
        peaks[sharding] = max(answers.values())
    shares = {sharding: peak / BYTES for sharding, peak in peaks.items()}
    # Whole parameters and whole gradients, 2.1 times the model; whole parameters and halves, 1.9; a few blocks and
    # halves, 1.6. The halves of both micro-batches live until the step's end.
    assert shares[1] > shares[2] + 0.15, shares
    assert shares[2] > shares[3] + 0.15, shares
