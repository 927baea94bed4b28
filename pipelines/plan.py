"""`hetero plan`: a job and a cluster file to a plan."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hetero.errors import PlanError
from hetero.exchange.server_pooling import can_be_pooled
from hetero.optim.definition import row_width
from hetero.planning.mixed import cheapest_plan, fastest_plan
from hetero.planning.plan import Plan
from hetero.planning.profile import POOLED_ON_SERVER, POOLED_ON_TOWER, Rates, Work, chain_of
from hetero.planning.task_profile import JobProfile
from hetero.planning.tasks import Chain, Usage
from hetero.records import JobSpec, Mode, Pooling
from hetero.records.cluster import ClusterSpec
from hetero.towers.build import make_tower
from pipelines.cluster_file import cluster_fingerprint, cluster_kinds
from pipelines.job import Job
from pipelines.plan_file import PlanFile, job_fingerprint, job_sections
from pipelines.plan_places import (
    nodes_of,
    predicted,
    role_counts,
    server_budgets,
    shares_of,
    towers_by_kind,
    window_bytes,
)
from pipelines.resolve import resolve

LIST_LENGTH = 20
"""Values assumed in a list without max_length."""
DISTINCT = 0.25
"""Share of a batch's keys that is left by dedup: 26,965 of 26 x 4,096 (benchmarks/results/2026-11-30-kernels.md)."""
_MOST_ROUNDS = 4
MEMORY_PER_ROW = 1.35
"""Bytes in memory / bytes of the row, index included (the same)."""


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
    spec = resolve(job)
    work = work_of(spec, rows=rows)
    return [
        chain_of(work, cluster=cluster, pooling=pooling, rates=Rates(), measured=measured) for pooling in poolings(spec)
    ]


def poolings(spec: JobSpec) -> tuple[str, ...]:
    """Where lists can be pooled: on servers in `sync`, of groups that allow it; there only, where the job says so."""
    if spec.pool_on_servers:
        return (POOLED_ON_SERVER,)
    could = any(can_be_pooled(spec, group) for group in range(len(spec.groups)))
    return (POOLED_ON_TOWER, POOLED_ON_SERVER) if could and spec.mode is Mode.SYNC else (POOLED_ON_TOWER,)


def make_plan(
    job: Job,
    *,
    job_path: Path,
    cluster_path: Path,
    cluster: ClusterSpec,
    throughput: float | None,
    price: float | None,
    rows: int = 0,
    measured: Measured | None = None,
) -> tuple[PlanFile, list[Chain]]:
    """Cheapest for `throughput` samples a second, or the fastest, for `price` an hour where it is given; and the chains
    it was chosen from.

    What a task takes depends on the rows of a tower's batch, and these on the number of towers: planned again until it
    does not change.
    """
    measured, spec = measured or Measured(), resolve(job)
    towers = job.roles.towers.count
    for _ in range(_MOST_ROUNDS):
        seconds = measured.usages(cluster, rows=max(spec.batch_size / towers, 1.0))
        chains = chains_of(job, cluster=cluster, rows=rows, measured=seconds)
        plan = _searched(chains, cluster=cluster, throughput=throughput, price=price)
        before, towers = towers, len(towers_by_kind(plan, cluster))
        if measured.profile is None or towers == before:
            break
    chain = next(each for each in chains if each.name == plan.chain)
    prediction = predicted(plan, spec=spec, cluster=cluster, profile=measured.profile)
    budgets = server_budgets(plan, spec=spec, cluster=cluster)
    file = PlanFile(
        job=str(job_path),
        cluster=str(cluster_path),
        job_fingerprint=job_fingerprint(job),
        cluster_fingerprint=cluster_fingerprint(cluster),
        job_sections=job_sections(job),
        cluster_kinds=cluster_kinds(cluster),
        roles=role_counts(plan, chain=chain, cluster=cluster),
        pooling="server" if plan.chain == POOLED_ON_SERVER else "tower",
        nodes=nodes_of(plan, chain=chain, cluster=cluster),
        shares=shares_of(plan, cluster, prediction),
        window_bytes=window_bytes(plan, spec=spec, cluster=cluster),
        memory_bytes=None if budgets is None else budgets[0],
        ssd_bytes=None if budgets is None else budgets[1],
        predicted=None if prediction is None else prediction.samples_per_s,
        plan=plan,
    )
    return file, chains


def _searched(chains: list[Chain], *, cluster: ClusterSpec, throughput: float | None, price: float | None) -> Plan:
    if throughput is None:
        return fastest_plan(chains, cluster=cluster, price=price)
    plan = cheapest_plan(chains, cluster=cluster, throughput=throughput)
    if price is not None and plan.price > price:
        raise PlanError(
            f"{throughput:,.0f} samples/s cost {plan.price:,.2f} an hour at least, and {price:g} is the most; ask "
            "for less, or leave --throughput out for the fastest at that price"
        )
    return plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Seconds that were measured. seconds: of a whole node a sample, by task and kind. profile: of `hetero profile`.
    note: for people, what became of a profile."""

    seconds: Mapping[str, Mapping[str, Usage]] = field(default_factory=dict)
    profile: JobProfile | None = None
    note: str = ""

    def usages(self, cluster: ClusterSpec, *, rows: float) -> Mapping[str, Mapping[str, Usage]]:
        """At batches of `rows` a tower."""
        return self.seconds if self.profile is None else self.profile.usages(cluster=cluster, rows=rows)


def find_measured(job: Job, *, job_path: Path, profile: Path | None) -> Measured:
    """The file that is given, else what `hetero profile` left beside the job. Raises PlanError for one that is given
    and is of another state of the job."""
    beside = profile_path(job_path)
    if profile is None and not beside.is_file():
        return Measured()
    path = profile or beside
    if profile is not None and not _is_of_job(path):
        return Measured(seconds=read_measured(path))
    found = JobProfile.read(path)
    if found.job_fingerprint == job_fingerprint(job):
        return Measured(profile=found)
    told = f"{path} was measured for another state of the job; measure again: hetero profile {job_path}"
    if profile is not None:
        raise PlanError(told)
    return Measured(note=told)


def profile_path(job: Path) -> Path:
    """Where a job's profile lies: `jobs/clicks.yaml` has `jobs/clicks.profile.json`."""
    return job.with_name(f"{job.stem}.profile.json")


def _is_of_job(path: Path) -> bool:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        return False
    return isinstance(record, dict) and "job_fingerprint" in record


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
