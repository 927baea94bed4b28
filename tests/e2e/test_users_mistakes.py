"""Bad input gives one clear error with what, where and what to do, exit code 2, and leaves nothing half done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.cli import Ran, hetero_here, write_job
from tests.support.jobs import write_data


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path / "train.parquet", rows=300, seed=1)
    write_data(tmp_path / "test.parquet", rows=100, seed=2)
    return tmp_path


def train(folder: Path, *words: str, **sections: Any) -> Ran:
    write_job(folder / "job.yaml", **sections)
    return hetero_here("train", "job.yaml", "--in-process", "--json", *words)


def mistake(ran: Ran) -> str:
    """The message of a user's mistake: one line of JSON, no traceback anywhere."""
    assert ran.code == 2, ran.out + ran.err
    assert "Traceback" not in ran.err
    return str(ran.json["error"]["message"])


def change(folder: Path, column: str, values: pa.Array | None) -> None:
    """Replace a column of the training data, or drop it."""
    table = pq.read_table(folder / "train.parquet")
    index = table.column_names.index(column)
    table = table.remove_column(index) if values is None else table.set_column(index, column, values)
    pq.write_table(table, folder / "train.parquet")


def test_truncated_parquet(folder: Path) -> None:
    whole = (folder / "train.parquet").read_bytes()
    (folder / "train.parquet").write_bytes(whole[: len(whole) // 2])
    assert "train.parquet" in mistake(train(folder))


def test_missing_column_names_the_nearest(folder: Path) -> None:
    change(folder, "item", None)
    message = mistake(train(folder))
    assert "`item`" in message or "'item'" in message
    assert "train.parquet" in message


def test_mistyped_column(folder: Path) -> None:
    change(folder, "x", pa.array(["a"] * 300))
    message = mistake(train(folder))
    assert "x" in message
    assert "string" in message


def test_empty_file(folder: Path) -> None:
    (folder / "train.parquet").write_bytes(b"")
    assert "train.parquet" in mistake(train(folder))


def test_file_without_rows(folder: Path) -> None:
    pq.write_table(pq.read_table(folder / "train.parquet").slice(0, 0), folder / "train.parquet")
    assert "train.parquet" in mistake(train(folder))


def test_label_outside_zero_and_one(folder: Path) -> None:
    change(folder, "label", pa.array([0.0] * 7 + [3.0] + [1.0] * 292))
    message = mistake(train(folder))
    assert "label" in message
    assert "3" in message


def test_nan_in_dense(folder: Path) -> None:
    change(folder, "x", pa.array([0.5] * 299 + [float("nan")]))
    dense = [{"name": "x"}, {"name": "y", "transform": "log"}]
    features = {"sparse": [{"name": "user"}], "dense": dense}
    message = mistake(train(folder, features=features))
    assert "nan makes no finite float32" in message
    assert "max_malformed_fraction" in message


def test_malformed_rows_within_the_limit_are_counted_and_written_aside(folder: Path) -> None:
    change(folder, "x", pa.array([0.5] * 299 + [float("nan")]))
    data = {"train": "train.parquet", "test": "test.parquet", "max_malformed_fraction": 0.01}
    features = {"sparse": [{"name": "user"}], "dense": [{"name": "x"}]}
    ran = train(folder, data=data, features=features)
    assert ran.code == 0, ran.err
    assert ran.json["malformed"] == 1
    assert ran.json["samples"] == 2 * 299
    lines = (folder / "runs/small/malformed.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1
    assert "nan makes no finite float32" in lines[0]


def test_unreadable_file(folder: Path) -> None:
    (folder / "train.parquet").unlink()
    (folder / "train.parquet").mkdir()
    assert "train.parquet" in mistake(train(folder))


def test_file_that_is_not_there(folder: Path) -> None:
    message = mistake(train(folder, "--set", "data.train=nowhere.parquet"))
    assert "data.train" in message
    assert "nowhere.parquet" in message


def test_unknown_name_in_the_job(folder: Path) -> None:
    message = mistake(train(folder, tables=[{"name": "deep", "dimm": 4}, {"name": "wide", "dim": 1}]))
    assert "tables[0].dimm" in message
    assert "`dim`" in message


def test_unknown_tower(folder: Path) -> None:
    message = mistake(train(folder, tower="wide_and_dep"))
    assert "tower" in message
    assert "wide_and_deep" in message


def test_a_failed_run_leaves_the_older_one_alone(folder: Path) -> None:
    assert train(folder).code == 0
    before = (folder / "runs/small/summary.json").read_bytes()
    mistake(train(folder, "--set", "data.train=nowhere.parquet"))
    assert (folder / "runs/small/summary.json").read_bytes() == before
