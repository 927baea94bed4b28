"""The summary: what is written reads back, keys are stable and documented."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from hetero.errors import DataError
from hetero.observe.run_folder import write_json
from hetero.observe.summary import Baseline, Summary

DOCS = Path(__file__).resolve().parents[3] / "docs" / "summary.md"
PROMISED = {
    *("auc", "logloss", "samples", "steps", "samples_per_s", "wait_fraction", "seconds", "rows", "peak_rss_bytes"),
    *("versions", "hardware", "baseline", "malformed", "rejected_gradients", "warnings", "time_to_first_step_s"),
    "losses",
}


def example() -> Summary:
    return Summary(
        name="movielens",
        run_folder="runs/demo",
        seed=7,
        placement="in process",
        steps=10,
        samples=10_240,
        samples_per_s=20_000.0,
        wall_s=3.5,
        auc=0.78,
        seconds={"rows.pull": 0.5},
        waits={"tower": {"server": 0.1}},
        rows={"wide/user": 943},
        warnings=("one", "two"),
        baseline=Baseline(name="logistic_regression", auc=0.75, logloss=None),
        finished_at=1.0,
    )


def test_written_and_read_it_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    example().write(path)
    assert Summary.read(path) == example()


def test_keys_of_a_later_version_are_left_out_and_another_layout_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_json(path, {**example().to_dict(), "added_later": 1})
    assert Summary.read(path) == example()
    write_json(path, {**example().to_dict(), "version": 2})
    with pytest.raises(DataError, match="is of version 2, this build reads version 1"):
        Summary.read(path)
    short = example().to_dict()
    del short["steps"]
    write_json(path, short)
    with pytest.raises(DataError, match="steps"):
        Summary.read(path)


def test_promised_keys_are_there() -> None:
    assert example().to_dict().keys() >= PROMISED


def test_a_score_that_is_not_finite_is_null_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    Summary(
        name="x",
        run_folder=".",
        seed=0,
        placement="p",
        steps=0,
        samples=0,
        samples_per_s=float("nan"),
        wall_s=1.0,
    ).write(path)
    assert json.loads(path.read_text())["samples_per_s"] is None


def test_every_key_is_documented_and_nothing_else() -> None:
    table = DOCS.read_text().split("Beside it lie")[0]
    documented = re.findall(r"^\| `([a-z_]+)` \|", table, flags=re.MULTILINE)
    assert documented == list(dict.fromkeys(documented))
    assert set(documented) == {entry.name for entry in fields(Summary)}
