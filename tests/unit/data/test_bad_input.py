"""Input that cannot be used: one clear error each, naming the place and what to do."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from hetero.data.parse import parse_split
from hetero.data.sources import check_schema, find_files, list_splits
from hetero.errors import DataError
from hetero.records import Format, IdKind
from tests.unit.data.data_files import make_spec, read_all, sparse, write_parquet, write_text

COLUMNS: dict[str, list[Any]] = {"label": [1, 0], "x": [0.5, 1.5], "id": [1, 2]}


def error_of(spec: Any) -> str:
    """The DataError that both listing and checking raise."""
    messages = set()
    for look in (list_splits, check_schema):
        with pytest.raises(DataError) as caught:
            look(spec)
        messages.add(str(caught.value))
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    (message,) = messages
    return message


def test_no_such_file(tmp_path: Path) -> None:
    message = error_of(make_spec(tmp_path / "nothing.csv"))
    assert f"{tmp_path / 'nothing.csv'} does not exist" in message


def test_no_paths() -> None:
    assert "data.paths is empty" in error_of(make_spec("", paths=()))


@pytest.mark.parametrize("pattern", ["*.csv", "no/such/*.csv", ""])
def test_nothing_matches(tmp_path: Path, pattern: str) -> None:
    write_text(tmp_path, "x", name="readme.md")
    message = error_of(make_spec(tmp_path / pattern))
    assert str(tmp_path / pattern) in message
    assert "matches" in message


def test_unknown_filesystem() -> None:
    message = error_of(make_spec("ftp://host/data.csv"))
    assert "ftp://host" in message
    assert "s3" in message


def test_unknown_ending(tmp_path: Path) -> None:
    message = error_of(make_spec(write_text(tmp_path, "x", name="data.xlsx")))
    assert "data.xlsx" in message
    assert "data.format" in message


@pytest.mark.parametrize("name", ["data.csv.xz", "data.csv.zip"])
def test_compression_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    message = error_of(make_spec(write_text(tmp_path, "x", name=name)))
    assert name in message
    assert ".gz, .bz2, .zst" in message


def test_compressed_parquet(tmp_path: Path) -> None:
    assert "decompress it" in error_of(make_spec(write_text(tmp_path, "x", name="a.parquet.gz")))


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.libsvm", "a.parquet", "a.csv.gz"])
def test_empty_file(tmp_path: Path, name: str) -> None:
    content = gzip.compress(b"") if name.endswith(".gz") else b""
    path = write_text(tmp_path, content, name=name)
    spec = make_spec(path, dense=(), sparse=(sparse("features"),)) if name == "a.libsvm" else make_spec(path)
    assert f"{path} is empty" in error_of(spec)


def test_files_without_rows(tmp_path: Path) -> None:
    write_text(tmp_path, "label,x,id\n", name="a.csv")
    write_text(tmp_path, gzip.compress(b"label,x,id"), name="b.csv.gz")
    write_parquet(tmp_path, {name: pa.array(values)[:0] for name, values in COLUMNS.items()}, name="c.parquet")
    with pytest.raises(DataError, match=r"no rows in .*a\.csv"):
        list_splits(make_spec(tmp_path))
    check_schema(make_spec(tmp_path))


def test_blank_header(tmp_path: Path) -> None:
    assert "first line is blank" in error_of(make_spec(write_text(tmp_path, "\nlabel,x,id\n1,1,1\n")))


@pytest.mark.parametrize("keep", [0.3, 0.9])
def test_truncated_parquet(tmp_path: Path, keep: float) -> None:
    path = write_parquet(tmp_path, {name: values * 500 for name, values in COLUMNS.items()})
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    message = error_of(make_spec(path))
    assert f"{path} is not a complete Parquet file" in message
    assert "truncated" in message


def test_parquet_with_damaged_pages(tmp_path: Path) -> None:
    path = write_parquet(tmp_path, {name: values * 500 for name, values in COLUMNS.items()})
    data = bytearray(path.read_bytes())
    data[4 : len(data) // 2] = bytes(len(data) // 2 - 4)
    path.write_bytes(data)
    with pytest.raises(DataError, match=f"cannot read {path}"):
        read_all(make_spec(path))


def test_truncated_compressed_text(tmp_path: Path) -> None:
    data = gzip.compress(b"label,x,id\n" + b"".join(b"1,%d,%d\n" % (i, i * 7919) for i in range(30_000)))
    path = write_text(tmp_path, data[: len(data) - 20], name="a.csv.gz")
    with pytest.raises(DataError, match=f"cannot read {path}.*[Tt]runcated"):
        read_all(make_spec(path))


def test_text_that_is_not_what_its_ending_says(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.csv\.gz"):
        list_splits(make_spec(write_text(tmp_path, "label,x,id\n1,1,1\n", name="a.csv.gz")))


def test_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_text(tmp_path, "label,x,id\n1,1,1\n")
    refs = list_splits(make_spec(path))

    class Refusing(pafs.LocalFileSystem):  # type: ignore[misc]
        def open_input_file(self, path: str) -> Any:
            raise PermissionError(13, f"Permission denied: {path}")

        def open_input_stream(self, path: str, **options: Any) -> Any:
            raise PermissionError(13, f"Permission denied: {path}")

    monkeypatch.setattr(pafs, "LocalFileSystem", Refusing)
    assert "Permission denied" in error_of(make_spec(path))
    with pytest.raises(DataError, match=f"cannot read {path}.*may read it"):
        parse_split(refs[0], spec=make_spec(path), epoch=0)


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    path = write_text(tmp_path, "label,x,id\n1,1,1\n1,1,1\n")
    (ref,) = list_splits(make_spec(path))
    write_text(tmp_path, "label,x,id\n1,1,1\n")
    with pytest.raises(DataError, match="has shrunk to 17 bytes"):
        parse_split(ref, spec=make_spec(path), epoch=0)


def test_a_line_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hetero.data.lines.LONGEST_LINE", 1000)
    path = write_text(tmp_path, b"\0" * 100_000)
    assert "a line of more than 1000 bytes" in error_of(make_spec(path))


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_missing_columns_name_the_nearest(tmp_path: Path, name: str) -> None:
    if name == "a.csv":
        path = write_text(tmp_path, "label,x1,user_id\n1,1,1\n")
    else:
        path = write_parquet(tmp_path, {"label": [1], "x1": [1.0], "user_id": [1]})
    message = error_of(make_spec(path, sparse=(sparse("id"), sparse("userid"))))
    assert "no column 'x' (wanted by dense feature 'x'); nearest: 'x1'" in message
    assert "no column 'userid' (wanted by sparse feature 'userid'); nearest: 'user_id'" in message
    assert f"{path}: " in message


def test_every_file_is_checked(tmp_path: Path) -> None:
    write_parquet(tmp_path, COLUMNS, name="a.parquet")
    write_parquet(tmp_path, {"label": [1], "x": [1.0], "ID": [1]}, name="b.parquet")
    message = error_of(make_spec(tmp_path))
    assert "b.parquet: no column 'id'" in message


def test_a_column_that_stands_twice(tmp_path: Path) -> None:
    assert "column 'id' (wanted by sparse feature 'id') stands 2 times" in error_of(
        make_spec(write_text(tmp_path, "label,x,id,id\n1,1,1,1\n"))
    )


TEXT = pa.array(["a", "b"])
LISTS = pa.array([[1], [2]])
STRUCTS = pa.array([{"a": 1}, {"a": 2}])


@pytest.mark.parametrize(
    ("columns", "changes", "expected"),
    [
        ({"label": TEXT}, {}, "column 'label' (the label) must be a number, not string"),
        ({"x": TEXT}, {}, "column 'x' (dense feature 'x') must be a number, not string"),
        ({"x": LISTS}, {}, "must be a number, not list"),
        ({"w": TEXT}, {"weight": "w"}, "column 'w' (the weight) must be a number"),
        ({"id": LISTS}, {}, "set is_list for sparse feature 'id'"),
        ({"id": STRUCTS}, {}, "cannot be an id"),
        ({"id": pa.array([1.0, 2.0])}, {"sparse": (sparse("id", ids=IdKind.INTEGER),)}, "nothing is narrowed"),
        ({"id": pa.array([[1.0], [2.0]])}, {"sparse": (sparse("id", ids=IdKind.INTEGER, is_list=True),)}, "narrowed"),
        ({}, {"sparse": (sparse("id", is_list=True),)}, "but sparse feature 'id' is a list"),
        ({"id": pa.array([[[1]], [[2]]])}, {"sparse": (sparse("id", is_list=True),)}, "cannot be an id"),
        (
            {"id": pa.array([b"a", b"b"], pa.binary(1))},
            {"sparse": (sparse("id", boundaries=(1.0,)),)},
            "has boundaries and needs numbers",
        ),
        ({"user": LISTS}, {"gauc_column": "user"}, "column 'user' holds list"),
    ],
)
def test_mistyped_columns(tmp_path: Path, columns: dict[str, Any], changes: dict[str, Any], expected: str) -> None:
    path = write_parquet(tmp_path, {**COLUMNS, **columns})
    message = error_of(make_spec(path, **changes))
    assert expected in message
    assert str(path) in message


def test_all_mistyped_columns_stand_in_one_error(tmp_path: Path) -> None:
    message = error_of(make_spec(write_parquet(tmp_path, {**COLUMNS, "label": TEXT, "x": TEXT, "id": LISTS})))
    assert all(f"column '{name}'" in message for name in COLUMNS)


def test_an_empty_separator(tmp_path: Path) -> None:
    path = write_text(tmp_path, "label,x,id\n1,1,a|b\n")
    with pytest.raises(DataError, match="'id' has an empty separator"):
        read_all(make_spec(path, sparse=(sparse("id", is_list=True, separator=""),)))


def test_types_are_checked_again_where_a_file_changed(tmp_path: Path) -> None:
    path = write_parquet(tmp_path, COLUMNS)
    (ref,) = list_splits(make_spec(path))
    write_parquet(tmp_path, {**COLUMNS, "x": TEXT})
    with pytest.raises(DataError, match="must be a number"):
        parse_split(ref, spec=make_spec(path), epoch=0)


def test_criteo_columns_are_fixed(tmp_path: Path) -> None:
    path = write_text(tmp_path, "\t" * 39 + "\n", name="a.txt")
    message = error_of(make_spec(path, format=Format.CRITEO, sparse=(sparse("C27"),), dense=()))
    assert "no column 'C27'" in message
    assert "'C2'" in message
    message = error_of(make_spec(path, format=Format.CRITEO, sparse=(), dense=(), columns=("a",)))
    assert "are fixed" in message


def test_hidden_files_are_no_error(tmp_path: Path) -> None:
    write_text(tmp_path, "", name="_SUCCESS")
    write_text(tmp_path, "", name=".part.csv.crc")
    write_text(tmp_path, "label,x,id\n1,1,1\n", name="part.csv")
    assert [Path(file.path).name for file in find_files(make_spec(tmp_path))] == ["part.csv"]
