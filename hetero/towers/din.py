"""DIN (Zhou et al. 2018, "Deep interest network for click-through rate prediction", KDD)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import torch
from torch import Tensor, nn

from hetero.errors import TowerError
from hetero.towers.arguments import choice
from hetero.towers.embeddings import Embeddings, LookupInput, TowerInputs
from hetero.towers.fields import deep_features, deep_width
from hetero.towers.layers import MLP, add_wide


class Attention(Enum):
    """PLAIN: scores weigh the sequence as they are, as in the paper. SOFTMAX: normalised to sum 1."""

    PLAIN = "plain"
    SOFTMAX = "softmax"


class TargetAttention(nn.Module):
    """Weighs a history by how its items relate to a target.

    target [B, E], history [B, L, E], mask bool [B, L] -> [B, E]; zeros for an empty history. An item's
    score is an MLP over [h, t, h - t, h * t].
    """

    def __init__(self, width: int, hidden: Sequence[int], *, activation: str, attention: str) -> None:
        super().__init__()
        self.attention = choice("attention", attention, Attention)
        self.score = MLP(4 * width, hidden, output=1, activation=activation)

    def forward(self, target: Tensor, history: Tensor, mask: Tensor) -> Tensor:
        aside = target.unsqueeze(1).expand_as(history)
        pairs = torch.cat([history, aside, history - aside, history * aside], 2)
        scores: Tensor = self.score(pairs).squeeze(2)
        if self.attention is Attention.SOFTMAX:
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(1)
        scores = scores.masked_fill(~mask, 0.0)
        return torch.bmm(scores.unsqueeze(1), history).squeeze(1)


class DIN(nn.Module):
    """Attention of target lookups over sequence lookups, then an MLP over everything.

    pairs: [[target, history], ...]; a target is a pooled lookup, its history a sequence of the same dim.
    Other sequences enter as masked means. attention_hidden: sizes of the scoring MLP. hidden: sizes of the
    deep layers; a last layer to the logit is added. dim-1 lookups are added to the logit. Raises TowerError
    for a pair that does not fit.
    """

    def __init__(
        self,
        inputs: TowerInputs,
        pairs: Sequence[Sequence[str]],
        hidden: Sequence[int] = (200, 80),
        attention_hidden: Sequence[int] = (80, 40),
        attention_activation: str = "sigmoid",
        attention: str = "plain",
        activation: str = "prelu",
        dropout: float = 0.0,
        norm: str = "none",
    ) -> None:
        super().__init__()
        self.pairs = tuple(_checked_pair(inputs, pair) for pair in pairs)
        if not self.pairs:
            raise TowerError("pairs must hold at least one [target, history], got none")
        self.attentions = nn.ModuleList(
            TargetAttention(target.dim, attention_hidden, activation=attention_activation, attention=attention)
            for target, _ in self.pairs
        )
        attended = {history.name for _, history in self.pairs}
        self.wide = inputs.wide
        self.rest = tuple(lookup for lookup in inputs.deep if lookup.name not in attended)
        width = deep_width(inputs.dense, self.rest) + sum(history.dim for _, history in self.pairs)
        self.mlp = MLP(width, hidden, output=1, activation=activation, dropout=dropout, norm=norm)

    def forward(self, dense: Tensor, embeddings: Embeddings) -> Tensor:
        attended = [
            attention(embeddings[target.name], embeddings[history.name], embeddings.mask(history.name))
            for attention, (target, history) in zip(self.attentions, self.pairs, strict=True)
        ]
        features = torch.cat([deep_features(dense, embeddings, self.rest), *attended], 1)
        logit: Tensor = self.mlp(features)
        return add_wide(logit.squeeze(1), embeddings, self.wide)


def _checked_pair(inputs: TowerInputs, pair: Sequence[str]) -> tuple[LookupInput, LookupInput]:
    if isinstance(pair, str) or len(pair) != 2:
        raise TowerError(f"pairs must hold [target, history] with two lookup names each, got {pair!r}")
    target, history = inputs.lookup(pair[0]), inputs.lookup(pair[1])
    if target.is_sequence or not history.is_sequence:
        raise TowerError(
            f"pair [{target.name}, {history.name}]: the first must be pooled (it is "
            f"{target.pooling.value!r}), the second a sequence, `pooling: none` (it is "
            f"{history.pooling.value!r})"
        )
    if target.dim != history.dim or target.dim < 2:
        raise TowerError(
            f"pair [{target.name}, {history.name}]: dims must be equal and at least 2, got {target.dim} and "
            f"{history.dim}"
        )
    return target, history
