"""The text half of a joint tower: token ids through a transformer, to one vector a text.

Shapes: B rows, T tokens of a text, D width. Rows shorter than T end with NO_TOKEN, which nothing attends to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum

import torch
from torch import Tensor, compiler, nn
from torch.nn import functional

from hetero.errors import TowerError
from hetero.records.transformer import MlpKind, NormKind, Objective, Positions, TransformerSpec
from hetero.towers.arguments import choice, positive
from hetero.towers.embeddings import TextInput
from hetero.towers.transformer import Part, Transformer
from hetero.towers.transformer_initial import initial_value

VOCABULARY_MULTIPLE = 8
"""Ids are rounded up to a multiple of it, as deep jobs do, so that their snapshots fit."""
_CONTEXT_MULTIPLE = 8
_SHOWN_AS_MASK, _SHOWN_AS_OTHER = 0.8, 0.9
_KINDS: Mapping[str, type[Enum]] = {"objective": Objective, "positions": Positions, "norm": NormKind, "mlp": MlpKind}


class TextPooling(Enum):
    """How a text's states become one vector: their MEAN, or the state of a learned vector put before the text (CLS)."""

    MEAN = "mean"
    CLS = "cls"


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedLoss:
    """A masked language model's loss on the side. share: of tokens that are hidden; weight: of the loss in a row's."""

    share: float = 0.15
    weight: float = 0.1


