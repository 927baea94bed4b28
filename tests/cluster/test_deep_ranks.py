"""Deep models through Ray: the ranks of a mesh as actors, and errors that name a rank which died or hangs."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from actors.rank import DeepContext, RankNews
from actors.ranks import RankGroup, islands_of, rank_resources
from hetero.data.token_store import write_tokens
from hetero.errors import CapacityError, PeerLostError
from hetero.loops.deep import SNAPSHOTS, DeepRank
from hetero.parallel.mesh import Mesh
from hetero.records.deep_job import DeepJobSpec, TextSpec
from hetero.records.mesh import DeepOptimizerSpec, MeshSpec
from hetero.records.transformer import TransformerSpec

MODEL = TransformerSpec(layers=2, width=16, heads=2, kv_heads=2, hidden=32, vocabulary=16, context=8)


def job_of(folder: Path, mesh: MeshSpec, **changes: object) -> DeepJobSpec:
    tokens = np.random.default_rng(1).integers(0, 16, 2000)
    for part in ("train", "validation"):
        write_tokens(folder / part, [tokens], tokenizer="byte", vocabulary=16)
    job = DeepJobSpec(
        name="small",
        seed=3,
        text=TextSpec(train=str(folder / "train"), validation=str(folder / "validation"), vocabulary=16),
        model=MODEL,
        mesh=mesh,
        optimizer=DeepOptimizerSpec(steps=6),
        batch_size=8,
        steps=6,
        deadline_s=15.0,
    )
    return replace(job, **changes)  # type: ignore[arg-type]


@contextmanager
def ranks_of(job: DeepJobSpec, folder: Path, *, snapshot: Path | None = None) -> Iterator[RankGroup]:
    group = RankGroup(DeepContext(run=folder.name, job=job, folder=folder, import_paths=(str(Path.cwd()),)))
    try:
        group.join(snapshot)
        yield group
    finally:
        group.close()


def serial_losses(job: DeepJobSpec, folder: Path) -> tuple[list[float], float]:
    mesh = Mesh(MeshSpec(), rank=0, size=1, device=torch.device("cpu"), deadline_s=5.0)
    try:
        log = DeepRank(replace(job, mesh=MeshSpec()), mesh=mesh).train(folder, after_step=lambda _: None)
        return log.losses, log.evaluations[-1].loss
    finally:
        mesh.close()


@pytest.mark.slow
def test_a_mesh_of_actors_trains_as_one_process_and_goes_on_from_its_snapshot(tmp_path: Path) -> None:
    job = job_of(tmp_path, MeshSpec(pp=2, shard=2, micro_batches=2), snapshot_every=3, keep=9)
    seen: list[RankNews] = []
    with ranks_of(job, tmp_path) as group:
        logs = group.train(watch=seen.append)
    losses, validation = serial_losses(job, tmp_path / "serial")
    for log in logs:
        np.testing.assert_allclose(log.losses, losses, rtol=1e-5)
        assert log.evaluations[-1].loss == pytest.approx(validation, rel=1e-5)
        assert log.rates.matrix_flops > 0
        assert log.peak_bytes > 0
    halfway = tmp_path / SNAPSHOTS / "step-00000003"
    with ranks_of(replace(job, mesh=MeshSpec(tp=2)), tmp_path, snapshot=halfway) as group:
        logs = group.train(watch=seen.append)
    np.testing.assert_allclose(logs[0].losses, losses[3:], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "words"),
    [(signal.SIGKILL, r"/rank/1 died during"), (signal.SIGSTOP, r"/rank/1: no answer|/rank/1 has not answered")],
    ids=["killed", "stopped"],
)
def test_a_rank_that_is_lost_is_named(tmp_path: Path, sent: signal.Signals, words: str) -> None:
    job = job_of(tmp_path, MeshSpec(dp=2), steps=10**6, deadline_s=6.0)
    begun = threading.Event()
    with ranks_of(job, tmp_path) as group:
        pid = group.pid_of(1)

        def hit(news: RankNews) -> None:
            if news.step > 0 and not begun.is_set():
                begun.set()
                os.kill(pid, sent)

        try:
            with pytest.raises(PeerLostError, match=words):
                group.train(watch=hit)
        finally:
            os.kill(pid, signal.SIGKILL) if sent is signal.SIGSTOP else None
    assert begun.is_set()


def test_a_mesh_that_does_not_fit_is_refused_with_numbers(tmp_path: Path) -> None:
    job = job_of(tmp_path, MeshSpec(tp=2), threads=500, deadline_s=1.0)
    with pytest.raises(CapacityError, match=r"asks for 1000 CPU .* and for 1000 CPU on one node, where 2 ranks share"):
        RankGroup(DeepContext(run="large", job=job, folder=tmp_path))


def test_ranks_that_share_tensors_and_shards_lie_on_one_node(tmp_path: Path) -> None:
    job = job_of(tmp_path, MeshSpec(pp=2, shard=2, tp=2, micro_batches=2), threads=2)
    assert islands_of(job) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert rank_resources(job, ranks=4) == {"CPU": 8.0}
    assert rank_resources(replace(job, device="cuda"), ranks=4) == {"CPU": 8.0, "GPU": 4.0}
