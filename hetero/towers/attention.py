"""Self-attention: rotary positions, grouped queries, `scaled_dot_product_attention`.

Shapes: B sequences, T tokens, D width, H heads, K heads of keys and values, E width of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor, compiler, nn
from torch.nn import functional

from hetero.records.transformer import Objective, Positions, TransformerSpec


class RotaryTable:
    """Cosine and sine of each position's angles, made once a device and dtype; no part of a model's state.

    Angle of pair i at position t: t * base^(-2i/E) (Su et al. 2021, RoFormer); the pairs are (x[i], x[i + E/2]).
    """

    def __init__(self, *, head_width: int, context: int, base: float) -> None:
        exponents = torch.arange(0, head_width, 2, dtype=torch.float64, device="cpu") / head_width
        self._angles = torch.outer(torch.arange(context, dtype=torch.float64, device="cpu"), base**-exponents)
        self._made: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}

    def turn(self, x: Tensor) -> Tensor:
        """`x` [B, H, T, E] with every position's pairs turned; computed in float32 for half precision."""
        work = torch.float64 if x.dtype == torch.float64 else torch.float32
        cosine, sine = self._tables(x.device, work)
        length = x.shape[-2]
        first, second = x.to(work).chunk(2, dim=-1)
        cosine, sine = cosine[:length], sine[:length]
        turned = torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
        return turned.to(x.dtype)

    def _tables(self, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        key = (device, dtype)
        if key in self._made:
            return self._made[key]
        made = (
            self._angles.cos().to(dtype=dtype, device=device),
            self._angles.sin().to(dtype=dtype, device=device),
        )
        if not compiler.is_exporting():  # then they are no tensors, but what stands for them in a graph
            self._made[key] = made
        return made


class Attention(nn.Module):
    """Heads are counted from what the projections give, so that a rank may hold a share of them."""

    def __init__(self, spec: TransformerSpec, *, rotary: RotaryTable | None) -> None:
        super().__init__()
        kv_width = spec.kv_heads * spec.head_width
        self.query = nn.Linear(spec.width, spec.width, bias=spec.bias)
        self.key = nn.Linear(spec.width, kv_width, bias=spec.bias)
        self.value = nn.Linear(spec.width, kv_width, bias=spec.bias)
        self.output = nn.Linear(spec.width, spec.width, bias=spec.bias)
        self._head_width = spec.head_width
        self._grouped = spec.kv_heads != spec.heads
        self._causal = spec.objective is Objective.CAUSAL
        self._dropout = spec.dropout
        self._rotary = rotary

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """x [B, T, D] -> [B, T, D]. mask: see `Block`; a causal model needs none, as what fills texts up comes last."""
        query, key, value = (self._heads(project(x)) for project in (self.query, self.key, self.value))
        if self._rotary is not None:
            query, key = self._rotary.turn(query), self._rotary.turn(key)
        mixed = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            dropout_p=self._dropout if self.training else 0.0,
            attn_mask=None if self._causal else mask,
            is_causal=self._causal,
            enable_gqa=self._grouped,
        )
        batch, heads, length, width = mixed.shape
        mixed_heads: Tensor = self.output(mixed.transpose(1, 2).reshape(batch, length, heads * width))
        return mixed_heads

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], -1, self._head_width).transpose(1, 2)


def rotary_of(spec: TransformerSpec) -> RotaryTable | None:
    """The table that all blocks of a model share; None when it learns its positions."""
    if spec.positions is not Positions.ROTARY:
        return None
    return RotaryTable(head_width=spec.head_width, context=spec.context, base=spec.rotary_base)
