"""A transformer of plain modules: no devices, no collectives; `hetero.parallel` splits it from outside.

Shapes: B sequences, T tokens, D width, V vocabulary. A model may be cut along its blocks: a part holds the embedding
when it is the first, norm and head when it is the last, and its blocks under their numbers in the whole model, so that
a parameter has one name wherever it lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from hetero.errors import TowerError
from hetero.records.transformer import MlpKind, NormKind, Positions, TransformerSpec
from hetero.towers.attention import Attention, RotaryTable, rotary_of

IGNORED = -100
"""A target that counts for nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Blocks [start, stop) of a model of `layers`; the first part embeds, the last has norm and head.

    head: False leaves the head out, where states are wanted and no logits.
    """

    start: int
    stop: int
    first: bool
    last: bool
    head: bool = True

    @staticmethod
    def whole(spec: TransformerSpec) -> Part:
        return Part(start=0, stop=spec.layers, first=True, last=True)


class Embedding(nn.Module):
    """Token vectors, with learned position vectors added where the model has them."""

    def __init__(self, spec: TransformerSpec, *, part: Part) -> None:
        super().__init__()
        learned = spec.positions is Positions.LEARNED and part.first
        self.tokens = nn.Embedding(spec.vocabulary, spec.width)
        self.positions = nn.Embedding(spec.context, spec.width) if learned else None
        self.dropout = nn.Dropout(spec.dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens int64 [B, T] -> [B, T, D]."""
        vectors: Tensor = self.tokens(tokens)
        if self.positions is not None:
            places = torch.arange(tokens.shape[1], device=tokens.device)
            vectors = vectors + self.positions(places)
        dropped: Tensor = self.dropout(vectors)
        return dropped


class GatedMlp(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.gate = nn.Linear(spec.width, spec.hidden, bias=spec.bias)
        self.up = nn.Linear(spec.width, spec.hidden, bias=spec.bias)
        self.down = nn.Linear(spec.hidden, spec.width, bias=spec.bias)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return y


class PlainMlp(nn.Module):
    """down(gelu(up(x))), gelu by its tanh form."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.up = nn.Linear(spec.width, spec.hidden, bias=spec.bias)
        self.down = nn.Linear(spec.hidden, spec.width, bias=spec.bias)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(functional.gelu(self.up(x), approximate="tanh"))
        return y


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, spec: TransformerSpec, *, rotary: RotaryTable | None) -> None:
        super().__init__()
        self.attention_norm = norm_of(spec)
        self.attention = Attention(spec, rotary=rotary)
        self.mlp_norm = norm_of(spec)
        self.mlp = GatedMlp(spec) if spec.mlp is MlpKind.GATED else PlainMlp(spec)
        self.dropout = nn.Dropout(spec.dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """x [B, T, D]. mask: bool, which keys may be looked at, to be broadcast to [B, H, T, T]; None for all."""
        normed = self.attention_norm(x)
        x = x + self.dropout(self.attention(normed) if mask is None else self.attention(normed, mask=mask))
        y: Tensor = x + self.dropout(self.mlp(self.mlp_norm(x)))
        return y


class TiedHead(nn.Module):
    """The output projection of a tied model: it has no weights of its own."""

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        """x [B, T, D], weight [V, D] -> [B, T, V]."""
        return functional.linear(x, weight)


class Transformer(nn.Module):
    """The model, or a part of it. Raises TowerError when the spec's sizes do not go together.

    A first part takes tokens int64 [B, T], others vectors [B, T, D]; the last gives logits [B, T, V], others vectors.
    The last part of a tied model that is cut has a copy of the embedding, under the same name.
    """

    def __init__(self, spec: TransformerSpec, *, part: Part | None = None) -> None:
        super().__init__()
        check_transformer(spec)
        self.spec = spec
        self.part = part or Part.whole(spec)
        rotary = rotary_of(spec)
        has_head = self.part.last and self.part.head
        own_head = has_head and not spec.tied
        self.embed = Embedding(spec, part=self.part) if self.part.first or (has_head and spec.tied) else None
        self.blocks = nn.ModuleDict(
            {str(number): Block(spec, rotary=rotary) for number in range(self.part.start, self.part.stop)}
        )
        self.norm = norm_of(spec) if self.part.last else None
        self.head = nn.Linear(spec.width, spec.vocabulary, bias=False) if own_head else None
        self.tied_head = TiedHead() if has_head and spec.tied else None

    def forward(self, x: Tensor) -> Tensor:
        if self.part.first and self.embed is not None:
            x = self.embed(x)
        return self.scores(self.encode(x))

    def encode(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Through blocks and norm, [B, T, D] -> [B, T, D]. mask: see `Block`; of a model that looks both ways."""
        for block in self.blocks.values():
            x = block(x) if mask is None else block(x, mask)
        return x if self.norm is None else self.norm(x)

    def scores(self, x: Tensor) -> Tensor:
        """States [..., D] to logits [..., V]; as they are where the part has no head."""
        if self.head is not None:
            x = self.head(x)
        if self.tied_head is not None and self.embed is not None:
            x = self.tied_head(x, self.embed.tokens.weight)
        return x


def check_transformer(spec: TransformerSpec) -> None:
    """Raises TowerError, naming value and limit, when the spec's sizes do not go together."""
    for name in ("layers", "width", "heads", "hidden", "vocabulary", "context", "kv_heads"):
        if getattr(spec, name) < 1:
            raise TowerError(f"transformer: {name} is {getattr(spec, name)}; it must be at least 1")
    if spec.width % spec.heads:
        raise TowerError(
            f"transformer: width {spec.width} is no multiple of heads {spec.heads}; "
            f"take width {-(-spec.width // spec.heads) * spec.heads}"
        )
    if spec.heads % spec.kv_heads:
        divisors = [count for count in range(1, spec.heads + 1) if spec.heads % count == 0]
        raise TowerError(
            f"transformer: heads {spec.heads} is no multiple of kv_heads {spec.kv_heads}; take one of {divisors}"
        )
    if spec.positions is Positions.ROTARY and spec.head_width % 2:
        raise TowerError(
            f"transformer: rotary positions turn pairs, and a head is {spec.head_width} wide; take an even one"
        )
    if not 0.0 <= spec.dropout < 1.0:
        raise TowerError(f"transformer: dropout is {spec.dropout:g}; it must be in [0, 1)")


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Sum of cross-entropies in nats over targets that are not IGNORED; computed in float32 at least.

    logits [B, T, V], targets int64 [B, T].
    """
    work = logits.dtype if logits.dtype == torch.float64 else torch.float32
    flat = logits.reshape(-1, logits.shape[-1]).to(work)
    return functional.cross_entropy(flat, targets.reshape(-1), ignore_index=IGNORED, reduction="sum")


def parts_of(spec: TransformerSpec, sizes: Sequence[int]) -> list[Part]:
    """The parts of a model cut into `sizes` blocks each. Raises TowerError when they do not sum to its layers."""
    if sum(sizes) != spec.layers or min(sizes) < 0:
        raise TowerError(f"parts of {list(sizes)} blocks hold {sum(sizes)} blocks, the model has {spec.layers}")
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    return [
        Part(start=start, stop=start + size, first=number == 0, last=number == len(sizes) - 1)
        for number, (start, size) in enumerate(zip(starts, sizes, strict=True))
    ]


def norm_of(spec: TransformerSpec) -> nn.Module:
    """A normalization of the model's kind."""
    if spec.norm is NormKind.RMS:
        return nn.RMSNorm(spec.width, eps=spec.norm_eps)
    return nn.LayerNorm(spec.width, eps=spec.norm_eps)
