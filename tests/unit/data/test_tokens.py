"""Columns of token ids to matrices, and labels of several tasks, against rows written out one by one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.data.faults import RowFaults
from hetero.data.sources import check_schema
from hetero.data.tokens import token_rows
from hetero.errors import DataError
from hetero.records import NO_TOKEN, TaskSpec, TextFeature
from tests.unit.data.data_files import make_spec, read_all, read_one, write_parquet, write_text

TEXT = TextFeature(name="review", column="tokens", length=4, vocabulary=10)
TASKS = (TaskSpec(name="bought", column="bought"),)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.one_of(st.none(), st.lists(st.integers(-2, 11), max_size=7)), max_size=6))
def test_rows_are_cut_and_filled(texts: list[list[int] | None]) -> None:
    faults = RowFaults(len(texts))
    tokens = token_rows(pa.array(texts, pa.list_(pa.int64())), feature=TEXT, faults=faults)
    assert tokens.shape == (len(texts), 4)
    assert tokens.dtype == np.int32
    bad = {row for row, text in enumerate(texts) if any(not 0 <= token < 10 for token in text or [])}
    assert {row for row, _ in faults.reasons()} == bad
    for row, text in enumerate(texts):
        if row not in bad:
            kept = (text or [])[:4]
            assert tokens[row].tolist() == kept + [NO_TOKEN] * (4 - len(kept))


def test_a_bad_token_leaves_its_row_out_and_is_told(tmp_path: Path) -> None:
    columns = {
        "label": [1, 0, 1],
        "x": [0.0, 1.0, 2.0],
        "id": [1, 2, 3],
        "tokens": pa.array([[1, 2], [3, 10, 11], None], pa.list_(pa.int32())),
        "bought": pa.array([1, None, 0], pa.int8()),
    }
    split = read_one(make_spec(write_parquet(tmp_path, columns), texts=(TEXT,), tasks=TASKS))
    assert [row.line for row in split.malformed] == [1]
    assert "column 'tokens': token 10 is not from 0 to 9" in split.malformed[0].reason
    assert split.tokens[0].tolist() == [[1, 2, -1, -1], [-1] * 4]
    assert split.tasks is not None
    assert split.tasks.tolist() == [[1.0], [0.0]]


def test_shuffled_rows_keep_their_tokens_and_tasks(tmp_path: Path) -> None:
    rows = 50
    columns = {
        "label": [0] * rows,
        "x": np.arange(rows, dtype=np.float64),
        "id": [1] * rows,
        "tokens": pa.array([[row % 10] for row in range(rows)]),
        "bought": pa.array([None if row % 3 else 1 for row in range(rows)], pa.int8()),
    }
    path = write_parquet(tmp_path, columns, group=20)
    for split in read_all(make_spec(path, texts=(TEXT,), tasks=TASKS, shuffle=True)):
        assert split.tokens[0][:, 0].tolist() == [int(x) % 10 for x in split.dense[:, 0]]
        assert split.tasks is not None
        assert np.isnan(split.tasks[:, 0]).tolist() == [int(x) % 3 != 0 for x in split.dense[:, 0]]


def test_text_files_hold_ids_with_spaces_between(tmp_path: Path) -> None:
    path = write_text(tmp_path, "label,x,id,tokens,bought\n1,0.5,a,3 4 5,1\n0,1.5,b,,\n")
    split = read_one(make_spec(path, texts=(TEXT,), tasks=TASKS))
    assert split.tokens[0].tolist() == [[3, 4, 5, -1], [-1] * 4]
    assert split.tasks is not None
    assert split.tasks[0, 0] == 1
    assert np.isnan(split.tasks[1, 0])


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (pa.array(["some words"]), "takes token ids; make them with `hetero data tokens`"),
        (pa.array([1]), "text feature 'review' is a list"),
        (pa.array([[0.5]]), "text feature 'review' takes integers"),
    ],
)
def test_a_column_of_another_type_is_refused(tmp_path: Path, column: pa.Array, said: str) -> None:
    path = write_parquet(tmp_path, {"label": [1], "x": [0.0], "id": [1], "tokens": column})
    with pytest.raises(DataError, match=said):
        check_schema(make_spec(path, texts=(TEXT,)))
