"""Modes from the command line: what the summary and the table tell, and that the model is the one that was scored."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli import hetero_here, write_job
from tests.support.jobs import write_data


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_data(tmp_path / "train.parquet", rows=4000, seed=1)
    write_data(tmp_path / "test.parquet", rows=1500, seed=2)
    tables = [{"name": "wide", "dim": 1, "optimizer": {"name": "adagrad"}}, {"name": "deep", "dim": 4}]
    write_job(tmp_path / "job.yaml", tables=tables, baseline="logistic_regression")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("mode", ["bounded", "async", "geo"])
def test_a_mode_is_told_in_the_summary_and_its_model_scores_alike(folder: Path, mode: str) -> None:
    ran = hetero_here("train", "job.yaml", "--in-process", "--set", f"train.mode={mode}", "--json")
    assert ran.code == 0, ran.err
    assert ran.json["mode"] == mode
    assert ran.json["auc"] > 0.55
    assert ran.json["baseline"]["auc"] > 0.5
    assert ran.json["staleness"]["max"] == 0  # one tower: there are no others
    assert list(ran.json["staleness"]["histogram"]) == ["0"]
    assert ran.json["bytes"]["pulled"] > 0
    assert (ran.json["bytes"]["dense_pulled"] > 0) == (mode != "bounded")
    scored = hetero_here("evaluate", "runs/small", "--json")
    assert scored.code == 0, scored.err
    assert scored.json["auc"] == pytest.approx(ran.json["auc"], abs=1e-7)


def test_the_table_tells_how_stale_rows_were(folder: Path) -> None:
    ran = hetero_here("train", "job.yaml", "--in-process", "--set", "train.mode=async", "--set", "baseline=null")
    assert ran.code == 0, ran.err
    assert "rows lagged, mode async" in ran.out
    assert "0.00 pushes of other towers in the mean, 0 at most" in ran.out
    assert "moved a row trained" in ran.out


def test_a_window_and_another_mode_are_the_users_mistake(folder: Path) -> None:
    ran = hetero_here("train", "job.yaml", "--set", "train.mode=async", "--set", "train.window=4", "--json")
    assert ran.code == 2
    message = ran.json["error"]["message"]
    assert "train.window" in message
    assert "`async`" in message
