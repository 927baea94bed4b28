"""Criteo-like data: the same bytes whatever the threads, what meta.json promises, reuse, refusals, the example job."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from hetero.errors import CapacityError, DataError, UserError
from hetero.kernels.synthetic import chances_reference, ranks_of
from hetero.metrics.auc import exact_auc
from hetero.records import F32, U64
from pipelines import synthetic
from pipelines.job import complete, load_job, resolve
from pipelines.synthetic import COLUMNS, KAGGLE_CARDINALITIES, ROW_GROUP, CriteoLike, Made, make_criteo_like
from tests.support.cli import hetero_here

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "criteo_like_dlrm.yaml"
RECIPE = CriteoLike(rows=4 * ROW_GROUP + 100, test_rows=30_000, total=200_000, seed=3)
KEYS = {
    *("folder", "files", "reused", "seconds", "rows_per_s", "name", "version", "rows", "test_rows", "total", "zipf"),
    *("seed", "cardinalities", "positive_rate", "test_positive_rate", "best_auc", "best_logloss", "best_auc_train"),
    *("batch_rows", "distinct_keys", "file_bytes"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Five row groups for training, the last one short, and a test part."""
    return make_criteo_like(tmp_path_factory.mktemp("made"), recipe=RECIPE, threads=2)


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def columns_of(path: Path) -> tuple[F32, F32, U64]:
    """labels [n], dense [13, n], keys [26, n]."""
    table = pq.read_table(path)
    columns = [table[name].to_numpy() for name in COLUMNS]
    return columns[0], np.stack(columns[1:14]), np.stack(columns[14:]).view(np.uint64)


@pytest.mark.parametrize(("threads", "part_rows"), [(1, 16_384), (2, 9_999), (3, 1 << 20)])
def test_same_bytes_for_any_threads_and_parts(tmp_path: Path, made: Made, threads: int, part_rows: int) -> None:
    again = make_criteo_like(tmp_path, recipe=RECIPE, threads=threads, part_rows=part_rows)
    assert digests(tmp_path) == digests(made.folder)
    assert again.facts == made.facts


