"""One rank of a deep model: a step from token blocks to updated parameters, the same at one rank as on any mesh."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from hetero.errors import NumericsError, PeerLostError
from hetero.parallel.adamw import LossScale, MeshAdamW, Owned, learning_rate
from hetero.parallel.compose import check_mesh
from hetero.parallel.mesh import Mesh
from hetero.parallel.micro_batches import micro_batches_of
from hetero.parallel.parts import build_parts, local_of, rank_of_stage
from hetero.parallel.tensor import settle_gradients
from hetero.parallel.vocabulary import vocabulary_parallel_loss
from hetero.records.mesh import DeepOptimizerSpec, DeepPrecision
from hetero.records.transformer import Objective, TransformerSpec
from hetero.towers.transformer import IGNORED, token_loss

_EMBEDDING = "embed.tokens.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepStep:
    """loss: nats a target, mean over the whole batch. norm: of the gradient before clipping. targets: those counted.
    skipped: a float16 gradient overflowed, and nothing was changed."""

    step: int
    loss: float
    norm: float
    lr: float
    targets: int
    skipped: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepLoss:
    """Of an evaluation: the sum of cross-entropies in nats, and the targets it is over."""

    nats: float
    targets: int

    @property
    def mean(self) -> float:
        """Nats a target."""
        return self.nats / self.targets if self.targets else math.nan

    def __add__(self, other: DeepLoss) -> DeepLoss:
        return DeepLoss(nats=self.nats + other.nats, targets=self.targets + other.targets)


class DeepTower:
    """This rank's share of model and optimizer. All ranks call the same methods in the same order.

    Raises JobError when model, mesh and batch do not go together, PeerLostError when another rank is gone or late,
    NumericsError on all ranks at the same step when loss or gradient is not finite.
    """

    def __init__(
        self,
        model: TransformerSpec,
        *,
        mesh: Mesh,
        optimizer: DeepOptimizerSpec,
        batch_size: int,
        seed: int,
    ) -> None:
        check_mesh(mesh.spec, model=model, batch_size=batch_size, ranks=mesh.size)
        self.model = model
        self.mesh = mesh
        self.seed = seed
        self.step_number = 0
        self.scale = LossScale() if mesh.spec.precision is DeepPrecision.FP16 else None
        with self._named("building the model"):
            self.parts = build_parts(model, mesh, seed=seed)
        sequences = batch_size // mesh.spec.data_ways // mesh.spec.micro_batches
        self._batches = micro_batches_of(self.parts, mesh, sequences=sequences, context=model.context)
        self.optimizer = MeshAdamW(self._owned(), optimizer, mesh.spec)

    def step(self, tokens: Tensor, targets: Tensor) -> DeepStep:
        """Train on this data way's share of one batch: int64 [b, T] both."""
        number = self.step_number
        with self._named(f"step {number}"):
            self._seed_dropout(number)
            self._train_mode(True)
            count = self._count(targets)
            scale = 1.0 if self.scale is None else self.scale.value
            share = scale / count

            def loss_of(output: Tensor, wanted: Tensor) -> Tensor:
                return self._loss(output, wanted) * share

            loss = self._batches.gradients(tokens, targets, loss_of=loss_of)
            self._settle()
            norm_share = self.optimizer.norm_share(unscale=1.0 / scale)
            mean, squares = self._reduced(None if loss is None else loss / scale, norm_share)
        lr = learning_rate(self.optimizer.spec, number)
        norm = math.sqrt(squares) if squares >= 0 else math.nan
        skipped = self._refuse_or_skip(number, mean, norm)
        if not skipped:
            self.optimizer.step(lr=lr, norm=norm)
        self.optimizer.clear()
        self.step_number += 1
        return DeepStep(step=number, loss=mean, norm=norm, lr=lr, targets=count, skipped=skipped)

    def loss(self, tokens: Tensor, targets: Tensor) -> DeepLoss:
        """Of this batch, shares given as to `step`; IGNORED targets are left out, and nothing changes."""
        with self._named("evaluation"):
            self._train_mode(False)
            count = self._count_all(targets)
            loss = self._batches.loss(tokens, targets, loss_of=self._loss)
            nothing = torch.zeros((), dtype=torch.float64, device=self.mesh.device)
            return DeepLoss(nats=self._reduced(loss, nothing)[0], targets=count)

    @property
    def bubble(self) -> float | None:
        """Share of the last step's forward and backward that this rank waited for other pipeline stages."""
        return self._batches.bubble

    @property
    def waited_s(self) -> float:
        """Seconds of the last step that this rank waited for other pipeline stages."""
        return self._batches.waited_s

    def parameters(self) -> Mapping[str, Tensor]:
        """This rank's parameters by their names in the whole model; pieces of them where they are split."""
        return {name: parameter for part in self.parts.values() for name, parameter in part.named_parameters()}

    def _owned(self) -> list[Owned]:
        owned: dict[str, Owned] = {}
        for part in self.parts.values():
            second = part.spec.tied and not part.part.first
            for name, parameter in part.named_parameters():
                owned[f"{name}@{part.part.start}" if second and name == _EMBEDDING else name] = Owned(
                    name=name, parameter=parameter, counts=not (second and name == _EMBEDDING)
                )
        return list(owned.values())

    def _loss(self, output: Tensor, wanted: Tensor) -> Tensor:
        if self.mesh.spec.tp == 1:
            return token_loss(output, wanted)
        return vocabulary_parallel_loss(output, wanted, group=self.mesh.group("tp"))

    def _count(self, targets: Tensor) -> int:
        """Targets that count, over the whole batch; a causal model's all do."""
        if self.model.objective is Objective.CAUSAL:
            return targets.numel() * self.mesh.spec.data_ways
        return max(1, self._count_all(targets))

    def _count_all(self, targets: Tensor) -> int:
        place = self.mesh.place
        here = (targets != IGNORED).sum() if place.pp == place.tp == 0 else torch.zeros((), dtype=torch.int64)
        return int(self.mesh.sum_over_ranks(here.to(self.mesh.device)))

    def _reduced(self, loss: Tensor | None, squares: Tensor) -> tuple[float, float]:
        """Loss and squared norm over all ranks."""
        shares = torch.zeros(2, dtype=torch.float64, device=self.mesh.device)
        if loss is not None and self.mesh.place.tp == 0:
            shares[0] = loss
        shares[1] = squares
        mean, total = self.mesh.sum_over_ranks(shares).tolist()
        return mean, total

    def _settle(self) -> None:
        """Make gradients whole that lie in parts: norms' over tensor-parallel ranks, a tied embedding's over stages."""
        for part in self.parts.values():
            settle_gradients(part)
        if self.model.tied and self.mesh.spec.pp > 1:
            self._sum_tied()

    def _sum_tied(self) -> None:
        spec, last = self.mesh.spec, self.mesh.spec.stages - 1
        ends = [rank_of_stage(spec, 0), rank_of_stage(spec, last)]
        if self.mesh.place.pp not in ends:
            return
        ours = [self._embedding_gradient(stage) for stage in (0, last) if stage in self.parts]
        if len(ours) == 2:
            ours[0].add_(ours[1])
            ours[1].copy_(ours[0])
            return
        (mine,) = ours
        theirs = torch.empty_like(mine)
        group, peer = self.mesh.group("pp"), ends[1] if self.mesh.place.pp == ends[0] else ends[0]
        swap = [
            dist.P2POp(dist.isend, mine.contiguous(), group=group, group_peer=peer),
            dist.P2POp(dist.irecv, theirs, group=group, group_peer=peer),
        ]
        for work in dist.batch_isend_irecv(swap):
            work.wait()
        mine.add_(theirs)

    def _embedding_gradient(self, stage: int) -> Tensor:
        gradient = self.parts[stage].get_parameter(_EMBEDDING).grad
        assert gradient is not None
        return local_of(gradient)

    def _refuse_or_skip(self, number: int, loss: float, norm: float) -> bool:
        finite = math.isfinite(loss) and math.isfinite(norm)
        if self.scale is not None:
            self.scale.note(overflowed=not finite)
            return not finite
        if not finite:
            raise NumericsError(
                f"step {number}: loss {loss:g}, gradient norm {norm:g}; nothing was changed in this step; lower "
                f"optimizer.lr ({self.optimizer.spec.lr:g}), or clip the gradient"
            )
        return False

    def _seed_dropout(self, step: int) -> None:
        """Dropout is a function of (seed, step, rank); with another mesh it is another."""
        if self.model.dropout:
            torch.manual_seed((self.seed * 1_000_003 + step) * 65_537 + self.mesh.rank)

    def _train_mode(self, training: bool) -> None:
        for part in self.parts.values():
            part.train(training)

    def _named(self, what: str) -> _Named:
        return _Named(self.mesh, what)


class _Named:
    """Turns what a collective raises when a peer is gone or late into an error that says who saw it and when."""

    def __init__(self, mesh: Mesh, what: str) -> None:
        self._mesh = mesh
        self._what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (RuntimeError, dist.DistError)) and _of_a_peer(error):
            place = self._mesh.place
            raise PeerLostError(
                f"rank {self._mesh.rank} of {self._mesh.size} (pp {place.pp}, dp {place.dp}, shard {place.shard}, tp "
                f"{place.tp}): {self._what} did not finish within {self._mesh.deadline_s:g} s of waiting; another rank "
                f"is gone or late: {str(error).splitlines()[0]}"
            ) from error


def _of_a_peer(error: BaseException) -> bool:
    words = str(error).lower()
    return isinstance(error, dist.DistError) or any(
        word in words for word in ("gloo", "timed out", "timeout", "connection", "nccl", "socket")
    )
