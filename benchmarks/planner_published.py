"""Published figures that the planner is held against, each with its source, and what they leave open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hetero.hardware.devices import device, link
from hetero.planning.mesh import DeviceGrid, Mesh
from hetero.planning.shape import TransformerShape

BERT_LARGE = TransformerShape(layers=24, hidden=1024, heads=16, vocabulary=30522, sequence=512)
BERT_LARGE_MB: Mapping[int, float] = {1: 8667, 2: 5615, 4: 4841, 8: 4127, 16: 3700}
"""Peak memory by sharded cards, V100, recomputation and mixed precision: PaddleFleetX, sharding.rst (old_develop)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A measured run. tflops: of a device, with the forward that recomputation repeats. The shape is ours: the source
    gives the number of parameters only; 48 x 4096 and 36 x 6144 have exactly the first two, Megatron's 145.6B the last.
    """

    name: str
    shape: TransformerShape
    mesh: Mesh
    tflops: float

    @property
    def grid(self) -> DeviceGrid:
        return v100s(self.mesh.size)


def _gpt(layers: int, hidden: int, heads: int) -> TransformerShape:
    return TransformerShape(layers=layers, hidden=hidden, heads=heads, vocabulary=51200, sequence=1024)


def v100s(devices: int) -> DeviceGrid:
    """Machines of 8 V100 of 32 GB with NVLink; no source names the network: a 100 Gb/s card for each is assumed."""
    return DeviceGrid(
        machines=max(1, devices // 8),
        per_machine=8,
        device=device("v100-32gb"),
        inside=link("nvlink2"),
        between=link("8x-ib-edr"),
    )


GPT3_V100 = (
    Point(name="9.66B MP8", shape=_gpt(48, 4096, 32), mesh=Mesh(tp=8), tflops=55.77),
    Point(name="16.31B MP8 PP2 DP2", shape=_gpt(36, 6144, 48), mesh=Mesh(tp=8, pp=2, dp=2), tflops=60.84),
    Point(name="91B MP8 PP16", shape=_gpt(112, 8192, 64), mesh=Mesh(tp=8, pp=16), tflops=62.05),
    Point(name="146B MP32 PP8 DP2", shape=_gpt(80, 12288, 96), mesh=Mesh(tp=32, pp=8, dp=2), tflops=60.82),
)
"""PaddleFleetX, hybrid_parallelism.rst (old_develop). MP32 would be a tensor-parallel group over four machines."""

SWAPPED_146B = Point(
    name="146B read as MP8 PP32 DP2", shape=_gpt(96, 11264, 88), mesh=Mesh(tp=8, pp=32, dp=2), tflops=60.82
)
"""The same 512 devices with the degrees of MP and PP swapped, as in the 230B run; 96 blocks of 11264 are 146B too."""

ERNIE_230B = TransformerShape(layers=127, hidden=12288, heads=96, vocabulary=51200, sequence=512)
STRATEGIES: Mapping[str, Mesh] = {
    "PP64 Sharding2 MP4": Mesh(pp=64, shard=2, tp=4),
    "DP2 PP32 MP8": Mesh(pp=32, dp=2, tp=8),
    "DP2 PP32 Sharding2 MP4": Mesh(pp=32, dp=2, shard=2, tp=4),
}
"""ERNIE 230B on 64 x 8 V100; the last is the 4D one. No source gives micro-batches or the global batch."""
FOUR_D_TOKENS_PER_S = 8698.0
FOUR_D_LEAD = 1.237
"""Over the better of the other two."""
