"""A plan as a file: what it was made for, and what `hetero train --plan` takes from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hetero.errors import PlanError
from hetero.planning.plan import Plan
from pipelines.cluster_file import cluster_fingerprint, cluster_kinds, digest_of, load_cluster
from pipelines.job import Job

VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleCount:
    """Actors of a role, and threads of each."""

    count: int
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFile:
    """A plan with what it was made for. cluster: path of the cluster file, as given. job_sections, cluster_kinds: a
    fingerprint of each, which say what has changed.

    nodes: `roles.nodes` of the job. pooling: `train.pooling`. shares: of the batch by tower, empty for equal ones.
    window_bytes: the most of a tower's leased rows. memory_bytes, ssd_bytes: of one server's rows, where the job has
    rows on SSD. predicted: samples a second from measured tasks, None where some were not measured on their nodes.
    """

    job: str
    cluster: str
    job_fingerprint: str
    cluster_fingerprint: str
    job_sections: Mapping[str, str]
    cluster_kinds: Mapping[str, str]
    roles: Mapping[str, RoleCount]
    nodes: tuple[Mapping[str, object], ...]
    pooling: str
    shares: tuple[float, ...]
    window_bytes: int
    memory_bytes: int | None
    ssd_bytes: int | None
    predicted: float | None
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
            "job_sections": dict(self.job_sections),
            "cluster_kinds": dict(self.cluster_kinds),
            "roles": {name: asdict(role) for name, role in self.roles.items()},
            "nodes": [dict(node) for node in self.nodes],
            "pooling": self.pooling,
            "shares": list(self.shares),
            "window_bytes": self.window_bytes,
            "memory_bytes": self.memory_bytes,
            "ssd_bytes": self.ssd_bytes,
            "predicted": self.predicted,
            "plan": plan,
        }


def job_fingerprint(job: Job) -> str:
    """Changes with anything but the roles' counts and the run's folder."""
    return digest_of(_record(job))


def job_sections(job: Job) -> dict[str, str]:
    """A fingerprint of each of the job's sections that `job_fingerprint` looks at."""
    return {name: digest_of(section) for name, section in _record(job).items()}


def _record(job: Job) -> dict[str, object]:
    return job.model_dump(mode="json", by_alias=True, exclude={"roles", "run"})


def save_plan(file: PlanFile, *, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(file.to_dict(), indent=2) + "\n", encoding="utf-8")


def planned_job(job: Job, *, path: Path) -> Job:
    """The job as a plan file has it: roles, nodes, shares, budgets.

    Raises PlanError when job or cluster are not those it was made for.
    """
    record = _read(path)
    if record["job_fingerprint"] != job_fingerprint(job):
        what = _changed(record["job_sections"], job_sections(job))
        raise PlanError(
            f"{path} was made for another state of the job ({record['job']}): {what} changed; plan again: "
            f"{_again(record)}"
        )
    cluster_path = Path(str(record["cluster"]))
    if not cluster_path.is_file():
        raise PlanError(f"{path} was made for the cluster of {cluster_path}, which is not there; plan again")
    cluster = load_cluster(cluster_path)
    if record["cluster_fingerprint"] != cluster_fingerprint(cluster):
        what = _changed(record["cluster_kinds"], cluster_kinds(cluster))
        raise PlanError(f"{path} was made before {cluster_path} changed ({what}); plan again: {_again(record)}")
    changed = {
        "roles": _roles(record),
        "train": job.train.model_copy(update=_train(record)),
        "run": job.run.model_copy(update={"predicted": record["predicted"]}),
    }
    if record["memory_bytes"] is not None:
        budgets = {"memory_bytes": record["memory_bytes"], "ssd_bytes": record["ssd_bytes"]}
        changed["storage"] = job.storage.model_copy(update=budgets)
    return Job(**{**{name: getattr(job, name) for name in Job.model_fields}, **changed})


def _train(record: Mapping[str, Any]) -> dict[str, object]:
    """What changes in the job's section. Towers that lease rows pool them themselves: servers pool without windows."""
    own = {"window_bytes": record["window_bytes"], "pooling": record["pooling"]}
    return {**own, "window": 0} if record["pooling"] == "server" else own


def _roles(record: Mapping[str, Any]) -> dict[str, object]:
    """The job's section. Towers of unlike nodes start with the plan's shares and follow what is measured."""
    towers = dict(record["roles"]["towers"])
    if record["shares"]:
        towers["shares"] = {"first": record["shares"], "measured": True}
    return {**record["roles"], "towers": towers, "nodes": record["nodes"]}


def _changed(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Names of what is not as it was."""
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    return ", ".join(names) or "its name"


def _again(record: Mapping[str, object]) -> str:
    return f"hetero plan {record['job']} --cluster {record['cluster']}"


def _read(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(f"{path}: cannot be read ({error.strerror})") from None
    except json.JSONDecodeError as error:
        raise PlanError(f"{path}: is no plan file: line {error.lineno}: {error.msg}") from None
    if not isinstance(record, dict) or record.get("version") != VERSION:
        found = record.get("version") if isinstance(record, dict) else None
        raise PlanError(f"{path}: has version {found}, this hetero reads plan files of version {VERSION}; plan again")
    return record
