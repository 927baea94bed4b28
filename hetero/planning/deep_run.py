"""What a deep run will come to, from what its ranks measure before their first step: shown beside what it came to.

Times: one block by itself, the memory's rate and a sum over all ranks, put together by the estimates that meshes are
searched with (`step_time`, `memory`, `traffic`). Ranks that share cores measure at once, and are predicted as if all
computed all the time; while some wait in a pipeline, the others are faster than that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hetero.hardware.devices import Device, Link
from hetero.parallel.mesh import place_of
from hetero.planning.memory import pipeline_of, rank_memory
from hetero.planning.mesh import Axis, DeviceGrid, Mesh
from hetero.planning.mesh_plan import (
    FP32_ADAM,
    FP64_ADAM,
    MASTER_ADAM,
    Assumptions,
    MeshPlan,
    ShardingStage,
    StateBytes,
)
from hetero.planning.pipeline import simulate
from hetero.planning.schedules import Schedule
from hetero.planning.shape import Recompute, TransformerShape
from hetero.planning.step_time import simulated, stage_times
from hetero.planning.traffic import sent_by_all, transfer_seconds
from hetero.records.deep_job import DeepJobSpec
from hetero.records.mesh import DeepPrecision, MeshSpec, PipelineSchedule

ASSUMED_EFFICIENCY = 0.5
"""Of plain matrix products' rate, where a block is too large to be measured by itself."""
RUNTIME_SCHEDULES = {
    PipelineSchedule.GPIPE: Schedule.GPIPE,
    PipelineSchedule.ONE_F_ONE_B: Schedule.ONE_F_ONE_B,
    PipelineSchedule.INTERLEAVED: Schedule.INTERLEAVED,
    PipelineSchedule.ZERO_BUBBLE: Schedule.ZERO_BUBBLE,
    PipelineSchedule.ZBV: Schedule.ZERO_BUBBLE_V,
}
STATES: Mapping[DeepPrecision, StateBytes] = {
    DeepPrecision.FP64: FP64_ADAM,
    DeepPrecision.FP32: FP32_ADAM,
    DeepPrecision.BF16: MASTER_ADAM,
    DeepPrecision.FP16: MASTER_ADAM,
}
ACTIVATION_BYTES = {DeepPrecision.FP64: 8, DeepPrecision.FP32: 4, DeepPrecision.BF16: 2, DeepPrecision.FP16: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRates:
    """What a rank measured while all did.

    matrix_flops: FLOP/s of plain products; block_flops: of a whole block, forward and backward, None where one is too
    large to be tried. memory_bytes_per_s: read and written by a copy. small_s,
    large_s: seconds of sums of so many bytes over all ranks, 0 with one. base_bytes: of the process without a model.
    device: its full name, empty for a CPU.
    """

    matrix_flops: float = 0.0
    block_flops: float | None = None
    memory_bytes_per_s: float = 1e10
    small_s: float = 0.0
    large_s: float = 0.0
    small_bytes: int = 1 << 10
    large_bytes: int = 4 << 20
    base_bytes: int = 0
    device: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepPrediction:
    """bubble: by pipeline rank, its share of the time from the first forward to the last gradient. sent_bytes: of all
    ranks in a step, by axis. peak_bytes: by rank. assumed: what nothing was measured for."""

    tokens_per_s: float
    bubble: Mapping[str, float] = field(default_factory=dict)
    sent_bytes: Mapping[str, float] = field(default_factory=dict)
    peak_bytes: Mapping[str, float] = field(default_factory=dict)
    assumed: tuple[str, ...] = ()


def predict_deep(job: DeepJobSpec, rates: Sequence[RankRates]) -> DeepPrediction:
    """rates: of every rank; the slowest one's count, as all wait for it."""
    plan = mesh_plan_of(job, rates)
    is_assumed = any(each.block_flops is None for each in rates)
    return DeepPrediction(
        tokens_per_s=simulated(plan).tokens_per_s,
        bubble=_bubbles(plan) if job.mesh.pp > 1 else {},
        sent_bytes={axis.value: sent for axis, sent in sent_by_all(plan).items()},
        peak_bytes={
            f"rank/{rank}": each.base_bytes + rank_memory(plan, rank=place_of(rank, job.mesh).pp).total
            for rank, each in enumerate(rates)
        },
        assumed=(f"{ASSUMED_EFFICIENCY:.0%} of the matrix rate",) if is_assumed else (),
    )


def mesh_plan_of(job: DeepJobSpec, rates: Sequence[RankRates]) -> MeshPlan:
    """The job's mesh as the planner describes one: equal ranks and one link, as measured."""
    spec, slowest = job.mesh, min(rates, key=_compute_rate)
    device = Device(
        name="measured",
        half_flops=_compute_rate(slowest),
        single_flops=_compute_rate(slowest),
        memory_bytes=0,
        memory_bytes_per_s=min(each.memory_bytes_per_s for each in rates),
        source="measured by the run's ranks",
    )
    sums = max(rates, key=lambda each: each.large_s)
    link = _link(sums, spec.ranks)
    return MeshPlan(
        shape=TransformerShape.of(job.model),
        grid=DeviceGrid(machines=1, per_machine=spec.ranks, device=device, inside=link, between=link),
        mesh=Mesh(pp=spec.pp, dp=spec.dp, shard=spec.shard, tp=spec.tp, order=_order(spec)),
        micro_batch=job.batch_size // spec.data_ways // spec.micro_batches,
        micro_batches=spec.micro_batches,
        schedule=RUNTIME_SCHEDULES[spec.schedule] if spec.pp > 1 else Schedule.ONE_F_ONE_B,
        stages_per_rank=spec.stages_per_rank if spec.pp > 1 else 1,
        recompute=Recompute(spec.recompute.value),
        sharding=ShardingStage(spec.sharding),
        sequence_parallel=spec.tp > 1,
        state=STATES[spec.precision],
        split=spec.blocks_per_stage,
        activation_bytes=ACTIVATION_BYTES[spec.precision],
        assumptions=Assumptions(matrix_efficiency=1.0, exposed=1.0, fixed_bytes=0.0),
    )


def _order(spec: MeshSpec) -> tuple[Axis, Axis, Axis, Axis]:
    first, second, third, fourth = (Axis(name) for name in spec.order)
    return first, second, third, fourth


def _compute_rate(rates: RankRates) -> float:
    return rates.matrix_flops * ASSUMED_EFFICIENCY if rates.block_flops is None else rates.block_flops


def _link(rates: RankRates, ranks: int) -> Link:
    """By alpha-beta from two sums, as rings do them: 2 (n - 1) messages, 2 (n - 1) / n of the bytes."""
    if ranks == 1:
        return Link(name="none", latency_s=0.0, bytes_per_s=1e12)
    volume = 2 * (ranks - 1) / ranks * (rates.large_bytes - rates.small_bytes)
    return Link(
        name="measured",
        latency_s=rates.small_s / (2 * (ranks - 1)),
        bytes_per_s=volume / max(rates.large_s - rates.small_s, 1e-9),
        source="a sum over all ranks",
    )


def _bubbles(plan: MeshPlan) -> dict[str, float]:
    timeline = simulate(pipeline_of(plan), stages=stage_times(plan), transfers_s=transfer_seconds(plan))
    return {f"pp/{rank}": 1 - timeline.busy_s(rank) / timeline.makespan_s for rank in range(plan.mesh.pp)}
