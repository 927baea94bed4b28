"""A plan on a cluster whose autoscaler starts nodes: just the node types come that the plan asks for."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.autoscaling import Autoscaled, autoscaled
from tests.support.cli import hetero, write_job
from tests.support.jobs import write_data

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

CPU = {"CPU": 2, "memory": 1_000_000_000}
CLUSTER: dict[str, Any] = {
    "cluster_name": "fake",
    "max_workers": 8,
    "provider": {"type": "aws", "region": "us-east-1"},
    "head_node_type": "head",
    "available_node_types": {
        "head": {"node_config": {}, "resources": {"CPU": 0}, "labels": {"kind": "head"}, "max_workers": 0},
        "cpu": {"node_config": {}, "resources": CPU, "labels": {"kind": "cpu", "hetero/price": "1"}, "max_workers": 2},
        "fast": {
            "node_config": {},
            "resources": {**CPU, "GPU": 1},
            "labels": {"kind": "fast", "hetero/price": "8", "hetero/accelerator": "v100-16gb"},
            "max_workers": 2,
        },
        "slow": {
            "node_config": {},
            "resources": {**CPU, "GPU": 1},
            "labels": {"kind": "slow", "hetero/price": "2", "hetero/accelerator": "t4"},
            "max_workers": 2,
        },
    },
}
PROFILE = {
    "parse": {"cpu": {"cpu_s": 1e-4}, "fast": {"cpu_s": 1e-2}, "slow": {"cpu_s": 1e-2}},
    "tower": {"cpu": {"cpu_s": 1e-2}, "fast": {"device_s": 1e-4}, "slow": {"device_s": 2e-4}},
}
"""Seconds of a sample: parsing is what CPU nodes are good at, the tower what accelerators are."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("train", "test"):
        write_data(tmp_path / f"{name}.parquet", rows=600, seed=1)
    write_job(tmp_path / "job.yaml", run={"room_deadline_s": 90.0})
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump(CLUSTER), encoding="utf-8")
    (tmp_path / "profile.json").write_text(json.dumps(PROFILE), encoding="utf-8")
    return tmp_path


@pytest.fixture
def cluster(folder: Path) -> Iterator[Autoscaled]:
    own = Path(tempfile.mkdtemp(prefix="as-"))
    try:
        with autoscaled(folder / "cluster.yaml", folder=own) as found:
            yield found
    finally:
        shutil.rmtree(own, ignore_errors=True)


def test_a_plan_makes_the_autoscaler_start_just_its_nodes(folder: Path, cluster: Autoscaled) -> None:
    words = ("--cluster", "cluster.yaml", "--profile", "profile.json", "--throughput", "4500")
    planned = hetero("plan", "job.yaml", *words, "--out", "plan.json", "--json", cwd=folder)
    assert planned.code == 0, planned.err
    wanted = {stage["kind"]: stage["nodes"] for stage in planned.json["plan"]["stages"]}
    assert wanted == {"cpu": 1, "slow": 1}
    trained = hetero(
        "train", "job.yaml", "--plan", "plan.json", "--address", cluster.address, "--run", "run", "--json", cwd=folder
    )
    assert trained.code == 0, trained.out + trained.err
    assert cluster.launched() == wanted
    where = {role.split("/")[0]: place for role, place in trained.json["nodes"].items()}
    assert "kind=cpu" in where["reader"]
    assert "kind=slow" in where["tower"]
