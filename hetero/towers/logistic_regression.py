"""Logistic regression: the linear part alone."""

from __future__ import annotations

from torch import Tensor, nn

from hetero.errors import TowerError
from hetero.towers.embeddings import Embeddings, TowerInputs
from hetero.towers.layers import LinearPart, refuse_deep


class LogisticRegression(nn.Module):
    """logit = bias + sum of dim-1 lookups + dense @ w.

    Raises TowerError when there is a lookup of dim > 1, or nothing to regress on.
    """

    def __init__(self, inputs: TowerInputs) -> None:
        super().__init__()
        refuse_deep(inputs, tower="logistic regression")
        if not inputs.dense and not inputs.wide:
            raise TowerError("logistic regression needs lookups of dim 1 or dense features; the job has neither")
        self.linear = LinearPart(inputs)

    def forward(self, dense: Tensor, embeddings: Embeddings) -> Tensor:
        logit: Tensor = self.linear(dense, embeddings)
        return logit
