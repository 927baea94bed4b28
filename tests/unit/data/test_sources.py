"""Paths, globs, folders and URIs to files and splits, in an order that is always the same."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest

from hetero.data.sources import find_files, list_splits, split_order
from hetero.errors import DataError
from hetero.records import Format
from tests.unit.data.data_files import make_spec, read_all, sparse, write_parquet, write_text

ROWS = "label,id\n1,1\n"
GZIPPED = gzip.compress(ROWS.encode())


def spec_of(*paths: Path | str, **changes: Any) -> Any:
    return make_spec("", **{"dense": (), "paths": tuple(str(path) for path in paths), **changes})


def found(*paths: Path | str, root: Path, **changes: Any) -> list[str]:
    return [file.path.split(str(root) + "/")[1] for file in find_files(spec_of(*paths, **changes))]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("b.csv", "a.csv", "sub/c.csv", "sub/deep/d.csv", "sub/e.tsv", "sub2/f.csv.gz", "notes.md", "part-0"):
        rows = ROWS.replace(",", "\t") if name.endswith(".tsv") else ROWS
        write_text(tmp_path, GZIPPED if name.endswith(".gz") else rows, name=name)
    for name in (".hidden.csv", "_SUCCESS", "_temporary/g.csv", "sub/.crc/h.csv"):
        write_text(tmp_path, "", name=name)
    return tmp_path


def test_a_folder_gives_its_data_files_at_any_depth(tree: Path) -> None:
    expected = ["a.csv", "b.csv", "sub/c.csv", "sub/deep/d.csv", "sub/e.tsv", "sub2/f.csv.gz"]
    assert found(tree, root=tree) == expected
    assert found(str(tree) + "/", root=tree) == expected
    assert found(tree, root=tree, format=Format.CSV) == [*expected[:2], "part-0", *expected[2:]]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.csv", ["a.csv", "b.csv"]),
        ("[a]*.csv", ["a.csv"]),
        ("[!a].csv", ["b.csv"]),
        ("?.csv", ["a.csv", "b.csv"]),
        ("sub/*", ["sub/c.csv", "sub/deep/d.csv", "sub/e.tsv"]),
        ("sub*/*.csv*", ["sub/c.csv", "sub2/f.csv.gz"]),
        ("**/*.csv", ["a.csv", "b.csv", "sub/c.csv", "sub/deep/d.csv"]),
        ("*/c.csv", ["sub/c.csv"]),
        (".hid*.csv", [".hidden.csv"]),
    ],
)
def test_globs(tree: Path, pattern: str, expected: list[str]) -> None:
    assert found(tree / pattern, root=tree) == expected


def test_uris_find_what_paths_find(tree: Path) -> None:
    for suffix in ("", "/sub", "/*.csv", "/sub*/*.csv*", "/**/*.csv", "/a.csv"):
        by_path = found(str(tree) + suffix, root=tree)
        assert found(f"file://{tree}{suffix}", root=tree) == by_path
        assert by_path


def test_uris_with_spaces_are_readable(tmp_path: Path) -> None:
    write_text(tmp_path, ROWS, name="with space/a b.csv")
    (file,) = find_files(spec_of(f"file://{tmp_path}/with%20space"))
    assert file.path == f"file://{tmp_path}/with%20space/a%20b.csv"
    (split,) = read_all(spec_of(f"file://{tmp_path}/with%20space"))
    assert split.rows == 1


def test_buckets(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A filesystem whose paths begin with a bucket, as object stores have."""
    store = pafs.SubTreeFileSystem(str(tree.parent), pafs.LocalFileSystem())
    monkeypatch.setattr("hetero.data.filesystem._filesystem", lambda scheme, netloc, query: (store, netloc))
    uri = f"s3://{tree.name}"
    for suffix in ("", "/", "/sub/", "/*.csv", "/sub*/*.csv*", "/sub/c.csv"):
        files = find_files(spec_of(f"{uri}{suffix}?region=x"))
        assert [file.path for file in files] == [
            f"{uri}/{name}?region=x" for name in found(str(tree) + suffix, root=tree)
        ]
    assert sum(split.rows for split in read_all(spec_of(f"{uri}?region=x"))) == 6


