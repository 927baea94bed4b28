"""On every mesh a model trains as by plain PyTorch: the short list. `test_mesh_parity_long.py` has all combinations."""

from __future__ import annotations

import os
import re

import torch

from hetero.errors import DeadlineError, PeerLostError
from hetero.parallel.deep_tower import DeepTower
from hetero.parallel.group import Rendezvous
from hetero.parallel.mesh import Mesh, host_store, join_store
from hetero.records.mesh import MeshSpec, PipelineSchedule, Recompute
from tests.support.deep_runs import (
    BATCH,
    BERT,
    OPTIMIZER,
    PRELOADED,
    SEED,
    SMALL,
    Case,
    batch_of,
    check_parity,
    double,
    share_of,
    store_at,
)
from tests.support.ranks import on_ranks


def test_meshes_of_up_to_four_ranks() -> None:
    check_parity(
        [
            Case(name="dp 2, float32", mesh=MeshSpec(dp=2)),
            Case(name="shard 2, stage 3, accumulation", mesh=double(shard=2, sharding=3, micro_batches=2)),
            Case(name="tp 2", mesh=double(tp=2)),
            Case(name="pp 2, 1F1B, uneven", mesh=double(pp=2, micro_batches=4, blocks_per_stage=(3, 1))),
            Case(
                name="pp 2 x shard 2, ZBV",
                mesh=double(pp=2, shard=2, micro_batches=4, stages_per_rank=2, schedule=PipelineSchedule.ZBV),
            ),
            Case(
                name="tied masked model, tp 2 x pp 2, selective recomputation",
                model=BERT,
                mesh=double(pp=2, tp=2, micro_batches=2, recompute=Recompute.SELECTIVE),
            ),
        ],
        size=4,
    )


def ends_early(rank: int, size: int, meet: Rendezvous) -> None:
    """Rank 1 leaves after the first step."""
    store = store_at(meet, rank=rank, size=size)
    mesh = Mesh(MeshSpec(dp=2), rank=rank, size=size, device=torch.device("cpu"), deadline_s=5.0, store=store)
    tower = DeepTower(SMALL, mesh=mesh, optimizer=OPTIMIZER, batch_size=BATCH, seed=SEED)
    for step in range(2):
        tower.step(*share_of(mesh, *batch_of(SMALL, step)))
        if rank == 1:
            os._exit(1)


def test_a_rank_that_is_gone_is_an_error_on_the_others() -> None:
    answers = on_ranks(ends_early, size=2, silent=1, preload=PRELOADED)
    assert isinstance(answers[0], PeerLostError)
    assert re.search(
        r"rank 0 of 2 \(pp 0, dp 0, shard 0, tp 0\): step 1 .* another rank is gone or late", str(answers[0])
    )


def meets_nobody(rank: int, size: int, meet: Rendezvous) -> None:
    store = host_store("127.0.0.1")
    Mesh(MeshSpec(dp=2), rank=rank, size=2, device=torch.device("cpu"), deadline_s=2.0, store=store)


def joins_nobody(rank: int, size: int, meet: Rendezvous) -> None:
    join_store(meet, deadline_s=2.0)


def test_ranks_that_do_not_meet_are_a_deadline_error() -> None:
    alone = on_ranks(meets_nobody, size=1, preload=PRELOADED)[0]
    assert isinstance(alone, DeadlineError)
    assert "rank 0 of 2: the mesh did not come together within 2 s" in str(alone)
    lost = on_ranks(joins_nobody, size=1, preload=PRELOADED)[0]
    assert isinstance(lost, DeadlineError)
    assert "did not answer within 2 s" in str(lost)