class TextHalf(nn.Module):
    """Texts to vectors. `transformer` has the parameters of a deep job's model under the same names.

    mask: the id shown for hidden tokens, where `masked` asks for a loss on them. seed: of first values.
    """

    def __init__(
        self,
        spec: TransformerSpec,
        *,
        pooling: TextPooling,
        masked: MaskedLoss | None = None,
        mask: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if masked is not None and mask is None:
            raise TowerError("masked: the text's tokenizer has no id for hidden tokens; give features.text[*].mask")
        part = Part(start=0, stop=spec.layers, first=True, last=True, head=masked is not None)
        self.transformer = Transformer(spec, part=part)
        self.cls = nn.Parameter(torch.zeros(spec.width)) if pooling is TextPooling.CLS else None
        self.seed = seed
        self.spec, self._masked, self._mask = spec, masked, mask
        with torch.no_grad():
            for name, parameter in self.transformer.named_parameters():
                if parameter.is_meta:  # only its sizes are wanted
                    continue
                parameter.copy_(initial_value(name, parameter.shape, spec, seed=seed))
            if self.cls is not None and not self.cls.is_meta:
                self.cls.copy_(initial_value("cls", torch.Size((1, spec.width)), spec, seed=seed)[0])

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens int [B, T] -> [B, D]; zeros for an empty text, but for CLS. Equal texts are read once, and share what
        dropout drops of them: items' texts repeat within a batch."""
        if compiler.is_exporting():  # a graph must not depend on values
            return self._vectors(tokens)
        distinct, place = distinct_texts(tokens)
        return self._vectors(distinct)[place]

    def _vectors(self, tokens: Tensor) -> Tensor:
        known = tokens >= 0
        states = self._states(tokens, known)
        if self.cls is not None:
            return states[:, 0]
        weights = known.to(states.dtype)
        return torch.bmm(weights.unsqueeze(1), states).squeeze(1) / weights.sum(1, keepdim=True).clamp(min=1)

    def hidden_loss(self, tokens: Tensor) -> Tensor:
        """Of tokens int [B, T], some are hidden and guessed: mean nats of a row's hidden tokens, weighted, [B].

        Which ones, torch's generator says, which the step loop seeds: 80% of them are shown as the mask, 10% as another
        token, 10% as they are (Devlin et al. 2019, BERT).
        """
        assert self._masked is not None
        tokens = _without_common_end(tokens)
        known = tokens >= 0
        hidden = known & (torch.rand(tokens.shape) < self._masked.share)
        draw = torch.rand(tokens.shape)
        others = torch.randint(0, self.spec.vocabulary, tokens.shape)
        shown = torch.where(hidden & (draw < _SHOWN_AS_OTHER), others, tokens.long())
        shown = torch.where(hidden & (draw < _SHOWN_AS_MASK), self._mask or 0, shown)
        row, place = torch.nonzero(hidden, as_tuple=True)
        states = self._states(shown, known)[row, place + (self.cls is not None)]
        nats = functional.cross_entropy(
            self.transformer.scores(states).float(), tokens[row, place].long(), reduction="none"
        )
        total = torch.zeros(len(tokens)).index_add(0, row, nats)
        return self._masked.weight * total / hidden.sum(1).clamp(min=1)

    def _states(self, tokens: Tensor, known: Tensor) -> Tensor:
        """[B, T, D], or [B, 1 + T, D] with CLS in front."""
        assert self.transformer.embed is not None
        vectors = self.transformer.embed(tokens.clamp(min=0).long())
        if self.cls is not None:
            vectors = torch.cat([self.cls.expand(len(tokens), 1, -1), vectors], 1)
            known = functional.pad(known, (1, 0), value=True)
        states: Tensor = self.transformer.encode(vectors, mask=attended(known))
        return states


def text_spec(arguments: object, texts: Sequence[TextInput]) -> TransformerSpec:
    """The transformer that a tower's argument `transformer` describes, for these texts; names as in a deep job.

    Default context: above the longest text, a multiple of 8, so that it divides over tensor-parallel ranks.
    Raises TowerError for arguments that do not fit.
    """
    if not isinstance(arguments, Mapping):
        raise TowerError(f"transformer must be a mapping such as {{layers: 2, width: 64, heads: 4}}, got {arguments!r}")
    known = {field.name for field in fields(TransformerSpec)} - {"vocabulary"}
    strange = sorted(set(arguments) - known)
    if strange:
        raise TowerError(f"transformer has no argument {strange[0]!r}; it accepts {', '.join(sorted(known))}")
    missing = [name for name in ("layers", "width", "heads") if name not in arguments]
    if missing:
        raise TowerError(f"transformer.{missing[0]} is missing; it needs layers, width and heads")
    sizes = {name: positive(f"transformer.{name}", arguments[name]) for name in ("layers", "width", "heads")}
    longest = max(text.length for text in texts)
    vocabulary = max(text.vocabulary for text in texts)
    kinds = {
        name: choice(f"transformer.{name}", arguments[name], kind) for name, kind in _KINDS.items() if name in arguments
    }
    gated = kinds.get("mlp", MlpKind.GATED) is MlpKind.GATED
    defaults = {
        "kv_heads": sizes["heads"],
        "hidden": -(-sizes["width"] * 8 // 96) * 32 if gated else 4 * sizes["width"],
        "context": -(-(longest + 1) // _CONTEXT_MULTIPLE) * _CONTEXT_MULTIPLE,
        "objective": Objective.MASKED,
        "vocabulary": -(-vocabulary // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE,
    }
    spec = TransformerSpec(**{**defaults, **arguments, **sizes, **kinds})
    if spec.context <= longest:
        raise TowerError(f"transformer.context is {spec.context}; a text of {longest} tokens needs {longest + 1}")
    return spec


def distinct_texts(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Texts int [B, T] -> each once, [U, T'], without what is empty in all; and int64 [B], which one a row has."""
    distinct, place = torch.unique(_without_common_end(tokens), dim=0, return_inverse=True)
    return distinct, place


def _without_common_end(tokens: Tensor) -> Tensor:
    """Without the columns that no row has a token in, at least one stays."""
    longest = int((tokens >= 0).sum(1).max()) if len(tokens) else 1
    return tokens[:, : max(longest, 1)]


def attended(known: Tensor) -> Tensor:
    """Which keys each query may look at: bool [B, 1, 1, T]; the first one always, so that an empty text has a state."""
    first = torch.zeros_like(known)
    first[:, 0] = True
    return (known | first)[:, None, None, :]
