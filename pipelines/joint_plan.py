"""`hetero plan` of a job of text and clicks: both halves placed and priced, from sizes alone; nothing is built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from rich.console import Group, RenderableType
from rich.table import Table

from hetero.planning.joint import SSD_READS_PER_S, JointFound, JointPlan, JointWork, plan_joint
from hetero.planning.mesh import INSIDE
from hetero.planning.profile import POOLED_ON_TOWER, Rates, Work, chain_of
from hetero.planning.shape import TransformerShape
from hetero.planning.tasks import Chain, Role, Usage
from hetero.records import JobSpec
from hetero.records.cluster import ClusterSpec
from hetero.towers.embeddings import tower_inputs
from hetero.towers.joint import Joint
from hetero.towers.text_half import text_spec
from pipelines.cluster_file import load_cluster
from pipelines.job import Job
from pipelines.plan import DISTINCT, LIST_LENGTH, MEMORY_PER_ROW, find_measured, work_without_tower
from pipelines.report import size
from pipelines.resolve import resolve


@dataclass(frozen=True, slots=True, kw_only=True)
class JointPlanned:
    """A plan of both halves. dense, sparse: their parameters; assumed: what no measurement stands behind."""

    found: JointFound
    dense: int
    sparse: int
    assumed: tuple[str, ...]

    def to_dict(self) -> dict[str, object]:
        """The command's JSON."""
        others = [{"nodes": name, "plan": _record(plan)} for name, plan in self.found.others]
        return {
            "plan": _record(self.found.best),
            "dense_parameters": self.dense,
            "sparse_parameters": self.sparse,
            "others": others,
            "assumed": list(self.assumed),
        }

    def shown(self) -> RenderableType:
        best = self.found.best
        parts: list[RenderableType] = [
            f"{best.samples_per_s:,.0f} samples/s for {best.price:,.2f} an hour, {best.cost_per_million:.4f} for a "
            f"million samples",
            f"a step takes {_ms(best.step_s)} ms, bound by the {best.bound_by} side: {_bound(best)}",
            f"{self.dense:,} dense and {self.sparse:,} sparse parameters",
            _sides(best),
            _tiers(best),
            *(f"assumed: {line}" for line in self.assumed),
        ]
        if not best.runs:
            parts.append("the text half's layout is one that the runtime does not lay out yet (docs/joint.md)")
        return Group(*parts, _others(self.found.others))


def is_joint(spec: JobSpec) -> bool:
    """Whether the job's tower reads texts."""
    return spec.tower.name == "joint" and bool(spec.train.texts)


def lies_on_a_mesh(job: Job, *, job_path: Path, cluster_path: Path, profile: Path | None) -> bool:
    """Whether a plan lays the text half out on a mesh of accelerators: where the cluster has some, unless its tower is
    whole and was measured on them, and so is a task like others."""
    cluster = load_cluster(cluster_path)
    accelerated = {kind.name for kind in cluster.kinds if kind.accelerators and kind.count}
    if job.tower.mesh is not None or not accelerated:
        return bool(accelerated)
    usages = find_measured(job, job_path=job_path, profile=profile).usages(cluster, rows=1.0)
    return not accelerated <= set(usages.get("tower", {}))


def joint_planned(
    job: Job, *, job_path: Path, cluster_path: Path, throughput: float | None, rows: int, profile: Path | None
) -> JointPlanned:
    """Plan both halves for a cluster file. Raises PlanError."""
    cluster, spec = load_cluster(cluster_path), resolve(job)
    found = find_measured(job, job_path=job_path, profile=profile)
    measured = found.usages(cluster, rows=float(spec.batch_size))
    sparse = work_without_tower(spec, rows=rows)
    work = joint_work(spec, sparse, cluster=cluster, measured=measured)
    return JointPlanned(
        found=plan_joint(work, cluster=cluster, throughput=throughput),
        dense=sum(parameter.numel() for parameter in sized_tower(spec).parameters()),
        sparse=round(rows * sparse.row_bytes / MEMORY_PER_ROW / 4),
        assumed=tuple(_assumed(sorted({task.name for task in work.sparse.tasks} - set(measured)), rows=rows)),
    )


def joint_work(
    spec: JobSpec, sparse: Work, *, cluster: ClusterSpec, measured: Mapping[str, Mapping[str, Usage]]
) -> JointWork:
    """What the planner starts from."""
    inputs = tower_inputs(spec)
    model = text_spec(spec.tower.args["transformer"], inputs.texts)
    tower = sized_tower(spec)
    outside = sum(p.numel() for name, p in tower.named_parameters() if not name.startswith("text."))
    chain = chain_of(sparse, cluster=cluster, pooling=POOLED_ON_TOWER, measured=measured)
    return JointWork(
        shape=replace(
            TransformerShape.of(model), sequence=max(text.length for text in inputs.texts), tied=True, headless=True
        ),
        texts=len(inputs.texts),
        batch=spec.batch_size,
        head_flops=6.0 * outside,
        sparse=Chain(name=chain.name, tasks=tuple(task for task in chain.tasks if task.role is not Role.TOWER)),
        reads=sparse.keys * sparse.distinct,
        rows=sparse.rows,
        row_bytes=sparse.row_bytes,
    )


