"""`roles.elastic` of a job, and what a run does about nodes that come and go."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hetero.errors import JobError
from hetero.loops.elastic import Bounds
from hetero.loops.moves import AS_SCHEDULED, ServersReport
from hetero.loops.recovery import Counts, Room
from hetero.observe.events import EventLog
from hetero.records import JobSpec, Mode
from pipelines.elastic import Elastic, bounds_of
from pipelines.job import Job, load_job
from tests.support.cli import write_job
from tests.support.jobs import data_spec, small_job, write_data


def job(tmp_path: Path, **roles: object) -> Job:
    for name in ("train", "test"):
        write_data(tmp_path / f"{name}.parquet", rows=50, seed=1)
    return load_job(write_job(tmp_path / "job.yaml", roles={"servers": 2, "towers": 1, **roles}))


def test_a_job_without_bounds_stays_as_it_is(tmp_path: Path) -> None:
    assert bounds_of(job(tmp_path).roles) is None


def test_a_role_without_bounds_keeps_its_number(tmp_path: Path) -> None:
    assert bounds_of(job(tmp_path, elastic={"servers": [1, 4]}).roles) == Bounds(
        least=Counts(readers=1, servers=1, towers=1), most=Counts(readers=1, servers=4, towers=1)
    )


@pytest.mark.parametrize(
    ("roles", "part"),
    [
        ({"elastic": {"servers": [3, 4]}}, r"roles.elastic.servers: is \[3, 4\], and roles.servers begins with 2"),
        ({"elastic": {"servers": [1, 4]}, "servers": {"count": 2, "schedule": [{"step": 5, "count": 3}]}}, "schedule"),
        ({"elastic": {"towers": [1, 4]}, "nodes": [{"readers": 1, "servers": 2, "towers": 1}]}, "roles.nodes says"),
        (
            {"elastic": {"towers": [1, 4]}, "towers": {"count": 2, "shares": {"first": [1.0, 2.0]}}},
            "divides a batch among a fixed number",
        ),
        ({"elastic": {"towers": [4]}}, "roles.elastic.towers"),
    ],
)
def test_bounds_that_do_not_fit_the_job_are_refused(tmp_path: Path, roles: dict[str, object], part: str) -> None:
    with pytest.raises(JobError, match=part):
        job(tmp_path, **roles)


@dataclass
class Cluster:
    """Nodes and a clock that tests move. A reader or a server takes half a CPU, a tower one."""

    nodes: list[float]
    time_s: float = 0.0
    events: list[dict[str, Any]] = field(default_factory=list)

    def room(self) -> Room:
        def demand(spec: JobSpec) -> Sequence[float]:
            return [0.5] * (spec.readers.count + spec.servers.count) + [1.0] * spec.towers.count

        return Room(nodes=tuple(self.nodes), demand=demand)


def followed(tmp_path: Path, cluster: Cluster, *, towers: int = 1, spec: JobSpec | None = None) -> Elastic:
    spec = spec or Counts(readers=1, servers=1, towers=1).put_in(small_job(data_spec()))
    bounds = Bounds(least=Counts(readers=1, servers=1, towers=1), most=Counts(readers=1, servers=4, towers=towers))
    events = EventLog(tmp_path / "events.jsonl", run="r", role="driver")
    return Elastic(spec, bounds=bounds, settle_s=10.0, room=cluster.room, events=events, now=lambda: cluster.time_s)


def look_for(elastic: Elastic, cluster: Cluster, seconds: int) -> None:
    for _ in range(seconds):
        cluster.time_s += 1.0
        elastic.look(step=int(cluster.time_s))


def told(tmp_path: Path) -> list[tuple[str, int]]:
    lines = (tmp_path / "events.jsonl").read_text(encoding="utf-8").splitlines()
    return [(one["done"], one["after"]["servers"]) for one in map(json.loads, lines)]


def test_servers_alone_change_while_training_goes_on(tmp_path: Path) -> None:
    cluster = Cluster([2.0])
    elastic = followed(tmp_path, cluster)
    look_for(elastic, cluster, 20)
    servers = elastic.beside(AS_SCHEDULED)
    assert servers.asked() is None
    cluster.nodes.append(1.0)
    look_for(elastic, cluster, 20)
    assert not elastic.due()
    assert servers.asked() == 3
    assert servers.asked() is None
    servers.told(ServersReport(step=30, before=1, after=3))
    look_for(elastic, cluster, 20)
    assert servers.asked() is None
    assert told(tmp_path) == [("kept", 1), ("while it trains", 3), ("kept", 3)]


def test_other_roles_change_by_a_snapshot(tmp_path: Path) -> None:
    cluster = Cluster([8.0])
    elastic = followed(tmp_path, cluster, towers=2)
    look_for(elastic, cluster, 20)
    assert elastic.due()
    assert elastic.take() == Counts(readers=1, servers=4, towers=2)
    assert elastic.beside(AS_SCHEDULED).asked() is None
    assert told(tmp_path) == [("by a snapshot", 4)]


def test_so_do_servers_that_cannot_change_while_training(tmp_path: Path) -> None:
    from dataclasses import replace

    spec = replace(Counts(readers=1, servers=1, towers=1).put_in(small_job(data_spec())), mode=Mode.ASYNC)
    cluster = Cluster([8.0])
    elastic = followed(tmp_path, cluster, spec=spec)
    look_for(elastic, cluster, 20)
    assert elastic.due()


def test_nodes_that_come_and_go_at_once_change_nothing(tmp_path: Path) -> None:
    cluster = Cluster([2.0])
    elastic = followed(tmp_path, cluster)
    look_for(elastic, cluster, 20)
    for _ in range(5):
        cluster.nodes.append(4.0)
        look_for(elastic, cluster, 6)
        cluster.nodes.pop()
        look_for(elastic, cluster, 6)
    assert not elastic.due()
    assert elastic.beside(AS_SCHEDULED).asked() is None


def test_a_run_without_bounds_looks_at_nothing(tmp_path: Path) -> None:
    def no_room() -> Room:
        raise AssertionError("nobody asked")

    with EventLog(tmp_path / "events.jsonl", run="r", role="driver") as events:
        elastic = Elastic(small_job(data_spec()), bounds=None, settle_s=0.0, room=no_room, events=events)
        elastic.look(1)
        assert not elastic.due()
