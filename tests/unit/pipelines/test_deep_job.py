"""The job file of a deep model, and a run of it in this process."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from hetero.checkpoint.mesh_snapshot import read_facts, snapshots_in
from hetero.errors import DataError, JobError, UserError
from hetero.loops.deep import SNAPSHOTS
from hetero.records.deep_job import DeepJobSpec
from hetero.records.mesh import AXES, MeshSpec
from pipelines.build import Placement
from pipelines.deep_resolve import resolve_deep
from pipelines.deep_schema import DeepJob, dump_deep, is_deep, load_deep_job
from pipelines.job_yaml import dump_yaml
from pipelines.progress import Silent
from pipelines.sample import sample_run
from pipelines.text import pack_text
from pipelines.text_codec import TokenizerKind
from pipelines.train_deep import fit_deep, smaller_mesh
from tests.support.cli import hetero_here

ALONE = Placement(in_process=True)
TEXT = "the cat sat on the mat. the dog sat on the log. " * 60


@pytest.fixture(autouse=True)
def one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def sections(tmp_path: Path) -> dict[str, object]:
    (tmp_path / "text.txt").write_text(TEXT)
    pack_text([str(tmp_path / "text.txt")], folder=tmp_path / "t", tokenizer=TokenizerKind.CHAR)
    return {
        "name": "cats",
        "seed": 2,
        "text": {"train": "t/train", "validation": "t/validation"},
        "transformer": {"layers": 2, "width": 32, "heads": 2, "context": 16},
        "train": {"batch_size": 8, "steps": 30, "evaluate_every": 20, "snapshot_every": 10},
        "optimizer": {"lr": 0.01, "warmup": 2},
    }


def written(sections: dict[str, object], **changes: object) -> Path:
    path = Path("job.yaml")
    path.write_text(dump_yaml({**sections, **changes}))
    return path


def fitted(
    path: Path, folder: str, *overrides: str, snapshot: Path | None = None
) -> tuple[dict[str, object], np.ndarray]:
    job = load_deep_job(path, overrides=overrides)
    fit_deep(job, run_folder=Path(folder), progress=Silent(), placement=ALONE, snapshot=snapshot)
    summary: dict[str, object] = json.loads((Path(folder) / "summary.json").read_text())
    return summary, np.load(Path(folder) / "losses.npy")


def test_a_job_trains_evaluates_and_goes_on_exactly(sections: dict[str, object]) -> None:
    path = written(sections)
    summary, losses = fitted(path, "one")
    assert len(losses) == 30
    assert losses[-1] < 0.6 * losses[0]
    evaluations = summary["evaluations"]
    assert isinstance(evaluations, list)
    assert [one["step"] for one in evaluations] == [20, 30]
    assert summary["validation_loss"] == evaluations[-1]["loss"]
    assert 0 < float(str(summary["mfu"])) < 1
    kept = snapshots_in(Path("one") / SNAPSHOTS)
    assert [snapshot.name for snapshot in kept] == ["step-00000020", "step-00000030"]
    assert read_facts(kept[0]).cursor == 160
    _, rest = fitted(path, "two", snapshot=kept[0])
    np.testing.assert_array_equal(rest, losses[20:])


def test_a_masked_job_learns_and_fills_gaps(sections: dict[str, object]) -> None:
    path = written(sections, masking={"unit": "span", "share": 0.2}, train={"batch_size": 16, "steps": 120})
    _, losses = fitted(path, "masked")
    assert losses[-10:].mean() < 0.6 * losses[:3].mean()
    filled = sample_run(Path("masked"), prompt="the _at sat on", tokens=1, temperature=0, seed=1)
    assert len(filled) == len("the _at sat on")
    assert "_" not in filled
    with pytest.raises(UserError, match="fills gaps written `_` in at most 16 tokens; got 0 gaps in 7 tokens"):
        sample_run(Path("masked"), prompt="the cat", tokens=1, temperature=0, seed=1)


def test_sampling_continues_the_prompt(sections: dict[str, object]) -> None:
    fitted(written(sections), "one")
    first, again = (sample_run(Path("one"), prompt="the ", tokens=20, temperature=0.5, seed=4) for _ in range(2))
    assert first == again
    assert first.startswith("the ")
    assert len(first) == 24
    Path("empty").mkdir()
    (Path("empty") / "job.resolved.yaml").write_text("")
    with pytest.raises(UserError, match="holds no snapshot"):
        sample_run(Path("empty"), prompt="", tokens=1, temperature=0, seed=1)


def test_snapshots_of_other_models_data_and_seeds_are_refused(sections: dict[str, object]) -> None:
    path = written(sections, train={"batch_size": 8, "steps": 3})
    fitted(path, "one")
    snapshot = snapshots_in(Path("one") / SNAPSHOTS)[-1]
    with pytest.raises(JobError, match="holds another model"):
        fitted(path, "two", "transformer.width=64", snapshot=snapshot)
    with pytest.raises(JobError, match="was written with seed 2, the job says 3"):
        fitted(path, "three", "seed=3", snapshot=snapshot)
    with pytest.raises(DataError, match="is no snapshot"):
        fitted(path, "four", snapshot=Path("one"))
    Path("text.txt").write_text(TEXT + TEXT)
    pack_text(["text.txt"], folder=Path("t"), tokenizer=TokenizerKind.CHAR)
    with pytest.raises(JobError, match="its place in the data is one in other tokens"):
        fitted(path, "five", snapshot=snapshot)


def test_the_resolved_job_says_the_same(sections: dict[str, object]) -> None:
    job = load_deep_job(written(sections))
    again = Path("again.yaml")
    again.write_text(dump_deep(job))
    assert load_deep_job(again) == job
    assert is_deep(again)
    spec = resolve_deep(job)
    assert isinstance(spec, DeepJobSpec)
    assert spec.model.hidden == 96
    assert spec.model.vocabulary % 8 == 0


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("transformer.widht=3", r"transformer.widht: unknown name `widht`; did you mean `width`\?"),
        ("transformer.width=30", "a head is 15 wide; take an even one"),
        ("transformer.heads=3", "transformer: width 32 is no multiple of heads 3; take width 33"),
        ("train.batch_size=0", r"train.batch_size: must be at least 1, got 0 \(from --set"),
        ("mesh.schedule=gpip", "mesh.schedule: unknown value `gpip`; did you mean `gpipe`"),
        ("mesh.tp=3", "hidden|context 16 does not divide by tp 3"),
        ("mesh.dp=3", "8 sequences do not divide into 3 data ways"),
        ("optimizer.warmup=30", "optimizer.warmup: 30 steps of 30; it must end before the last step"),
        ("mesh.sharding=4", "mesh.sharding: must be at most 3, got 4"),
    ],
)
def test_mistakes_are_named(sections: dict[str, object], override: str, words: str) -> None:
    with pytest.raises(JobError, match=words):
        resolve_deep(load_deep_job(written(sections), overrides=[override]))


def test_the_command_line_tells_deep_jobs_from_wide_ones(sections: dict[str, object]) -> None:
    path = str(written(sections, train={"batch_size": 8, "steps": 3}))
    done = hetero_here("train", path, "--in-process", "--json")
    assert done.code == 0, done.err
    assert done.json["kind"] == "deep"
    assert done.json["run_folder"] == "runs/cats"
    assert "validation loss" in hetero_here("train", path, "--in-process").out
    text = hetero_here("sample", "runs/cats", "--prompt", "the", "--tokens", "3", "--json")
    assert len(text.json["text"]) == 6
    assert "are of wide jobs" in hetero_here("train", path, "--towers", "2").err
    assert "one process is one rank" in hetero_here("train", path, "--in-process", "--set", "mesh.dp=2").err
    Path("wide.yaml").write_text("name: wide\n")
    assert "only deep jobs go on from a snapshot" in hetero_here("train", "wide.yaml", "--from", "x").err


def test_resume_goes_on_from_the_newest_snapshot(sections: dict[str, object]) -> None:
    path = written(sections)
    _, whole = fitted(path, "whole")
    stopped = {"batch_size": 8, "steps": 30, "stop_at": 12, "snapshot_every": 10}
    fitted(written(sections, train=stopped), "stopped")
    done = hetero_here("resume", "stopped", "--in-process", "--set", "train.stop_at=null", "--json")
    assert done.code == 0, done.err
    np.testing.assert_array_equal(np.load("stopped/losses.npy"), whole[12:])
    (Path("stopped") / SNAPSHOTS).rename("elsewhere")
    assert "holds no whole snapshot" in hetero_here("resume", "stopped", "--in-process").err


def test_validation_text_of_another_tokenizer_is_refused(sections: dict[str, object]) -> None:
    pack_text(["text.txt"], folder=Path("bytes"), tokenizer=TokenizerKind.BYTE)
    with pytest.raises(JobError, match="was packed by byte with 257 ids, the training text by char"):
        resolve_deep(load_deep_job(written(sections, text={"train": "t/train", "validation": "bytes/validation"})))


def test_a_lost_node_halves_the_data_ways(sections: dict[str, object]) -> None:
    spec = resolve_deep(load_deep_job(written(sections), overrides=["mesh.dp=2", "mesh.shard=2"]))
    once = smaller_mesh(spec)
    assert once is not None
    assert (once.dp, once.shard) == (1, 2)
    assert smaller_mesh(resolve_deep(DeepJob(**sections))) is None
    assert isinstance(once, MeshSpec)


CLUSTER = """
cluster_name: two
max_workers: 4
provider: {type: aws, region: us-east-1}
head_node_type: head
available_node_types:
  head:
    node_config: {}
    resources: {CPU: 0}
    max_workers: 0
  l4:
    node_config: {}
    resources: {CPU: 8, GPU: 2, memory: 28000000000}
    labels: {role: gpu, hetero/price: "1.5", hetero/accelerator: l4, hetero/network: 25gbe}
    max_workers: 2
