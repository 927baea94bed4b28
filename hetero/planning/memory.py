"""Memory of one rank: model state as it is sharded, activations of the micro-batches in flight, and what else it holds.

State of Psi parameters in N shards, bytes a parameter p + g + o (16 for mixed Adam): stage 1 (p + g) Psi + o Psi / N,
stage 2 p Psi + (g + o) Psi / N, stage 3 (p + g + o) Psi / N (Rajbhandari et al. 2019, 1910.02054).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from hetero.planning.mesh_plan import MeshPlan, ShardingStage
from hetero.planning.schedules import Pipeline, Schedule, Work
from hetero.planning.shape import Recompute

GATHERED_BLOCKS = 2
"""Blocks whose whole parameters a rank holds at once under stage 3: the one in use and the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of one rank. gathered: copies of parameters held for a while, whole or in 16 bits; `a + b` adds each."""

    parameters: float = 0.0
    gradients: float = 0.0
    optimizer: float = 0.0
    gathered: float = 0.0
    activations: float = 0.0
    fixed: float = 0.0

    @property
    def total(self) -> float:
        return self.state + self.gathered + self.activations + self.fixed

    @property
    def state(self) -> float:
        """Parameters, gradients and optimizer."""
        return self.parameters + self.gradients + self.optimizer

    def __add__(self, other: Memory) -> Memory:
        return Memory(
            parameters=self.parameters + other.parameters,
            gradients=self.gradients + other.gradients,
            optimizer=self.optimizer + other.optimizer,
            gathered=self.gathered + other.gathered,
            activations=self.activations + other.activations,
            fixed=self.fixed + other.fixed,
        )

    def fits_in(self, capacity_bytes: float) -> bool:
        return self.total <= capacity_bytes


def rank_memory(plan: MeshPlan, *, rank: int = 0) -> Memory:
    """Of a rank of pipeline position `rank`, at its peak."""
    pipeline = pipeline_of(plan)
    stages = pipeline.stages_of(rank)
    parameters = sum(map(plan.parameters_of, stages))
    return state_memory(plan, parameters) + Memory(
        fixed=plan.assumptions.fixed_bytes,
        activations=_activations(plan, pipeline, rank, stages),
        gathered=_gathered(plan, parameters),
    )


def peak_memory(plan: MeshPlan) -> Memory:
    """Of the rank that needs most: the first or the last stage's, where embedding, head and most micro-batches are."""
    ranks = {0, plan.mesh.pp - 1}
    return max((rank_memory(plan, rank=rank) for rank in ranks), key=lambda memory: memory.total)


def state_memory(plan: MeshPlan, parameters: float) -> Memory:
    """Of so many parameters, whose state `plan.mesh.shard` ranks share."""
    state, shards = plan.state, plan.mesh.shard
    stage = plan.sharding if shards > 1 else 0
    return Memory(
        parameters=state.parameter * parameters / (shards if stage >= ShardingStage.PARAMETERS else 1),
        gradients=state.gradient * parameters / (shards if stage >= ShardingStage.GRADIENTS else 1),
        optimizer=state.optimizer * parameters / (shards if stage >= ShardingStage.OPTIMIZER else 1),
    )


def pipeline_of(plan: MeshPlan) -> Pipeline:
    return Pipeline(
        schedule=plan.schedule,
        ranks=plan.mesh.pp,
        micro_batches=plan.micro_batches,
        stages_per_rank=plan.stages_per_rank,
    )


def _gathered(plan: MeshPlan, parameters: float) -> float:
    """Copies of parameters that a rank makes for a while; it holds `parameters` of the model's."""
    if plan.mesh.shard > 1 and plan.sharding >= ShardingStage.PARAMETERS:
        return GATHERED_BLOCKS * plan.state.gathered * plan.shape.layer_parameters / plan.mesh.tp
    return plan.state.sent * parameters


def _activations(plan: MeshPlan, pipeline: Pipeline, rank: int, stages: list[int]) -> float:
    shape, layers = plan.shape, max(plan.layers_of_stages[stage] for stage in stages)
    kept, inside = (
        shape.activation_bytes(
            plan.micro_batch,
            tensor_parallel=plan.mesh.tp,
            sequence_parallel=plan.sequence_parallel,
            recompute=recompute,
        )
        for recompute in (plan.recompute, Recompute.SELECTIVE)
    )
    total = live_stages(pipeline, rank) * layers * kept
    if plan.recompute is Recompute.FULL:
        total += inside
    if plan.stages - 1 in stages:
        total += shape.logit_bytes(plan.micro_batch, tensor_parallel=plan.mesh.tp)
    return total * plan.activation_bytes / 2


def live_stages(pipeline: Pipeline, rank: int) -> int:
    """Most (stage, micro-batch) pairs whose activations a rank holds at once; its order alone decides that."""
    if pipeline.schedule is Schedule.GPIPE:
        return pipeline.micro_batches
    if pipeline.schedule is Schedule.ONE_F_ONE_B:
        return min(pipeline.ranks - rank, pipeline.micro_batches)
    return _counted(pipeline, rank)


@lru_cache(maxsize=4096)
def _counted(pipeline: Pipeline, rank: int) -> int:
    """By going through the order. Rounds repeat, so four of them show the peak."""
    few = Pipeline(
        schedule=pipeline.schedule,
        ranks=pipeline.ranks,
        micro_batches=min(pipeline.micro_batches, 4 * pipeline.ranks),
        stages_per_rank=pipeline.stages_per_rank,
    )
    live = peak = 0
    for action in few.order(rank):
        if action.work is Work.FORWARD:
            live += 1
        elif action.work is not Work.INPUT_GRADIENT:
            live -= 1
        peak = max(peak, live)
    return peak
