"""The peers' linear tower: one linear layer over dense features and all embeddings; it leaves the sparse side alone."""

from __future__ import annotations

from torch import Tensor, nn

from hetero.towers.embeddings import Embeddings, TowerInputs
from hetero.towers.fields import concat_lookups


class LinearTower(nn.Module):
    """logit [B] = w . [dense, embeddings] + b."""

    def __init__(self, inputs: TowerInputs) -> None:
        super().__init__()
        self.lookups = inputs.deep
        self.dense = nn.Linear(inputs.dense, 1)
        self.embedded = nn.Linear(sum(lookup.dim for lookup in inputs.deep), 1, bias=False)

    def forward(self, dense: Tensor, embeddings: Embeddings) -> Tensor:
        logit: Tensor = self.dense(dense) + self.embedded(concat_lookups(embeddings, self.lookups))
        return logit.squeeze(1)
