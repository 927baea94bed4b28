"""How a transformer trains on a mesh: everything the estimates of memory, traffic and time start from."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from hetero.planning.mesh import Axis, DeviceGrid, Mesh, even_split
from hetero.planning.schedules import Schedule, why_undefined
from hetero.planning.shape import Recompute, TransformerShape


class ShardingStage(IntEnum):
    """What ranks of the shard axis divide: optimizer state; and gradients; and parameters (1910.02054)."""

    OPTIMIZER = 1
    GRADIENTS = 2
    PARAMETERS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """Bytes a parameter: itself, its gradient, its optimizer state (with the fp32 copy, where there is one).

    sent: of a parameter where ranks gather it, 0 for `parameter`. With another precision on the way than where it
    lies, the gathered copy takes memory beside it.
    """

    parameter: int
    gradient: int
    optimizer: int
    sent: int = 0

    @property
    def gathered(self) -> int:
        """Bytes of a parameter as it is gathered."""
        return self.sent or self.parameter


MIXED_ADAM = StateBytes(parameter=2, gradient=2, optimizer=12)
"""16-bit parameters and gradients; fp32 copy and two moments. 16 in all (1910.02054)."""
MIXED_ADAM_FP32_GRADIENTS = StateBytes(parameter=2, gradient=4, optimizer=12)
"""As Megatron keeps them, 18 in all."""
FP32_ADAM = StateBytes(parameter=4, gradient=4, optimizer=8)
FP64_ADAM = StateBytes(parameter=8, gradient=8, optimizer=16)
MASTER_ADAM = StateBytes(parameter=4, gradient=4, optimizer=8, sent=2)
"""fp32 parameters, gradients and moments; 16-bit copies are made of parameters as they are gathered (FSDP2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """What no formula gives. matrix_efficiency: achieved / data sheet rate of matrix products.

    exposed: share of collectives' time that computation does not hide. fixed_bytes: what a rank holds beside state and
    activations (CUDA context, workspace, allocator).
    """

    matrix_efficiency: float = 0.5
    exposed: float = 1.0
    fixed_bytes: float = 1.5e9


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshPlan:
    """One way to train. micro_batch: sequences of one; micro_batches: of one step in each pipeline.

    split: blocks of each stage, None for an even one. activation_bytes: of a number that flows between blocks.
    """

    shape: TransformerShape
    grid: DeviceGrid
    mesh: Mesh
    micro_batch: int = 1
    micro_batches: int = 1
    schedule: Schedule = Schedule.ONE_F_ONE_B
    stages_per_rank: int = 1
    recompute: Recompute = Recompute.NONE
    sharding: ShardingStage = ShardingStage.OPTIMIZER
    sequence_parallel: bool = False
    state: StateBytes = MIXED_ADAM
    split: tuple[int, ...] | None = None
    activation_bytes: int = 2
    assumptions: Assumptions = field(default_factory=Assumptions)

    @property
    def stages(self) -> int:
        return self.mesh.pp * self.stages_per_rank

    @property
    def layers_of_stages(self) -> tuple[int, ...]:
        return self.split or even_split(self.shape.layers, self.stages)

    @property
    def global_batch(self) -> int:
        """Sequences of a step."""
        return self.micro_batch * self.micro_batches * self.mesh.data_ways

    @property
    def tokens(self) -> int:
        """Of a step."""
        return self.global_batch * self.shape.sequence

    def parameters_of(self, stage: int) -> float:
        """Parameters of one stage on one rank of its tensor-parallel group."""
        shape, last = self.shape, self.stages - 1
        count = self.layers_of_stages[stage] * shape.layer_parameters
        if stage == 0:
            count += shape.embedding_parameters
        if stage == last:
            tied_copy = shape.vocabulary * shape.hidden if shape.tied and not shape.headless and last > 0 else 0
            count += shape.head_parameters + tied_copy
        return count / self.mesh.tp


def largest_stage(plan: MeshPlan) -> int:
    """The stage with most parameters: the first has the embedding and as many blocks as any, the last has the head."""
    return max((0, plan.stages - 1), key=plan.parameters_of)


def why_impossible(plan: MeshPlan) -> str | None:
    """What keeps a plan from being run at all, whatever its memory and time; or None."""
    mesh, grid, shape = plan.mesh, plan.grid, plan.shape
    if mesh.size != grid.devices:
        return f"{mesh} takes {mesh.size} devices, there are {grid.devices}"
    if shape.heads % mesh.tp or (shape.kv_heads or shape.heads) % mesh.tp:
        return f"tp {mesh.tp} does not divide {shape.heads} heads ({shape.kv_heads or shape.heads} of keys and values)"
    if shape.ffn_width % mesh.tp:
        return f"tp {mesh.tp} does not divide the width {shape.ffn_width} of the MLP"
    if plan.stages > shape.layers:
        return f"{plan.stages} stages are more than {shape.layers} layers"
    for axis in Axis:
        if mesh.place(axis, grid) is None:
            return f"machines of {grid.per_machine} devices hold unequal parts of a {axis.value} group of {mesh}"
    return why_undefined(plan.schedule, mesh.pp, plan.micro_batches, plan.stages_per_rank)