"""


def test_a_deep_job_is_planned_and_what_the_plan_says_can_be_set(sections: dict[str, object], tmp_path: Path) -> None:
    path, cluster = written(sections), tmp_path / "cluster.yaml"
    cluster.write_text(CLUSTER)
    ran = hetero_here("plan", str(path), "--cluster", str(cluster), "--front", "--explain", "--json")
    assert ran.code == 0, ran.err
    told = ran.json
    assert [each["nodes"] for each in told["tried"]] == ["1 x l4", "2 x l4"]
    assert told["front"]
    assert told["alternatives"]
    assert told["assumed"]
    plan = told["plan"]
    spec = resolve_deep(load_deep_job(path, overrides=told["set"]))
    assert spec.mesh.ranks == 2 * plan["nodes"]
    assert {axis: getattr(spec.mesh, axis) for axis in AXES} == {axis: plan["mesh"][axis] for axis in AXES}
    shown = hetero_here("plan", str(path), "--cluster", str(cluster))
    assert f"hetero train {path} --set mesh." in " ".join(shown.out.split())
    refused = hetero_here("plan", str(path), "--cluster", str(cluster), "--rows", "10")
    assert refused.code == 2
    assert "--rows: plans of deep jobs have none" in " ".join((refused.out + refused.err).split())


def test_a_job_is_planned_whatever_its_own_mesh(sections: dict[str, object], tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(CLUSTER)
    path = written(sections, mesh={"pp": 2, "micro_batches": 3, "blocks_per_stage": [1, 1]})
    ran = hetero_here("plan", str(path), "--cluster", str(cluster), "--json")
    assert ran.code == 0, ran.err
