"""Columns copied beside predictions: the good rows' own cells, in file order, in one type over all files."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hetero.data.kept import KeptColumns
from hetero.data.sources import list_splits
from hetero.errors import DataError
from hetero.records import DataSpec, IdKind
from tests.unit.data.data_files import make_spec, read_all, sparse


def kept_of(kept: KeptColumns, data: DataSpec) -> pa.Table:
    """The columns of all good rows, by the malformed rows that parsing finds."""
    parts = []
    for ref, split in zip(list_splits(data), read_all(data), strict=True):
        parts.append(kept.rows_of(ref, left_out={row.line for row in split.malformed}))
    return pa.concat_tables(parts)


def test_parquet_columns_keep_their_types_and_lose_the_malformed_rows(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    columns = {
        "x": [0.1, float("nan"), 0.3, 0.4, 0.5],
        "id": [1, 2, 3, 4, 5],
        "name": pa.array(["a", "b", "a", None, "a"]),
        "tags": pa.array([[1], [2], [], None, [5, 6]]),
        "label": pa.array([1, 0, None, 1, 0], pa.int8()),
    }
    pq.write_table(pa.table(columns), path, row_group_size=3)
    data = make_spec(path, label=None)
    kept = KeptColumns(data, columns=("name", "tags", "id"), label="label")
    assert kept.schema.types == [pa.string(), pa.list_(pa.int64()), pa.int64(), pa.float32()]
    assert kept_of(kept, data).to_pydict() == {
        "name": ["a", "a", None, "a"],
        "tags": [[1], [], None, [5, 6]],
        "id": [1, 3, 4, 5],
        "label": [1.0, None, 1.0, 0.0],
    }


def test_text_columns_are_strings_and_bad_lines_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("x,id,name,label\n.1,7,a,1\n.2,8\n.3,no,c,0\n.4,9,,oops\n", encoding="utf-8")
    data = make_spec(path, label=None, sparse=(sparse("id", ids=IdKind.INTEGER),))
    kept = KeptColumns(data, columns=("id", "name"), label="label")
    assert kept_of(kept, data).to_pydict() == {"id": ["7", "9"], "name": ["a", None], "label": [1.0, None]}


def test_a_split_that_does_not_begin_the_file_counts_its_own_lines(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    rows = [f"{'bad' if i % 7 == 3 else i},{i},n{i}" for i in range(200)]
    path.write_text("x,id,name\n" + "\n".join(rows) + "\n", encoding="utf-8")
    data = make_spec(path, label=None, text_block_bytes=256)
    assert len(list_splits(data)) > 5
    kept = KeptColumns(data, columns=("name",), label=None)
    assert kept_of(kept, data)["name"].to_pylist() == [f"n{i}" for i in range(200) if i % 7 != 3]


def test_a_column_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"x": [0.1], "id": [1]}), path)
    with pytest.raises(DataError, match="no column 'user' to keep; the first file has x, id"):
        KeptColumns(make_spec(path, label=None), columns=("user",), label=None)


def test_a_column_of_another_type_in_a_later_file_is_named(tmp_path: Path) -> None:
    for number, ids in enumerate((pa.array([1]), pa.array(["one"]))):
        pq.write_table(pa.table({"x": [0.1], "id": ids}), tmp_path / f"{number}.parquet")
    data = make_spec(tmp_path, label=None)
    kept = KeptColumns(data, columns=("id",), label=None)
    with pytest.raises(DataError, match=r"1\.parquet: column 'id' cannot be written as int64, its type in the first"):
        kept_of(kept, data)
