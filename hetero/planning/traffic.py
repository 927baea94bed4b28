"""What ranks send each other in a step, axis by axis: bytes, and seconds by the links they go through.

TENSOR: two all-reduces of the activations in a block's forward, two in its backward, the forward's again when all is
computed again (Megatron; sequence-parallel all-gather and reduce-scatter move the same). PIPELINE: activations to the
next stage and gradients back. SHARD: stage 1 gradients reduce-scattered and parameters gathered once a step, stage 2
gradients of each micro-batch, stage 3 parameters gathered twice and gradients scattered once for each micro-batch
(2 Psi, 2 Psi and 3 Psi of 1910.02054). DATA: all-reduce of the rank's own gradients once a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hetero.planning.collectives import Collective, Place, fastest
from hetero.planning.memory import pipeline_of
from hetero.planning.mesh import Axis
from hetero.planning.mesh_plan import MeshPlan, ShardingStage, largest_stage
from hetero.planning.shape import Recompute

_SENT = {
    Collective.ALL_REDUCE: 2.0,
    Collective.ALL_GATHER: 1.0,
    Collective.REDUCE_SCATTER: 1.0,
    Collective.ALL_TO_ALL: 1.0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Of one axis, of the busiest rank, in one step. sent_bytes: by that rank. crosses: between machines."""

    axis: Axis
    sent_bytes: float
    seconds: float
    crosses: bool

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            axis=self.axis,
            sent_bytes=self.sent_bytes + other.sent_bytes,
            seconds=self.seconds + other.seconds,
            crosses=self.crosses or other.crosses,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The same collective several times in a step."""

    axis: Axis
    collective: Collective
    size_bytes: float
    times: float


def activation_message(plan: MeshPlan) -> float:
    """Bytes of a micro-batch's hidden states: one transfer between stages, one all-reduce in a block."""
    return float(plan.activation_bytes * plan.micro_batch * plan.shape.sequence * plan.shape.hidden)


def transfer_seconds(plan: MeshPlan) -> float:
    """One micro-batch from a rank to the next stage's, beside all other ranks of the machine that do the same."""
    place = _place(plan, Axis.PIPELINE)
    if place.ranks == 1:
        return 0.0
    size = activation_message(plan) / (plan.mesh.tp if plan.sequence_parallel else 1)
    return (place.inside_link if place.machines == 1 else place.own_across_link).seconds(size)


def block_seconds(plan: MeshPlan) -> tuple[float, float]:
    """(in the forward, in the backward) of a micro-batch in one block: tensor-parallel exchange on its way."""
    once = fastest(Collective.ALL_REDUCE, size_bytes=activation_message(plan), place=_place(plan, Axis.TENSOR))
    return 2 * once, (2 + _again(plan)) * once


def _again(plan: MeshPlan) -> float:
    """All-reduces of a forward that is computed again; sequence-parallel blocks stop before they scatter the last."""
    if plan.recompute is not Recompute.FULL:
        return 0.0
    return 1.5 if plan.sequence_parallel else 2.0


def step_calls(plan: MeshPlan, parameters: float | None = None) -> Iterator[Call]:
    """Collectives on a rank's parameters and gradients; None for as many as the largest stage has."""
    state, mesh = plan.state, plan.mesh
    if parameters is None:
        parameters = plan.parameters_of(largest_stage(plan)) * plan.stages_per_rank
    weights, gradients = parameters * state.gathered, parameters * state.gradient
    if mesh.shard > 1:
        each = plan.micro_batches if plan.sharding >= ShardingStage.GRADIENTS else 1
        gathers = 2 * plan.micro_batches if plan.sharding is ShardingStage.PARAMETERS else 1
        yield Call(axis=Axis.SHARD, collective=Collective.REDUCE_SCATTER, size_bytes=gradients, times=each)
        yield Call(axis=Axis.SHARD, collective=Collective.ALL_GATHER, size_bytes=weights, times=gathers)
    if mesh.dp > 1:
        yield Call(axis=Axis.DATA, collective=Collective.ALL_REDUCE, size_bytes=gradients / mesh.shard, times=1)


