"""`hetero cluster check` and `flags`: what Ray's validator and ours refuse, and which jobs could run."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import yaml

from hetero.errors import PlanError
from pipelines.cluster_check import Checked, checked
from pipelines.cluster_file import load_cluster
from pipelines.cluster_flags import node_flags
from tests.support.cli import hetero_here, write_job
from tests.support.jobs import write_data

ROOT = Path(__file__).parents[3]


@pytest.fixture
def aws(tmp_path: Path) -> Path:
    return copied(tmp_path, "cluster.yaml")


@pytest.fixture
def on_premise(tmp_path: Path) -> Path:
    return copied(tmp_path, "cluster-on-premise.yaml")


@pytest.fixture
def job(tmp_path: Path) -> Path:
    for name in ("train", "test"):
        write_data(tmp_path / f"{name}.parquet", rows=50, seed=1)
    return write_job(tmp_path / "job.yaml")


def copied(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_text((ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    return path


def edited(path: Path, change: str, into: str) -> Path:
    text = path.read_text(encoding="utf-8")
    assert change in text
    path.write_text(text.replace(change, into), encoding="utf-8")
    return path


def notes(result: Checked) -> str:
    return "\n".join(result.notes)


@pytest.mark.parametrize("name", ["cluster.yaml", "cluster-on-premise.yaml"])
def test_the_files_that_ship_are_valid(name: str) -> None:
    result = checked(ROOT / name)
    assert result.cluster == load_cluster(ROOT / name)
    assert "a label of its own" not in notes(result)
    assert "RAY_AUTH_MODE" not in notes(result)
    assert "add up to" not in notes(result)


def test_the_aws_file_is_as_the_docs_say() -> None:
    raw = yaml.safe_load((ROOT / "cluster.yaml").read_text(encoding="utf-8"))
    types = raw["available_node_types"]
    spot = {
        n for n, t in types.items() if t["node_config"].get("InstanceMarketOptions", {}).get("MarketType") == "spot"
    }
    assert spot == {"l4", "t4"}
    cpu, *gpus = load_cluster(ROOT / "cluster.yaml").kinds
    assert cpu.ssd_bytes > 0
    assert cpu.accelerators == 0
    assert [kind.accelerators for kind in gpus] == [1, 1]


def test_all_of_the_packages_goes_to_the_nodes() -> None:
    """A pattern of rsync without a leading slash leaves out files of that name in any folder, `hetero/data` too."""
    raw = yaml.safe_load((ROOT / "cluster.yaml").read_text(encoding="utf-8"))
    left_out = {pattern for pattern in raw["rsync_exclude"] if not pattern.startswith("/")}
    needed = [path for name in ("hetero", "actors", "pipelines") for path in (ROOT / name).rglob("*.py")]
    assert not [path for path in needed if left_out & set(path.relative_to(ROOT).parts)]


@pytest.mark.parametrize(
    ("change", "into", "part"),
    [
        ("max_workers: 40", "max_workers: many", "`max_workers`: 'many' is not of type 'integer'"),
        ("upscaling_speed", "upscaling_sped", "'upscaling_sped'"),
        ("CPU: 16", "CPU: 16.5", r"`available_node_types.cpu.resources.CPU`: 16.5 is not of type 'integer'"),
        ('hetero/ssd-gib: "540"', "hetero/ssd-gib: 540", "540 is not of type 'string'"),
        ("head_node_type: head", "head_node_type: heed", "`head_node_type` must be one of"),
        ("kind: cpu", "kind: c/pu", "Invalid label key value `c/pu`"),
        ("role: cpu", "ro_: cpu", "Invalid label key name `ro_`"),
        ("min_workers: 0\n    max_workers: 24", "min_workers: 30\n    max_workers: 24", "min_workers is 30, above"),
        ("max_workers: 24", "max_workers: 24.5", "24.5 is not of type 'integer'"),
        ("provider: {type: aws, ", "provider: {", "provider.type is missing"),
        ("  cpu:\n", "  none: 3\n  cpu:\n", "node type `none` is no mapping"),
        ("hetero/accelerator: t4, ", "", "`t4` has GPU: 1 and no label hetero/accelerator"),
    ],
)
def test_files_that_cannot_be_used_are_refused_with_the_place(aws: Path, change: str, into: str, part: str) -> None:
    with pytest.raises(PlanError, match=part) as raised:
        checked(edited(aws, change, into))
    assert str(aws) in str(raised.value)


def test_what_is_legal_and_surprises_is_noted(aws: Path) -> None:
    edited(edited(edited(aws, "kind: t4, ", ""), "kind: l4, ", ""), "RAY_AUTH_MODE=disabled", "A=b")
    edited(aws, "hetero/accelerator: t4", "hetero/accelerator: l4")
    result = checked(edited(aws, "max_workers: 40", "max_workers: 20"))
    assert "nodes of t4 have all labels of `l4`, so no role can be placed on it alone" in notes(result)
    assert "max_workers is 20, and the node types add up to 40" in notes(result)
    assert "no command sets RAY_AUTH_MODE" in notes(result)
    assert "ImageId of head, cpu, l4, t4 is a placeholder" in notes(result)


@pytest.mark.parametrize(
    ("change", "into", "part"),
    [
        ("hosts: [10.99.0.11]", "hosts: [10.99.0.11, 10.99.0.12]", "10.99.0.12 is of node type `cpu` and of `gpu`"),
        ("hosts: [10.99.0.11]", "hosts: [10.99.0.19]", "10.99.0.19 of node type `cpu` is neither"),
        ("worker_ips: [10.99.0.11,", "worker_ips: [10.99.0.11, 10.99.0.13,", "10.99.0.13 is of no node type"),
        ("hosts: [10.99.0.11]", "hosts: []", "`cpu` has no hosts"),
        ("  head_ip: 10.99.0.10\n", "", "Please supply a `head_ip`"),
        ("  node_types:", "  kinds:", "provider.node_types is missing"),
    ],
)
def test_on_premise_files_name_every_host_once(on_premise: Path, change: str, into: str, part: str) -> None:
    with pytest.raises(PlanError, match=part):
        checked(edited(on_premise, change, into))


def test_on_premise_hosts_are_counted_by_kind(on_premise: Path) -> None:
    edited(on_premise, "worker_ips: [10.99.0.11,", "worker_ips: [10.99.0.11, 10.99.0.13,")
    result = checked(edited(on_premise, "hosts: [10.99.0.11]", "hosts: [10.99.0.11, 10.99.0.13]"))
    assert {kind.name: kind.count for kind in result.cluster.kinds} == {"cpu": 2, "gpu": 1}
    assert "RAY_UP_enable_autoscaler_v2=0" in notes(result)


def test_flags_are_those_of_the_host_that_asks(on_premise: Path) -> None:
    flags = node_flags(on_premise, addresses=["127.0.0.1", "10.99.0.12"])
    assert (
        shlex.split(flags)
        == flags.split()
        == [
            "--node-ip-address=10.99.0.12",
            "--num-gpus=1",
            "--num-cpus=2",
            "--memory=8000000000",
            "--labels=role=gpu,kind=gpu,hetero/price=1.2,hetero/network=10gbe,hetero/accelerator=v100-16gb",
        ]
    )
    edited(on_premise, "CPU: 2, memory", "CPU: 2, rows: 4, memory")
    assert '--resources={"rows":4}' in node_flags(on_premise, addresses=["10.99.0.11"])


def test_flags_are_refused_elsewhere(on_premise: Path, aws: Path) -> None:
    with pytest.raises(PlanError, match=r"this machine \(10.1.1.1\) is none of the hosts 10.99.0.10, 10.99.0.11"):
        node_flags(on_premise, addresses=["10.1.1.1"])
    with pytest.raises(PlanError, match=r"provider\.type is not `local`"):
        node_flags(aws, addresses=["10.1.1.1"])


def test_jobs_are_planned_on_the_nodes(aws: Path, job: Path) -> None:
    result = checked(aws, jobs=[job])
    assert result.jobs[0].runs
    assert result.jobs[0].as_written
    assert "samples/s for 0.53 an hour; at most" in result.jobs[0].how


def test_a_job_whose_rows_do_not_fit_could_not_run(aws: Path, job: Path) -> None:
    ran = hetero_here("cluster", "check", str(aws), "--job", str(job), "--rows", "900000000000", "--json")
    assert ran.code == 1
    assert not json.loads(ran.out)["jobs"][0]["runs"]
    assert "`lookup` needs" in json.loads(ran.out)["jobs"][0]["how"]


def test_actors_that_do_not_fit_as_written_are_told(aws: Path, job: Path) -> None:
    text = job.read_text(encoding="utf-8").replace("towers: 1", "towers: {count: 1, threads: 32}")
    job.write_text(text, encoding="utf-8")
    found = checked(aws, jobs=[job]).jobs[0]
    assert found.runs
    assert found.as_written is False
    assert "its actors do not fit" in found.how


def test_a_job_that_cannot_be_read_is_told_with_the_others(aws: Path, job: Path, tmp_path: Path) -> None:
    result = checked(aws, jobs=[job, tmp_path / "none.yaml"])
    assert [one.runs for one in result.jobs] == [True, False]
    assert "cannot be read" in result.jobs[1].how


def test_a_file_that_is_not_there_is_the_users_mistake(tmp_path: Path) -> None:
    ran = hetero_here("cluster", "check", str(tmp_path / "none.yaml"), "--json")
    assert ran.code == 2
    assert "the cluster file cannot be read" in json.loads(ran.out)["error"]["message"]
