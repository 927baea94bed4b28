"""Factorization machine (Rendle 2010, "Factorization machines", ICDM) and DeepFM (Guo et al. 2017, IJCAI)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from hetero.towers.embeddings import Embeddings, TowerInputs
from hetero.towers.fields import common_width, deep_features, deep_width, stack_lookups
from hetero.towers.layers import MLP, LinearPart


def pairwise_dots(fields: Tensor) -> Tensor:
    """Sum of the dot products of all pairs of fields: [B, F, E] -> [B].

    Rendle 2010, lemma 3.1: half of (square of the sum minus sum of the squares), linear in the number of
    fields.
    """
    total = fields.sum(1)
    return 0.5 * (total.square() - fields.square().sum(1)).sum(1)


class FM(nn.Module):
    """Linear part over dim-1 lookups and dense features, second order over the deep lookups.

    Raises TowerError unless the deep lookups share one dim. Dense features enter the linear part only.
    """

    def __init__(self, inputs: TowerInputs) -> None:
        super().__init__()
        common_width(inputs.deep, purpose="fm")
        self.deep = inputs.deep
        self.linear = LinearPart(inputs)

    def forward(self, dense: Tensor, embeddings: Embeddings) -> Tensor:
        first: Tensor = self.linear(dense, embeddings)
        return first + pairwise_dots(stack_lookups(embeddings, self.deep))


class DeepFM(nn.Module):
    """FM and a multi-layer perceptron over the same deep lookups (and the dense features), added up.

    hidden: sizes of the deep layers; a last layer to the logit is added. Raises TowerError unless the deep
    lookups share one dim.
    """

    def __init__(
        self,
        inputs: TowerInputs,
        hidden: Sequence[int] = (400, 400, 400),
        activation: str = "relu",
        dropout: float = 0.0,
        norm: str = "none",
    ) -> None:
        super().__init__()
        self.fm = FM(inputs)
        self.mlp = MLP(
            deep_width(inputs.dense, inputs.deep),
            hidden,
            output=1,
            activation=activation,
            dropout=dropout,
            norm=norm,
        )
        self.deep = inputs.deep

    def forward(self, dense: Tensor, embeddings: Embeddings) -> Tensor:
        logit: Tensor = self.fm(dense, embeddings)
        deep: Tensor = self.mlp(deep_features(dense, embeddings, self.deep))
        return logit + deep.squeeze(1)