def test_layout_of_the_files(made: Made) -> None:
    train, test = pq.ParquetFile(made.train), pq.ParquetFile(made.test)
    assert (train.metadata.num_rows, test.metadata.num_rows) == (RECIPE.rows, RECIPE.test_rows)
    assert [train.metadata.row_group(i).num_rows for i in range(5)] == [ROW_GROUP] * 4 + [100]
    schema = train.schema_arrow
    assert schema.names == ["label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))]
    assert {str(schema.field(name).type) for name in schema.names[:14]} == {"float"}
    assert {str(schema.field(name).type) for name in schema.names[14:]} == {"int64"}
    assert sorted(digests(made.folder)) == ["meta.json", "test.parquet", "train.parquet"]


def test_test_rows_go_on_where_training_ends(tmp_path: Path, made: Made) -> None:
    longer = make_criteo_like(tmp_path, recipe=CriteoLike(rows=RECIPE.rows + 1000, test_rows=1, total=200_000, seed=3))
    train, test = pq.read_table(longer.train), pq.read_table(made.test)
    assert train.slice(RECIPE.rows).equals(test.slice(0, 1000))
    assert train.slice(0, RECIPE.rows).equals(pq.read_table(made.train))


def test_facts_are_those_of_the_files(made: Made) -> None:
    facts = made.facts
    labels, dense, keys = columns_of(made.test)
    known = chances_reference(dense, keys, seed=RECIPE.seed)
    assert facts.best_auc == pytest.approx(exact_auc(labels, known), abs=1e-9)
    assert facts.best_logloss == pytest.approx(-np.log(np.where(labels > 0, known, 1 - known)).mean(), abs=1e-9)
    assert facts.test_positive_rate == pytest.approx(labels.mean())
    shuffled = exact_auc(labels, np.random.default_rng(0).permutation(known))
    assert shuffled is not None
    assert facts.best_auc is not None
    assert shuffled < 0.52 < 0.75 < facts.best_auc
    labels, dense, keys = columns_of(made.train)
    assert facts.best_auc_train == pytest.approx(
        exact_auc(labels, chances_reference(dense, keys, seed=RECIPE.seed)), abs=1e-4
    )
    assert facts.best_auc == pytest.approx(facts.best_auc_train, abs=0.01)
    assert facts.positive_rate == pytest.approx(float(labels.sum()) / RECIPE.rows, abs=1e-12)
    assert facts.distinct_keys == len(np.unique(keys[:, :4096]))
    assert (ranks_of(keys) < np.array(facts.cardinalities)[:, None]).all()
    assert facts.cardinalities == RECIPE.cardinalities()


def test_cardinalities_are_kaggles_scaled() -> None:
    assert len(KAGGLE_CARDINALITIES) == 26
    assert CriteoLike(total=sum(KAGGLE_CARDINALITIES)).cardinalities() == KAGGLE_CARDINALITIES
    for total in (40_000, 50_000, 200_000, 1_000_000, 1_200_000, 10_000_000, 10**9, 1 << 40):
        sizes = CriteoLike(total=total).cardinalities()
        assert sum(sizes) == total
        assert min(sizes) >= 3
        assert all(size == kaggle for size, kaggle in zip(sizes, KAGGLE_CARDINALITIES, strict=True) if kaggle < 10_000)
    sizes = CriteoLike().cardinalities()
    changed = [(size, kaggle) for size, kaggle in zip(sizes, KAGGLE_CARDINALITIES, strict=True) if size != kaggle]
    assert len(changed) == 5
    assert {round(size / kaggle, 4) for size, kaggle in changed} == {0.2841}


def test_what_is_there_is_reused_and_what_is_not_whole_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = CriteoLike(rows=3000, test_rows=2000, total=200_000, zipf=1)
    first = make_criteo_like(tmp_path, recipe=recipe)
    assert first.seconds is not None
    before = digests(tmp_path)

    def again(**changes: Any) -> Made:
        return make_criteo_like(tmp_path, recipe=replace(recipe, **changes))

    second = again()
    assert (second.seconds, second.rows_per_s) == (None, None)
    assert second.facts == first.facts
    os.truncate(first.test, first.test.stat().st_size - 1)
    assert again().seconds is not None
    first.train.unlink()
    assert again().seconds is not None
    assert digests(tmp_path) == before
    (tmp_path / "meta.json").write_text('{"name": "criteo-like"}')
    assert again().seconds is not None
    for change in ({"rows": 3001}, {"test_rows": 2001}, {"total": 200_001}, {"zipf": 1.1}, {"seed": 1}):
        assert again(**change).seconds is not None
        assert digests(tmp_path) != before
    assert again().seconds is not None
    assert digests(tmp_path) == before
    monkeypatch.setattr(synthetic, "VERSION", 2)
    assert again().seconds is not None


def test_other_data_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "test.parquet").write_bytes(b"mine")
    with pytest.raises(DataError, match=r"holds test\.parquet of another origin"):
        make_criteo_like(tmp_path, recipe=CriteoLike(rows=10, test_rows=10))
    (tmp_path / "meta.json").write_text('{"name": "movies"}')
    with pytest.raises(DataError, match=r"holds test\.parquet, meta\.json of another origin"):
        make_criteo_like(tmp_path, recipe=CriteoLike(rows=10, test_rows=10))
    assert (tmp_path / "test.parquet").read_bytes() == b"mine"


def test_a_disk_without_room(tmp_path: Path) -> None:
    with pytest.raises(CapacityError, match=r"100000000000 rows take 26400\.0 GB, the disk has .* GB left"):
        make_criteo_like(tmp_path, recipe=CriteoLike(rows=99_999_999_999, test_rows=1))
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_no_halves_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(rows: int) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(DataError, match="No space left on device"):
        make_criteo_like(tmp_path, recipe=CriteoLike(rows=10, test_rows=10), progress=full)
    assert list(tmp_path.iterdir()) == []


