"""DLRM (Naumov et al. 2019, "Deep learning recommendation model", arXiv 1906.00091)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hetero.errors import TowerError
from hetero.towers.arguments import sizes
from hetero.towers.embeddings import Embeddings, TowerInputs
from hetero.towers.fields import common_width, stack_lookups
from hetero.towers.layers import MLP, add_wide


class DotInteraction(nn.Module):
    """All dot products of unlike fields: [B, F, E] -> [B, F * (F - 1) / 2].

    Order: the strictly lower triangle row by row, (1,0), (2,0), (2,1), (3,0) ...
    """

    lower: Tensor

    def __init__(self, fields: int) -> None:
        super().__init__()
        row, column = torch.tril_indices(fields, fields, offset=-1)
        self.register_buffer("lower", row * fields + column, persistent=False)

    def forward(self, fields: Tensor) -> Tensor:
        products = torch.bmm(fields, fields.transpose(1, 2))
        return products.flatten(1).index_select(1, self.lower)


class DLRM(nn.Module):
    """Bottom MLP on the dense features, dot interaction with the deep lookups, top MLP on both.

    bottom, top: hidden sizes. A last bottom layer to the lookups' dim (with activation) and a last top
    layer to the logit (without) are added. Without dense features there is no bottom part. dim-1 lookups
    are added to the logit. Raises TowerError unless the deep lookups share one dim.
    """

    def __init__(
        self,
        inputs: TowerInputs,
        bottom: Sequence[int] = (512, 256),
        top: Sequence[int] = (512, 256),
        activation: str = "relu",
        dropout: float = 0.0,
        norm: str = "none",
    ) -> None:
        super().__init__()
        width = common_width(inputs.deep, purpose="dlrm")
        self.wide, self.deep = inputs.wide, inputs.deep
        fields = len(inputs.deep) + (1 if inputs.dense else 0)
        if fields < 2:
            raise TowerError("dlrm needs two fields to interact: dense features and a deep lookup, or two lookups")
        self.bottom: MLP | None = None
        if inputs.dense:
            layers = (*sizes("bottom", bottom), width)
            self.bottom = MLP(inputs.dense, layers, activation=activation, norm=norm)
        self.interaction = DotInteraction(fields)
        pairs = fields * (fields - 1) // 2
        self.top = MLP(
            (width if inputs.dense else 0) + pairs,
            sizes("top", top),
            output=1,
            activation=activation,
            dropout=dropout,
            norm=norm,
        )

    def forward(self, dense: Tensor, embeddings: Embeddings) -> Tensor:
        fields = stack_lookups(embeddings, self.deep)
        if self.bottom is None:
            features: Tensor = self.interaction(fields)
        else:
            bottom: Tensor = self.bottom(dense)
            fields = torch.cat([bottom.unsqueeze(1), fields], 1)
            features = torch.cat([bottom, self.interaction(fields)], 1)
        logit: Tensor = self.top(features)
        return add_wide(logit.squeeze(1), embeddings, self.wide)
