"""Which accelerator nodes a deep model takes, and on which mesh: every kind of node, every number of them.

For each choice the mesh search finds the fastest way that the runtime can lay out (`hetero.parallel.compose` decides
that); the cheapest that reaches a throughput is taken, or the fastest for the nodes or the money there is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from hetero.errors import JobError, PlanError
from hetero.hardware.devices import Device
from hetero.parallel.compose import check_mesh
from hetero.planning.deep_run import ACTIVATION_BYTES, RUNTIME_SCHEDULES, STATES
from hetero.planning.mesh import DeviceGrid
from hetero.planning.mesh_plan import ShardingStage
from hetero.planning.mesh_search import Candidate, Rejection, Space, search
from hetero.planning.schedules import Schedule
from hetero.planning.shape import Recompute, TransformerShape
from hetero.records.cluster import ClusterSpec, NodeKind
from hetero.records.deep_job import DeepJobSpec
from hetero.records.mesh import DeepPrecision, MeshSpec
from hetero.records.mesh import Recompute as RuntimeRecompute

_ONE_PASS = ((Schedule.GPIPE, 1), (Schedule.ONE_F_ONE_B, 1), (Schedule.INTERLEAVED, 2), (Schedule.INTERLEAVED, 4))
_TWO_PASSES = ((Schedule.ZERO_BUBBLE, 2), (Schedule.ZERO_BUBBLE_V, 2))
_FINALISTS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepPlan:
    """nodes of `kind`, each with accelerators; candidate: what the search took there. price: money an hour. rejections:
    the other meshes of these nodes."""

    kind: str
    nodes: int
    mesh: MeshSpec
    candidate: Candidate
    price: float
    rejections: tuple[Rejection, ...]

    @property
    def samples_per_s(self) -> float:
        """Sequences a second."""
        return self.candidate.plan.global_batch / self.candidate.time.total_s

    @property
    def name(self) -> str:
        return f"{self.nodes} x {self.kind}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepFound:
    """best: the plan taken. tried: every choice of nodes with its plan, or why there is none."""

    best: DeepPlan
    tried: tuple[tuple[str, DeepPlan | str], ...]

    @property
    def front(self) -> tuple[DeepPlan, ...]:
        """Plans that no other one beats in both speed and price, cheapest first."""
        plans = sorted(
            (plan for _, plan in self.tried if isinstance(plan, DeepPlan)), key=lambda p: (p.price, -p.samples_per_s)
        )
        front: list[DeepPlan] = []
        for plan in plans:
            if not front or plan.samples_per_s > front[-1].samples_per_s:
                front.append(plan)
        return tuple(front)


def plan_deep(
    job: DeepJobSpec, *, cluster: ClusterSpec, throughput: float | None = None, price: float | None = None
) -> DeepFound:
    """The cheapest that trains `throughput` sequences a second, the fastest for `price` an hour, or the fastest of all.

    Raises PlanError when no choice of nodes can, with what was tried.
    """
    if job.mesh.precision is DeepPrecision.FP64:
        raise PlanError("train.precision: fp64 has no rate in data sheets; plan for fp32, bf16 or fp16")
    tried: list[tuple[str, DeepPlan | str]] = []
    for kind, nodes in _choices(cluster):
        try:
            tried.append((f"{nodes} x {kind.name}", _planned(job, kind, nodes)))
        except PlanError as error:
            tried.append((f"{nodes} x {kind.name}", str(error).split(". (1)")[0]))
    plans = [plan for _, plan in tried if isinstance(plan, DeepPlan)]
    plans = [
        plan
        for plan in plans
        if (throughput is None or plan.samples_per_s >= throughput * (1 - 1e-9))
        and (price is None or plan.price <= price * (1 + 1e-9))
    ]
    if not plans:
        raise PlanError(_none(cluster, tried, throughput, price))
    return DeepFound(
        best=min(plans, key=lambda p: (p.price, -p.samples_per_s) if throughput is not None else -p.samples_per_s),
        tried=tuple(tried),
    )


def _choices(cluster: ClusterSpec) -> Iterator[tuple[NodeKind, int]]:
    """1, 2, 4, ... nodes of each kind with accelerators, and all of them."""
    for kind in cluster.kinds:
        if kind.accelerators and kind.count:
            powers = {1 << power for power in range(kind.count.bit_length())}
            yield from ((kind, nodes) for nodes in sorted({*powers, kind.count}))


def _planned(job: DeepJobSpec, kind: NodeKind, nodes: int) -> DeepPlan:
    plain = DeviceGrid.of(kind, nodes)
    grid = replace(plain, device=_at_precision(plain.device, job.mesh.precision))
    candidates, rejections = _searched(job, grid)
    refused = []
    for candidate in candidates:
        mesh = runtime_mesh(candidate, precision=job.mesh.precision)
        try:
            check_mesh(mesh, model=job.model, batch_size=job.batch_size)
        except JobError as error:
            refused.append(Rejection(mesh=candidate.plan.mesh, reason=str(error).replace("\n", "; ")))
            continue
        others = tuple(each for each in rejections if each.mesh != candidate.plan.mesh)
        return DeepPlan(
            kind=kind.name,
            nodes=nodes,
            mesh=mesh,
            candidate=candidate,
            price=kind.price * nodes,
            rejections=(*refused, *others),
        )
    raise PlanError(
        f"the {len(refused)} fastest meshes cannot be laid out, such as {refused[0].mesh}: {refused[0].reason}"
    )


def _searched(job: DeepJobSpec, grid: DeviceGrid) -> tuple[list[Candidate], tuple[Rejection, ...]]:
    """Finalists of both kinds of schedule, fastest first. Two-pass schedules go with sharding stage 1 and without
    selective recomputation only."""
    plain = Space(
        schedules=_ONE_PASS,
        micro_batches=(1, 2, 4, 8),
        finalists=_FINALISTS,
        state=STATES[job.mesh.precision],
        activation_bytes=ACTIVATION_BYTES[job.mesh.precision],
    )
    two = replace(
        plain,
        schedules=_TWO_PASSES,
        recomputes=(Recompute.NONE, Recompute.FULL),
        shardings=(ShardingStage.OPTIMIZER,),
    )
    shape = TransformerShape.of(job.model)
    found = search(shape, grid=grid, global_batch=job.batch_size, space=plain)
    best = list(found.best)
    with suppress(PlanError):  # the others fit, which is enough
        best += [c for c in search(shape, grid=grid, global_batch=job.batch_size, space=two).best if c.plan.mesh.pp > 1]
    return sorted(best, key=lambda candidate: candidate.time.total_s), found.rejections


def runtime_mesh(candidate: Candidate, *, precision: DeepPrecision) -> MeshSpec:
    """The planner's way to train as the job's `mesh` says it."""
    plan = candidate.plan
    names = {planned: runtime for runtime, planned in RUNTIME_SCHEDULES.items()}
    return MeshSpec(
        pp=plan.mesh.pp,
        dp=plan.mesh.dp,
        shard=plan.mesh.shard,
        tp=plan.mesh.tp,
        order=tuple(axis.value for axis in plan.mesh.order),
        sharding=plan.sharding.value,
        schedule=names[plan.schedule],
        stages_per_rank=plan.stages_per_rank,
        micro_batches=plan.micro_batches,
        recompute=RuntimeRecompute(plan.recompute.value),
        precision=precision,
    )


def _at_precision(known: Device, precision: DeepPrecision) -> Device:
    """A device whose rate is that of the job's matrix products; bf16 is done as fp32 where there is no unit for it."""
    is_fast = precision is DeepPrecision.FP16 or (precision is DeepPrecision.BF16 and known.has_bf16)
    return known if is_fast else replace(known, half_flops=known.single_flops)


def _none(
    cluster: ClusterSpec, tried: Sequence[tuple[str, DeepPlan | str]], throughput: float | None, price: float | None
) -> str:
    wanted = "" if throughput is None else f" at {throughput:,.6g} sequences/s"
    wanted += "" if price is None else f" for {price:,.6g} an hour"
    told = "; ".join(
        f"{name}: {plan if isinstance(plan, str) else f'{plan.samples_per_s:,.4g} sequences/s for {plan.price:,.2f}'}"
        for name, plan in tried
    )
    return f"no nodes of cluster `{cluster.name}` train the model{wanted}: {told or 'none has an accelerator'}"
