"""Profile, plan and train on a cluster of unlike nodes, by the command line, as its documentation has it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from ray.cluster_utils import Cluster

from hetero.observe.events import read_events
from pipelines.cluster_file import load_cluster
from tests.support.cli import Ran, hetero, write_job
from tests.support.jobs import write_data

_STORE = 80_000_000
NODES: dict[str, dict[str, Any]] = {
    "cpu": {"num_cpus": 2, "labels": {"role": "cpu"}},
    "fast": {"num_cpus": 1, "num_gpus": 1, "labels": {"role": "gpu", "hetero/accelerator": "v100-16gb"}},
    "slow": {"num_cpus": 1, "num_gpus": 1, "labels": {"role": "gpu", "hetero/accelerator": "t4"}},
}
PRICES = {"cpu": "1.0", "fast": "4.0", "slow": "2.0"}
ROW_US = {"v100-16gb": 40.0, "t4": 120.0, "cpu": 600.0}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head that takes no work and one node of each kind."""
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's workers would yield to whatever else the machine runs
    head = {"num_cpus": 0, "object_store_memory": _STORE, "include_dashboard": False}
    made: Any = Cluster(initialize_head=True, head_node_args=head)
    try:
        for options in NODES.values():
            made.add_node(object_store_memory=_STORE, **options)
        yield made
    finally:
        made.shutdown()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("placement")
    write_data(path / "train.parquet", rows=24_000, seed=1, row_group=4000)
    write_data(path / "test.parquet", rows=500, seed=2)
    features = {
        "sparse": [{"name": "user"}, {"name": "item"}, {"name": "tags", "list": True, "pooling": "mean"}],
        "dense": [{"name": "x"}, {"name": "y"}],
    }
    write_job(
        path / "job.yaml",
        features=features,
        tables=[{"name": "deep", "dim": 4}],
        tower={"name": "benchmarks.emulated:EmulatedDLRM", "args": {"row_us": ROW_US}},
        train={"batch_size": 512, "epochs": 2},
        roles={"readers": 1, "servers": 1, "towers": 1},
    )
    types = {
        name: {
            "resources": {
                "CPU": options["num_cpus"],
                "memory": 1_000_000_000,
                **({"GPU": 1} if "num_gpus" in options else {}),
            },
            "labels": {**options["labels"], "hetero/price": PRICES[name]},
            "max_workers": 1,
        }
        for name, options in NODES.items()
    }
    (path / "cluster.yaml").write_text(yaml.safe_dump({"cluster_name": "three", "available_node_types": types}))
    return path


def run(folder: Path, cluster: Any, *words: str) -> Ran:
    ran = hetero(*words, "--address", cluster.address, "--json", cwd=folder)
    assert ran.code == 0, ran.err
    return ran


def plan_fastest(folder: Path, *, towers: list[str]) -> None:
    """Plan for the fastest that the cluster can do, which has its towers on these kinds."""
    ran = hetero("plan", "job.yaml", "--cluster", "cluster.yaml", "--out", "plan.json", "--json", cwd=folder)
    assert ran.code == 0, ran.err
    assert {stage["kind"] for stage in ran.json["plan"]["stages"] if "tower" in stage["tasks"]} == set(towers)


@pytest.mark.slow
def test_a_plan_from_a_profile_is_obeyed(folder: Path, cluster: Any) -> None:
    profiled = run(folder, cluster, "profile", "job.yaml", "--cluster", "cluster.yaml")
    by_kind = {node["kind"]: node["tasks"] for node in profiled.json["nodes"]}
    assert set(by_kind) == set(NODES)
    for kind, device in (("fast", "v100-16gb"), ("slow", "t4")):
        largest = by_kind[kind]["forward"][-1]
        assert largest["seconds"] / largest["rows"] >= 1e-6 * ROW_US[device]
        assert largest["cpu_s"] < largest["seconds"] / 2
    assert {"forward/bottom", "backward/top"} <= set(by_kind["cpu"])

    plan_fastest(folder, towers=["fast", "slow"])
    record = json.loads((folder / "plan.json").read_text())
    assert record["predicted"] > 0
    summary = run(folder, cluster, "train", "job.yaml", "--plan", "plan.json", "--run", "runs/mixed").json
    labels = {role: text.partition(" ")[2] for role, text in summary["nodes"].items()}
    assert labels["reader/0"] == labels["server/0"] == labels["sequencer/0"] == "role=cpu"
    assert labels["tower/0"] == "hetero/accelerator=v100-16gb role=gpu"
    assert labels["tower/1"] == "hetero/accelerator=t4 role=gpu"
    assert summary["predicted_samples_per_s"] == record["predicted"]

    logged = [json.loads(line) for line in (folder / "runs" / "mixed" / "shares.jsonl").read_text().splitlines()]
    told = [each for each in read_events(folder / "runs" / "mixed" / "events.jsonl") if each.name == "shares.changed"]
    assert [each.fields["step"] for each in told] == [each["step"] for each in logged]
    assert logged[0]["step"] == 0
    fast, slow = logged[-1]["parts"]
    assert fast / slow == pytest.approx(ROW_US["t4"] / ROW_US["v100-16gb"], rel=0.35)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_shares_follow_measured_speed_and_are_replayed(folder: Path, cluster: Any) -> None:
    """From equal shares to the ratio of speeds; the log makes the same changes again, and the same bits."""
    nodes = [
        {"labels": {"role": "cpu"}, "resources": {"CPU": 2.0}, "readers": 1, "servers": 1},
        {"labels": {"hetero/accelerator": "v100-16gb"}, "resources": {"CPU": 1.0, "GPU": 1.0}, "towers": 1},
        {"labels": {"hetero/accelerator": "t4"}, "resources": {"CPU": 1.0, "GPU": 1.0}, "towers": 1},
    ]
    job = ["job.yaml", "--set", "train.epochs=4", "--set", "train.window=2"]  # some windows are cut ahead
    words = ["train", *job, "--set", f"roles.nodes={json.dumps(nodes)}", "--set"]
    towers = {"count": 2, "shares": {"measured": True}}
    measured = run(folder, cluster, *words, f"roles.towers={json.dumps(towers)}", "--run", "runs/measured").json
    log = folder / "runs" / "measured" / "shares.jsonl"
    parts = [json.loads(line)["parts"] for line in log.read_text().splitlines()]
    assert parts[0] == [1, 1]
    assert sum(parts[-1]) == 512
    seconds = [us * part + 1000 for us, part in zip((40.0, 120.0), parts[-1], strict=True)]
    assert max(seconds) / min(seconds) <= 1.25  # the towers compute besides, and share two cores with all others
    towers = {"count": 2, "shares": {"replay": str(log)}}
    again = run(folder, cluster, *words, f"roles.towers={json.dumps(towers)}", "--run", "runs/again").json
    assert (again["steps"], again["samples"]) == (measured["steps"], measured["samples"])
    losses = [np.load(folder / "runs" / name / "losses.npy") for name in ("measured", "again")]
    np.testing.assert_array_equal(losses[0], losses[1])
    assert log.read_text() == (folder / "runs" / "again" / "shares.jsonl").read_text()


