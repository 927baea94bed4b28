"""AdamW over this rank's share of the parameters, clipping over the whole mesh, and the scale of a half-precision loss.

AdamW works element by element, so each rank steps the pieces it holds, as plain tensors; copies take equal steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hetero.errors import NumericsError
from hetero.parallel.parts import local_of, ranks_apart
from hetero.records.mesh import DeepOptimizerSpec, MeshSpec

FIRST_MOMENT = "exp_avg"
SECOND_MOMENT = "exp_avg_sq"
_FIRST_SCALE = 2.0**16
_GROWTH_STEPS = 2000
_CLIP_EPS = 1e-6
_MOST_OVERFLOWS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """One parameter of this rank. counts: whether its gradient is part of the norm, which a second copy's is not."""

    name: str
    parameter: Tensor
    counts: bool


class MeshAdamW:
    """Steps the pieces of parameters that this rank holds."""

    def __init__(self, owned: Sequence[Owned], spec: DeepOptimizerSpec, mesh: MeshSpec) -> None:
        self.spec = spec
        self._owned = list(owned)
        self._mesh = mesh
        self._pieces = [local_of(one.parameter) for one in owned]
        matrices = [piece for one, piece in zip(owned, self._pieces, strict=True) if one.parameter.ndim >= 2]
        others = [piece for one, piece in zip(owned, self._pieces, strict=True) if one.parameter.ndim < 2]
        groups = [{"params": matrices, "weight_decay": spec.weight_decay}, {"params": others, "weight_decay": 0.0}]
        self._adamw = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=spec.lr,
            betas=(spec.beta1, spec.beta2),
            eps=spec.eps,
            fused=True,
        )
        self._begin_state()

    def pieces(self) -> Iterator[tuple[Owned, Mapping[str, Tensor]]]:
        """Every parameter of this rank with its moments, which have the form of the piece that the rank holds."""
        for one, piece in zip(self._owned, self._pieces, strict=True):
            yield one, self._adamw.state[piece]

    @property
    def steps(self) -> int:
        """Updates so far: what the moments are corrected by."""
        return int(self._adamw.state[self._pieces[0]]["step"])

    @steps.setter
    def steps(self, count: int) -> None:
        for piece in self._pieces:
            self._adamw.state[piece]["step"].fill_(count)

    def norm_share(self, *, unscale: float) -> Tensor:
        """This rank's share of the squared norm of the whole gradient, float64 []; shares of all ranks sum to it.

        Where r ranks hold copies of a piece, each gives 1/r. Gradients are first multiplied by `unscale`.
        """
        device = self._pieces[0].device
        total = torch.zeros((), dtype=torch.float64, device=device)
        ranks = self._mesh.data_ways * self._mesh.tp
        for one, piece in zip(self._owned, self._pieces, strict=True):
            piece.grad = self._gradient(one, piece, unscale)
            if one.counts and piece.grad is not None:
                squares = torch.linalg.vector_norm(piece.grad).to(torch.float64).square()
                total += squares * (ranks_apart(one.parameter, self._mesh) / ranks)
        return total

    def step(self, *, lr: float, norm: float) -> None:
        """Clip and update; `norm_share` was called before. norm: of the whole gradient."""
        clip = self.spec.clip
        if clip is not None and norm > clip:
            gradients = [piece.grad for piece in self._pieces if piece.grad is not None]
            torch._foreach_mul_(gradients, clip / (norm + _CLIP_EPS))
        for group in self._adamw.param_groups:
            group["lr"] = lr
        self._adamw.step()

    def clear(self) -> None:
        """Forget gradients."""
        for one, piece in zip(self._owned, self._pieces, strict=True):
            one.parameter.grad = None
            piece.grad = None

    def _gradient(self, one: Owned, piece: Tensor, unscale: float) -> Tensor | None:
        if one.parameter.grad is None:
            return None
        gradient = local_of(one.parameter.grad).to(piece.dtype)
        return gradient if unscale == 1.0 else gradient * unscale

    def _begin_state(self) -> None:
        """Zero moments from the start, so that a snapshot may be read before the first step."""
        for piece in self._pieces:
            self._adamw.state[piece] = {
                "step": torch.zeros((), dtype=torch.float32, device=piece.device),
                FIRST_MOMENT: torch.zeros_like(piece),
                SECOND_MOMENT: torch.zeros_like(piece),
            }


@dataclass(slots=True)
class LossScale:
    """The factor on a float16 loss that keeps small gradients from vanishing (Micikevicius et al. 2018).

    Halved when a gradient overflows, and the step is left out; doubled after 2,000 steps without.
    """

    value: float = _FIRST_SCALE
    good_steps: int = 0
    overflows: int = 0

    def note(self, *, overflowed: bool) -> None:
        """Take note of a step. Raises NumericsError when 40 steps on end have overflowed."""
        if overflowed:
            self.value, self.good_steps, self.overflows = max(1.0, self.value / 2), 0, self.overflows + 1
            if self.overflows >= _MOST_OVERFLOWS:
                raise NumericsError(
                    f"float16 gradients overflowed in {self.overflows} steps on end, the last at loss scale "
                    f"{self.value * 2:g}; lower the learning rate, or take precision bf16"
                )
            return
        self.good_steps, self.overflows = self.good_steps + 1, 0
        if self.good_steps == _GROWTH_STEPS:
            self.value, self.good_steps = self.value * 2, 0