def test_one_class_has_no_best_auc(tmp_path: Path) -> None:
    made = make_criteo_like(tmp_path, recipe=CriteoLike(rows=1, test_rows=1))
    assert (made.facts.best_auc, made.facts.best_auc_train) == (None, None)
    assert made.facts.distinct_keys == 26
    assert "one class only" in made.describe()


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no rows": ({"rows": 0}, "criteo-like: rows is 0; give at least 1"),
    "no test rows": ({"test-rows": -3}, "criteo-like: test_rows is -3; give at least 1"),
    "falling exponent": ({"zipf": -0.1}, "criteo-like: zipf is -0.1; give an exponent of 0"),
    "no number": ({"zipf": "nan"}, "criteo-like: zipf is nan"),
    "endless": ({"zipf": "inf"}, "criteo-like: zipf is inf"),
    "too few ids": ({"total": 39_999}, "criteo-like: total is 39999; give 40000 to"),
    "too many ids": ({"total": (1 << 40) + 1}, "criteo-like: total is 1099511627777; give 40000 to 1099511627776"),
    "negative seed": ({"seed": -1}, "criteo-like: seed is -1; give 0 to"),
    "no integer": ({"rows": "many"}, "--rows"),
}


@pytest.mark.parametrize("case", WRONG)
def test_mistakes_on_the_command_line(case: str, tmp_path: Path) -> None:
    options, message = WRONG[case]
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    ran = hetero_here("data", "criteo-like", "--folder", str(tmp_path / "new"), *words, "--json")
    assert ran.code == 2
    assert message in ran.json["error"]["message"]
    assert not (tmp_path / "new").exists()


def test_a_recipe_in_python_is_checked_too() -> None:
    with pytest.raises(UserError, match="rows is 0"):
        CriteoLike(rows=0)


def test_the_command(tmp_path: Path) -> None:
    folder = str(tmp_path / "data")
    words = ("data", "criteo-like", "--folder", folder, "--rows", "5000", "--test-rows", "3000", "--total", "300000")
    ran = hetero_here(*words, "--zipf", "0.9", "--seed", "12", "--json")
    assert (ran.code, ran.err) == (0, "")
    record = ran.json
    assert set(record) == KEYS
    recipe = {name: record[name] for name in ("rows", "test_rows", "total", "zipf", "seed")}
    assert recipe == {"rows": 5000, "test_rows": 3000, "total": 300_000, "zipf": 0.9, "seed": 12}
    assert record["files"] == [f"{folder}/train.parquet", f"{folder}/test.parquet"]
    assert record["rows_per_s"] > 0
    meta = json.loads(Path(folder, "meta.json").read_text())
    assert meta == {name: record[name] for name in meta}
    assert set(meta) == KEYS - {"folder", "files", "reused", "seconds", "rows_per_s"}
    again = hetero_here(*words, "--zipf", "0.9", "--seed", "12")
    assert again.code == 0
    assert f"{record['best_auc']:.4f}" in again.out
    assert "was there already" in " ".join(again.out.split())


def test_the_command_says_what_it_does() -> None:
    ran = hetero_here("data", "criteo-like", "--help")
    assert ran.code == 0
    assert "hetero data criteo-like --rows" in ran.out.split("Examples")[1]


def test_the_example_job_resolves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_criteo_like(Path("data/criteo-like"), recipe=CriteoLike(rows=5000, test_rows=100))
    spec = resolve(complete(load_job(EXAMPLE)))
    assert [feature.name for feature in spec.train.sparse] == [f"C{i}" for i in range(1, 27)]
    assert [feature.name for feature in spec.train.dense] == [f"I{i}" for i in range(1, 14)]
    assert (spec.batch_size, spec.tower.name, spec.tower.args) == (
        4096,
        "dlrm",
        {"bottom": [512, 256], "top": [512, 256]},
    )
    (group,) = spec.groups
    assert (group.dim, len(group.tables), len(spec.lookups)) == (16, 26, 26)
    assert spec.test is not None
