"""A text half under a small head, trained on a mesh of processes, and the same trained whole to hold it against."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch._C._distributed_c10d import PrefixStore

from hetero.exchange.dense_sides import ReplicatedDense
from hetero.exchange.meshed_dense import MeshedDense
from hetero.exchange.traffic import Traffic
from hetero.observe.spans import SpanClock
from hetero.parallel.dense import DenseUpdater
from hetero.parallel.group import Rendezvous, SoleTower
from hetero.parallel.mesh import Mesh
from hetero.parallel.mesh_text import MeshText
from hetero.parallel.text_mesh import TextRank
from hetero.records import PartSpec, TowerSpec
from hetero.records.mesh import DeepPrecision, LrSchedule, MeshSpec
from hetero.records.transformer import NormKind, Objective, Positions, TransformerSpec
from hetero.towers.text_half import TextHalf, TextPooling
from tests.support.deep_runs import store_at

ROWS, LENGTH, VOCABULARY = 12, 7, 24
MODEL = TransformerSpec(
    layers=4,
    width=16,
    heads=4,
    kv_heads=2,
    hidden=32,
    vocabulary=VOCABULARY,
    context=LENGTH + 5,
    objective=Objective.MASKED,
    init_std=0.2,
)
OTHER = replace(MODEL, positions=Positions.LEARNED, norm=NormKind.LAYER, bias=True, objective=Objective.CAUSAL)
PART = PartSpec(name="text", lr=0.02, weight_decay=0.1, warmup=2, schedule=LrSchedule.LINEAR, steps=9, clip=0.05)
SPEC = TowerSpec(name="any", optimizer="sgd", lr=0.1, parts=(PART,))
State = tuple[dict[str, Tensor], dict[str, Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextCase:
    """Steps on one mesh after the other, each going on from the state of the one before."""

    name: str
    meshes: tuple[MeshSpec, ...]
    steps: int = 2
    model: TransformerSpec = MODEL


class Headed(nn.Module):
    """A linear head over the vectors of two texts a row."""

    def __init__(self, text: nn.Module) -> None:
        super().__init__()
        self.text = text
        torch.manual_seed(3)
        self.head = nn.Linear(2 * MODEL.width, 1, dtype=torch.float64)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.cat([self.text(tokens[:, 0]), self.text(tokens[:, 1])], 1))
        return logits.squeeze(1)


def batch_of(step: int) -> tuple[Tensor, Tensor]:
    """Tokens int32 [ROWS, 2, LENGTH], some texts empty, some equal; labels float64 [ROWS]."""
    random = np.random.default_rng(step)
    tokens = random.integers(0, VOCABULARY, (ROWS, 2, LENGTH)).astype(np.int32)
    lengths = random.integers(0, LENGTH + 1, (ROWS, 2, 1))
    tokens[np.broadcast_to(np.arange(LENGTH) >= lengths, tokens.shape)] = -1
    tokens[1] = tokens[0]
    return torch.from_numpy(tokens), torch.from_numpy(random.integers(0, 2, ROWS).astype(np.float64))


def loss_of(module: nn.Module, tokens: Tensor, labels: Tensor) -> Tensor:
    """This way's share of the mean over the whole batch."""
    losses = torch.nn.functional.binary_cross_entropy_with_logits(module(tokens), labels, reduction="sum")
    return losses / ROWS


def serial_run(case: TextCase) -> tuple[list[float], State]:
    """Losses of every step, and the state after them."""
    text = TextHalf(case.model, pooling=TextPooling.MEAN, seed=5).double()
    module = Headed(text)
    update = DenseUpdater(module, SPEC, group=SoleTower(), clock=SpanClock())
    update._flat = update._flat.double()
    found = []
    for step in range(case.steps * len(case.meshes)):
        loss = loss_of(module, *batch_of(step))
        loss.backward()  # type: ignore[no-untyped-call]
        found.append(update.step(loss).loss)
    return found, (dict(module.state_dict()), update.state())


def mesh_runs(rank: int, size: int, meet: Rendezvous, cases: Sequence[TextCase]) -> dict[str, object]:
    """What a leader saw of every case: losses, and the state at its end; None of ranks that lead nobody."""
    torch.set_num_threads(1)
    found: dict[str, object] = {}
    store = store_at(meet, rank=rank, size=size)
    for case in cases:
        state: State | None = None
        losses: list[float] = []
        for number, mesh in enumerate(case.meshes):
            store_of = PrefixStore(f"{case.name}/{number}", store)
            before = torch.load(io.BytesIO(store.get(f"{case.name}/state-{number}"))) if number else None
            run = _mesh_run(case, mesh, rank=rank, store=store_of, number=number, before=before, size=size)
            losses, state = run if run is not None else (losses, None)
            if state is not None:
                written = io.BytesIO()
                torch.save((losses, state), written)
                store.set(f"{case.name}/state-{number + 1}", written.getvalue())  # type: ignore[arg-type]
        found[case.name] = None
        if state is not None:
            found[case.name] = losses, *({name: value.numpy() for name, value in part.items()} for part in state)
    return found


def _mesh_run(
    case: TextCase,
    spec: MeshSpec,
    *,
    rank: int,
    store: PrefixStore,
    number: int,
    before: tuple[list[float], State] | None,
    size: int,
) -> tuple[list[float], State] | None:
    """Losses so far and the state of a leader; None of others. before: those of the mesh before."""
    mesh = Mesh(spec, rank=rank, size=size, device=torch.device("cpu"), deadline_s=30.0, store=store)
    try:
        text = TextRank(case.model, mesh=mesh, part=PART, seed=5)
        if not text.leads:
            text.follow()
            return None
        module = Headed(MeshText(text)).train()
        updater = DenseUpdater(module, SPEC, group=text.leaders, clock=SpanClock())
        updater._flat = updater._flat.double()
        dense = MeshedDense(ReplicatedDense(updater, module, towers=spec.dp, traffic=Traffic()), text)
        losses: list[float] = []
        if before is not None:
            losses, state = before
            module.load_state_dict(state[0])
            dense.restore(state[1])
        for step in range(number * case.steps, (number + 1) * case.steps):
            tokens, labels = (part.chunk(spec.dp)[mesh.place.dp] for part in batch_of(step))
            loss = loss_of(module, tokens, labels)
            loss.backward()  # type: ignore[no-untyped-call]
            losses.append(dense.step(loss).loss)
        found = (dict(module.state_dict()), dense.state())
        text.stop()
        return losses, found
    finally:
        mesh.close()


def double(**degrees: object) -> MeshSpec:
    """A mesh in float64."""
    return replace(MeshSpec(precision=DeepPrecision.FP64), **degrees)  # type: ignore[arg-type]
