"""`roles.nodes` and shares of a job file: what is refused, and which bundles a run reserves for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.bundles import bundles_of, cpus_needed, server_labels
from actors.naming import Role
from hetero.errors import DataError, JobError
from hetero.records import ShareSpec
from pipelines.drill import hardened
from pipelines.job import Job, baseline_job, dump_resolved, load_job, with_counts
from pipelines.models import find_model
from pipelines.placing import read_share_log
from pipelines.resolve import resolve

NODES = [
    {"count": 2, "labels": {"role": "cpu"}, "resources": {"CPU": 3.0, "emb": 1.0}, "readers": 1, "servers": 1},
    {"labels": {"role": "fast"}, "resources": {"CPU": 2.0, "GPU": 1.0}, "towers": 2, "tower_threads": 1},
    {"labels": {"role": "slow"}, "towers": 1},
]


def job(tmp_path: Path, **roles: object) -> Job:
    (tmp_path / "train.parquet").touch()
    return Job(
        name="clicks",
        data={"train": str(tmp_path / "train.parquet"), "label": "click"},
        features={"sparse": [{"name": "user"}], "dense": [{"name": "age"}]},
        tables=[{"name": "deep", "dim": 8}],
        tower={"name": "wide_and_deep", "args": {"hidden": [4]}},
        baseline="logistic_regression",
        roles={"readers": 2, "servers": 2, "towers": {"count": 3, "threads": 2}, "nodes": NODES, **roles},
    )


def test_actors_share_the_bundles_of_their_nodes(tmp_path: Path) -> None:
    bundles = bundles_of(resolve(job(tmp_path)))
    assert [dict(bundle.labels)["role"] for bundle in bundles] == ["cpu", "cpu", "fast", "slow"]
    assert [list(bundle.members) for bundle in bundles] == [
        [(Role.SEQUENCER, 0), (Role.READER, 0), (Role.SERVER, 0)],
        [(Role.READER, 1), (Role.SERVER, 1)],
        [(Role.TOWER, 0), (Role.TOWER, 1)],
        [(Role.TOWER, 2)],
    ]
    assert dict(bundles[0].resources) == {"CPU": 3.0, "emb": 1.0}
    assert bundles[2].members[Role.TOWER, 0] == {"CPU": pytest.approx(1.0), "GPU": pytest.approx(0.5)}
    assert dict(bundles[3].resources) == {"CPU": 2.0}
    for bundle in bundles:
        assert sum(asked["CPU"] for asked in bundle.members.values()) <= bundle.resources["CPU"] + 1e-9
    assert cpus_needed(resolve(job(tmp_path))) == pytest.approx(10.0)
    assert server_labels(resolve(job(tmp_path))) == {"role": "cpu"}


def test_actors_anywhere_have_bundles_of_their_own(tmp_path: Path) -> None:
    bundles = bundles_of(resolve(job(tmp_path, nodes=[])))
    assert [len(bundle.members) for bundle in bundles] == [1] * 8
    assert not any(bundle.labels for bundle in bundles)
    assert server_labels(resolve(job(tmp_path, nodes=[]))) == {}


def test_nodes_must_hold_every_actor(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"roles\.nodes: place 3 towers, and roles\.towers has 2"):
        job(tmp_path, towers=2)
    with pytest.raises(JobError, match="place 2 servers"):
        with_counts(job(tmp_path), servers=3)


def test_threads_of_towers_may_differ(tmp_path: Path) -> None:
    spec = resolve(job(tmp_path))
    assert [spec.threads_of_tower(tower) for tower in range(3)] == [1, 1, 2]


def test_shares_are_checked_and_resolved(tmp_path: Path) -> None:
    spec = resolve(job(tmp_path, towers={"count": 3, "shares": {"first": [2.0, 1.0, 1.0], "measured": True}}))
    assert spec.shares == ShareSpec(first=(5000, 2500, 2500), measured=True)
    with pytest.raises(JobError, match="has 2 numbers for 3 towers"):
        job(tmp_path, towers={"count": 3, "shares": {"first": [1.0, 1.0]}})
    with pytest.raises(JobError, match="replay has all shares"):
        job(tmp_path, towers={"count": 3, "shares": {"replay": "x", "measured": True}})
    log = tmp_path / "shares.jsonl"
    log.write_text('{"step": 0, "parts": [1, 2]}\n', encoding="utf-8")
    with pytest.raises(JobError, match="has shares of 2 towers, the job has 3"):
        resolve(job(tmp_path, towers={"count": 3, "shares": {"replay": str(log)}}))
    log.write_text("nonsense\n", encoding="utf-8")
    with pytest.raises(DataError, match="is no log of shares"):
        read_share_log(log)


def test_a_baseline_has_no_nodes(tmp_path: Path) -> None:
    plain = baseline_job(job(tmp_path, towers={"count": 3, "shares": {"measured": True}}))
    assert plain.roles.nodes == ()
    assert not plain.roles.towers.shares.measured


def test_drills_and_models_are_on_any_nodes(tmp_path: Path) -> None:
    placed = job(tmp_path)
    assert hardened(placed, folder=tmp_path / "drill").roles.nodes == ()
    run = tmp_path / "runs" / "one"
    (run / "model").mkdir(parents=True)
    (run / "model" / "manifest.json").touch()
    (run / "job.resolved.yaml").write_text(dump_resolved(placed), encoding="utf-8")
    assert find_model(run / "model").spec.nodes == ()
    assert load_job(run / "job.resolved.yaml").roles.nodes == placed.roles.nodes
