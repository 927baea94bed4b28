"""Whole runs of text and clicks in one process: what they learn, equal bits in any layout, resume, pretrained text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from hetero.checkpoint.mesh_snapshot import snapshots_in
from hetero.checkpoint.pretrained import start_parts
from hetero.checkpoint.search import latest_good
from hetero.errors import DataError, UserError
from hetero.loops.protocols import Phase
from hetero.loops.run import DataPass
from hetero.loops.snapshots import SnapshotPlace
from hetero.loops.sparse_lane import ThreadLane
from hetero.loops.tower_state import ResumePoint
from hetero.metrics.auc import exact_auc
from hetero.records import JobSpec, PartSpec, RoleSpec, SnapshotSpec
from hetero.towers.build import make_tower
from hetero.towers.joint import Joint
from pipelines.build import Placement
from pipelines.deep_schema import DeepJob
from pipelines.progress import Silent
from pipelines.text import pack_text
from pipelines.text_codec import TokenizerKind
from pipelines.train_deep import fit_deep
from tests.support.joint_jobs import SIZES, joint_data, joint_job, write_joint_data
from tests.support.runs import alive, finish
from tests.support.thread_towers import train_towers


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> JobSpec:
    folder: Path = tmp_path_factory.mktemp("joint")
    files = [write_joint_data(folder / f"{number}.parquet", rows=640, seed=number) for number in range(2)]
    return joint_job(joint_data(*files))


def test_it_learns_from_texts_what_ids_do_not_tell(job: JobSpec, tmp_path: Path) -> None:
    unseen = write_joint_data(tmp_path / "unseen.parquet", rows=1000, seed=7)
    longer = replace(job, epochs=4)
    wide = replace(job.tower, name="wide_and_deep", args={"hidden": [16]}, parts=())
    textless = replace(job.train, texts=(), tasks=())
    aucs = []
    for one in (longer, replace(longer, tower=wide, train=textless)):
        with alive(one, in_process=True) as run:
            run.train(DataPass.open(one.train, phase=Phase.TRAIN, epochs=4), watch=lambda _: None)
            test = replace(one.train, paths=(str(unseen),), shuffle=False)
            scores = run.score(DataPass.open(test, phase=Phase.TEST), watch=lambda _: None)
        aucs.append(exact_auc(scores.labels, scores.predictions) or 0.0)
    assert aucs[0] > aucs[1] + 0.05


@pytest.mark.parametrize(("readers", "servers", "window"), [(2, 3, 0), (1, 2, 4)])
def test_any_layout_gives_the_same_bits(job: JobSpec, readers: int, servers: int, window: int) -> None:
    plain = finish(job, in_process=True, score=True)
    laid_out = replace(job, readers=RoleSpec(count=readers), servers=RoleSpec(count=servers), window=window)
    other = finish(laid_out, in_process=True, score=True)
    np.testing.assert_array_equal(plain.outcome.losses, other.outcome.losses)
    assert plain.scores is not None
    assert other.scores is not None
    np.testing.assert_array_equal(plain.scores.predictions, other.scores.predictions)


@pytest.mark.parametrize("window", [0, 4])
def test_a_thread_for_the_sparse_side_changes_no_bit(job: JobSpec, window: int) -> None:
    """Two texts and the loss on hidden tokens share the transformer: their gradients meet in one order."""
    (review,) = job.train.texts
    train = replace(job.train, texts=(review, replace(review, name="again", length=4)))
    two = replace(job, train=train, window=window)
    apart = train_towers(two)
    assert all(isinstance(tower.lane, ThreadLane) for tower in apart.towers)
    assert apart.logs[0].losses == list(finish(two, in_process=True).outcome.losses)
    assert apart.logs[0].rows == 1280


def test_a_resumed_run_goes_on_with_both_halves(job: JobSpec, tmp_path: Path) -> None:
    whole = finish(job, in_process=True, score=True)
    cut = replace(job, max_steps=7, snapshots=SnapshotSpec(every_steps=7))
    data = DataPass.open(job.train, phase=Phase.TRAIN, epochs=1, max_steps=7)
    with alive(cut, in_process=True) as run:
        run.train(data, watch=lambda _: None, snapshots=SnapshotPlace(folder=str(tmp_path)))
    resharded = replace(job, servers=RoleSpec(count=3))
    with alive(resharded, in_process=True) as run:
        snapshot = latest_good(tmp_path, job=job).good
        assert snapshot is not None
        run.restore(snapshot)
        start = ResumePoint.of(snapshot).cursor
        outcome = run.train(replace(data, max_steps=None, start=start), watch=lambda _: None)
        scores = run.score(DataPass.open(job.train, phase=Phase.TEST), watch=lambda _: None)
    np.testing.assert_array_equal(outcome.losses, whole.outcome.losses)
    assert whole.scores is not None
    np.testing.assert_array_equal(scores.predictions, whole.scores.predictions)


# ------------------------------------------------------------------------------------------ pretrained text


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a masked language model of the text half's sizes, over few characters."""
    folder = tmp_path_factory.mktemp("deep")
    (folder / "text.txt").write_text("abcdefghijklmnopqrstu " * 60)  # 22 characters: a vocabulary of 24
    pack_text([str(folder / "text.txt")], folder=folder / "t", tokenizer=TokenizerKind.CHAR)
    deep = DeepJob(
        name="text",
        text={"train": str(folder / "t" / "train")},
        transformer={**SIZES, "context": 16},
        masking={"share": 0.3},
        train={"batch_size": 4, "steps": 3},
        optimizer={"warmup": 1},
    )
    fit_deep(deep, run_folder=folder / "run", progress=Silent(), placement=Placement(in_process=True))
    return folder / "run"