def calls_seconds(plan: MeshPlan) -> float:
    """All of `step_calls`, one after the other."""
    return sum(_seconds(plan, call) for call in step_calls(plan))


def traffic(plan: MeshPlan) -> dict[Axis, Traffic]:
    """Of each axis with more than one rank, for the busiest rank."""
    found: dict[Axis, Traffic] = {}
    blocks = max(plan.layers_of_stages) * plan.stages_per_rank
    for call in (*_tensor_calls(plan, blocks=blocks), *step_calls(plan)):
        place = _place(plan, call.axis)
        part = Traffic(
            axis=call.axis,
            sent_bytes=_sent(plan, call),
            seconds=_seconds(plan, call),
            crosses=place.machines > 1,
        )
        found[call.axis] = found[call.axis] + part if call.axis in found else part
    if plan.mesh.pp > 1:
        found[Axis.PIPELINE] = _pipeline(plan)
    return {axis: found[axis] for axis in Axis if axis in found}


def sent_by_all(plan: MeshPlan) -> dict[Axis, float]:
    """Bytes that all ranks together send in a step, by axis; each sends what its own stages have."""
    found: dict[Axis, float] = {}
    pipeline = pipeline_of(plan)
    ranks_of_stage = plan.mesh.size // plan.mesh.pp
    for rank in range(plan.mesh.pp):
        stages = pipeline.stages_of(rank)
        parameters = sum(map(plan.parameters_of, stages))
        blocks = sum(plan.layers_of_stages[stage] for stage in stages)
        ends = (0 in stages) + (plan.stages - 1 in stages and not plan.shape.headless)
        for call in (*_tensor_calls(plan, blocks=blocks, ends=ends), *step_calls(plan, parameters)):
            found[call.axis] = found.get(call.axis, 0.0) + ranks_of_stage * _sent(plan, call)
    crossing = sum(pipeline.rank_of(stage) != pipeline.rank_of(stage + 1) for stage in range(plan.stages - 1))
    if crossing:
        copies = plan.mesh.data_ways * (1 if plan.sequence_parallel else plan.mesh.tp)
        found[Axis.PIPELINE] = 2.0 * crossing * plan.micro_batches * activation_message(plan) * copies
        if plan.shape.tied and pipeline.rank_of(0) != pipeline.rank_of(plan.stages - 1):
            tied = plan.shape.vocabulary * plan.shape.hidden * plan.state.gradient
            found[Axis.PIPELINE] += 2.0 * tied * plan.mesh.dp
    return found


def _sent(plan: MeshPlan, call: Call) -> float:
    """Bytes of a rank."""
    ranks = plan.mesh.degree(call.axis)
    return _SENT[call.collective] * (ranks - 1) / ranks * call.size_bytes * call.times


def _tensor_calls(plan: MeshPlan, *, blocks: int, ends: int = 0) -> Iterator[Call]:
    """ends: 1 for each of embedding and head; what they send counts where bytes do, and is little of the busiest's."""
    if plan.mesh.tp > 1:
        times = ((4 + _again(plan)) * blocks + ends) * plan.micro_batches
        yield Call(axis=Axis.TENSOR, collective=Collective.ALL_REDUCE, size_bytes=activation_message(plan), times=times)


def _pipeline(plan: MeshPlan) -> Traffic:
    """A middle rank sends activations on and gradients back, for each of its stages."""
    ways = 2 if plan.mesh.pp > 2 or plan.stages_per_rank > 1 else 1
    count = ways * plan.micro_batches * plan.stages_per_rank
    size = activation_message(plan) / (plan.mesh.tp if plan.sequence_parallel else 1)
    return Traffic(
        axis=Axis.PIPELINE,
        sent_bytes=count * size,
        seconds=count * transfer_seconds(plan),
        crosses=_place(plan, Axis.PIPELINE).machines > 1,
    )


def _seconds(plan: MeshPlan, call: Call) -> float:
    return call.times * fastest(call.collective, size_bytes=call.size_bytes, place=_place(plan, call.axis))


def _place(plan: MeshPlan, axis: Axis) -> Place:
    place = plan.mesh.place(axis, plan.grid)
    assert place is not None, "why_impossible refuses meshes whose groups are not aligned"
    return place
