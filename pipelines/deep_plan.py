"""`hetero plan` of a deep job: nodes and mesh from sizes and data sheets; nothing is built, no data but its vocabulary
is read."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table

from hetero.planning.deep_plan import DeepFound, DeepPlan, plan_deep
from hetero.planning.mesh import INSIDE
from hetero.planning.mesh_plan import Assumptions
from hetero.planning.traffic import traffic
from hetero.records.mesh import AXES, MeshSpec, PipelineSchedule, Recompute
from pipelines.cluster_file import load_cluster
from pipelines.deep_resolve import resolve_deep
from pipelines.deep_schema import DeepJob
from pipelines.report import size


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepPlanned:
    """A plan with what was asked for beside it. tokens: of a sequence."""

    found: DeepFound
    job_path: Path
    tokens: int
    parameters: int
    with_front: bool
    with_alternatives: bool

    def to_dict(self) -> dict[str, object]:
        """The command's JSON."""
        best = self.found.best
        return {
            "plan": self._record(best),
            "parameters": self.parameters,
            "set": settings(best.mesh),
            "tried": [
                {"nodes": name, "plan": plan if isinstance(plan, str) else self._record(plan)}
                for name, plan in self.found.tried
            ],
            "front": [self._record(plan) for plan in self.found.front] if self.with_front else [],
            "alternatives": [{"mesh": str(each.mesh), "reason": each.reason} for each in best.rejections]
            if self.with_alternatives
            else [],
            "assumed": list(_assumed()),
        }

    def shown(self) -> RenderableType:
        best = self.found.best
        rate = best.samples_per_s
        parts: list[RenderableType] = [
            f"{best.name}: {rate * self.tokens:,.0f} tokens/s ({rate:,.4g} sequences/s) for {best.price:,.2f} an hour, "
            f"{best.price / 3600 / rate / self.tokens * 1e9:,.4g} for a billion tokens",
            f"{self.parameters:,} parameters on {best.candidate.describe()}",
            f"hetero train {self.job_path} {' '.join(f'--set {each}' for each in settings(best.mesh))}",
            _step(best),
            *([_front(self.found.front, self.tokens)] if self.with_front else []),
            _tried(self.found, self.tokens),
            *([_rejections(best)] if self.with_alternatives else []),
            *(f"assumed: {line}" for line in _assumed()),
        ]
        return Group(*parts)

    def _record(self, plan: DeepPlan) -> dict[str, object]:
        time, mesh = plan.candidate.time, asdict(plan.mesh)
        for name in ("schedule", "recompute", "precision"):
            mesh[name] = mesh[name].value
        return {
            "kind": plan.kind,
            "nodes": plan.nodes,
            "price": plan.price,
            "mesh": mesh,
            "samples_per_s": plan.samples_per_s,
            "tokens_per_s": plan.samples_per_s * self.tokens,
            "mfu": time.utilization,
            "step_s": time.total_s,
            "bubble_share": time.bubble_share,
            "exchange_s": time.exchange_s,
            "update_s": time.update_s,
            "memory": asdict(plan.candidate.memory) | {"total": plan.candidate.memory.total},
            "was_simulated": plan.candidate.was_simulated,
        }


def deep_planned(
    job: DeepJob,
    *,
    job_path: Path,
    cluster_path: Path,
    throughput: float | None = None,
    price: float | None = None,
    with_front: bool = False,
    with_alternatives: bool = False,
) -> DeepPlanned:
    """Plan a deep job for a cluster file, whatever mesh the job has. Raises PlanError."""
    alone = job.model_copy(update={"mesh": job.mesh.model_copy(update=_ONE_RANK), "run": _on_cpu(job)})
    spec = resolve_deep(alone)
    return DeepPlanned(
        found=plan_deep(spec, cluster=load_cluster(cluster_path), throughput=throughput, price=price),
        job_path=job_path,
        tokens=spec.model.context,
        parameters=spec.model.parameters,
        with_front=with_front,
        with_alternatives=with_alternatives,
    )


_ONE_RANK = {
    **dict.fromkeys(AXES, 1),
    "schedule": PipelineSchedule.ONE_F_ONE_B,
    "stages_per_rank": 1,
    "blocks_per_stage": None,
    "micro_batches": 1,
    "recompute": Recompute.NONE,
    "sharding": 1,
}
"""Fits every model and batch, so that a job is planned whose mesh does not fit its own."""


def _on_cpu(job: DeepJob) -> object:
    return job.run.model_copy(update={"device": "cpu"})


def settings(mesh: MeshSpec) -> list[str]:
    """`mesh.pp=2` and so on, what `--set` takes; values that are the defaults are left out."""
    plain, found = MeshSpec(), []
    for name in (*AXES, "sharding", "schedule", "stages_per_rank", "micro_batches", "recompute"):
        value = getattr(mesh, name)
        if value != getattr(plain, name):
            found.append(f"mesh.{name}={getattr(value, 'value', value)}")
    return found


def _step(plan: DeepPlan) -> Table:
    time, memory = plan.candidate.time, plan.candidate.memory
    table = Table(title="a step", title_justify="left", show_header=False, box=None)
    how = "simulated" if plan.candidate.was_simulated else "by closed forms"
    rows = {
        "seconds": f"{time.total_s:.4g} ({how}): pipeline {time.pipeline_s:.4g}, gradients and parameters "
        f"{time.exchange_s:.4g}, optimizer {time.update_s:.4g}",
        "bubble": f"{time.bubble_share:.1%}",
        "utilization": f"{time.utilization:.1%} of the data sheet",
        "memory of a device": f"{size(memory.total)} of {size(plan.candidate.plan.grid.device.memory_bytes)}: state "
        f"{size(memory.state)}, activations {size(memory.activations)}, other {size(memory.gathered + memory.fixed)}",
        "sent by a rank": ", ".join(
            f"{axis.value} {size(part.sent_bytes)}{' between nodes' if part.crosses else ''}"
            for axis, part in traffic(plan.candidate.plan).items()
        ),
    }
    for name, value in rows.items():
        if value:
            table.add_row(name, value)
    return table


def _columns(title: str, *names: str) -> Table:
    table = Table(title=title, title_justify="left", box=None)
    for name in names:
        table.add_column(name)
    return table


def _tried(found: DeepFound, tokens: int) -> Table:
    table = _columns("all nodes tried", "nodes", "tokens/s", "price an hour", "mesh")
    for name, plan in found.tried:
        if isinstance(plan, str):
            table.add_row(name, "", "", plan)
        else:
            told = f"{plan.samples_per_s * tokens:,.0f}", f"{plan.price:,.2f}", plan.candidate.describe()
            table.add_row(name + (" (taken)" if plan is found.best else ""), *told)
    return table


def _front(front: tuple[DeepPlan, ...], tokens: int) -> Table:
    table = _columns("cheapest at each speed", "nodes", "tokens/s", "price an hour")
    for plan in front:
        table.add_row(plan.name, f"{plan.samples_per_s * tokens:,.0f}", f"{plan.price:,.2f}")
    return table


def _rejections(plan: DeepPlan) -> Table:
    table = _columns(f"other meshes of {plan.name}", "mesh", "why not")
    for each in plan.rejections:
        table.add_row(str(each.mesh), each.reason)
    return table


def _assumed() -> tuple[str, ...]:
    plain = Assumptions()
    return (
        f"matrix products at {plain.matrix_efficiency:.0%} of the data sheet, no exchange hidden behind computation, "
        f"{size(plain.fixed_bytes)} of a device for context and workspace; {INSIDE} inside a node",
    )
