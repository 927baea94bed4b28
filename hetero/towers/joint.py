"""A joint tower: a text model deep enough for a transformer and a click model wide enough for servers, as one.

    texts    -> transformer -> pooled [B, D] a text        \\
    histories, attended to by the first text               |-> head -> logit of each label
    lookups of dim 2 and more, dense features             /
    lookups of dim 1, dense features -> linear part -> added to the first label's logit

Parameters are named by their half: `text.`, `head.`, `wide.`, `histories.`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from hetero.errors import TowerError
from hetero.towers.arguments import choice, positive, probability
from hetero.towers.embeddings import Embeddings, LookupInput, TowerInputs
from hetero.towers.fields import deep_features, deep_width
from hetero.towers.layers import LinearPart, linear
from hetero.towers.outputs import TowerOutput
from hetero.towers.task_heads import MixtureOfExperts, SharedBottom
from hetero.towers.text_half import MaskedLoss, TextHalf, TextPooling, text_spec


class TextAttention(nn.Module):
    """What of a history a text asks for: text [B, D], history [B, L, E], mask bool [B, L] -> [B, E].

    Scaled dot products (Vaswani et al. 2017); zeros for an empty history.
    """

    def __init__(self, text_width: int, width: int) -> None:
        super().__init__()
        self.query = linear(text_width, width)
        self.key = linear(width, width)
        self.value = linear(width, width)

    def forward(self, text: Tensor, history: Tensor, mask: Tensor) -> Tensor:
        scores = torch.bmm(self.key(history), self.query(text).unsqueeze(2)).squeeze(2) / math.sqrt(history.shape[2])
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        shares = scores.softmax(1).masked_fill(~mask, 0.0)
        return torch.bmm(shares.unsqueeze(1), self.value(history)).squeeze(1)


class Joint(nn.Module):
    """Text and clicks in one model; several texts share one transformer.

    transformer: its sizes, `layers`, `width`, `heads`, and whatever else a deep job's `transformer` section has.
    pooling: `mean` or `cls`. text_dropout: of the pooled vectors. history: sequence lookups that the first text attends
    to; other sequences enter as means. masked: `{share, weight}` of a masked language model's loss on the side.
    hidden: layers of the head, or of each expert. experts: 0 shares the bottom among labels, more make a mixture (MMoE)
    with `task_hidden` layers a label. Raises TowerError for arguments that do not fit the job.
    """

    def __init__(
        self,
        inputs: TowerInputs,
        transformer: Mapping[str, object],
        pooling: str = "mean",
        text_dropout: float = 0.0,
        history: Sequence[str] = (),
        masked: Mapping[str, float] | None = None,
        hidden: Sequence[int] = (128, 64),
        experts: int = 0,
        task_hidden: Sequence[int] = (32,),
        activation: str = "relu",
        dropout: float = 0.0,
        norm: str = "none",
    ) -> None:
        super().__init__()
        if not inputs.texts:
            raise TowerError("joint reads texts, and the job has none; name a column of tokens in features.text")
        spec = text_spec(transformer, inputs.texts)
        self.texts = inputs.texts
        self.text = TextHalf(
            spec,
            pooling=choice("pooling", pooling, TextPooling),
            masked=_masked(masked),
            mask=inputs.texts[0].mask,
            seed=int(torch.randint(0, 1 << 62, (), device="cpu")),
        )
        self.text_dropout = nn.Dropout(probability("text_dropout", text_dropout))
        self._attended = tuple(_history(inputs, name) for name in history)
        self.histories = nn.ModuleList(TextAttention(spec.width, lookup.dim) for lookup in self._attended)
        self._rest = tuple(lookup for lookup in inputs.deep if lookup not in self._attended)
        self.wide = LinearPart(inputs) if inputs.wide or inputs.dense else None
        own = deep_width(inputs.dense, self._rest) if inputs.dense or self._rest else 0
        width = own + len(self.texts) * spec.width + sum(lookup.dim for lookup in self._attended)
        self._tasks, self._has_own, self._has_masked = len(inputs.tasks), own > 0, masked is not None
        self.head: nn.Module
        if experts:
            self.head = MixtureOfExperts(
                width,
                hidden,
                experts=positive("experts", experts),
                task_hidden=task_hidden,
                labels=1 + self._tasks,
                activation=activation,
                dropout=dropout,
                norm=norm,
            )
        else:
            self.head = SharedBottom(
                width, hidden, labels=1 + self._tasks, activation=activation, dropout=dropout, norm=norm
            )

    def read(self, tokens: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """A vector of each text, [B, D]: what needs no rows. tokens: int [B, T] each."""
        return tuple(self.text_dropout(self.text(each)) for each in tokens)

    def forward(self, dense: Tensor, embeddings: Embeddings) -> Tensor | TowerOutput:
        """Texts are read here, unless `embeddings` has what `read` made of them."""
        texts = embeddings.texts or self.read([embeddings.tokens(text.name) for text in self.texts])
        attended = [
            attention(texts[0], embeddings[lookup.name], embeddings.mask(lookup.name))
            for attention, lookup in zip(self.histories, self._attended, strict=True)
        ]
        own = [deep_features(dense, embeddings, self._rest)] if self._has_own else []
        logits: Tensor = self.head(torch.cat([*own, *attended, *texts], 1))
        first = logits[:, 0] if self.wide is None else logits[:, 0] + self.wide(dense, embeddings)
        if not self._tasks and not (self._has_masked and self.training):
            return first
        return TowerOutput(logits=first, tasks=logits[:, 1:] if self._tasks else None, side=self._side(embeddings))

    def _side(self, embeddings: Embeddings) -> Tensor | None:
        """The masked language model's loss over all texts, [B], while training."""
        if not (self._has_masked and self.training):
            return None
        return torch.stack([self.text.hidden_loss(embeddings.tokens(text.name)) for text in self.texts]).sum(0)


def _history(inputs: TowerInputs, name: str) -> LookupInput:
    lookup = inputs.lookup(name)
    if not lookup.is_sequence or lookup.dim < 2:
        raise TowerError(
            f"history: {name!r} must be a sequence (`pooling: none`) of dim 2 or more; it is pooled by "
            f"{lookup.pooling.value!r} and has dim {lookup.dim}"
        )
    return lookup


def _masked(given: Mapping[str, float] | None) -> MaskedLoss | None:
    if given is None:
        return None
    strange = sorted(set(given) - {"share", "weight"})
    if strange:
        raise TowerError(f"masked has no argument {strange[0]!r}; it accepts share and weight")
    masked = MaskedLoss(**{name: float(value) for name, value in given.items()})
    if not 0 < masked.share < 1 or masked.weight <= 0:
        raise TowerError(
            f"masked: share must lie between 0 and 1, weight above 0; got {masked.share:g}, {masked.weight:g}"
        )
    return masked
