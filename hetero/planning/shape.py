"""What a transformer needs, from its shape: parameters, FLOPs and activations.

    b  sequences of a micro-batch    s  tokens of a sequence    h  hidden width    a  heads    t  tensor-parallel degree

Activations: Korthikanti et al. 2022, "Reducing activation recomputation in large transformer models" (2205.05198),
16-bit, without dropout masks' padding. FLOPs: Narayanan et al. 2021 (2104.04473), multiply and add counted as two;
attention is counted in full, as if no position were masked.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from hetero.errors import PlanError
from hetero.records.transformer import MlpKind, Positions, TransformerSpec


class Recompute(Enum):
    """Which activations are computed again in the backward. SELECTIVE: attention's inside (or a fused kernel's)."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerShape:
    """Sizes of a transformer of `layers` equal blocks. kv_heads, ffn: 0 for heads, and for 4 x hidden.

    matrices_of_ffn: 2, or 3 with a gate. vectors: parameters of a block's biases and norms, in hidden widths; 4 h + 9 h
    for two layer norms and all biases. has_positions: learned ones. tied: the head shares the embedding's weights.
    headless: there is none, states alone are wanted; tied then.
    Raises PlanError when heads do not divide the width, or kv_heads the heads.
    """

    layers: int
    hidden: int
    heads: int
    vocabulary: int
    sequence: int
    kv_heads: int = 0
    ffn: int = 0
    matrices_of_ffn: int = 2
    vectors: float = 13
    has_positions: bool = True
    tied: bool = True
    headless: bool = False

    def __post_init__(self) -> None:
        if self.hidden % self.heads or self.heads % (self.kv_heads or self.heads):
            raise PlanError(
                f"{self.heads} heads with {self.kv_heads or self.heads} for keys and values do not divide a width of "
                f"{self.hidden}"
            )

    @staticmethod
    def of(spec: TransformerSpec) -> TransformerShape:
        """The sizes of a model that can be built; parameters agree to the last but for the norm before the head."""
        plain = TransformerShape(
            layers=spec.layers,
            hidden=spec.width,
            heads=spec.heads,
            vocabulary=spec.vocabulary,
            sequence=spec.context,
            kv_heads=spec.kv_heads,
            ffn=spec.hidden,
            matrices_of_ffn=3 if spec.mlp is MlpKind.GATED else 2,
            has_positions=spec.positions is Positions.LEARNED,
            tied=spec.tied,
        )
        vectors = (spec.block_parameters - plain.layer_matrix_parameters) / spec.width
        return replace(plain, vectors=vectors)

    @property
    def ffn_width(self) -> int:
        return self.ffn or 4 * self.hidden

    @property
    def layer_matrix_parameters(self) -> int:
        """Of one block's matrices: 12 h^2 for plain ones."""
        kv_share = (self.kv_heads or self.heads) / self.heads
        attention = int((2 + 2 * kv_share) * self.hidden**2)
        return attention + self.matrices_of_ffn * self.hidden * self.ffn_width

    @property
    def layer_parameters(self) -> int:
        """Of one block, with biases and norms."""
        return self.layer_matrix_parameters + round(self.vectors * self.hidden)

    @property
    def embedding_parameters(self) -> int:
        """Of token and position embeddings."""
        return (self.vocabulary + (self.sequence if self.has_positions else 0)) * self.hidden

    @property
    def head_parameters(self) -> int:
        """Of the output matrix; 0 when it shares the embedding's."""
        return 0 if self.tied else self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        return self.layers * self.layer_parameters + self.embedding_parameters + self.head_parameters

    def layer_flops(self, sequences: float) -> float:
        """Forward of one block: 24 b s h^2 + 4 b s^2 h for plain ones. The backward takes twice that."""
        tokens = sequences * self.sequence
        return 2 * self.layer_matrix_parameters * tokens + 4 * tokens * self.sequence * self.hidden

    def head_flops(self, sequences: float) -> float:
        """Forward of the output matrix."""
        return 0.0 if self.headless else 2 * sequences * self.sequence * self.hidden * self.vocabulary

    def model_flops(self, sequences: float) -> float:
        """Forward and backward of the whole model, without what is computed again."""
        return 3 * (self.layers * self.layer_flops(sequences) + self.head_flops(sequences))

    def activation_bytes(
        self, sequences: float, *, tensor_parallel: int = 1, sequence_parallel: bool = False, recompute: Recompute
    ) -> float:
        """What one block keeps of a micro-batch for the backward."""
        unit = sequences * self.sequence * self.hidden
        if recompute is Recompute.FULL:
            return 2 * unit / (tensor_parallel if sequence_parallel else 1)
        ffn = self.ffn_width / self.hidden
        # Of 34 bytes a unit, 10 are norms, residuals and dropouts outside the matrices, 8 of attention, 16 of the MLP.
        split = 8 + 4 * ffn * (self.matrices_of_ffn / 2)
        outside = 10 / (tensor_parallel if sequence_parallel else 1)
        scores = 5 * self.heads * self.sequence / self.hidden if recompute is Recompute.NONE else 0.0
        return unit * (outside + (split + scores) / tensor_parallel)

    def logit_bytes(self, sequences: float, *, tensor_parallel: int = 1) -> float:
        """Logits of a micro-batch in 16 bits and as fp32 probabilities."""
        return 0.0 if self.headless else sequences * self.sequence * self.vocabulary * 6 / tensor_parallel
