"""DCN-v2 (Wang et al. 2021, "DCN V2: improved deep & cross network", WWW)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import torch
from torch import Tensor, nn

from hetero.towers.arguments import choice, positive
from hetero.towers.embeddings import Embeddings, TowerInputs
from hetero.towers.fields import deep_features, deep_width
from hetero.towers.layers import MLP, add_wide, linear


class Structure(Enum):
    """STACKED: the deep layers follow the cross layers. PARALLEL: both read the inputs and are joined."""

    STACKED = "stacked"
    PARALLEL = "parallel"


class CrossNetwork(nn.Module):
    """x[l + 1] = x[0] * (W[l] x[l] + b[l]) + x[l], elementwise product: [B, width] -> [B, width].

    rank: None for full matrices; else W = U V with V [rank, width] and U [width, rank] (section 3.2).
    """

    def __init__(self, width: int, *, layers: int, rank: int | None = None) -> None:
        super().__init__()
        self.down = nn.ModuleList()
        if rank is not None:
            for _ in range(layers):
                low = nn.Linear(width, rank, bias=False)
                nn.init.xavier_normal_(low.weight)
                self.down.append(low)
        self.cross = nn.ModuleList(linear(width if rank is None else rank, width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        crossed = x
        for layer, cross in enumerate(self.cross):
            inner = self.down[layer](crossed) if self.down else crossed
            crossed = torch.addcmul(crossed, x, cross(inner))
        return crossed


class DCNv2(nn.Module):
    """Cross network and multi-layer perceptron over dense features and deep lookups.

    cross_layers: how many. rank: of the cross matrices, null for full ones. hidden: sizes of the deep layers
    (empty: cross network alone); a last layer to the logit is added. structure: stacked or parallel. dim-1
    lookups are added to the logit. Raises TowerError when there are no inputs or an argument is out of range.
    """

    def __init__(
        self,
        inputs: TowerInputs,
        cross_layers: int = 3,
        rank: int | None = None,
        hidden: Sequence[int] = (256, 128),
        structure: str = "stacked",
        activation: str = "relu",
        dropout: float = 0.0,
        norm: str = "none",
    ) -> None:
        super().__init__()
        width = deep_width(inputs.dense, inputs.deep)
        self.wide, self.deep = inputs.wide, inputs.deep
        self.structure = choice("structure", structure, Structure)
        self.cross = CrossNetwork(
            width,
            layers=positive("cross_layers", cross_layers),
            rank=None if rank is None else positive("rank", rank),
        )
        self.mlp = MLP(width, hidden, activation=activation, dropout=dropout, norm=norm)
        joined = self.mlp.width + (width if self.structure is Structure.PARALLEL else 0)
        self.output = linear(joined, 1)

    def forward(self, dense: Tensor, embeddings: Embeddings) -> Tensor:
        x = deep_features(dense, embeddings, self.deep)
        crossed: Tensor = self.cross(x)
        if self.structure is Structure.STACKED:
            joined: Tensor = self.mlp(crossed)
        else:
            joined = torch.cat([crossed, self.mlp(x)], 1)
        logit: Tensor = self.output(joined)
        return add_wide(logit.squeeze(1), embeddings, self.wide)
