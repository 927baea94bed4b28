"""A joint tower: a text model deep enough for a transformer and a click model wide enough for servers, as one.

    texts    -> transformer -> pooled [B, D] a text        \\
    histories, attended to by the first text               |-> head -> logit of each label
    lookups of dim 2 and more, dense features             /
    lookups of dim 1, dense features -> linear part -> added to the first label's logit

With fusion `late` texts have a head of their own, the rest another, and logits are the means of both heads'. A network
fed by both learns first from the half that fits the training data faster, and the other half little (Wang, Tran,
Feiszli 2020, "What makes training multi-modal classification networks hard?", CVPR); `half_loss` lets each half learn
from a loss of its own besides, as there.

Parameters are named by their half: `text.`, `head.`, `wide.`, `histories.`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import cast

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


class Fusion(Enum):
    """Where the halves meet: before one head, or after a head each."""

    EARLY = "early"
    LATE = "late"


class LateHeads(nn.Module):
    """A head for texts and one for the rest, which may be absent where there is a linear part alone."""

    def __init__(self, text: nn.Module, rest: nn.Module | None) -> None:
        super().__init__()
        self.text = text
        self.rest = rest


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
    with `task_hidden` layers a label. fusion: `early` or `late`. half_loss: weight of the loss of each half's logits,
    with `late`. Raises TowerError for arguments that do not fit the job.
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
        fusion: str = "early",
        half_loss: float = 0.0,
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
        self._tasks, self._has_own, self._has_masked = len(inputs.tasks), own > 0, masked is not None
        self._is_late = choice("fusion", fusion, Fusion) is Fusion.LATE
        self._half_loss = _half_loss(half_loss, is_late=self._is_late)

        def network(width: int) -> nn.Module:
            labels = 1 + self._tasks
            if not experts:
                return SharedBottom(width, hidden, labels=labels, activation=activation, dropout=dropout, norm=norm)
            return MixtureOfExperts(
                width,
                hidden,
                experts=positive("experts", experts),
                task_hidden=task_hidden,
                labels=labels,
                activation=activation,
                dropout=dropout,
                norm=norm,
            )

        of_texts, rest = len(self.texts) * spec.width, own + sum(lookup.dim for lookup in self._attended)
        if self._is_late and not rest and self.wide is None:
            raise TowerError("fusion: `late` joins texts and what else there is, and the job has texts alone")
        self.head: nn.Module
        if self._is_late:
            self.head = LateHeads(network(of_texts), network(rest) if rest else None)
        else:
            self.head = network(of_texts + rest)

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
        linear_logits = None if self.wide is None else self.wide(dense, embeddings)
        if not self._is_late:
            logits: Tensor = _with_linear(self.head(torch.cat([*own, *attended, *texts], 1)), linear_logits)
            halves = None
        else:
            halves = self._halves(torch.cat(texts, 1), [*own, *attended], linear_logits)
            logits = (halves[0] + halves[1]) / 2
        first = logits[:, 0]
        if not self._tasks and not (self.training and (self._has_masked or self._half_loss)):
            return first
        return TowerOutput(
            logits=first,
            tasks=logits[:, 1:] if self._tasks else None,
            side=self._side(embeddings),
            parts=_first(halves) if self.training and self._half_loss else None,
            part_weight=self._half_loss,
        )

    def _halves(self, texts: Tensor, rest: Sequence[Tensor], linear_logits: Tensor | None) -> tuple[Tensor, Tensor]:
        """Logits [B, labels] of texts alone and of the rest alone."""
        heads = cast(LateHeads, self.head)
        of_texts: Tensor = heads.text(texts)
        of_rest = torch.zeros_like(of_texts) if heads.rest is None else heads.rest(torch.cat(list(rest), 1))
        return of_texts, _with_linear(of_rest, linear_logits)

    def _side(self, embeddings: Embeddings) -> Tensor | None:
        """The masked language model's loss over all texts, [B], while training."""
        if not (self._has_masked and self.training):
            return None
        return torch.stack([self.text.hidden_loss(embeddings.tokens(text.name)) for text in self.texts]).sum(0)


def _with_linear(logits: Tensor, linear_logits: Tensor | None) -> Tensor:
    """Logits [B, labels], the first label's with the linear part's [B] added."""
    if linear_logits is None:
        return logits
    return torch.cat([(logits[:, 0] + linear_logits).unsqueeze(1), logits[:, 1:]], 1)


def _first(halves: tuple[Tensor, Tensor] | None) -> Tensor | None:
    """Of both, the first label's: [B, 2]."""
    return None if halves is None else torch.stack([half[:, 0] for half in halves], 1)


def _half_loss(weight: float, *, is_late: bool) -> float:
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < math.inf:
        raise TowerError(f"half_loss must be a number of 0 or more, got {weight!r}")
    if weight and not is_late:
        raise TowerError(f"half_loss is {weight:g}, but halves have logits of their own with `fusion: late` alone")
    return float(weight)


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
