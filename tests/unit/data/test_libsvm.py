"""libsvm lines to keys and weights, against a plain reading of the same text."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hetero.errors import DataError
from hetero.records import DenseFeature, IdKind
from tests.unit.data.data_files import key_lists, make_spec, read_all, read_one, sparse, write_text

FEATURES = sparse("features", is_list=True)


token = st.tuples(st.integers(0, 2**64 - 1), st.floats(-(2.0**99), 2.0**99, width=32))
row = st.tuples(st.sampled_from(["0", "1", "1.0"]), st.lists(token, max_size=4))


@given(rows=st.lists(row, min_size=1, max_size=6), gap=st.sampled_from([" ", "  ", "\t"]), block=st.integers(1, 60))
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rows_of_pairs(tmp_path: Path, rows: list[tuple[str, list[tuple[int, float]]]], gap: str, block: int) -> None:
    text = "".join(gap.join([label, *(f"{k}:{v!r}" for k, v in pairs)]) + f"{gap}# note 3:4\n" for label, pairs in rows)
    path = write_text(tmp_path, text, name="a.libsvm")
    splits = read_all(make_spec(path, dense=(), sparse=(FEATURES,), text_block_bytes=block))
    assert [label for s in splits for label in s.labels.tolist()] == [float(label) for label, _ in rows]
    assert [keys for s in splits for keys in key_lists(s)] == [[k for k, _ in pairs] for _, pairs in rows]
    weights: list[float] = []
    for split in splits:
        jagged = split.sparse[0]
        weights += np.ones(len(jagged.keys)).tolist() if jagged.weights is None else jagged.weights.tolist()
    assert weights == [np.float32(v) for _, pairs in rows for _, v in pairs]
    assert not any(s.malformed for s in splits)


def test_values_that_are_all_one_make_no_weights(tmp_path: Path) -> None:
    path = write_text(tmp_path, "1 3:1 4:1.0\n0 5:1\n", name="a.svm")
    split = read_one(make_spec(path, dense=(), sparse=(FEATURES, sparse("features"))))
    for feature in range(2):
        assert split.sparse[feature].weights is None
        assert key_lists(split, feature) == [[3, 4], [5]]


def test_blocks_with_and_without_weights_join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hetero.data.lines.BLOCK_BYTES", 8)
    path = write_text(tmp_path, gzip.compress(b"1 3:1\n0 4:1\n1 5:0.5\n1 bad\n"), name="a.svm.gz")
    split = read_one(make_spec(path, dense=(), sparse=(FEATURES,)))
    assert key_lists(split) == [[3], [4], [5]]
    assert split.sparse[0].weights is not None
    assert split.sparse[0].weights.tolist() == [1.0, 1.0, 0.5]
    assert [row.line for row in split.malformed] == [4]


def test_ids_as_strings_and_newest_values(tmp_path: Path) -> None:
    path = write_text(tmp_path, "1 3:1 4:2 5:3\n", name="a.svm")
    features = (
        sparse("features", ids=IdKind.STRING),
        sparse("features", is_list=True, max_length=2),
    )
    split = read_one(make_spec(path, dense=(), sparse=features))
    assert key_lists(split, 0) == [[xxhash.xxh64_intdigest(text) for text in (b"3", b"4", b"5")]]
    assert key_lists(split, 1) == [[4, 5]]
    assert split.sparse[1].weights is not None
    assert split.sparse[1].weights.tolist() == [2.0, 3.0]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("2 1:1", "label 'label': '2' is not 0 or 1"),
        ("-1 1:1", "label 'label': '-1' is not 0 or 1"),
        ("1 1", "'1' is not index:value"),
        ("1 1: 2:1", "'1:' is not index:value"),
        ("1 :1", "':1' is not index:value"),
        ("1 2:1 qid:7", "'qid:7' does not hold a 64-bit index"),
        ("1 2:x", "'2:x' does not hold a finite value"),
        ("1 2:nan", "'2:nan' does not hold a finite value"),
        ("1 2:1e39", "'2:1e39' does not hold a finite value"),
        ("1 18446744073709551616:1", "'18446744073709551616:1' does not hold a 64-bit index"),
        ("1 1:2:3", "'1:2:3' does not hold a finite value"),
    ],
)
def test_bad_lines(tmp_path: Path, line: str, reason: str) -> None:
    path = write_text(tmp_path, f"0 7:1\n\n# comment\n{line}\n+1 8:1 # end\n", name="a.svm")
    split = read_one(make_spec(path, dense=(), sparse=(FEATURES,)))
    assert split.labels.tolist() == [0.0, 1.0]
    assert key_lists(split) == [[7], [8]]
    assert [(row.line, row.reason) for row in split.malformed] == [(4, reason)]


def test_other_columns_do_not_exist(tmp_path: Path) -> None:
    path = write_text(tmp_path, "1 3:1\n", name="a.svm")
    with pytest.raises(DataError, match="no column 'x'"):
        read_all(make_spec(path, sparse=(FEATURES,)))
    with pytest.raises(DataError, match="can only feed sparse"):
        read_all(make_spec(path, dense=(DenseFeature(name="f", column="features"),), sparse=()))
    with pytest.raises(DataError, match="are fixed"):
        read_all(make_spec(path, dense=(), sparse=(FEATURES,), columns=("label", "features")))
