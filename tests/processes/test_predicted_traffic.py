"""Bytes that all ranks send in a step: as predicted from sizes, and as counted where the collectives are issued."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch._C._distributed_c10d import PrefixStore

from hetero.parallel.deep_tower import DeepTower
from hetero.parallel.group import Rendezvous
from hetero.parallel.mesh import Mesh
from hetero.parallel.traffic import TrafficMeter
from hetero.planning.deep_run import RankRates, mesh_plan_of
from hetero.planning.traffic import sent_by_all
from hetero.records.deep_job import DeepJobSpec, TextSpec
from hetero.records.mesh import MeshSpec, PipelineSchedule, Recompute
from hetero.records.transformer import TransformerSpec
from tests.support.deep_runs import BATCH, OPTIMIZER, SEED, SMALL, batch_of, share_of, store_at
from tests.support.ranks import on_ranks

PRELOADED = ("tests.support.deep_runs",)
WIDE = replace(SMALL, width=64, hidden=128, context=16)
"""Wide enough that norms, whose gradients tensor-parallel ranks sum too, are little beside matrices."""


def sent_of(rank: int, size: int, meet: Rendezvous, cases: Sequence[tuple[TransformerSpec, MeshSpec]]) -> list[object]:
    """What this rank sends in the second step of each case, by axis."""
    store, found = store_at(meet, rank=rank, size=size), []
    torch.set_num_threads(1)
    for number, (model, spec) in enumerate(cases):
        mesh = Mesh(
            spec,
            rank=rank,
            size=size,
            device=torch.device("cpu"),
            deadline_s=30.0,
            store=PrefixStore(f"case {number}", store),
        )
        tower = DeepTower(model, mesh=mesh, optimizer=OPTIMIZER, batch_size=BATCH, seed=SEED)
        for step in range(2):
            with TrafficMeter(mesh) as meter:
                tower.step(*share_of(mesh, *batch_of(model, step)))
        mesh.close()
        found.append(meter.traffic.sent_bytes)
    return found


def check(cases: Sequence[tuple[TransformerSpec, MeshSpec]], *, size: int) -> None:
    answers = on_ranks(sent_of, cases, size=size, deadline_s=110.0, preload=PRELOADED)
    for number, (model, spec) in enumerate(cases):
        job = DeepJobSpec(
            name="sent",
            seed=SEED,
            text=TextSpec(train="t", validation=None, vocabulary=model.vocabulary),
            model=model,
            mesh=spec,
            optimizer=OPTIMIZER,
            batch_size=BATCH,
            steps=2,
        )
        predicted = sent_by_all(mesh_plan_of(job, [RankRates(matrix_flops=1e9)] * size))
        told = [answer[number] for answer in answers.values()]
        for axis, sent in predicted.items():
            measured = sum(each.get(axis.value, 0.0) for each in told)
            assert sent == pytest.approx(measured, rel=0.05), f"{spec.describe()}, {axis.value}: {told}"


def test_predicted_bytes_are_those_sent() -> None:
    check(
        [
            (WIDE, MeshSpec(pp=2, tp=2, micro_batches=4)),
            (WIDE, MeshSpec(dp=2, shard=2, sharding=2, micro_batches=2)),
            (replace(WIDE, tied=True), MeshSpec(pp=2, shard=2, sharding=3, micro_batches=4)),
            (WIDE, MeshSpec(shard=2, tp=2, recompute=Recompute.FULL)),
        ],
        size=4,
    )


@pytest.mark.slow
def test_predicted_bytes_of_eight_ranks_and_looped_schedules() -> None:
    looped = MeshSpec(pp=2, dp=2, micro_batches=4, stages_per_rank=2)
    check(
        [
            (WIDE, MeshSpec(pp=2, shard=2, tp=2, micro_batches=2)),
            (WIDE, replace(looped, tp=2, schedule=PipelineSchedule.INTERLEAVED)),
            (WIDE, replace(looped, shard=2, schedule=PipelineSchedule.ZBV)),
            (WIDE, MeshSpec(pp=2, dp=2, shard=2, blocks_per_stage=(3, 1), micro_batches=2)),
        ],
        size=8,
    )
