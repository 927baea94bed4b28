"""`hetero plan`: a job and a cluster file to a plan, kept as a file that `hetero train --plan` obeys."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from hetero.errors import PlanError
from hetero.optim.definition import row_width
from hetero.planning.plan import Plan, PlannedStage, plan_for_budget, plan_for_throughput
from hetero.planning.profile import POOLED_ON_TOWER, Rates, Work, chain_of
from hetero.planning.tasks import Chain, Role, Usage
from hetero.records import JobSpec, Pooling
from hetero.records.cluster import ClusterSpec, NodeKind
from hetero.towers.build import make_tower
from pipelines.cluster_file import cluster_fingerprint, load_cluster
from pipelines.job import Job
from pipelines.resolve import resolve

VERSION = 1
POOLINGS = (POOLED_ON_TOWER,)
"""What the runtime can place today: servers hand out rows, towers pool them."""
LIST_LENGTH = 20
"""Values assumed in a list without max_length."""
DISTINCT = 0.25
"""Share of a batch's keys that is left by dedup: 26,965 of 26 x 4,096 (benchmarks/results/2026-11-30-kernels.md)."""
MEMORY_PER_ROW = 1.35
"""Bytes in memory / bytes of the row, index included (the same)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleCount:
    """Actors of a role, and threads of each."""

    count: int
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFile:
    """A plan with what it was made for. cluster: path of the cluster file, as given."""

    job: str
    cluster: str
    job_fingerprint: str
    cluster_fingerprint: str
    roles: Mapping[str, RoleCount]
    plan: Plan

    def to_dict(self) -> dict[str, object]:
        """The file's JSON."""
        plan = asdict(self.plan)
        for stage in plan["stages"]:
            stage["roles"] = [role.value for role in stage["roles"]]
        return {
            "version": VERSION,
            "job": self.job,
            "cluster": self.cluster,
            "job_fingerprint": self.job_fingerprint,
            "cluster_fingerprint": self.cluster_fingerprint,
            "roles": {name: asdict(role) for name, role in self.roles.items()},
            "plan": plan,
        }


def work_of(spec: JobSpec, *, rows: int = 0) -> Work:
    """What one sample of a job asks for. rows: expected in all tables together, 0 where it is not known."""
    lengths = [(feature.max_length or LIST_LENGTH) if feature.is_list else 1 for feature in spec.train.sparse]
    widths = [
        (row_width(spec.groups[lookup.group].optimizer, lookup.dim), lengths[lookup.feature]) for lookup in spec.lookups
    ]
    pooled = [
        lookup.dim * (lengths[lookup.feature] if lookup.pooling is Pooling.NONE else 1) for lookup in spec.lookups
    ]
    keys = float(sum(length for _, length in widths))
    floats = float(sum(width * length for width, length in widths))
    return Work(
        file_bytes=8.0 * (sum(lengths) + len(spec.train.dense) + 1),
        dense=len(spec.train.dense),
        keys=keys,
        distinct=DISTINCT,
        row_floats=floats,
        pooled_floats=float(sum(pooled)),
        tower_flops=6.0 * sum(parameter.numel() for parameter in make_tower(spec).parameters()),
        rows=rows,
        row_bytes=4 * floats / max(keys, 1) * MEMORY_PER_ROW,
    )


def chains_of(
    job: Job, *, cluster: ClusterSpec, rows: int = 0, measured: Mapping[str, Mapping[str, Usage]] | None = None
) -> list[Chain]:
    """The job's tasks under each choice that the runtime can place."""
    work = work_of(resolve(job), rows=rows)
    return [chain_of(work, cluster=cluster, pooling=pooling, rates=Rates(), measured=measured) for pooling in POOLINGS]


