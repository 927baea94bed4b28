"""`hetero plan`, its cluster file, its plan file, and what `hetero train --plan` refuses."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from hetero.errors import PlanError
from hetero.records.cluster import ClusterSpec
from hetero.towers.build import make_tower
from pipelines.cli import main
from pipelines.cluster_file import cluster_fingerprint, load_cluster
from pipelines.job import load_job
from pipelines.joint_plan import joint_work, sized_tower
from pipelines.plan import read_measured, work_of, work_without_tower
from pipelines.plan_command import Planned, planned
from pipelines.plan_file import job_fingerprint, planned_job
from pipelines.resolve import resolve

EXAMPLES = Path(__file__).parents[3] / "examples"

JOB = {
    "name": "clicks",
    "data": {"train": "train.parquet", "test": "test.parquet", "label": "click"},
    "features": {
        "sparse": [{"name": "user"}, {"name": "films", "list": True, "pooling": "mean", "max_length": 10}],
        "dense": [{"name": "age"}],
    },
    "tables": [{"name": "wide", "dim": 1, "optimizer": {"name": "ftrl"}}, {"name": "deep", "dim": 8}],
    "tower": {"name": "wide_and_deep", "args": {"hidden": [64, 32]}},
}


@pytest.fixture
def job_path(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    for name in ("train", "test"):
        (tmp_path / f"{name}.parquet").touch()
    path.write_text(yaml.safe_dump(JOB), encoding="utf-8")
    return path


@pytest.fixture
def cluster_path(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.yaml"
    path.write_text((EXAMPLES.parent / "cluster.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    return path


def edited(path: Path, change: str, into: str) -> Path:
    text = path.read_text(encoding="utf-8")
    assert change in text
    path.write_text(text.replace(change, into), encoding="utf-8")
    return path


def make(job_path: Path, cluster_path: Path, **more: object) -> Planned:
    return planned(
        load_job(job_path),
        job_path=job_path,
        cluster_path=cluster_path,
        **more,  # type: ignore[arg-type]
    )


def test_the_example_cluster_is_read(cluster_path: Path) -> None:
    cluster = load_cluster(cluster_path)
    assert [kind.name for kind in cluster.kinds] == ["cpu", "l4", "t4"]
    l4 = cluster.kind("l4")
    assert (l4.count, l4.price, l4.accelerator, l4.accelerators, l4.cores) == (8, 0.9776, "l4", 1, 8)
    assert l4.network_bytes_per_s == 1.25e9
    assert l4.labels == {"role": "gpu", "kind": "l4", "hetero/accelerator": "l4"}


@pytest.mark.parametrize(
    ("change", "into", "part"),
    [
        ('hetero/price: "0.904", ', "", "node type `cpu` has no label hetero/price"),
        ('"0.904"', '"cheap"', "hetero/price is `cheap`, it must be a number"),
        ('"0.904"', '"-1"', "must not be negative"),
        ("hetero/accelerator: t4", "role2: gpu", "node type `t4` has GPU: 1 and no label hetero/accelerator"),
        ("hetero/accelerator: t4", "hetero/accelerator: t44", "is it t4"),
        ("hetero/accelerator: t4", "hetero/speed: fast", "there is no label hetero/speed"),
        ("CPU: 16, ", "", "`cpu` has no resources.CPU"),
        (", memory: 60000000000", "", "`cpu` has no resources.memory"),
        ("available_node_types", "node_types", "available_node_types is missing"),
    ],
)
def test_cluster_files_that_lack_a_fact_are_refused(cluster_path: Path, change: str, into: str, part: str) -> None:
    with pytest.raises(PlanError, match=part):
        load_cluster(edited(cluster_path, change, into))


def test_work_counts_keys_rows_and_flops(job_path: Path) -> None:
    work = work_of(resolve(load_job(job_path)), rows=1000)
    assert work.keys == 2 * (1 + 10)
    assert work.row_floats == 11 * (1 + 2) + 11 * (8 + 1)
    assert work.pooled_floats == 2 * 1 + 2 * 8
    assert work.tower_flops > 6 * 64 * 32
    assert work.rows == 1000


def test_a_plan_is_kept_and_gives_the_job_its_roles(job_path: Path, cluster_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    result = make(job_path, cluster_path, throughput=2e6, out=out, with_front=True, with_alternatives=True)
    assert result.file.plan.throughput >= 2e6
    assert result.front
    assert {each.what for each in result.alternatives} >= {"everything on cpu"}
    job = planned_job(load_job(job_path), path=out)
    for name, role in result.file.roles.items():
        assert (getattr(job.roles, name).count, getattr(job.roles, name).threads) == (role.count, role.threads)
    record = json.loads(out.read_text(encoding="utf-8"))
    assert record["plan"]["stages"][0]["roles"][0] == "reader"


def test_roles_of_a_plan_fit_on_its_nodes(job_path: Path, cluster_path: Path) -> None:
    cluster = load_cluster(cluster_path)
    for throughput in (1e4, 1e6, 5e6):
        file = make(job_path, cluster_path, throughput=throughput).file
        for stage in file.plan.stages:
            kind = cluster.kind(stage.kind)
            threads = sum(file.roles[f"{role.value}s"].count * file.roles[f"{role.value}s"].threads
                          for role in stage.roles)  # fmt: skip
            # A role has a thread even where its share of a node is less than a core.
            assert threads <= stage.nodes * (kind.cores + len(stage.roles))


def test_a_plan_of_another_job_or_cluster_is_refused(job_path: Path, cluster_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    make(job_path, cluster_path, out=out)
    job = load_job(job_path)
    with pytest.raises(PlanError, match=r"another state of the job .*: train changed; plan again: hetero plan"):
        planned_job(load_job(job_path, overrides=["train.batch_size=64"]), path=out)
    edited(cluster_path, "max_workers: 24", "max_workers: 2")
    with pytest.raises(PlanError, match=r"before .*cluster\.yaml changed \(cpu\)"):
        planned_job(job, path=out)
    cluster_path.unlink()
    with pytest.raises(PlanError, match="which is not there"):
        planned_job(job, path=out)
    with pytest.raises(PlanError, match="cannot be read"):
        planned_job(job, path=tmp_path / "none.json")
    out.write_text("{", encoding="utf-8")
    with pytest.raises(PlanError, match="is no plan file"):
        planned_job(job, path=out)
    out.write_text('{"version": 99}', encoding="utf-8")
    with pytest.raises(PlanError, match="has version 99"):
        planned_job(job, path=out)


def test_fingerprints_look_at_what_plans_depend_on(job_path: Path, cluster_path: Path) -> None:
    def of(*overrides: str) -> str:
        return job_fingerprint(load_job(job_path, overrides=overrides))

    assert of() == of("roles.readers=3", "run.folder=elsewhere")
    assert of() != of("tables[1].dim=16")
    cluster = load_cluster(cluster_path)
    assert cluster_fingerprint(cluster) != cluster_fingerprint(ClusterSpec(name=cluster.name, kinds=cluster.kinds[:1]))


def test_a_price_below_what_a_throughput_costs_is_refused(job_path: Path, cluster_path: Path) -> None:
    with pytest.raises(PlanError, match=r"an hour at least, and 0\.6 is the most"):
        make(job_path, cluster_path, throughput=5e6, price=0.6)


def test_measured_profiles_replace_rates(job_path: Path, cluster_path: Path, tmp_path: Path) -> None:
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps({"tower": {"cpu": {"cpu_s": 1.0}}}), encoding="utf-8")
    slow = make(job_path, cluster_path, throughput=1e5, profile=profile)
    tower = next(stage for stage in slow.file.plan.stages if "tower" in stage.tasks)
    assert tower.kind != "cpu"
    assert "tower" not in slow.assumed[0]
    profile.write_text('{"tower": {"cpu": {"seconds": 1}}}', encoding="utf-8")
    with pytest.raises(PlanError, match="is no profile"):
        read_measured(profile)


def test_the_command_prints_a_plan(
    job_path: Path, cluster_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["plan", str(job_path), "--cluster", str(cluster_path), "--throughput", "100000"]
    assert main([*words, "--front", "--explain"]) == 0
    shown = capsys.readouterr().out
    assert "stages" in shown
    assert "alternatives at this throughput" in shown
    assert main([*words, "--json", "--out", str(tmp_path / "plan.json")]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["plan"]["throughput"] >= 100000
    assert main(["train", str(job_path), "--plan", str(tmp_path / "plan.json"), "--readers", "2"]) == 2
    assert "exclude each other" in capsys.readouterr().err
    assert main([*words[:-1], "1e12"]) == 2
    assert "out of reach" in capsys.readouterr().err


def test_what_throughput_costs_is_drawn(job_path: Path, cluster_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "plots" / "front.svg"
    result = make(job_path, cluster_path, throughput=1e6, plot=path, with_front=True)
    drawn = "".join(ElementTree.parse(path).getroot().itertext())
    assert "price an hour" in drawn
    for plan in result.front:
        assert ", ".join(f"{count} {kind}" for kind, count in plan.nodes.items()) in drawn


def test_deep_jobs_need_their_tokens_and_no_profile(cluster_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    deep = str(EXAMPLES / "shakespeare.yaml")
    assert main(["plan", deep, "--cluster", str(cluster_path)]) == 2
    assert "holds no tokens" in capsys.readouterr().err
    assert main(["profile", deep]) == 2
    assert "is a deep job; its ranks measure" in capsys.readouterr().err
    assert main(["train", deep, "--plan", "plan.json"]) == 2
    assert "are of wide jobs" in capsys.readouterr().err


JOINT = {
    **JOB,
    "features": {**JOB["features"], "text": [{"name": "query", "length": 64, "vocabulary": 30_000}]},  # type: ignore[dict-item]
    "tower": {"name": "joint", "args": {"transformer": {"layers": 4, "width": 256, "heads": 4}, "hidden": [64]}},
    "train": {"batch_size": 256},
}


def test_a_job_of_text_and_clicks_is_planned_from_both_sides(
    tmp_path: Path, job_path: Path, cluster_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job_path.write_text(yaml.safe_dump(JOINT), encoding="utf-8")
    words = ["plan", str(job_path), "--cluster", str(cluster_path), "--rows", "1000000"]
    assert main([*words, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    plan = record["plan"]
    assert plan["kind"] in ("v100", "t4", "l4")
    assert plan["step_s"] == max(plan["text_s"] + plan["head_s"], plan["sparse_s"])
    assert {stage["kind"] for stage in plan["sparse"]["stages"]} == {"cpu"}
    tower = make_tower(resolve(load_job(job_path)))
    assert record["dense_parameters"] == sum(parameter.numel() for parameter in tower.parameters())
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "bound by the" in shown
    assert "other nodes for the text half" in shown
    assert main([*words, "--out", str(tmp_path / "plan.json")]) == 2
    assert "--out: plans of text and clicks have none" in capsys.readouterr().err


def test_a_tower_measured_whole_on_accelerators_is_a_task_like_others(
    tmp_path: Path, job_path: Path, cluster_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All placements compete then: all on CPU nodes, rows there and towers on accelerators, all on one node."""
    job_path.write_text(yaml.safe_dump(JOINT), encoding="utf-8")
    kinds = [kind.name for kind in load_cluster(cluster_path).kinds]
    profile = tmp_path / "profile.json"
    words = ["plan", str(job_path), "--cluster", str(cluster_path), "--profile", str(profile), "--json"]
    for on_cpu_s, is_on_cpu in ((1e-7, True), (1.0, False)):
        seconds = {kind: {"cpu_s": 1e-7, "device_s": 1e-5} if kind != "cpu" else {"cpu_s": on_cpu_s} for kind in kinds}
        profile.write_text(json.dumps({"tower": seconds}), encoding="utf-8")
        out = tmp_path / f"plan-{is_on_cpu}.json"
        assert main([*words, "--out", str(out)]) == 0
        stages = json.loads(capsys.readouterr().out)["plan"]["stages"]
        tower = next(stage for stage in stages if "tower" in stage["tasks"])
        assert (tower["kind"] == "cpu") is is_on_cpu
        planned_job(load_job(job_path), path=out)


