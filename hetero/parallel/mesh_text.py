"""A tower's text half that lies on a mesh, as a leader sees it: a module like `TextHalf`, without its memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hetero.errors import JobError
from hetero.parallel.text_mesh import TextRank
from hetero.towers.text_half import distinct_texts
from hetero.towers.transformer import Transformer

PREFIX = "transformer."
"""Of its parameters' names, as `TextHalf` has them."""


class MeshText(nn.Module):
    """Texts to vectors by the ranks of a mesh. Its state dict is that of a whole text half."""

    def __init__(self, rank: TextRank) -> None:
        super().__init__()
        self.rank = rank

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens int [B, T] -> [B, D]."""
        distinct, place = distinct_texts(tokens)
        if not len(distinct):
            return torch.zeros(0, self.rank.width)
        if torch.is_grad_enabled() and self.training and not self.rank.frozen:
            apply: Callable[[Tensor, Tensor, TextRank], Tensor] = _OnMesh.apply
            vectors = apply(torch.zeros((), requires_grad=True), distinct, self.rank)
        else:
            vectors = self.rank.vectors(distinct, training=self.training, keep=False)
        return vectors[place]

    def hidden_loss(self, tokens: Tensor) -> Tensor:
        raise JobError("tower.mesh: the loss on hidden tokens is not computed on a mesh; leave `masked` out")

    def begin_with(self, transformer: Transformer) -> None:
        """Take the parameters of a whole transformer."""
        self.rank.load(dict(transformer.state_dict()), {}, steps=0)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        parameters, _ = self.rank.state()
        for name, value in parameters.items():
            destination[f"{prefix}{PREFIX}{name}"] = value

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        begin = f"{prefix}{PREFIX}"
        found = {name.removeprefix(begin): value for name, value in state_dict.items() if name.startswith(begin)}
        wanted = self.rank.names()
        missing_keys += [begin + name for name in wanted if name not in found]
        unexpected_keys += [begin + name for name in found if name not in wanted]
        if set(found) == set(wanted):
            self.rank.load(found, {}, steps=self.rank.steps)


class _OnMesh(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, tokens: Tensor, rank: TextRank) -> Tensor:
        vectors = rank.vectors(tokens, training=True, keep=True)
        ctx.rank, ctx.number = rank, rank.passed
        return vectors

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        ctx.rank.backward(ctx.number, gradients[0])
        return torch.zeros(()), None, None