def make_plan(
    job: Job,
    *,
    job_path: Path,
    cluster_path: Path,
    chains: list[Chain],
    cluster: ClusterSpec,
    throughput: float | None,
    price: float | None,
) -> PlanFile:
    """Cheapest for `throughput` samples a second, or the fastest, for `price` an hour where it is given."""
    if throughput is not None:
        plan = plan_for_throughput(chains, cluster=cluster, throughput=throughput)
        if price is not None and plan.price > price:
            raise PlanError(
                f"{throughput:,.0f} samples/s cost {plan.price:,.2f} an hour at least, and {price:g} is the most; ask "
                "for less, or leave --throughput out for the fastest at that price"
            )
    else:
        plan = plan_for_budget(chains, cluster=cluster, price=price)
    chain = next(each for each in chains if each.name == plan.chain)
    return PlanFile(
        job=str(job_path),
        cluster=str(cluster_path),
        job_fingerprint=job_fingerprint(job),
        cluster_fingerprint=cluster_fingerprint(cluster),
        roles=role_counts(plan, chain=chain, cluster=cluster),
        plan=plan,
    )


def role_counts(plan: Plan, *, chain: Chain, cluster: ClusterSpec) -> dict[str, RoleCount]:
    """Actors of each role: one on every node of its stage, towers one for each accelerator.

    Threads: the cores of a node, shared out by the seconds that its roles take.
    """
    counts = {}
    for role in Role:
        stage = next(stage for stage in plan.stages if role in stage.roles)
        kind = cluster.kind(stage.kind)
        actors = kind.accelerators if role is Role.TOWER and kind.accelerators else 1
        threads = math.floor(kind.cores * _share(chain, stage, kind, role) / actors)
        counts[f"{role.value}s"] = RoleCount(count=stage.nodes * actors, threads=max(1, threads))
    return counts


def _share(chain: Chain, stage: PlannedStage, kind: NodeKind, role: Role) -> float:
    tasks = [task for task in chain.tasks if task.name in stage.tasks]
    seconds = {task.name: task.usage[kind.name].cpu_s for task in tasks}
    whole = sum(seconds.values())
    own = sum(seconds[task.name] for task in tasks if task.role is role)
    return own / whole if whole else 1 / len(stage.roles)


def job_fingerprint(job: Job) -> str:
    """Changes with anything but the roles' counts and the run's folder."""
    record = job.model_dump(mode="json", by_alias=True, exclude={"roles", "run"})
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:16]


def save_plan(file: PlanFile, *, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(file.to_dict(), indent=2) + "\n", encoding="utf-8")


def planned_job(job: Job, *, path: Path) -> Job:
    """The job with the roles of a plan file. Raises PlanError when job or cluster are not those it was made for."""
    record = _read(path)
    if record["job_fingerprint"] != job_fingerprint(job):
        raise PlanError(f"{path} was made for another state of the job ({record['job']}); plan again: {_again(record)}")
    cluster_path = Path(str(record["cluster"]))
    if not cluster_path.is_file():
        raise PlanError(f"{path} was made for the cluster of {cluster_path}, which is not there; plan again")
    if record["cluster_fingerprint"] != cluster_fingerprint(load_cluster(cluster_path)):
        raise PlanError(f"{path} was made before {cluster_path} changed; plan again: {_again(record)}")
    sections = {name: getattr(job, name) for name in Job.model_fields}
    return Job(**{**sections, "roles": record["roles"]})


def _again(record: Mapping[str, object]) -> str:
    return f"hetero plan {record['job']} --cluster {record['cluster']}"


def _read(path: Path) -> dict[str, object]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(f"{path}: cannot be read ({error.strerror})") from None
    except json.JSONDecodeError as error:
        raise PlanError(f"{path}: is no plan file: line {error.lineno}: {error.msg}") from None
    if not isinstance(record, dict) or record.get("version") != VERSION:
        found = record.get("version") if isinstance(record, dict) else None
        raise PlanError(f"{path}: has version {found}, this hetero reads plan files of version {VERSION}")
    return record


def read_measured(path: Path) -> dict[str, dict[str, Usage]]:
    """Measured seconds a sample of a whole node: {task: {kind: {cpu_s, device_s}}}, as JSON."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return {
            str(task): {str(kind): Usage(**seconds) for kind, seconds in kinds.items()}
            for task, kinds in record.items()
        }
    except (OSError, json.JSONDecodeError, AttributeError, TypeError) as error:
        raise PlanError(
            f'{path}: is no profile ({error}); expected {{"tower": {{"gpu": {{"cpu_s": 1e-6, "device_s": 4e-6}}}}}}'
        ) from None
