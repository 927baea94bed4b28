"""`hetero cluster check`: whether a cluster file is one that `ray up` takes, and which jobs could run on its nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hetero.errors import PlanError, UserError
from hetero.loops.recovery import Counts, Room
from hetero.planning.plan import Plan, plan_for_budget, plan_for_throughput
from hetero.records.cluster import ClusterSpec, NodeKind
from hetero.records.deep_job import DeepJobSpec
from pipelines.cluster_file import (
    ON_PREMISE_TYPES,
    head_type,
    hosts_of,
    is_on_premise,
    load_cluster,
    node_types,
    read_cluster,
)
from pipelines.deep_resolve import resolve_deep
from pipelines.deep_schema import is_deep, load_deep_job
from pipelines.job import load_job
from pipelines.plan import chains_of
from pipelines.resolve import resolve

PLACEHOLDER_IMAGE = "ami-00000000000000000"
AUTH_MODE = "RAY_AUTH_MODE"
LEAST_THROUGHPUT = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOn:
    """One job on the cluster. runs: whether it could; how: on what, or why not. as_written: whether the actors that the
    job itself asks for fit, without a plan; None where nobody can say."""

    job: str
    runs: bool
    how: str
    as_written: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A valid cluster file. ray: the version that validated it. notes: what is legal and may surprise."""

    file: str
    ray: str
    provider: str
    cluster: ClusterSpec
    jobs: tuple[JobOn, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, object]:
        """The command's JSON."""
        return {
            "file": self.file,
            "ray": self.ray,
            "provider": self.provider,
            "cluster": asdict(self.cluster),
            "jobs": [asdict(job) for job in self.jobs],
            "notes": list(self.notes),
        }


def checked(path: Path, *, jobs: Sequence[Path] = (), rows: int = 0) -> Checked:
    """Validate a cluster file and ask the planner about each job. rows: expected in all tables of a job.

    Raises PlanError for a file that `ray up` or planning cannot use, with the place in it.
    """
    from actors.cluster_config import check_cluster_config, check_labels

    raw = read_cluster(path)
    types = node_types(raw, path=path)
    version = check_cluster_config(raw, source=str(path))
    for name, node_type in types.items():
        _check_numbers(f"{path}: node type `{name}`", node_type)
        check_labels(node_type.get("labels") or {}, where=f"{path}: node type `{name}`")
    if is_on_premise(raw):
        _check_hosts(path, raw, types)
    cluster = load_cluster(path)
    return Checked(
        file=str(path),
        ray=version,
        provider=str(raw["provider"]["type"]),
        cluster=cluster,
        jobs=tuple(_job_on(job, cluster=cluster, rows=rows) for job in jobs),
        notes=tuple(_notes(raw, types, cluster)),
    )


def _check_numbers(where: str, node_type: Mapping[str, Any]) -> None:
    least, most = node_type.get("min_workers", 0), node_type.get("max_workers")
    if most is not None and least > most:
        raise PlanError(f"{where}: min_workers is {least}, above max_workers, {most}")


def _check_hosts(path: Path, raw: Mapping[str, Any], types: Mapping[str, Mapping[str, Any]]) -> None:
    """Every machine is of exactly one kind. Ray does not look at the kinds, so nobody else would notice."""
    provider = raw["provider"]
    there = [str(provider["head_ip"]), *map(str, provider["worker_ips"])]
    kinds: dict[str, str] = {}
    for name, node_type in types.items():
        if not hosts_of(node_type):
            raise PlanError(f"{path}: node type `{name}` has no hosts; list the addresses of its machines")
        for host in hosts_of(node_type):
            if host in kinds:
                raise PlanError(f"{path}: host {host} is of node type `{kinds[host]}` and of `{name}`; keep one")
            kinds[host] = name
            if host not in there:
                raise PlanError(
                    f"{path}: host {host} of node type `{name}` is neither provider.head_ip nor in provider.worker_ips"
                )
    for host in there:
        if host not in kinds:
            raise PlanError(f"{path}: host {host} is of no node type; add it to one in provider.{ON_PREMISE_TYPES}")


