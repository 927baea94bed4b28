"""Splits held by a reader, and row ranges of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hetero.data.reader import SplitReader, slice_split, split_bytes
from hetero.data.sources import list_splits
from hetero.errors import ProtocolError
from hetero.records import DataSpec
from tests.unit.data.data_files import key_lists, make_spec, read_one, sparse, write_parquet


@pytest.fixture
def spec(tmp_path: Path) -> DataSpec:
    path = write_parquet(
        tmp_path,
        {
            "label": [0, 1, 0, 1, 9, 1],
            "x": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0],
            "w": [0.5, 1.0, 0.25, 2.0, 1.0, 3.0],
            "id": list(range(6)),
            "tags": [[], [1], [2, 3], [4, 5, 6], [7], [8]],
        },
        group=5,
    )
    return make_spec(path, weight="w", gauc_column="id", sparse=(sparse("id"), sparse("tags", is_list=True)))


def test_load_reports_and_holds_until_released(spec: DataSpec) -> None:
    reader, refs = SplitReader(spec), list_splits(spec)
    report = reader.load(refs[0], 3)
    assert (report.position, report.epoch, report.rows) == (0, 3, 4)
    assert [row.line for row in report.malformed] == [4]
    assert report.weight_prefix is not None
    assert report.weight_prefix.tolist() == [0.0, 0.5, 1.5, 1.75, 3.75]
    held = reader.held(3, 0)
    assert key_lists(held) == [[0], [1], [2], [3]]
    reader.load(refs[0], 3)
    assert reader.held(3, 0) is held
    before = reader.held_bytes
    assert before == split_bytes(held) == 4 * (4 + 4 + 4 + 8 + 8) + 6 * 8 + 5 * 4
    reader.load(refs[1], 3)
    assert reader.held_bytes > before
    reader.release(3, 0)
    reader.release(3, 1)
    assert reader.held_bytes == 0


def test_what_is_not_held_is_an_error(spec: DataSpec) -> None:
    reader, refs = SplitReader(spec), list_splits(spec)
    reader.load(refs[0], 0)
    with pytest.raises(ProtocolError, match="split 0 of pass 1"):
        reader.held(1, 0)
    reader.release(0, 0)
    with pytest.raises(ProtocolError, match="split 0 of pass 0"):
        reader.release(0, 0)


def test_unweighted_splits_have_no_prefix(tmp_path: Path) -> None:
    path = write_parquet(tmp_path, {"label": [1], "id": [1]})
    plain = make_spec(path, dense=())
    assert SplitReader(plain).load(list_splits(plain)[0], 0).weight_prefix is None


@pytest.mark.parametrize(("start", "stop"), [(0, 4), (1, 3), (2, 2), (4, 4), (3, 4)])
def test_slices_are_views(spec: DataSpec, start: int, stop: int) -> None:
    whole = SplitReader(spec)
    whole.load(list_splits(spec)[0], 0)
    split = whole.held(0, 0)
    part = slice_split(split, start, stop)
    assert part.rows == stop - start
    assert part.labels.tolist() == split.labels.tolist()[start:stop]
    assert part.dense.tolist() == split.dense.tolist()[start:stop]
    assert [key_lists(part, i) for i in range(2)] == [key_lists(split, i)[start:stop] for i in range(2)]
    assert part.weights is not None
    assert part.gauc_ids is not None
    assert part.gauc_ids.tolist() == list(range(start, stop))
    if stop > start:
        assert np.shares_memory(part.dense, split.dense)
        assert np.shares_memory(part.sparse[0].keys, split.sparse[0].keys)
        assert split.weights is not None
        assert np.shares_memory(part.weights, split.weights)


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (0, 5), (3, 2)])
def test_ranges_outside_the_split(spec: DataSpec, start: int, stop: int) -> None:
    reader = SplitReader(spec)
    reader.load(list_splits(spec)[0], 0)
    with pytest.raises(ProtocolError, match="which has 4 good rows"):
        slice_split(reader.held(0, 0), start, stop)


def test_read_one_helper_reads_what_a_reader_holds(tmp_path: Path) -> None:
    path = write_parquet(tmp_path, {"label": [1, 0], "x": [1.0, 2.0], "id": [5, 6]})
    assert read_one(make_spec(path)).sparse[0].keys.tolist() == [5, 6]