@pytest.mark.slow
def test_pure_and_mixed_placements_give_the_same_bits_with_one_tower(folder: Path, cluster: Any) -> None:
    cpu = {"labels": {"role": "cpu"}, "resources": {"CPU": 2.0}, "readers": 1, "servers": 1}
    fast = {"labels": {"hetero/accelerator": "v100-16gb"}, "resources": {"CPU": 1.0, "GPU": 1.0}}
    placements: dict[str, list[dict[str, Any]]] = {
        "cpu": [{**cpu, "towers": 1}],
        "accelerator": [{**fast, "readers": 1, "servers": 1, "towers": 1}],
        "mixed": [cpu, {**fast, "towers": 1}],
    }
    losses = {}
    for name, nodes in placements.items():
        words = ["train", "job.yaml", "--run", f"runs/{name}", "--set", f"roles.nodes={json.dumps(nodes)}"]
        summary = run(folder, cluster, *words, "--set", "train.max_steps=30").json
        assert summary["placement"].startswith("Ray at")
        losses[name] = np.load(folder / "runs" / name / "losses.npy")
    alone = hetero(
        "train", "job.yaml", "--run", "runs/alone", "--in-process", "--set", "train.max_steps=30", "--json", cwd=folder
    )
    assert alone.code == 0, alone.err
    losses["alone"] = np.load(folder / "runs" / "alone" / "losses.npy")
    for name in placements:
        np.testing.assert_array_equal(losses[name], losses["alone"], err_msg=name)


@pytest.mark.slow
def test_nodes_that_are_not_there_are_named(folder: Path, cluster: Any) -> None:
    nodes = [{"labels": {"role": "tpu"}, "readers": 1, "servers": 1, "towers": 1}]
    words = ["train", "job.yaml", "--run", "runs/none", "--set", f"roles.nodes={json.dumps(nodes)}"]
    ran = hetero(*words, "--set", "run.deadline_s=3", "--address", cluster.address, "--json", cwd=folder)
    assert ran.code != 0
    message = ran.json["error"]["message"]
    assert "role=tpu" in message
    assert "role=cpu" in message


@pytest.mark.slow
def test_every_node_is_probed_and_its_links(folder: Path, cluster: Any) -> None:
    probed = run(folder, cluster, "probe", "--disk", str(folder), "--cluster-file", "probed.yaml").json
    assert len(probed["nodes"]) == len(NODES)
    assert len(probed["links"]) == 3
    for link in probed["links"]:
        for path in ("store", "collective"):
            assert 0 < link[path]["latency_s"] < 1
            assert link[path]["bytes_per_s"] > 1e6
    kinds = load_cluster(folder / "probed.yaml").kinds
    assert sorted(kind.accelerator for kind in kinds) == ["", "t4", "v100-16gb"]
    assert all(node["rates"]["disks"][0]["write_bytes_per_s"] > 1e5 for node in probed["nodes"])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_plans_of_random_clusters_run(folder: Path, cluster: Any, seed: int) -> None:
    """Kinds of node left out, prices changed, lists pooled here or there: what is planned is built, and trains."""
    random = np.random.default_rng(seed)
    record = yaml.safe_load((folder / "cluster.yaml").read_text())
    types = record["available_node_types"]
    for name in random.permutation([*NODES])[: random.integers(0, 2)]:
        del types[str(name)]
    for kind in types.values():
        kind["labels"]["hetero/price"] = str(int(random.integers(1, 9)))
    (folder / f"random{seed}.yaml").write_text(yaml.safe_dump(record))
    pooling = str(random.choice(["tower", "server"]))
    job = ["job.yaml", "--set", "train.max_steps=6", "--set", f"train.pooling={pooling}"]
    plan = f"random{seed}.json"
    planned = hetero("plan", *job, "--cluster", f"random{seed}.yaml", "--out", plan, "--json", cwd=folder)
    assert planned.code == 0, planned.err
    summary = run(folder, cluster, "train", *job, "--plan", plan, "--run", f"runs/random{seed}").json
    assert summary["steps"] == 6
    towers = [role for role in summary["nodes"] if role.startswith("tower/")]
    assert len(towers) == planned.json["roles"]["towers"]["count"]
