"""From features to a logit for each label: one network for all up to a last layer, or a mixture of experts a label."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hetero.errors import TowerError
from hetero.towers.layers import MLP


class SharedBottom(nn.Module):
    """One network (Caruana 1997), then one linear layer a label: [B, inputs] -> logits [B, labels]."""

    def __init__(
        self, inputs: int, hidden: Sequence[int], *, labels: int, activation: str, dropout: float, norm: str
    ) -> None:
        super().__init__()
        self.mlp = MLP(inputs, hidden, output=labels, activation=activation, dropout=dropout, norm=norm)

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.mlp(features)
        return logits


class MixtureOfExperts(nn.Module):
    """MMoE (Ma et al. 2018, "Modeling task relationships in multi-task learning with multi-gate mixture-of-experts",
    KDD): experts that all labels share, a softmax gate and a network of its own for each label.

    hidden: layers of an expert; task_hidden: of a label's network; a last layer to the logit is added.
    """

    def __init__(
        self,
        inputs: int,
        hidden: Sequence[int],
        *,
        experts: int,
        task_hidden: Sequence[int],
        labels: int,
        activation: str,
        dropout: float,
        norm: str,
    ) -> None:
        super().__init__()
        if not hidden:
            raise TowerError("hidden: an expert needs at least one layer, got none")

        def network(width: int, layers: Sequence[int], output: int | None) -> MLP:
            return MLP(width, layers, output=output, activation=activation, dropout=dropout, norm=norm)

        self.experts = nn.ModuleList(network(inputs, hidden, None) for _ in range(experts))
        self.gates = nn.ModuleList(nn.Linear(inputs, experts, bias=False) for _ in range(labels))
        self.heads = nn.ModuleList(network(hidden[-1], task_hidden, 1) for _ in range(labels))

    def forward(self, features: Tensor) -> Tensor:
        opinions = torch.stack([expert(features) for expert in self.experts], 1)  # [B, experts, H]
        logits = []
        for gate, head in zip(self.gates, self.heads, strict=True):
            shares = torch.softmax(gate(features), 1)
            logits.append(head(torch.bmm(shares.unsqueeze(1), opinions).squeeze(1)))
        return torch.cat(logits, 1)
