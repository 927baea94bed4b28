"""`hetero resume` and `hetero train --resume`: what the user sees, and that the folder tells one whole run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hetero.observe.events import read_events
from hetero.observe.run_folder import RunFolder
from tests.support.cli import hetero_here, write_job
from tests.support.jobs import write_data

TRAIN = {"batch_size": 64, "epochs": 2}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path / "train.parquet", rows=640, seed=1)
    write_data(tmp_path / "test.parquet", rows=200, seed=2)
    write_job(tmp_path / "job.yaml", train=TRAIN, snapshots={"every_steps": 6})
    return tmp_path


def losses(run: str) -> np.ndarray:
    loaded: np.ndarray = np.load(Path(run) / "losses.npy")
    return loaded


def test_a_run_that_was_cut_short_goes_on_to_the_same_end(folder: Path) -> None:
    whole = hetero_here("train", "job.yaml", "--in-process", "--run", "whole", "--json")
    assert whole.code == 0, whole.err
    short = hetero_here("train", "job.yaml", "--in-process", "--run", "cut", "--set", "train.max_steps=15", "--json")
    assert short.json["snapshots"]["written"] == 2
    on = hetero_here(
        "resume", "cut", "--in-process", "--set", "train.max_steps=null", "--servers", "3", "--readers", "2", "--json"
    )
    assert on.code == 0, on.out
    np.testing.assert_array_equal(losses("cut"), losses("whole"))
    assert on.json["auc"] == whole.json["auc"]
    assert on.json["samples"] == whole.json["samples"] == 1280
    assert on.json["snapshots"]["resumed_from"] == 12
    names = [event.name for event in read_events(RunFolder.open(Path("cut")).events)]
    assert names.index("run.resumed") > names.index("snapshot.written")
    assert names[-1] == "run.finished"


def test_what_cannot_go_on_is_told(folder: Path) -> None:
    ran = hetero_here("train", "job.yaml", "--in-process", "--run", "done")
    assert ran.code == 0, ran.err
    finished = hetero_here("resume", "done")
    assert finished.code == 2
    assert "the run is finished" in finished.err
    for change, words in {
        "seed=5": "seed",
        "tables[1].dim=8": "is of another job",
        "data.shuffle=false": "other files, or on the same ones in another order",
    }.items():
        refused = hetero_here("resume", "done", "--in-process", "--set", change)
        assert refused.code == 2
        assert words in refused.err
    assert (folder / "done" / "summary.json").is_file()
    missing = hetero_here("resume", "nothing")
    assert missing.code == 2


def test_train_resume_begins_where_there_is_nothing_to_go_on_from(folder: Path) -> None:
    options = ("train", "job.yaml", "--in-process", "--run", "again", "--resume", "--json")
    first = hetero_here(*options, "--set", "train.max_steps=7")
    assert first.json["snapshots"]["resumed_from"] is None
    second = hetero_here(*options)
    assert second.json["snapshots"]["resumed_from"] == 6
    assert second.json["steps"] == 20
    assert not list(folder.glob("again.previous*"))


def test_snapshots_may_lie_elsewhere_one_folder_a_run(folder: Path) -> None:
    shared = ("--set", "snapshots.folder=file://" + str(folder / "shared"))
    for _ in range(2):
        short = hetero_here("train", "job.yaml", "--in-process", "--run", "r", "--set", "train.max_steps=7", *shared)
        assert short.code == 0, short.err
    on = hetero_here("resume", "r", "--in-process", "--set", "train.max_steps=8", "--json")
    assert on.json["snapshots"]["resumed_from"] == 6
    assert len(list((folder / "shared").iterdir())) == 2
    assert not (folder / "r" / "snapshots").exists()


def test_a_damaged_newest_snapshot_is_passed_over_and_named(folder: Path) -> None:
    hetero_here("train", "job.yaml", "--in-process", "--run", "hurt", "--set", "train.max_steps=13")
    newest = folder / "hurt" / "snapshots" / "step-0000000012"
    (newest / "dense.safetensors").write_bytes(b"gone")
    on = hetero_here("resume", "hurt", "--in-process", "--set", "train.max_steps=null", "--json")
    assert on.json["snapshots"]["resumed_from"] == 6
    damaged = [event for event in read_events(folder / "hurt" / "events.jsonl") if event.name == "snapshot.damaged"]
    assert damaged
    assert "dense.safetensors" in str(damaged[0].fields["message"])


def test_a_warm_start_takes_the_tables_and_the_tower_that_are_named(folder: Path) -> None:
    old = hetero_here("train", "job.yaml", "--in-process", "--run", "old", "--json")
    new = ("train", "job.yaml", "--in-process", "--json", "--set", "train.max_steps=1", "--set", "seed=9", "--run")
    first = {}
    for name, more in {
        "cold": [],
        "all": ["warm_start.from=old"],
        "wide": ["warm_start.from=old", "warm_start.tables=[wide]", "warm_start.dense=false"],
        "dense": ["warm_start.from=old", "warm_start.tables=[]"],
    }.items():
        ran = hetero_here(*new, name, *[word for change in more for word in ("--set", change)])
        assert ran.code == 0, ran.out
        first[name] = float(losses(name)[0])
        counts = [
            event.fields["rows"]
            for event in read_events(folder / name / "events.jsonl")
            if event.name == "run.warm_started"
        ]
        tables = old.json["rows"]
        wanted = {
            "cold": None,
            "all": sum(tables.values()),
            "dense": 0,
            "wide": sum(n for table, n in tables.items() if table.startswith("wide/")),
        }[name]
        assert counts == ([] if wanted is None else [wanted])
    assert first["all"] < first["wide"] < first["cold"]
    assert len(set(first.values())) == 4


def test_a_warm_start_that_does_not_fit_is_told_before_anything_starts(folder: Path) -> None:
    hetero_here("train", "job.yaml", "--in-process", "--run", "old", "--set", "train.max_steps=1")
    for changes, words in (
        (["warm_start.from=nothing"], "holds no model and no whole snapshot"),
        (["warm_start.from=old", "tables[1].dim=8"], "has dim 4 in"),
        (["warm_start.from=old", "warm_start.tables=[depe]"], "is no table of this job"),
    ):
        options = [word for change in changes for word in ("--set", change)]
        ran = hetero_here("train", "job.yaml", "--in-process", "--run", "new", *options)
        assert ran.code == 2
        assert words in ran.err.replace("\n", " ")
        assert not (folder / "new").exists()


def test_an_unfinished_run_that_is_moved_aside_is_named_and_can_go_on(folder: Path) -> None:
    hetero_here("train", "job.yaml", "--in-process", "--run", "r", "--set", "train.max_steps=7")
    (folder / "r" / "summary.json").unlink()
    new = hetero_here("train", "job.yaml", "--in-process", "--run", "r", "--set", "train.max_steps=1")
    assert "r.previous-1: `hetero resume` goes on with it" in new.err.replace("\n", "")
    on = hetero_here("resume", "r.previous-1", "--in-process", "--set", "train.max_steps=8")
    assert on.code == 0
    assert "resumed after step 6" in on.out