def _notes(raw: Mapping[str, Any], types: Mapping[str, Mapping[str, Any]], cluster: ClusterSpec) -> Iterator[str]:
    placeholders = [n for n, one in types.items() if (one.get("node_config") or {}).get("ImageId") == PLACEHOLDER_IMAGE]
    if placeholders:
        yield f"ImageId of {', '.join(placeholders)} is a placeholder; put the id of an image of your region there"
    yield from _alike(cluster.kinds)
    workers = sum(kind.count for kind in cluster.kinds)
    most = raw.get("max_workers")
    if isinstance(most, int) and most < workers:
        yield f"max_workers is {most}, and the node types add up to {workers}: plans may ask for more than Ray starts"
    commands = [line for name in raw if str(name).endswith("_commands") for line in raw[name] or ()]
    if not any(AUTH_MODE in str(line) for line in commands):
        yield (
            f"no command sets {AUTH_MODE}: where the head's user has a ~/.ray/auth_token, the head asks for it and "
            f"workers cannot join; export {AUTH_MODE}=disabled, or =token with the token on every node"
        )
    if is_on_premise(raw):
        yield (
            "start it with RAY_UP_enable_autoscaler_v2=0 ray up FILE: otherwise Ray counts the head as a worker and "
            "leaves the last of worker_ips out"
        )
        if head_type(raw) is None:
            yield "provider.head_ip is among the hosts of no node type, so the head starts with all that it finds"


def _alike(kinds: Sequence[NodeKind]) -> Iterator[str]:
    """Kinds that labels cannot single out, for which there is no plan."""
    for kind in kinds:
        also = [other.name for other in kinds if other is not kind and kind.labels.items() <= other.labels.items()]
        if also:
            yield (
                f"nodes of {', '.join(also)} have all labels of `{kind.name}`, so no role can be placed on it "
                "alone; give it a label of its own, such as kind"
            )


def _job_on(job: Path, *, cluster: ClusterSpec, rows: int) -> JobOn:
    try:
        return _deep_on(job, cluster) if is_deep(job) else _wide_on(job, cluster=cluster, rows=rows)
    except UserError as error:
        return JobOn(job=str(job), runs=False, how=str(error))


def _wide_on(path: Path, *, cluster: ClusterSpec, rows: int) -> JobOn:
    from actors.bundles import bundles_of

    job = load_job(path)
    chains = chains_of(job, cluster=cluster, rows=rows)
    most = plan_for_budget(chains, cluster=cluster)
    least = plan_for_throughput(chains, cluster=cluster, throughput=LEAST_THROUGHPUT)
    spec = resolve(job)
    room = Room(
        nodes=tuple(kind.cores for kind in cluster.kinds for _ in range(kind.count)),
        demand=lambda spec: [bundle.resources["CPU"] for bundle in bundles_of(spec)],
    )
    fits = room.holds(spec)
    how = f"{_said(least)}; at most {_said(most)}"
    if not fits:
        how += f"; as written ({Counts.of(spec)}) its actors do not fit on the nodes: lower roles.*, or use a plan"
    return JobOn(job=str(path), runs=True, how=how, as_written=fits)


def _said(plan: Plan) -> str:
    nodes = " + ".join(f"{count} {kind}" for kind, count in plan.nodes.items())
    return f"{nodes}: {plan.throughput:,.0f} samples/s for {plan.price:,.2f} an hour"


def _deep_on(path: Path, cluster: ClusterSpec) -> JobOn:
    """Whether nodes of one kind hold the ranks, those that share tensors and shards together on a node. Memory is not
    looked at: the mesh search does that (docs/plan.md)."""
    from actors.ranks import islands_of, rank_resources

    spec = resolve_deep(load_deep_job(path))
    islands = islands_of(spec)
    asked = rank_resources(spec, ranks=len(islands[0]))
    able = {kind.name: _islands_held(kind, asked) for kind in cluster.kinds}
    best = max(able, key=lambda name: able[name])
    on_one = ", ".join(f"{count:g} {name}" for name, count in asked.items())
    needs = f"{_mesh(spec)}, {len(islands)} times {on_one} on a node"
    runs = able[best] >= len(islands)
    held = f"{best} holds {able[best]} of them" if able[best] else "no node type has as much on a node"
    return JobOn(job=str(path), runs=runs, how=f"{needs}; {held}; memory is not looked at", as_written=runs)


def _mesh(spec: DeepJobSpec) -> str:
    return f"{spec.mesh.ranks} ranks ({spec.mesh.describe()})"


def _islands_held(kind: NodeKind, asked: Mapping[str, float]) -> int:
    there = {"CPU": kind.cores, "GPU": float(kind.accelerators)}
    return kind.count * min(int(there[name] // count) for name, count in asked.items())