def test_order_follows_the_paths_and_no_file_comes_twice(tree: Path) -> None:
    assert found(tree / "sub", tree / "b.csv", tree / "a.csv", tree / "*.csv", root=tree) == [
        "sub/c.csv",
        "sub/deep/d.csv",
        "sub/e.tsv",
        "b.csv",
        "a.csv",
    ]


def test_relative_paths_become_absolute(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree / "sub")
    assert found("../a.csv", root=tree) == ["a.csv"]
    assert found("c.csv", root=tree) == ["sub/c.csv"]


def test_a_file_whose_name_looks_like_a_glob(tmp_path: Path) -> None:
    write_text(tmp_path, ROWS, name="day[1].csv")
    assert found(tmp_path / "day[1].csv", root=tmp_path) == ["day[1].csv"]


def test_formats_by_ending(tmp_path: Path) -> None:
    names = {"a.PARQUET": Format.PARQUET, "b.pq": Format.PARQUET, "c.tsv.zst": Format.TSV, "d.svm": Format.LIBSVM}
    for name in names:
        write_text(tmp_path, "x", name=name)
    assert [file.format for file in find_files(spec_of(tmp_path))] == list(names.values())
    assert [file.format for file in find_files(spec_of(tmp_path, format=Format.CRITEO))] == [Format.CRITEO] * 2


def test_splits_of_text_are_byte_ranges_and_of_compressed_text_whole_files(tmp_path: Path) -> None:
    path = write_text(tmp_path, "label,id\n" + "1,1\n" * 9, name="a.csv")
    splits = list_splits(spec_of(path, text_block_bytes=20))
    assert [(s.position, s.start, s.stop) for s in splits] == [(0, 0, 20), (1, 20, 40), (2, 40, 45)]
    assert {s.path for s in splits} == {str(path)}


def test_positions_run_over_all_files(tmp_path: Path) -> None:
    write_parquet(tmp_path, {"label": [1] * 5, "id": [1] * 5}, name="b.parquet", group=2)
    write_text(tmp_path, ROWS * 3, name="a.csv")
    splits = list_splits(spec_of(tmp_path))
    assert [(s.position, s.format, s.part) for s in splits] == [
        (0, Format.CSV, 0),
        (1, Format.PARQUET, 0),
        (2, Format.PARQUET, 1),
        (3, Format.PARQUET, 2),
    ]


def test_text_block_bytes_must_be_positive(tree: Path) -> None:
    with pytest.raises(DataError, match="text_block_bytes is 0"):
        list_splits(spec_of(tree, text_block_bytes=0))


def test_order_of_splits(tree: Path) -> None:
    plain = spec_of(tree)
    assert split_order(4, spec=plain, epoch=3).tolist() == [0, 1, 2, 3]
    shuffled = spec_of(tree, shuffle=True, seed=5)
    orders = [split_order(50, spec=shuffled, epoch=epoch).tolist() for epoch in (0, 1, 0)]
    assert orders[0] == orders[2]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == list(range(50)) != orders[0]
    other_seed = spec_of(tree, shuffle=True, seed=-6)
    assert split_order(50, spec=other_seed, epoch=0).tolist() != orders[0]


def test_rows_are_permuted_within_their_split(tmp_path: Path) -> None:
    rows = 40
    tags = [[i] * (i % 3) for i in range(2 * rows)]
    path = write_parquet(
        tmp_path, {"label": [i % 2 for i in range(2 * rows)], "id": list(range(2 * rows)), "tags": tags}, group=rows
    )
    features = (sparse("id"), sparse("tags", is_list=True))
    shuffled = spec_of(path, shuffle=True, seed=1, sparse=features, gauc_column="id")
    first, second = read_all(shuffled)
    again = read_all(shuffled)[0]
    keys = first.sparse[0].keys
    assert sorted(keys.tolist()) == list(range(rows)) != keys.tolist()
    assert again.sparse[0].keys.tolist() == keys.tolist()
    assert (second.sparse[0].keys - rows).tolist() != keys.tolist()
    assert read_all(shuffled, epoch=1)[0].sparse[0].keys.tolist() != keys.tolist()
    assert first.labels.tolist() == [float(key % 2) for key in keys.tolist()]
    assert first.gauc_ids is not None
    assert first.gauc_ids.tolist() == keys.tolist()
    assert first.sparse[1].keys.tolist() == [key for key in keys.tolist() for _ in range(key % 3)]