def sized_tower(spec: JobSpec) -> Joint:
    """The tower without memory: names and shapes of its parameters."""
    with torch.device("meta"):
        return Joint(tower_inputs(spec), **spec.tower.args)  # type: ignore[arg-type]


def _record(plan: JointPlan | str) -> object:
    if isinstance(plan, str):
        return plan
    record = asdict(plan)
    for stage in record["sparse"]["stages"]:
        stage["roles"] = [role.value for role in stage["roles"]]
    return record


def _bound(plan: JointPlan) -> str:
    """The slower side's time, beside the other's."""
    text = f"texts {_ms(plan.text_s)} ms and the head {_ms(plan.head_s)} ms after them"
    return f"{text}; rows {_ms(plan.sparse_s)} ms, meanwhile"


def _sides(plan: JointPlan) -> Table:
    """Who does what in a step. Stages of the sparse side follow each other, batch after batch: the slowest counts."""
    table = Table(title="a step", title_justify="left", box=None)
    for name in ("what", "nodes", "ms", ""):
        table.add_column(name, justify="right" if name == "ms" else "left")
    text = f"of it gradients between data ways {_ms(plan.exchange_s)} ms"
    table.add_row(f"texts: {plan.mesh}", f"{plan.nodes} x {plan.kind}", _ms(plan.text_s), text)
    table.add_row("head", "the same, on each data way", _ms(plan.head_s), "")
    for stage in plan.sparse.stages:
        took = plan.samples_per_s * plan.step_s / stage.throughput
        reads = f"and {_ms(plan.ssd_s)} ms of reads from SSD" if "lookup" in stage.tasks and plan.ssd_s else ""
        table.add_row(" + ".join(stage.tasks), f"{stage.nodes} x {stage.kind}", _ms(took), reads)
    return table


def _ms(seconds: float) -> str:
    """Milliseconds, three digits at least."""
    return f"{seconds * 1e3:,.0f}" if seconds >= 0.1 else f"{seconds * 1e3:.3g}"


def _tiers(plan: JointPlan) -> Table:
    """What lies where, of one device or node."""
    table = Table(title="memory", title_justify="left", box=None)
    for name in ("tier", "of each", "used", "there", ""):
        table.add_column(name, justify="right" if name in ("used", "there") else "left")
    part, rows = plan.memory, plan.rows
    held = f"parameters and optimizer {size(part.state)}, activations {size(part.activations)}"
    table.add_row("device", f"{plan.kind}'s accelerator", size(part.total), size(plan.device_bytes), held)
    kind = next(stage.kind for stage in plan.sparse.stages if "lookup" in stage.tasks)
    where = f"{rows.nodes} x {kind}"
    shares = f"{rows.memory_share:.0%} of the rows", f"{1 - rows.memory_share:.0%} of the rows"
    table.add_row("memory", where, size(rows.memory_bytes), size(rows.memory_there), shares[0])
    table.add_row("SSD", where, size(rows.ssd_bytes), size(rows.ssd_there), shares[1])
    return table


def _others(others: Sequence[tuple[str, JointPlan | str]]) -> Table:
    table = Table(title="other nodes for the text half", title_justify="left", box=None)
    for name in ("nodes", "samples/s", "price an hour", "bound by"):
        table.add_column(name)
    for name, plan in others:
        if isinstance(plan, str):
            table.add_row(name, plan, "", "")
        else:
            table.add_row(name, f"{plan.samples_per_s:,.0f}", f"{plan.price:,.2f}", plan.bound_by)
    return table


def _assumed(tasks: list[str], *, rows: int) -> list[str]:
    lines = [
        "the text half at 50% of the data sheet's rate for matrix products, the head at "
        f"{Rates().device_share:.0%}; {INSIDE} inside a node",
        "every text is read in full length, and no two of a batch are equal",
        "rows are fetched while the text half trains, so a step takes what its slower side does",
        f"a node reads {SSD_READS_PER_S:,.0f} rows/s from SSD, and which rows are in memory is chance",
    ]
    if tasks:
        lines.append(
            f"seconds of {', '.join(tasks)} from rates of one core (hetero/planning/profile.py); {DISTINCT:.0%} of a "
            f"batch's keys are distinct, lists without max_length have {LIST_LENGTH} values"
        )
    if not rows:
        lines.append("rows take no memory; give --rows N")
    return lines
