"""Parquet row groups to columns: types, lists, missing values, transforms, zero-copy."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hetero.data.hashing import MISSING_KEY
from hetero.records import DenseFeature, DenseTransform, IdKind, Missing
from tests.unit.data.data_files import key_lists, make_spec, read_all, read_one, sparse, write_parquet

LABELS = [1, 0, 1]
FILES = itertools.count()


def hashed(text: str) -> int:
    return xxhash.xxh64_intdigest(text.encode())


def read_keys(folder: Path, column: Any, **feature: Any) -> list[list[int]]:
    name = f"{next(FILES)}.parquet"
    path = write_parquet(folder, {"label": [0] * len(column), "id": column}, name=name, group=10_000)
    return key_lists(read_one(make_spec(path, dense=(), sparse=(sparse("id", **feature),))))


@pytest.mark.parametrize(
    "labels", [pa.array([True, False, True]), pa.array(LABELS, pa.int8()), pa.array(LABELS, pa.float64())]
)
def test_labels_of_every_type(tmp_path: Path, labels: Any) -> None:
    path = write_parquet(tmp_path, {"label": labels, "x": [0.5, 1.5, -2.5], "id": [1, 2, 3]})
    split = read_one(make_spec(path))
    assert split.labels.dtype == np.float32
    assert split.labels.tolist() == [1.0, 0.0, 1.0]
    assert split.dense.tolist() == [[0.5], [1.5], [-2.5]]
    assert split.dense.dtype == np.float32
    assert split.weights is None
    assert split.gauc_ids is None
    assert split.malformed == ()


def test_row_groups_are_splits_and_empty_files_give_none(tmp_path: Path) -> None:
    rows = {"label": [0] * 10, "x": [float(i) for i in range(10)], "id": list(range(10))}
    write_parquet(tmp_path, rows, name="b.parquet", group=4)
    write_parquet(tmp_path, {name: pa.array(values)[:0] for name, values in rows.items()}, name="a.parquet")
    splits = read_all(make_spec(tmp_path))
    assert [(s.ref.position, s.ref.part, s.rows) for s in splits] == [(0, 0, 4), (1, 1, 4), (2, 2, 2)]
    assert [key for s in splits for key in s.sparse[0].keys.tolist()] == list(range(10))


def test_integer_extremes(tmp_path: Path) -> None:
    low, high = -(2**63), 2**63 - 1
    assert read_keys(tmp_path, pa.array([0, -1, low, high])) == [[0], [2**64 - 1], [2**63], [high]]
    assert read_keys(tmp_path, pa.array([0, 2**64 - 1], pa.uint64())) == [[0], [2**64 - 1]]
    assert read_keys(tmp_path, pa.array([-128, 5], pa.int8())) == [[2**64 - 128], [5]]


def test_strings_dictionaries_and_numbers_as_text(tmp_path: Path) -> None:
    words = ["a", "größe", "a"]
    expected = [[hashed(word)] for word in words]
    assert read_keys(tmp_path, pa.array(words)) == expected
    assert read_keys(tmp_path, pa.array(words).dictionary_encode()) == expected
    assert read_keys(tmp_path, pa.array(words), ids=IdKind.STRING) == expected
    assert read_keys(tmp_path, pa.array([7, -8]), ids=IdKind.STRING) == [[hashed("7")], [hashed("-8")]]
    assert read_keys(tmp_path, pa.array([True, False])) == [[hashed("true")], [hashed("false")]]
    assert read_keys(tmp_path, pa.array(["12", "-1"]), ids=IdKind.INTEGER) == [[12], [2**64 - 1]]


def test_coded_and_plain_text_agree(tmp_path: Path) -> None:
    words = [f"word {i % 3}" for i in range(2000)]
    assert read_keys(tmp_path, pa.array(words)) == [[hashed(word)] for word in words]
    unlike = [f"word number {i}" for i in range(2000)]
    assert read_keys(tmp_path, pa.array(unlike)) == [[hashed(word)] for word in unlike]
    nested = read_keys(tmp_path, pa.array([[word, "x"] for word in words]), is_list=True)
    assert nested == [[hashed(word), hashed("x")] for word in words]


@pytest.mark.parametrize("ids", [pa.array([5, None, 7]), pa.array(["5", None, "7"])])
def test_missing_scalars(tmp_path: Path, ids: Any) -> None:
    five, seven = (5, 7) if pa.types.is_integer(ids.type) else (hashed("5"), hashed("7"))
    assert read_keys(tmp_path, ids) == [[five], [MISSING_KEY], [seven]]
    assert read_keys(tmp_path, ids, missing=Missing.SKIP) == [[five], [], [seven]]


def test_skip_needs_no_offsets_when_nothing_is_missing(tmp_path: Path) -> None:
    path = write_parquet(tmp_path, {"label": LABELS, "id": [1, 2, 3]})
    split = read_one(make_spec(path, dense=(), sparse=(sparse("id", missing=Missing.SKIP),)))
    assert split.sparse[0].offsets is None


element = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))


@given(
    rows=st.lists(st.one_of(st.none(), st.lists(element, max_size=5)), min_size=1, max_size=8),
    most=st.one_of(st.none(), st.integers(1, 3)),
    large=st.booleans(),
)
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_lists_of_integers(tmp_path: Path, rows: list[list[int | None] | None], most: int | None, large: bool) -> None:
    kind = pa.large_list(pa.int64()) if large else pa.list_(pa.int64())
    expected = []
    for row in rows:
        present = [value % 2**64 for value in row or [] if value is not None]
        expected.append(present if most is None else present[-most:])
    assert read_keys(tmp_path, pa.array(rows, kind), is_list=True, max_length=most) == expected


def test_lists_of_strings_and_of_fixed_size(tmp_path: Path) -> None:
    strings = pa.array([["a", None, "b"], [], None])
    assert read_keys(tmp_path, strings, is_list=True) == [[hashed("a"), hashed("b")], [], []]
    fixed = pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int64(), 2))
    assert read_keys(tmp_path, fixed, is_list=True) == [[1, 2], [], [3, 4]]
    text = pa.array(["a|b", None, "|b|"])
    assert read_keys(tmp_path, text, is_list=True) == [[hashed("a"), hashed("b")], [], [hashed("b")]]


def test_buckets_count_the_boundaries_not_above_the_value(tmp_path: Path) -> None:
    ages = pa.array([17.9, 18.0, 30.0, None, 99.0])
    expected = [[0], [1], [1], [MISSING_KEY], [2]]
    assert read_keys(tmp_path, ages, boundaries=(65.0, 18.0)) == expected
    assert read_keys(tmp_path, ages, boundaries=(18.0, 65.0)) == expected
    lists = pa.array([[1, 20], [], [70]])
    assert read_keys(tmp_path, lists, boundaries=(18.0, 65.0), is_list=True) == [[0, 1], [], [2]]


def test_dense_transforms_and_fill(tmp_path: Path) -> None:
    path = write_parquet(tmp_path, {"label": LABELS, "x": pa.array([3, None, -3], pa.int32())})
    dense = (
        DenseFeature(name="plain", column="x", fill=9.0),
        DenseFeature(name="log", column="x", transform=DenseTransform.LOG, fill=0.0),
        DenseFeature(name="scaled", column="x", transform=DenseTransform.STANDARD, fill=5.0, mean=1.0, std=4.0),
    )
    split = read_one(make_spec(path, dense=dense, sparse=()))
    log = np.float32(math.log1p(3.0))
    assert split.dense.tolist() == [[3.0, log, 0.5], [9.0, 0.0, 1.0], [-3.0, -log, -1.0]]


def test_large_integers_round_to_float32_as_through_float64(tmp_path: Path) -> None:
    value = 2**60 + 2**36 + 1
    path = write_parquet(tmp_path, {"label": [0], "x": [value], "id": [1]})
    assert read_one(make_spec(path)).dense[0, 0] == np.float32(np.float64(value))


def test_weights_and_gauc_ids(tmp_path: Path) -> None:
    path = write_parquet(tmp_path, {"label": LABELS, "w": [0.0, 0.5, 2.0], "user": ["u", None, "v"], "n": [1, -1, 0]})
    split = read_one(make_spec(path, dense=(), sparse=(), weight="w", gauc_column="user"))
    assert split.weights is not None
    assert split.weights.tolist() == [0.0, 0.5, 2.0]
    assert split.gauc_ids is not None
    assert split.gauc_ids.tolist() == [hashed("u"), MISSING_KEY, hashed("v")]
    split = read_one(make_spec(path, dense=(), sparse=(), gauc_column="n"))
    assert split.gauc_ids is not None
    assert split.gauc_ids.tolist() == [1, 2**64 - 1, 0]


def test_bad_rows_are_left_out_and_told(tmp_path: Path) -> None:
    path = write_parquet(
        tmp_path,
        {
            "label": pa.array([0.0, 2.0, None, 1.0, 1.0, 0.0, 1.0]),
            "x": pa.array([1.0, 1.0, 1.0, float("nan"), float("inf"), 1e300, None]),
            "w": pa.array([1.0] * 7),
            "id": list(range(7)),
            "tags": pa.array([[i] * i for i in range(7)]),
        },
    )
    spec = make_spec(path, weight="w", sparse=(sparse("id"), sparse("tags", is_list=True)))
    split = read_one(spec)
    assert split.sparse[0].keys.tolist() == [0, 6]
    assert key_lists(split, 1) == [[], [6] * 6]
    assert split.labels.tolist() == [0.0, 1.0]
    assert [(row.line, row.path) for row in split.malformed] == [(i, str(path)) for i in range(1, 6)]
    reasons = [row.reason for row in split.malformed]
    assert "label 'label': 2.0 is not 0 or 1" in reasons[0]
    assert "label 'label' is missing" in reasons[1]
    assert ["nan" in reasons[2], "inf" in reasons[3], "1e+300" in reasons[4]] == [True] * 3


@pytest.mark.parametrize("weight", [-0.5, float("nan"), float("inf"), 1e39, None])
def test_bad_weights(tmp_path: Path, weight: float | None) -> None:
    path = write_parquet(tmp_path, {"label": LABELS, "w": [1.0, weight, 1.0], "id": [1, 2, 3]})
    split = read_one(make_spec(path, dense=(), weight="w"))
    assert split.sparse[0].keys.tolist() == [1, 3]
    assert "weight 'w'" in split.malformed[0].reason


def test_first_reason_stands_once_per_row(tmp_path: Path) -> None:
    path = write_parquet(tmp_path, {"label": [7], "x": [float("nan")], "id": [1]})
    split = read_one(make_spec(path))
    assert [row.reason for row in split.malformed] == ["label 'label': 7 is not 0 or 1"]
    assert split.dense.shape == (0, 1)


def test_nan_in_a_bucket_column_is_malformed(tmp_path: Path) -> None:
    path = write_parquet(tmp_path, {"label": LABELS, "id": [1.0, float("nan"), 3.0]})
    split = read_one(make_spec(path, dense=(), sparse=(sparse("id", boundaries=(2.0,)),)))
    assert key_lists(split) == [[0], [1]]
    assert "nan" in split.malformed[0].reason


def test_sparse_arrays_are_read_only_and_64_bit_ids_are_not_copied(tmp_path: Path) -> None:
    rows = 1000
    path = write_parquet(
        tmp_path, {"label": [0] * rows, "id": np.arange(rows, dtype=np.int64), "tags": [[1, 2]] * rows}
    )
    split = read_one(make_spec(path, dense=(), sparse=(sparse("id"), sparse("tags", is_list=True))))
    keys = split.sparse[0].keys
    assert keys.base is not None
    assert not any(jagged.keys.flags.writeable for jagged in split.sparse)
    assert split.sparse[1].offsets is not None
    assert not split.sparse[1].offsets.flags.writeable
    assert keys.flags.c_contiguous


def test_all_null_columns(tmp_path: Path) -> None:
    nothing = pa.nulls(3)
    path = write_parquet(tmp_path, {"label": LABELS, "x": nothing, "id": nothing, "tags": nothing})
    features = (sparse("id"), sparse("tags", is_list=True), sparse("id", ids=IdKind.INTEGER))
    split = read_one(make_spec(path, sparse=features))
    assert split.dense.tolist() == [[0.0]] * 3
    assert [key_lists(split, i) for i in range(3)] == [[[MISSING_KEY]] * 3, [[]] * 3, [[MISSING_KEY]] * 3]
