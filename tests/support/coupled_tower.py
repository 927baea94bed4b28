"""A tower with BatchNorm and dropout: state besides parameters, and random numbers while training."""

from __future__ import annotations

import torch
from torch import nn

from hetero.towers.embeddings import Embeddings, TowerInputs


class CoupledTower(nn.Module):
    """Deep part of the lookups that are no sequences."""

    def __init__(self, inputs: TowerInputs, width: int = 8) -> None:
        super().__init__()
        self._names = [lookup.name for lookup in inputs.deep if not lookup.is_sequence]
        size = sum(lookup.dim for lookup in inputs.deep if not lookup.is_sequence) + inputs.dense
        self.layers = nn.Sequential(
            nn.BatchNorm1d(size), nn.Linear(size, width), nn.ReLU(), nn.Dropout(0.3), nn.Linear(width, 1)
        )

    def forward(self, dense: torch.Tensor, embeddings: Embeddings) -> torch.Tensor:
        logits: torch.Tensor = self.layers(torch.cat([dense, embeddings.concat(self._names)], 1))
        return logits
