"""Searches all meshes for a model on a cluster, and says for each one that is not taken why.

Small parts: enumerate meshes and ways to train on them, estimate by closed forms, simulate the best, explain the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from hetero.errors import PlanError
from hetero.planning.memory import Memory, peak_memory, state_memory
from hetero.planning.mesh import DEFAULT_ORDER, Axis, DeviceGrid, Mesh
from hetero.planning.mesh_plan import MIXED_ADAM, Assumptions, MeshPlan, ShardingStage, StateBytes, why_impossible
from hetero.planning.schedules import Schedule
from hetero.planning.shape import Recompute, TransformerShape
from hetero.planning.step_time import StepTime, estimated, simulated

_GIB = 1 << 30
MOST_SIMULATED_ACTIONS = 400_000
"""A finalist with more actions than this keeps its estimate: a simulation would take seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What a search tries. schedules: with the stages each rank holds. usable: share of a device's memory."""

    orders: Sequence[tuple[Axis, Axis, Axis, Axis]] = (DEFAULT_ORDER,)
    schedules: Sequence[tuple[Schedule, int]] = (
        (Schedule.ONE_F_ONE_B, 1),
        (Schedule.INTERLEAVED, 2),
        (Schedule.INTERLEAVED, 4),
        (Schedule.ZERO_BUBBLE, 1),
    )
    micro_batches: Sequence[int] = (1, 2, 4)
    recomputes: Sequence[Recompute] = tuple(Recompute)
    shardings: Sequence[ShardingStage] = tuple(ShardingStage)
    usable: float = 0.94
    finalists: int = 3
    state: StateBytes = MIXED_ADAM
    activation_bytes: int = 2
    assumptions: Assumptions = field(default_factory=Assumptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A plan that can run, with what it costs. was_simulated: else by closed forms."""

    plan: MeshPlan
    time: StepTime
    memory: Memory
    was_simulated: bool = False

    def describe(self) -> str:
        plan = self.plan
        schedule = plan.schedule.value + (f" x{plan.stages_per_rank}" if plan.stages_per_rank > 1 else "")
        parts = [str(plan.mesh), f"micro-batch {plan.micro_batch} x {plan.micro_batches}"]
        parts += [schedule] if plan.mesh.pp > 1 else []
        parts += [f"sharding stage {plan.sharding.value}"] if plan.mesh.shard > 1 else []
        parts += [f"recompute {plan.recompute.value}"] if plan.recompute is not Recompute.NONE else []
        return ", ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A mesh that is not taken, and why."""

    mesh: Mesh
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Result of a search. best: fastest first, each of another mesh. considered: plans estimated or refused."""

    best: tuple[Candidate, ...]
    rejections: tuple[Rejection, ...]
    considered: int


def search(shape: TransformerShape, *, grid: DeviceGrid, global_batch: int, space: Space | None = None) -> Found:
    """The fastest ways to train `global_batch` sequences a step. Raises PlanError when none fits, with the nearest."""
    space = space or Space()
    per_mesh: list[Candidate] = []
    rejections: list[Rejection] = []
    considered = 0
    for mesh in meshes(grid, space):
        outcome = _best_on(mesh, shape, grid, global_batch, space)
        considered += outcome.considered
        if outcome.candidate is None:
            rejections.append(Rejection(mesh=mesh, reason=outcome.reason))
        else:
            per_mesh.append(outcome.candidate)
    if not per_mesh:
        raise PlanError(_nothing_fits(shape, grid, global_batch, rejections))
    per_mesh.sort(key=lambda candidate: candidate.time.total_s)
    best = sorted(map(_simulated, per_mesh[: space.finalists]), key=lambda candidate: candidate.time.total_s)
    rejections += [_slower(candidate, best[0]) for candidate in (*best[1:], *per_mesh[space.finalists :])]
    return Found(best=tuple(best), rejections=tuple(rejections), considered=considered)


def meshes(grid: DeviceGrid, space: Space) -> Iterator[Mesh]:
    """Every product of degrees that uses all devices."""
    for order in space.orders:
        for pp in _divisors(grid.devices):
            for tp in _divisors(grid.devices // pp):
                ways = grid.devices // pp // tp
                yield from (Mesh(pp=pp, dp=ways // shard, shard=shard, tp=tp, order=order) for shard in _divisors(ways))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    considered: int
    candidate: Candidate | None = None
    reason: str = ""


def _best_on(mesh: Mesh, shape: TransformerShape, grid: DeviceGrid, global_batch: int, space: Space) -> _Outcome:
    """The fastest way on one mesh, or what keeps all of them from running."""
    if mesh.tp > grid.per_machine:
        reason = f"tp {mesh.tp} leaves the machine of {grid.per_machine} devices: all-reduces of each block would too"
        return _Outcome(considered=1, reason=reason)
    if too_large := _state_too_large(mesh, shape, grid, space):
        return _Outcome(considered=1, reason=too_large)
    best: Candidate | None = None
    least: Candidate | None = None
    refused, considered = "", 0
    for plan in _ways(mesh, shape, grid, global_batch, space):
        considered += 1
        if why := why_impossible(plan):
            refused = refused or why
            continue
        for candidate in _fitting(plan, space):
            considered += 1
            if candidate.memory.fits_in(space.usable * grid.device.memory_bytes):
                best = min(best or candidate, candidate, key=lambda each: each.time.total_s)
            else:
                least = min(least or candidate, candidate, key=lambda each: each.memory.total)
    reason = ""
    if best is None:
        reason = _too_large(least, grid, space) if least else refused
        reason = reason or f"{mesh.data_ways} data ways do not divide a batch of {global_batch}"
    return _Outcome(considered=max(considered, 1), candidate=best, reason=reason)


def _ways(mesh: Mesh, shape: TransformerShape, grid: DeviceGrid, global_batch: int, space: Space) -> Iterator[MeshPlan]:
    for size in space.micro_batches:
        if global_batch % (size * mesh.data_ways):
            continue
        for schedule, stages in space.schedules if mesh.pp > 1 else ((Schedule.ONE_F_ONE_B, 1),):
            yield MeshPlan(
                shape=shape,
                grid=grid,
                mesh=mesh,
                micro_batch=size,
                micro_batches=global_batch // size // mesh.data_ways,
                schedule=schedule,
                stages_per_rank=stages,
                sequence_parallel=mesh.tp > 1,
                state=space.state,
                activation_bytes=space.activation_bytes,
                assumptions=space.assumptions,
            )


def _fitting(plan: MeshPlan, space: Space) -> Iterator[Candidate]:
    """For each kind of recomputation the least sharding that fits, as more costs more; if none does, the most."""
    shardings = space.shardings if plan.mesh.shard > 1 else space.shardings[:1]
    for recompute in space.recomputes:
        for sharding in shardings:
            one = replace(plan, recompute=recompute, sharding=sharding)
            memory = peak_memory(one)
            if memory.fits_in(space.usable * plan.grid.device.memory_bytes):
                break
        yield Candidate(plan=one, time=estimated(one), memory=memory)


def _simulated(candidate: Candidate) -> Candidate:
    plan = candidate.plan
    if 3 * plan.stages * plan.micro_batches > MOST_SIMULATED_ACTIONS:
        return candidate
    return replace(candidate, time=simulated(plan), was_simulated=True)


def _state_too_large(mesh: Mesh, shape: TransformerShape, grid: DeviceGrid, space: Space) -> str | None:
    """What an average rank holds at the most sharding is too much already, whatever the batch."""
    plan = MeshPlan(shape=shape, grid=grid, mesh=mesh, sharding=max(space.shardings), state=space.state)
    state = state_memory(plan, shape.parameters / mesh.pp / mesh.tp).state
    usable = space.usable * grid.device.memory_bytes
    if state <= usable:
        return None
    return (
        f"needs {state / _GIB:.1f} GiB a device for parameters, gradients and optimizer alone, at sharding stage "
        f"{max(space.shardings).value}; usable are {usable / _GIB:.1f} of {grid.device.name}"
    )


def _too_large(least: Candidate, grid: DeviceGrid, space: Space) -> str:
    memory = least.memory
    return (
        f"needs {memory.total / _GIB:.1f} GiB a device at least ({least.describe()}: state {memory.state / _GIB:.1f}, "
        f"activations {memory.activations / _GIB:.1f}, other {(memory.gathered + memory.fixed) / _GIB:.1f}), usable "
        f"are {space.usable * grid.device.memory_bytes / _GIB:.1f} of {grid.device.name}"
    )


def _slower(candidate: Candidate, best: Candidate) -> Rejection:
    time, lead = candidate.time, candidate.time.total_s / best.time.total_s
    costs = {
        "bubbles": time.bubble_share * time.pipeline_s - best.time.bubble_share * best.time.pipeline_s,
        "computation and exchange in the blocks": time.compute_s - best.time.compute_s,
        "exchange of gradients and parameters": time.exchange_s - best.time.exchange_s,
        "optimizer": time.update_s - best.time.update_s,
    }
    name = max(costs, key=costs.__getitem__)
    reason = (
        f"{lead:.2f} times the step of the best, {time.total_s:.3g} s ({candidate.describe()}); most of it: {name}, "
        f"{costs[name]:+.3g} s"
    )
    return Rejection(mesh=candidate.plan.mesh, reason=reason)


def _nothing_fits(shape: TransformerShape, grid: DeviceGrid, global_batch: int, rejections: Sequence[Rejection]) -> str:
    near = next((each for each in reversed(rejections) if each.reason.startswith("needs")), rejections[-1])
    return (
        f"no mesh of {grid.devices} x {grid.device.name} trains {shape.parameters:.3g} parameters at {global_batch} "
        f"sequences a step. Tried {len(rejections)} meshes, such as {near.mesh}: {near.reason}. (1) more devices, or "
        "more memory in each; (2) a batch that more data ways divide; (3) more recomputation, sharding or schedules"
    )


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]
