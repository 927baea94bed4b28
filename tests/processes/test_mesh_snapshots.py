"""Snapshots of a deep model reshard: a run goes on, on another mesh, where it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch._C._distributed_c10d import PrefixStore

from hetero.checkpoint.mesh_snapshot import read_snapshot, snapshots_in, write_snapshot
from hetero.parallel.deep_tower import DeepTower
from hetero.parallel.group import Rendezvous
from hetero.parallel.mesh import Mesh
from hetero.records.mesh import MeshSpec, PipelineSchedule
from tests.support.deep_runs import (
    BATCH,
    BERT,
    OPTIMIZER,
    PRELOADED,
    SEED,
    SMALL,
    batch_of,
    double,
    serial_run,
    share_of,
    store_at,
)
from tests.support.ranks import on_ranks

LEG = 2
MODELS = {"causal": SMALL, "tied masked": BERT}


def legs(
    rank: int, size: int, meet: Rendezvous, meshes: list[MeshSpec], folder: Path, model_name: str
) -> list[tuple[float, float]]:
    """Train `LEG` steps on each mesh, each from the snapshot of the one before."""
    torch.set_num_threads(1)
    store = store_at(meet, rank=rank, size=size)
    model = MODELS[model_name]
    found: list[tuple[float, float]] = []
    for number, spec in enumerate(meshes):
        if rank >= spec.ranks:
            continue
        mesh = Mesh(
            spec,
            rank=rank,
            size=spec.ranks,
            device=torch.device("cpu"),
            deadline_s=40.0,
            store=PrefixStore(str(number), store),
        )
        tower = DeepTower(model, mesh=mesh, optimizer=OPTIMIZER, batch_size=BATCH, seed=SEED)
        if number:
            facts = read_snapshot(tower, snapshots_in(folder)[-1], data="text")
            assert (facts.step, facts.cursor) == (number * LEG, number * LEG * BATCH)
        for step in range(number * LEG, (number + 1) * LEG):
            done = tower.step(*share_of(mesh, *batch_of(model, step)))
            assert done.step == step
            found.append((done.loss, done.norm))
        write_snapshot(tower, folder, cursor=tower.step_number * BATCH, data="text", keep=9)
        mesh.close()
    return found


def follow(meshes: list[MeshSpec], folder: Path, model_name: str = "causal") -> None:
    size = max(mesh.ranks for mesh in meshes)
    answers = on_ranks(legs, meshes, folder, model_name, size=size, deadline_s=110, preload=PRELOADED)
    serial = serial_run(MODELS[model_name], steps=LEG * len(meshes))
    for error in answers.values():
        if isinstance(error, Exception):
            raise error
    np.testing.assert_allclose(answers[0], serial, rtol=1e-9)


def test_four_ranks_then_two_then_one(tmp_path: Path) -> None:
    follow([double(shard=2, tp=2, sharding=3), double(pp=2, micro_batches=4), double()], tmp_path)


@pytest.mark.slow
def test_eight_ranks_then_eight_otherwise_then_one(tmp_path: Path) -> None:
    follow([double(pp=2, shard=2, tp=2, micro_batches=2), double(shard=4, tp=2, sharding=3), double()], tmp_path)


@pytest.mark.slow
def test_a_tied_model_moves_too(tmp_path: Path) -> None:
    vee = double(pp=2, shard=2, micro_batches=4, stages_per_rank=2, schedule=PipelineSchedule.ZBV)
    follow([vee, double(tp=2, dp=2), double(pp=2, dp=2, micro_batches=2)], tmp_path, "tied masked")