def test_texts_count_among_a_towers_work_token_by_token(job_path: Path, cluster_path: Path) -> None:
    """Without accelerators the text half is part of the tower's task: 6 FLOPs a weight and token, and attention."""
    job_path.write_text(yaml.safe_dump(JOINT), encoding="utf-8")
    spec = resolve(load_job(job_path))
    tower = make_tower(spec)
    matrices = sum(
        values.numel() for name, values in tower.named_parameters() if name.startswith("text.") and "embed" not in name
    )
    outside = sum(values.numel() for name, values in tower.named_parameters() if not name.startswith("text."))
    expected = 64 * (6 * matrices + 12 * 4 * 256 * 64) + 6 * outside
    assert work_of(spec).tower_flops == pytest.approx(expected, rel=1e-6)


def test_what_fits_no_machine_is_planned_from_its_sizes() -> None:
    """The example of 1e12 dense over 1e13 sparse parameters: nothing of it is built."""
    spec = resolve(load_job(EXAMPLES / "plans" / "search_ads_1e13.yaml"))
    tower = sized_tower(spec)
    assert sum(parameter.numel() for parameter in tower.parameters()) == pytest.approx(1e12, rel=0.02)
    assert all(parameter.is_meta for parameter in tower.parameters())
    cluster = load_cluster(EXAMPLES / "plans" / "cluster_1e13.yaml")
    work = joint_work(spec, work_without_tower(spec, rows=588_000_000_000), cluster=cluster, measured={})
    assert work.rows * work.row_bytes / 1.35 / 4 == pytest.approx(1e13, rel=0.001)
    assert work.shape.parameters == pytest.approx(1e12, rel=0.02)
