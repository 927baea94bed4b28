"""Ids of other files and of the command line become the keys that the training data's became."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hetero.data.hashing import MISSING_KEY, hash_text
from hetero.data.id_kinds import keys_of_value, settled_features
from hetero.errors import DataError
from hetero.records import IdKind, Missing
from tests.unit.data.data_files import make_spec, sparse

FEATURES = (sparse("id"), sparse("name"), sparse("tags", is_list=True), sparse("asked", ids=IdKind.STRING))


def test_parquet_columns_settle_by_their_type(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    columns = {
        "x": [0.1],
        "id": pa.array([1], pa.int32()),
        "name": pa.array(["a"]).dictionary_encode(),
        "tags": pa.array([[3]], pa.large_list(pa.uint64())),
        "asked": [1],
    }
    pq.write_table(pa.table(columns), path)
    settled = settled_features(make_spec(path, sparse=FEATURES))
    assert settled is not None
    assert [feature.ids for feature in settled] == [IdKind.INTEGER, IdKind.STRING, IdKind.INTEGER, IdKind.STRING]


def test_text_files_settle_as_hashed(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("x,id,label\n.1,5,1\n", encoding="utf-8")
    settled = settled_features(make_spec(path))
    assert settled is not None
    assert [feature.ids for feature in settled] == [IdKind.STRING]


def test_data_that_is_gone_settles_nothing_but_what_the_job_says(tmp_path: Path) -> None:
    gone = make_spec(tmp_path / "gone.parquet")
    assert settled_features(gone) is None
    said = make_spec(tmp_path / "gone.parquet", sparse=(sparse("id", ids=IdKind.INTEGER),))
    assert settled_features(said) == said.sparse


def test_a_value_becomes_the_key_that_parsing_makes_of_it() -> None:
    def keys(text: str, **changes: object) -> list[int]:
        return [reading.key for reading in keys_of_value(text, feature=sparse("id", **changes))]

    assert keys("Toy Story", ids=IdKind.STRING) == [hash_text("Toy Story")]
    assert keys("-1", ids=IdKind.INTEGER) == [(1 << 64) - 1]
    assert keys("18446744073709551615", ids=IdKind.INTEGER) == [(1 << 64) - 1]
    assert keys("", ids=IdKind.STRING) == keys("", ids=IdKind.INTEGER) == [MISSING_KEY]
    assert keys("2.5", boundaries=(1.0, 2.0, 3.0)) == [2]
    assert keys("5", is_list=True, ids=IdKind.INTEGER) == [5]
    assert keys("5") == [5, hash_text("5")]
    assert keys("five") == [hash_text("five")]


def test_a_value_that_cannot_be_an_id_is_refused() -> None:
    with pytest.raises(DataError, match="'five' is not a 64-bit integer"):
        keys_of_value("five", feature=sparse("id", ids=IdKind.INTEGER))
    with pytest.raises(DataError, match="a missing value has no key"):
        keys_of_value("", feature=sparse("id", ids=IdKind.INTEGER, missing=Missing.SKIP))
