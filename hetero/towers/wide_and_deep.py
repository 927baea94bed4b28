"""Wide & Deep (Cheng et al. 2016, "Wide & deep learning for recommender systems", DLRS)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from hetero.errors import TowerError
from hetero.towers.embeddings import Embeddings, TowerInputs
from hetero.towers.fields import deep_features, deep_width
from hetero.towers.layers import MLP, LinearPart


class WideAndDeep(nn.Module):
    """The linear part over dim-1 lookups and dense features, plus an MLP over deep lookups and the latter.

    hidden: sizes of the deep layers; a last layer to the logit is added. Raises TowerError when either part
    has no lookups.
    """

    def __init__(
        self,
        inputs: TowerInputs,
        hidden: Sequence[int] = (256, 128, 64),
        activation: str = "relu",
        dropout: float = 0.0,
        norm: str = "none",
    ) -> None:
        super().__init__()
        if not inputs.wide or not inputs.deep:
            raise TowerError(
                f"wide & deep needs lookups of dim 1 and lookups of dim 2 or more; the job has "
                f"{len(inputs.wide)} and {len(inputs.deep)}; look each feature up twice, once with dim 1"
            )
        self.linear = LinearPart(inputs)
        self.deep = inputs.deep
        self.mlp = MLP(
            deep_width(inputs.dense, inputs.deep),
            hidden,
            output=1,
            activation=activation,
            dropout=dropout,
            norm=norm,
        )

    def forward(self, dense: Tensor, embeddings: Embeddings) -> Tensor:
        wide: Tensor = self.linear(dense, embeddings)
        deep: Tensor = self.mlp(deep_features(dense, embeddings, self.deep))
        return wide + deep.squeeze(1)
