"""DLRM (Naumov et al. 2019, "Deep learning recommendation model", arXiv 1906.00091)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from hetero.errors import TowerError
from hetero.towers.arguments import sizes
from hetero.towers.embeddings import Embeddings, TowerInputs
from hetero.towers.fields import common_width, stack_lookups
from hetero.towers.interaction import DotInteraction
from hetero.towers.layers import MLP, add_wide


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
        bottom: Tensor | None = None if self.bottom is None else self.bottom(dense)
        logit: Tensor = self.top(self.interaction(fields, bottom))
        return add_wide(logit.squeeze(1), embeddings, self.wide)
