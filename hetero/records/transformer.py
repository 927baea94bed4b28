"""What a transformer is: its sizes and its parts, and the counts that follow from them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Objective(Enum):
    """CAUSAL: predict the next token, looking back only. MASKED: predict hidden tokens, looking both ways."""

    CAUSAL = "causal"
    MASKED = "masked"


class Positions(Enum):
    """ROTARY: queries and keys are turned by their position (Su et al. 2021). LEARNED: a vector a position."""

    ROTARY = "rotary"
    LEARNED = "learned"


class NormKind(Enum):
    """RMS: x / rms(x) * weight (Zhang and Sennrich 2019). LAYER: with mean and bias (Ba et al. 2016)."""

    RMS = "rms"
    LAYER = "layer"


class MlpKind(Enum):
    """GATED: down(silu(gate(x)) * up(x)) (Shazeer 2020). PLAIN: down(gelu(up(x)))."""

    GATED = "gated"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerSpec:
    """Sizes and parts of a transformer; pre-norm blocks, attention first.

    vocabulary: rows of the embedding. context: longest sequence, in tokens. kv_heads: of keys and values, a divisor of
    `heads`. hidden: width inside the MLP. tied: the output projection is the embedding. dropout: after embedding,
    attention and MLP, and of attention weights. init_std: of the normal first weights; projections back into the
    residual stream begin with init_std / sqrt(2 * layers) (Radford et al. 2019).
    """

    layers: int
    width: int
    heads: int
    hidden: int
    vocabulary: int
    context: int
    kv_heads: int
    objective: Objective = Objective.CAUSAL
    positions: Positions = Positions.ROTARY
    norm: NormKind = NormKind.RMS
    mlp: MlpKind = MlpKind.GATED
    tied: bool = False
    bias: bool = False
    dropout: float = 0.0
    rotary_base: float = 10_000.0
    norm_eps: float = 1e-5
    init_std: float = 0.02

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def block_parameters(self) -> int:
        """Parameters of one block."""
        kv_width = self.kv_heads * self.head_width
        attention = 2 * self.width * self.width + 2 * self.width * kv_width
        matrices = 3 if self.mlp is MlpKind.GATED else 2
        mlp = matrices * self.width * self.hidden
        biases = 2 * self.width + 2 * kv_width + (matrices - 1) * self.hidden + self.width if self.bias else 0
        return attention + mlp + biases + 2 * self._norm_parameters

    @property
    def parameters(self) -> int:
        """Parameters of the whole model; a tied projection counts once."""
        embedding = self.vocabulary * self.width
        positions = self.context * self.width if self.positions is Positions.LEARNED else 0
        head = 0 if self.tied else embedding
        return embedding + positions + self.layers * self.block_parameters + self._norm_parameters + head

    @property
    def flops_per_token(self) -> float:
        """Of one training step, forward and backward: 6 a weight that multiplies, and 12 * layers * width * context for
        attention's two products, whole squares counted for causal models too (Chowdhery et al. 2022, PaLM, appendix B).
        """
        embedding = self.vocabulary * self.width
        positions = self.context * self.width if self.positions is Positions.LEARNED else 0
        multiplying = self.parameters - positions - (0 if self.tied else embedding)
        return 6.0 * multiplying + 12.0 * self.layers * self.width * self.context

    @property
    def _norm_parameters(self) -> int:
        return self.width if self.norm is NormKind.RMS else 2 * self.width
