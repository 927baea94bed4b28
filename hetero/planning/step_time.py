"""Seconds of one step on a mesh: stages' computation with the collectives on its way, the pipeline, and the update.

`estimated` uses closed forms and takes microseconds; `simulated` runs the schedule event by event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hetero.planning.memory import pipeline_of, state_memory
from hetero.planning.mesh_plan import MeshPlan, largest_stage
from hetero.planning.pipeline import StageTime, simulate
from hetero.planning.schedules import Schedule
from hetero.planning.shape import Recompute
from hetero.planning.traffic import block_seconds, calls_seconds, transfer_seconds

_OPTIMIZER_PASSES = 2
"""State is read and written once an update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of a step. pipeline: from the first forward to the last gradient, bubbles and transfers included;
    compute: of it, what the busiest rank computes; exchange: of gradients and parameters; update: of the optimizer."""

    pipeline_s: float
    compute_s: float
    bubble_share: float
    exchange_s: float
    update_s: float
    tokens: int
    model_flops: float
    peak_flops: float

    @property
    def total_s(self) -> float:
        return self.pipeline_s + self.exchange_s + self.update_s

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.total_s

    @property
    def utilization(self) -> float:
        """Model FLOPs (nothing computed twice counted) / what all devices could do."""
        return self.model_flops / self.total_s / self.peak_flops


def stage_times(plan: MeshPlan) -> list[StageTime]:
    """Of each stage, a micro-batch: matrix products at the assumed efficiency, and exposed tensor-parallel exchange."""
    rate = plan.grid.device.half_flops * plan.assumptions.matrix_efficiency * plan.mesh.tp
    block_s = plan.shape.layer_flops(plan.micro_batch) / rate
    head_s = plan.shape.head_flops(plan.micro_batch) / rate
    sent, back = (seconds * plan.assumptions.exposed for seconds in block_seconds(plan))
    again = block_s if plan.recompute is Recompute.FULL else 0.0

    def of(layers: int, head: float) -> StageTime:
        return StageTime(
            forward_s=layers * (block_s + sent) + head,
            backward_s=layers * (2 * block_s + again + back) + 2 * head,
        )

    split = plan.layers_of_stages
    kinds = {layers: of(layers, 0.0) for layers in set(split)}
    return [*(kinds[layers] for layers in split[:-1]), of(split[-1], head_s)]


def estimated(plan: MeshPlan) -> StepTime:
    """By closed forms: exact for GPipe and 1F1B with equal stages and free transfers.

    Uneven stages: within 6% of the simulation; transfers as long as the computation: within 30%.
    """
    times = stage_times(plan)
    per_rank = _per_rank(plan, times)
    busiest = max(per_rank)
    fill = (sum(per_rank) - busiest) * _fill_share(plan)
    waits = fill + _transfer_waits(plan, slack_s=busiest * plan.mesh.pp - sum(per_rank))
    return _assembled(plan, pipeline_s=busiest * plan.micro_batches + waits, times=times)


def simulated(plan: MeshPlan) -> StepTime:
    """By the event simulation."""
    times = stage_times(plan)
    timeline = simulate(pipeline_of(plan), stages=times, transfers_s=transfer_seconds(plan))
    return _assembled(plan, pipeline_s=timeline.makespan_s, times=times)


def _transfer_waits(plan: MeshPlan, *, slack_s: float) -> float:
    """Transfers while the pipeline fills and drains, and those that schedules with pp micro-batches in flight wait for.

    A micro-batch of rank 0 comes back after all stages and 2 (pp - 1) transfers, and pp of them are on their way at
    once: each costs 2 (pp - 1) / pp transfers, less what faster stages wait for the slowest anyway.
    """
    ranks = plan.mesh.pp
    trip = 2 * (ranks - 1) * transfer_seconds(plan)
    if plan.schedule not in (Schedule.ONE_F_ONE_B, Schedule.ZERO_BUBBLE) or plan.stages_per_rank > 1:
        return trip
    return trip + max(0, plan.micro_batches - ranks) * max(0.0, trip - slack_s) / ranks


def _fill_share(plan: MeshPlan) -> float:
    """Time to fill and drain / that of 1F1B. Zero-bubble (2401.10241): (F + I - W) / (F + I + W); V-shaped: none."""
    match plan.schedule:
        case Schedule.INTERLEAVED:
            return 1 / plan.stages_per_rank
        case Schedule.ZERO_BUBBLE:
            return 1 / 3 / plan.stages_per_rank
        case Schedule.ZERO_BUBBLE_V:
            return 0.0
    return 1.0


def _per_rank(plan: MeshPlan, times: Sequence[StageTime]) -> list[float]:
    """Seconds that each rank computes for a micro-batch in all its stages."""
    pipeline, totals = pipeline_of(plan), [time.total_s for time in times]
    return [sum(totals[stage] for stage in pipeline.stages_of(rank)) for rank in range(plan.mesh.pp)]


def _assembled(plan: MeshPlan, *, pipeline_s: float, times: Sequence[StageTime]) -> StepTime:
    per_rank = _per_rank(plan, times)
    state = state_memory(plan, plan.parameters_of(largest_stage(plan)))
    moved = _OPTIMIZER_PASSES * state.state * plan.stages_per_rank
    return StepTime(
        pipeline_s=pipeline_s,
        compute_s=max(per_rank) * plan.micro_batches,
        bubble_share=1 - sum(per_rank) * plan.micro_batches / (plan.mesh.pp * pipeline_s),
        exchange_s=calls_seconds(plan) * plan.assumptions.exposed,
        update_s=moved / plan.grid.device.memory_bytes_per_s,
        tokens=plan.tokens,
        model_flops=plan.shape.model_flops(plan.global_batch),
        peak_flops=plan.grid.device.half_flops * plan.grid.devices,
    )
