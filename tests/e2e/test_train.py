"""Training from the command line, as a person would: through Ray and in one process; what the run's folder holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hetero.observe.events import EventKind, read_events
from hetero.observe.run_folder import RunFolder
from tests.support.cli import hetero, hetero_here, write_job
from tests.support.jobs import write_data


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_data(tmp_path / "train.parquet", rows=4000, seed=1)
    write_data(tmp_path / "test.parquet", rows=1500, seed=2)
    write_job(tmp_path / "job.yaml")
    return tmp_path


def test_through_ray_and_in_one_process_give_the_same_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    on_ray = hetero("train", "job.yaml", "--run", "runs/ray", "--readers", "2", "--json", cwd=folder)
    alone = hetero_here("train", "job.yaml", "--run", "runs/alone", "--in-process", "--json")
    assert (on_ray.code, alone.code) == (0, 0), on_ray.err + alone.err
    assert on_ray.json["auc"] == alone.json["auc"]
    assert on_ray.json["rows"] == alone.json["rows"]
    losses = [np.load(folder / "runs" / name / "losses.npy") for name in ("ray", "alone")]
    np.testing.assert_array_equal(losses[0], losses[1])
    assert on_ray.json["auc"] > 0.6
    assert on_ray.json["precision"]["asked"] == "auto"
    assert on_ray.json["precision"] == alone.json["precision"]
    assert on_ray.json["precision"]["taken"] in ("fp32", "bf16")
    assert on_ray.json["auc_bucketed"] == pytest.approx(on_ray.json["auc"], abs=1e-4)
    assert set(on_ray.json["peak_rss_bytes"]) == {
        "sequencer/0",
        "reader/0",
        "reader/1",
        "server/0",
        "server/1",
        "tower/0",
    }
    assert {"data.batch", "keys.window", "rows.pull", "tower.step"} <= {
        event.name for event in read_events(folder / "runs/ray/events.jsonl") if event.kind is EventKind.SPAN
    }
    scored = hetero_here("evaluate", "runs/ray", "--json")
    assert scored.code == 0, scored.err
    assert scored.json["auc"] == pytest.approx(on_ray.json["auc"], abs=1e-7)
    assert scored.json["logloss"] == pytest.approx(on_ray.json["logloss"], abs=1e-6)


@pytest.mark.slow
def test_a_baseline_is_the_same_through_ray_and_in_one_process(folder: Path) -> None:
    words = ("--set", "baseline=logistic_regression", "--json")
    on_ray = hetero("train", "job.yaml", "--run", "runs/ray", *words, cwd=folder)
    alone = hetero("train", "job.yaml", "--run", "runs/alone", "--in-process", *words, cwd=folder)
    assert (on_ray.code, alone.code) == (0, 0), on_ray.err + alone.err
    assert on_ray.json["baseline"]["auc"] == alone.json["baseline"]["auc"]


def test_the_table_at_the_end_says_what_was_reached(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    write_job(folder / "job.yaml", baseline="logistic_regression")
    ran = hetero_here("train", "job.yaml", "--in-process")
    assert ran.code == 0, ran.err
    for words in ("AUC", "log loss", "logistic regression", "rows/s", "wide/user", "deep/item", "runs/small"):
        assert words in ran.out
    assert RunFolder.open(folder / "runs/small").finished