def begun_with(job: JobSpec, start: Path, **changes: object) -> JobSpec:
    part = PartSpec(name="text", start=str(start), **changes)  # type: ignore[arg-type]
    return replace(job, tower=replace(job.tower, parts=(part,)))


def test_the_text_half_begins_with_a_pretrained_model(job: JobSpec, pretrained: Path) -> None:
    begun = begun_with(job, pretrained, frozen=True)
    module, fresh = make_tower(begun), make_tower(begun)
    (started,) = start_parts(module, begun.tower)
    assert (started.part, started.step) == ("text", 3)
    assert isinstance(module, Joint)
    assert isinstance(fresh, Joint)
    changed = [
        name
        for (name, value), first in zip(module.named_parameters(), fresh.parameters(), strict=True)
        if not torch.equal(value, first)
    ]
    assert changed
    assert all(name.startswith("text.transformer.") for name in changed)
    again = make_tower(begun)
    start_parts(again, begun_with(job, snapshots_in(pretrained / "snapshots")[-1]).tower)
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), again.parameters(), strict=True))
    with alive(begun, in_process=True) as run:
        assert run.start_parts() == (started,)
        run.train(DataPass.open(begun.train, phase=Phase.TRAIN, max_steps=3), watch=lambda _: None)
        kept = run._tower.module.state_dict()  # type: ignore[attr-defined]
    for name, value in module.named_parameters():
        assert torch.equal(value, kept[name]) == name.startswith("text."), name


def test_another_model_or_none_is_refused(job: JobSpec, pretrained: Path, tmp_path: Path) -> None:
    wider = replace(job.tower, args={**job.tower.args, "transformer": {**SIZES, "width": 32}})
    begun = begun_with(replace(job, tower=wider), pretrained)
    with pytest.raises(UserError, match=r"tower.parts\[0\].from: .* is \[24, 16\] in .* and \[24, 32\] in the tower"):
        start_parts(make_tower(begun), begun.tower)
    nowhere = begun_with(job, tmp_path)
    with pytest.raises(UserError, match="is no snapshot of a deep job and no run that has one"):
        start_parts(make_tower(nowhere), nowhere.tower)
    headless = begun_with(job, pretrained)
    part = replace(headless.tower.parts[0], name="head")
    with pytest.raises(UserError, match="part `head` has no transformer"):
        start_parts(make_tower(headless), replace(headless.tower, parts=(part,)))


def test_a_damaged_snapshot_is_refused(job: JobSpec, pretrained: Path, tmp_path: Path) -> None:
    newest = snapshots_in(pretrained / "snapshots")[-1]
    (tmp_path / newest.name).mkdir()
    (tmp_path / newest.name / "snapshot.json").write_bytes((newest / "snapshot.json").read_bytes())
    begun = begun_with(job, tmp_path / newest.name)
    with pytest.raises(DataError, match="cannot be read"):
        start_parts(make_tower(begun), begun.tower)
