"""What `hetero plan` does between its arguments and its output."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import RenderableType

from hetero.planning.mixed import cheapest_plan, fastest_plan
from hetero.planning.plan import Plan, pareto
from hetero.planning.split_explain import Alternative, explain
from hetero.planning.tasks import Chain
from hetero.records.cluster import ClusterSpec
from pipelines.cluster_file import load_cluster
from pipelines.job import Job
from pipelines.plan import DISTINCT, LIST_LENGTH, find_measured, make_plan
from pipelines.plan_file import PlanFile, save_plan
from pipelines.plan_plot import save_front_plot
from pipelines.plan_report import plan_report


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan with what was asked for beside it. assumed: lines that say what no measurement stands behind."""

    file: PlanFile
    front: tuple[Plan, ...]
    alternatives: tuple[Alternative, ...]
    assumed: tuple[str, ...]

    def to_dict(self) -> dict[str, object]:
        """The command's JSON."""
        points = [{"throughput": each.throughput, "price": each.price, "nodes": each.nodes} for each in self.front]
        return {
            **self.file.to_dict(),
            "front": points,
            "alternatives": [asdict(each) for each in self.alternatives],
            "assumed": list(self.assumed),
        }

    def shown(self) -> RenderableType:
        return plan_report(self.file, front=self.front, alternatives=self.alternatives, assumed=self.assumed)


def planned(
    job: Job,
    *,
    job_path: Path,
    cluster_path: Path,
    throughput: float | None = None,
    price: float | None = None,
    rows: int = 0,
    profile: Path | None = None,
    with_front: bool = False,
    with_alternatives: bool = False,
    out: Path | None = None,
    plot: Path | None = None,
) -> Planned:
    """Plan a job for a cluster file. profile: measured seconds; out: where to keep the plan; plot: where to draw what
    throughput costs. Raises PlanError."""
    cluster = load_cluster(cluster_path)
    measured = find_measured(job, job_path=job_path, profile=profile)
    file, chains = make_plan(
        job,
        job_path=job_path,
        cluster_path=cluster_path,
        cluster=cluster,
        throughput=throughput,
        price=price,
        rows=rows,
        measured=measured,
    )
    if out is not None:
        save_plan(file, path=out)
    front = _front(chains, cluster) if with_front or plot is not None else ()
    if plot is not None:
        save_front_plot(front, taken=file.plan, path=plot)
    names = {task.name for task in chains[0].tasks} - set(measured.usages(cluster, rows=1.0))
    return Planned(
        file=file,
        front=front if with_front else (),
        alternatives=tuple(explain(file.plan, chains=chains, cluster=cluster)) if with_alternatives else (),
        assumed=(*([measured.note] if measured.note else []), *_assumed(sorted(names), rows=rows)),
    )


def _front(chains: list[Chain], cluster: ClusterSpec) -> tuple[Plan, ...]:
    """With towers on two kinds of node where plans have them."""
    fastest = fastest_plan(chains, cluster=cluster)
    return tuple(pareto(chains, cluster=cluster, fastest=fastest, cheapest=cheapest_plan))


def _assumed(tasks: list[str], *, rows: int) -> list[str]:
    lines = []
    if tasks:
        lines.append(
            f"seconds of {', '.join(tasks)} from rates of one core and data sheets (hetero/planning/profile.py); "
            f"{DISTINCT:.0%} of a batch's keys are distinct, lists without max_length have {LIST_LENGTH} values"
        )
    if not rows:
        lines.append("rows take no memory; give --rows N")
    return lines
