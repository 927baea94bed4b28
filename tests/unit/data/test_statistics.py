"""Means and deviations of columns over files and blocks, against numpy on all values at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.data.statistics import Moments, dense_statistics
from hetero.errors import DataError
from hetero.records import DenseFeature, DenseTransform
from tests.unit.data.data_files import make_spec, write_parquet, write_text


def standard(name: str, column: str) -> DenseFeature:
    return DenseFeature(name=name, column=column, transform=DenseTransform.STANDARD, fill=99.0)


@given(st.lists(st.lists(st.floats(-1e6, 1e6), max_size=9), max_size=6))
@settings(max_examples=50, deadline=None)
def test_merged_moments_equal_those_of_all_values(parts: list[list[float]]) -> None:
    merged = Moments()
    for part in parts:
        merged = merged.merge(Moments.of(np.array(part, np.float64)))
    values = np.array([value for part in parts for value in part], np.float64)
    assert merged.count == len(values)
    if len(values):
        assert merged.mean == pytest.approx(values.mean(), rel=1e-9, abs=1e-6)
        assert merged.squares == pytest.approx(((values - values.mean()) ** 2).sum(), rel=1e-6, abs=1e-3)


def test_over_files_of_both_kinds(tmp_path: Path) -> None:
    values = np.random.default_rng(1).normal(1e6, 3.0, 1000)
    cells = [None if i % 7 == 0 else float(value) for i, value in enumerate(values)]
    write_parquet(tmp_path, {"label": [0] * 500, "x": cells[:500], "c": [4.0] * 500}, name="a.parquet", group=100)
    lines = "".join(f"1,{'' if cell is None else repr(cell)},4\n" for cell in cells[500:])
    write_text(tmp_path, "label,x,c\n" + lines, name="b.csv")
    spec = make_spec(tmp_path, dense=(standard("sx", "x"), standard("sc", "c"), DenseFeature(name="x", column="x")))
    found = dense_statistics(spec)
    present = values[np.arange(1000) % 7 != 0]
    assert found == {"sx": pytest.approx((present.mean(), present.std()), rel=1e-9), "sc": (4.0, 1.0)}


def test_values_that_cannot_be_used_do_not_count(tmp_path: Path) -> None:
    path = write_text(tmp_path, "label,x\n1,1\n1,nan\n0,inf\n0,oops\n1,3\n")
    assert dense_statistics(make_spec(path, dense=(standard("x", "x"),)))["x"] == (2.0, 1.0)


def test_a_column_without_values(tmp_path: Path) -> None:
    path = write_parquet(tmp_path, {"label": [0], "x": pa.nulls(1, pa.float32())})
    with pytest.raises(DataError, match=r"column 'x'.*has no value"):
        dense_statistics(make_spec(path, dense=(standard("x", "x"),)))


def test_no_standard_feature_reads_nothing(tmp_path: Path) -> None:
    assert dense_statistics(make_spec(tmp_path / "does not exist")) == {}
