"""Small transformers trained on meshes of processes, and the same trained by plain PyTorch to hold them against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import numpy as np
import torch
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from hetero.parallel.deep_tower import DeepTower
from hetero.parallel.group import Rendezvous
from hetero.parallel.mesh import Mesh
from hetero.records.mesh import DeepOptimizerSpec, DeepPrecision, LrSchedule, MeshSpec
from hetero.records.transformer import Objective, TransformerSpec
from hetero.towers.transformer import IGNORED, Transformer, token_loss
from hetero.towers.transformer_initial import set_initial
from tests.support.ranks import on_ranks
from tests.support.transformers import bert_like

SMALL = TransformerSpec(layers=4, width=32, heads=4, kv_heads=4, hidden=48, vocabulary=48, context=16)
BERT = bert_like(layers=4, width=32, kv_heads=2, hidden=48, vocabulary=48, context=16)
OPTIMIZER = DeepOptimizerSpec(lr=3e-3, steps=6, warmup=2, schedule=LrSchedule.COSINE, clip=0.5)
BATCH = 16
STEPS = 4
SEED = 5
PRELOADED = ("tests.support.deep_runs",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One training of `STEPS` steps on a mesh."""

    name: str
    mesh: MeshSpec
    model: TransformerSpec = SMALL
    steps: int = STEPS


def batch_of(model: TransformerSpec, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The joint batch of a step: tokens and targets int64 [BATCH, context]."""
    generator = torch.Generator().manual_seed(1000 + step)
    blocks = torch.randint(0, model.vocabulary, (BATCH, model.context + 1), generator=generator)
    if model.objective is Objective.CAUSAL:
        return blocks[:, :-1], blocks[:, 1:]
    hidden = torch.rand((BATCH, model.context), generator=generator) < 0.3
    targets = torch.where(hidden, blocks[:, 1:], IGNORED)
    return torch.where(hidden, 0, blocks[:, 1:]), targets


def serial_run(
    model: TransformerSpec, *, steps: int = STEPS, dtype: torch.dtype = torch.float64, evaluate: bool = False
) -> np.ndarray:
    """(loss, gradient norm) of every step [steps, 2], by torch's own modules and optimizer on the whole batch.

    evaluate: one more row, the loss after the last step on the first batch, and its targets.
    """
    module = Transformer(model).to(dtype)
    set_initial(module, model, seed=SEED)
    matrices = [p for p in module.parameters() if p.ndim >= 2]
    others = [p for p in module.parameters() if p.ndim < 2]
    adamw = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": OPTIMIZER.weight_decay}, {"params": others, "weight_decay": 0.0}],
        betas=(OPTIMIZER.beta1, OPTIMIZER.beta2),
    )
    found = []
    for step in range(steps):
        tokens, targets = batch_of(model, step)
        loss = token_loss(module(tokens), targets) / (targets != IGNORED).sum()
        adamw.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        assert OPTIMIZER.clip is not None
        norm = torch.nn.utils.clip_grad_norm_(module.parameters(), OPTIMIZER.clip)
        for group in adamw.param_groups:
            group["lr"] = _plain_lr(step)
        adamw.step()
        found.append((loss.item(), norm.item()))
    if evaluate:
        tokens, targets = batch_of(model, 0)
        with torch.no_grad():
            count = int((targets != IGNORED).sum())
            found.append((token_loss(module(tokens), targets).item() / count, count))
    return np.array(found)


def mesh_runs(rank: int, size: int, meet: Rendezvous, cases: Sequence[Case]) -> dict[str, np.ndarray | Exception]:
    """What this rank saw of every case that it takes part in: (loss, gradient norm) of every step."""
    torch.set_num_threads(1)
    found: dict[str, np.ndarray | Exception] = {}
    store = store_at(meet, rank=rank, size=size)
    for case in cases:
        if rank < case.mesh.ranks:
            found[case.name] = mesh_run(case, rank=rank, store=PrefixStore(case.name, store), evaluate=True)
    return found


def store_at(meet: Rendezvous, *, rank: int, size: int) -> Store:
    """One store for all ranks, held by rank 0."""
    deadline = timedelta(seconds=60)
    return TCPStore(meet.host, meet.port, world_size=size, is_master=rank == 0, timeout=deadline)


def mesh_run(case: Case, *, rank: int, store: Store | None, evaluate: bool = False) -> np.ndarray:
    """What one rank sees; see `serial_run`."""
    mesh = Mesh(
        case.mesh,
        rank=rank,
        size=case.mesh.ranks,
        device=torch.device("cpu"),
        deadline_s=30.0,
        store=store,
    )
    try:
        tower = DeepTower(case.model, mesh=mesh, optimizer=OPTIMIZER, batch_size=BATCH, seed=SEED)
        found = []
        for step in range(case.steps):
            tokens, targets = share_of(mesh, *batch_of(case.model, step))
            done = tower.step(tokens, targets)
            found.append((done.loss, done.norm))
        if evaluate:
            loss = tower.loss(*share_of(mesh, *batch_of(case.model, 0)))
            found.append((loss.mean, loss.targets))
        return np.array(found)
    finally:
        mesh.close()


def share_of(mesh: Mesh, tokens: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A data way's rows of the joint batch."""
    ways = mesh.spec.data_ways
    way = mesh.place.dp * mesh.spec.shard + mesh.place.shard
    return tokens.chunk(ways)[way], targets.chunk(ways)[way]


def check_parity(cases: Sequence[Case], *, size: int, deadline_s: float = 110.0) -> None:
    """Every case follows the serial model on every rank and step, and in an evaluation after them: 1e-10 relative in
    float64, 1e-5 in float32."""
    answers = on_ranks(mesh_runs, cases, size=size, deadline_s=deadline_s, preload=PRELOADED)
    serial: dict[tuple[TransformerSpec, int, DeepPrecision], np.ndarray] = {}
    for rank, found in answers.items():
        if isinstance(found, Exception):
            raise found
        for case in cases:
            if rank >= case.mesh.ranks:
                continue
            key = (case.model, case.steps, case.mesh.precision)
            double = case.mesh.precision is DeepPrecision.FP64
            if key not in serial:
                dtype = torch.float64 if double else torch.float32
                serial[key] = serial_run(case.model, steps=case.steps, dtype=dtype, evaluate=True)
            np.testing.assert_allclose(
                found[case.name], serial[key], rtol=1e-10 if double else 1e-5, err_msg=f"{case.name}, rank {rank}"
            )


def double(**degrees: object) -> MeshSpec:
    """A mesh in float64."""
    return replace(MeshSpec(precision=DeepPrecision.FP64), **degrees)  # type: ignore[arg-type]


def _plain_lr(step: int) -> float:
    """Warm-up of 2 steps, then a cosine to a tenth at step 6."""
    if step < 2:
        return 3e-3 * (step + 1) / 2
    return 3e-3 * (0.1 + 0.9 * 0.5 * (1 + float(np.cos(np.pi * (step - 2) / 4))))
