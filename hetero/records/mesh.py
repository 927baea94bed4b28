"""How a deep model is spread over ranks, and how it is optimized."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

AXES = ("pp", "dp", "shard", "tp")
"""Pipeline, data, sharding, tensor: slowest first, so that neighbouring ranks are of one tensor-parallel group."""


class PipelineSchedule(Enum):
    """In which order a pipeline's ranks run forward and backward of micro-batches.

    GPIPE: all forward, then all backward. ONE_F_ONE_B: alternating, so that at most pp micro-batches live. INTERLEAVED:
    1F1B with several stages a rank (Narayanan et al. 2021). ZERO_BUBBLE: interleaved, the weights' gradients put off to
    fill the bubble. ZBV: two stages a rank laid out as a V (both Qi et al. 2024).
    """

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved_1f1b"
    ZERO_BUBBLE = "interleaved_zero_bubble"
    ZBV = "zbv"

    @property
    def splits_backward(self) -> bool:
        """Whether gradients of inputs and of weights are taken in two passes."""
        return self in (PipelineSchedule.ZERO_BUBBLE, PipelineSchedule.ZBV)

    @property
    def looped(self) -> bool:
        """Whether a rank holds more than one stage."""
        return self not in (PipelineSchedule.GPIPE, PipelineSchedule.ONE_F_ONE_B)


class Recompute(Enum):
    """What of a block's activations is made again in the backward pass. SELECTIVE keeps the results of matrix products
    with weights and makes the rest again, attention among it (Korthikanti et al. 2022); FULL keeps a block's input."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class DeepPrecision(Enum):
    """Of matrix products and activations. BF16 and FP16 keep master weights, optimizer state and sums in float32;
    FP16 scales the loss. FP64 is float64 throughout."""

    FP64 = "fp64"
    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"


class LrSchedule(Enum):
    """How the learning rate falls after warm-up."""

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshSpec:
    """Degrees of the mesh and what is done on it.

    pp, dp, shard, tp: ranks along each axis; their product is the number of ranks. order: the axes from slowest to
    fastest in rank numbers. sharding: stage over `shard`: 1 splits optimizer state, 2 gradients too, 3 parameters too.
    schedule, stages_per_rank, blocks_per_stage: of the pipeline; blocks are spread evenly unless given. micro_batches:
    parts of a rank's batch, run one after the other with gradients summed.
    """

    pp: int = 1
    dp: int = 1
    shard: int = 1
    tp: int = 1
    order: tuple[str, ...] = AXES
    sharding: int = 1
    schedule: PipelineSchedule = PipelineSchedule.ONE_F_ONE_B
    stages_per_rank: int = 1
    blocks_per_stage: tuple[int, ...] | None = None
    micro_batches: int = 1
    recompute: Recompute = Recompute.NONE
    precision: DeepPrecision = DeepPrecision.FP32

    @property
    def ranks(self) -> int:
        return self.pp * self.dp * self.shard * self.tp

    @property
    def data_ways(self) -> int:
        """Ranks along `dp` and `shard`: each sees its own share of the batch."""
        return self.dp * self.shard

    @property
    def stages(self) -> int:
        return self.pp * self.stages_per_rank

    def describe(self) -> str:
        """`pp 2 x dp 1 x shard 2 x tp 2 = 8 ranks`"""
        product = " x ".join(f"{axis} {getattr(self, axis)}" for axis in AXES)
        return f"{product} = {self.ranks} rank{'s' if self.ranks > 1 else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepOptimizerSpec:
    """AdamW (Loshchilov and Hutter 2019) and its learning rate over steps.

    weight_decay: of matrices; norms and biases have none. clip: most norm of the gradient over the whole model, None
    leaves it. warmup: steps of linear growth to lr. schedule: fall to `final_lr_share * lr` at step `steps`.
    """

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip: float | None = 1.0
    warmup: int = 0
    steps: int = 1
    schedule: LrSchedule = LrSchedule.COSINE
    final_lr_share: float = 0.1
